//! Descriptors passed through Unix sockets (SCM_RIGHTS).

use libc::{c_int, cmsghdr, msghdr};

use crate::fdtable::{self, Entry};
use crate::handover::{self, Selection};
use crate::memory::is_unmappable;
use crate::{inherit, seal, sys};

/// Calls `then` with every descriptor in a message's control data.
///
/// # Safety
/// The header must be valid, its control data readable for the length that it states.
unsafe fn each_descriptor(message: *const msghdr, mut then: impl FnMut(c_int)) {
    // SAFETY: the contract is the same, and each place is within the control data.
    unsafe { each_place(message, |at| then(at.read_unaligned())) };
}

/// Calls `then` with the address of every descriptor in a message's control data.
///
/// # Safety
/// The header must be valid, its control data readable for the length that it states.
unsafe fn each_place(message: *const msghdr, mut then: impl FnMut(*mut c_int)) {
    // SAFETY: by the caller's contract `message` is null or names buffers that are lent for the call; the
    // macros stay within the control data.
    unsafe {
        let mut header: *const cmsghdr = libc::CMSG_FIRSTHDR(message);
        let end = (*message).msg_control as usize + (*message).msg_controllen;
        while !header.is_null() {
            let empty = libc::CMSG_LEN(0) as usize;
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                // A header may state more than there is; the kernel refuses it.
                let len = (*header).cmsg_len.min(end - header as usize);
                let count = len.saturating_sub(empty) / size_of::<c_int>();
                let first = libc::CMSG_DATA(header).cast::<c_int>();
                (0..count).for_each(|at| then(first.add(at)));
            }
            if (*header).cmsg_len < empty {
                return;
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

/// A message whose connections are sealed, so that only a program with the filter can use them.
pub struct Sealed {
    header: msghdr,
    /// The control data of `header`, in words that are aligned as it requires.
    _control: Vec<usize>,
    seals: Vec<c_int>,
}

impl Sealed {
    /// The message to send.
    pub fn header(&self) -> *const msghdr {
        &raw const self.header
    }

    /// A copy of a message.
    ///
    /// # Safety
    /// The header must be valid, its control data readable for the length that it states.
    unsafe fn of(message: *const msghdr) -> Self {
        // SAFETY: by the caller's contract the header is valid.
        let mut header = unsafe { message.read_unaligned() };
        let len = header.msg_controllen;
        let mut control = vec![0usize; len.div_ceil(size_of::<usize>())];
        // SAFETY: by the caller's contract the control data has `len` readable bytes, and the copy has room
        // for them.
        unsafe {
            core::ptr::copy_nonoverlapping(header.msg_control.cast::<u8>(), control.as_mut_ptr().cast(), len)
        };
        // The words stay where they are when the value moves.
        header.msg_control = control.as_mut_ptr().cast();
        let mut sealed = Sealed { header, _control: control, seals: Vec::new() };
        sealed.seal();
        sealed
    }

    /// Replaces connections by their seals. If one cannot be sealed, its entry becomes a closed descriptor,
    /// so that the kernel refuses the message (EBADF).
    fn seal(&mut self) {
        let seals = &mut self.seals;
        let replace = |at: *mut c_int| {
            // SAFETY: `at` lies within the copied control data.
            let fd = unsafe { at.read_unaligned() };
            if !matches!(fdtable::entry(fd), Entry::Carried(_)) {
                return;
            }
            let seal = seal::of(fd).unwrap_or(-1);
            seals.push(seal);
            // SAFETY: as above.
            unsafe { at.write_unaligned(seal) };
        };
        // SAFETY: header and control data are this value's own.
        unsafe { each_place(&raw const self.header, replace) };
    }
}

impl Drop for Sealed {
    fn drop(&mut self) {
        self.seals.iter().copied().for_each(sys::close);
    }
}

/// Called before a message is sent. Hands over its accelerated connections, so that another process can use
/// the descriptors. `None`: the message is sent unchanged.
///
/// # Safety
/// As for sendmsg: the header must be null or valid.
pub unsafe fn outgoing(message: *const msghdr) -> Option<Sealed> {
    // SAFETY: by the caller's contract `message` is null or names buffers that are lent for the call.
    if is_unmappable(message) || unsafe { (*message).msg_controllen } == 0 || fdtable::highest() <= 0 {
        return None;
    }
    // SAFETY: as above.
    if is_unmappable(unsafe { (*message).msg_control }) {
        return None;
    }
    let mut any = false;
    // SAFETY: as above.
    unsafe {
        each_descriptor(message, |fd| {
            handover::leave(Selection::Of(fd));
            any |= handover::is_carried(fd);
        });
        any.then(|| Sealed::of(message))
    }
}

/// Called after a message was received. Adopts descriptors of accelerated sockets.
///
/// # Safety
/// As for recvmsg after it succeeded.
pub unsafe fn incoming(message: *const msghdr) {
    // SAFETY: by the caller's contract `message` is null or names buffers that are lent for the call.
    if message.is_null() || unsafe { (*message).msg_controllen } == 0 {
        return;
    }
    // SAFETY: as above.
    unsafe { each_descriptor(message, inherit::adopt) };
}
