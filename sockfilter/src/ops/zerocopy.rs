//! MSG_ZEROCOPY: an accelerated connection copies the bytes, and reports each send as complete at once, like
//! a kernel that has copied (SO_EE_CODE_ZEROCOPY_COPIED, Linux's Documentation/networking/msg_zerocopy.rst).
//! Programs read the reports from the error queue. A connection in the agent's custody behaves equally,
//! although its Unix socket has neither the option nor the queue: the filter provides both, for this process
//! (see `error_events` for epoll).

use core::sync::atomic::{AtomicBool, Ordering};

use libc::{c_int, msghdr, ssize_t};

use super::c_result;
use crate::description::{DescriptionId, Kind};
use crate::engine::{ENGINE, Engine};
use crate::fdtable::{self, Entry};
use crate::lock;
use crate::sys::Errno;

/// The option that permits it.
pub const OPTION: (c_int, c_int) = (libc::SOL_SOCKET, libc::SO_ZEROCOPY);

/// Whether a connection with SO_ZEROCOPY was ever in custody here. Otherwise no check is needed.
static ANY_CARRIED: AtomicBool = AtomicBool::new(false);

/// The zero-copy state of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ZeroCopy {
    /// SO_ZEROCOPY.
    pub on: bool,
    /// The number of the next send with MSG_ZEROCOPY.
    next: u32,
    /// The first and the last send whose completion the program has not read.
    complete: Option<(u32, u32)>,
}

impl ZeroCopy {
    /// The state of a connection that a listener with this state accepts.
    pub fn inherited(self) -> Self {
        ZeroCopy { on: self.on, ..ZeroCopy::default() }
    }

    /// The state in a forked child: the reports are the parent's.
    pub fn of_child(self) -> Self {
        ZeroCopy { complete: None, ..self }
    }

    /// Whether the error queue has a report.
    pub fn is_pending(&self) -> bool {
        self.complete.is_some()
    }

    fn sent(&mut self) {
        let first = self.complete.map_or(self.next, |(first, _)| first);
        self.complete = Some((first, self.next));
        self.next = self.next.wrapping_add(1);
    }
}

/// Records SO_ZEROCOPY as the program set it.
pub fn set(fd: c_int, on: bool) {
    if lock::inside() {
        return;
    }
    ENGINE.with(|engine| {
        let (Entry::Ours(index) | Entry::Candidate(index) | Entry::Carried(index)) = fdtable::entry(fd)
        else {
            return;
        };
        if let Some(d) = engine.descriptions.get_mut(index) {
            d.zero_copy.on = on;
        }
        engine.zero_copy_carried(index);
    });
}

/// Whether the filter may have reports of a carried connection.
#[inline]
pub fn may_report(fd: c_int) -> bool {
    ANY_CARRIED.load(Ordering::Relaxed) && matches!(fdtable::entry(fd), Entry::Carried(_))
}

impl Engine {
    /// Called when a description is, or may have become, a carried connection with SO_ZEROCOPY.
    pub fn zero_copy_carried(&mut self, index: usize) {
        let carried = |d: &&crate::description::Description| matches!(d.kind, Kind::Carried { .. });
        if self.descriptions.get(index).filter(carried).is_some_and(|d| d.zero_copy.on) {
            ANY_CARRIED.store(true, Ordering::Relaxed);
        }
    }

    /// The description of a carried connection with SO_ZEROCOPY.
    pub fn carried_zero_copy(&self, fd: c_int) -> Option<DescriptionId> {
        let Entry::Carried(index) = fdtable::entry(fd) else { return None };
        self.descriptions.get(index).filter(|d| d.zero_copy.on)?;
        self.descriptions.id(index)
    }

    /// Records a successful send with MSG_ZEROCOPY.
    fn sent_zero_copy(&mut self, id: DescriptionId) {
        if !self.descriptions.is_current(id) {
            return;
        }
        let Some(d) = self.descriptions.get_mut(id.index) else { return };
        if d.zero_copy.on {
            d.zero_copy.sent();
            self.on_change(id.index);
            self.show_errors(id.index);
        }
    }
}

/// Called after a send with MSG_ZEROCOPY transferred bytes.
pub fn sent(id: DescriptionId) {
    ENGINE.with(|engine| engine.sent_zero_copy(id));
}

/// A send with MSG_ZEROCOPY on a carried connection: `send` performs it without the flag. A signal handler
/// that interrupts the filter gets ENOBUFS, after which programs send without the flag, since the report
/// could not be kept.
pub fn counted(fd: c_int, send: impl FnOnce() -> ssize_t) -> ssize_t {
    if !may_report(fd) {
        return send();
    }
    if lock::inside() {
        return c_result(Err(libc::ENOBUFS));
    }
    let id = ENGINE.with(|engine| engine.carried_zero_copy(fd));
    let bytes = send();
    if bytes > 0 {
        id.into_iter().for_each(sent);
    }
    bytes
}

