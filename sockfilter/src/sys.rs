//! Raw system calls: they bypass the program's and the filter's exports, leave errno unchanged, and are not
//! cancellation points.

use core::arch::asm;

use libc::{c_int, c_long};

use crate::fdtable;

/// A Linux error number.
pub type Errno = i32;

/// The system call `number` with six arguments; the kernel's raw result.
///
/// # Safety
/// The arguments must be what that call allows; pointers must be valid for what it does with them.
pub unsafe fn raw6(number: c_long, a: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the x86-64 system call convention: rcx and r11 are clobbered, memory may change. The arguments
    // are valid by this function's contract.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2], in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    result
}

/// A raw result as value or error.
pub fn checked(result: isize) -> Result<usize, Errno> {
    if (-4095..0).contains(&result) { Err(-result as Errno) } else { Ok(result as usize) }
}

/// `syscall!(number, arguments...)`: a raw system call as `Result<usize, Errno>`. Unsafe as [`raw6`] is.
macro_rules! syscall {
    ($number:expr) => { $crate::sys::checked($crate::sys::raw6($number, [0; 6])) };
    ($number:expr, $a:expr) => { $crate::sys::checked($crate::sys::raw6($number, [$a as usize, 0, 0, 0, 0, 0])) };
    ($number:expr, $a:expr, $b:expr) => {
        $crate::sys::checked($crate::sys::raw6($number, [$a as usize, $b as usize, 0, 0, 0, 0]))
    };
    ($number:expr, $a:expr, $b:expr, $c:expr) => {
        $crate::sys::checked($crate::sys::raw6($number, [$a as usize, $b as usize, $c as usize, 0, 0, 0]))
    };
    ($number:expr, $a:expr, $b:expr, $c:expr, $d:expr) => {
        $crate::sys::checked($crate::sys::raw6(
            $number,
            [$a as usize, $b as usize, $c as usize, $d as usize, 0, 0],
        ))
    };
    ($number:expr, $a:expr, $b:expr, $c:expr, $d:expr, $e:expr) => {
        $crate::sys::checked($crate::sys::raw6(
            $number,
            [$a as usize, $b as usize, $c as usize, $d as usize, $e as usize, 0],
        ))
    };
    ($number:expr, $a:expr, $b:expr, $c:expr, $d:expr, $e:expr, $f:expr) => {
        $crate::sys::checked($crate::sys::raw6(
            $number,
            [$a as usize, $b as usize, $c as usize, $d as usize, $e as usize, $f as usize],
        ))
    };
}
pub(crate) use syscall;

/// The calling thread's errno.
pub fn errno() -> Errno {
    // SAFETY: the C library always returns a valid pointer to the thread's errno.
    unsafe { *libc::__errno_location() }
}

/// Sets the calling thread's errno.
pub fn set_errno(value: Errno) {
    // SAFETY: as in `errno`.
    unsafe { *libc::__errno_location() = value }
}

/// Closes a descriptor.
pub fn close(fd: c_int) {
    // SAFETY: no pointers. Callers own the descriptor.
    let _ = unsafe { syscall!(libc::SYS_close, fd) };
}

/// Returns the process id from the kernel. (A vfork child shares every cache with its parent.)
pub fn getpid() -> c_int {
    // SAFETY: no arguments.
    unsafe { syscall!(libc::SYS_getpid) }.unwrap_or(0) as c_int
}

/// Lets other threads use this processor (sched_yield).
pub fn yield_processor() {
    // SAFETY: no arguments, no memory.
    let _ = unsafe { syscall!(libc::SYS_sched_yield) };
}

/// CLOCK_MONOTONIC (through the vDSO), in nanoseconds.
pub fn monotonic_nanos() -> u64 {
    clock_nanos(libc::CLOCK_MONOTONIC)
}

