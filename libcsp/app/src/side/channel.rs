//! Channels: the links to each proxy worker, their messages that wait for descriptor credit, and
//! reconnection.

use std::collections::{HashMap, VecDeque};

use csp_types::{FlowLabel, Instant};
use csp_wire::channel::{ConnectPayload, Message, MessageHeader, MessageKind, OpenPayload};
use csp_wire::link::Purpose;

use super::config::{CHANNELS_MAX, ProxyTarget};
use super::records::{Flow, Phase};
use super::slots::{FlowId, Slots};
use super::{AppSide, Handle, errno};
use csp_transport::Backoff;
use csp_transport::RefusalCode;
use csp_transport::{DownReason, LinkId, MessageKind as LinkMessageKind};

/// Largest number of control messages that wait for descriptors. A flow has at most five, so that only a
/// proxy that returns no credit while it opens and closes flows reaches this bound. Its link is broken then.
const OUTBOX_MAX: usize = 64 * 1024;

/// Descriptors that data leaves for control messages, so that a CLOSE is in the ring before the call returns
/// to the program.
pub(super) const CONTROL_RESERVE: u32 = 1;

/// Longest payload of a control message: CONNECT's. OPEN is never sent from here.
const CONTROL_PAYLOAD_MAX: usize = ConnectPayload::LEN_MAX;
const _: () = assert!(CONTROL_PAYLOAD_MAX >= OpenPayload::LEN - 4);

/// A message that waits for a descriptor.
#[derive(Clone, Debug)]
enum Control {
    /// A complete message.
    Ready { header: MessageHeader, payload: [u8; CONTROL_PAYLOAD_MAX] },
    /// Corked bytes of a flow that found no descriptor when they had to be sent.
    Data { header: MessageHeader, payload: Vec<u8> },
    /// CREDIT; the number of bytes is determined when it is sent.
    Credit(FlowId),
}

/// One link of a channel's pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Lane {
    /// The proxy worker.
    pub channel: usize,
    /// The link's index in the pool.
    pub index: usize,
}

/// One link to a proxy worker, and the messages that wait for its descriptors.
#[derive(Debug)]
pub(super) struct AppLane {
    link: Option<LinkId>,
    up: bool,
    backoff: Backoff,
    outbox: VecDeque<Control>,
    /// Flows whose write found no descriptor, each once, in the order in which they are notified of free
    /// ones.
    blocked: VecDeque<FlowId>,
}

impl AppLane {
    fn new(backoff: Backoff) -> Self {
        AppLane { link: None, up: false, backoff, outbox: VecDeque::new(), blocked: VecDeque::new() }
    }

    pub fn link(&self) -> Option<LinkId> {
        self.link.filter(|_| self.up)
    }
}

/// A proxy worker, and the pool of links to it. A flow stays on its link, so that its messages keep their
/// order; listeners are announced over one of them.
#[derive(Debug)]
pub(super) struct AppChannel {
    target: ProxyTarget,
    /// Whether the agent still announces this proxy; if not, its existing links are kept while they live.
    wanted: bool,
    lanes: Vec<AppLane>,
    /// The link for messages that concern no flow: the first that came up, while it lives.
    control: Option<usize>,
    /// Whether listeners were announced to it before: it may remember them from a link that is lost by now.
    pub announced: bool,
    /// Listeners closed since then, oldest first: their UNLISTEN may have been lost with a link.
    pub closed: VecDeque<u32>,
    pub labels: HashMap<u32, FlowId>,
}

impl AppChannel {
    fn new(target: ProxyTarget, lanes: Vec<AppLane>) -> Self {
        let (closed, labels) = (VecDeque::new(), HashMap::new());
        AppChannel { target, wanted: true, lanes, control: None, announced: false, closed, labels }
    }

    pub fn next_tries(&self) -> impl Iterator<Item = Instant> {
        let lost = self.lanes.iter().filter(|lane| self.wanted && lane.link.is_none());
        lost.map(|lane| lane.backoff.next_try())
    }

