//! Waiting: poll, select, epoll, in all variants.

use core::slice;

use libc::{c_int, epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, time_t, timespec, timeval};

use crate::fdtable::{self, Entry};
use crate::memory::{is_unmappable, is_wrong};
use crate::ops::{
    c_int_result, epoll, epoll_sleep, error_events, poll as poll_ops, select as select_ops, watched,
};
use crate::sys;
use crate::{lock, real};

fn of_millis(timeout: c_int) -> Option<u64> {
    u64::try_from(timeout).ok().map(|ms| ms * 1_000_000)
}

/// Nanoseconds of a time-out; null: no limit. `Err` for an ill-formed one.
///
/// # Safety
/// `time` must be null, readable, or [nowhere](is_unmappable).
pub unsafe fn of_timespec(time: *const timespec) -> Result<Option<u64>, sys::Errno> {
    if time.is_null() {
        return Ok(None);
    }
    if is_unmappable(time) {
        return Err(libc::EFAULT);
    }
    // SAFETY: by the caller's contract `time` is null or points to a time.
    let t = unsafe { time.read_unaligned() };
    nanos(t.tv_sec, t.tv_nsec, 1)
}

fn nanos(seconds: time_t, fraction: i64, unit: i64) -> Result<Option<u64>, sys::Errno> {
    if seconds < 0 || !(0..1_000_000_000 / unit).contains(&fraction) {
        return Err(libc::EINVAL);
    }
    Ok(Some((seconds as u64).saturating_mul(1_000_000_000).saturating_add((fraction * unit) as u64)))
}

/// The program's poll set, if the filter serves any descriptor in it.
unsafe fn ours<'a>(fds: *mut pollfd, count: nfds_t) -> Option<&'a mut [pollfd]> {
    if is_unmappable(fds) || count == 0 || count as usize > fdtable::DESCRIPTORS_MAX {
        return None;
    }
    // SAFETY: by the caller's contract `fds` has `count` entries.
    let fds = unsafe { slice::from_raw_parts_mut(fds, count as usize) };
    poll_ops::concerns(fds).then_some(fds)
}

/// poll(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: by the caller's contract `fds` has `count` entries.
    match unsafe { ours(fds, count) } {
        Some(set) => poll_ours(set, timeout),
        // SAFETY: by the caller's contract `fds` has `count` entries.
        None => unsafe {
            or_late(fds, count, || real::poll(fds, count, timeout), |set| poll_ours(set, timeout))
        },
    }
}

fn poll_ours(set: &mut [pollfd], timeout: c_int) -> c_int {
    // SAFETY: no mask.
    c_int_result(unsafe { poll_ops::poll(set, of_millis(timeout), core::ptr::null()) })
}

/// Calls the kernel's poll. If the filter began to serve an epoll set meanwhile, the result may contain the
/// filter's own events of that set: the filter then repeats the call.
unsafe fn or_late(
    fds: *mut pollfd,
    count: nfds_t,
    kernel: impl FnOnce() -> c_int,
    again: impl FnOnce(&mut [pollfd]) -> c_int,
) -> c_int {
    let before = epoll::sets_made();
    let found = kernel();
    if found <= 0 || epoll::sets_made() == before {
        return found;
    }
    // SAFETY: by the caller's contract `fds` has `count` entries.
    unsafe { ours(fds, count) }.map_or(found, again)
}

/// poll(2) with the array's size checked.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    room: size_t,
) -> c_int {
    // SAFETY: by the caller's contract `fds` has `count` entries.
    match unsafe { ours(fds, count) } {
        Some(set) if size_of_val(set) <= room => poll_ours(set, timeout),
        // SAFETY: by the caller's contract `fds` has `count` entries; the C library reports an array that is
        // too small.
        _ => unsafe { real::__poll_chk(fds, count, timeout, room) },
    }
}

unsafe fn ppoll_ours(set: &mut [pollfd], timeout: *const timespec, mask: *const sigset_t) -> c_int {
    // SAFETY: by the caller's contract `timeout` is null or points to a time and `mask` is null or points to
    // a signal set.
    c_int_result(unsafe { of_timespec(timeout).and_then(|ns| poll_ops::poll(set, ns, mask)) })
}

