//! Sleeping until an accelerated or a kernel descriptor is ready.

use core::ffi::c_void;

use csp_types::Instant;
use csp_types::spin::{Gap, SpinPolicy};
use libc::c_int;

use crate::description::DescriptionId;
use crate::engine::{ENGINE, Engine};
use crate::fdtable::{self, Entry};
use crate::signals::{self, Effect, Held};
use crate::sys::{self, Errno};
use crate::{cancel, real};

/// There is pending work to process before a sleep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Busy;

/// The descriptors of an attachment that wake a sleeping thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wakes {
    /// The provider's.
    pub provider: c_int,
    /// The agent's socket, while there is one.
    pub agent: Option<c_int>,
}

/// Whether a call that found nothing polls again before it sleeps. The clock is not read if spinning is
/// disabled.
pub fn looks_again(policy: &mut SpinPolicy, gap: &mut Gap) -> bool {
    !policy.is_off() && policy.nothing(gap, Instant::from_nanos(sys::monotonic_nanos()))
}

/// Records that a call found something. The clock is not read if it did so at its first attempt.
pub fn found(policy: &mut SpinPolicy, gap: &mut Gap) {
    if gap.is_open() {
        policy.found(gap, Instant::from_nanos(sys::monotonic_nanos()));
    }
}

/// Yields the processor between two attempts.
pub fn yield_processor(gap: &Gap) {
    if gap.is_open() {
        sys::yield_processor();
    }
}

/// The end of a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deadline {
    /// No wait, and no need to read the clock. Most sockets of servers are non-blocking.
    Now,
    /// At this time of CLOCK_MONOTONIC, in nanoseconds.
    At(u64),
    /// No limit.
    Never,
}

impl Deadline {
    /// The deadline `nanos` nanoseconds from now; `None`: no limit.
    pub fn after(nanos: Option<u64>) -> Self {
        match nanos {
            None => Deadline::Never,
            Some(0) => Deadline::Now,
            Some(n) => Deadline::At(sys::monotonic_nanos().saturating_add(n)),
        }
    }

    /// Nanoseconds until the deadline; `None`: no limit.
    pub fn left(&self) -> Option<u64> {
        match self {
            Deadline::Now => Some(0),
            Deadline::At(at) => Some(at.saturating_sub(sys::monotonic_nanos())),
            Deadline::Never => None,
        }
    }

    /// Whether it has passed.
    pub fn is_over(&self) -> bool {
        self.left() == Some(0)
    }
}

/// Registers a thread as waiting for descriptions.
pub fn enroll(engine: &mut Engine, descriptions: &[DescriptionId]) -> Result<c_int, Errno> {
    let waiter = match engine.idle_waiters.pop() {
        Some(fd) => fd,
        None => {
            let fd = sys::eventfd()?;
            fdtable::hide(fd);
            fd
        }
    };
    for id in descriptions {
        if let Some(d) = engine.descriptions.get_mut(id.index)
            && d.generation == id.generation
        {
            d.waiters.push(waiter);
        }
    }
    Ok(waiter)
}

/// Deregisters a waiter added by [`enroll`].
pub fn resign(engine: &mut Engine, descriptions: &[DescriptionId], waiter: c_int) {
    for id in descriptions {
        if let Some(d) = engine.descriptions.get_mut(id.index) {
            d.waiters.retain(|&w| w != waiter);
        }
    }
    engine.awake(waiter);
    if fdtable::entry(waiter) != Entry::Hidden {
        // The eventfd was the parent's, because a signal handler forked while its thread slept.
        return;
    }
    sys::clear(waiter);
    engine.idle_waiters.push(waiter);
}

/// Returns the earlier of two times.
pub fn sooner(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    a.into_iter().chain(b).min()
}

/// The result of one attempt of a blocking operation.
pub enum Attempt<T> {
    /// It is done.
    Done(Result<T, Errno>),
    /// It would block.
    WouldBlock,
    /// The rest would block. Any handled signal then ends the call, which returns the number of bytes
    /// transferred.
    Partly,
}

