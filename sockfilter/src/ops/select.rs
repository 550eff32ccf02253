//! select, as poll over the same descriptors.

use libc::{c_int, c_short, fd_set, pollfd, sigset_t};

use super::{poll, zerocopy};
use crate::memory::is_wrong;
use crate::sys::Errno;
use crate::{fdtable, lock};

const READ: c_short = libc::POLLIN | libc::POLLRDNORM | libc::POLLRDBAND;
const WRITE: c_short = libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND;
const READ_REPORTED: c_short = READ | libc::POLLHUP | libc::POLLERR;
const WRITE_REPORTED: c_short = WRITE | libc::POLLERR;

/// The three sets of a call; each is null or the program's. Programs may pass sets larger than `fd_set`, and
/// they are read in full.
#[derive(Clone, Copy, Debug)]
pub struct Sets(pub [*mut fd_set; 3]);

const EVENTS: [c_short; 3] = [READ, WRITE, libc::POLLPRI];
const REPORTED: [c_short; 3] = [READ_REPORTED, WRITE_REPORTED, libc::POLLPRI];

fn word(set: *mut fd_set, fd: usize) -> *mut u64 {
    set.cast::<u64>().wrapping_add(fd / 64)
}

impl Sets {
    /// # Safety
    /// The sets must be null or have `count` bits.
    unsafe fn has(&self, which: usize, fd: usize) -> bool {
        let set = self.0[which];
        // SAFETY: by the caller's contract `fd` is below the count that each set that is not null covers.
        !set.is_null() && unsafe { word(set, fd).read_unaligned() } >> (fd % 64) & 1 != 0
    }

    /// # Safety
    /// As [`has`](Self::has).
    unsafe fn put(&self, which: usize, fd: usize, value: bool) {
        let set = self.0[which];
        if set.is_null() {
            return;
        }
        let bit = 1 << (fd % 64);
        // SAFETY: by the caller's contract `fd` is below the count that each set that is not null covers.
        unsafe {
            let old = word(set, fd).read_unaligned();
            word(set, fd).write_unaligned(if value { old | bit } else { old & !bit });
        }
    }

    /// Whether the filter serves any descriptor below `count` in the sets.
    ///
    /// # Safety
    /// As [`has`](Self::has).
    pub unsafe fn concern(&self, count: c_int) -> bool {
        // The kernel returns EFAULT for an address that cannot be the program's.
        if lock::inside() || self.0.iter().any(|set| is_wrong(*set)) {
            return false;
        }
        (0..count.min(fdtable::highest() + 1)).any(|fd| {
            // SAFETY: by the caller's contract each set is null or covers `count` descriptors.
            (fdtable::is_ours(fd) || zerocopy::may_report(fd))
                && (0..3).any(|which| unsafe { self.has(which, fd as usize) })
        })
    }

    /// select(); returns the number of bits set afterwards.
    ///
    /// # Safety
    /// As [`has`](Self::has); `mask` null or a signal set.
    pub unsafe fn select(
        &self,
        count: c_int,
        timeout_ns: Option<u64>,
        mask: *const sigset_t,
    ) -> Result<usize, Errno> {
        let mut fds = Vec::new();
        for fd in 0..count {
            // SAFETY: by this function's contract each set is null or covers `count` descriptors; `fd` is
            // below it.
            let wanted = |which: &usize| unsafe { self.has(*which, fd as usize) };
            let events = (0..3).filter(wanted).fold(0, |bits, which| bits | EVENTS[which]);
            if events != 0 {
                fds.push(pollfd { fd, events, revents: 0 });
            }
        }
        // SAFETY: by the caller's contract `mask` is null or points to a signal set.
        unsafe { poll::poll(&mut fds, timeout_ns, mask) }?;
        if fds.iter().any(|p| p.revents & libc::POLLNVAL != 0) {
            return Err(libc::EBADF);
        }
        let mut bits = 0;
        for p in &fds {
            for which in 0..3 {
                let asked = p.events & EVENTS[which] == EVENTS[which];
                let reported = asked && p.revents & REPORTED[which] != 0;
                // SAFETY: by this function's contract each set is null or covers `count` descriptors; `p.fd`
                // is below it.
                if unsafe { self.has(which, p.fd as usize) } {
                    bits += usize::from(reported);
                    // SAFETY: as above.
                    unsafe { self.put(which, p.fd as usize, reported) };
                }
            }
        }
        Ok(bits)
    }
}
