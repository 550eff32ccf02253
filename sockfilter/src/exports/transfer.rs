//! Transfers between sockets and files or pipes, and reading and writing at offsets.

use libc::{c_int, c_uint, iovec, off_t, size_t, ssize_t};

use super::io::{Move, list};
use crate::fdtable;
use crate::ops::names::{self, End};
use crate::ops::transfer::{self, Splice};
use crate::ops::{c_result, ending, io};
use crate::real;

unsafe fn sendfile_any(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    // SAFETY: by the caller's contract `offset` is null or points to an offset.
    unsafe {
        if fdtable::is_ours(from)
            && names::name(from, End::Local, core::ptr::null_mut(), core::ptr::null_mut()).is_some()
        {
            return c_result(Err(libc::EINVAL));
        }
        let ours = if fdtable::is_ours(to) { transfer::sendfile(to, from, offset, count) } else { None };
        ours.unwrap_or_else(|| real::sendfile(to, from, offset, count))
    }
}

/// sendfile(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn sendfile(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    // SAFETY: by the caller's contract `offset` is null or points to an offset.
    unsafe { sendfile_any(to, from, offset, count) }
}

/// sendfile(2) of programs with large file offsets: the same on a 64-bit system.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendfile64(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    // SAFETY: by the caller's contract `offset` is null or points to an offset.
    unsafe { sendfile_any(to, from, offset, count) }
}

/// splice(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn splice(
    from: c_int,
    from_offset: *mut i64,
    to: c_int,
    to_offset: *mut i64,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    if fdtable::is_ours(from) || fdtable::is_ours(to) {
        let offsets = [!from_offset.is_null(), !to_offset.is_null()];
        if let Some(result) = transfer::splice(Splice { from, to, len, flags, offsets }) {
            return c_result(result);
        }
    }
    // SAFETY: by the caller's contract `from_offset` is null or points to an offset and `to_offset` is null
    // or points to an offset.
    let moved = unsafe { real::splice(from, from_offset, to, to_offset, len, flags) };
    ending::or_reset(from, moved, len > 0)
}

/// Flags of preadv2 and pwritev2 that a socket accepts; only RWF_NOWAIT has an effect.
const RWF_KNOWN: c_int = 0x1f;
const RWF_NOWAIT: c_int = 8;

/// preadv2 and pwritev2 without a position, on an accelerated connection.
unsafe fn at_no_offset(
    fd: c_int,
    parts: *const iovec,
    count: c_int,
    at: off_t,
    flags: c_int,
    moves: Move,
) -> Option<ssize_t> {
    if at != -1 || !fdtable::is_ours(fd) {
        return None;
    }
    if flags & !RWF_KNOWN != 0 {
        return Some(c_result(Err(libc::EOPNOTSUPP)));
    }
    let wait = if flags & RWF_NOWAIT != 0 { libc::MSG_DONTWAIT } else { 0 };
    // SAFETY: by the caller's contract `parts` has `count` entries, each naming memory that is lent for the
    // call.
    unsafe { list(fd, parts, count, wait, moves) }
}

macro_rules! at_offset {
    ($($(#[$doc:meta])* $name:ident, $moves:path;)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            pub(super) unsafe extern "C-unwind" fn $name(
                fd: c_int,
                parts: *const iovec,
                count: c_int,
                at: off_t,
                flags: c_int,
            ) -> ssize_t {
                // SAFETY: by the caller's contract `parts` has `count` entries, each naming memory that is
                // lent for the call.
                unsafe {
                    at_no_offset(fd, parts, count, at, flags, $moves)
                        .unwrap_or_else(|| real::$name(fd, parts, count, at, flags))
                }
            }
        )*
    };
}

at_offset! {
    /// preadv2(2)
    preadv2, io::receive;
    /// pwritev2(2)
    pwritev2, io::send;
    /// preadv2(2) of programs with large file offsets.
    preadv64v2, io::receive;
    /// pwritev2(2) of programs with large file offsets.
    pwritev64v2, io::send;
}