/// Repeats `try_once` until it is done, sleeping in between. Returns EAGAIN at the deadline, and EINTR after
/// a signal, unless the signal's handler has SA_RESTART, there is no deadline (signal(7)) and nothing is done
/// yet. A close by another thread does not end the call.
pub fn blocking<T>(
    id: DescriptionId,
    deadline: Deadline,
    mut try_once: impl FnMut(&mut Engine) -> Attempt<T>,
) -> Result<T, Errno> {
    let mut gap = Gap::new();
    let mut held = Held::none();
    let mut counted = false;
    let mut restarts = true;
    cancel::test();
    loop {
        let mut attempt = |engine: &mut Engine| {
            if !engine.descriptions.is_current(id) {
                return Step::Done(Err(libc::EBADF));
            }
            restarts = deadline == Deadline::Never;
            match try_once(engine) {
                Attempt::Done(result) => {
                    found(&mut engine.spin, &mut gap);
                    engine.publish_soon();
                    return Step::Done(result);
                }
                Attempt::Partly => restarts = false,
                Attempt::WouldBlock => {}
            }
            if engine.progress() {
                return Step::Again;
            }
            if deadline.is_over() {
                return Step::Done(Err(libc::EAGAIN));
            }
            if looks_again(&mut engine.spin, &mut gap) {
                return Step::Again;
            }
            prepare_sleep(engine, id)
        };
        let step = ENGINE.with(|engine| {
            let step = attempt(engine);
            match (&step, counted) {
                (Step::Done(_), true) => engine.end_call(id),
                (Step::Again | Step::Sleep(..), false) => engine.begin_call(id.index),
                _ => {}
            }
            step
        });
        counted = true;
        match step {
            Step::Done(result) => return result,
            Step::Again => yield_processor(&gap),
            Step::Sleep(waiter, wake, timer) => {
                held.hold();
                let sleep_ns = sooner(deadline.left(), timer);
                let (slept, agent) = sleep(id, waiter, wake, sleep_ns, restarts, &held);
                ENGINE.with(|engine| {
                    engine.woken(agent);
                    resign(engine, &[id], waiter);
                    if slept == Err(libc::EINTR) {
                        engine.end_call(id);
                    }
                });
                if slept == Err(libc::EINTR) {
                    return Err(libc::EINTR);
                }
                gap.woke();
            }
        }
    }
}

enum Step<T> {
    Done(Result<T, Errno>),
    Again,
    Sleep(c_int, Option<Wakes>, Option<u64>),
}

/// Registers a thread that is about to sleep until a description changes.
fn prepare_sleep<T>(engine: &mut Engine, id: DescriptionId) -> Step<T> {
    let waiter = match enroll(engine, &[id]) {
        Ok(waiter) => waiter,
        Err(errno) => return Step::Done(Err(errno)),
    };
    match engine.arm(Some(waiter)) {
        Ok(wake) => Step::Sleep(waiter, wake, engine.next_timeout()),
        Err(Busy) => {
            resign(engine, &[id], waiter);
            Step::Again
        }
    }
}

/// Waits until `done` returns `true` for a description or the description ends, at most for `limit_ns`. Other
/// threads use the filter meanwhile. Neither signals nor a cancellation end the wait: it is part of calls
/// that do not fail for these.
pub fn until(id: DescriptionId, limit_ns: u64, mut done: impl FnMut(&Engine) -> bool) {
    let deadline = Deadline::after(Some(limit_ns));
    loop {
        let step = ENGINE.with(|engine| {
            let moved = engine.progress();
            if !engine.descriptions.is_current(id) || done(engine) || deadline.is_over() {
                return Step::Done(Ok(()));
            }
            if moved { Step::Again } else { prepare_sleep(engine, id) }
        });
        match step {
            Step::Done(_) => return,
            Step::Again => {}
            Step::Sleep(waiter, wakes, timer) => {
                let [provider, agent] = pollfds(wakes);
                let mut fds =
                    [libc::pollfd { fd: waiter, events: libc::POLLIN, revents: 0 }, provider, agent];
                let sleep_ns = sooner(deadline.left(), timer);
                let mut sleeper = Sleeper { descriptions: &[id], waiter, mask: None, call: None };
                // A signal handler may leave by siglongjmp.
                let _ = cancel::guarded(&mut sleeper, cancelled, || {
                    // SAFETY: no mask.
                    unsafe { sys::ppoll(&mut fds, sleep_ns, core::ptr::null()) }
                });
                ENGINE.with(|engine| {
                    engine.woken(fds[2].revents != 0);
                    resign(engine, &[id], waiter);
                });
            }
        }
    }
}

