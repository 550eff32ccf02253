//! An application process: it serves requests, and sends requests to the client host and the service.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::SocketAddr;

use csp_app::{AppConfig, AppError, AppSide, Directions, FlowId, HandOver, Handle, ListenerId, ProxyTarget};
use csp_transport::{ClusterKey, Endpoint, EndpointConfig, PeerIdentity, ProcessId, TokenClaims, token};
use csp_types::{Instant, NodeId, Role};
use csp_vi::Provider;
use csp_wire::channel::Ticket;

use crate::conversation::{Conversation, Ended};
use crate::http::{Ask, Asking, Talk};
use crate::pattern::Request;

/// The port of the service's pool.
pub(crate) const PORT: u16 = 80;
/// Bytes of one connection that a proxy sends ahead of the process's reads.
pub(crate) const RECEIVE_WINDOW: u32 = 32 * 1024;
const CHUNK_MAX: usize = 8 * 1024;

fn ticket(key: u32) -> Ticket {
    let mut bytes = [7; 16];
    bytes[..4].copy_from_slice(&key.to_le_bytes());
    Ticket(bytes)
}

/// Creates the library's side of a process, by the name of its node and its own.
pub(crate) fn app_side(
    provider: Box<dyn Provider>,
    key: &ClusterKey,
    (node, process): (NodeId, &str),
    proxies: &[ProxyTarget],
    seed: u64,
) -> AppSide {
    let process = ProcessId::parse(process.as_bytes()).unwrap_or(ProcessId::NONE);
    let identity = PeerIdentity {
        role: Role::Process,
        process,
        uid: None,
        ..PeerIdentity::daemon(Role::Process, node, seed, 0)
    };
    let claims = TokenClaims {
        role: Role::Process,
        node,
        process,
        uid: None,
        grant: csp_types::Grant::all(),
        not_before: 0,
        expires: 1 << 40,
        nonce: seed,
    };
    let endpoint = Endpoint::new(provider, EndpointConfig::channel(identity, None));
    let config = AppConfig {
        flows_max: 256,
        receive_window: RECEIVE_WINDOW,
        trace_capacity: 256,
        seed,
        ..AppConfig::default()
    };
    let mut side = AppSide::new(endpoint, config, token::issue(&key.signing(&claims), &claims));
    side.set_proxies(proxies);
    side
}

/// A process on the application node.
pub(crate) struct Application {
    side: AppSide,
    listener: ListenerId,
    talks: HashMap<FlowId, Talk>,
    /// The connections that it serves are of HTTP.
    pub(crate) http: bool,
    /// How often it has read the head of a request of HTTP, by its key.
    pub(crate) served: BTreeMap<u32, u32>,
    /// One in this number of connections that it serves is handed over; 0: none.
    pub(crate) moves: u32,
    /// Connections that it has left and not taken over yet, with the keys of their tickets.
    moving: Vec<(FlowId, u32, Talk)>,
    moved: HashSet<u32>,
    /// Requests that it is to send when it runs next.
    asks: VecDeque<(SocketAddr, Talk)>,
    /// Bytes read from requests of others, by transaction, at the end of the conversation.
    read: HashMap<u32, u64>,
    /// While set, it neither reads nor writes nor accepts.
    pub(crate) stalled: bool,
    /// While set, it does nothing at all.
    pub(crate) stopped: bool,
    /// How each transaction that it requested ended, by its key.
    pub(crate) ended: Vec<(u32, Ended)>,
    /// Corrupt streams: must stay empty.
    pub(crate) corrupt: Vec<String>,
    /// Connections that it served.
    pub(crate) accepted: u64,
}

impl Application {
    pub(crate) fn new(
        provider: Box<dyn Provider>,
        key: &ClusterKey,
        node: NodeId,
        process: &str,
        proxies: &[ProxyTarget],
        seed: u64,
    ) -> Self {
        let mut side = app_side(provider, key, (node, process), proxies, seed);
        let listener =
            side.listen(([0, 0, 0, 0], PORT).into(), 128).expect("an empty table takes a listener");
        side.set_interest(listener, true).expect("the listener is there");
        Application {
            side,
            listener,
            talks: HashMap::new(),
            http: false,
            served: BTreeMap::new(),
            moves: 0,
            moving: Vec::new(),
            moved: HashSet::new(),
            asks: VecDeque::new(),
            read: HashMap::new(),
            stalled: false,
            stopped: false,
            ended: Vec::new(),
            corrupt: Vec::new(),
            accepted: 0,
        }
    }

