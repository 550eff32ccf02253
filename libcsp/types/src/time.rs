//! Time for sans-I/O code: nanoseconds since an epoch chosen by the caller.

use core::ops::{Add, AddAssign, Sub};

/// A length of time: the type of `core`.
pub use core::time::Duration;

/// A point on the caller's monotonic clock, in nanoseconds since an epoch chosen by the caller.
///
/// Daemons read CLOCK_MONOTONIC, so instants of two processes on one host are comparable; the simulation
/// starts at 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Instant(u64);

impl Instant {
    /// The epoch.
    pub const ZERO: Instant = Instant(0);
    /// Later than every deadline in use.
    pub const FAR_FUTURE: Instant = Instant(u64::MAX);

    /// Creates the instant `nanos` nanoseconds after the epoch.
    pub const fn from_nanos(nanos: u64) -> Self {
        Instant(nanos)
    }

    /// Returns the nanoseconds since the epoch.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the whole milliseconds since the epoch, truncated to 32 bits: the unit of the TCP timestamp
    /// clock (RFC 7323 §5.4).
    pub const fn as_millis_u32(self) -> u32 {
        (self.0 / 1_000_000) as u32
    }

    /// Returns the time since `earlier`, or zero if `earlier` is later than this instant.
    pub const fn saturating_since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, rhs: Duration) -> Instant {
        Instant(self.0.saturating_add(u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, rhs: Duration) {
        *self = *self + rhs;
    }
}

impl Sub<Instant> for Instant {
    type Output = Duration;
    fn sub(self, rhs: Instant) -> Duration {
        self.saturating_since(rhs)
    }
}
