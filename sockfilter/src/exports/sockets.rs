//! Sockets: creation, names, options, connecting.

use libc::{c_int, c_void, sockaddr, socklen_t};

use crate::fdtable::{self, Entry};
use crate::memory::is_unmappable;
use crate::ops::names::{self, End};
use crate::ops::{
    self, c_int_result, carried, ending, lacking, listen as listening, options, sockets, tcp_info, zerocopy,
};
use crate::{real, sys};

/// socket(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: no pointers.
    let fd = unsafe { real::socket(domain, kind, protocol) };
    sockets::created(fd, domain, kind, protocol);
    fd
}

/// bind(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    // An accelerated connection is bound already, although its placeholder may not be.
    if fdtable::is_ours(fd) && options::is_connection(fd) {
        return c_int_result(Err(libc::EINVAL));
    }
    // SAFETY: by the caller's contract `address` is readable for `len` bytes.
    let result = unsafe { real::bind(fd, address, len) };
    if result == 0 || sys::errno() != libc::EADDRNOTAVAIL || fdtable::entry(fd) == Entry::Kernel {
        return result;
    }
    // SAFETY: by the caller's contract `address` is readable for `len` bytes.
    unsafe { ops::bind::again(fd, address, len) }.map_or(result, c_int_result)
}

/// listen(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn listen(fd: c_int, backlog: c_int) -> c_int {
    match fdtable::entry(fd) {
        // SAFETY: no pointers.
        Entry::Kernel => unsafe { real::listen(fd, backlog) },
        _ => match listening::listen(fd, backlog) {
            Some(result) => c_int_result(result),
            // SAFETY: no pointers.
            None => unsafe { real::listen(fd, backlog) },
        },
    }
}

/// accept(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn accept(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    if !fdtable::is_ours(fd) {
        if let Err(errno) = listening::external_listener(fd) {
            return c_int_result(Err(errno));
        }
        // SAFETY: by the caller's contract `address` is null or writable for `*len` bytes.
        return unsafe { real::accept(fd, address, len) };
    }
    // SAFETY: by the caller's contract `address` is null or writable for `*len` bytes.
    unsafe { sockets::accept(fd, address, len, 0) }
}

/// accept4(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn accept4(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    if !fdtable::is_ours(fd) {
        if let Err(errno) = listening::external_listener(fd) {
            return c_int_result(Err(errno));
        }
        // SAFETY: by the caller's contract `address` is null or writable for `*len` bytes.
        return unsafe { real::accept4(fd, address, len, flags) };
    }
    // SAFETY: by the caller's contract `address` is null or writable for `*len` bytes.
    unsafe { sockets::accept(fd, address, len, flags) }
}

/// connect(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    if fdtable::entry(fd) != Entry::Kernel {
        // SAFETY: by the caller's contract `address` is readable for `len` bytes.
        if let Some(result) = unsafe { sockets::connect(fd, address, len, false) } {
            return c_int_result(result);
        }
    }
    // SAFETY: by the caller's contract `address` is readable for `len` bytes.
    unsafe { real::connect(fd, address, len) }
}

/// shutdown(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn shutdown(fd: c_int, how: c_int) -> c_int {
    if !fdtable::is_ours(fd) {
        ending::before_shutdown(fd, how);
        // SAFETY: no pointers.
        return unsafe { real::shutdown(fd, how) };
    }
    sockets::shutdown(fd, how)
}

/// getsockname(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn getsockname(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    if fdtable::is_named_by_us(fd)
        // SAFETY: by the caller's contract `address` is null or writable for `*len` bytes.
        && let Some(result) = unsafe { names::name(fd, End::Local, address, len) }
    {
        return result;
    }
    // SAFETY: by the caller's contract `address` is null or writable for `*len` bytes.
    unsafe { real::getsockname(fd, address, len) }
}

/// getpeername(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn getpeername(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    if fdtable::is_named_by_us(fd)
        // SAFETY: by the caller's contract `address` is null or writable for `*len` bytes.
        && let Some(result) = unsafe { names::name(fd, End::Remote, address, len) }
    {
        return result;
    }
    // SAFETY: by the caller's contract `address` is null or writable for `*len` bytes.
    unsafe { real::getpeername(fd, address, len) }
}

/// Calls `call`, and repeats it if the connection was passed to the agent meanwhile because another thread
/// forked: the kernel may then have been called for either socket.
///
/// `is_final` returns whether a result comes from the connection itself and not from the kernel; such results
/// are not repeated.
fn settled(fd: c_int, is_final: impl FnOnce(c_int) -> bool, mut call: impl FnMut() -> c_int) -> c_int {
    let before = fdtable::entry(fd);
    let errno = sys::errno();
    let result = call();
    if !matches!(before, Entry::Ours(_))
        || !matches!(fdtable::entry(fd), Entry::Carried(_))
        || is_final(result)
    {
        return result;
    }
    sys::set_errno(errno);
    call()
}

