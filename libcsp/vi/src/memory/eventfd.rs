//! The eventfd that a blocked user of the fabric waits on.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Creates an eventfd. `None` if the process has no descriptor left; the provider can then not be waited on.
pub(super) fn create() -> Option<OwnedFd> {
    // SAFETY: eventfd takes no pointer; its result is checked.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    // SAFETY: a non-negative result is a new descriptor that nothing else owns.
    if fd < 0 { None } else { Some(unsafe { OwnedFd::from_raw_fd(fd) }) }
}

/// Makes the eventfd readable.
pub(super) fn signal(fd: &OwnedFd) {
    let one = 1u64;
    // SAFETY: `one` is a local of 8 readable bytes that outlives the call. A full counter (EAGAIN) is
    // readable already.
    unsafe { libc::write(fd.as_raw_fd(), (&raw const one).cast(), 8) };
}

/// Makes the eventfd unreadable.
pub(super) fn clear(fd: &OwnedFd) {
    let mut count = 0u64;
    // SAFETY: `count` is a local of 8 writable bytes that outlives the call. A counter of zero (EAGAIN) is
    // unreadable already.
    unsafe { libc::read(fd.as_raw_fd(), (&raw mut count).cast(), 8) };
}
