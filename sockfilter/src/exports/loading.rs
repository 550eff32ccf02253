//! dlopen and dlmopen. RTLD_DEEPBIND would make a library find the C library's functions before the filter's,
//! so it is left out. A library in a namespace of its own has another C library, and bypasses the filter:
//! this is reported.
//!
//! The C library determines the caller, whose search path and namespace apply, by the return address: both
//! functions continue in the next library's with the stack as it was.

use core::ffi::{c_char, c_void};
use core::sync::atomic::{AtomicBool, Ordering};

use libc::c_int;

use crate::next::Next;
use crate::{bootstrap, sys};

/// `RTLD_DEEPBIND` of x86-64, which the libc crate does not declare.
const RTLD_DEEPBIND: c_int = 8;

static DLOPEN: Next = Next::new("dlopen\0");
static DLMOPEN: Next = Next::new("dlmopen\0");

/// Resolves all functions.
pub(super) fn resolve() {
    // In a C library before 2.34 they are in another library, which the program may not use.
    DLOPEN.find();
    DLMOPEN.find();
}

extern "C" fn binding(mode: c_int) -> c_int {
    if bootstrap::is_on() { mode & !RTLD_DEEPBIND } else { mode }
}

extern "C" fn binding_in(namespace: libc::Lmid_t, mode: c_int) -> c_int {
    static SAID: AtomicBool = AtomicBool::new(false);
    if namespace != libc::LM_ID_BASE && bootstrap::is_on() && !SAID.swap(true, Ordering::Relaxed) {
        sys::log_line("a library in a namespace of its own (dlmopen) bypasses the filter");
    }
    binding(mode)
}

/// dlopen(3)
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn dlopen(file: *const c_char, mode: c_int) -> *mut c_void {
    core::arch::naked_asm!(
        "push rdi",
        "sub rsp, 16",
        "mov edi, esi",
        "call {binding}",
        "mov [rsp], rax",
        "lea rdi, [rip + {next}]",
        "call {get}",
        "mov rsi, [rsp]",
        "add rsp, 16",
        "pop rdi",
        "jmp rax",
        binding = sym binding,
        next = sym DLOPEN,
        get = sym Next::get,
    )
}

/// dlmopen(3)
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn dlmopen(namespace: libc::Lmid_t, file: *const c_char, mode: c_int) -> *mut c_void {
    core::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "mov esi, edx",
        "call {binding}",
        "mov [rsp], rax",
        "lea rdi, [rip + {next}]",
        "call {get}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        binding = sym binding_in,
        next = sym DLMOPEN,
        get = sym Next::get,
    )
}