    pub fn is_wanted(&self) -> bool {
        self.wanted
    }

    pub fn is_up(&self) -> bool {
        self.control.is_some()
    }

    pub fn target(&self) -> &ProxyTarget {
        &self.target
    }

    pub fn first_up(&self) -> Option<usize> {
        self.lanes.iter().position(|lane| lane.up)
    }

    fn is_linked(&self) -> bool {
        self.lanes.iter().any(|lane| lane.link.is_some())
    }
}

/// Creates the CREDIT message that a flow owes, and records its bytes as advertised.
fn credit_message(flows: &mut Slots<Flow>, id: FlowId) -> Option<MessageHeader> {
    let flow = flows.get_mut(id.0)?;
    flow.credit_queued = false;
    let label = flow.label.filter(|_| !flow.ended_here && !flow.ended_there)?;
    Some(MessageHeader::of_flow(MessageKind::Credit, label, flow.receive.take_due()?, 0))
}

impl AppSide {
    /// Sets the proxy workers. New ones are connected at the next [`progress`](Self::progress). A link to one
    /// that is no longer listed remains while it lives (absence is not death) and is not opened again. At
    /// most [`CHANNELS_MAX`] are used.
    pub fn set_proxies(&mut self, targets: &[ProxyTarget]) {
        for channel in &mut self.channels {
            let listed = targets.iter().find(|target| target.is_same_worker(&channel.target));
            channel.wanted = listed.is_some();
            channel.target.draining = listed.is_some_and(|target| target.draining);
        }
        for target in targets {
            if self.channels.iter().any(|c| c.target.is_same_worker(target)) {
                continue;
            }
            let lanes = self.new_lanes();
            let channel = AppChannel::new(target.clone(), lanes);
            if let Some(slot) = self.channels.iter_mut().find(|c| !c.wanted && !c.is_linked()) {
                *slot = channel;
            } else if self.channels.len() < CHANNELS_MAX {
                self.channels.push(channel);
            } else {
                return;
            }
        }
    }

    fn new_lanes(&self) -> Vec<AppLane> {
        let pool = u64::from(self.config.pool);
        let seed = self.config.seed.wrapping_add(self.channels.len() as u64 * pool);
        (0..pool).map(|n| AppLane::new(Backoff::new(self.config.backoff, seed.wrapping_add(n)))).collect()
    }

    /// Number of proxy workers with a link that is up.
    pub fn channels_up(&self) -> usize {
        self.channels.iter().filter(|c| c.is_up()).count()
    }

    /// The known proxy workers, and whether any link to them is up.
    pub fn channels(&self) -> impl Iterator<Item = (&ProxyTarget, bool)> {
        self.channels.iter().map(|c| (&c.target, c.is_up()))
    }

    pub(super) fn connect_channels(&mut self) {
        let pool = self.config.pool;
        for channel in self.channels.iter_mut().filter(|channel| channel.wanted) {
            for (index, lane) in channel.lanes.iter_mut().enumerate() {
                if lane.link.is_some() || !lane.backoff.ready(self.now) {
                    continue;
                }
                let (address, place) = (&channel.target.address, (index as u8, pool));
                match self.endpoint.connect(
                    self.now,
                    address,
                    Purpose::Channel,
                    0,
                    place,
                    self.token.as_bytes(),
                ) {
                    Ok(link) => lane.link = Some(link),
                    Err(_) => {
                        self.counters.link_failures += 1;
                        lane.backoff.failed(self.now);
                    }
                }
            }
        }
    }

    pub(super) fn lane(&self, lane: Lane) -> Option<&AppLane> {
        self.channels.get(lane.channel)?.lanes.get(lane.index)
    }

    fn lane_mut(&mut self, lane: Lane) -> Option<&mut AppLane> {
        self.channels.get_mut(lane.channel)?.lanes.get_mut(lane.index)
    }