/// A report of the error queue.
struct Report {
    /// The socket's family.
    family: c_int,
    /// The number of the first send.
    first: u32,
    /// The number of the last.
    last: u32,
}

/// Takes the report from the error queue of an accelerated or carried connection; with MSG_PEEK it stays.
/// Error: EAGAIN without one. `None`: the call is passed to the kernel.
fn take(fd: c_int, flags: c_int) -> Option<Result<Report, Errno>> {
    if lock::inside() {
        return Some(Err(libc::EAGAIN));
    }
    ENGINE.with(|engine| {
        let (Entry::Ours(index) | Entry::Carried(index)) = fdtable::entry(fd) else { return None };
        if engine.is_epoll(index) {
            return None;
        }
        let d = engine.descriptions.get_mut(index)?;
        let Some((first, last)) = d.zero_copy.complete else { return Some(Err(libc::EAGAIN)) };
        let report = Report { family: d.family, first, last };
        if flags & libc::MSG_PEEK == 0 {
            d.zero_copy.complete = None;
            engine.show_errors(index);
        }
        Some(Ok(report))
    })
}

/// recv with MSG_ERRQUEUE: the report without its contents. `None`: the call is passed to the kernel.
pub fn receive(fd: c_int, flags: c_int) -> Option<Result<usize, Errno>> {
    take(fd, flags).map(|taken| taken.map(|_| 0))
}

/// struct sock_extended_err of Linux's errqueue.h.
#[repr(C)]
struct ExtendedError {
    errno: u32,
    origin: u8,
    kind: u8,
    code: u8,
    pad: u8,
    /// The first send.
    info: u32,
    /// The last send.
    data: u32,
}

const SO_EE_ORIGIN_ZEROCOPY: u8 = 5;
const SO_EE_CODE_ZEROCOPY_COPIED: u8 = 1;

/// recvmsg with MSG_ERRQUEUE; `None`: the call is passed to the kernel.
///
/// # Safety
/// As recvmsg: the header must be valid, its control data writable for the length that it states.
pub unsafe fn receive_message(fd: c_int, message: *mut msghdr, flags: c_int) -> Option<Result<usize, Errno>> {
    // SAFETY: the contract is the same.
    take(fd, flags).map(|taken| taken.map(|report| unsafe { write(report, message) }).map(|()| 0))
}

/// Writes a report into a message.
///
/// # Safety
/// As [`receive_message`].
unsafe fn write(report: Report, message: *mut msghdr) {
    let error = ExtendedError {
        errno: 0,
        origin: SO_EE_ORIGIN_ZEROCOPY,
        kind: 0,
        code: SO_EE_CODE_ZEROCOPY_COPIED,
        pad: 0,
        info: report.first,
        data: report.last,
    };
    // The address of the offender follows, which a completion does not have.
    let (level, name, address_len) = match report.family {
        libc::AF_INET6 => (libc::IPPROTO_IPV6, libc::IPV6_RECVERR, size_of::<libc::sockaddr_in6>()),
        _ => (libc::IPPROTO_IP, libc::IP_RECVERR, size_of::<libc::sockaddr_in>()),
    };
    let data_len = size_of::<ExtendedError>() + address_len;
    // SAFETY: by the caller's contract the header is valid, and its control data writable for
    // `msg_controllen` bytes, which were checked to have room for the header and its data.
    unsafe {
        let room = (*message).msg_controllen;
        (*message).msg_namelen = 0;
        (*message).msg_flags = libc::MSG_ERRQUEUE;
        let header = libc::CMSG_FIRSTHDR(message);
        if header.is_null() || room < libc::CMSG_LEN(data_len as u32) as usize {
            (*message).msg_controllen = 0;
            (*message).msg_flags |= libc::MSG_CTRUNC;
            return;
        }
        (*header).cmsg_level = level;
        (*header).cmsg_type = name;
        (*header).cmsg_len = libc::CMSG_LEN(data_len as u32) as usize;
        let data = libc::CMSG_DATA(header);
        core::ptr::write_bytes(data, 0, data_len);
        data.cast::<ExtendedError>().write_unaligned(error);
        (*message).msg_controllen = room.min(libc::CMSG_SPACE(data_len as u32) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_are_counted_and_reported_together() {
        let mut state = ZeroCopy { on: true, next: u32::MAX, complete: None };
        assert!(!state.is_pending());
        (0..3).for_each(|_| state.sent());
        assert_eq!(state.complete, Some((u32::MAX, 1)), "the numbers wrap");
        state.complete = None;
        state.sent();
        assert_eq!(state.complete, Some((2, 2)));
        assert_eq!(state.inherited(), ZeroCopy { on: true, ..ZeroCopy::default() });
        assert_eq!(state.of_child(), ZeroCopy { on: true, next: 3, complete: None });
    }
}
