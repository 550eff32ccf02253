//! Limits the rate of events per second.

use csp_types::{Duration, Instant};

const ONE_SECOND: Duration = Duration::from_secs(1);

/// Counts events in windows of one second. A window begins with the first event after the end of the previous
/// one.
#[derive(Clone, Copy, Debug)]
pub(super) struct RateLimit {
    per_second: u32,
    window: Instant,
    count: u32,
}

impl RateLimit {
    pub(super) fn new(per_second: u32) -> Self {
        RateLimit { per_second, window: Instant::ZERO, count: 0 }
    }

    /// Counts an event; `false` if the limit of this second was reached.
    pub(super) fn allows(&mut self, now: Instant) -> bool {
        if now.saturating_since(self.window) >= ONE_SECOND {
            (self.window, self.count) = (now, 0);
        }
        self.count = self.count.saturating_add(1);
        self.count <= self.per_second
    }
}
