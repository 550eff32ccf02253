//! syscall(2): a socket or descriptor call by its number has the behaviour of the function of that name.

use libc::{c_int, c_long, c_uint};

use super::{batches, descriptors, exec, io, poll, processes, sockets, stat, transfer};
use crate::memory::{is_unmappable, is_wrong};
use crate::ops::select::Sets;
use crate::{fork, signals, sys};

/// Bytes of the kernel's signal set; the kernel refuses every other length.
const MASK_LEN: usize = 8;
/// Offset of the stack in struct clone_args, and the smallest length of the structure.
const CLONE_STACK: usize = 40;
const CLONE_ARGS_MIN: usize = 64;

/// syscall(2). A clone with a stack of its own must return on it, without a frame of the filter in between.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn syscall() -> c_long {
    core::arch::naked_asm!(
        "cmp rdi, {clone}",
        "jne {dispatch}",
        "test rdx, rdx",
        "jz {dispatch}",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, qword ptr [rsp + 8]",
        "syscall",
        "cmp rax, -4095",
        "jb 2f",
        "mov rdi, rax",
        "jmp {failed}",
        "2:",
        "ret",
        clone = const libc::SYS_clone,
        dispatch = sym dispatch,
        failed = sym failed,
    )
}

/// The kernel's raw error in the C library's form.
extern "C" fn failed(raw: isize) -> c_long {
    sys::set_errno(-raw as i32);
    -1
}

/// Performs the call with this number. Argument registers that the call does not use contain arbitrary values
/// and are ignored.
unsafe extern "C-unwind" fn dispatch(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let fd = a as c_int;
    // SAFETY: by the caller's contract the arguments are what the system call of this number takes.
    let result = unsafe {
        match number {
            libc::SYS_read => return io::read(fd, b as _, c) as c_long,
            libc::SYS_write => return io::write(fd, b as _, c) as c_long,
            libc::SYS_readv => return io::readv(fd, b as _, c as c_int) as c_long,
            libc::SYS_writev => return io::writev(fd, b as _, c as c_int) as c_long,
            libc::SYS_recvfrom => return io::recvfrom(fd, b as _, c, d as c_int, e as _, f as _) as c_long,
            libc::SYS_sendto => return io::sendto(fd, b as _, c, d as c_int, e as _, f as _) as c_long,
            libc::SYS_recvmsg => return io::recvmsg(fd, b as _, c as c_int) as c_long,
            libc::SYS_sendmsg => return io::sendmsg(fd, b as _, c as c_int) as c_long,
            libc::SYS_sendfile => return transfer::sendfile(fd, b as c_int, c as _, d) as c_long,
            libc::SYS_splice => {
                return transfer::splice(fd, b as _, c as c_int, d as _, e, f as c_uint) as c_long;
            }
            libc::SYS_preadv2 => {
                return transfer::preadv2(fd, b as _, c as c_int, d as _, f as c_int) as c_long;
            }
            libc::SYS_pwritev2 => {
                return transfer::pwritev2(fd, b as _, c as c_int, d as _, f as c_int) as c_long;
            }
            libc::SYS_recvmmsg => batches::recvmmsg(fd, b as _, c as c_uint, d as c_int, e as _),
            libc::SYS_sendmmsg => batches::sendmmsg(fd, b as _, c as c_uint, d as c_int),
            libc::SYS_close => descriptors::close(fd),
            libc::SYS_close_range => descriptors::close_range(a as c_uint, b as c_uint, c as c_int),
            libc::SYS_dup => descriptors::dup(fd),
            libc::SYS_dup2 => descriptors::dup2(fd, b as c_int),
            libc::SYS_dup3 => descriptors::dup3(fd, b as c_int, c as c_int),
            libc::SYS_fcntl => descriptors::fcntl(fd, b as c_int, c as _),
            libc::SYS_ioctl => descriptors::ioctl(fd, b as _, c as _),
            libc::SYS_socket => sockets::socket(fd, b as c_int, c as c_int),
            libc::SYS_bind => sockets::bind(fd, b as _, c as _),
            libc::SYS_listen => sockets::listen(fd, b as c_int),
            libc::SYS_accept => sockets::accept(fd, b as _, c as _),
            libc::SYS_accept4 => sockets::accept4(fd, b as _, c as _, d as c_int),
            libc::SYS_connect => sockets::connect(fd, b as _, c as _),
            libc::SYS_shutdown => sockets::shutdown(fd, b as c_int),
            libc::SYS_getsockname => sockets::getsockname(fd, b as _, c as _),
            libc::SYS_getpeername => sockets::getpeername(fd, b as _, c as _),
            libc::SYS_getsockopt => sockets::getsockopt(fd, b as c_int, c as c_int, d as _, e as _),
            libc::SYS_setsockopt => sockets::setsockopt(fd, b as c_int, c as c_int, d as _, e as _),
            libc::SYS_poll => poll::poll(a as _, b as _, c as c_int),
            libc::SYS_ppoll if d == 0 || e == MASK_LEN => poll::ppoll(a as _, b as _, c as _, d as _),
            libc::SYS_select => poll::select(fd, b as _, c as _, d as _, e as _),
            libc::SYS_pselect6 => return pselect6([a, b, c, d, e, f]),
            libc::SYS_epoll_create => poll::epoll_create(fd),
            libc::SYS_epoll_create1 => poll::epoll_create1(fd),
            libc::SYS_epoll_ctl => poll::epoll_ctl(fd, b as c_int, c as c_int, d as _),
            libc::SYS_epoll_wait => poll::epoll_wait(fd, b as _, c as c_int, d as c_int),
            libc::SYS_epoll_pwait if e == 0 || f == MASK_LEN => {
                poll::epoll_pwait(fd, b as _, c as c_int, d as c_int, e as _)
            }
            libc::SYS_epoll_pwait2 if e == 0 || f == MASK_LEN => {
                poll::epoll_pwait2(fd, b as _, c as c_int, d as _, e as _)
            }
            // io_uring reads and writes without calling the filter. It is refused, so that libraries use
            // their other methods.
            libc::SYS_io_uring_setup => return failed(-(libc::ENOSYS as isize)),
            libc::SYS_fstat => stat::fstat(fd, b as _),
            libc::SYS_execve => exec::execve(a as _, b as _, c as _),
            libc::SYS_execveat => exec::execveat(fd, b as _, c as _, d as _, e as c_int),
            libc::SYS_chroot => processes::chroot(a as _),
            libc::SYS_rt_sigaction => {
                let raw = sys::raw6(number, [a, b, c, d, e, f]);
                signals::note(a as c_int);
                return passed(raw);
            }
            // A child of vfork would return through these frames.
            libc::SYS_fork | libc::SYS_vfork => libc::fork(),
            libc::SYS_clone if a & libc::CLONE_VM as usize == 0 => {
                return forking(|| sys::raw6(number, [a, b, c, d, e, f]));
            }
            libc::SYS_clone3 if copies_memory(a, b) => {
                return forking(|| sys::raw6(number, [a, b, c, d, e, f]));
            }
            _ => return passed(sys::raw6(number, [a, b, c, d, e, f])),
        }
    };
    c_long::from(result)
}

