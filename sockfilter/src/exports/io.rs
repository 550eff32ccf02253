//! Reading and writing, in all variants but those of several messages (`batches`).

use libc::{c_int, c_void, iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};

use crate::fdtable::{self, Entry};
use crate::memory::is_unmappable;
use crate::ops::io;
use crate::ops::rights::Sealed;
use crate::ops::{c_result, carried_io, ending, rights, sockets, zerocopy};
use crate::{real, sys};

/// One buffer as a list.
fn part(buffer: *const c_void, len: size_t) -> iovec {
    iovec { iov_base: buffer.cast_mut(), iov_len: len }
}

/// MSG_FASTOPEN: an unconnected socket is connected first. Returns the remaining flags, or the result of the
/// call.
unsafe fn opened(
    fd: c_int,
    flags: c_int,
    address: *const sockaddr,
    len: socklen_t,
) -> Result<c_int, ssize_t> {
    if flags & libc::MSG_FASTOPEN == 0 || fdtable::entry(fd) == Entry::Kernel {
        return Ok(flags);
    }
    // SAFETY: by the caller's contract `address` is readable for `len` bytes.
    match unsafe { sockets::connect(fd, address, len, flags & libc::MSG_DONTWAIT != 0) } {
        // The kernel's own function connects.
        None => Ok(flags),
        Some(Ok(_)) => Ok(flags & !libc::MSG_FASTOPEN),
        Some(Err(errno)) => Err(c_result(Err(errno))),
    }
}

/// Like [`opened`], with the address of a message.
pub(super) unsafe fn opened_by(fd: c_int, flags: c_int, message: *const msghdr) -> Result<c_int, ssize_t> {
    if flags & libc::MSG_FASTOPEN == 0 || is_unmappable(message) {
        return Ok(flags);
    }
    // SAFETY: by the caller's contract `message` is null or names buffers that are lent for the call.
    unsafe { opened(fd, flags, (*message).msg_name.cast(), (*message).msg_namelen) }
}

/// A receive of one buffer on an accelerated connection, or on a carried one with flags that the kernel would
/// treat otherwise.
unsafe fn receive_one(fd: c_int, into: *mut c_void, len: size_t, flags: c_int) -> Option<ssize_t> {
    if fdtable::is_ours(fd)
        // SAFETY: by the caller's contract `into` is writable for `len` bytes.
        && let Some(received) = unsafe { io::receive(fd, &[part(into, len)], flags) }
    {
        return Some(c_result(received));
    }
    // The agent may have taken it over since the call began.
    carried_io::receive(fd, len, flags)
}

/// Like [`receive_one`], for a send.
unsafe fn send_one(fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> Option<ssize_t> {
    // SAFETY: by the caller's contract `from` is readable for `len` bytes.
    unsafe {
        if fdtable::is_ours(fd)
            && let Some(sent) = io::send(fd, &[part(from, len)], flags)
        {
            return Some(c_result(sent));
        }
        carried_io::send(fd, from, len, flags)
    }
}

/// read(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn read(fd: c_int, into: *mut c_void, len: size_t) -> ssize_t {
    if len == 0 && fdtable::is_ours(fd) {
        return 0;
    }
    // SAFETY: by the caller's contract `into` is writable for `len` bytes.
    unsafe {
        receive_one(fd, into, len, 0)
            .unwrap_or_else(|| ending::or_reset(fd, real::read(fd, into, len), len > 0))
    }
}

/// read(2) with the buffer's size checked.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __read_chk(fd: c_int, into: *mut c_void, len: size_t, room: size_t) -> ssize_t {
    if len > room {
        // SAFETY: the arguments are the caller's; the C library reports the error and ends the program.
        return unsafe { real::__read_chk(fd, into, len, room) };
    }
    // SAFETY: by the caller's contract `into` is writable for `len` bytes.
    unsafe {
        receive_one(fd, into, len, 0)
            .unwrap_or_else(|| ending::or_reset(fd, real::__read_chk(fd, into, len, room), len > 0))
    }
}

/// recv(2)
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recv(fd: c_int, into: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: by the caller's contract `into` is writable for `len` bytes.
    unsafe {
        receive_one(fd, into, len, flags)
            .unwrap_or_else(|| ending::or_reset(fd, real::recv(fd, into, len, flags), len > 0))
    }
}

/// recv(2) with the buffer's size checked.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __recv_chk(
    fd: c_int,
    into: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    if len > room {
        // SAFETY: the arguments are the caller's; the C library reports the error and ends the program.
        return unsafe { real::__recv_chk(fd, into, len, room, flags) };
    }
    // SAFETY: by the caller's contract `into` is writable for `len` bytes.
    unsafe {
        receive_one(fd, into, len, flags)
            .unwrap_or_else(|| ending::or_reset(fd, real::__recv_chk(fd, into, len, room, flags), len > 0))
    }
}