    /// Opens a connection and sends the request when it runs next.
    pub(crate) fn start(&mut self, remote: SocketAddr, request: Request, abort_after: Option<u64>) {
        self.asks.push_back((remote, Talk::Bytes(Conversation::asking(request, abort_after))));
    }

    /// The same by HTTP.
    pub(crate) fn start_http(&mut self, remote: SocketAddr, ask: Ask) {
        self.asks.push_back((remote, Talk::Asking(Box::new(Asking::new([ask], false)))));
    }

    fn ask(&mut self, now: Instant) -> bool {
        let Some((remote, mut talk)) = self.asks.pop_front() else { return false };
        match self.side.connect(now, remote, None) {
            Ok(id) => {
                self.talks.insert(id, talk);
            }
            Err(error) => self.ended.extend(talk.ended(Some(error.to_string()))),
        }
        true
    }

    /// Performs what is possible; returns whether anything was done.
    pub(crate) fn turn(&mut self, now: Instant) -> bool {
        if self.stopped {
            return false;
        }
        let mut any = self.side.progress(now, 1);
        any |= self.take_over(now);
        while !self.stalled && self.ask(now) {
            any = true;
        }
        any |= !self.stalled && self.settle(now);
        while !self.stalled
            && let Some(handle) = self.side.poll_ready()
        {
            any = true;
            match handle {
                Handle::Listener(_) => self.accept(now),
                Handle::Flow(id) => self.serve(now, id),
            }
        }
        any
    }

    fn accept(&mut self, now: Instant) {
        while let Ok(accepted) = self.side.accept(self.listener) {
            self.accepted += 1;
            self.talks.insert(accepted.flow, Talk::serving(self.http));
            self.serve(now, accepted.flow);
        }
    }

    fn serve(&mut self, now: Instant, id: FlowId) {
        let Some(mut talk) = self.talks.remove(&id) else { return };
        talk.settle(now);
        let ended = self.converse(now, id, &mut talk);
        talk.settle(now);
        self.count(&mut talk, ended.is_some());
        let Some(ended) = ended else {
            let key = talk.key();
            if self.is_to_move(&talk) && self.side.hand_over(now, id, ticket(key)).is_ok() {
                self.moving.push((id, key, talk));
            } else {
                self.talks.insert(id, talk);
            }
            return;
        };
        let refusal = talk.refusal().filter(|_| !talk.asks());
        if refusal.is_some_and(|refusal| refusal.shuts) {
            let _ = self.side.shutdown(now, id, Directions { read: false, write: true });
        }
        let resets = ended.iter().any(|(_, how)| *how == Ended::Aborted)
            || refusal.is_some_and(|refusal| refusal.resets);
        let _ = self.side.close(now, id, resets); // a broken flow is closed like any other
        self.ended.extend(ended);
    }

    /// Takes what a connection has counted. `over`: it ends.
    fn count(&mut self, talk: &mut Talk, over: bool) {
        self.corrupt.extend(talk.take_wrong());
        for request in talk.take_served() {
            *self.served.entry(request.key).or_default() += 1;
        }
        self.read.extend(talk.take_read(over));
    }

    /// Closes idle connections whose time is over; returns whether there were any.
    fn settle(&mut self, now: Instant) -> bool {
        let is_due = |talk: &Talk| talk.wakes().is_some_and(|due| due <= now);
        let due = self.talks.iter().filter(|(_, talk)| is_due(talk)).map(|(id, _)| *id);
        let mut due: Vec<FlowId> = due.collect();
        due.sort_unstable();
        for id in &due {
            self.talks.entry(*id).and_modify(|talk| talk.settle(now));
            self.serve(now, *id);
        }
        !due.is_empty()
    }

    /// Each connection is handed over at most once, some right after their request, others in the middle of
    /// their stream.
    fn is_to_move(&mut self, talk: &Talk) -> bool {
        let key = talk.key();
        self.moves > 0
            && !talk.asks()
            && key != 0
            && key.is_multiple_of(self.moves)
            && talk.taken() + talk.given() >= u64::from(key / self.moves % 20_000)
            && self.moved.insert(key)
    }

