//! The relay: processes of this host reach proxies of other hosts through the agent (docs/decisions/0013).
//!
//! Towards processes the agent listens like a proxy, on one Unix socket for each remote proxy worker. For
//! each VI of a process it opens one over the SAN, which sends from the process's ring and receives into it.
//! The agent examines no message but HELLO, and copies no other. HELLO, credits and heartbeats are exchanged
//! between process and proxy; the credits bound the number of messages in transit here.
//!
//! Owned by one thread; time is an argument, and the surrounding thread waits. Forwarding messages allocates
//! nothing.

mod connect;
mod counters;
mod forward;
mod forwarding;
mod index;
mod routes;
#[cfg(test)]
mod tests;
mod watch;

use std::path::PathBuf;

use csp_transport::Keys;
use csp_types::{Duration, Instant, NodeId};
use csp_vi::shm::ShmProvider;
use csp_vi::{Armed, Completion, Event, Provider, ViConfig, ViError, ViId, Wake};

pub use counters::{Counters, Refused};
use forwarding::{Ending, Table};
use index::Index;
use routes::Routes;
pub use routes::{Target, path_of};
use watch::Watch;

/// Largest number of events and messages processed from one provider in one turn, so that no peer delays the
/// others.
const PER_TURN: usize = 256;

/// How long a VI over the SAN may take to open. A process waits as long for the answer to its HELLO.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Configuration of a relay.
#[derive(Clone, Debug)]
pub struct RelayConfig {
    /// This node.
    pub node: NodeId,
    /// Its incarnation.
    pub incarnation: u64,
    /// The directory of the sockets for processes.
    pub folder: PathBuf,
    /// Users whose processes are forwarded; `None`: all.
    pub users: Option<Vec<u32>>,
    /// VIs forwarded at once.
    pub vis_max: usize,
    /// The keys that sign and verify tokens: this node's.
    pub keys: Keys,
    /// First nonce of the agent's own tokens; random.
    pub nonce: u64,
    /// Configuration of channel VIs: message length, and the number of receive buffers of a proxy.
    pub vi: ViConfig,
}

/// One provider of the SAN, opened twice: for the processes' VIs, and for the agent's own links, which detect
/// the death of a proxy even if no process exchanges messages with it.
pub struct SanPort {
    /// Carries the messages of processes.
    pub forward: Box<dyn Provider>,
    /// Carries the agent's own links.
    pub watch: Box<dyn Provider>,
}

/// The VIs of one SAN provider.
struct Side {
    provider: Box<dyn Provider>,
    by_vi: Index,
    /// Whether it has ever carried a VI. Unused providers are not polled, because a library's progress
    /// function makes system calls.
    used: bool,
}

/// The relay.
pub struct Relay {
    config: RelayConfig,
    shm: ShmProvider,
    sides: Vec<Side>,
    watch: Watch,
    routes: Routes,
    /// Number of successful calls of the shm provider's `listen`.
    listens: u32,
    table: Table,
    by_app: Index,
    /// Forwardings whose messages the SAN did not accept.
    stuck: Vec<u32>,
    /// The forwardings being retried in this turn.
    retried: Vec<u32>,
    /// A forwarding or a route has ended since the routes to be removed were examined.
    ended: bool,
    /// When connecting VIs have to be checked for a timeout.
    next_check: Instant,
    counters: Counters,
    /// Holds HELLO while it is examined.
    scratch: Box<[u8]>,
    /// Collects the receive buffers of a SAN VI during set-up.
    pieces: Vec<csp_vi::Piece>,
}

impl Relay {
    /// Creates a relay without routes. All tables are allocated here.
    pub fn new(config: RelayConfig, ports: Vec<SanPort>) -> Result<Self, ViError> {
        let vis_max = config.vis_max;
        let (mut sides, mut watching) = (Vec::new(), Vec::new());
        for port in ports {
            let by_vi = Index::with_capacity(vis_max);
            sides.push(Side { provider: port.forward, by_vi, used: false });
            watching.push(port.watch);
        }
        Ok(Relay {
            shm: ShmProvider::new()?,
            sides,
            watch: Watch::new(&config, watching),
            routes: Routes::default(),
            listens: 0,
            table: Table::new(vis_max),
            by_app: Index::with_capacity(vis_max),
            stuck: Vec::with_capacity(vis_max),
            retried: Vec::with_capacity(vis_max),
            ended: false,
            next_check: Instant::FAR_FUTURE,
            counters: Counters::default(),
            scratch: vec![0; config.vi.message_len as usize].into(),
            pieces: Vec::new(),
            config,
        })
    }

    /// Processes what has arrived (bounded) and forwards it. Returns whether there was anything to do.
    pub fn turn(&mut self, now: Instant, unix_now_s: u64) -> bool {
        let mut busy = self.take_shm_events(now);
        for via in 0..self.sides.len() {
            if self.sides[via].used {
                busy |= self.take_san_events(via, unix_now_s);
                busy |= self.take_san_completions(via);
            }
        }
        busy |= self.take_shm_completions(unix_now_s);
        self.retry_stuck(unix_now_s);
        if now >= self.next_check {
            self.drop_overdue(now);
        }
        busy |= self.watch.turn(now, unix_now_s);
        while let Some(route) = self.watch.poll_dead() {
            self.on_silent(route);
        }
        if std::mem::take(&mut self.ended) {
            self.remove_left_routes(now);
        }
        busy
    }

