//! exec and its kin, vfork, fdopen: what a connection could not follow in our care leaves it before.
//!
//! The functions are reached with their arguments as they are, some of them variadic: each entry saves the argument registers,
//! lets connections leave, and goes on at the next library's function.

use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicPtr, Ordering};

use libc::{FILE, c_int, c_void};

use crate::handover::{self, Which};
use crate::ops::sockets;
use crate::sys;

/// Before exec and posix_spawn: connections that stay open over it leave.
extern "C" fn before_exec() {
    handover::leave(Which::OverExec);
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

/// An entry point that runs `before_exec` and goes on at the next library's function of the same name.
macro_rules! entry {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            static NEXT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
            const LEN: usize = stringify!($name).len() + 1;
            static NAME: [u8; LEN] = match concat!(stringify!($name), "\0").as_bytes().first_chunk() {
                Some(name) => *name,
                None => panic!("the name has this length"),
            };
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
                "sub rsp, 8",
                "call {before}",
                "lea rdi, [rip + {name}]",
                "lea rsi, [rip + {next_place}]",
                "call {next}",
                "mov r11, rax",
                "add rsp, 8",
                "pop rax",
                "pop r9",
                "pop r8",
                "pop rcx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "pop rbp",
                "jmp r11",
                before = sym before_exec,
                name = sym NAME,
                next_place = sym NEXT,
                next = sym next,
            )
        }
    )*};
}

entry! { execl execle execlp execv execve execvp execvpe execveat fexecve posix_spawn posix_spawnp }

static VFORK: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static VFORK_NAME: [u8; 6] = *b"vfork\0";

/// vfork(2), or fork(2) where there are connections that the child may want: a child of vfork returns through its parent's
/// stack, so that the frame must be gone before the kernel is asked.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn vfork() -> c_int {
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

/// fdopen(3): the C library's streams read and write past us, so that the connection must be the kernel's.
#[unsafe(no_mangle)]
unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    type Function = unsafe extern "C" fn(c_int, *const c_char) -> *mut FILE;
    handover::leave(Which::Of(fd));
    // SAFETY: the C library's fdopen has this signature.
    let function = unsafe { core::mem::transmute::<*mut c_void, Function>(next(c"fdopen".as_ptr(), &NEXT)) };
    // SAFETY: the caller's promise.
    unsafe { function(fd, mode) }
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
