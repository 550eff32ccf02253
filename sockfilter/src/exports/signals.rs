//! Signal handlers: installed unchanged, and their flags are recorded.

use libc::{c_int, sighandler_t};

use crate::next::Next;
use crate::{signals, sys};

macro_rules! noted {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty, $failed:expr;)*) => {
        $(
            #[doc = concat!(stringify!($name), "(3)")]
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(signal: c_int $(, $argument: $type)*) -> $result {
                static NEXT: Next = Next::new(concat!(stringify!($name), "\0"));
                if NEXT.find().is_null() {
                    sys::set_errno(libc::ENOSYS);
                    return $failed;
                }
                let result = call_next!(NEXT, fn(c_int $(, $type)*) -> $result, (signal $(, $argument)*));
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
