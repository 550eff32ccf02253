//! The relay: processes of this host reach proxies of other hosts through their agent (docs/decisions/0013).
//!
//! Towards processes the agent listens like a proxy, on one Unix socket for each remote proxy worker. For each VI of a
//! process it makes one over the SAN, which sends from the process's ring and receives into it: the agent looks at no
//! message but HELLO, and copies no other. HELLO, credits and heartbeats are between process and proxy; what they allow
//! bounds what is on its way here.
//!
//! One thread's own; time comes in, the thread around it waits. Nothing is allocated while messages pass.

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

use csp_transport::ClusterKey;
use csp_types::{Duration, Instant, NodeId};
use csp_vi::shm::ShmProvider;
use csp_vi::{Armed, Completion, Event, Provider, ViConfig, ViError, ViId, Wake};

pub use counters::{Counters, Refused};
use forwarding::{Ending, Table};
use index::Index;
use routes::Routes;
pub use routes::{Target, path_of};
use watch::Watch;

/// Events and messages taken from one provider in one turn, so that no peer holds up the others.
const PER_TURN: usize = 256;

/// How long a VI over the SAN may take to come up. A process gives up its HELLO after the same time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// What a relay is made with.
#[derive(Clone, Debug)]
pub struct RelayConfig {
    /// This node.
    pub node: NodeId,
    /// Which life of it.
    pub incarnation: u64,
    /// Where the sockets for processes lie.
    pub folder: PathBuf,
    /// Users whose processes are forwarded; `None`: all.
    pub users: Option<Vec<u32>>,
    /// VIs forwarded at once.
    pub vis_max: usize,
    /// What tokens are signed with.
    pub key: ClusterKey,
    /// First of the numbers that make the agent's own tokens different; random.
    pub nonce: u64,
    /// Link messages of channels: their length and how many a proxy has room for.
    pub vi: ViConfig,
}

/// One provider of the SAN, twice: for the processes' VIs, and for the agent's own links, by which it knows that a
/// proxy is dead though no process speaks to it.
pub struct SanPort {
    /// Carries what processes send and receive.
    pub forward: Box<dyn Provider>,
    /// Carries the agent's own links.
    pub watch: Box<dyn Provider>,
}

/// The VIs that one provider of the SAN has here.
struct Side {
    provider: Box<dyn Provider>,
    by_vi: Index,
    /// Whether it ever carried anything: one that did not is not looked at, since a library's progress costs system
    /// calls.
    used: bool,
}

/// The relay.
pub struct Relay {
    config: RelayConfig,
    shm: ShmProvider,
    sides: Vec<Side>,
    watch: Watch,
    routes: Routes,
    /// Calls of the shm provider's `listen` that succeeded.
    listens: u32,
    table: Table,
    by_app: Index,
    /// Forwardings whose messages the SAN did not take.
    stuck: Vec<u32>,
    /// Those of the last turn, while they are tried again.
    retried: Vec<u32>,
    /// A forwarding or a route has ended since leaving routes were looked at.
    ended: bool,
    /// When a connection that is being set up has to be looked at.
    next_check: Instant,
    counters: Counters,
    /// Holds HELLO while it is looked at.
    scratch: Box<[u8]>,
    /// What the SAN side's pieces are collected in, at set-up.
    pieces: Vec<csp_vi::Piece>,
}

impl Relay {
    /// A relay without routes. All tables are allocated here.
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

    /// Takes everything in that has arrived (bounded) and passes it on. Returns whether there was anything.
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
                // The relay posts nothing that would be told.
                Some(Completion::Sent { .. }) => {}
            }
        }
        true
    }

    fn take_san_events(&mut self, via: usize, unix_now_s: u64) -> bool {
        for taken in 0..PER_TURN {
            match self.sides[via].provider.poll_event() {
                None => return taken > 0,
                // Nobody listens here.
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

    /// When [`turn`](Self::turn) is wanted though nothing arrives.
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

    /// The descriptors to wait on, appended to `into`.
    pub fn wake(&self, into: &mut Vec<Wake>) {
        self.shm.wake(into);
        self.sides.iter().for_each(|side| side.provider.wake(into));
        self.watch.wake(into);
    }

    /// Changes whenever the set that [`wake`](Self::wake) tells does.
    pub fn wake_generation(&self) -> u64 {
        let sides = self.sides.iter().map(|side| side.provider.wake_generation());
        sides.fold(self.shm.wake_generation(), u64::wrapping_add).wrapping_add(self.watch.wake_generation())
    }

    /// VIs that are forwarded, and how many there can be.
    pub fn occupancy(&self) -> (usize, usize) {
        (self.table.len(), self.table.capacity())
    }

    /// Totals.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The proxy workers that are listened for, each with whether the agent's own link to it is up.
    pub fn routes(&self) -> impl Iterator<Item = (&Target, bool)> {
        self.routes.iter().map(|route| (&route.target, self.watch.is_up(route.number)))
    }

    /// Ends every VI: processes first, then proxies. Uncleanly: the processes go on, and what they sent may be missing.
    pub fn close(&mut self, now: Instant) {
        // Who lost its VI would come back at once.
        while let Some(listener) = self.routes.retire(&[]) {
            let _ = self.shm.unlisten(listener);
        }
        let all: Vec<u32> = self.table.iter().map(|(at, _)| at).collect();
        all.into_iter().for_each(|at| self.drop_forwarding(at, Ending::Broken));
        self.watch.close(now);
    }

    /// Where the forwarding of a process's VI is.
    fn of_app(&self, vi: ViId) -> Option<u32> {
        self.by_app.find(vi)
    }

    /// Where the forwarding of a VI over the SAN is.
    fn of_san(&self, via: usize, vi: ViId) -> Option<u32> {
        self.sides.get(via)?.by_vi.find(vi)
    }
}
