//! Notifications to systemd: started, stopping, and keep-alives of its watchdog (sd_notify(3),
//! sd_watchdog_enabled(3)). Without systemd nothing is sent.

use csp_types::{Duration, Instant};
use sd_notify::NotifyState;

use crate::thread::Progress;

/// A data thread whose turn lasts longer than this is stuck: a turn takes microseconds, and peers consider a
/// node dead after 800 ms of silence.
const TURN_MAX: Duration = Duration::from_secs(5);

/// The connection to systemd.
#[derive(Debug)]
pub struct ServiceManager {
    /// Interval of keep-alives: half of the unit's watchdog time. `None` without a watchdog.
    interval: Option<Duration>,
    next: Instant,
    threads: Vec<Progress>,
    stuck: bool,
}

impl ServiceManager {
    /// Reads the environment that systemd sets. The watchdog watches `threads` in addition to the caller.
    pub fn new(threads: Vec<Progress>) -> Self {
        let interval = sd_notify::watchdog_enabled().map(|allowed| allowed / 2);
        ServiceManager { interval, next: Instant::ZERO, threads, stuck: false }
    }

    /// Reports that the service is started: it is registered and its endpoints are open.
    pub fn ready(&self) {
        notify(&[NotifyState::Ready]);
    }

    /// Reports that the service is stopping.
    pub fn stopping(&self) {
        notify(&[NotifyState::Stopping]);
    }

    /// Sends a keep-alive if one is due and no data thread is stuck. Without keep-alives, systemd restarts
    /// the service after WatchdogSec. Call it a few times per second.
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
        if !stuck && now >= self.next {
            self.next = now + interval;
            notify(&[NotifyState::Watchdog]);
        }
    }
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "systemd was not notified");
    }
}
