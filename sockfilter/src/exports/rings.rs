//! liburing's functions that create a ring. The library makes its system calls itself, and a ring would read
//! and write placeholders: programs get ENOSYS, as from a kernel without io_uring, and use their other
//! methods. A ring that the program creates by other means is refused by its system call (`syscall`, and
//! `bootstrap::refuse_rings`).

use core::ffi::{c_uint, c_void};

use libc::{c_int, size_t};

use crate::bootstrap;
use crate::next::Next;

macro_rules! rings {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {
        $(#[doc = concat!(stringify!($name), "(3)")]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            static NEXT: Next = Next::new(concat!(stringify!($name), "\0"));
            if bootstrap::is_on() || NEXT.find().is_null() {
                return -libc::ENOSYS;
            }
            call_next!(NEXT, fn($($type),*) -> c_int, ($($argument),*))
        })*
    };
}

rings! {
    io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint);
    io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, params: *mut c_void);
    io_uring_queue_init_mem(
        entries: c_uint, ring: *mut c_void, params: *mut c_void, memory: *mut c_void, len: size_t
    );
    io_uring_queue_init_try_nosqarr(entries: c_uint, ring: *mut c_void, params: *mut c_void);
    io_uring_setup(entries: c_uint, params: *mut c_void);
}

/// io_uring_get_probe(3)
#[unsafe(no_mangle)]
unsafe extern "C" fn io_uring_get_probe() -> *mut c_void {
    static NEXT: Next = Next::new("io_uring_get_probe\0");
    if bootstrap::is_on() || NEXT.find().is_null() {
        return core::ptr::null_mut();
    }
    call_next!(NEXT, fn() -> *mut c_void, ())
}
