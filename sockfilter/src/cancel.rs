//! Cancellation (pthread_cancel): the filter's blocking calls are cancellation points, as POSIX requires.
//!
//! A sleep calls the C library's own ppoll and epoll_pwait, which are cancellation points. A thread that is
//! cancelled there is unwound through the filter's frames without running their destructors. Therefore a
//! clean-up routine releases the registrations of a sleeping thread. The functions that can be on the stack
//! then are `C-unwind`.

use core::ffi::c_void;

use libc::c_int;

use crate::next::Next;

/// glibc's record of a clean-up routine, on the stack of the function that pushes it.
#[repr(C)]
struct Buffer {
    routine: usize,
    argument: *mut c_void,
    cancel_type: c_int,
    previous: *mut c_void,
}

type Routine = unsafe extern "C" fn(*mut c_void);
type Push = unsafe extern "C" fn(*mut Buffer, Routine, *mut c_void);
type Pop = unsafe extern "C" fn(*mut Buffer, c_int);
type Test = unsafe extern "C-unwind" fn();

static PUSH: Next = Next::new("_pthread_cleanup_push\0");
static POP: Next = Next::new("_pthread_cleanup_pop\0");
static TEST: Next = Next::new("pthread_testcancel\0");
static SINGLE: Next = Next::new("__libc_single_threaded\0");

/// Resolves the C library's functions.
pub fn resolve() {
    for next in [&PUSH, &POP, &TEST, &SINGLE] {
        next.find();
    }
}

/// Whether the process certainly has one thread.
pub fn single_threaded() -> bool {
    let flag = SINGLE.known().cast::<u8>();
    // SAFETY: the byte belongs to the C library and lives as long as the process.
    !flag.is_null() && unsafe { flag.read_volatile() } != 0
}

/// Ends the thread here if it was cancelled. The thread must hold no lock or registration of the filter.
pub fn test() {
    let test = TEST.known();
    if test.is_null() || single_threaded() {
        return;
    }
    // SAFETY: the C library's function of this name has this signature.
    unsafe { core::mem::transmute::<*mut c_void, Test>(test)() }
}

/// Runs `sleep`. If the thread is cancelled in it, or a signal handler leaves it by siglongjmp, `undo` is
/// first called with `state`.
pub fn guarded<S, R>(state: &mut S, undo: unsafe extern "C" fn(*mut c_void), sleep: impl FnOnce() -> R) -> R {
    let (push, pop) = (PUSH.known(), POP.known());
    if push.is_null() || pop.is_null() {
        return sleep();
    }
    let mut buffer = Buffer {
        routine: 0,
        argument: core::ptr::null_mut(),
        cancel_type: 0,
        previous: core::ptr::null_mut(),
    };
    // SAFETY: the C library's functions of these names have these signatures; the buffer and the state
    // outlive the time between push and pop.
    unsafe {
        core::mem::transmute::<*mut c_void, Push>(push)(
            &raw mut buffer,
            undo,
            core::ptr::from_mut(state).cast(),
        );
        let result = sleep();
        core::mem::transmute::<*mut c_void, Pop>(pop)(&raw mut buffer, 0);
        result
    }
}
