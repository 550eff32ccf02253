//! vfork, chroot, fdopen, dprintf: a connection that the filter cannot serve afterwards is passed to the
//! agent before the call.
//!
//! The functions receive their arguments unchanged, some of them variadic. Each entry point saves the
//! argument registers, hands over connections, and continues in the next library's function.

use core::ffi::c_char;

use libc::c_int;

use crate::handover::{self, Selection};
use crate::next::Next;
use crate::ops::sockets;

/// Called before the C library makes a stream of a descriptor or prints to it: it reads and writes without
/// calling the filter, so the connection must be a kernel socket.
extern "C" fn before_stream(fd: c_int) {
    handover::leave(Selection::Of(fd));
}

/// Called before vfork: returns 1 if fork must be used instead, since a child that shares the parent's memory
/// cannot be given connections.
extern "C" fn fork_instead() -> usize {
    usize::from(handover::any_for_child())
}

/// Entry points that call a function with the first argument and continue in the next library's function of
/// the same name.
macro_rules! entry {
    ($($before:ident: $name:ident,)*) => {
        mod next {
            $(#[allow(non_upper_case_globals)]
            pub static $name: super::Next = super::Next::new(concat!(stringify!($name), "\0"));)*
        }

        /// Resolves all functions, which a child between fork and exec should not do.
        pub fn resolve() {
            $(next::$name.get();)*
            VFORK.get();
            super::clone::resolve();
            super::exec::resolve();
            super::loading::resolve();
            super::shell::resolve();
            crate::ops::streams::resolve();
            super::spawn::resolve();
            super::stat::resolve();
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
                // The register may hold arguments of dprintf.
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
    before_stream: fdopen,
    before_stream: dprintf,
    before_stream: vdprintf,
    before_stream: __dprintf_chk,
    before_stream: __vdprintf_chk,
}

static VFORK: Next = Next::new("vfork\0");

/// vfork(2), or fork(2) if there are connections that the child may use. A child of vfork returns through its
/// parent's stack, so this function's frame must be gone before the system call.
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
    // SAFETY: fork is safe wherever the caller may call vfork, whose child may do less.
    unsafe { libc::fork() }
}

/// chroot(2): the process attaches to the agent first. A session of vsftpd calls it before it listens for
/// data.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn chroot(path: *const c_char) -> c_int {
    static NEXT: Next = Next::new("chroot\0");
    sockets::before_chroot();
    call_next!(NEXT, fn(*const c_char) -> c_int, (path))
}
