//! Reading and writing, with all their spellings.

use core::slice;

use libc::{
    c_int, c_uint, c_void, iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec,
};

use crate::fdtable;
use crate::ops::io;
use crate::ops::names::{self, End};
use crate::ops::{c_int_result, c_result, rights};
use crate::{real, sys};

/// One buffer as a list.
fn part(buffer: *const c_void, len: size_t) -> iovec {
    iovec { iov_base: buffer.cast_mut(), iov_len: len }
}

/// A receive of one buffer on a descriptor of ours.
unsafe fn receive_one(fd: c_int, into: *mut c_void, len: size_t, flags: c_int) -> Option<ssize_t> {
    if !fdtable::is_ours(fd) {
        return None;
    }
    // SAFETY: the caller's promise.
    unsafe { io::receive(fd, &[part(into, len)], flags) }.map(c_result)
}

/// A send of one buffer on a descriptor of ours.
unsafe fn send_one(fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> Option<ssize_t> {
    if !fdtable::is_ours(fd) {
        return None;
    }
    // SAFETY: the caller's promise.
    unsafe { io::send(fd, &[part(from, len)], flags) }.map(c_result)
}

/// read(2)
#[unsafe(no_mangle)]
unsafe extern "C" fn read(fd: c_int, into: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe { receive_one(fd, into, len, 0).unwrap_or_else(|| real::read(fd, into, len)) }
}

/// read(2) with the buffer's size checked.
#[unsafe(no_mangle)]
unsafe extern "C" fn __read_chk(fd: c_int, into: *mut c_void, len: size_t, room: size_t) -> ssize_t {
    if len > room {
        // SAFETY: the C library complains and ends the program.
        return unsafe { real::__read_chk(fd, into, len, room) };
    }
    // SAFETY: the caller's promise.
    unsafe { receive_one(fd, into, len, 0).unwrap_or_else(|| real::__read_chk(fd, into, len, room)) }
}

/// recv(2)
#[unsafe(no_mangle)]
unsafe extern "C" fn recv(fd: c_int, into: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe { receive_one(fd, into, len, flags).unwrap_or_else(|| real::recv(fd, into, len, flags)) }
}

/// recv(2) with the buffer's size checked.
#[unsafe(no_mangle)]
unsafe extern "C" fn __recv_chk(
    fd: c_int,
    into: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    if len > room {
        // SAFETY: the C library complains and ends the program.
        return unsafe { real::__recv_chk(fd, into, len, room, flags) };
    }
    // SAFETY: the caller's promise.
    unsafe {
        receive_one(fd, into, len, flags).unwrap_or_else(|| real::__recv_chk(fd, into, len, room, flags))
    }
}

/// A stream socket tells no sender's address with the data.
unsafe fn no_address(result: Option<ssize_t>, len: *mut socklen_t) -> Option<ssize_t> {
    if result.is_some() && !len.is_null() {
        // SAFETY: the caller's promise.
        unsafe { *len = 0 };
    }
    result
}

/// recvfrom(2)
#[unsafe(no_mangle)]
unsafe extern "C" fn recvfrom(
    fd: c_int,
    into: *mut c_void,
    len: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe {
        no_address(receive_one(fd, into, len, flags), address_len)
            .unwrap_or_else(|| real::recvfrom(fd, into, len, flags, address, address_len))
    }
}

/// recvfrom(2) with the buffer's size checked.
#[unsafe(no_mangle)]
unsafe extern "C" fn __recvfrom_chk(
    fd: c_int,
    into: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
) -> ssize_t {
    // SAFETY: the caller's promise; a buffer that is too small is the C library's to complain of.
    unsafe {
        let ours = if len > room { None } else { no_address(receive_one(fd, into, len, flags), address_len) };
        ours.unwrap_or_else(|| real::__recvfrom_chk(fd, into, len, room, flags, address, address_len))
    }
}

/// The buffers of a message header.
unsafe fn message_parts<'a>(message: *const msghdr) -> Result<&'a [iovec], sys::Errno> {
    // SAFETY: the caller's promise.
    unsafe { io::iovecs((*message).msg_iov, (*message).msg_iovlen) }
}

/// A recvmsg on a descriptor of ours.
unsafe fn receive_message(fd: c_int, message: *mut msghdr, flags: c_int) -> Option<ssize_t> {
    if !fdtable::is_ours(fd) || message.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    unsafe {
        let parts = match message_parts(message) {
            Ok(parts) => parts,
            Err(errno) => return Some(c_result(Err(errno))),
        };
        let result = io::receive(fd, parts, flags)?;
        if result.is_ok() {
            (*message).msg_namelen = 0;
            (*message).msg_controllen = 0;
            (*message).msg_flags = 0;
        }
        Some(c_result(result))
    }
}

/// A sendmsg on a descriptor of ours.
unsafe fn send_message(fd: c_int, message: *const msghdr, flags: c_int) -> Option<ssize_t> {
    if !fdtable::is_ours(fd) || message.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    unsafe {
        match message_parts(message) {
            Ok(parts) => io::send(fd, parts, flags).map(c_result),
            Err(errno) => Some(c_result(Err(errno))),
        }
    }
}

/// recvmsg(2)
#[unsafe(no_mangle)]
unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(result) = receive_message(fd, message, flags) {
            return result;
        }
        let result = real::recvmsg(fd, message, flags);
        if result >= 0 {
            rights::incoming(message);
        }
        result
    }
}

/// sendmsg(2)
#[unsafe(no_mangle)]
unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe {
        send_message(fd, message, flags).unwrap_or_else(|| {
            rights::outgoing(message);
            real::sendmsg(fd, message, flags)
        })
    }
}

