//! Signal handlers: the program's business, but what they ask for is noted.

use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, Ordering};

use libc::{c_int, sighandler_t};

use crate::{signals, sys};

/// The next library's function; without one ENOSYS is all that can be said.
fn next(name: &core::ffi::CStr, place: &AtomicPtr<c_void>) -> *mut c_void {
    let mut found = place.load(Ordering::Relaxed);
    if found.is_null() {
        // SAFETY: the name is a C string.
        found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        place.store(found, Ordering::Relaxed);
    }
    if found.is_null() {
        sys::set_errno(libc::ENOSYS);
    }
    found
}

macro_rules! noted {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty, $failed:expr;)*) => {
        $(
            #[doc = concat!(stringify!($name), "(3)")]
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(signal: c_int $(, $argument: $type)*) -> $result {
                static NEXT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
                const NAME: &core::ffi::CStr =
                    match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => c"",
                    };
                let function = next(NAME, &NEXT);
                if function.is_null() {
                    return $failed;
                }
                type Function = unsafe extern "C" fn(c_int $(, $type)*) -> $result;
                // SAFETY: the C library's function of this name has this signature.
                let function = unsafe { core::mem::transmute::<*mut c_void, Function>(function) };
                // SAFETY: the caller's promise.
                let result = unsafe { function(signal $(, $argument)*) };
                signals::note(signal);
                result
            }
        )*
    };
}

noted! {
    sigaction(new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int, -1;
    __sigaction(new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int, -1;
    signal(handler: sighandler_t) -> sighandler_t, libc::SIG_ERR;
    bsd_signal(handler: sighandler_t) -> sighandler_t, libc::SIG_ERR;
    ssignal(handler: sighandler_t) -> sighandler_t, libc::SIG_ERR;
    sysv_signal(handler: sighandler_t) -> sighandler_t, libc::SIG_ERR;
    __sysv_signal(handler: sighandler_t) -> sighandler_t, libc::SIG_ERR;
    sigset(handler: sighandler_t) -> sighandler_t, libc::SIG_ERR;
    sigignore() -> c_int, -1;
    siginterrupt(interrupt: c_int) -> c_int, -1;
}
