//! The clock of providers that wait for libraries and devices: nothing that is tested on virtual time.

/// CLOCK_MONOTONIC_COARSE in milliseconds, some of which it lags: looked at while polling, so it must not ask a device.
pub(crate) fn monotonic_ms() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut time) };
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}