/// A stream socket returns no sender's address with the data: only a length of 0 is stored.
unsafe fn no_address(result: ssize_t, address: *mut sockaddr, len: *mut socklen_t) -> ssize_t {
    if result < 0 || address.is_null() {
        return result;
    }
    if is_unmappable(len) {
        return c_result(Err(libc::EFAULT));
    }
    // SAFETY: by the caller's contract `len` is readable and writable.
    unsafe {
        if len.read_unaligned() > c_int::MAX as socklen_t {
            return c_result(Err(libc::EINVAL));
        }
        len.write_unaligned(0);
    }
    result
}

/// A receive of one buffer on an accelerated or carried connection by a call that returns the sender's
/// address.
unsafe fn receive_from(
    fd: c_int,
    into: *mut c_void,
    len: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
) -> Option<ssize_t> {
    // SAFETY: by the caller's contract `into` is writable for `len` bytes and `address` is null or writable
    // for `*address_len` bytes.
    unsafe {
        let received = match receive_one(fd, into, len, flags) {
            Some(received) => received,
            // The agent's socket may have a name, which is not the peer's.
            None if carried_io::concerns(fd) => {
                ending::or_reset(fd, real::recv(fd, into, len, flags), len > 0)
            }
            None => return None,
        };
        Some(no_address(received, address, address_len))
    }
}

/// recvfrom(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn recvfrom(
    fd: c_int,
    into: *mut c_void,
    len: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
) -> ssize_t {
    // SAFETY: by the caller's contract `into` is writable for `len` bytes and `address` is null or writable
    // for `*address_len` bytes.
    unsafe {
        receive_from(fd, into, len, flags, address, address_len)
            .unwrap_or_else(|| real::recvfrom(fd, into, len, flags, address, address_len))
    }
}

/// recvfrom(2) with the buffer's size checked.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    into: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
) -> ssize_t {
    // SAFETY: by the caller's contract `into` is writable for `len` bytes and `address` is null or writable
    // for `*address_len` bytes; the C library reports a buffer that is too small.
    unsafe {
        let ours = if len > room { None } else { receive_from(fd, into, len, flags, address, address_len) };
        ours.unwrap_or_else(|| real::__recvfrom_chk(fd, into, len, room, flags, address, address_len))
    }
}

/// The buffers of a message header.
unsafe fn message_parts<'a>(message: *const msghdr) -> Result<&'a [iovec], sys::Errno> {
    // SAFETY: by the caller's contract `message` is null or names buffers that are lent for the call.
    unsafe {
        if (*message).msg_iovlen > libc::UIO_MAXIOV as usize {
            return Err(libc::EMSGSIZE);
        }
        io::iovecs((*message).msg_iov, (*message).msg_iovlen)
    }
}

/// Whether a list of buffers that the kernel has read has room for any byte.
unsafe fn any_room(parts: *const iovec, count: usize) -> bool {
    // SAFETY: by the caller's contract `parts` has `count` readable entries.
    (0..count).any(|at| unsafe { (*parts.add(at)).iov_len } > 0)
}

/// Whether the filter serves messages of a descriptor: an accelerated or carried connection's.
pub(super) fn has_messages(fd: c_int) -> bool {
    matches!(fdtable::entry(fd), Entry::Ours(_) | Entry::Carried(_))
}

/// recvmsg on an accelerated or carried connection.
pub(super) unsafe fn receive_message(fd: c_int, message: *mut msghdr, flags: c_int) -> Option<ssize_t> {
    if !has_messages(fd) || is_unmappable(message) {
        return None;
    }
    // SAFETY: by the caller's contract `message` is null or names buffers that are lent for the call.
    unsafe {
        if flags & libc::MSG_ERRQUEUE != 0 {
            return zerocopy::receive_message(fd, message, flags).map(c_result);
        }
        let parts = match message_parts(message) {
            Ok(parts) => parts,
            Err(errno) => return Some(c_result(Err(errno))),
        };
        if !carried_io::concerns(fd)
            && let Some(result) = io::receive(fd, parts, flags)
        {
            if result.is_ok() {
                (*message).msg_namelen = 0;
                (*message).msg_controllen = 0;
                (*message).msg_flags = flags & libc::MSG_CMSG_CLOEXEC;
            }
            return Some(c_result(result));
        }
        // The agent may have taken it over since the call began.
        let wanted = parts.iter().map(|p| p.iov_len).sum();
        carried_io::concerns(fd).then(|| carried_io::receive_message(fd, message, flags, wanted))
    }
}

