//! Receiving and sending several messages in one call.

use libc::{c_int, c_uint, mmsghdr, msghdr, ssize_t, timespec};

use super::io::{has_messages, opened_by, receive_message, send_message, sendmsg};
use super::poll;
use crate::memory::is_unmappable;
use crate::ops::{c_int_result, rights};
use crate::{real, sys};

/// Processes messages one after another until `one` fails or `enough` returns `true`. Only a failure of the
/// first one is returned as the call's failure.
unsafe fn each(
    messages: *mut mmsghdr,
    count: c_uint,
    mut one: impl FnMut(*mut msghdr, bool) -> Option<ssize_t>,
    mut enough: impl FnMut() -> bool,
) -> Option<c_int> {
    if is_unmappable(messages) && count > 0 {
        return None;
    }
    for at in 0..count as usize {
        // SAFETY: by the caller's contract `messages` has `count` writable entries.
        let message = unsafe { &mut *messages.add(at) };
        let done = one(&raw mut message.msg_hdr, at == 0)?;
        if done < 0 {
            return Some(if at == 0 { -1 } else { at as c_int });
        }
        message.msg_len = done as c_uint;
        if enough() {
            return Some(at as c_int + 1);
        }
    }
    Some(count as c_int)
}

/// recvmmsg(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    if has_messages(fd) {
        // SAFETY: by the caller's contract `messages` has `count` entries, each with buffers that are lent
        // for the call and `timeout` is null or points to a time.
        let limit = match unsafe { poll::of_timespec(timeout) } {
            Ok(limit) => limit.map(|ns| sys::monotonic_nanos().saturating_add(ns)),
            Err(errno) => return c_int_result(Err(errno)),
        };
        let one = |message: *mut msghdr, first: bool| {
            let for_one = flags & libc::MSG_WAITFORONE != 0 && !first;
            let wait = if for_one { libc::MSG_DONTWAIT } else { 0 };
            // SAFETY: by the caller's contract `messages` has `count` entries, each with buffers that are
            // lent for the call and `timeout` is null or points to a time.
            unsafe { receive_message(fd, message, (flags & !libc::MSG_WAITFORONE) | wait) }
        };
        // The timeout is checked between messages only (recvmmsg(2), BUGS).
        let enough = || limit.is_some_and(|at| sys::monotonic_nanos() >= at);
        // SAFETY: by the caller's contract `messages` has `count` entries, each with buffers that are lent
        // for the call and `timeout` is null or points to a time.
        if let Some(result) = unsafe { each(messages, count, one, enough) } {
            return result;
        }
    }
    // SAFETY: by the caller's contract `messages` has `count` entries, each with buffers that are lent for
    // the call and `timeout` is null or points to a time.
    let received = unsafe { real::recvmmsg(fd, messages, count, flags, timeout) };
    for at in 0..received.max(0) as usize {
        // SAFETY: the kernel filled in so many headers.
        unsafe { rights::incoming(&raw const (*messages.add(at)).msg_hdr) };
    }
    received
}

/// sendmmsg(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    let first: *const msghdr = if count == 0 { core::ptr::null() } else { messages.cast() };
    // SAFETY: by the caller's contract `messages` has `count` entries, each with buffers that are lent for
    // the call; an mmsghdr begins with its msghdr.
    let flags = match unsafe { opened_by(fd, flags, first) } {
        Ok(flags) => flags,
        Err(result) => return result as c_int,
    };
    if has_messages(fd) {
        // SAFETY: by the caller's contract `messages` has `count` entries, each with buffers that are lent
        // for the call.
        let one = |message: *mut msghdr, _| unsafe { send_message(fd, message, flags) };
        // SAFETY: by the caller's contract `messages` has `count` entries, each with buffers that are lent
        // for the call.
        if let Some(result) = unsafe { each(messages, count.min(libc::UIO_MAXIOV as c_uint), one, || false) }
        {
            return result;
        }
    }
    let count_known =
        if is_unmappable(messages) { 0 } else { count.min(libc::UIO_MAXIOV as c_uint) as usize };
    // SAFETY: by the caller's contract `messages` has `count` entries, each with buffers that are lent for
    // the call.
    let has_rights =
        |at: usize| unsafe { rights::outgoing(&raw const (*messages.add(at)).msg_hdr) }.is_some();
    if (0..count_known).any(has_rights) {
        // One by one, each with its own seals. SAFETY: as above.
        let one = |message: *mut msghdr, _| Some(unsafe { sendmsg(fd, message, flags) });
        // SAFETY: as above.
        return unsafe { each(messages, count.min(libc::UIO_MAXIOV as c_uint), one, || false) }.unwrap_or(-1);
    }
    // SAFETY: by the caller's contract `messages` has `count` entries, each with buffers that are lent for
    // the call.
    unsafe { real::sendmmsg(fd, messages, count, flags) }
}
