//! exec and its kin, vfork, fdopen, dprintf: what a connection could not follow in our care leaves it before.
//!
//! The functions are reached with their arguments as they are, some of them variadic: each entry saves the argument registers,
//! lets connections leave, and goes on at the next library's function.

use core::ffi::{CStr, c_char};
use std::ffi::CString;

use libc::c_int;

use crate::bootstrap;
use crate::handover::{self, Which};
use crate::next::Next;
use crate::ops::sockets;

/// Before exec and posix_spawn: connections that stay open over it leave.
pub(super) extern "C" fn before_exec() {
    handover::leave(Which::OverExec);
}

/// Before the C library makes a stream of a descriptor or prints to it: it reads and writes past us, so that the connection must
/// be the kernel's.
extern "C" fn before_stream(fd: c_int) {
    handover::leave(Which::Of(fd));
}

/// Before vfork: 1 where fork must do instead, as a child that shares our memory cannot be given connections.
extern "C" fn fork_instead() -> usize {
    usize::from(handover::any_for_child())
}

/// Entry points that run a function, which gets the first argument, and go on at the next library's function of the same name.
macro_rules! entry {
    ($($before:ident: $name:ident,)*) => {
        mod next {
            $(#[allow(non_upper_case_globals)]
            pub static $name: super::Next = super::Next::new(concat!(stringify!($name), "\0"));)*
        }

        /// Looks all functions up: a child between fork and exec had better not.
        pub fn resolve() {
            $(next::$name.get();)*
            VFORK.get();
            next_with_environment::resolve();
            super::spawn::resolve();
        }

        $(#[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub(super) unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "push rbp",
                "mov rbp, rsp",
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "push r8",
                "push r9",
                "push rax",
                "sub rsp, 136",
                // Arguments of dprintf may be there.
                "movups [rsp], xmm0",
                "movups [rsp + 16], xmm1",
                "movups [rsp + 32], xmm2",
                "movups [rsp + 48], xmm3",
                "movups [rsp + 64], xmm4",
                "movups [rsp + 80], xmm5",
                "movups [rsp + 96], xmm6",
                "movups [rsp + 112], xmm7",
                "call {before}",
                "lea rdi, [rip + {next}]",
                "call {get}",
                "mov r11, rax",
                "movups xmm0, [rsp]",
                "movups xmm1, [rsp + 16]",
                "movups xmm2, [rsp + 32]",
                "movups xmm3, [rsp + 48]",
                "movups xmm4, [rsp + 64]",
                "movups xmm5, [rsp + 80]",
                "movups xmm6, [rsp + 96]",
                "movups xmm7, [rsp + 112]",
                "add rsp, 136",
                "pop rax",
                "pop r9",
                "pop r8",
                "pop rcx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "pop rbp",
                "jmp r11",
                before = sym $before,
                next = sym next::$name,
                get = sym Next::get,
            )
        })*
    };
}

entry! {
    before_exec: execl,
    before_exec: execle,
    before_exec: execlp,
    before_exec: execv,
    before_exec: execvp,
    before_stream: fdopen,
    before_stream: dprintf,
    before_stream: vdprintf,
    before_stream: __dprintf_chk,
    before_stream: __vdprintf_chk,
}

pub(super) type Strings = *const *const c_char;

/// Functions that take an environment: connections leave, and the environment keeps the filter where it must.
macro_rules! with_environment {
    ($($name:ident($($argument:ident: $type:ty),*; $environment:ident $(, $last:ident: $last_type:ty)?);)*) => {
        mod next_with_environment {
            $(#[allow(non_upper_case_globals)]
            pub static $name: super::Next = super::Next::new(concat!(stringify!($name), "\0"));)*

            pub fn resolve() {
                $($name.get();)*
            }
        }

        $(#[doc = concat!(stringify!($name), "(3)")]
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $name($($argument: $type,)* $environment: Strings $(, $last: $last_type)?) -> c_int {
            before_exec();
            // SAFETY: by the caller's contract the environment is null or an array of C strings that ends with a null pointer.
            let kept = unsafe { Environment::of($environment, handover::any_over_exec()) };
            call_next!(
                next_with_environment::$name,
                fn($($type,)* Strings $(, $last_type)?) -> c_int,
                ($($argument,)* kept.pointer() $(, $last)?)
            )
        })*
    };
}

with_environment! {
    execve(path: *const c_char, arguments: Strings; environment);
    execvpe(file: *const c_char, arguments: Strings; environment);
    fexecve(fd: c_int, arguments: Strings; environment);
    execveat(folder: c_int, path: *const c_char, arguments: Strings; environment, flags: c_int);
}

/// The environment of a program that is about to be executed. One that inherits a listener or a connection of ours and would
/// lose the filter keeps it: a bare placeholder is of no use to anyone (nginx gives a new binary an environment of its own).
pub(super) struct Environment {
    given: Strings,
    kept: Vec<*const c_char>,
    _texts: Vec<CString>,
}

impl Environment {
    /// The environment for a program that needs the filter, or does not.
    ///
    /// # Safety
    /// `given` must be null or an array of C strings that ends with a null pointer.
    pub(super) unsafe fn of(given: Strings, needs_us: bool) -> Environment {
        let as_given = Environment { given, kept: Vec::new(), _texts: Vec::new() };
        if given.is_null() || !needs_us {
            return as_given;
        }
        let mut kept = Vec::new();
        loop {
            // SAFETY: by the contract above the array goes on until its null pointer, which is not behind us.
            let text = unsafe { given.add(kept.len()).read() };
            if text.is_null() {
                break;
            }
            // SAFETY: by the contract above every entry but the last is a C string.
            if unsafe { CStr::from_ptr(text) }.to_bytes().starts_with(b"LD_PRELOAD=") {
                return as_given;
            }
            kept.push(text);
        }
        let texts = bootstrap::inheritance();
        kept.extend(texts.iter().map(|text| text.as_ptr()));
        kept.push(core::ptr::null());
        Environment { given, kept, _texts: texts }
    }

    /// What the program gets.
    pub(super) fn pointer(&self) -> Strings {
        if self.kept.is_empty() { self.given } else { self.kept.as_ptr() }
    }
}

static VFORK: Next = Next::new("vfork\0");

/// vfork(2), or fork(2) where there are connections that the child may want: a child of vfork returns through its parent's
/// stack, so that the frame must be gone before the kernel is asked.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub(super) unsafe extern "C" fn vfork() -> c_int {
    core::arch::naked_asm!(
        "sub rsp, 8",
        "call {instead}",
        "test rax, rax",
        "jnz 2f",
        "lea rdi, [rip + {next}]",
        "call {get}",
        "add rsp, 8",
        "jmp rax",
        "2:",
        "add rsp, 8",
        "jmp {fork}",
        instead = sym fork_instead,
        next = sym VFORK,
        get = sym Next::get,
        fork = sym forked,
    )
}

extern "C" fn forked() -> c_int {
    // SAFETY: the caller asked for a child that does less.
    unsafe { libc::fork() }
}

/// chroot(2): who shuts itself in attaches first. A session of vsftpd does so before it listens for data.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn chroot(path: *const c_char) -> c_int {
    static NEXT: Next = Next::new("chroot\0");
    sockets::before_chroot();
    call_next!(NEXT, fn(*const c_char) -> c_int, (path))
}