    pub(super) fn lane_of(&self, link: LinkId) -> Option<Lane> {
        self.channels.iter().enumerate().find_map(|(channel, c)| {
            let index = c.lanes.iter().position(|lane| lane.link == Some(link))?;
            Some(Lane { channel, index })
        })
    }

    /// Selects the link for a new connection, in turn among those that are up; those of a draining proxy come
    /// last.
    pub(super) fn pick_lane(&mut self) -> Option<Lane> {
        let pool = usize::from(self.config.pool);
        let count = self.channels.len();
        // All proxies in turn, then the next link of each.
        let lane = |n: usize| Lane { channel: n % count, index: n / count % pool };
        let up = |n: &usize| self.lane(lane(*n)).is_some_and(|lane| lane.up);
        let stays = |n: &usize| self.channels.get(n % count).is_some_and(|c| !c.target.draining);
        let all = (0..count * pool).map(|n| self.next_lane.wrapping_add(n));
        let chosen = all.clone().filter(up).find(stays).or_else(|| all.clone().find(up))?;
        self.next_lane = chosen.wrapping_add(1) % (count * pool);
        Some(lane(chosen))
    }

    pub(super) fn link_up(&mut self, link: LinkId) {
        let Some(lane) = self.lane_of(link) else { return };
        self.counters.links_up += 1;
        if let Some(lane) = self.lane_mut(lane) {
            lane.up = true;
            lane.backoff.succeeded();
        }
        if let Some(channel) = self.channels.get_mut(lane.channel).filter(|c| c.control.is_none()) {
            channel.control = Some(lane.index);
            self.announce(lane.channel);
        }
    }

    pub(super) fn link_down(&mut self, link: LinkId, reason: &DownReason) {
        let Some(at) = self.lane_of(link) else { return };
        let now = self.now;
        let Some(lane) = self.lane_mut(at) else { return };
        let was_up = std::mem::replace(&mut lane.up, false);
        lane.link = None;
        lane.backoff.failed(now);
        lane.outbox.clear();
        lane.blocked.clear();
        if was_up {
            self.counters.links_lost += 1;
        } else {
            self.counters.link_failures += 1;
        }
        if let DownReason::Refused { code: RefusalCode::ExpiredToken | RefusalCode::BadToken, .. } = reason {
            self.token_refused = true;
        }
        self.replace_control(at);
        self.lose_flows(at);
        match self.channels.get(at.channel).and_then(|c| c.control) {
            // Messages in transit on the lost link are unknown: announcements of listeners, and connections
            // that the proxy had offered.
            Some(_) if was_up => self.announce(at.channel),
            Some(_) => {}
            None => self.void_offers(at.channel),
        }
    }

    /// Selects another link for messages that concern no flow if the lost one carried them.
    fn replace_control(&mut self, lost: Lane) {
        if let Some(channel) = self.channels.get_mut(lost.channel).filter(|c| c.control == Some(lost.index)) {
            channel.control = channel.lanes.iter().position(|lane| lane.up);
        }
    }

    /// Breaks the link of a proxy that violated the protocol.
    pub(super) fn violation(&mut self, lane: Lane) {
        self.counters.protocol_violations += 1;
        if let Some(link) = self.lane(lane).and_then(|lane| lane.link) {
            self.endpoint.fail(self.now, link);
        }
    }

    /// Queues a message without payload and sends it if a descriptor is free.
    pub(super) fn send_control(&mut self, lane: Lane, header: MessageHeader) {
        self.send_control_with(lane, header, &[]);
    }

    /// Queues a message that concerns no flow. It is dropped for a proxy without a link; listeners are
    /// announced when a link comes up.
    pub(super) fn send_to_channel(&mut self, channel: usize, header: MessageHeader, payload: &[u8]) {
        if let Some(index) = self.channels.get(channel).and_then(|c| c.control) {
            self.send_control_with(Lane { channel, index }, header, payload);
        }
    }