/// getsockopt(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    // An error is returned once only, so it must not be queried again.
    let is_final = |result| match level {
        libc::SOL_SOCKET => name == libc::SO_ERROR,
        level => level == libc::IPPROTO_TCP && result == 0,
    };
    // SAFETY: by the caller's contract `value` is writable for `*len` bytes, and `len` for one length.
    settled(fd, is_final, || unsafe { get_option(fd, level, name, value, len) })
}

unsafe fn get_option(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int {
    let is_wrong = is_unmappable(value) || is_unmappable(len);
    if is_wrong && carried::keeps(level, name) && matches!(fdtable::entry(fd), Entry::Carried(_)) {
        return c_int_result(Err(libc::EFAULT));
    }
    if !is_unmappable(len) && lacking::is_filter_query(fd, level, name) {
        // SAFETY: by the caller's contract `len` is writable. The program attached no filter.
        unsafe { len.write_unaligned(0) };
        return 0;
    }
    if let Entry::Carried(index) = fdtable::entry(fd)
        && !is_wrong
        // SAFETY: by the caller's contract `value` is writable for `*len` bytes, and `len` for one length.
        && let Some(result) = unsafe { carried::get(index, level, name, value, len) }
    {
        return c_int_result(result);
    }
    if (level, name) == (libc::IPPROTO_TCP, libc::TCP_INFO)
        && fdtable::is_ours(fd)
        && !is_wrong
        // SAFETY: by the caller's contract `value` is writable for `*len` bytes, and `len` for one length.
        && let Some(Ok(_)) = unsafe { tcp_info::get(fd, value, len) }
    {
        return 0;
    }
    if fdtable::is_ours(fd)
        && !is_wrong
        && let Some(number) = options::socket_state(fd, level, name)
    {
        // SAFETY: by the caller's contract `value` is writable for `*len` bytes, and `len` for one length.
        if unsafe { len.read_unaligned() } > c_int::MAX as socklen_t {
            return c_int_result(Err(libc::EINVAL));
        }
        // SAFETY: by the caller's contract `value` is writable for `*len` bytes, and `len` for one length.
        unsafe { options::write_int(number, value, len) };
        return 0;
    }
    if fdtable::is_ours(fd) {
        options::inherit(fd);
    }
    // SAFETY: by the caller's contract `value` is writable for `*len` bytes, and `len` for one length.
    let result = unsafe { real::getsockopt(fd, level, name, value, len) };
    let is_info = (level, name) == (libc::IPPROTO_TCP, libc::TCP_INFO);
    // Sockets whose state no proxy has: listeners, and connections that are not established or have ended.
    if is_info
        && result == 0
        && fdtable::is_ours(fd)
        // SAFETY: the kernel has just written `*len` bytes to `value`.
        && unsafe { *len } > 0
        && let Some(state) = options::tcp_state(fd)
    {
        // SAFETY: as above. The state is the first byte of the answer.
        unsafe { value.cast::<u8>().write(state) };
    }
    result
}

/// setsockopt(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    // SAFETY: by the caller's contract `value` is readable for `len` bytes.
    settled(fd, |_| false, || unsafe { set_option(fd, level, name, value, len) })
}

unsafe fn set_option(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int {
    if (level, name) == (libc::IPPROTO_TCP, libc::TCP_CORK)
        // SAFETY: by the caller's contract `value` is readable for `len` bytes.
        && let Some(result) = unsafe { options::set_cork(fd, value, len) }
    {
        return c_int_result(result);
    }
    if fdtable::is_named_by_us(fd)
        // SAFETY: by the caller's contract `value` is readable for `len` bytes.
        && let Some(refused) = unsafe { lacking::refuse(fd, level, name, value, len) }
    {
        return c_int_result(refused);
    }
    if let Entry::Carried(index) = fdtable::entry(fd)
        && carried::keeps(level, name)
    {
        // SAFETY: by the caller's contract `value` is readable for `len` bytes.
        return c_int_result(unsafe { carried::set(fd, index, level, name, value, len) });
    }
    if fdtable::is_ours(fd) {
        options::inherit(fd);
    }
    // SAFETY: by the caller's contract `value` is readable for `len` bytes. The placeholder keeps every
    // option's value.
    let result = unsafe { real::setsockopt(fd, level, name, value, len) };
    if result == 0 && fdtable::is_ours(fd) {
        // SAFETY: the kernel has read `len` bytes of `value`.
        unsafe { options::option_set(fd, level, name, value, len) };
    }
    if let (0, libc::SOL_SOCKET, libc::SO_KEEPALIVE, Entry::Carried(index)) =
        (result, level, name, fdtable::entry(fd))
    {
        carried::keepalive_set(fd, index);
    }
    if result == 0 && fdtable::entry(fd) != Entry::Kernel {
        // SAFETY: the kernel has read `len` bytes of `value`.
        unsafe { options::note_inherited(fd, level, name, value, len) };
        lacking::note(fd, level, name);
        if (level, name) == (libc::SOL_SOCKET, libc::SO_ZEROCOPY) && len as usize >= size_of::<c_int>() {
            // SAFETY: the kernel has read an int of `value`.
            zerocopy::set(fd, unsafe { value.cast::<c_int>().read_unaligned() } != 0);
        }
    }
    result
}
