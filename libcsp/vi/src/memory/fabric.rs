//! The fabric's state: nodes, VI ends and what is on its way between them.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;

use csp_types::{Duration, Instant};

use super::InFlight;
use crate::regions::Place;
use crate::slots::{SLOTS_MAX, Slots};
use crate::{ConnectRequest, Event, RequestId, ViConfig, ViError, ViId};

/// A message on its way, due at the receiver at a time.
#[derive(Clone)]
pub(super) struct Message {
    pub due: Instant,
    pub order: u64,
    pub immediate: u32,
    pub bytes: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum EndState {
    /// Until `Established` was polled.
    Opening,
    Open,
    /// `Disconnected` was polled.
    Closed,
}

/// One end of a VI.
pub(super) struct End {
    pub node: usize,
    pub peer: Option<u64>,
    pub config: ViConfig,
    pub state: EndState,
    /// Receives that the peer has posted and this end has not used.
    pub window: u32,
    pub arriving: VecDeque<Message>,
    /// What was sent from here and is not known to have arrived, where VIs can break.
    pub unconfirmed: VecDeque<Message>,
    /// Receive buffers that are posted here, in the order posted.
    pub free: VecDeque<u32>,
    pub held: BTreeMap<u32, Vec<u8>>,
    /// Where the caller's receive buffers lie, if it brought its own.
    pub places: Option<Box<[Place]>>,
    /// What this end sends takes so long.
    pub delay: Duration,
    pub jitter: Duration,
    /// When the last thing sent from here is due: nothing may overtake it.
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
    /// Who connects to it finds nobody.
    pub hidden: bool,
    pub listening: Vec<String>,
    pub notices: VecDeque<Notice>,
    /// Signalled sends that are done.
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
    /// VIs can break though both ends live.
    pub breakable: bool,
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
            order: 0,
            random: seed,
        }
    }

    pub(super) fn node_named(&self, name: &str) -> Option<usize> {
        self.nodes.iter().position(|node| node.alive && node.name == name)
    }

    /// The node that listens at `address`, and which of its addresses that is.
    pub(super) fn listener(&self, address: &str) -> Option<(usize, u32)> {
        let at = |node: &Node| node.listening.iter().position(|l| l == address);
        let mut nodes = self.nodes.iter().enumerate().filter(|(_, node)| node.alive && !node.hidden);
        nodes.find_map(|(index, node)| Some((index, at(node)? as u32)))
    }

    pub(super) fn new_end(&mut self, node: usize, config: ViConfig) -> Result<u64, ViError> {
        let end = End {
            node,
            peer: None,
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

    /// When something sent now by `end` arrives: never before what it sent earlier.
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

    /// Puts a message on its way to `from`'s peer, if there still is one.
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
        self.kick();
    }

    /// Message `order` and those before it are in the hands of `from`'s peer; `from` knows now, or when a later one is.
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

    /// Breaks a VI in the middle of what is on its way.
    pub(super) fn break_vi(&mut self, vi: u64, heard_after: (Duration, Duration)) -> bool {
        let Some(peer) = self.ends.get(vi).and_then(|end| end.peer) else { return false };
        for (id, from, after) in [(vi, peer, heard_after.0), (peer, vi, heard_after.1)] {
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

    /// Tells `node` of `event`, `from`'s delay later (at once without `from`).
    pub(super) fn notify(&mut self, node: usize, from: Option<u64>, vi: Option<u64>, event: Event) {
        let due = from.map_or(self.now, |from| self.due_from(from));
        if let Some(node) = self.nodes.get_mut(node)
            && node.alive
        {
            node.notices.push_back(Notice { due, vi, event });
        }
        self.kick();
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

    /// Forgets an end; its peer, if connected, is told.
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

    /// Tells `id` that its peer is gone.
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
        self.kick();
    }

    /// Whether the provider knows, as some do, of the end of a VI that broke, though its caller has not been told.
    pub(super) fn noticed_end(&mut self, id: u64) -> bool {
        let Some(end) = self.ends.get(id).filter(|end| self.breakable && end.peer.is_none()) else {
            return false;
        };
        let now = self.now;
        let ends =
            |n: &Notice| n.due <= now && matches!(n.event, Event::Disconnected { vi, .. } if vi.0 == id);
        let queued = self.nodes.get(end.node).is_some_and(|node| node.notices.iter().any(ends));
        queued && self.next_random() & 1 == 0
    }

    /// Takes back the unanswered request of `end`, so that nobody can accept it.
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

    /// Whether `node` would find something now.
    pub(super) fn is_ready(&self, index: usize) -> bool {
        let Some(node) = self.nodes.get(index) else { return false };
        node.alive
            && !node.paused
            && (!node.sent.is_empty()
                || node.notices.iter().any(|notice| self.may_tell(notice))
                || self.next_message(index).is_some())
    }

    /// A notice is told when it is due, and the end of a VI only after the last message of it was polled.
    pub(super) fn may_tell(&self, notice: &Notice) -> bool {
        let drained = || {
            let end = notice.vi.and_then(|vi| self.ends.get(vi));
            end.is_none_or(|end| end.arriving.is_empty())
        };
        notice.due <= self.now && (!matches!(notice.event, Event::Disconnected { .. }) || drained())
    }

    /// The end of `node` whose message is next: the one sent first among those that are due.
    pub(super) fn next_message(&self, node: usize) -> Option<u64> {
        let due = |end: &End| {
            let message = end.arriving.front()?;
            let ready = end.node == node && end.state == EndState::Open && message.due <= self.now;
            if ready && !end.free.is_empty() { Some((message.due, message.order)) } else { None }
        };
        self.ends.iter().filter_map(|(id, end)| due(end).map(|key| (key, id))).min().map(|(_, id)| id)
    }

    /// When the next thing that is still on its way arrives.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let notices = self.nodes.iter().filter(|n| n.alive).flat_map(|n| n.notices.iter().map(|n| n.due));
        let messages = self.ends.iter().flat_map(|(_, end)| end.arriving.iter().map(|m| m.due));
        notices.chain(messages).filter(|&due| due > self.now).min()
    }

    /// Wakes the nodes that armed and have something to find.
    pub(super) fn kick(&mut self) {
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
