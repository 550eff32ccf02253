//! The clocks of a daemon's threads.

pub use csp_control::unix_now_ms;
use csp_types::Instant;
use rustix::time::{ClockId, clock_gettime};

/// CLOCK_MONOTONIC, which the processes of one host share.
pub fn now() -> Instant {
    read(ClockId::Monotonic)
}

/// CLOCK_BOOTTIME: as [`now`], but it goes on while the host sleeps. For promises that others rely on until a
/// time.
pub fn boot_now() -> Instant {
    read(ClockId::Boottime)
}

fn read(clock: ClockId) -> Instant {
    let time = clock_gettime(clock);
    Instant::from_nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Unix time in seconds, as tokens use it.
pub fn unix_now_s() -> u64 {
    unix_now_ms() / 1_000
}
