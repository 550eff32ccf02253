//! The state of the fabric: nodes, the ends of VIs, and the messages in flight between them.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;

use csp_types::{Duration, Instant};

use super::InFlight;
use crate::regions::Place;
use crate::slots::{SLOTS_MAX, Slots};
use crate::{ConnectRequest, Event, RequestId, ViConfig, ViError, ViId};

/// A message in flight, with the time at which it arrives.
#[derive(Clone)]
pub(super) struct Message {
    pub due: Instant,
    pub order: u64,
    pub immediate: u32,
    pub bytes: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum EndState {
    /// Until the caller polls `Established`.
    Opening,
    Open,
    /// The caller has polled `Disconnected` or `Refused`.
    Closed,
}

/// One end of a VI.
pub(super) struct End {
    pub node: usize,
    pub peer: Option<u64>,
    /// The peer's node, also after the peer has ended.
    pub far: Option<usize>,
    pub config: ViConfig,
    pub state: EndState,
    /// Receives that the peer has posted and this end has not used.
    pub window: u32,
    pub arriving: VecDeque<Message>,
    /// Messages sent from here and not known to have arrived; kept only where VIs can break.
    pub unconfirmed: VecDeque<Message>,
    /// Posted receive buffers, in the order posted.
    pub free: VecDeque<u32>,
    pub held: BTreeMap<u32, Vec<u8>>,
    /// The caller's receive buffers, if it provided any.
    pub places: Option<Box<[Place]>>,
    /// Delay of messages sent from this end.
    pub delay: Duration,
    pub jitter: Duration,
    /// Arrival time of the last message or event sent from this end; no later one arrives before it.
    pub last_due: Instant,
}

pub(super) struct Notice {
    pub due: Instant,
    pub vi: Option<u64>,
    pub event: Event,
}

pub(super) struct Request {
    pub from: u64,
    pub to: usize,
    pub config: ViConfig,
}

pub(super) struct Node {
    pub name: String,
    pub alive: bool,
    pub paused: bool,
    /// New connections to this node fail as if it did not listen.
    pub hidden: bool,
    pub listening: Vec<String>,
    pub notices: VecDeque<Notice>,
    /// Signalled sends that are complete.
    pub sent: VecDeque<(u64, u64)>,
    pub armed: bool,
    pub wake: Option<OwnedFd>,
}

pub(super) struct State {
    pub now: Instant,
    pub nodes: Vec<Node>,
    pub ends: Slots<End>,
    pub requests: Slots<Request>,
    pub default_delay: Duration,
    pub default_jitter: Duration,
    /// VIs can break while both ends live.
    pub breakable: bool,
    /// Pairs of nodes, by name, between which nothing arrives.
    pub cuts: Vec<[String; 2]>,
    order: u64,
    random: u64,
}

impl State {
    pub(super) fn new(seed: u64) -> Self {
        State {
            now: Instant::ZERO,
            nodes: Vec::new(),
            ends: Slots::new(SLOTS_MAX),
            requests: Slots::new(SLOTS_MAX),
            default_delay: Duration::ZERO,
            default_jitter: Duration::ZERO,
            breakable: false,
            cuts: Vec::new(),
            order: 0,
            random: seed,
        }
    }

    pub(super) fn node_named(&self, name: &str) -> Option<usize> {
        self.nodes.iter().position(|node| node.alive && node.name == name)
    }

    /// Returns the node that listens at `address`, and the index of that address among its listeners.
    pub(super) fn listener(&self, address: &str) -> Option<(usize, u32)> {
        let at = |node: &Node| node.listening.iter().position(|l| l == address);
        let mut nodes = self.nodes.iter().enumerate().filter(|(_, node)| node.alive && !node.hidden);
        nodes.find_map(|(index, node)| Some((index, at(node)? as u32)))
    }

    pub(super) fn new_end(&mut self, node: usize, config: ViConfig) -> Result<u64, ViError> {
        let end = End {
            node,
            peer: None,
            far: None,
            config,
            state: EndState::Opening,
            window: 0,
            arriving: VecDeque::new(),
            unconfirmed: VecDeque::new(),
            free: (0..config.receive_depth).collect(),
            held: BTreeMap::new(),
            places: None,
            delay: self.default_delay,
            jitter: self.default_jitter,
            last_due: self.now,
        };
        self.ends.insert(end).ok_or(ViError::Exhausted("VI"))
    }

    /// Returns the arrival time of what `end` sends now, which is never before that of what it sent earlier.
    fn due_from(&mut self, end: u64) -> Instant {
        let random = self.next_random();
        let now = self.now;
        let Some(end) = self.ends.get_mut(end) else { return now };
        let jitter = u64::try_from(end.jitter.as_nanos()).unwrap_or(u64::MAX);
        let extra = if jitter == 0 { 0 } else { random % jitter };
        end.last_due = end.last_due.max(now + end.delay + Duration::from_nanos(extra));
        end.last_due
    }