    pub(super) fn send_control_with(&mut self, lane: Lane, mut header: MessageHeader, payload: &[u8]) {
        let mut bytes = [0; CONTROL_PAYLOAD_MAX];
        let len = payload.len().min(CONTROL_PAYLOAD_MAX);
        if let (Some(to), Some(from)) = (bytes.get_mut(..len), payload.get(..len)) {
            to.copy_from_slice(from);
        }
        header.payload_len = len as u32;
        self.queue_control(lane, Control::Ready { header, payload: bytes });
    }

    /// Sends corked bytes, or queues them if no descriptor is free.
    pub(super) fn send_held(&mut self, lane: Lane, label: FlowLabel, bytes: Vec<u8>) {
        let header = MessageHeader::of_flow(MessageKind::Data, label, 0, bytes.len() as u32);
        self.queue_control(lane, Control::Data { header, payload: bytes });
    }

    /// Queues CREDIT for a flow once.
    pub(super) fn send_credit(&mut self, id: FlowId) {
        let Some(flow) = self.flows.get_mut(id.0) else { return };
        if !flow.credit_queued && flow.receive.due() && !flow.ended_there && !flow.ended_here {
            flow.credit_queued = true;
            let lane = flow.lane;
            self.queue_control(lane, Control::Credit(id));
        }
    }

    fn queue_control(&mut self, at: Lane, control: Control) {
        let Some(lane) = self.lane_mut(at).filter(|lane| lane.up) else { return };
        if lane.outbox.len() >= OUTBOX_MAX {
            return self.violation(at);
        }
        lane.outbox.push_back(control);
        self.flush(at);
    }

    /// Packs waiting control messages into as few link messages as possible and sends what descriptors allow.
    pub(super) fn flush(&mut self, lane: Lane) {
        while self.flush_one(lane) {}
    }

    fn flush_one(&mut self, at: Lane) -> bool {
        let Some(lane) = self.channels.get_mut(at.channel).and_then(|c| c.lanes.get_mut(at.index)) else {
            return false;
        };
        let Some(link) = lane.link() else { return false };
        if lane.outbox.is_empty() || self.endpoint.credits(link) == 0 {
            return false;
        }
        self.packing.clear();
        let (mut packed, mut immediate) = (0, 0);
        let room = self.endpoint.message_len();
        while let Some(control) = lane.outbox.get(packed) {
            if let Control::Credit(id) = control {
                let Some(header) = credit_message(&mut self.flows, *id) else {
                    lane.outbox.remove(packed);
                    continue;
                };
                if let Some(slot) = lane.outbox.get_mut(packed) {
                    // Its number is determined: from now on it is a complete message.
                    *slot = Control::Ready { header, payload: [0; CONTROL_PAYLOAD_MAX] };
                }
                continue;
            }
            let (header, payload) = match control {
                Control::Ready { header, payload } => (*header, payload.as_slice()),
                Control::Data { header, payload } => (*header, payload.as_slice()),
                Control::Credit(_) => break,
            };
            let payload = payload.get(..header.payload_len as usize).unwrap_or(&[]);
            let message = Message { header, payload };
            let start = self.packing.len();
            if start + message.len() > room {
                break;
            }
            self.packing.resize(start + message.len(), 0);
            let Some(out) = self.packing.get_mut(start..) else { break };
            if message.emit(out).is_err() {
                self.packing.truncate(start);
                break;
            }
            let label = if header.kind.is_of_flow() { header.id } else { 0 };
            immediate = if packed == 0 { label } else { 0 };
            packed += 1;
        }
        if packed == 0 {
            return false;
        }
        let sent = self.endpoint.send(
            self.now,
            link,
            LinkMessageKind::Channel,
            immediate,
            &[self.packing.as_slice()],
        );
        if sent.is_err() {
            return false;
        }
        lane.outbox.drain(..packed);
        true
    }