    fn take_shm_events(&mut self, now: Instant) -> bool {
        for taken in 0..PER_TURN {
            match self.shm.poll_event() {
                None => return taken > 0,
                Some(Event::Request(request)) => self.on_request(&request),
                Some(Event::Established { vi, .. }) => self.on_process_open(now, vi),
                Some(Event::Refused { vi, .. } | Event::Disconnected { vi, .. }) => self.on_process_end(vi),
            }
        }
        true
    }

    fn take_shm_completions(&mut self, unix_now_s: u64) -> bool {
        for taken in 0..PER_TURN {
            match self.shm.poll() {
                None => return taken > 0,
                Some(Completion::Received { vi, buffer, immediate, .. }) => {
                    self.on_process_message(vi, buffer, immediate, unix_now_s);
                }
                // The relay posts no sends of its own that would complete here.
                Some(Completion::Sent { .. }) => {}
            }
        }
        true
    }

    fn take_san_events(&mut self, via: usize, unix_now_s: u64) -> bool {
        for taken in 0..PER_TURN {
            match self.sides[via].provider.poll_event() {
                None => return taken > 0,
                // The SAN providers do not listen.
                Some(Event::Request(request)) => {
                    let _ = self.sides[via].provider.reject(request.id);
                }
                Some(Event::Established { vi, .. }) => self.on_san_open(via, vi, unix_now_s),
                Some(Event::Refused { vi, reason }) => self.on_san_refused(via, vi, &reason),
                Some(Event::Disconnected { vi, clean }) => self.on_san_end(via, vi, clean),
            }
        }
        true
    }

    fn take_san_completions(&mut self, via: usize) -> bool {
        for taken in 0..PER_TURN {
            match self.sides[via].provider.poll() {
                None => return taken > 0,
                Some(Completion::Received { vi, buffer, len, immediate }) => {
                    self.on_san_message((via, vi), buffer, len, immediate);
                }
                Some(Completion::Sent { vi, wr_id }) => self.on_san_sent(via, vi, wr_id),
            }
        }
        true
    }

    /// Returns when to call [`turn`](Self::turn) next if nothing arrives.
    pub fn next_timeout(&self) -> Option<Instant> {
        let check = (self.next_check < Instant::FAR_FUTURE).then_some(self.next_check);
        check.into_iter().chain(self.watch.next_timeout()).min()
    }

    /// Arms all wake descriptors.
    pub fn arm(&mut self) -> Result<Armed, ViError> {
        for side in self.sides.iter_mut().filter(|side| side.used) {
            if side.provider.arm()? == Armed::Busy {
                return Ok(Armed::Busy);
            }
        }
        if self.watch.arm()? == Armed::Busy {
            return Ok(Armed::Busy);
        }
        self.shm.arm()
    }

    /// Appends the descriptors to wait on to `into`.
    pub fn wake(&self, into: &mut Vec<Wake>) {
        self.shm.wake(into);
        self.sides.iter().for_each(|side| side.provider.wake(into));
        self.watch.wake(into);
    }

    /// Returns a number that changes whenever the set of [`wake`](Self::wake) changes.
    pub fn wake_generation(&self) -> u64 {
        let sides = self.sides.iter().map(|side| side.provider.wake_generation());
        sides.fold(self.shm.wake_generation(), u64::wrapping_add).wrapping_add(self.watch.wake_generation())
    }

    /// Returns the number of forwarded VIs, and the capacity.
    pub fn occupancy(&self) -> (usize, usize) {
        (self.table.len(), self.table.capacity())
    }

    /// Returns the counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the proxy workers that the relay listens for, each with whether the agent's own link to it is
    /// up.
    pub fn routes(&self) -> impl Iterator<Item = (&Target, bool)> {
        self.routes.iter().map(|route| (&route.target, self.watch.is_up(route.number)))
    }

    /// Ends every VI, processes' first, then proxies'. The end is unclean: the processes continue, and some
    /// of what they sent may be missing.
    pub fn close(&mut self, now: Instant) {
        // Stops listening first: a process that lost its VI would reconnect at once.
        while let Some(listener) = self.routes.retire(&[]) {
            let _ = self.shm.unlisten(listener);
        }
        let all: Vec<u32> = self.table.iter().map(|(at, _)| at).collect();
        all.into_iter().for_each(|at| self.drop_forwarding(at, Ending::Broken));
        self.watch.close(now);
    }

    /// Returns the forwarding of a process's VI.
    fn of_app(&self, vi: ViId) -> Option<u32> {
        self.by_app.find(vi)
    }

    /// Returns the forwarding of a VI over the SAN.
    fn of_san(&self, via: usize, vi: ViId) -> Option<u32> {
        self.sides.get(via)?.by_vi.find(vi)
    }
}
