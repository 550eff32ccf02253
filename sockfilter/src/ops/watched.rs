//! Epoll sets that others look at: sets that are members of other sets, and sets that are polled.
//!
//! The kernel knows which set is in which, at the edge or at the level, once or always, how deep and in no circle. So it
//! is left to the kernel, and the kernel's set is made to tell the truth: while a set is watched, its `wake` is readable
//! when an accelerated member is ready, and written to at every news of one (an edge for whoever watches at the edge);
//! the attachment's descriptors, which wake for much that is no member's, are not in it.
//!
//! ```text
//!   outer   kernel's set: inner, provider, agent      a thread sleeps here
//!             |                                        wakes by the provider, looks, finds news of the inner's member
//!   inner   kernel's set: wake, kernel members        wake is written to: the outer set is ready
//! ```
//!
//! `wake` stays readable when the program has read all that was there: every look of ours at any set clears it first
//! ([`Engine::refresh`]). The outermost set is ours too, without members of ours if need be: who waits on it drives the
//! attachment. A set that was watched once stays so.

use libc::{c_int, epoll_event};

use crate::description::{Description, DescriptionId, Kind};
use crate::engine::{ENGINE, Engine};
use crate::epoll_set::EpollSet;
use crate::fdtable::{self, Entry};
use crate::sys::{self, Errno, syscall};
use crate::wait::Deadline;
use crate::{bootstrap, cancel, lock, sleepers};

/// How long threads that are woken may take to wake, in nanoseconds.
const AWAKE_NS: u64 = 100_000_000;

/// A new epoll descriptor: it is known as such, whatever comes of it. Returns it.
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

/// Threads that sleep in the kernel on a set that is not ours yet.
fn asleep(epoll: c_int) -> Vec<c_int> {
    let set = fdtable::entry(epoll);
    if !matches!(set, Entry::Set(_)) || cancel::single_threaded() {
        return Vec::new();
    }
    sleepers::on(|fd| fdtable::entry(fd) == set)
}

/// These have been woken as the set became ours. They are let out before others look at the set, who would take what wakes
/// them for the program's; they come as far as the lock.
fn await_awake(threads: &[c_int]) {
    let deadline = Deadline::after(Some(AWAKE_NS));
    while threads.iter().any(|thread| sleepers::is_waking(*thread)) && !deadline.is_over() {
        // SAFETY: no arguments.
        let _ = unsafe { syscall!(libc::SYS_sched_yield) };
    }
}

impl Engine {
    /// epoll_ctl() of one set, `inner`, in another: `None` means that the kernel shall do it.
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
        // What is no set, or has no room for our descriptors, is the kernel's to refuse or to serve.
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

    /// From now on the kernel's set behind `epoll` tells the truth; whether it did so before.
    pub(super) fn watch(&mut self, epoll: c_int, id: DescriptionId) -> bool {
        let Some(set) = self.epoll_set(id) else { return false };
        // The parent's set is the parent's.
        if set.foreign || core::mem::replace(&mut set.watched, true) {
            return true;
        }
        set.unfollow(epoll);
        // Who sleeps on it relied on what left it.
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

    /// Tells those who watch a set of a member that is ready.
    pub fn raise(&mut self, id: DescriptionId) {
        let Some(set) = self.epoll_set(id).filter(|set| !set.foreign) else { return };
        sys::signal(set.wake);
        if !core::mem::replace(&mut set.raised, true) {
            self.raised.push(id);
        }
    }

    /// Sets whose members were ready and are not any more say so no longer.
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

    /// There is an attachment: threads that fell asleep on sets without one look again, and follow it.
    pub fn rouse_sets(&mut self) {
        for (_, description) in self.descriptions.iter_mut() {
            let Kind::Epoll(set) = &description.kind else { continue };
            description.waiters.iter().copied().for_each(sys::signal);
            if set.sleepers > 0 && !set.watched {
                sys::signal(set.wake);
            }
        }
    }

    /// The set that a description is, if it still is that one.
    pub(super) fn epoll_set(&mut self, id: DescriptionId) -> Option<&mut EpollSet> {
        match self.descriptions.get_mut(id.index) {
            Some(Description { generation, kind: Kind::Epoll(set), .. }) if *generation == id.generation => {
                Some(set)
            }
            _ => None,
        }
    }
}
