//! The descriptor that a blocked user of the fabric waits on.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A new eventfd, or nothing where the process has no descriptors left (the provider then cannot be blocked on).
pub(super) fn create() -> Option<OwnedFd> {
    // SAFETY: no pointers are passed.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    // SAFETY: a non-negative result is a new descriptor that nobody else owns.
    if fd < 0 { None } else { Some(unsafe { OwnedFd::from_raw_fd(fd) }) }
}

/// Makes it readable.
pub(super) fn signal(fd: &OwnedFd) {
    let one = 1u64;
    // SAFETY: `one` is 8 readable bytes. A full counter (EAGAIN) is readable already.
    unsafe { libc::write(fd.as_raw_fd(), (&raw const one).cast(), 8) };
}

/// Makes it unreadable.
pub(super) fn clear(fd: &OwnedFd) {
    let mut count = 0u64;
    // SAFETY: `count` is 8 writable bytes. An unreadable one (EAGAIN) is as wanted.
    unsafe { libc::read(fd.as_raw_fd(), (&raw mut count).cast(), 8) };
}