/// The poll entries besides a waiter's eventfd.
pub fn pollfds(wakes: Option<Wakes>) -> [libc::pollfd; 2] {
    let watch = |fd: Option<c_int>| libc::pollfd { fd: fd.unwrap_or(-1), events: libc::POLLIN, revents: 0 };
    [watch(wakes.map(|w| w.provider)), watch(wakes.and_then(|w| w.agent))]
}

/// The registrations of a sleeping thread, for their release if the thread is cancelled.
pub struct Sleeper<'a> {
    /// The descriptions that it waits for.
    pub descriptions: &'a [DescriptionId],
    /// Its eventfd.
    pub waiter: c_int,
    /// The thread's own signal mask, if the call has changed it.
    pub mask: Option<u64>,
    /// The description on which its call is counted.
    pub call: Option<DescriptionId>,
}

/// Releases the registrations of a sleeping thread that was cancelled.
///
/// # Safety
/// `sleeper` must point to a [`Sleeper`].
pub unsafe extern "C" fn cancelled(sleeper: *mut c_void) {
    // SAFETY: by this function's contract `sleeper` points to a `Sleeper`.
    let sleeper = unsafe { &*sleeper.cast::<Sleeper<'_>>() };
    sleeper.mask.iter().for_each(signals::set_mask);
    ENGINE.with(|engine| {
        engine.woken(true);
        if sleeper.waiter >= 0 {
            resign(engine, sleeper.descriptions, sleeper.waiter);
        }
        sleeper.call.into_iter().for_each(|id| engine.end_call(id));
    });
}

/// Waits on descriptors as [`sys::ppoll`], as a cancellation point.
///
/// # Safety
/// `mask`, where not null, must point to the kernel's signal set of 8 bytes.
pub unsafe fn ppoll(
    fds: &mut [libc::pollfd],
    timeout_ns: Option<u64>,
    mask: *const libc::sigset_t,
    sleeper: &mut Sleeper<'_>,
) -> Result<usize, Errno> {
    let time = timeout_ns.map(sys::timespec);
    let time_pointer = time.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    let errno = sys::errno();
    let slept = cancel::guarded(sleeper, cancelled, || {
        // SAFETY: `fds` is a writable array, `time` outlives the call, and `mask` is null or a signal set by
        // this function's contract.
        unsafe { real::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, time_pointer, mask) }
    });
    let result = usize::try_from(slept).map_err(|_| sys::errno());
    sys::set_errno(errno);
    result
}

/// Sleeps. Also returns whether the agent's socket is ready. If the program set no timeout, a signal whose
/// handler has SA_RESTART is not an error.
fn sleep(
    id: DescriptionId,
    waiter: c_int,
    wakes: Option<Wakes>,
    timeout_ns: Option<u64>,
    restarts: bool,
    held: &Held,
) -> (Result<usize, Errno>, bool) {
    let [provider, agent] = pollfds(wakes);
    let nothing = libc::pollfd { fd: -1, events: 0, revents: 0 };
    let mut fds = [libc::pollfd { fd: waiter, events: libc::POLLIN, revents: 0 }, provider, agent, nothing];
    let effect = if restarts { signals::effect() } else { Effect::Interrupt };
    let slept = if effect == Effect::Depends {
        signals::sleep_exactly(&mut fds, timeout_ns, held)
    } else {
        let mut sleeper = Sleeper { descriptions: &[id], waiter, mask: held.before(), call: Some(id) };
        // SAFETY: `held.mask()` is null or points to a signal set.
        unsafe { ppoll(&mut fds, timeout_ns, held.mask(), &mut sleeper) }
    };
    let slept = match slept {
        // The handlers installed now are decisive: another thread may have installed the first one meanwhile.
        Err(libc::EINTR) if restarts && signals::effect() == Effect::Restart => Ok(0),
        other => other,
    };
    (slept, fds[2].revents != 0)
}