/// ppoll(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // The C library reads the time itself.
    if is_wrong(timeout) {
        return c_int_result(Err(libc::EFAULT));
    }
    // SAFETY: by the caller's contract `fds` has `count` entries, `timeout` is null or points to a time and
    // `mask` is null or points to a signal set.
    match unsafe { ours(fds, count) } {
        // SAFETY: by the caller's contract `fds` has `count` entries, `timeout` is null or points to a time
        // and `mask` is null or points to a signal set.
        Some(set) => unsafe { ppoll_ours(set, timeout, mask) },
        // SAFETY: by the caller's contract `fds` has `count` entries, `timeout` is null or points to a time
        // and `mask` is null or points to a signal set.
        None => unsafe {
            let kernel = || real::ppoll(fds, count, timeout, mask);
            or_late(fds, count, kernel, |set| ppoll_ours(set, timeout, mask))
        },
    }
}

/// ppoll(2) with the array's size checked.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: size_t,
) -> c_int {
    // SAFETY: by the caller's contract `fds` has `count` entries, `timeout` is null or points to a time and
    // `mask` is null or points to a signal set.
    match unsafe { ours(fds, count) } {
        // SAFETY: by the caller's contract `fds` has `count` entries, `timeout` is null or points to a time
        // and `mask` is null or points to a signal set.
        Some(set) if size_of_val(set) <= room => unsafe { ppoll_ours(set, timeout, mask) },
        // SAFETY: by the caller's contract `fds` has `count` entries, `timeout` is null or points to a time
        // and `mask` is null or points to a signal set.
        _ => unsafe { real::__ppoll_chk(fds, count, timeout, mask, room) },
    }
}

/// select(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // The C library reads the time itself.
    if is_wrong(timeout) {
        return c_int_result(Err(libc::EFAULT));
    }
    let sets = select_ops::Sets([read, write, except]);
    // SAFETY: by the caller's contract each set is null or covers `count` descriptors and `timeout` is null
    // or points to a time.
    if !unsafe { sets.concern(count) } {
        // SAFETY: by the caller's contract each set is null or covers `count` descriptors and `timeout` is
        // null or points to a time.
        return unsafe { real::select(count, read, write, except, timeout) };
    }
    let limit = if timeout.is_null() {
        Ok(None)
    } else {
        // SAFETY: by the caller's contract each set is null or covers `count` descriptors and `timeout` is
        // null or points to a time.
        let t = unsafe { timeout.read_unaligned() };
        // Linux accepts more than a second's worth of microseconds.
        nanos(t.tv_sec.saturating_add(t.tv_usec.div_euclid(1_000_000)), t.tv_usec.rem_euclid(1_000_000), 1000)
    };
    let began = sys::monotonic_nanos();
    // SAFETY: by the caller's contract each set is null or covers `count` descriptors and `timeout` is null
    // or points to a time; no mask.
    let result = limit.and_then(|ns| unsafe { sets.select(count, ns, core::ptr::null()) });
    if let Ok(Some(ns)) = limit {
        // Linux stores the remaining time.
        let left = ns.saturating_sub(sys::monotonic_nanos() - began) / 1000;
        let remaining = timeval { tv_sec: (left / 1_000_000) as i64, tv_usec: (left % 1_000_000) as i64 };
        // SAFETY: by the caller's contract each set is null or covers `count` descriptors and `timeout` is
        // null or points to a time.
        unsafe { timeout.write_unaligned(remaining) };
    }
    c_int_result(result)
}

/// pselect(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // The C library reads the time itself.
    if is_wrong(timeout) {
        return c_int_result(Err(libc::EFAULT));
    }
    let sets = select_ops::Sets([read, write, except]);
    // SAFETY: by the caller's contract each set is null or covers `count` descriptors, `timeout` is null or
    // points to a time and `mask` is null or points to a signal set.
    unsafe {
        if !sets.concern(count) {
            return real::pselect(count, read, write, except, timeout, mask);
        }
        c_int_result(of_timespec(timeout).and_then(|ns| sets.select(count, ns, mask)))
    }
}

/// epoll_create(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn epoll_create(size: c_int) -> c_int {
    // SAFETY: no pointers.
    watched::created(unsafe { real::epoll_create(size) })
}

