//! Threads that began to sleep in the kernel on an epoll set before the filter served it. The filter has not
//! counted them, but finds them in /proc. Used only if a program with several threads adds one set to
//! another.

use std::ffi::CString;

use libc::{c_int, c_long};

use crate::inherit::numbers_in;
use crate::sys::{self, syscall};

/// The calls that wait on a set.
const WAITS: [c_long; 3] = [libc::SYS_epoll_wait, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2];
/// Buffer size for a call's number and its first argument.
const CALL: usize = 64;

/// The state of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ThreadState {
    /// It runs, or was woken and will run.
    Runs,
    /// It sleeps in the kernel on this epoll descriptor.
    Waits(c_int),
    /// It sleeps on something else.
    Other,
}

/// The threads of this process that sleep in the kernel's epoll_wait on a descriptor that `is_meant` selects.
pub fn on(is_meant: impl Fn(c_int) -> bool) -> Vec<c_int> {
    let mut found = Vec::new();
    numbers_in(c"/proc/self/task", |thread| {
        if let Some(ThreadState::Waits(set)) = state_of(thread)
            && is_meant(set)
        {
            found.push(thread);
        }
    });
    found
}

/// Whether a thread that was found and woken has not yet begun to sleep on another descriptor.
pub fn is_waking(thread: c_int) -> bool {
    matches!(state_of(thread), Some(ThreadState::Runs | ThreadState::Waits(_)))
}

/// `None` for a thread that has ended.
fn state_of(thread: c_int) -> Option<ThreadState> {
    let path = CString::new(format!("/proc/self/task/{thread}/syscall")).ok()?;
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: the path is a C string.
    let file = unsafe { syscall!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0) }.ok()? as c_int;
    let mut call = [0u8; CALL];
    // SAFETY: `call` has CALL writable bytes.
    let len = unsafe { syscall!(libc::SYS_read, file, call.as_mut_ptr(), CALL) };
    sys::close(file);
    let call = call.get(..len.ok()?)?;
    Some(if call.starts_with(b"running") {
        ThreadState::Runs
    } else {
        waited_on(call).map_or(ThreadState::Other, ThreadState::Waits)
    })
}

/// The epoll descriptor of a call such as `232 0x5 0x7ffc54…` (its number, then its arguments); `None` for
/// other calls.
fn waited_on(call: &[u8]) -> Option<c_int> {
    let mut words = core::str::from_utf8(call).ok()?.split(' ');
    let number = words.next()?.parse().ok()?;
    let set = words.next()?.strip_prefix("0x")?;
    if WAITS.contains(&number) { c_int::from_str_radix(set, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_waits_is_found_by_its_set() {
        // SAFETY: no pointers.
        let epoll = unsafe { syscall!(libc::SYS_epoll_create1, 0) }.unwrap() as c_int;
        let wake = sys::eventfd().unwrap();
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: `event` is readable.
        unsafe { syscall!(libc::SYS_epoll_ctl, epoll, libc::EPOLL_CTL_ADD, wake, &raw mut event) }.unwrap();
        assert_eq!(on(|fd| fd == epoll), []);
        let waits = std::thread::spawn(move || {
            let mut got = libc::epoll_event { events: 0, u64: 0 };
            // SAFETY: `got` is writable.
            unsafe { syscall!(libc::SYS_epoll_wait, epoll, &raw mut got, 1, usize::MAX) }
        });
        while on(|fd| fd == epoll).is_empty() {
            std::thread::yield_now();
        }
        let thread = on(|fd| fd == epoll)[0];
        assert!(is_waking(thread));
        sys::signal(wake);
        assert_eq!(waits.join().unwrap(), Ok(1));
        while is_waking(thread) {
            std::thread::yield_now();
        }
        assert_eq!(on(|fd| fd == epoll), []);
    }

    #[test]
    fn only_waits_on_sets_are_notified() {
        assert_eq!(waited_on(b"281 0x2f 0x7ffc 0x4 0xffffffff 0x0 0x8 0x1 0x2\n"), Some(47));
        for other in [&b"running\n"[..], b"0 0x5 0x7ffc 0x4", b"-1 0x7ffc 0x4\n", b"232", b""] {
            assert_eq!(waited_on(other), None);
        }
    }
}
