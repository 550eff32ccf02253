//! Clocks and random bits.

use std::ffi::{CStr, c_char};

use csp_types::Instant;

fn clock(id: libc::clockid_t) -> (u64, u64) {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable.
    unsafe { libc::clock_gettime(id, &raw mut time) };
    (time.tv_sec as u64, time.tv_nsec as u64)
}

/// CLOCK_MONOTONIC.
pub fn now() -> Instant {
    let (seconds, nanos) = clock(libc::CLOCK_MONOTONIC);
    Instant::from_nanos(seconds.wrapping_mul(1_000_000_000).wrapping_add(nanos))
}

/// Unix time in seconds. The coarse clock is some milliseconds late, which does not matter for tokens that
/// are valid for an hour.
pub fn unix_seconds() -> u64 {
    clock(libc::CLOCK_REALTIME_COARSE).0
}

/// Random bits.
pub fn random() -> u64 {
    let mut bits = 0u64;
    // SAFETY: `bits` has 8 writable bytes.
    unsafe { libc::getrandom((&raw mut bits).cast(), 8, libc::GRND_NONBLOCK) };
    bits ^ now().as_nanos().rotate_left(32)
}

unsafe extern "C" {
    /// secure_getenv(3), which the libc crate does not declare for Linux.
    fn secure_getenv(name: *const c_char) -> *mut c_char;
}

/// The value of an environment variable. It is ignored in a program with more rights than its caller
/// (AT_SECURE: setuid, file capabilities), since the caller must not choose the program's agent.
pub fn variable(name: &CStr) -> Option<Vec<u8>> {
    // SAFETY: `name` is a C string. As with getenv(3), no other thread may change the environment at the same
    // time; that is the program's obligation for every call that reads it.
    let found = unsafe { secure_getenv(name.as_ptr()) };
    // SAFETY: a non-null result is a C string of the environment; it is copied at once.
    (!found.is_null()).then(|| unsafe { CStr::from_ptr(found) }.to_bytes().to_vec())
}

/// The calling thread's errno.
pub fn errno() -> libc::c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
