//! Sleeping until something of ours, or of the kernel's, is ready.

use libc::c_int;

use crate::description::DescriptionId;
use crate::engine::{ENGINE, Engine};
use crate::sys::{self, Errno, syscall};

/// There is something to do before one may sleep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Busy;

/// The descriptors of an attachment that wake a sleeper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wakes {
    /// The provider's.
    pub provider: c_int,
    /// The agent's socket, while there is one.
    pub agent: Option<c_int>,
}

/// A point in time to wait for, in nanoseconds of CLOCK_MONOTONIC; `None`: for ever.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Option<u64>);

impl Deadline {
    /// So many nanoseconds from now; `None`: never.
    pub fn after(nanos: Option<u64>) -> Self {
        Deadline(nanos.map(|n| sys::monotonic_nanos().saturating_add(n)))
    }

    /// Nanoseconds that are left.
    pub fn left(&self) -> Option<u64> {
        self.0.map(|at| at.saturating_sub(sys::monotonic_nanos()))
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
            crate::fdtable::hide(fd);
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

/// Ends what [`enroll`] began.
pub fn resign(engine: &mut Engine, descriptions: &[DescriptionId], waiter: c_int) {
    for id in descriptions {
        if let Some(d) = engine.descriptions.get_mut(id.index) {
            d.waiters.retain(|&w| w != waiter);
        }
    }
    sys::clear(waiter);
    engine.idle_waiters.push(waiter);
}

/// The sooner of two times.
pub fn sooner(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    a.into_iter().chain(b).min()
}

/// What one attempt of a blocking operation gave.
pub enum Attempt<T> {
    /// It is done.
    Done(Result<T, Errno>),
    /// It would block.
    WouldBlock,
}

/// Repeats `attempt` until it is done, sleeping in between. `deadline` gives EAGAIN; a signal gives EINTR, unless all
/// handlers ask for restarting (SA_RESTART).
pub fn blocking<T>(
    id: DescriptionId,
    deadline: Deadline,
    mut attempt: impl FnMut(&mut Engine) -> Attempt<T>,
) -> Result<T, Errno> {
    let mut spun_until = None;
    loop {
        let step = ENGINE.with(|engine| {
            if !engine.descriptions.is_current(id) {
                return Step::Done(Err(libc::EBADF));
            }
            if let Attempt::Done(result) = attempt(engine) {
                engine.publish_soon();
                return Step::Done(result);
            }
            if engine.progress() {
                return Step::Again;
            }
            let now = sys::monotonic_nanos();
            if now < *spun_until.get_or_insert(now + crate::bootstrap::spin()) {
                return Step::Again;
            }
            if deadline.is_over() {
                return Step::Done(Err(libc::EAGAIN));
            }
            let waiter = match enroll(engine, &[id]) {
                Ok(waiter) => waiter,
                Err(errno) => return Step::Done(Err(errno)),
            };
            match engine.arm() {
                Ok(wake) => Step::Sleep(waiter, wake, engine.next_timeout()),
                Err(Busy) => {
                    resign(engine, &[id], waiter);
                    Step::Again
                }
            }
        });
        match step {
            Step::Done(result) => return result,
            Step::Again => core::hint::spin_loop(),
            Step::Sleep(waiter, wake, timer) => {
                let (slept, agent) = sleep(waiter, wake, sooner(deadline.left(), timer));
                ENGINE.with(|engine| {
                    engine.woken(agent);
                    resign(engine, &[id], waiter);
                });
                if slept == Err(libc::EINTR) && !handlers_restart() {
                    return Err(libc::EINTR);
                }
                spun_until = None;
            }
        }
    }
}

enum Step<T> {
    Done(Result<T, Errno>),
    Again,
    Sleep(c_int, Option<Wakes>, Option<u64>),
}

/// What to wait for besides a waiter's eventfd.
pub fn pollfds(wakes: Option<Wakes>) -> [libc::pollfd; 2] {
    let watch = |fd: Option<c_int>| libc::pollfd { fd: fd.unwrap_or(-1), events: libc::POLLIN, revents: 0 };
    [watch(wakes.map(|w| w.provider)), watch(wakes.and_then(|w| w.agent))]
}

/// Sleeps; also tells whether the agent said something.
fn sleep(waiter: c_int, wakes: Option<Wakes>, timeout_ns: Option<u64>) -> (Result<usize, Errno>, bool) {
    let [provider, agent] = pollfds(wakes);
    let mut fds = [libc::pollfd { fd: waiter, events: libc::POLLIN, revents: 0 }, provider, agent];
    // SAFETY: no mask.
    let slept = unsafe { sys::ppoll(&mut fds, timeout_ns, core::ptr::null()) };
    (slept, fds[2].revents != 0)
}

/// Whether every handler that the program installed asks for SA_RESTART. A signal that interrupted a sleep is not
/// named to us; where handlers differ the call is not restarted.
fn handlers_restart() -> bool {
    /// The kernel's own form of a signal action.
    #[repr(C)]
    struct KernelAction {
        handler: usize,
        flags: u64,
        restorer: usize,
        mask: u64,
    }
    for signal in 1..=64 {
        let mut action = KernelAction { handler: 0, flags: 0, restorer: 0, mask: 0 };
        // SAFETY: no new action; the old one is written to `action`, whose mask has the 8 bytes that are told.
        let asked = unsafe { syscall!(libc::SYS_rt_sigaction, signal, 0, &raw mut action, 8) };
        let handled = action.handler != libc::SIG_DFL && action.handler != libc::SIG_IGN;
        if asked.is_ok() && handled && action.flags & libc::SA_RESTART as u64 == 0 {
            return false;
        }
    }
    true
}
