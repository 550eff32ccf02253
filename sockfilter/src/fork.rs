//! Fork: the child starts without the parent's links. It keeps descriptors and listeners, which it announces
//! again when it uses them. From the fork on connections are shared through the agent (see `handover`),
//! except those for which the parent waits with epoll: these stay with the parent.

use core::cell::Cell;

use libc::c_int;

use crate::description::{Description, Kind};
use crate::engine::ENGINE;
use crate::fdtable::Entry;
use crate::handover::Selection;
use crate::{alloc, bootstrap, deferred, fdtable, lock, sys};

thread_local! {
    /// Whether this thread forks and holds the locks. Not set if a signal handler that interrupts the filter
    /// forks.
    static HOLDS: Cell<bool> = const { Cell::new(false) };
}

/// Registers the handlers.
pub fn register() {
    // SAFETY: the handlers live as long as the process, since a preloaded library is never unloaded.
    if unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) } != 0 {
        sys::log_line("fork handlers could not be registered: forked children will misbehave");
    }
}

/// Before a fork. Fixed order of locks: the engine, then the allocator that it uses.
pub extern "C" fn prepare() {
    if !lock::inside() && bootstrap::is_on() {
        ENGINE.hold();
        if bootstrap::owns_tables() {
            let _inside = lock::Inside::enter();
            // The lock is held until the child exists, so that whatever another thread accepts or duplicates
            // meanwhile is complete in the child. SAFETY: this thread has just taken the lock.
            unsafe { ENGINE.held() }.hand_over_all(Selection::ForChild);
        }
        alloc::hold();
        HOLDS.set(true);
    }
}

/// After a fork, in the parent.
pub extern "C" fn parent() {
    if !HOLDS.replace(false) {
        return;
    }
    alloc::release();
    // SAFETY: `prepare` took the lock in this thread.
    unsafe { ENGINE.held() }.counters.forks += 1;
    ENGINE.release();
}

/// After a fork, in the child.
pub extern "C" fn child() {
    if !HOLDS.replace(false) {
        return;
    }
    alloc::release();
    bootstrap::adopt_tables();
    {
        let _inside = lock::Inside::enter();
        // SAFETY: the forking thread held the lock; it is this child's only thread.
        start_over(unsafe { ENGINE.held() });
    }
    ENGINE.release();
}

fn close_hidden(fd: c_int) {
    fdtable::clear(fd);
    sys::close(fd);
}

/// Clears the entries of sets that the kernel serves alone. The parent waits on them too, and the child
/// should not add registrations of its own to them without need.
fn drop_kernel_sets(engine: &mut crate::engine::Engine) {
    for fd in 0..=fdtable::highest() {
        if let Entry::Set(index) = fdtable::entry(fd) {
            fdtable::clear(fd);
            // Another descriptor of it may have been cleared before.
            if engine.descriptions.get(index).is_some() {
                engine.descriptions.remove(index);
                deferred::take(index);
            }
        }
    }
}

/// Clears sleeping calls, which belong to the parent's other threads.
fn drop_calls(engine: &mut crate::engine::Engine) {
    for index in 0..engine.descriptions.slots() {
        let Some(d) = engine.descriptions.get_mut(index) else { continue };
        d.calls = 0;
        if d.references > 0 {
            continue;
        }
        let id = engine.descriptions.id(index);
        if let Some(Description { kind: Kind::Epoll(set), .. }) = engine.descriptions.remove(index) {
            id.into_iter().for_each(|id| engine.leave_members(id, &set));
            set.descriptors().for_each(close_hidden);
        }
    }
}

/// Releases everything that belongs to the parent. Nothing is written to its memory or sockets.
fn start_over(engine: &mut crate::engine::Engine) {
    engine.idle_waiters.drain(..).for_each(close_hidden);
    engine.raised.clear();
    engine.asleep.clear();
    drop_kernel_sets(engine);
    for (_, description) in engine.descriptions.iter_mut() {
        // Waiting threads and their eventfds belong to the parent.
        description.waiters.drain(..).for_each(close_hidden);
        description.close_error_event();
        description.kernel_sets.iter_mut().for_each(|member| member.shown = false);
        description.zero_copy = description.zero_copy.of_child();
        match &mut description.kind {
            Kind::Flow(_) => description.kind = Kind::Lost,
            Kind::Listener(state) => {
                state.id = None;
                state.interest = false;
            }
            Kind::Epoll(set) => {
                set.foreign = true;
                set.sleepers = 0;
            }
            Kind::Candidate | Kind::Carried { .. } | Kind::KernelSet | Kind::Lost => {}
        }
    }
    drop_calls(engine);
    engine.counters = Default::default();
    let Some(link) = engine.link.take() else { return };
    let mut owned = Vec::new();
    link.provider.descriptors(&mut owned);
    owned.into_iter().for_each(fdtable::clear);
    link.agent.into_iter().for_each(close_hidden);
    // The endpoint is dropped before the provider that it borrows; neither sends anything to the proxies.
    drop(link.app.into_endpoint().into_provider());
    link.provider.abandon_after_fork();
}
