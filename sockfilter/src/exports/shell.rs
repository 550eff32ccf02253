//! system and popen. The C library starts the shell by an internal function that the filter does not see,
//! with the environment of this process. If the process has cleared its environment and has accelerated
//! sockets, the shell gets a command that sets the filter's variables again and then executes another shell
//! with the program's command. The environment itself cannot be changed during the call, since another thread
//! may be using it.

use core::ffi::{CStr, c_char, c_void};
use std::ffi::CString;

use libc::{FILE, c_int};

use super::exec::{Environment, environment};
use crate::next::Next;
use crate::{preload, shell_command};

/// The shell that the C library starts.
const SHELL: &CStr = c"/bin/sh";

static SYSTEM: Next = Next::new("system\0");
static POPEN: Next = Next::new("popen\0");

/// Resolves all functions.
pub(super) fn resolve() {
    SYSTEM.get();
    POPEN.get();
}

/// Returns the command to pass on instead of `command`; null if `command` itself is to be used. The caller
/// releases it: a thread that is cancelled in the call runs no destructor.
///
/// # Safety
/// `command` must be null or a C string.
unsafe fn replaced(command: *const c_char) -> *mut c_char {
    if crate::memory::is_unmappable(command) {
        return core::ptr::null_mut();
    }
    let foreign = || preload::is_foreign(libc::AT_FDCWD, SHELL);
    // SAFETY: the process's own environment.
    let kept = unsafe { Environment::of(environment(), || false, foreign) };
    if kept.added().is_empty() {
        return core::ptr::null_mut();
    }
    // SAFETY: by this function's contract `command` is a C string.
    let command = unsafe { CStr::from_ptr(command) };
    shell_command::argument(kept.added(), command.to_bytes()).map_or(core::ptr::null_mut(), CString::into_raw)
}

/// # Safety
/// `command` must come from [`replaced`].
unsafe fn release(command: *mut c_char) {
    if !command.is_null() {
        // SAFETY: by this function's contract.
        drop(unsafe { CString::from_raw(command) });
    }
}

/// system(3)
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn system(command: *const c_char) -> c_int {
    type System = unsafe extern "C-unwind" fn(*const c_char) -> c_int;
    // SAFETY: by the caller's contract `command` is null or a C string; the C library's function of this name
    // has this signature.
    unsafe {
        let ours = replaced(command);
        let given = if ours.is_null() { command } else { ours.cast_const() };
        let status = core::mem::transmute::<*mut c_void, System>(SYSTEM.get())(given);
        release(ours);
        status
    }
}

/// popen(3)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: by the caller's contract `command` is a C string.
    let ours = unsafe { replaced(command) };
    let given = if ours.is_null() { command } else { ours.cast_const() };
    let stream = call_next!(POPEN, fn(*const c_char, *const c_char) -> *mut FILE, (given, mode));
    // SAFETY: it comes from `replaced`.
    unsafe { release(ours) };
    stream
}