/// One after another until one does nothing; the first one's failure is the call's.
unsafe fn each(
    messages: *mut mmsghdr,
    count: c_uint,
    mut one: impl FnMut(*mut msghdr, bool) -> Option<ssize_t>,
) -> Option<c_int> {
    if messages.is_null() {
        return None;
    }
    // SAFETY: the caller's promise: `count` entries are writable.
    let messages = unsafe { slice::from_raw_parts_mut(messages, count as usize) };
    for (at, message) in messages.iter_mut().enumerate() {
        let done = one(&raw mut message.msg_hdr, at == 0)?;
        if done < 0 {
            return Some(if at == 0 { -1 } else { at as c_int });
        }
        message.msg_len = done as c_uint;
        if done == 0 {
            return Some(at as c_int + 1);
        }
    }
    Some(count as c_int)
}

/// recvmmsg(2)
#[unsafe(no_mangle)]
unsafe extern "C" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    if fdtable::is_ours(fd) {
        let one = |message: *mut msghdr, first: bool| {
            let wait = if first { 0 } else { libc::MSG_DONTWAIT };
            // SAFETY: the caller's promise.
            unsafe { receive_message(fd, message, (flags & !libc::MSG_WAITFORONE) | wait) }
        };
        // SAFETY: the caller's promise.
        if let Some(result) = unsafe { each(messages, count, one) } {
            return result;
        }
    }
    // SAFETY: the caller's promise.
    let received = unsafe { real::recvmmsg(fd, messages, count, flags, timeout) };
    for at in 0..received.max(0) as usize {
        // SAFETY: the kernel filled in so many headers.
        unsafe { rights::incoming(&raw const (*messages.add(at)).msg_hdr) };
    }
    received
}

/// sendmmsg(2)
#[unsafe(no_mangle)]
unsafe extern "C" fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    if fdtable::is_ours(fd) {
        // SAFETY: the caller's promise.
        let one = |message: *mut msghdr, _| unsafe { send_message(fd, message, flags) };
        // SAFETY: the caller's promise.
        if let Some(result) = unsafe { each(messages, count, one) } {
            return result;
        }
    }
    for at in 0..if messages.is_null() { 0 } else { count as usize } {
        // SAFETY: the caller's promise.
        unsafe { rights::outgoing(&raw const (*messages.add(at)).msg_hdr) };
    }
    // SAFETY: the caller's promise.
    unsafe { real::sendmmsg(fd, messages, count, flags) }
}

/// readv(2)
#[unsafe(no_mangle)]
unsafe extern "C" fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    if fdtable::is_ours(fd) {
        // SAFETY: the caller's promise.
        let result = match unsafe { io::iovecs(parts, count.max(0) as usize) } {
            // SAFETY: the caller's promise.
            Ok(list) => unsafe { io::receive(fd, list, 0) },
            Err(errno) => Some(Err(errno)),
        };
        if let Some(result) = result {
            return c_result(result);
        }
    }
    // SAFETY: the caller's promise.
    unsafe { real::readv(fd, parts, count) }
}

/// writev(2)
#[unsafe(no_mangle)]
unsafe extern "C" fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    if fdtable::is_ours(fd) {
        // SAFETY: the caller's promise.
        let result = match unsafe { io::iovecs(parts, count.max(0) as usize) } {
            // SAFETY: the caller's promise.
            Ok(list) => unsafe { io::send(fd, list, 0) },
            Err(errno) => Some(Err(errno)),
        };
        if let Some(result) = result {
            return c_result(result);
        }
    }
    // SAFETY: the caller's promise.
    unsafe { real::writev(fd, parts, count) }
}

/// write(2)
#[unsafe(no_mangle)]
unsafe extern "C" fn write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe { send_one(fd, from, len, 0).unwrap_or_else(|| real::write(fd, from, len)) }
}

/// send(2)
#[unsafe(no_mangle)]
unsafe extern "C" fn send(fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe { send_one(fd, from, len, flags).unwrap_or_else(|| real::send(fd, from, len, flags)) }
}

/// sendto(2); a connected stream socket ignores the address.
#[unsafe(no_mangle)]
unsafe extern "C" fn sendto(
    fd: c_int,
    from: *const c_void,
    len: size_t,
    flags: c_int,
    address: *const sockaddr,
    address_len: socklen_t,
) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe {
        send_one(fd, from, len, flags)
            .unwrap_or_else(|| real::sendto(fd, from, len, flags, address, address_len))
    }
}

unsafe fn sendfile_any(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe {
        if fdtable::is_ours(from)
            && names::name(from, End::Local, core::ptr::null_mut(), core::ptr::null_mut()).is_some()
        {
            return c_result(Err(libc::EINVAL));
        }
        let ours = if fdtable::is_ours(to) { io::sendfile(to, from, offset, count) } else { None };
        ours.unwrap_or_else(|| real::sendfile(to, from, offset, count))
    }
}

/// sendfile(2)
#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe { sendfile_any(to, from, offset, count) }
}

/// sendfile(2) of programs with large file offsets: the same on a 64-bit system.
#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile64(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe { sendfile_any(to, from, offset, count) }
}

/// splice(2): accelerated sockets say EINVAL, upon which programs copy.
#[unsafe(no_mangle)]
unsafe extern "C" fn splice(
    from: c_int,
    from_offset: *mut i64,
    to: c_int,
    to_offset: *mut i64,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    if fdtable::is_ours(from) || fdtable::is_ours(to) {
        return c_int_result(Err(libc::EINVAL)) as ssize_t;
    }
    // SAFETY: the caller's promise.
    unsafe { real::splice(from, from_offset, to, to_offset, len, flags) }
}