/// epoll_create1(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: no pointers.
    watched::created(unsafe { real::epoll_create1(flags) })
}

/// epoll_ctl(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn epoll_ctl(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    if fdtable::entry(fd) != Entry::Kernel || fdtable::entry(epoll) != Entry::Kernel {
        // SAFETY: by the caller's contract `event` is null or points to an event.
        if let Some(result) = unsafe { epoll::control(epoll, operation, fd, event) } {
            return c_int_result(result);
        }
    }
    // SAFETY: by the caller's contract `event` is null or points to an event.
    unsafe { real::epoll_ctl(epoll, operation, fd, event) }
}

/// The common part of all variants of epoll_wait; `kernel` is the next library's function.
unsafe fn epoll_any(
    set: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: Result<Option<u64>, sys::Errno>,
    mask: *const sigset_t,
    kernel: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: by the caller's contract `events` has room for `count` entries and `mask` is null or points to
    // a signal set.
    let found = unsafe { epoll_each(set, events, count, timeout, mask, kernel) };
    if found < 2 {
        return found;
    }
    // SAFETY: so many entries were written.
    error_events::join(unsafe { slice::from_raw_parts_mut(events, found as usize) }) as c_int
}

/// Like [`epoll_any`], with an event for each registration in the kernel's set: `error_events` may have
/// registered two descriptors for one member.
unsafe fn epoll_each(
    set: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: Result<Option<u64>, sys::Errno>,
    mask: *const sigset_t,
    kernel: impl FnOnce() -> c_int,
) -> c_int {
    let room = usize::try_from(count).unwrap_or(0);
    if is_unmappable(events) || room == 0 || lock::inside() {
        return kernel();
    }
    let timeout = match timeout {
        Ok(timeout) => timeout,
        Err(errno) => return c_int_result(Err(errno)),
    };
    let late = if fdtable::is_ours(set) {
        None
    } else {
        let found = kernel();
        if found <= 0 || !fdtable::is_ours(set) {
            return found;
        }
        Some(found as usize)
    };
    // SAFETY: by the caller's contract `events` has room for `count` entries.
    let events = unsafe { slice::from_raw_parts_mut(events, room) };
    if let Some(found) = late {
        let kept = epoll_sleep::strip_late(set, events.get_mut(..found).unwrap_or(&mut []));
        if kept > 0 {
            return kept as c_int;
        }
    }
    // SAFETY: by the caller's contract `events` has room for `count` entries and `mask` is null or points to
    // a signal set.
    match unsafe { epoll::wait(set, events, timeout, mask) } {
        Some(result) => c_int_result(result),
        None => c_int_result(Err(libc::EINVAL)),
    }
}

/// epoll_wait(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn epoll_wait(
    set: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: c_int,
) -> c_int {
    // SAFETY: by the caller's contract `events` has room for `count` entries.
    let kernel = || unsafe { real::epoll_wait(set, events, count, timeout) };
    // SAFETY: by the caller's contract `events` has room for `count` entries.
    unsafe { epoll_any(set, events, count, Ok(of_millis(timeout)), core::ptr::null(), kernel) }
}

/// epoll_pwait(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn epoll_pwait(
    set: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: by the caller's contract `events` has room for `count` entries and `mask` is null or points to
    // a signal set.
    let kernel = || unsafe { real::epoll_pwait(set, events, count, timeout, mask) };
    // SAFETY: by the caller's contract `events` has room for `count` entries and `mask` is null or points to
    // a signal set.
    unsafe { epoll_any(set, events, count, Ok(of_millis(timeout)), mask, kernel) }
}

/// epoll_pwait2(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn epoll_pwait2(
    set: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: by the caller's contract `events` has room for `count` entries, `timeout` is null or points to
    // a time and `mask` is null or points to a signal set.
    let kernel = || unsafe { real::epoll_pwait2(set, events, count, timeout, mask) };
    // SAFETY: by the caller's contract `events` has room for `count` entries, `timeout` is null or points to
    // a time and `mask` is null or points to a signal set.
    unsafe { epoll_any(set, events, count, of_timespec(timeout), mask, kernel) }
}
