//! The clocks of a daemon's threads.

use std::time::SystemTime;

use csp_types::Instant;

/// CLOCK_MONOTONIC, which the processes of one host share.
pub fn now() -> Instant {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Instant::from_nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// CLOCK_BOOTTIME: as [`now`], but it goes on while the host sleeps. For promises that others rely on until a
/// time.
pub fn boot_now() -> Instant {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Instant::from_nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Unix time in seconds, as tokens use it.
pub fn unix_now_s() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs())
}
