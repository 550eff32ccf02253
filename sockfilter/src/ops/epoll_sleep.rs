//! epoll_wait's sleep in the kernel, and the processing of its result.

use core::ffi::c_void;

use libc::{c_int, epoll_event, sigset_t};

use crate::description::{Description, DescriptionId, Kind};
use crate::engine::{ENGINE, Engine};
use crate::fdtable::{self, Entry};
use crate::sys::{self, Errno};
use crate::wait::Deadline;
use crate::{cancel, lock, real};

/// The kernel's wait. A time-out that is not a whole number of milliseconds is exact if the kernel supports
/// it, else rounded up to a millisecond, so that the call never returns early.
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
        // SAFETY: by the caller's contract `events` has room for `count` entries and `mask` is null or points
        // to a signal set.
        let found = unsafe { real::epoll_pwait2(epoll, events, count, &raw const time, mask) };
        if found >= 0 || sys::errno() != libc::ENOSYS {
            return found;
        }
    }
    let millis = timeout_ns.map_or(-1, |ns| ns.div_ceil(1_000_000).min(i32::MAX as u64) as c_int);
    // SAFETY: by the caller's contract `events` has room for `count` entries and `mask` is null or points to
    // a signal set.
    unsafe { real::epoll_pwait(epoll, events, count, millis, mask) }
}

/// Releases the registrations of a thread that was cancelled while it slept on a set.
///
/// # Safety
/// `set` must point to the set's id.
unsafe extern "C" fn cancelled(set: *mut c_void) {
    // SAFETY: by this function's contract `set` points to a `DescriptionId`.
    let id = unsafe { *set.cast::<DescriptionId>() };
    ENGINE.with(|engine| {
        engine.wake_sleeper(id);
        engine.end_call(id);
    });
}

/// One sleep of a call on a set.
pub(super) struct KernelSleep {
    /// The set.
    pub id: DescriptionId,
    /// A descriptor of it.
    pub epoll: c_int,
    /// Number of events found before.
    pub found: usize,
    /// Whether it is the turn of the kernel's members: they are reported before accelerated ones, for which
    /// one entry is reserved unless it is the only one.
    pub turn: bool,
    /// Time limit of this sleep, in nanoseconds.
    pub time_ns: Option<u64>,
    /// The deadline of the call.
    pub deadline: Deadline,
}

/// Waits in the kernel and removes the filter's own events. Returns the number of the program's events, with
/// those found before; this, like an error, ends the call. `None`: the call continues.
///
/// # Safety
/// `mask` must be null or point to a signal set.
pub(super) unsafe fn kernel_wait(
    kernel_sleep: &KernelSleep,
    events: &mut [epoll_event],
    mask: *const sigset_t,
) -> Result<Option<usize>, Errno> {
    let end = if kernel_sleep.turn { (events.len() - 1).max(1) } else { events.len() };
    let rest = events.get_mut(kernel_sleep.found..end).unwrap_or(&mut []);
    let count = c_int::try_from(rest.len()).unwrap_or(c_int::MAX);
    let errno = sys::errno();
    let mut sleeper = kernel_sleep.id;
    // SAFETY: `rest` is writable for `count` entries; `mask` is null or a signal set by this function's
    // contract.
    let slept = cancel::guarded(&mut sleeper, cancelled, || unsafe {
        sleep(kernel_sleep.epoll, rest.as_mut_ptr(), count, kernel_sleep.time_ns, mask)
    });
    let slept = usize::try_from(slept).map_err(|_| sys::errno());
    sys::set_errno(errno);
    ENGINE.with(|engine| {
        engine.wake_sleeper(kernel_sleep.id);
        let result = engine.slept(kernel_sleep, events, slept);
        if result != Ok(None) {
            engine.end_call(kernel_sleep.id);
        }
        result
    })
}

impl Engine {
    /// Records that a thread no longer sleeps on a set.
    pub(super) fn wake_sleeper(&mut self, id: DescriptionId) {
        if let Some(set) = self.epoll_set(id) {
            set.sleepers = set.sleepers.saturating_sub(1);
            set.roused = set.roused.min(set.sleepers);
            let waker = set.wake;
            self.awake(waker);
        }
    }

    /// Called before a descriptor is closed or replaced. Threads that wait on the set behind it continue to
    /// wait until their calls end, as in the kernel.
    pub fn outlive(&mut self, fd: c_int) {
        let Entry::Ours(index) = fdtable::entry(fd) else { return };
        let Some(Description { calls: 1.., kind: Kind::Epoll(set), .. }) = self.descriptions.get_mut(index)
        else {
            return;
        };
        if set.outliving.is_none() {
            set.outliving = sys::duplicate_high(fd).ok();
            set.outliving.into_iter().for_each(fdtable::hide);
        }
    }

    /// The descriptor by which a call that began with `epoll` continues; -1 if a signal handler that
    /// interrupted the filter closed it.
    pub(super) fn still_by(&mut self, epoll: c_int, id: DescriptionId) -> c_int {
        if fdtable::entry(epoll) == Entry::Ours(id.index) {
            return epoll;
        }
        self.epoll_set(id).and_then(|set| set.outliving).unwrap_or(-1)
    }

    /// Evaluates the result of a sleep.
    fn slept(
        &mut self,
        kernel_sleep: &KernelSleep,
        events: &mut [epoll_event],
        slept: Result<usize, Errno>,
    ) -> Result<Option<usize>, Errno> {
        let kernel = match slept {
            Ok(kernel) => kernel,
            Err(_) if kernel_sleep.found > 0 => return Ok(Some(kernel_sleep.found)),
            // The descriptor was closed just before the system call.
            Err(libc::EBADF | libc::EINVAL) if self.has_moved(kernel_sleep) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        let (kept, ours) =
            self.strip_own(kernel_sleep.id, events.get_mut(kernel_sleep.found..).unwrap_or(&mut []), kernel);
        let mut found = kernel_sleep.found + kept;
        // Accelerated members may be ready besides the kernel's.
        if kernel_sleep.turn || (ours && kept > 0 && kernel_sleep.found == 0) {
            self.progress();
            found += self.collect(kernel_sleep.id, events.get_mut(found..).unwrap_or(&mut [])).unwrap_or(0);
        }
        Ok(if found > 0 || (!ours && kernel_sleep.deadline.is_over()) { Some(found) } else { None })
    }

    fn has_moved(&mut self, kernel_sleep: &KernelSleep) -> bool {
        let by = self.still_by(kernel_sleep.epoll, kernel_sleep.id);
        by >= 0 && by != kernel_sleep.epoll
    }

    /// Removes the filter's own events from the `n` that the kernel returned. Returns the number of the
    /// program's events, and whether there were events of the filter.
    fn strip_own(&mut self, id: DescriptionId, events: &mut [epoll_event], n: usize) -> (usize, bool) {
        let Some(set) = self.epoll_set(id) else { return (n, false) };
        let found = set.strip(events.get_mut(..n).unwrap_or(&mut []));
        if found.ours {
            if found.woken && !set.watched {
                sys::clear(set.wake);
            }
            self.woken(found.agent);
        }
        (found.kept, found.ours)
    }
}

/// Removes the filter's events from the result of a call that was passed to the kernel before the filter
/// began to serve the set. Returns the number of the program's events.
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
