//! EPOLLERR of connections that the agent carries. The kernel's epoll sets have their Unix sockets, and a
//! Unix socket has no error queue. While such a connection has a report (`zerocopy`), a second descriptor is
//! registered in each of its sets, with the program's data: the write end of a pipe without a reader, for
//! which the kernel reports EPOLLERR.
//!
//! ```text
//!   program's epoll set:   the connection (Unix socket)         data: the program's   EPOLLIN, EPOLLOUT, …
//!                          its error descriptor, while needed   data: the same        EPOLLERR
//! ```
//! Of the kernel's two events for one connection in a batch, [`join`] makes one. A one-shot member is not
//! disabled by the event of the other descriptor.
//!
//! Each connection has a pipe of its own: closing its only descriptor removes it from every set, also from
//! one whose number the program has closed while the set lives on by a duplicate, and from a set that a
//! forked child shares.

use core::sync::atomic::{AtomicU32, Ordering};

use libc::{c_int, epoll_event};

use crate::description::{Description, KernelMembership, Kind};
use crate::engine::Engine;
use crate::fdtable;
use crate::sys::{self, Errno, syscall};

const EDGE: u32 = libc::EPOLLET as u32;
const ONCE: u32 = libc::EPOLLONESHOT as u32;
const ERROR: u32 = libc::EPOLLERR as u32;
/// The bits of a mask that the second registration shares with the first.
const MODES: u32 = EDGE | ONCE | (libc::EPOLLEXCLUSIVE | libc::EPOLLWAKEUP) as u32;

/// Number of error descriptors of this process.
static DESCRIPTORS: AtomicU32 = AtomicU32::new(0);

/// A new descriptor for which the kernel reports EPOLLERR.
fn with_error() -> Result<c_int, Errno> {
    let mut ends = [0 as c_int; 2];
    // SAFETY: `ends` has room for two descriptors.
    unsafe { syscall!(libc::SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC) }?;
    sys::close(ends[0]);
    let fd = sys::move_high(ends[1]);
    fdtable::hide(fd);
    DESCRIPTORS.fetch_add(1, Ordering::Relaxed);
    Ok(fd)
}

/// Joins an event that is nothing but EPOLLERR with another one of the same data, since the kernel reports
/// both for one registration at once: a program may release the data after the first. Returns the number of
/// events that remain.
#[inline]
pub fn join(events: &mut [epoll_event]) -> usize {
    if events.len() < 2 || DESCRIPTORS.load(Ordering::Relaxed) == 0 { events.len() } else { join_all(events) }
}

fn join_all(events: &mut [epoll_event]) -> usize {
    let mut kept = events.len();
    let mut at = 0;
    while let Some(&event) = events.get(at).filter(|_| at < kept) {
        let data = event.u64;
        let mut others = events.iter_mut().take(kept).enumerate();
        let joins = |(place, other): &(usize, &mut epoll_event)| *place != at && { other.u64 } == data;
        let Some((_, other)) = (event.events == ERROR).then(|| others.find(joins)).flatten() else {
            at += 1;
            continue;
        };
        other.events |= ERROR;
        events.copy_within(at + 1..kept, at);
        kept -= 1;
    }
    kept
}

fn change(epoll: c_int, operation: c_int, fd: c_int, events: u32, data: u64) -> Result<usize, Errno> {
    let mut event = epoll_event { events, u64: data };
    // SAFETY: `event` is readable.
    unsafe { syscall!(libc::SYS_epoll_ctl, epoll, operation, fd, &raw mut event) }
}

impl KernelMembership {
    /// Whether the set still has the member: the program may have closed either descriptor, and its number
    /// may have been reused.
    fn is_current(&self) -> bool {
        match change(self.epoll, libc::EPOLL_CTL_ADD, self.fd, 0, self.data) {
            Err(errno) => errno == libc::EEXIST,
            Ok(_) => {
                let _ = change(self.epoll, libc::EPOLL_CTL_DEL, self.fd, 0, 0);
                false
            }
        }
    }