/// Returns Unix time in seconds, at most some milliseconds late. Tokens need no more precision, and the call
/// is frequent.
pub fn unix_seconds() -> u64 {
    clock_nanos(libc::CLOCK_REALTIME_COARSE) / 1_000_000_000
}

fn clock_nanos(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable; the C library's clock_gettime is async-signal-safe and not one of our
    // exports.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// A new non-blocking, close-on-exec eventfd with a high number, which leaves low numbers to the program.
pub fn eventfd() -> Result<c_int, Errno> {
    let flags = libc::EFD_CLOEXEC | libc::EFD_NONBLOCK;
    // SAFETY: no pointers.
    let fd = unsafe { syscall!(libc::SYS_eventfd2, 0, flags) }? as c_int;
    Ok(move_high(fd))
}

/// Makes an eventfd readable.
pub fn signal(fd: c_int) {
    let one = 1u64;
    // SAFETY: `one` is 8 readable bytes.
    let _ = unsafe { syscall!(libc::SYS_write, fd, &raw const one, 8) };
}

/// Makes an eventfd unreadable.
pub fn clear(fd: c_int) {
    let mut count = 0u64;
    // SAFETY: `count` is 8 writable bytes.
    let _ = unsafe { syscall!(libc::SYS_read, fd, &raw mut count, 8) };
}

/// Moves a descriptor of the filter to a high number, so that the program gets the lowest numbers; if that
/// fails the descriptor remains unchanged.
pub fn move_high(fd: c_int) -> c_int {
    let high = duplicate_high(fd);
    if high.is_ok() {
        close(fd);
    }
    high.unwrap_or(fd)
}

/// A duplicate with a high number, closed over exec.
pub fn duplicate_high(fd: c_int) -> Result<c_int, Errno> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable.
    let known = unsafe { syscall!(libc::SYS_prlimit64, 0, libc::RLIMIT_NOFILE, 0, &raw mut limit) };
    let from = if known.is_ok() { (limit.rlim_cur / 4 * 3).min(4_000) } else { 0 };
    // SAFETY: no pointers.
    unsafe { syscall!(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, from) }.map(|high| high as c_int)
}

/// Writes a line to standard error, completely or not at all. If standard error is a connection (as with
/// inetd and vsftpd), nothing is written, since its client would read it.
pub fn log_line(text: &str) {
    if fdtable::entry(2) != fdtable::Entry::Kernel {
        return;
    }
    let mut line = [0u8; 512];
    let mut len = 0;
    for byte in b"csp-sockfilter: ".iter().chain(text.as_bytes()).take(511) {
        line[len] = *byte;
        len += 1;
    }
    line[len] = b'\n';
    // SAFETY: `line` has `len + 1` readable bytes.
    let _ = unsafe { syscall!(libc::SYS_write, 2, line.as_ptr(), len + 1) };
}

/// Converts nanoseconds to the kernel's form.
pub fn timespec(ns: u64) -> libc::timespec {
    libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

/// Waits on descriptors. A `timeout_ns` of `None` waits without limit. Returns the kernel's count, or an
/// error.
///
/// # Safety
/// `mask`, where not null, must point to the kernel's signal set of 8 bytes.
pub unsafe fn ppoll(
    fds: &mut [libc::pollfd],
    timeout_ns: Option<u64>,
    mask: *const libc::sigset_t,
) -> Result<usize, Errno> {
    let time = timeout_ns.map(timespec);
    let time_pointer = time.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: `fds` is a writable array, `time` outlives the call, the caller vouches for `mask`.
    unsafe { syscall!(libc::SYS_ppoll, fds.as_mut_ptr(), fds.len(), time_pointer, mask, 8) }
}

/// Random bits.
pub fn random() -> u64 {
    let mut bits = 0u64;
    // SAFETY: `bits` is 8 writable bytes.
    let _ = unsafe { syscall!(libc::SYS_getrandom, &raw mut bits, 8, libc::GRND_NONBLOCK) };
    bits ^ monotonic_nanos().rotate_left(32)
}