    /// SplitMix64 (Steele, Lea, Flood 2014).
    fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Sends a message to `from`'s peer, if it still has one.
    pub(super) fn send(&mut self, from: u64, immediate: u32, bytes: Vec<u8>) {
        let due = self.due_from(from);
        self.order += 1;
        let order = self.order;
        let message = Message { due, order, immediate, bytes };
        let Some(end) = self.ends.get_mut(from) else { return };
        if self.breakable {
            end.unconfirmed.push_back(message.clone());
        }
        let peer = end.peer;
        let Some(peer) = peer.and_then(|peer| self.ends.get_mut(peer)) else { return };
        peer.arriving.push_back(message);
        self.wake_ready_nodes();
    }

    /// The peer of `from` has polled message `order`. At random, `from` learns now that this message and all
    /// before it arrived, or learns it with a later message.
    pub(super) fn maybe_confirm(&mut self, from: Option<u64>, order: u64) {
        if self.breakable && self.next_random() & 1 == 0 {
            self.confirm(from, order);
        }
    }

    fn confirm(&mut self, from: Option<u64>, order: u64) {
        if let Some(end) = from.and_then(|from| self.ends.get_mut(from)) {
            end.unconfirmed.retain(|sent| sent.order > order);
        }
    }

    /// Breaks a VI and loses a random tail of the messages in flight.
    pub(super) fn break_vi(&mut self, vi: u64, reported_after: (Duration, Duration)) -> bool {
        let Some(peer) = self.ends.get(vi).and_then(|end| end.peer) else { return false };
        for (id, from, after) in [(vi, peer, reported_after.0), (peer, vi, reported_after.1)] {
            let (arrived, known, now) = (self.next_random(), self.next_random(), self.now);
            let Some(end) = self.ends.get_mut(id) else { continue };
            let arrived = arrived as usize % (end.arriving.len() + 1);
            end.arriving.truncate(arrived);
            end.arriving.iter_mut().for_each(|message| message.due = now);
            let known = (known as usize % (arrived + 1)).checked_sub(1);
            if let Some(order) = known.and_then(|last| end.arriving.get(last)).map(|message| message.order) {
                self.confirm(Some(from), order);
            }
            self.lose_peer(id, now + after, false, InFlight::Delivered);
        }
        true
    }

    /// Queues `event` for `node`. It becomes due after the delay of end `from`, or at once without `from`.
    pub(super) fn notify(&mut self, node: usize, from: Option<u64>, vi: Option<u64>, event: Event) {
        let due = from.map_or(self.now, |from| self.due_from(from));
        if let Some(node) = self.nodes.get_mut(node)
            && node.alive
        {
            node.notices.push_back(Notice { due, vi, event });
        }
        self.wake_ready_nodes();
    }

    pub(super) fn request(
        &mut self,
        from: u64,
        (to, listener): (usize, u32),
        config: ViConfig,
        private: &[u8],
    ) {
        let Some(id) = self.requests.insert(Request { from, to, config }) else {
            let node = self.ends.get(from).map_or(usize::MAX, |end| end.node);
            let reason = ViError::Exhausted("connection request");
            return self.notify(node, None, Some(from), Event::Refused { vi: ViId(from), reason });
        };
        let request = ConnectRequest {
            id: RequestId(id),
            private_data: private.to_vec(),
            peer_uid: None,
            listener: Some(listener),
        };
        self.notify(to, Some(from), None, Event::Request(request));
    }

    /// Removes an end and notifies its peer, if connected.
    pub(super) fn remove_end(&mut self, id: u64, clean: bool, in_flight: InFlight) {
        self.withdraw_requests(id);
        let last = self.due_from(id);
        let Some(end) = self.ends.remove(id) else { return };
        if let Some(node) = self.nodes.get_mut(end.node) {
            node.notices.retain(|notice| notice.vi != Some(id));
            node.sent.retain(|&(vi, _)| vi != id);
        }
        if let Some(peer) = end.peer {
            self.lose_peer(peer, last, clean, in_flight);
        }
    }

    /// Queues the event that the peer of `id` is gone.
    pub(super) fn lose_peer(&mut self, id: u64, due: Instant, clean: bool, in_flight: InFlight) {
        let Some(end) = self.ends.get_mut(id) else { return };
        end.peer = None;
        if in_flight == InFlight::Lost {
            end.arriving.clear();
        }
        let event = Event::Disconnected { vi: ViId(id), clean };
        if let Some(node) = self.nodes.get_mut(end.node)
            && node.alive
        {
            node.notices.push_back(Notice { due, vi: Some(id), event });
        }
        self.wake_ready_nodes();
    }

