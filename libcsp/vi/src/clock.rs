//! The clock of the providers that wait for the kernel, libraries and devices (`tcp`, `ucx`, `verbs`); these
//! are not tested on virtual time.

/// Returns CLOCK_MONOTONIC_COARSE in milliseconds. It lags the exact clock by some milliseconds; it is read
/// while polling, where reading a clock device would cost too much.
pub(crate) fn monotonic_ms() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a local of the type that the kernel writes, and outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut time) };
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}
