//! Channels: one link per proxy worker, what waits for descriptor credit on it, and when to try it again.

use std::collections::{HashMap, VecDeque};

use csp_types::{FlowLabel, Instant};
use csp_wire::channel::{ConnectPayload, Message, MessageHeader, MessageKind, OpenPayload};
use csp_wire::link::Purpose;

use super::config::{CHANNELS_MAX, ProxyTarget};
use super::records::{Flow, Offer, Phase};
use super::slots::{FlowId, Slots};
use super::{AppSide, Handle, errno};
use crate::backoff::Backoff;
use crate::event::{DownReason, LinkId, MessageKind as LinkMessageKind};
use crate::identity::RefusalCode;

/// Control messages that may wait for descriptors; a flow has at most five, so that only a proxy that returns no
/// credit while it opens and closes flows reaches this. Its link is broken then.
const OUTBOX_MAX: usize = 64 * 1024;

/// Descriptors that data leaves for control messages, so that a CLOSE is in the ring before the program goes on.
pub(super) const CONTROL_RESERVE: u32 = 1;

/// Longest payload of a control message: OPEN's form is never sent from here, CONNECT's is the longest.
const CONTROL_PAYLOAD_MAX: usize = ConnectPayload::LEN_MAX;
const _: () = assert!(CONTROL_PAYLOAD_MAX >= OpenPayload::LEN - 4);

/// A message that waits for a descriptor.
#[derive(Clone, Debug)]
enum Control {
    /// As it will be sent.
    Ready { header: MessageHeader, payload: [u8; CONTROL_PAYLOAD_MAX] },
    /// Gathered bytes of a flow that found no descriptor when they had to leave.
    Data { header: MessageHeader, payload: Vec<u8> },
    /// CREDIT, its number taken when it is sent.
    Credit(FlowId),
}

/// A link to one proxy worker.
#[derive(Debug)]
pub(super) struct AppChannel {
    target: ProxyTarget,
    /// Whether the agent still names this proxy; if not, the link is kept while it lives.
    wanted: bool,
    link: Option<LinkId>,
    up: bool,
    backoff: Backoff,
    pub labels: HashMap<u32, FlowId>,
    outbox: VecDeque<Control>,
    /// Flows whose write found no descriptor, each once, in the order in which they will be told of new ones.
    blocked: VecDeque<FlowId>,
}

impl AppChannel {
    fn new(target: ProxyTarget, backoff: Backoff) -> Self {
        AppChannel {
            target,
            wanted: true,
            link: None,
            up: false,
            backoff,
            labels: HashMap::new(),
            outbox: VecDeque::new(),
            blocked: VecDeque::new(),
        }
    }

    pub fn next_try(&self) -> Option<Instant> {
        (self.wanted && self.link.is_none()).then(|| self.backoff.next_try())
    }

    pub fn is_up(&self) -> bool {
        self.up
    }

    pub fn link(&self) -> Option<LinkId> {
        self.link.filter(|_| self.up)
    }
}

/// The CREDIT that a flow owes now, taken from it.
fn credit_message(flows: &mut Slots<Flow>, id: FlowId) -> Option<MessageHeader> {
    let flow = flows.get_mut(id.0)?;
    flow.credit_queued = false;
    let label = flow.label.filter(|_| !flow.ended_here && !flow.ended_there)?;
    Some(MessageHeader::of_flow(MessageKind::Credit, label, flow.receive.take_due()?, 0))
}

impl AppSide {
    /// Tells which proxy workers there are now. New ones are connected to at the next
    /// [`progress`](Self::progress); a link to one that is no longer named stays while it lives (absence is not
    /// death) and is not made again. At most [`CHANNELS_MAX`] are used.
    pub fn set_proxies(&mut self, targets: &[ProxyTarget]) {
        for channel in &mut self.channels {
            channel.wanted = targets.contains(&channel.target);
        }
        for target in targets {
            if self.channels.iter().any(|c| c.target == *target) {
                continue;
            }
            let seed = self.config.seed.wrapping_add(self.channels.len() as u64);
            let channel = AppChannel::new(target.clone(), Backoff::new(self.config.backoff, seed));
            if let Some(slot) = self.channels.iter_mut().find(|c| !c.wanted && c.link.is_none()) {
                *slot = channel;
            } else if self.channels.len() < CHANNELS_MAX {
                self.channels.push(channel);
            } else {
                return;
            }
        }
    }