    /// Whether the provider rejects sends because the end of a broken VI is due, although the caller has not
    /// polled that event. Random, since some providers do so and others do not.
    pub(super) fn provider_saw_end(&mut self, id: u64) -> bool {
        let Some(end) = self.ends.get(id).filter(|end| self.breakable && end.peer.is_none()) else {
            return false;
        };
        if self.is_cut(end.node, end.far) {
            return false;
        }
        let now = self.now;
        let ends =
            |n: &Notice| n.due <= now && matches!(n.event, Event::Disconnected { vi, .. } if vi.0 == id);
        let queued = self.nodes.get(end.node).is_some_and(|node| node.notices.iter().any(ends));
        queued && self.next_random() & 1 == 0
    }

    /// Withdraws the unanswered request of `end`, so that it cannot be accepted.
    fn withdraw_requests(&mut self, end: u64) {
        let Some(id) = self.requests.iter().find(|(_, r)| r.from == end).map(|(id, _)| id) else { return };
        let Some(request) = self.requests.remove(id) else { return };
        if let Some(node) = self.nodes.get_mut(request.to) {
            node.notices.retain(|n| !matches!(&n.event, Event::Request(r) if r.id == RequestId(id)));
        }
    }

    pub(super) fn kill_node(&mut self, index: usize, in_flight: InFlight) {
        let Some(node) = self.nodes.get_mut(index) else { return };
        if !node.alive {
            return;
        }
        node.alive = false;
        node.listening.clear();
        node.notices.clear();
        node.sent.clear();
        let mine: Vec<u64> = self.ends.iter().filter(|(_, e)| e.node == index).map(|(id, _)| id).collect();
        for id in mine {
            self.remove_end(id, false, in_flight);
        }
        let asked: Vec<u64> = self.requests.iter().filter(|(_, r)| r.to == index).map(|(id, _)| id).collect();
        for id in asked {
            let Some(request) = self.requests.remove(id) else { continue };
            let node = self.ends.get(request.from).map_or(usize::MAX, |end| end.node);
            let vi = ViId(request.from);
            let event = Event::Refused { vi, reason: ViError::Rejected };
            self.notify(node, None, Some(request.from), event);
        }
    }

    /// Returns whether a poll by `node` would return something now.
    pub(super) fn is_ready(&self, index: usize) -> bool {
        let Some(node) = self.nodes.get(index) else { return false };
        node.alive
            && !node.paused
            && (!node.sent.is_empty()
                || node.notices.iter().any(|notice| self.is_deliverable(notice))
                || self.next_message(index).is_some())
    }

    /// Returns whether a notice may be polled: when it is due and its way is not cut, and for the end of a VI
    /// only after its last message was polled.
    pub(super) fn is_deliverable(&self, notice: &Notice) -> bool {
        if notice.due > self.now {
            return false;
        }
        let end = notice.vi.and_then(|vi| self.ends.get(vi));
        if end.is_some_and(|end| self.is_cut(end.node, end.far)) {
            return false;
        }
        match &notice.event {
            Event::Disconnected { .. } => end.is_none_or(|end| end.arriving.is_empty()),
            Event::Request(request) => !self.requests.get(request.id.0).is_some_and(|request| {
                let from = self.ends.get(request.from).map(|end| end.node);
                self.is_cut(request.to, from)
            }),
            _ => true,
        }
    }

    /// Returns whether nothing arrives between two nodes.
    pub(super) fn is_cut(&self, node: usize, far: Option<usize>) -> bool {
        if self.cuts.is_empty() {
            return false;
        }
        let name = |at: usize| self.nodes.get(at).map(|node| &node.name);
        let Some((one, other)) = name(node).zip(far.and_then(name)) else { return false };
        self.cuts.iter().any(|[a, b]| (a, b) == (one, other) || (b, a) == (one, other))
    }

    /// Returns the end of `node` whose message is next: the one with the earliest due time, then the earliest
    /// sent.
    pub(super) fn next_message(&self, node: usize) -> Option<u64> {
        let due = |end: &End| {
            let message = end.arriving.front()?;
            let ready = end.node == node && end.state == EndState::Open && message.due <= self.now;
            let arrives = ready && !end.free.is_empty() && !self.is_cut(node, end.far);
            arrives.then_some((message.due, message.order))
        };
        self.ends.iter().filter_map(|(id, end)| due(end).map(|key| (key, id))).min().map(|(_, id)| id)
    }

    /// Returns when the next message or notice in flight arrives.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let notices = self.nodes.iter().filter(|n| n.alive).flat_map(|n| n.notices.iter().map(|n| n.due));
        let messages = self.ends.iter().flat_map(|(_, end)| end.arriving.iter().map(|m| m.due));
        notices.chain(messages).filter(|&due| due > self.now).min()
    }

    /// Signals the armed nodes that have something to poll.
    pub(super) fn wake_ready_nodes(&mut self) {
        for index in 0..self.nodes.len() {
            if self.nodes[index].armed && self.is_ready(index) {
                self.nodes[index].armed = false;
                if let Some(wake) = &self.nodes[index].wake {
                    super::eventfd::signal(wake);
                }
            }
        }
    }
}