    /// Takes over the connections that the proxy has released.
    fn take_over(&mut self, now: Instant) -> bool {
        let side = &self.side;
        let done = |(id, ..): &mut (FlowId, u32, Talk)| side.handing_over(*id) == HandOver::Done;
        let ready: Vec<_> = self.moving.extract_if(.., done).collect();
        let any = !ready.is_empty();
        for (id, key, mut talk) in ready {
            let Some(left) = self.side.leave(id) else { continue };
            if !left.unread.is_empty() {
                talk.take(&left.unread);
            }
            self.count(&mut talk, false);
            let again = left.held.and_then(|(node, worker, label)| {
                let ends = (left.local, left.remote);
                self.side.take_over(now, (&node, worker), label, ticket(key), ends).ok()
            });
            match again {
                Some(id) => drop(self.talks.insert(id, talk)),
                None => self.count(&mut talk, true),
            }
        }
        any
    }

    /// Reads and writes until it would block; if the connection has ended, returns how each transaction ended
    /// that this side requested.
    fn converse(&mut self, now: Instant, id: FlowId, talk: &mut Talk) -> Option<Vec<(u32, Ended)>> {
        // Each conversation has its own size of reads and writes.
        let mut chunk = [0; CHUNK_MAX];
        let chunk = &mut chunk[..512 + talk.key() as usize % (CHUNK_MAX - 512)];
        while talk.reads() {
            match self.side.read(now, id, chunk, false) {
                Ok(0) => {
                    talk.on_end();
                    break;
                }
                Ok(n) => talk.take(&chunk[..n]),
                Err(AppError::WouldBlock) => break,
                Err(error) => return Some(talk.ended(Some(error.to_string()))),
            }
        }
        loop {
            if talk.aborts() {
                return Some(talk.aborted());
            }
            let len = talk.next(chunk);
            if len == 0 {
                break;
            }
            match self.side.write(now, id, &[&chunk[..len]]) {
                Ok(n) => talk.sent(n),
                Err(AppError::WouldBlock) => break,
                // The response was read before.
                Err(_) if talk.asks() && talk.refusal().is_some() => {
                    talk.on_end();
                    return Some(talk.ended(None));
                }
                Err(error) => return Some(talk.ended(Some(error.to_string()))),
            }
        }
        if talk.ends_sending() {
            let _ = self.side.shutdown(now, id, Directions { read: false, write: true });
        }
        talk.is_over().then(|| talk.ended(None))
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let idle = self.talks.values().filter_map(Talk::wakes).filter(|_| !self.stalled);
        self.side.next_timeout().into_iter().chain(idle).min().filter(|_| !self.stopped)
    }

    /// Returns the number of open connections.
    pub(crate) fn open(&self) -> usize {
        self.side.flow_count()
    }

    /// Returns the number of proxies to which it has a channel.
    pub(crate) fn channels_up(&self) -> usize {
        self.side.channels_up()
    }

    /// Returns the number of transactions that it requested and that have not ended.
    pub(crate) fn under_way(&self) -> usize {
        self.asks.len() + self.talks.values().filter(|t| t.asks()).count()
    }

    /// Returns the bytes that it has read of the transaction `key`, the request included.
    pub(crate) fn read_of(&self, key: u32) -> u64 {
        let moving = self.moving.iter().map(|(_, _, talk)| talk);
        let mut talks = self.talks.values().chain(moving);
        let under_way = talks.find(|t| !t.asks() && t.key() == key).map(Talk::taken);
        under_way.or_else(|| self.read.get(&key).copied()).unwrap_or(0)
    }

    /// Returns how often a proxy violated the protocol of channels.
    pub(crate) fn violations(&self) -> u64 {
        self.side.counters().protocol_violations
    }

    /// Returns the counters of its endpoint.
    pub(crate) fn link_counters(&self) -> &csp_transport::Counters {
        self.side.endpoint().counters()
    }

    /// Describes its counters and what is open.
    pub(crate) fn describe(&self) -> String {
        let flows: String = self.side.flows().map(|f| format!("\n    {f:?}")).collect();
        format!("accepted {} {:?} {:?}{flows}", self.accepted, self.side.counters(), self.link_counters())
    }
}
