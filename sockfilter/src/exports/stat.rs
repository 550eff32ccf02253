//! fstat and its variants, by which a program identifies a socket.
//!
//! The placeholder provides the result until the connection is passed to the agent. Then another socket with
//! another inode replaces it. A program that inherited its listener serves together with others, and passes
//! connections to programs that may compare inodes (Dovecot's imap compares with the one that imap-login
//! wrote). Therefore a connection is passed to the agent before such a program queries its inode, and keeps
//! that inode afterwards.

use core::ffi::{c_char, c_void};

use libc::{c_int, c_uint};

use crate::handover::{self, Selection};
use crate::inherit;
use crate::next::Next;

fn before(fd: c_int) {
    if inherit::inherited_listener() {
        handover::leave(Selection::Of(fd));
    }
}

macro_rules! stat {
    ($($name:ident: $next:ident($($argument:ident: $type:ty),*), $fd:ident $(, where $flags:ident)?;)*) => {
        $(
            static $next: Next = Next::new(concat!(stringify!($name), "\0"));

            #[doc = concat!(stringify!($name), "(2)")]
            #[unsafe(no_mangle)]
            pub(super) unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
                // With AT_EMPTY_PATH the call refers to the descriptor itself.
                if true $(&& $flags & libc::AT_EMPTY_PATH != 0)? {
                    before($fd);
                }
                call_next!($next, fn($($type),*) -> c_int, ($($argument),*))
            }
        )*

        /// Resolves all functions.
        pub(super) fn resolve() {
            $($next.get();)*
        }
    };
}

stat! {
    fstat: FSTAT(fd: c_int, into: *mut c_void), fd;
    fstat64: FSTAT64(fd: c_int, into: *mut c_void), fd;
    fstatat: FSTATAT(fd: c_int, path: *const c_char, into: *mut c_void, flags: c_int), fd, where flags;
    fstatat64: FSTATAT64(fd: c_int, path: *const c_char, into: *mut c_void, flags: c_int), fd, where flags;
    statx: STATX(fd: c_int, path: *const c_char, flags: c_int, mask: c_uint, into: *mut c_void), fd, where flags;
}

/// Called by programs linked to a glibc before 2.33; `version` has one value on x86-64.
#[unsafe(no_mangle)]
unsafe extern "C" fn __fxstat(_version: c_int, fd: c_int, into: *mut c_void) -> c_int {
    // SAFETY: the caller passes what fstat requires.
    unsafe { fstat(fd, into) }
}

/// As [`__fxstat`].
#[unsafe(no_mangle)]
unsafe extern "C" fn __fxstat64(_version: c_int, fd: c_int, into: *mut c_void) -> c_int {
    // SAFETY: the caller passes what fstat64 requires.
    unsafe { fstat64(fd, into) }
}
