//! All links of a thread: accepts them, passes records to their sessions, and sends the results.

use std::collections::VecDeque;

use csp_transport::{
    DownReason, Endpoint, LinkEvent, LinkId, MessageKind, PacketBatch, PeerIdentity, Purpose,
};
use csp_types::{Instant, NodeId, limits};
use csp_vi::{Armed, ViError, Wake};
use csp_wire::packets::{HEADER_LEN, Head};

use crate::session::{Session, SessionConfig, SessionCounters, Sink};

/// Messages processed from one endpoint in one turn.
const MESSAGES_PER_TURN: usize = 64;
/// Largest number of messages of each link that wait for credit; 4 MiB. Further messages are dropped.
const QUEUE_MESSAGES: usize = 64;
/// Notices that wait to be logged; beyond this number the oldest are dropped.
const NOTICES_MAX: usize = 64;

/// An event for the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HostNotice {
    /// A network node's worker has connected.
    Up {
        /// The node.
        node: NodeId,
        /// Its worker.
        worker: u8,
    },
    /// It has disconnected.
    Down {
        /// The node.
        node: NodeId,
        /// Its worker.
        worker: u8,
        /// The reason.
        reason: String,
        /// Counters of the link's session.
        counters: SessionCounters,
    },
}

/// Counters of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HostCounters {
    /// Links that are up.
    pub links: usize,
    /// Instances of all links.
    pub instances: usize,
    /// Counters of all links, including those that have ended.
    pub sessions: SessionCounters,
    /// Messages that could not be parsed or were not allowed; their links were failed.
    pub malformed: u64,
}

struct Link {
    id: LinkId,
    node: NodeId,
    worker: u8,
    session: Session,
    batch: PacketBatch,
}

/// A link's records are queued for its endpoint.
struct LinkSink<'a> {
    now: Instant,
    endpoint: &'a mut Endpoint,
    batch: &'a mut PacketBatch,
}

impl Sink for LinkSink<'_> {
    fn put(&mut self, head: &Head, payload: &[u8]) -> bool {
        self.batch.push(self.now, self.endpoint, head, payload).is_ok()
    }

    fn has_room(&self) -> bool {
        self.batch.has_room()
    }

    fn payload_len_max(&self) -> usize {
        self.batch.payload_len_max()
    }
}

/// The links of one thread.
pub struct HostWorker {
    endpoints: Vec<Endpoint>,
    /// The links of each endpoint, by their slot in it.
    links: Vec<Vec<Option<Link>>>,
    config: SessionConfig,
    scratch: Box<[u8]>,
    notices: VecDeque<HostNotice>,
    /// Counters of links that have ended.
    past: SessionCounters,
    malformed: u64,
}

fn add(sum: &mut SessionCounters, one: SessionCounters) {
    sum.packets += one.packets;
    sum.absent += one.absent;
    sum.unsent += one.unsent;
}

impl HostWorker {
    /// Creates a host over endpoints that already listen.
    pub fn new(endpoints: Vec<Endpoint>, config: SessionConfig) -> Self {
        HostWorker {
            links: endpoints.iter().map(|_| Vec::new()).collect(),
            endpoints,
            config,
            scratch: vec![0; limits::TUNNEL_MESSAGE_LEN_MAX].into_boxed_slice(),
            notices: VecDeque::with_capacity(NOTICES_MAX),
            past: SessionCounters::default(),
            malformed: 0,
        }
    }

    /// Processes arrived records (bounded) and sends the results. Returns whether there was work.
    pub fn turn(&mut self, now: Instant, unix_now_s: u64) -> bool {
        let mut busy = false;
        for at in 0..self.endpoints.len() {
            busy |= self.endpoints[at].progress(now, unix_now_s);
            busy |= self.receive(now, at);
            let endpoint = &mut self.endpoints[at];
            for link in self.links[at].iter_mut().flatten() {
                let Link { session, batch, .. } = link;
                busy |= session.pump(now, &mut LinkSink { now, endpoint, batch });
                // Records without credit are sent in a later turn; the peer's credits wake this thread.
                let _ = batch.flush(now, endpoint);
            }
        }
        busy
    }

    fn receive(&mut self, now: Instant, at: usize) -> bool {
        let mut any = false;
        for _ in 0..MESSAGES_PER_TURN {
            while let Some(event) = self.endpoints[at].poll_event() {
                any = true;
                match event {
                    LinkEvent::Up { link, purpose, peer } => self.up(now, at, (link, purpose), &peer),
                    LinkEvent::Down { link, reason } => self.down(at, link, &reason),
                }
            }
            let Some(received) = self.endpoints[at].receive(now, &mut self.scratch) else { break };
            any = true;
            if received.kind == MessageKind::Packets && !self.message(now, at, received.link, received.len) {
                self.malformed += 1;
                self.endpoints[at].fail(now, received.link);
            }
        }
        any
    }

