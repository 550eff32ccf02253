//! epoll_wait's sleep in the kernel, and what is done with what the kernel found.

use core::ffi::c_void;

use libc::{c_int, epoll_event, sigset_t};

use crate::description::{Description, DescriptionId, Kind};
use crate::engine::{ENGINE, Engine};
use crate::fdtable::{self, Entry};
use crate::sys::{self, Errno};
use crate::wait::Deadline;
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
        // SAFETY: by the caller's contract `events` has room for `count` entries and `mask` is null or points to a
        // signal set.
        let found = unsafe { real::epoll_pwait2(epoll, events, count, &raw const time, mask) };
        if found >= 0 || sys::errno() != libc::ENOSYS {
            return found;
        }
    }
    let millis = timeout_ns.map_or(-1, |ns| ns.div_ceil(1_000_000).min(i32::MAX as u64) as c_int);
    // SAFETY: by the caller's contract `events` has room for `count` entries and `mask` is null or points to a
    // signal set.
    unsafe { real::epoll_pwait(epoll, events, count, millis, mask) }
}

/// A thread that slept on a set was cancelled.
///
/// # Safety
/// `set` must point to the set's id.
unsafe extern "C" fn cancelled(set: *mut c_void) {
    // SAFETY: by the caller's contract `set` is writable for `len` bytes.
    let id = unsafe { *set.cast::<DescriptionId>() };
    ENGINE.with(|engine| {
        engine.wake_sleeper(id);
        engine.end_call(id);
    });
}

/// One sleep of a counted call on a set.
pub(super) struct Nap {
    /// The set.
    pub id: DescriptionId,
    /// A descriptor of it.
    pub epoll: c_int,
    /// Events that were found before.
    pub found: usize,
    /// How long at most, in nanoseconds.
    pub time_ns: Option<u64>,
    /// When the call ends.
    pub deadline: Deadline,
}

/// Waits in the kernel and takes our own events out. How many of the program's there are, with those found before, which
/// ends the call as an error does; `None`: it goes on.
///
/// # Safety
/// `mask` must be null or point to a signal set.
pub(super) unsafe fn kernel_wait(
    nap: &Nap,
    events: &mut [epoll_event],
    mask: *const sigset_t,
) -> Result<Option<usize>, Errno> {
    let rest = events.get_mut(nap.found..).unwrap_or(&mut []);
    let count = c_int::try_from(rest.len()).unwrap_or(c_int::MAX);
    let errno = sys::errno();
    let mut sleeper = nap.id;
    // SAFETY: `rest` is writable for `count` entries; the caller vouches for the mask.
    let slept = cancel::guarded(&mut sleeper, cancelled, || unsafe {
        sleep(nap.epoll, rest.as_mut_ptr(), count, nap.time_ns, mask)
    });
    let slept = usize::try_from(slept).map_err(|_| sys::errno());
    sys::set_errno(errno);
    ENGINE.with(|engine| {
        engine.wake_sleeper(nap.id);
        let result = engine.slept(nap, events, slept);
        if result != Ok(None) {
            engine.end_call(nap.id);
        }
        result
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

    /// A number is about to be closed or replaced. Threads that wait on the set behind it do so until their calls end, as
    /// they do in the kernel.
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

    /// The descriptor by which a call goes on that began with `epoll`; none that is open where a signal handler closed it
    /// that interrupted the filter.
    pub(super) fn still_by(&mut self, epoll: c_int, id: DescriptionId) -> c_int {
        if fdtable::entry(epoll) == Entry::Ours(id.index) {
            return epoll;
        }
        self.epoll_set(id).and_then(|set| set.outliving).unwrap_or(-1)
    }

    /// What a sleep gave.
    fn slept(
        &mut self,
        nap: &Nap,
        events: &mut [epoll_event],
        slept: Result<usize, Errno>,
    ) -> Result<Option<usize>, Errno> {
        let kernel = match slept {
            Ok(kernel) => kernel,
            Err(_) if nap.found > 0 => return Ok(Some(nap.found)),
            // The number was closed just before the kernel was asked.
            Err(libc::EBADF | libc::EINVAL) if self.has_moved(nap) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        let (kept, ours) = self.strip_own(nap.id, events.get_mut(nap.found..).unwrap_or(&mut []), kernel);
        let mut found = nap.found + kept;
        if found == 0 {
            return Ok((!ours && nap.deadline.is_over()).then_some(0));
        }
        if ours && nap.found == 0 {
            // Accelerated members that are ready beside the kernel's.
            self.progress();
            found += self.collect(nap.id, events.get_mut(found..).unwrap_or(&mut [])).unwrap_or(0);
        }
        Ok(Some(found))
    }

    fn has_moved(&mut self, nap: &Nap) -> bool {
        let by = self.still_by(nap.epoll, nap.id);
        by >= 0 && by != nap.epoll
    }

    /// Takes our own events out of the `n` that the kernel found. The program's, and whether ours were among them.
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