    /// How many proxy workers have a link that is up.
    pub fn channels_up(&self) -> usize {
        self.channels.iter().filter(|c| c.up).count()
    }

    /// The proxy workers known, and whether their link is up.
    pub fn channels(&self) -> impl Iterator<Item = (&ProxyTarget, bool)> {
        self.channels.iter().map(|c| (&c.target, c.up))
    }

    pub(super) fn connect_channels(&mut self) {
        for channel in &mut self.channels {
            if !channel.wanted || channel.link.is_some() || !channel.backoff.ready(self.now) {
                continue;
            }
            let token = self.token.as_bytes();
            match self.endpoint.connect(self.now, &channel.target.address, Purpose::Channel, 0, (0, 1), token)
            {
                Ok(link) => channel.link = Some(link),
                Err(_) => {
                    self.counters.link_failures += 1;
                    channel.backoff.failed(self.now);
                }
            }
        }
    }

    pub(super) fn channel_of(&self, link: LinkId) -> Option<usize> {
        self.channels.iter().position(|c| c.link == Some(link))
    }

    pub(super) fn link_up(&mut self, link: LinkId) {
        let Some(index) = self.channel_of(link) else { return };
        self.counters.links_up += 1;
        if let Some(channel) = self.channels.get_mut(index) {
            channel.up = true;
            channel.backoff.succeeded();
        }
        self.relisten(index);
    }

    pub(super) fn link_down(&mut self, link: LinkId, reason: &DownReason) {
        let Some(index) = self.channel_of(link) else { return };
        let Some(channel) = self.channels.get_mut(index) else { return };
        if channel.up {
            self.counters.links_lost += 1;
        } else {
            self.counters.link_failures += 1;
        }
        if let DownReason::Refused { code: RefusalCode::ExpiredToken | RefusalCode::BadToken, .. } = reason {
            self.token_refused = true;
        }
        channel.link = None;
        channel.up = false;
        channel.backoff.failed(self.now);
        channel.labels.clear();
        channel.outbox.clear();
        channel.blocked.clear();
        self.forget_offers(index);
        self.lose_flows(index);
    }

    /// Breaks the link of a proxy that does not keep the protocol.
    pub(super) fn violation(&mut self, channel: usize) {
        self.counters.protocol_violations += 1;
        if let Some(link) = self.channels.get(channel).and_then(|c| c.link) {
            self.endpoint.fail(self.now, link);
        }
    }

    /// Queues a message without payload and sends it if a descriptor is free.
    pub(super) fn send_control(&mut self, channel: usize, header: MessageHeader) {
        self.send_control_with(channel, header, &[]);
    }

    pub(super) fn send_control_with(&mut self, channel: usize, mut header: MessageHeader, payload: &[u8]) {
        let mut bytes = [0; CONTROL_PAYLOAD_MAX];
        let len = payload.len().min(CONTROL_PAYLOAD_MAX);
        if let (Some(to), Some(from)) = (bytes.get_mut(..len), payload.get(..len)) {
            to.copy_from_slice(from);
        }
        header.payload_len = len as u32;
        self.queue_control(channel, Control::Ready { header, payload: bytes });
    }

    /// Sends gathered bytes, or queues them where no descriptor is free.
    pub(super) fn send_held(&mut self, index: usize, label: FlowLabel, bytes: Vec<u8>) {
        let header = MessageHeader::of_flow(MessageKind::Data, label, 0, bytes.len() as u32);
        self.queue_control(index, Control::Data { header, payload: bytes });
    }

    /// Queues CREDIT for a flow once.
    pub(super) fn send_credit(&mut self, id: FlowId) {
        let Some(flow) = self.flows.get_mut(id.0) else { return };
        if !flow.credit_queued && flow.receive.due() && !flow.ended_there && !flow.ended_here {
            flow.credit_queued = true;
            let channel = flow.channel;
            self.queue_control(channel, Control::Credit(id));
        }
    }

