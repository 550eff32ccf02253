//! Descriptors: closing, duplicating, flags.

use libc::{FILE, c_int, c_uint, c_ulong, c_void};

use crate::fdtable::{self, Entry};
use crate::memory::is_unmappable;
use crate::next::Next;
use crate::ops::{c_int_result, descriptors, options};
use crate::real;
use crate::sys::{Errno, syscall};

/// close(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    match descriptors::close(fd) {
        Some(result) => c_int_result(result),
        // SAFETY: no pointers.
        None => unsafe { real::close(fd) },
    }
}

static FCLOSE: Next = Next::new("fclose\0");

/// fclose(3), which closes a descriptor without calling close(2).
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn fclose(stream: *mut FILE) -> c_int {
    // SAFETY: by the caller's contract `stream` is open.
    let fd = unsafe { libc::fileno(stream) };
    descriptors::let_go(fd);
    // SAFETY: the C library's function of this name has this signature.
    unsafe {
        core::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn(*mut FILE) -> c_int>(FCLOSE.get())(
            stream,
        )
    }
}

/// close_range(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    descriptors::close_range(first, last, flags)
}

/// closefrom(3)
#[unsafe(no_mangle)]
unsafe extern "C" fn closefrom(first: c_int) {
    descriptors::close_range(first.max(0) as c_uint, c_uint::MAX, 0);
}

/// dup(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: no pointers.
    match descriptors::duplicate(fd, None, || unsafe { syscall!(libc::SYS_dup, fd) }) {
        Some(result) => c_int_result(result),
        // SAFETY: no pointers.
        None => unsafe { real::dup(fd) },
    }
}

/// dup2(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    // SAFETY: no pointers.
    match descriptors::duplicate(old, Some(new), || unsafe { syscall!(libc::SYS_dup2, old, new) }) {
        Some(result) => c_int_result(result),
        // SAFETY: no pointers.
        None => unsafe { real::dup2(old, new) },
    }
}

/// dup3(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    // SAFETY: no pointers.
    match descriptors::duplicate(old, Some(new), || unsafe { syscall!(libc::SYS_dup3, old, new, flags) }) {
        Some(result) => c_int_result(result),
        // SAFETY: no pointers.
        None => unsafe { real::dup3(old, new, flags) },
    }
}

/// fcntl(2); on x86-64 its third argument is passed as an integer, whatever its type.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
    // SAFETY: by the caller's contract `argument` is what fcntl(2) takes with `command`.
    unsafe { control(fd, command, argument).map_or_else(|| real::fcntl(fd, command, argument), c_int_result) }
}

/// fcntl(2) of programs with large file offsets.
#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
    // SAFETY: by the caller's contract `argument` is what fcntl(2) takes with `command`.
    unsafe {
        control(fd, command, argument).map_or_else(|| real::fcntl64(fd, command, argument), c_int_result)
    }
}

/// The commands that change an accelerated descriptor; `None`: the kernel has to do it.
///
/// # Safety
/// As fcntl.
unsafe fn control(fd: c_int, command: c_int, argument: c_ulong) -> Option<Result<usize, Errno>> {
    if fdtable::entry(fd) == Entry::Kernel {
        return None;
    }
    // SAFETY: none of the commands below takes a pointer.
    let kernel = || unsafe { syscall!(libc::SYS_fcntl, fd, command, argument) };
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => descriptors::duplicate(fd, None, kernel),
        libc::F_SETFD => options::flags_set(fd, || None, kernel),
        libc::F_SETFL if asks_for_signals(fd, argument) => Some(Err(libc::EINVAL)),
        libc::F_SETFL => {
            let nonblocking = argument as c_int & libc::O_NONBLOCK != 0;
            options::flags_set(fd, || Some(nonblocking), kernel)
        }
        _ => None,
    }
}

/// Whether O_ASYNC is requested for an accelerated socket, which cannot raise SIGIO while the program runs.
fn asks_for_signals(fd: c_int, flags: c_ulong) -> bool {
    flags as c_int & libc::O_ASYNC != 0 && fdtable::is_ours(fd) && options::is_socket(fd)
}

const FIOASYNC: c_ulong = 0x5452;

/// ioctl(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: c_ulong) -> c_int {
    if !fdtable::is_ours(fd) {
        // SAFETY: by the caller's contract `argument` is what ioctl(2) takes with `request`.
        return unsafe { real::ioctl(fd, request, argument) };
    }
    let pointer = argument as *mut c_int;
    if matches!(request, libc::FIONREAD | libc::TIOCOUTQ)
        && !is_unmappable(pointer)
        && let Some(count) = options::queued(fd, request)
    {
        // SAFETY: these requests take a pointer to a writable int.
        return c_int_result(count.map(|count| unsafe { pointer.write_unaligned(count) }).map(|()| 0));
    }
    // The kernel returns this error for files that cannot raise signals.
    if request == FIOASYNC && !is_unmappable(pointer) && options::is_socket(fd) {
        // SAFETY: FIOASYNC takes a pointer to a readable int.
        return c_int_result(if unsafe { pointer.read_unaligned() } != 0 {
            Err(libc::ENOTTY)
        } else {
            Ok(0)
        });
    }
    if matches!(request, libc::FIONBIO | libc::FIOCLEX | libc::FIONCLEX) {
        // SAFETY: FIONBIO takes a pointer to a readable int; the kernel has read it before this is called.
        let nonblocking = || (request == libc::FIONBIO).then(|| unsafe { pointer.read_unaligned() } != 0);
        // SAFETY: by the caller's contract `argument` is what ioctl(2) takes with `request`.
        let kernel = || unsafe { syscall!(libc::SYS_ioctl, fd, request, argument) };
        if let Some(result) = options::flags_set(fd, nonblocking, kernel) {
            return c_int_result(result);
        }
    }
    // SAFETY: by the caller's contract `argument` is what ioctl(2) takes with `request`.
    unsafe { real::ioctl(fd, request, argument) }
}
