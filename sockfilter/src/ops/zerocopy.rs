//! MSG_ZEROCOPY: an accelerated connection copies what is sent, and reports each send as complete at once, as a kernel
//! does that copied (SO_EE_CODE_ZEROCOPY_COPIED, Linux's Documentation/networking/msg_zerocopy.rst). Programs read the
//! reports from the error queue.

use libc::{c_int, msghdr};

use crate::description::DescriptionId;
use crate::engine::{ENGINE, Engine};
use crate::fdtable::{self, Entry};
use crate::lock;
use crate::sys::Errno;

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
        let (Entry::Ours(index) | Entry::Candidate(index)) = fdtable::entry(fd) else { return };
        if let Some(d) = engine.descriptions.get_mut(index) {
            d.zero_copy.on = on;
        }
    });
}

impl Engine {
    /// Records a successful send with MSG_ZEROCOPY.
    fn sent_zero_copy(&mut self, id: DescriptionId) {
        if !self.descriptions.is_current(id) {
            return;
        }
        let Some(d) = self.descriptions.get_mut(id.index) else { return };
        if d.zero_copy.on {
            d.zero_copy.sent();
            self.on_change(id.index);
        }
    }
}

/// Called after a send with MSG_ZEROCOPY transferred bytes.
pub fn sent(id: DescriptionId) {
    ENGINE.with(|engine| engine.sent_zero_copy(id));
}

/// Takes the report from the error queue; with `peek` it stays. Error: EAGAIN without one.
fn take(id: DescriptionId, peek: bool) -> Result<(c_int, (u32, u32)), Errno> {
    ENGINE.with(|engine| {
        let d = engine.descriptions.get_mut(id.index).ok_or(libc::EBADF)?;
        let report = d.zero_copy.complete.ok_or(libc::EAGAIN)?;
        if !peek {
            d.zero_copy.complete = None;
        }
        Ok((d.family, report))
    })
}

/// recv with MSG_ERRQUEUE: the report without its contents.
pub fn receive(id: DescriptionId, flags: c_int) -> Result<usize, Errno> {
    take(id, flags & libc::MSG_PEEK != 0).map(|_| 0)
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

/// recvmsg with MSG_ERRQUEUE.
///
/// # Safety
/// As recvmsg: the header must be valid, its control data writable for the length that it states.
pub unsafe fn receive_message(id: DescriptionId, message: *mut msghdr, flags: c_int) -> Result<usize, Errno> {
    let (family, (first, last)) = take(id, flags & libc::MSG_PEEK != 0)?;
    let error = ExtendedError {
        errno: 0,
        origin: SO_EE_ORIGIN_ZEROCOPY,
        kind: 0,
        code: SO_EE_CODE_ZEROCOPY_COPIED,
        pad: 0,
        info: first,
        data: last,
    };
    // The address of the offender follows, which a completion does not have.
    let (level, name, address_len) = match family {
        libc::AF_INET6 => (libc::IPPROTO_IPV6, libc::IPV6_RECVERR, size_of::<libc::sockaddr_in6>()),
        _ => (libc::IPPROTO_IP, libc::IP_RECVERR, size_of::<libc::sockaddr_in>()),
    };
    let data_len = size_of::<ExtendedError>() + address_len;
    // SAFETY: by the caller's contract the header is valid, and its control data writable for `msg_controllen` bytes,
    // which were checked to have room for the header and its data.
    unsafe {
        let room = (*message).msg_controllen;
        (*message).msg_namelen = 0;
        (*message).msg_flags = libc::MSG_ERRQUEUE;
        let header = libc::CMSG_FIRSTHDR(message);
        if header.is_null() || room < libc::CMSG_LEN(data_len as u32) as usize {
            (*message).msg_controllen = 0;
            (*message).msg_flags |= libc::MSG_CTRUNC;
            return Ok(0);
        }
        (*header).cmsg_level = level;
        (*header).cmsg_type = name;
        (*header).cmsg_len = libc::CMSG_LEN(data_len as u32) as usize;
        let data = libc::CMSG_DATA(header);
        core::ptr::write_bytes(data, 0, data_len);
        data.cast::<ExtendedError>().write_unaligned(error);
        (*message).msg_controllen = room.min(libc::CMSG_SPACE(data_len as u32) as usize);
    }
    Ok(0)
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
    }
}