    fn queue_control(&mut self, index: usize, control: Control) {
        let Some(channel) = self.channels.get_mut(index).filter(|c| c.up) else { return };
        if channel.outbox.len() >= OUTBOX_MAX {
            return self.violation(index);
        }
        channel.outbox.push_back(control);
        self.flush(index);
    }

    /// Packs waiting control messages into as few link messages as possible and sends what descriptors allow.
    pub(super) fn flush(&mut self, index: usize) {
        while self.flush_one(index) {}
    }

    fn flush_one(&mut self, index: usize) -> bool {
        let Some(channel) = self.channels.get_mut(index).filter(|c| c.up) else { return false };
        let Some(link) = channel.link else { return false };
        if channel.outbox.is_empty() || self.endpoint.credits(link) == 0 {
            return false;
        }
        self.packing.clear();
        let (mut packed, mut immediate) = (0, 0);
        let room = self.endpoint.message_len();
        while let Some(control) = channel.outbox.get(packed) {
            if let Control::Credit(id) = control {
                let Some(header) = credit_message(&mut self.flows, *id) else {
                    channel.outbox.remove(packed);
                    continue;
                };
                if let Some(slot) = channel.outbox.get_mut(packed) {
                    // From now on it is a message like any other: its number is taken.
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
        channel.outbox.drain(..packed);
        true
    }

    /// Whether data may go out on a channel now: nothing waits before it, and a descriptor is to spare.
    pub(super) fn has_descriptor(&self, index: usize) -> bool {
        self.channels.get(index).is_some_and(|c| {
            c.outbox.is_empty() && c.link().is_some_and(|l| self.endpoint.credits(l) > CONTROL_RESERVE)
        })
    }

    /// Remembers a flow that wants to be told when descriptors are back.
    pub(super) fn block_on_descriptors(&mut self, index: usize, id: FlowId) {
        let Some(channel) = self.channels.get_mut(index) else { return };
        if let Some(flow) = self.flows.get_mut(id.0).filter(|f| !f.blocked) {
            flow.blocked = true;
            channel.blocked.push_back(id);
        }
    }

    /// Tells as many blocked flows as there are descriptors to spare; those that do not write leave them to the next.
    /// Returns whether any was told.
    pub(super) fn wake_blocked(&mut self, index: usize) -> bool {
        if !self.has_descriptor(index) {
            return false;
        }
        let Some(channel) = self.channels.get_mut(index) else { return false };
        let credits = channel.link().map_or(0, |link| self.endpoint.credits(link));
        let (mut spare, mut any) = (credits.saturating_sub(CONTROL_RESERVE), false);
        while spare > 0
            && let Some(id) = self.channels.get_mut(index).and_then(|c| c.blocked.pop_front())
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

    /// The offers that a lost link had made are void; what waited unaccepted is offered again by the proxy.
    fn forget_offers(&mut self, index: usize) {
        let mut at = 0;
        while let Some((slot, id)) = self.listeners.at_or_after(at) {
            at = slot + 1;
            let Some(listener) = self.listeners.get_mut(id) else { continue };
            if let Some(offer) = listener.offers.get_mut(index) {
                *offer = Offer::default();
            }
            let flows = &self.flows;
            listener.queue.retain(|f| flows.get(f.0).is_some_and(|flow| flow.channel != index));
        }
    }

    fn lose_flows(&mut self, index: usize) {
        let mut at = 0;
        while let Some((slot, id)) = self.flows.at_or_after(at) {
            at = slot + 1;
            let Some(flow) = self.flows.get_mut(id).filter(|f| f.channel == index) else { continue };
            let unfinished = !(flow.broken || flow.ended_there && flow.peer_closed);
            let connecting = flow.phase == Phase::Connecting;
            let was_live = flow.label.is_some() || connecting;
            flow.label = None;
            flow.ended_here = true;
            flow.ended_there = true;
            if flow.orphan || flow.phase == Phase::Pending {
                self.flows.remove(id);
            } else if unfinished && was_live {
                let error = if connecting { errno::EHOSTUNREACH } else { errno::ECONNRESET };
                self.break_flow(FlowId(id), error);
            }
        }
    }
}
