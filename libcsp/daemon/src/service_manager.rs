//! Notifications to systemd: started, stopping, and keep-alives of its watchdog (sd_notify(3),
//! sd_watchdog_enabled(3)). Without systemd nothing is sent.

use std::sync::{Mutex, MutexGuard, PoisonError};

use csp_types::{Duration, Instant};
use sd_notify::NotifyState;

use crate::thread::Progress;

/// A data thread whose turn lasts longer than this is stuck: a turn takes microseconds, and peers consider a
/// node dead after 800 ms of silence.
const TURN_MAX: Duration = Duration::from_secs(5);

/// The nodes of this process. systemd watches the process as a whole: the process reports that it has
/// started when each of its nodes has, and that it is alive while each of them is.
#[derive(Debug)]
struct Nodes {
    /// How many run in the process.
    count: usize,
    /// How many have started.
    ready: usize,
    /// When each was alive last.
    alive: Vec<Instant>,
    /// When the next keep-alive is due.
    next: Instant,
}

impl Nodes {
    const fn of(count: usize) -> Self {
        Nodes { count, ready: 0, alive: Vec::new(), next: Instant::ZERO }
    }

    fn add(&mut self) -> usize {
        self.alive.push(Instant::ZERO);
        self.alive.len() - 1
    }

    /// A node has started. Returns whether all have.
    fn is_ready(&mut self) -> bool {
        self.ready += 1;
        self.ready == self.count
    }

    /// Node `number` is alive at `now`. Returns whether a keep-alive is due, and all were alive within the
    /// last `interval`.
    fn is_alive(&mut self, number: usize, now: Instant, interval: Duration) -> bool {
        self.alive[number] = now;
        let all = self.alive.len() >= self.count && self.alive.iter().all(|last| *last + interval >= now);
        let due = all && now >= self.next;
        if due {
            self.next = now + interval;
        }
        due
    }
}

static NODES: Mutex<Nodes> = Mutex::new(Nodes::of(1));

fn nodes() -> MutexGuard<'static, Nodes> {
    NODES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A node's connection to systemd.
#[derive(Debug)]
pub struct ServiceManager {
    /// Interval of keep-alives: half of the unit's watchdog time. `None` without a watchdog.
    interval: Option<Duration>,
    number: usize,
    threads: Vec<Progress>,
    stuck: bool,
}

impl ServiceManager {
    /// Reads the environment that systemd sets. The watchdog watches `threads` in addition to the caller.
    pub fn new(threads: Vec<Progress>) -> Self {
        let interval = sd_notify::watchdog_enabled().map(|allowed| allowed / 2);
        ServiceManager { interval, number: nodes().add(), threads, stuck: false }
    }

    /// Sets the number of nodes in this process: 1 unless it is set. Call it before they start.
    pub fn of_nodes(count: usize) {
        *nodes() = Nodes::of(count);
    }

    /// Reports that the node is started: it is registered and its endpoints are open. The service is started
    /// when all of its nodes are.
    pub fn ready(&self) {
        if nodes().is_ready() {
            notify(&[NotifyState::Ready]);
        }
    }

    /// Reports that the service is stopping.
    pub fn stopping(&self) {
        notify(&[NotifyState::Stopping]);
    }

    /// Sends a keep-alive if one is due, no data thread is stuck and the process's other nodes call this,
    /// too. Without keep-alives, systemd restarts the service after WatchdogSec. Call it a few times per
    /// second.
    pub fn alive(&mut self, now: Instant) {
        let Some(interval) = self.interval else { return };
        let longest = self.threads.iter().map(|thread| thread.turn_lasts(now)).max().unwrap_or_default();
        let stuck = longest > TURN_MAX;
        if stuck && !std::mem::replace(&mut self.stuck, stuck) {
            tracing::error!(
                seconds = longest.as_secs(),
                "a data thread is stuck in a turn; the watchdog is not fed"
            );
        }
        self.stuck = stuck;
        if !stuck && nodes().is_alive(self.number, now, interval) {
            notify(&[NotifyState::Watchdog]);
        }
    }
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "systemd was not notified");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_as_ready_and_as_alive_as_the_last_of_its_nodes() {
        let (mut nodes, interval) = (Nodes::of(2), Duration::from_secs(7));
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let first = nodes.add();
        assert!(!nodes.is_ready());
        assert!(!nodes.is_alive(first, at(100), interval), "the second has not begun");
        let second = nodes.add();
        assert!(nodes.is_ready());
        assert!(nodes.is_alive(second, at(101), interval));
        assert!(!nodes.is_alive(first, at(102), interval), "none is due");
        assert!(nodes.is_alive(first, at(108), interval));
        assert!(!nodes.is_alive(first, at(116), interval), "the second has not called for 15 s");
        assert!(nodes.is_alive(second, at(117), interval));
    }
}