    /// Removes the error descriptor from the set if it is registered there. Returns `false` if that failed:
    /// the set may still exist under another number.
    fn hide(&mut self, error: c_int) -> bool {
        if !self.shown {
            return true;
        }
        // A one-shot event is reported again after EPOLL_CTL_MOD only.
        self.shown = self.events & ONCE != 0;
        change(self.epoll, libc::EPOLL_CTL_DEL, error, 0, 0).is_ok()
    }

    /// Registers the error descriptor in the set unless it is registered there. Returns `false` if the member
    /// no longer exists.
    fn show(&mut self, error: c_int) -> bool {
        if !self.shown {
            if !self.is_current() {
                return false;
            }
            let added = change(self.epoll, libc::EPOLL_CTL_ADD, error, self.events & MODES, self.data);
            self.shown = added.is_ok();
        }
        true
    }
}

impl Description {
    /// Removes the error descriptor from the sets if there is no report, otherwise only from edge-triggered
    /// ones, since a further report is a new edge.
    fn hide_errors(&mut self, pending: bool) {
        let Some(error) = self.error_event else { return };
        let hidden = |m: &&mut KernelMembership| !pending || m.events & (EDGE | ONCE) == EDGE;
        if !self.kernel_sets.iter_mut().filter(hidden).all(|member| member.hide(error)) {
            self.close_error_event();
        }
    }

    /// Closes the error descriptor, which removes it from all sets.
    pub fn close_error_event(&mut self) {
        let Some(error) = self.error_event.take() else { return };
        fdtable::clear(error);
        sys::close(error);
        DESCRIPTORS.fetch_sub(1, Ordering::Relaxed);
        self.kernel_sets.iter_mut().for_each(|member| member.shown &= member.events & ONCE != 0);
    }
}

/// Whether two descriptors are known to refer to one epoll set.
pub(super) fn same_set(one: c_int, other: c_int) -> bool {
    one == other || fdtable::description(one).is_some_and(|set| fdtable::description(other) == Some(set))
}

impl Engine {
    /// Makes the kernel's sets report EPOLLERR for a carried connection while its error queue has a report.
    pub(super) fn show_errors(&mut self, index: usize) {
        let Some(d) = self.descriptions.get_mut(index) else { return };
        if !matches!(d.kind, Kind::Carried { .. }) || d.kernel_sets.is_empty() {
            return;
        }
        let pending = d.zero_copy.is_pending();
        d.hide_errors(pending);
        if !pending {
            return;
        }
        if d.error_event.is_none() {
            d.error_event = with_error().ok();
        }
        let Some(error) = d.error_event else { return };
        d.kernel_sets.retain_mut(|member| member.show(error));
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
            d.kernel_sets.iter_mut().filter(|m| same_set(m.epoll, epoll)).for_each(|m| m.shown = false);
        }
        let with_event = operation != libc::EPOLL_CTL_DEL;
        // SAFETY: the kernel has just read the event.
        let event = with_event.then(|| unsafe { event.read_unaligned() });
        self.note_kernel_member(index, epoll, operation, fd, event);
        self.show_errors(index);
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_alone_joins_the_event_of_the_same_data() {
        let joined = |given: &[(u32, u64)]| {
            let mut events: Vec<_> = given.iter().map(|&(events, u64)| epoll_event { events, u64 }).collect();
            let kept = join_all(&mut events);
            events.iter().take(kept).map(|e| (e.events, e.u64)).collect::<Vec<_>>()
        };
        assert_eq!(joined(&[]), []);
        assert_eq!(joined(&[(ERROR, 1)]), [(ERROR, 1)]);
        assert_eq!(joined(&[(ERROR, 1), (4, 1)]), [(ERROR | 4, 1)]);
        assert_eq!(joined(&[(4, 1), (4, 2), (ERROR, 1), (1, 3)]), [(ERROR | 4, 1), (4, 2), (1, 3)]);
        assert_eq!(joined(&[(ERROR, 1), (ERROR, 2), (ERROR, 1), (1, 2)]), [(ERROR, 1), (ERROR | 1, 2)]);
        // Events with other bits stay apart, whatever their data.
        assert_eq!(joined(&[(ERROR | 16, 1), (4, 1)]), [(ERROR | 16, 1), (4, 1)]);
    }
}