    fn up(&mut self, now: Instant, at: usize, (id, purpose): (LinkId, Purpose), peer: &PeerIdentity) {
        if purpose != Purpose::Packets {
            return self.endpoints[at].close(now, id);
        }
        let batch = PacketBatch::new(&self.endpoints[at], id, QUEUE_MESSAGES);
        let (node, worker, links) = (peer.node, peer.worker, &mut self.links[at]);
        if links.len() <= id.index() {
            links.resize_with(id.index() + 1, || None);
        }
        links[id.index()] =
            Some(Link { id, node, worker, session: Session::new(self.config.clone()), batch });
        self.notice(HostNotice::Up { node, worker });
    }

    fn down(&mut self, at: usize, id: LinkId, reason: &DownReason) {
        let gone = self.links[at].get_mut(id.index()).and_then(|link| link.take_if(|link| link.id == id));
        if let Some(Link { node, worker, session, .. }) = gone {
            let counters = session.counters();
            add(&mut self.past, counters);
            let reason = format!("{reason:?}");
            self.notice(HostNotice::Down { node, worker, reason, counters });
        }
    }

    fn notice(&mut self, notice: HostNotice) {
        if self.notices.len() == NOTICES_MAX {
            self.notices.pop_front();
        }
        self.notices.push_back(notice);
    }

    /// Processes the records of a message. Returns false if it is not a message of a network node.
    fn message(&mut self, now: Instant, at: usize, id: LinkId, len: usize) -> bool {
        let HostWorker { endpoints, links, scratch, .. } = self;
        let link = links[at].get_mut(id.index()).and_then(Option::as_mut).filter(|link| link.id == id);
        let Some(Link { session, batch, .. }) = link else { return true };
        let mut sink = LinkSink { now, endpoint: &mut endpoints[at], batch };
        let mut rest = scratch.get_mut(..len).unwrap_or_default();
        while !rest.is_empty() {
            let Ok((head, payload_len, total)) = Head::parse(rest) else { return false };
            let Some((record, after)) = rest.split_at_mut_checked(total) else { return false };
            let Some(payload) = record.get_mut(HEADER_LEN..HEADER_LEN + payload_len) else { return false };
            if session.process(now, &head, payload, &mut sink).is_err() {
                return false;
            }
            rest = after;
        }
        true
    }

    /// Returns when to call [`turn`](Self::turn) next if nothing arrives.
    pub fn next_timeout(&self) -> Option<Instant> {
        // Without room a session can send nothing; the peer's credits wake this thread.
        let able = self.links.iter().flatten().flatten().filter(|link| link.batch.has_room());
        let sessions = able.filter_map(|link| link.session.next_timeout());
        sessions.chain(self.endpoints.iter().filter_map(Endpoint::next_timeout)).min()
    }

    /// Arms all endpoints' wake descriptors.
    ///
    /// # Errors
    /// Those of the providers.
    pub fn arm(&mut self) -> Result<Armed, ViError> {
        for endpoint in &mut self.endpoints {
            if endpoint.arm()? == Armed::Busy {
                return Ok(Armed::Busy);
            }
        }
        Ok(Armed::Armed)
    }

    /// Appends the descriptors to wait on to `into`.
    pub fn wake(&self, into: &mut Vec<Wake>) {
        self.endpoints.iter().for_each(|endpoint| endpoint.wake(into));
    }

    /// Returns a number that changes whenever the set of [`wake`](Self::wake) changes.
    pub fn wake_generation(&self) -> u64 {
        self.endpoints.iter().map(Endpoint::wake_generation).fold(0, u64::wrapping_add)
    }

    /// Closes every link cleanly, so that network nodes apply the fallback at once.
    pub fn close(&mut self, now: Instant) {
        for (endpoint, links) in self.endpoints.iter_mut().zip(&self.links) {
            links.iter().flatten().for_each(|link| endpoint.close(now, link.id));
        }
    }

    /// Returns the next event to log, if any.
    pub fn poll_notice(&mut self) -> Option<HostNotice> {
        self.notices.pop_front()
    }

    /// Returns the counters.
    pub fn counters(&self) -> HostCounters {
        let mut counters =
            HostCounters { sessions: self.past, malformed: self.malformed, ..Default::default() };
        for link in self.links.iter().flatten().flatten() {
            counters.links += 1;
            counters.instances += link.session.instances();
            add(&mut counters.sessions, link.session.counters());
        }
        counters
    }
}
