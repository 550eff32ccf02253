//! The program's signal handlers: whether an interrupted call is restarted depends on the handler's
//! SA_RESTART.
//!
//! Calls that install handlers are recorded, not changed. While all handlers are of one kind, the effect of a
//! signal is known. If both kinds exist, a process with one thread sleeps with the handled signals blocked
//! and a signalfd in their place, so that it learns which signal arrived before the handler runs. With
//! several threads this would change the thread to which the kernel delivers a signal; there a mixed set
//! counts as interrupting.

use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use libc::c_int;

use crate::sys::{self, Errno, syscall};
use crate::{bootstrap, cancel, fdtable};

/// Signals (bit n - 1) whose handler has SA_RESTART.
static RESTARTING: AtomicU64 = AtomicU64::new(0);
/// Signals whose handler does not have it.
static INTERRUPTING: AtomicU64 = AtomicU64::new(0);
/// The signalfd for pending signals; created when first needed.
static SIGNALFD: AtomicI32 = AtomicI32::new(-1);

/// What a signal does to a call that waits without a time-out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// The call continues.
    Restart,
    /// The call fails with EINTR.
    Interrupt,
    /// It depends on the signal.
    Depends,
}

/// The kernel's own form of a signal action.
#[repr(C)]
struct KernelAction {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// Records the action for a signal, which the program may have changed.
pub fn note(signal: c_int) {
    if !(1..=64).contains(&signal) || !bootstrap::owns_tables() {
        return;
    }
    let mut action = KernelAction { handler: 0, flags: 0, restorer: 0, mask: 0 };
    // SAFETY: no new action is passed; the old one is written to `action`, whose mask has the 8 bytes that
    // the call states.
    let asked = unsafe { syscall!(libc::SYS_rt_sigaction, signal, 0, &raw mut action, 8) };
    let handled = asked.is_ok() && action.handler != libc::SIG_DFL && action.handler != libc::SIG_IGN;
    let restarts = action.flags & libc::SA_RESTART as u64 != 0;
    let bit = 1 << (signal - 1);
    for (set, member) in [(&RESTARTING, handled && restarts), (&INTERRUPTING, handled && !restarts)] {
        if member {
            set.fetch_or(bit, Ordering::Relaxed);
        } else {
            set.fetch_and(!bit, Ordering::Relaxed);
        }
    }
}

/// The effect of a signal now.
pub fn effect() -> Effect {
    match (RESTARTING.load(Ordering::Relaxed), INTERRUPTING.load(Ordering::Relaxed)) {
        (_, 0) => Effect::Restart,
        (0, _) => Effect::Interrupt,
        _ if cancel::single_threaded() => Effect::Depends,
        _ => Effect::Interrupt,
    }
}

/// Sets the thread's signal mask.
pub fn set_mask(mask: &u64) {
    // SAFETY: 8 readable bytes.
    let _ = unsafe { syscall!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, core::ptr::from_ref(mask), 0, 8) };
}

/// Runs `f` with all signals blocked in this thread, so that no handler sees an intermediate state.
pub fn undisturbed<R>(f: impl FnOnce() -> R) -> R {
    let mut before = 0u64;
    // SAFETY: 8 readable and 8 writable bytes.
    let blocked =
        unsafe { syscall!(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const ALL, &raw mut before, 8) };
    let result = f();
    if blocked.is_ok() {
        set_mask(&before);
    }
    result
}

static ALL: u64 = u64::MAX;

/// Blocks interrupting signals between the sleeps of a call that sleeps more than once, since a signal
/// arriving there would not be noticed. During a sleep they are unblocked.
pub struct Held(Option<u64>);

impl Held {
    /// No signal is blocked yet.
    pub fn none() -> Self {
        Held(None)
    }

    /// Blocks them from now on, until the value is dropped.
    pub fn hold(&mut self) {
        let interrupting = INTERRUPTING.load(Ordering::Relaxed);
        if self.0.is_some() || interrupting == 0 {
            return;
        }
        let mut before = 0u64;
        // SAFETY: 8 readable and 8 writable bytes.
        let held = unsafe {
            syscall!(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const interrupting, &raw mut before, 8)
        };
        self.0 = held.is_ok().then_some(before);
    }

    /// The thread's own mask, if it was changed.
    pub fn before(&self) -> Option<u64> {
        self.0
    }

    /// Like [`before`](Self::before), as an argument for a sleep; null if nothing is blocked.
    pub fn mask(&self) -> *const libc::sigset_t {
        self.0.as_ref().map_or(core::ptr::null(), |mask| core::ptr::from_ref(mask).cast())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.iter().for_each(set_mask);
    }
}

/// Waits on descriptors; the last entry of `fds` is filled in here. Returns EINTR only for a signal whose
/// handler interrupts, and 0 for one whose handler does not.
pub fn sleep_exactly(fds: &mut [libc::pollfd], timeout_ns: Option<u64>, held: &Held) -> Result<usize, Errno> {
    let interrupting = INTERRUPTING.load(Ordering::Relaxed);
    let handled = interrupting | RESTARTING.load(Ordering::Relaxed);
    let mut before = 0u64;
    // SAFETY: 8 readable and 8 writable bytes.
    unsafe { syscall!(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const handled, &raw mut before, 8) }?;
    let own = held.before().unwrap_or(before);
    let slept = wait_blocked(fds, timeout_ns, handled & !own);
    let mut pending = 0u64;
    // SAFETY: 8 writable bytes.
    let _ = unsafe { syscall!(libc::SYS_rt_sigpending, &raw mut pending, 8) };
    // The handlers of pending signals run now.
    set_mask(&own);
    set_mask(&before);
    if pending & interrupting & !own != 0 { Err(libc::EINTR) } else { slept }
}

fn wait_blocked(fds: &mut [libc::pollfd], timeout_ns: Option<u64>, mask: u64) -> Result<usize, Errno> {
    let known = SIGNALFD.load(Ordering::Relaxed);
    let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
    // SAFETY: 8 readable bytes.
    let fd = unsafe { syscall!(libc::SYS_signalfd4, known, &raw const mask, 8, flags) }? as c_int;
    let fd = if known < 0 { sys::move_high(fd) } else { fd };
    if known < 0 {
        fdtable::hide(fd);
        SIGNALFD.store(fd, Ordering::Relaxed);
    }
    if let Some(last) = fds.last_mut() {
        *last = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    }
    // SAFETY: no mask.
    unsafe { sys::ppoll(fds, timeout_ns, core::ptr::null()) }
}
