//! epoll_wait's sleep in the kernel, and what is done with what the kernel found.

use core::ffi::c_void;

use libc::{c_int, epoll_event, sigset_t};

use crate::description::{Description, DescriptionId, Kind};
use crate::engine::{ENGINE, Engine};
use crate::fdtable::{self, Entry};
use crate::sys::{self, Errno};
use crate::{cancel, lock, real};

/// The kernel's wait: to the nanosecond where the time-out is no whole milliseconds and the kernel can, else to the
/// millisecond, rounded up: never awake before the time.
///
/// # Safety
/// As epoll_pwait.
unsafe fn sleep(
    epoll: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout_ns: Option<u64>,
    mask: *const sigset_t,
) -> c_int {
    if let Some(ns) = timeout_ns.filter(|ns| !ns.is_multiple_of(1_000_000)) {
        let time = sys::timespec(ns);
        // SAFETY: the caller's promise.
        let found = unsafe { real::epoll_pwait2(epoll, events, count, &raw const time, mask) };
        if found >= 0 || sys::errno() != libc::ENOSYS {
            return found;
        }
    }
    let millis = timeout_ns.map_or(-1, |ns| ns.div_ceil(1_000_000).min(i32::MAX as u64) as c_int);
    // SAFETY: the caller's promise.
    unsafe { real::epoll_pwait(epoll, events, count, millis, mask) }
}

/// A thread that slept on a set was cancelled.
///
/// # Safety
/// `set` must point to the set's id.
unsafe extern "C" fn cancelled(set: *mut c_void) {
    // SAFETY: the caller's promise.
    let id = unsafe { *set.cast::<DescriptionId>() };
    ENGINE.with(|engine| {
        engine.wake_sleeper(id);
        engine.end_call(id);
    });
}

/// Waits in the kernel and takes our own events out; ends the call that the look before it began. The program's events, and
/// whether ours were among them.
///
/// # Safety
/// `mask` must be null or point to a signal set.
pub(super) unsafe fn kernel_wait(
    epoll: c_int,
    id: DescriptionId,
    events: &mut [epoll_event],
    timeout_ns: Option<u64>,
    mask: *const sigset_t,
) -> Result<(usize, bool), Errno> {
    let count = c_int::try_from(events.len()).unwrap_or(c_int::MAX);
    let errno = sys::errno();
    let mut sleeper = id;
    // SAFETY: `events` is writable for `count` entries; the caller vouches for the mask.
    let found = cancel::guarded(&mut sleeper, cancelled, || unsafe {
        sleep(epoll, events.as_mut_ptr(), count, timeout_ns, mask)
    });
    let found = usize::try_from(found).map_err(|_| sys::errno());
    sys::set_errno(errno);
    ENGINE.with(|engine| {
        engine.wake_sleeper(id);
        let found = found.map(|n| engine.strip_own(id, events, n));
        engine.end_call(id);
        found
    })
}

impl Engine {
    /// A thread sleeps on a set no more.
    pub(super) fn wake_sleeper(&mut self, id: DescriptionId) {
        if let Some(set) = self.epoll_set(id) {
            set.sleepers = set.sleepers.saturating_sub(1);
            set.roused = set.roused.min(set.sleepers);
            let waker = set.wake;
            self.awake(waker);
        }
    }

    /// Takes our own events out of the `n` that the kernel found. The program's, and whether ours were among them.
    fn strip_own(&mut self, id: DescriptionId, events: &mut [epoll_event], n: usize) -> (usize, bool) {
        let Some(set) = self.epoll_set(id) else { return (n, false) };
        let found = set.strip(events.get_mut(..n).unwrap_or(&mut []));
        if found.ours {
            if !set.watched {
                sys::clear(set.wake);
            }
            self.woken(found.agent);
        }
        if !found.ours || self.descriptions.is_open(id) {
            return (found.kept, found.ours);
        }
        // The set was closed meanwhile, and ends with this call.
        self.progress();
        let rest = events.get_mut(found.kept..).unwrap_or(&mut []);
        (found.kept + self.collect(id, rest).unwrap_or(0), false)
    }
}

/// The kernel answered a call that did not concern us when it began: a set that became ours meanwhile has events of
/// ours among them. Returns how many are the program's.
pub fn strip_late(epoll: c_int, events: &mut [epoll_event]) -> usize {
    let Entry::Ours(index) = fdtable::entry(epoll) else { return events.len() };
    if lock::inside() {
        return events.len();
    }
    ENGINE.with(|engine| match engine.descriptions.get(index) {
        Some(Description { kind: Kind::Epoll(set), .. }) => set.strip(events).kept,
        _ => events.len(),
    })
}
