//! The one descriptor that a program waits on: an epoll set of the providers' descriptors, the agent's
//! socket, a timer, and an eventfd for events that are pending already.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use csp_types::Instant;

use crate::error::{Error, Result};
use crate::system::errno;

/// The descriptors; closed with the value.
#[derive(Debug)]
pub struct Waiter {
    epoll: OwnedFd,
    eventfd: OwnedFd,
    timer: OwnedFd,
    watched: Vec<RawFd>,
    signalled: bool,
    /// The time for which the timer is set, if it is.
    timer_at: Option<Instant>,
}

fn owned(fd: RawFd) -> Result<OwnedFd> {
    if fd < 0 {
        return Err(if errno() == libc::EMFILE { Error::TOO_MANY } else { Error::IO });
    }
    // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

impl Waiter {
    /// An empty set.
    pub fn new() -> Result<Self> {
        // SAFETY: the call takes no pointers.
        let epoll = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: as above.
        let eventfd = owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: as above.
        let timer = owned(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) })?;
        let waiter = Waiter { epoll, eventfd, timer, watched: Vec::new(), signalled: false, timer_at: None };
        waiter.control(libc::EPOLL_CTL_ADD, waiter.eventfd.as_raw_fd())?;
        waiter.control(libc::EPOLL_CTL_ADD, waiter.timer.as_raw_fd())?;
        Ok(waiter)
    }

    /// The descriptor that the program waits on.
    pub fn fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    fn control(&self, operation: libc::c_int, fd: RawFd) -> Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: fd as u64 };
        // SAFETY: `event` is readable and writable.
        let done = unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, fd, &raw mut event) };
        if done < 0 { Err(Error::IO) } else { Ok(()) }
    }

    /// Watches exactly these descriptors of other components. A descriptor that was closed left the set by
    /// itself, and its number may denote another one now; therefore all are registered anew after any change.
    pub fn watch(&mut self, wanted: &[RawFd]) -> Result<()> {
        for fd in std::mem::take(&mut self.watched) {
            // Fails for descriptors that were closed.
            let _ = self.control(libc::EPOLL_CTL_DEL, fd);
        }
        self.watched.extend_from_slice(wanted);
        self.watched.iter().try_for_each(|fd| self.control(libc::EPOLL_CTL_ADD, *fd))
    }

    /// Makes the descriptor readable until [`clear_signal`](Self::clear_signal).
    pub fn signal(&mut self) {
        if !std::mem::replace(&mut self.signalled, true) {
            let one = 1u64;
            // SAFETY: `one` has 8 readable bytes.
            unsafe { libc::write(self.eventfd.as_raw_fd(), (&raw const one).cast(), 8) };
        }
    }

    /// Undoes [`signal`](Self::signal).
    pub fn clear_signal(&mut self) {
        if std::mem::replace(&mut self.signalled, false) {
            let mut count = 0u64;
            // SAFETY: `count` has 8 writable bytes.
            unsafe { libc::read(self.eventfd.as_raw_fd(), (&raw mut count).cast(), 8) };
        }
    }

    /// Makes the descriptor readable at `at`; `None`: at no time. Setting the timer anew also clears an
    /// expiry that was not read.
    pub fn wake_at(&mut self, at: Option<Instant>) {
        if self.timer_at == at {
            return;
        }
        self.timer_at = at;
        // A value of 0 would disarm the timer.
        let nanos = at.map_or(0, |at| at.as_nanos().max(1));
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let value = libc::timespec {
            tv_sec: (nanos / 1_000_000_000) as libc::time_t,
            tv_nsec: (nanos % 1_000_000_000) as libc::c_long,
        };
        let spec = libc::itimerspec { it_interval: zero, it_value: value };
        let fd = self.timer.as_raw_fd();
        // SAFETY: `spec` is readable; a null pointer means that the old value is not stored.
        unsafe {
            libc::timerfd_settime(fd, libc::TFD_TIMER_ABSTIME, &raw const spec, std::ptr::null_mut());
        }
    }

    /// Sleeps until the descriptor is readable, for at most `timeout_ms` (negative: without limit). Returns
    /// `false` if it is not readable.
    pub fn sleep(&self, timeout_ms: libc::c_int) -> bool {
        let mut one = libc::pollfd { fd: self.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, readable and writable.
        unsafe { libc::poll(&raw mut one, 1, timeout_ms) > 0 }
    }
}