/// pselect6 with a descriptor that the filter serves; other calls are passed to the kernel, which stores the
/// remaining time.
///
/// # Safety
/// The arguments must be what the call takes.
unsafe fn pselect6(a: [usize; 6]) -> c_long {
    let [count, read, write, except, timeout, last] = a;
    // The sixth argument points to the mask and its length.
    let both = last as *const [usize; 2];
    // SAFETY: by the caller's contract the sixth argument is null or points to a mask's address and length.
    let [mask, len] = if is_unmappable(both) { [0, MASK_LEN] } else { unsafe { both.read_unaligned() } };
    // SAFETY: by the caller's contract the arguments are those of pselect6(2): pointers that are null or
    // valid for what it reads and writes.
    unsafe {
        if is_wrong(both)
            || (mask != 0 && len != MASK_LEN)
            || !Sets([read as _, write as _, except as _]).concern(count as c_int)
        {
            return passed(sys::raw6(libc::SYS_pselect6, a));
        }
        poll::pselect(count as c_int, read as _, write as _, except as _, timeout as _, mask as _).into()
    }
}

/// Whether clone3 is called for a child with memory and a stack of its own.
///
/// # Safety
/// `arguments` must be null or have `len` readable bytes.
unsafe fn copies_memory(arguments: usize, len: usize) -> bool {
    if is_unmappable(arguments as *const u64) || len < CLONE_ARGS_MIN {
        return false;
    }
    let word = |at: usize| (arguments + at) as *const u64;
    // SAFETY: by the caller's contract `arguments` points to a struct clone_args of `len` bytes; both words
    // lie within it.
    unsafe {
        word(0).read_unaligned() & libc::CLONE_VM as u64 == 0 && word(CLONE_STACK).read_unaligned() == 0
    }
}

/// A raw result in the C library's form.
fn passed(raw: isize) -> c_long {
    if (-4095..0).contains(&raw) { failed(raw) } else { raw as c_long }
}

/// A clone that copies the memory counts as a fork.
fn forking(clone: impl FnOnce() -> isize) -> c_long {
    fork::prepare();
    let raw = clone();
    if raw == 0 {
        fork::child()
    } else {
        fork::parent()
    }
    passed(raw)
}
