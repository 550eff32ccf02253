//! Sends and receives on connections that the agent carries, where their Unix socket differs from TCP: urgent
//! data (MSG_OOB) would be lost there, MSG_TRUNC would copy the bytes, MSG_ERRQUEUE would read them,
//! MSG_ZEROCOPY would never be reported, and an address or descriptors in a message would have a meaning. All
//! other calls are the kernel's.

use core::mem::MaybeUninit;
use core::ptr::null_mut;

use libc::{c_int, c_void, msghdr, ssize_t};

use super::io::FILE_CHUNK;
use super::{c_result, ending, zerocopy};
use crate::fdtable::{self, Entry};
use crate::{real, sys};

/// Whether the agent carries the connection of a descriptor.
#[inline]
pub fn concerns(fd: c_int) -> bool {
    matches!(fdtable::entry(fd), Entry::Carried(_))
}

/// recv and its variants with flags that a Unix socket treats otherwise; `None`: the kernel has to do it.
/// `wanted`: number of bytes that the program requested.
#[inline]
pub fn receive(fd: c_int, wanted: usize, flags: c_int) -> Option<ssize_t> {
    const OTHERWISE: c_int = libc::MSG_OOB | libc::MSG_ERRQUEUE | libc::MSG_TRUNC;
    if flags & OTHERWISE == 0 || !concerns(fd) {
        return None;
    }
    Some(if flags & libc::MSG_ERRQUEUE != 0 {
        c_result(zerocopy::receive(fd, flags).unwrap_or(Err(libc::EAGAIN)))
    } else if flags & libc::MSG_OOB != 0 {
        c_result(Err(libc::EINVAL))
    } else {
        let flags = flags & !libc::MSG_TRUNC;
        let received =
            if flags & libc::MSG_PEEK != 0 { count(fd, wanted, flags) } else { discard(fd, wanted, flags) };
        ending::or_reset(fd, received, wanted > 0)
    })
}

/// MSG_TRUNC: the bytes are removed and not copied.
fn discard(fd: c_int, wanted: usize, flags: c_int) -> ssize_t {
    let errno = sys::errno();
    let mut chunk = MaybeUninit::<[u8; FILE_CHUNK]>::uninit();
    let mut done = 0;
    loop {
        let asked = (wanted - done).min(FILE_CHUNK);
        let wait = if done > 0 && flags & libc::MSG_WAITALL == 0 { libc::MSG_DONTWAIT } else { 0 };
        // SAFETY: the chunk is writable for `asked` bytes.
        let received = unsafe { real::recv(fd, chunk.as_mut_ptr().cast(), asked, flags | wait) };
        let Some(len @ 1..) = usize::try_from(received).ok() else {
            if done == 0 {
                return received;
            }
            // The next call reports the error.
            sys::set_errno(errno);
            return done as ssize_t;
        };
        done += len;
        if done == wanted || len < asked {
            return done as ssize_t;
        }
    }
}

/// MSG_PEEK and MSG_TRUNC: the number of bytes that could be read, of which none is copied.
fn count(fd: c_int, wanted: usize, flags: c_int) -> ssize_t {
    let (mut byte, mut queued) = (0u8, 0 as c_int);
    // SAFETY: `byte` is one writable byte.
    let received = unsafe { real::recv(fd, (&raw mut byte).cast(), wanted.min(1), flags) };
    if received <= 0 {
        return received;
    }
    // SAFETY: FIONREAD takes a pointer to a writable int.
    let known = unsafe { sys::syscall!(libc::SYS_ioctl, fd, libc::FIONREAD, &raw mut queued) };
    if known.is_ok() { wanted.min(queued.max(1) as usize) as ssize_t } else { received }
}

/// send and its variants with flags that a Unix socket treats otherwise: the transport has no second stream
/// for urgent data. `None`: the kernel has to do it.
///
/// # Safety
/// `from` must have `len` readable bytes.
#[inline]
pub unsafe fn send(fd: c_int, from: *const c_void, len: usize, flags: c_int) -> Option<ssize_t> {
    if flags & (libc::MSG_OOB | libc::MSG_ZEROCOPY) == 0 || !concerns(fd) {
        return None;
    }
    if flags & libc::MSG_OOB != 0 {
        return Some(c_result(Err(libc::EOPNOTSUPP)));
    }
    // SAFETY: by the caller's contract `from` is readable for `len` bytes.
    Some(zerocopy::counted(fd, || unsafe { real::send(fd, from, len, flags & !libc::MSG_ZEROCOPY) }))
}

/// recvmsg on a carried connection. The agent's socket may have a name, which is not the peer's.
///
/// # Safety
/// As recvmsg; the header must be valid.
pub unsafe fn receive_message(fd: c_int, message: *mut msghdr, flags: c_int, wanted: usize) -> ssize_t {
    // SAFETY: by the caller's contract the header and its buffers are lent for the call.
    unsafe {
        if let Some(received) = receive(fd, wanted, flags) {
            if received >= 0 {
                ((*message).msg_namelen, (*message).msg_controllen) = (0, 0);
                (*message).msg_flags = flags & libc::MSG_CMSG_CLOEXEC;
            }
            return received;
        }
        let name = core::mem::replace(&mut (*message).msg_name, null_mut());
        let received = real::recvmsg(fd, message, flags);
        (*message).msg_name = name;
        if received >= 0 {
            (*message).msg_namelen = 0;
        }
        ending::or_reset(fd, received, wanted > 0)
    }
}

/// sendmsg on a carried connection: the address and the control data, which TCP ignores, are left out.
///
/// # Safety
/// As sendmsg; the header must be valid.
pub unsafe fn send_message(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    if flags & libc::MSG_OOB != 0 {
        return c_result(Err(libc::EOPNOTSUPP));
    }
    // SAFETY: by the caller's contract the header is readable.
    let mut plain = unsafe { message.read_unaligned() };
    (plain.msg_name, plain.msg_namelen) = (null_mut::<c_void>(), 0);
    (plain.msg_control, plain.msg_controllen) = (null_mut::<c_void>(), 0);
    let copying = flags & !libc::MSG_ZEROCOPY;
    // SAFETY: the buffers are lent for the call by the caller's contract.
    let send = || unsafe { real::sendmsg(fd, &raw const plain, copying) };
    if copying == flags { send() } else { zerocopy::counted(fd, send) }
}
