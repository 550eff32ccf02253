//! Blocking on the wake descriptors of providers: an epoll set that follows changes of their set.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Events fetched from the kernel by one call. The caller polls all providers after any event, so more are
/// not needed.
const EVENTS: usize = 16;

/// The descriptors that a data worker blocks on.
///
/// The set holds raw descriptors that providers own. The kernel removes a descriptor when it is closed; a new
/// one with the same number is added by the next [`update`](Self::update).
#[derive(Debug)]
pub struct WaitSet {
    epoll: OwnedFd,
    members: Vec<RawFd>,
    /// epoll_pwait2 is available; cleared by the first ENOSYS.
    has_pwait2: bool,
}

impl WaitSet {
    /// Creates an empty set.
    pub fn new() -> io::Result<Self> {
        // SAFETY: epoll_create1 takes no pointer; its result is checked.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
        let epoll = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(WaitSet { epoll, members: Vec::new(), has_pwait2: true })
    }

    /// Replaces the members with `wanted`. Required after a provider's wake generation has changed.
    pub fn update(&mut self, wanted: &[RawFd]) {
        for gone in self.members.iter().filter(|fd| !wanted.contains(fd)) {
            self.control(libc::EPOLL_CTL_DEL, *gone);
        }
        self.members.clear();
        for fd in wanted {
            self.control(libc::EPOLL_CTL_ADD, *fd); // EEXIST: already a member
            self.members.push(*fd);
        }
    }

    /// Adds a descriptor that stays open as long as the set exists, such as a mailbox's.
    pub fn add(&mut self, fd: &impl AsFd) {
        self.control(libc::EPOLL_CTL_ADD, fd.as_fd().as_raw_fd());
    }

    /// Blocks until a member is readable, a signal arrives or `timeout` has passed. Returns whether a member
    /// is readable. The timeout is accurate to some ten microseconds, or rounded up to milliseconds where the
    /// kernel has no epoll_pwait2 (before Linux 5.11).
    pub fn wait(&mut self, timeout: Duration) -> bool {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        if self.has_pwait2 {
            let time = libc::timespec {
                tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
                tv_nsec: timeout.subsec_nanos().into(),
            };
            let (epoll, events) = (self.epoll.as_raw_fd(), events.as_mut_ptr());
            // SAFETY: `events` is a local array of EVENTS writable entries, and `time` a valid timespec; both
            // outlive the call. The null signal mask leaves the mask unchanged.
            let count = unsafe {
                libc::epoll_pwait2(epoll, events, EVENTS as i32, &raw const time, std::ptr::null())
            };
            if count >= 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ENOSYS) {
                return count > 0;
            }
            self.has_pwait2 = false;
        }
        let millis = timeout.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i32;
        // SAFETY: `events` is a local array of EVENTS writable entries that outlives the call.
        let count =
            unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), EVENTS as i32, millis) };
        count > 0
    }

    fn control(&self, operation: i32, fd: RawFd) {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: fd as u64 };
        // SAFETY: `event` is a local that outlives the call. A descriptor closed meanwhile makes the kernel
        // return EBADF, which is ignored.
        unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, fd, &mut event) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;

    #[test]
    #[allow(clippy::disallowed_types)] // the test measures the kernel's timeout
    fn a_wait_ends_after_the_time_it_was_given_on_either_way() {
        let mut set = WaitSet::new().unwrap();
        let wanted = Duration::from_micros(1_300);
        for (fine, rounded) in [(true, wanted), (false, Duration::from_millis(2))] {
            set.has_pwait2 = fine;
            // The shortest of many waits: other load may delay any single one.
            let took = (0..50).map(|_| {
                let start = std::time::Instant::now();
                assert!(!set.wait(wanted));
                start.elapsed()
            });
            let shortest = took.min().unwrap();
            assert!(shortest >= rounded, "{shortest:?}");
            assert!(
                !fine || shortest < Duration::from_micros(1_900),
                "rounded up to milliseconds: {shortest:?}"
            );
        }
    }

    #[test]
    fn a_readable_member_wakes_and_a_removed_one_does_not() {
        let mut set = WaitSet::new().unwrap();
        let (near, mut far) = UnixStream::pair().unwrap();
        assert!(!set.wait(Duration::ZERO));
        far.write_all(b"x").unwrap();
        set.update(&[near.as_raw_fd()]);
        assert!(set.wait(Duration::from_secs(5)));
        set.update(&[]);
        assert!(!set.wait(Duration::ZERO));
    }
}
