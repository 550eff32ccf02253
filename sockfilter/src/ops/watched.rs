//! Epoll sets that are polled from outside: members of other sets, and sets passed to poll.
//!
//! Nesting of sets (edge or level triggered, one-shot, depth, no cycles) is left to the kernel, and the
//! kernel's set is made to report its exact readiness: while a set is watched, its `wake` is readable when an
//! accelerated member is ready, and is written to at each change of one (an edge for edge-triggered pollers).
//! The attachment's descriptors, which also wake for other reasons, are not in it.
//!
//! ```text
//!   outer   kernel's set: inner, provider, agent      a thread sleeps here, wakes by the provider,
//!             |                                        finds that the inner set's member changed
//!   inner   kernel's set: wake, kernel members        wake is written to: the outer set is ready
//! ```
//!
//! `wake` remains readable after the program has read everything: every check of any set by the filter first
//! clears it ([`Engine::refresh`]). The filter also serves the outermost set, even if it has no accelerated
//! members: a thread that waits on it drives the attachment. A set that was watched once remains so.

use libc::{c_int, epoll_event};

use crate::description::{Description, DescriptionId, Kind};
use crate::engine::{ENGINE, Engine};
use crate::epoll_set::EpollSet;
use crate::fdtable::{self, Entry};
use crate::sys::{self, Errno, syscall};
use crate::wait::Deadline;
use crate::{bootstrap, cancel, lock, sleepers};

/// Time limit for woken threads to leave their sleep, in nanoseconds.
const AWAKE_NS: u64 = 100_000_000;

/// Records a new epoll descriptor, and returns it.
pub fn created(fd: c_int) -> c_int {
    if fd >= 0 && !lock::inside() && bootstrap::is_on() && bootstrap::owns_tables() {
        ENGINE.with(|engine| {
            engine.drop_descriptor(fd);
            match engine.descriptions.insert(Kind::KernelSet, 0) {
                Some(index) if fdtable::set_kernel_set(fd, index) => {}
                Some(index) => drop(engine.descriptions.remove(index)),
                None => engine.counters.descriptors_full += 1,
            }
        });
    }
    fd
}

/// Threads that sleep in the kernel on a set that the filter does not serve yet.
fn asleep(epoll: c_int) -> Vec<c_int> {
    let set = fdtable::entry(epoll);
    if !matches!(set, Entry::Set(_)) || cancel::single_threaded() {
        return Vec::new();
    }
    sleepers::on(|fd| fdtable::entry(fd) == set)
}

/// Waits until threads that slept on a set when the filter began to serve it have left their sleep, before
/// the set is polled from outside. Otherwise outside pollers would mistake the event that wakes these threads
/// for the program's. The threads run until they need the lock.
fn await_awake(threads: &[c_int]) {
    let deadline = Deadline::after(Some(AWAKE_NS));
    while threads.iter().any(|thread| sleepers::is_waking(*thread)) && !deadline.is_over() {
        // SAFETY: no arguments.
        let _ = unsafe { syscall!(libc::SYS_sched_yield) };
    }
}

impl Engine {
    /// epoll_ctl() for a set, `inner`, in another; `None` means that the kernel has to do it.
    pub(super) fn nest(
        &mut self,
        outer: c_int,
        operation: c_int,
        inner: c_int,
        event: Option<epoll_event>,
    ) -> Option<Result<usize, Errno>> {
        let Some(mut given) = event.filter(|_| operation == libc::EPOLL_CTL_ADD) else {
            if let Entry::Ours(index) = fdtable::entry(outer) {
                self.avoid_tag(outer, index, event);
            }
            return None;
        };
        // The kernel refuses or serves descriptors that are not sets or have no room for the filter's
        // registrations.
        let outside = self.set_of(outer).ok()?;
        self.avoid_tag(outer, outside.index, event);
        let asleep = asleep(inner);
        let inside = self.set_of(inner).ok()?;
        await_awake(&asleep);
        let before = self.watch(inner, inside);
        // SAFETY: `given` is readable.
        let added = unsafe { syscall!(libc::SYS_epoll_ctl, outer, operation, inner, &raw mut given) };
        if added.is_err() && !before {
            self.unwatch(inside);
        }
        if let Some(wakes) = self.wakes()
            && let Some(set) = self.epoll_set(outside)
        {
            set.follow(outer, wakes);
        }
        Some(added)
    }

    /// Makes the kernel's set behind `epoll` report its exact readiness from now on. Returns whether it did
    /// so before.
    pub(super) fn watch(&mut self, epoll: c_int, id: DescriptionId) -> bool {
        let Some(set) = self.epoll_set(id) else { return false };
        // A parent's set must not be changed.
        if set.foreign || core::mem::replace(&mut set.watched, true) {
            return true;
        }
        set.unfollow(epoll);
        // The sleeping threads relied on the registrations that were removed.
        set.roused = set.sleepers;
        sys::clear(set.wake);
        let ready = set.roused > 0 || self.ready_bits(id) != 0;
        if ready {
            self.raise(id);
        }
        false
    }

    fn unwatch(&mut self, id: DescriptionId) {
        if let Some(set) = self.epoll_set(id) {
            set.watched = false;
        }
    }

    /// Signals a ready member to the pollers of a set.
    pub fn raise(&mut self, id: DescriptionId) {
        let Some(set) = self.epoll_set(id).filter(|set| !set.foreign) else { return };
        sys::signal(set.wake);
        if !core::mem::replace(&mut set.raised, true) {
            self.raised.push(id);
        }
    }

    /// Clears the signal of sets whose members are no longer ready.
    pub fn refresh(&mut self) {
        let mut at = 0;
        while let Some(id) = self.raised.get(at).copied() {
            if self.stays_raised(id) {
                at += 1;
            } else {
                self.raised.swap_remove(at);
            }
        }
    }

    fn stays_raised(&mut self, id: DescriptionId) -> bool {
        let Some(mut set) = self.lend_set(id) else { return false };
        set.raised = set.roused > 0 || set.settle(|member| self.ready_bits(member));
        if !set.raised {
            sys::clear(set.wake);
        }
        let raised = set.raised;
        self.return_set(id, set);
        raised
    }

    /// Called after an attachment. Wakes threads that began to sleep on sets before it, so that they poll
    /// again and register its descriptors.
    pub fn rouse_sets(&mut self) {
        for (_, description) in self.descriptions.iter_mut() {
            let Kind::Epoll(set) = &description.kind else { continue };
            description.waiters.iter().copied().for_each(sys::signal);
            if set.sleepers > 0 && !set.watched {
                sys::signal(set.wake);
            }
        }
    }

    /// The set of a description, if the id is still valid.
    pub(super) fn epoll_set(&mut self, id: DescriptionId) -> Option<&mut EpollSet> {
        match self.descriptions.get_mut(id.index) {
            Some(Description { generation, kind: Kind::Epoll(set), .. }) if *generation == id.generation => {
                Some(set)
            }
            _ => None,
        }
    }
}