/// sendmsg on an accelerated or carried connection.
pub(super) unsafe fn send_message(fd: c_int, message: *const msghdr, flags: c_int) -> Option<ssize_t> {
    if !has_messages(fd) || is_unmappable(message) {
        return None;
    }
    // SAFETY: by the caller's contract `message` is null or names buffers that are lent for the call.
    unsafe {
        if !carried_io::concerns(fd) {
            match message_parts(message) {
                Ok(parts) => {
                    if let Some(sent) = io::send(fd, parts, flags) {
                        return Some(c_result(sent));
                    }
                }
                Err(errno) => return Some(c_result(Err(errno))),
            }
        }
        // The agent may have taken it over since the call began.
        carried_io::concerns(fd).then(|| carried_io::send_message(fd, message, flags))
    }
}

/// recvmsg(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: by the caller's contract `message` is null or names buffers that are lent for the call.
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
pub(super) unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: by the caller's contract `message` is null or names buffers that are lent for the call.
    let flags = match unsafe { opened_by(fd, flags, message) } {
        Ok(flags) => flags,
        Err(result) => return result,
    };
    // SAFETY: by the caller's contract `message` is null or names buffers that are lent for the call.
    unsafe {
        send_message(fd, message, flags).unwrap_or_else(|| {
            let sealed = rights::outgoing(message);
            real::sendmsg(fd, sealed.as_ref().map_or(message, Sealed::header), flags)
        })
    }
}

/// io::receive or io::send.
pub type Move = unsafe fn(c_int, &[iovec], c_int) -> Option<Result<usize, sys::Errno>>;

/// A list of buffers on an accelerated connection.
///
/// # Safety
/// As readv and writev.
pub unsafe fn list(
    fd: c_int,
    parts: *const iovec,
    count: c_int,
    flags: c_int,
    moves: Move,
) -> Option<ssize_t> {
    if !fdtable::is_ours(fd) {
        return None;
    }
    // SAFETY: by the caller's contract `parts` has `count` entries, each naming memory that is lent for the
    // call.
    match unsafe { io::iovecs(parts, usize::try_from(count).unwrap_or(usize::MAX)) } {
        Ok(list) if list.iter().all(|p| p.iov_len == 0) => Some(0),
        // SAFETY: by the caller's contract `parts` has `count` entries, each naming memory that is lent for
        // the call.
        Ok(list) => unsafe { moves(fd, list, flags) }.map(c_result),
        Err(errno) => Some(c_result(Err(errno))),
    }
}

/// readv(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: by the caller's contract `parts` has `count` entries, each naming memory that is lent for the
    // call.
    unsafe {
        list(fd, parts, count, 0, io::receive).unwrap_or_else(|| {
            let received = real::readv(fd, parts, count);
            ending::or_reset(fd, received, received == 0 && any_room(parts, count as usize))
        })
    }
}

/// writev(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: by the caller's contract `parts` has `count` entries, each naming memory that is lent for the
    // call.
    unsafe { list(fd, parts, count, 0, io::send).unwrap_or_else(|| real::writev(fd, parts, count)) }
}

/// write(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: by the caller's contract `from` is readable for `len` bytes.
    unsafe { send_one(fd, from, len, 0).unwrap_or_else(|| real::write(fd, from, len)) }
}

/// send(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn send(
    fd: c_int,
    from: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: by the caller's contract `from` is readable for `len` bytes.
    unsafe { send_one(fd, from, len, flags).unwrap_or_else(|| real::send(fd, from, len, flags)) }
}

/// sendto(2); a connected stream socket ignores the address, unless MSG_FASTOPEN requests a connection.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    from: *const c_void,
    len: size_t,
    flags: c_int,
    address: *const sockaddr,
    address_len: socklen_t,
) -> ssize_t {
    // SAFETY: by the caller's contract `from` is readable for `len` bytes and `address` is readable for
    // `address_len` bytes.
    let flags = match unsafe { opened(fd, flags, address, address_len) } {
        Ok(flags) => flags,
        Err(result) => return result,
    };
    // SAFETY: by the caller's contract `from` is readable for `len` bytes and `address` is readable for
    // `address_len` bytes.
    unsafe {
        send_one(fd, from, len, flags).unwrap_or_else(|| {
            // A Unix socket refuses the address that TCP ignores.
            if carried_io::concerns(fd) {
                return real::send(fd, from, len, flags);
            }
            real::sendto(fd, from, len, flags, address, address_len)
        })
    }
}
