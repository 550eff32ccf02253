//! Notifications to systemd: started, stopping, and signs of life for its watchdog (sd_notify(3),
//! sd_watchdog_enabled(3)). Without systemd nothing is sent.

use csp_types::{Duration, Instant};
use sd_notify::NotifyState;

use crate::thread::Progress;

/// A data thread whose turn lasts longer than this is stuck: a turn takes microseconds, and peers take a silence of 800 ms
/// for death.
const TURN_MAX: Duration = Duration::from_secs(5);

/// The connection to systemd.
#[derive(Debug)]
pub struct ServiceManager {
    /// Interval of the signs of life: half of what the unit allows. `None` without a watchdog.
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

    /// Sends a sign of life if one is due and no data thread is stuck; otherwise systemd restarts the service when
    /// WatchdogSec has passed. To be called a few times a second.
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
