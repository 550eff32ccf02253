//! EPOLLERR of connections that the agent carries. The kernel's epoll sets have their Unix sockets, and a Unix socket has
//! no error queue. While such a connection has a report (`zerocopy`), a second descriptor is registered in each of its
//! sets, with the program's data: the write end of a pipe without a reader, for which the kernel reports EPOLLERR.
//!
//! ```text
//!   program's epoll set:   the connection (Unix socket)         data: the program's   EPOLLIN, EPOLLOUT, …
//!                          its error descriptor, while needed   data: the same        EPOLLERR
//! ```
//! So the program may get two events of one connection, where the kernel reports one with both bits. A one-shot member is
//! not disabled by the event of the other descriptor.

use core::sync::atomic::{AtomicI32, Ordering};

use libc::{c_int, epoll_event};

use crate::description::{Description, KernelMembership, Kind};
use crate::engine::Engine;
use crate::fdtable;
use crate::sys::{self, Errno, syscall};

const EDGE: u32 = libc::EPOLLET as u32;
const ONCE: u32 = libc::EPOLLONESHOT as u32;
/// The bits of a mask that the second registration shares with the first.
const MODES: u32 = EDGE | ONCE | (libc::EPOLLEXCLUSIVE | libc::EPOLLWAKEUP) as u32;

/// The write end of a pipe without a reader; -1 before it is first needed.
static PIPE: AtomicI32 = AtomicI32::new(-1);

/// A new descriptor for which the kernel reports EPOLLERR: sets distinguish descriptors of the same pipe by their numbers.
/// Called with the engine's lock held.
fn with_error() -> Result<c_int, Errno> {
    let mut end = PIPE.load(Ordering::Relaxed);
    if end < 0 {
        let mut ends = [0 as c_int; 2];
        // SAFETY: `ends` has room for two descriptors.
        unsafe { syscall!(libc::SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC) }?;
        sys::close(ends[0]);
        end = sys::move_high(ends[1]);
        fdtable::hide(end);
        PIPE.store(end, Ordering::Relaxed);
    }
    let fd = sys::duplicate_high(end)?;
    fdtable::hide(fd);
    Ok(fd)
}

fn change(epoll: c_int, operation: c_int, fd: c_int, events: u32, data: u64) -> Result<usize, Errno> {
    let mut event = epoll_event { events, u64: data };
    // SAFETY: `event` is readable.
    unsafe { syscall!(libc::SYS_epoll_ctl, epoll, operation, fd, &raw mut event) }
}

impl KernelMembership {
    /// Whether the set still has the member: the program may have closed either descriptor and got its number again.
    fn is_current(&self) -> bool {
        match change(self.epoll, libc::EPOLL_CTL_ADD, self.fd, 0, self.data) {
            Err(errno) => errno == libc::EEXIST,
            Ok(_) => {
                let _ = change(self.epoll, libc::EPOLL_CTL_DEL, self.fd, 0, 0);
                false
            }
        }
    }

    /// Registers the error descriptor in the set if there is a report, else removes it. A report that follows another one is
    /// a new edge. Returns `false` if the member is gone.
    fn show(&mut self, error: c_int, pending: bool) -> bool {
        let (once, edge) = (self.events & ONCE != 0, self.events & EDGE != 0);
        // A one-shot event is reported again after EPOLL_CTL_MOD only.
        let unchanged = if pending { self.shown && (once || !edge) } else { !self.shown };
        if unchanged {
            return true;
        }
        let _ = change(self.epoll, libc::EPOLL_CTL_DEL, error, 0, 0);
        if !pending {
            self.shown = once;
            return true;
        }
        if !self.is_current() {
            return false;
        }
        let added = change(self.epoll, libc::EPOLL_CTL_ADD, error, self.events & MODES, self.data);
        self.shown = added.is_ok();
        true
    }
}

impl Engine {
    /// Makes the kernel's sets report EPOLLERR for a carried connection while its error queue has a report.
    pub(super) fn show_errors(&mut self, index: usize) {
        let Some(d) = self.descriptions.get_mut(index) else { return };
        if !matches!(d.kind, Kind::Carried { .. }) || d.kernel_sets.is_empty() {
            return;
        }
        let pending = d.zero_copy.is_pending();
        if pending && d.error_event.is_none() {
            d.error_event = with_error().ok();
        }
        let Some(error) = d.error_event else { return };
        d.kernel_sets.retain_mut(|member| member.show(error, pending));
    }

    /// Called when the agent begins to carry a connection that may have a report.
    pub fn carry_errors(&mut self, index: usize) {
        self.zero_copy_carried(index);
        self.show_errors(index);
    }

    /// epoll_ctl() for a carried connection: the kernel does it, and the filter records where it is a member.
    ///
    /// # Safety
    /// `event` must be what epoll_ctl takes with the operation.
    pub(super) unsafe fn control_carried(
        &mut self,
        index: usize,
        (epoll, fd): (c_int, c_int),
        operation: c_int,
        event: *const epoll_event,
    ) -> Result<usize, Errno> {
        // SAFETY: by this function's contract.
        let done = unsafe { syscall!(libc::SYS_epoll_ctl, epoll, operation, fd, event) }?;
        if let Some(d) = self.descriptions.get_mut(index) {
            if let Some(error) = d.error_event {
                let _ = change(epoll, libc::EPOLL_CTL_DEL, error, 0, 0);
            }
            d.kernel_sets.iter_mut().filter(|m| m.epoll == epoll).for_each(|m| m.shown = false);
        }
        let with_event = operation != libc::EPOLL_CTL_DEL;
        // SAFETY: the kernel has just read the event.
        let event = with_event.then(|| unsafe { event.read_unaligned() });
        self.note_kernel_member(index, epoll, operation, fd, event);
        self.show_errors(index);
        Ok(done)
    }
}

/// Called for a description that has ended.
pub fn end(description: &Description) {
    let Some(error) = description.error_event else { return };
    for member in &description.kernel_sets {
        let _ = change(member.epoll, libc::EPOLL_CTL_DEL, error, 0, 0);
    }
    fdtable::clear(error);
    sys::close(error);
}
