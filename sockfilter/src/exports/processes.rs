//! exec and its kin, vfork, fdopen, dprintf: what a connection could not follow in our care leaves it before.
//!
//! The functions are reached with their arguments as they are, some of them variadic: each entry saves the argument registers,
//! lets connections leave, and goes on at the next library's function.

use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicPtr, Ordering};
use std::ffi::CString;

use libc::{c_int, c_void};

use crate::bootstrap;
use crate::handover::{self, Which};
use crate::ops::sockets;
use crate::sys;

/// Before exec and posix_spawn: connections that stay open over it leave.
extern "C" fn before_exec() {
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

/// The next library's function, looked up when it is first called. `name` is a C string.
extern "C" fn next(name: *const c_char, place: &AtomicPtr<c_void>) -> *mut c_void {
    let found = place.load(Ordering::Relaxed);
    if !found.is_null() {
        return found;
    }
    // SAFETY: `name` is one of the C strings below.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name) };
    if found.is_null() {
        // SAFETY: as above.
        let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap_or("?");
        sys::complain(&format!("the C library has no {name}"));
        // SAFETY: ends the process, as calling a function that is not there would.
        unsafe { libc::abort() };
    }
    place.store(found, Ordering::Relaxed);
    found
}

/// Entry points that run a function, which gets the first argument, and go on at the next library's function of the same name.
macro_rules! entry {
    ($($before:ident: $name:ident,)*) => {
        mod places {
            $(pub mod $name {
                use super::super::{AtomicPtr, c_void};
                pub const LEN: usize = stringify!($name).len() + 1;
                pub static NEXT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
                pub static NAME: [u8; LEN] = match concat!(stringify!($name), "\0").as_bytes().first_chunk() {
                    Some(name) => *name,
                    None => panic!("the name has this length"),
                };
            })*
        }

        /// Looks all functions up: a child between fork and exec had better not.
        pub fn resolve() {
            $(next(places::$name::NAME.as_ptr().cast(), &places::$name::NEXT);)*
            next(VFORK_NAME.as_ptr().cast(), &VFORK);
            for (name, place) in ENVIRONMENTS {
                next(name.as_ptr(), place);
            }
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
                "lea rdi, [rip + {name}]",
                "lea rsi, [rip + {next_place}]",
                "call {next}",
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
                name = sym places::$name::NAME,
                next_place = sym places::$name::NEXT,
                next = sym next,
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

type Strings = *const *const c_char;

static EXECVE: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static EXECVPE: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static EXECVEAT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static FEXECVE: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static POSIX_SPAWN: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static POSIX_SPAWNP: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// The functions that take an environment.
static ENVIRONMENTS: [(&CStr, &AtomicPtr<c_void>); 6] = [
    (c"execve", &EXECVE),
    (c"execvpe", &EXECVPE),
    (c"execveat", &EXECVEAT),
    (c"fexecve", &FEXECVE),
    (c"posix_spawn", &POSIX_SPAWN),
    (c"posix_spawnp", &POSIX_SPAWNP),
];

/// Calls the next library's function of a signature.
macro_rules! call {
    ($place:ident, $name:literal, fn($($type:ty),*), ($($arg:expr),*)) => {{
        type Function = unsafe extern "C" fn($($type),*) -> c_int;
        // SAFETY: the C library's function of this name has this signature.
        let function = unsafe { core::mem::transmute::<*mut c_void, Function>(next($name.as_ptr(), &$place)) };
        // SAFETY: the caller's promise.
        unsafe { function($($arg),*) }
    }};
}

/// execve(2)
#[unsafe(no_mangle)]
unsafe extern "C" fn execve(path: *const c_char, arguments: Strings, environment: Strings) -> c_int {
    before_exec();
    // SAFETY: the caller's promise.
    let kept = unsafe { Environment::of(environment) };
    call!(EXECVE, c"execve", fn(*const c_char, Strings, Strings), (path, arguments, kept.pointer()))
}

/// execvpe(3)
#[unsafe(no_mangle)]
unsafe extern "C" fn execvpe(file: *const c_char, arguments: Strings, environment: Strings) -> c_int {
    before_exec();
    // SAFETY: the caller's promise.
    let kept = unsafe { Environment::of(environment) };
    call!(EXECVPE, c"execvpe", fn(*const c_char, Strings, Strings), (file, arguments, kept.pointer()))
}

/// fexecve(3)
#[unsafe(no_mangle)]
unsafe extern "C" fn fexecve(fd: c_int, arguments: Strings, environment: Strings) -> c_int {
    before_exec();
    // SAFETY: the caller's promise.
    let kept = unsafe { Environment::of(environment) };
    call!(FEXECVE, c"fexecve", fn(c_int, Strings, Strings), (fd, arguments, kept.pointer()))
}

/// execveat(2)
#[unsafe(no_mangle)]
unsafe extern "C" fn execveat(
    folder: c_int,
    path: *const c_char,
    arguments: Strings,
    environment: Strings,
    flags: c_int,
) -> c_int {
    before_exec();
    // SAFETY: the caller's promise.
    let kept = unsafe { Environment::of(environment) };
    call!(
        EXECVEAT,
        c"execveat",
        fn(c_int, *const c_char, Strings, Strings, c_int),
        (folder, path, arguments, kept.pointer(), flags)
    )
}

/// posix_spawn(3)
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_spawn(
    pid: *mut libc::pid_t,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    before_exec();
    // SAFETY: the caller's promise.
    let kept = unsafe { Environment::of(environment) };
    call!(
        POSIX_SPAWN,
        c"posix_spawn",
        fn(*mut libc::pid_t, *const c_char, *const c_void, *const c_void, Strings, Strings),
        (pid, path, actions, attributes, arguments, kept.pointer())
    )
}

/// posix_spawnp(3)
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_spawnp(
    pid: *mut libc::pid_t,
    file: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    before_exec();
    // SAFETY: the caller's promise.
    let kept = unsafe { Environment::of(environment) };
    call!(
        POSIX_SPAWNP,
        c"posix_spawnp",
        fn(*mut libc::pid_t, *const c_char, *const c_void, *const c_void, Strings, Strings),
        (pid, file, actions, attributes, arguments, kept.pointer())
    )
}

/// The environment of a program that is about to be executed. One that inherits a listener or a connection of ours and would
/// lose the filter keeps it: a bare placeholder is of no use to anyone (nginx gives a new binary an environment of its own).
struct Environment {
    given: Strings,
    kept: Vec<*const c_char>,
    _texts: Vec<CString>,
}

impl Environment {
    /// # Safety
    /// `given` must be null or an array of C strings that ends with a null pointer.
    unsafe fn of(given: Strings) -> Environment {
        let as_given = Environment { given, kept: Vec::new(), _texts: Vec::new() };
        if given.is_null() || !handover::any_over_exec() {
            return as_given;
        }
        let mut kept = Vec::new();
        loop {
            // SAFETY: the caller's promise: the array goes on until its null pointer.
            let text = unsafe { given.add(kept.len()).read() };
            if text.is_null() {
                break;
            }
            // SAFETY: the caller's promise.
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

    fn pointer(&self) -> Strings {
        if self.kept.is_empty() { self.given } else { self.kept.as_ptr() }
    }
}

static VFORK: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static VFORK_NAME: [u8; 6] = *b"vfork\0";

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
        "lea rdi, [rip + {name}]",
        "lea rsi, [rip + {place}]",
        "call {next}",
        "add rsp, 8",
        "jmp rax",
        "2:",
        "add rsp, 8",
        "jmp {fork}",
        instead = sym fork_instead,
        name = sym VFORK_NAME,
        place = sym VFORK,
        next = sym next,
        fork = sym forked,
    )
}

extern "C" fn forked() -> c_int {
    // SAFETY: the caller asked for a child that does less.
    unsafe { libc::fork() }
}

/// chroot(2): who shuts itself in attaches first. A session of vsftpd does so before it listens for data.
#[unsafe(no_mangle)]
unsafe extern "C" fn chroot(path: *const c_char) -> c_int {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    type Function = unsafe extern "C" fn(*const c_char) -> c_int;
    sockets::before_chroot();
    // SAFETY: the C library's chroot has this signature.
    let function = unsafe { core::mem::transmute::<*mut c_void, Function>(next(c"chroot".as_ptr(), &NEXT)) };
    // SAFETY: the caller's promise.
    unsafe { function(path) }
}