    /// Whether data may be sent on a link now: no message waits before it, and a descriptor is available
    /// beyond the reserve.
    pub(super) fn has_descriptor(&self, lane: Lane) -> bool {
        self.lane(lane).is_some_and(|lane| {
            lane.outbox.is_empty() && lane.link().is_some_and(|l| self.endpoint.credits(l) > CONTROL_RESERVE)
        })
    }

    /// Adds a flow to those notified when descriptors are available again.
    pub(super) fn block_on_descriptors(&mut self, lane: Lane, id: FlowId) {
        let Some(flow) = self.flows.get_mut(id.0).filter(|f| !f.blocked) else { return };
        flow.blocked = true;
        match self.lane_mut(lane) {
            Some(lane) => lane.blocked.push_back(id),
            None => debug_assert!(false, "a flow has a lane"),
        }
    }

    /// Notifies as many blocked flows as there are free descriptors; a flow that does not write leaves its
    /// descriptor to the next. Returns whether any was notified.
    pub(super) fn wake_blocked(&mut self, at: Lane) -> bool {
        if !self.has_descriptor(at) {
            return false;
        }
        let credits = self.lane(at).and_then(AppLane::link).map_or(0, |link| self.endpoint.credits(link));
        let (mut spare, mut any) = (credits.saturating_sub(CONTROL_RESERVE), false);
        while spare > 0
            && let Some(id) = self.lane_mut(at).and_then(|lane| lane.blocked.pop_front())
        {
            let Some(flow) = self.flows.get_mut(id.0) else { continue };
            flow.blocked = false;
            (spare, any) = (spare - 1, true);
            self.notify(Handle::Flow(id));
        }
        any
    }

    pub(super) fn bind_label(&mut self, index: usize, label: FlowLabel, id: FlowId) -> bool {
        let Some(channel) = self.channels.get_mut(index) else { return false };
        if channel.labels.contains_key(&label.to_wire()) {
            return false;
        }
        channel.labels.insert(label.to_wire(), id);
        true
    }

    /// Voids the offers of a proxy without a link, except credit that it may still use. Connections that were
    /// not accepted are offered again by the proxy.
    fn void_offers(&mut self, channel: usize) {
        let mut at = 0;
        while let Some((slot, id)) = self.listeners.at_or_after(at) {
            at = slot + 1;
            if let Some(offer) = self.listeners.get_mut(id).and_then(|l| l.offers.get_mut(channel)) {
                offer.restart();
            }
        }
    }

    /// Ends the flows of a lost link, since it is unknown which of their messages arrived.
    fn lose_flows(&mut self, lane: Lane) {
        let mut at = 0;
        while let Some((slot, id)) = self.flows.at_or_after(at) {
            at = slot + 1;
            if self.flows.get(id).is_some_and(|flow| flow.lane == lane) {
                self.lose_flow(lane, FlowId(id));
            }
        }
    }

    fn lose_flow(&mut self, lane: Lane, id: FlowId) {
        let was_labelled = self.flows.get(id.0).is_some_and(|flow| flow.label.is_some());
        self.release_label(id);
        let Some(flow) = self.flows.get_mut(id.0) else { return };
        let unfinished = !(flow.broken || flow.ended_there && flow.peer_closed);
        let connecting = flow.phase == Phase::Connecting;
        let (pending, listener) = (flow.phase == Phase::Pending, flow.listener);
        flow.blocked = false;
        flow.ended_here = true;
        flow.ended_there = true;
        if pending {
            self.drop_pending(id, listener, lane);
        } else if flow.orphan {
            self.flows.remove(id.0);
        } else if unfinished && (was_labelled || connecting) {
            let error = if connecting { errno::EHOSTUNREACH } else { errno::ECONNRESET };
            self.break_flow(id, error);
        }
    }
}
