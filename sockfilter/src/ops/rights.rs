//! Descriptors passed through Unix sockets (SCM_RIGHTS).

use libc::{c_int, cmsghdr, msghdr};

use crate::handover::{self, Which};
use crate::{fdtable, inherit};

/// Calls `then` with every descriptor in a message's control data.
///
/// # Safety
/// The header must be valid, its control data readable for the length that it states.
unsafe fn each_descriptor(message: *const msghdr, mut then: impl FnMut(c_int)) {
    // SAFETY: by the caller's contract `message` is null or names buffers that are lent for the call; the macros
    // stay within the control data.
    unsafe {
        let mut header: *const cmsghdr = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            let empty = libc::CMSG_LEN(0) as usize;
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let count = (*header).cmsg_len.saturating_sub(empty) / size_of::<c_int>();
                let first = libc::CMSG_DATA(header).cast::<c_int>();
                (0..count).for_each(|at| then(first.add(at).read_unaligned()));
            }
            if (*header).cmsg_len < empty {
                return;
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

/// Before a message is sent: its accelerated connections leave this process, so that the descriptors sent can be used
/// by any process.
///
/// # Safety
/// As sendmsg: the header must be null or valid.
pub unsafe fn outgoing(message: *const msghdr) {
    // SAFETY: by the caller's contract `message` is null or names buffers that are lent for the call.
    if message.is_null() || unsafe { (*message).msg_controllen } == 0 || fdtable::highest() <= 0 {
        return;
    }
    // SAFETY: as above.
    unsafe { each_descriptor(message, |fd| handover::leave(Which::Of(fd))) };
}

/// After a message was received: adopts descriptors of accelerated sockets.
///
/// # Safety
/// As recvmsg's, after it succeeded.
pub unsafe fn incoming(message: *const msghdr) {
    // SAFETY: by the caller's contract `message` is null or names buffers that are lent for the call.
    if message.is_null() || unsafe { (*message).msg_controllen } == 0 {
        return;
    }
    // SAFETY: as above.
    unsafe { each_descriptor(message, inherit::adopt) };
}
