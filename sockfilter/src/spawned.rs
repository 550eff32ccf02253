//! Descriptors that posix_spawn passes to children: those that file actions duplicate.
//!
//! A connection with close-on-exec still reaches a child if the actions name it, so it must leave as one without
//! close-on-exec does. glibc's own list of actions is private, hence this one. It takes no lock, so a child that is
//! forked meanwhile can use it.

use core::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use libc::c_int;

/// Largest number of recorded descriptors, of all actions objects.
const NAMED_MAX: usize = 256;
const FREE: usize = 0;
const BEING_WRITTEN: usize = 1;

/// A descriptor that an actions object duplicates; the object by its address.
struct Named {
    actions: AtomicUsize,
    fd: AtomicI32,
}

/// The list.
pub struct Actions([Named; NAMED_MAX]);

/// The actions of this process.
pub static ACTIONS: Actions = Actions::new();

impl Actions {
    const fn new() -> Self {
        Actions([const { Named { actions: AtomicUsize::new(FREE), fd: AtomicI32::new(0) } }; NAMED_MAX])
    }

    /// Records that the object at this address duplicates `fd`. Returns `false` if the list is full.
    pub fn remember(&self, actions: usize, fd: c_int) -> bool {
        let (taken, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
        let free = |n: &&Named| n.actions.compare_exchange(FREE, BEING_WRITTEN, taken, relaxed).is_ok();
        let Some(named) = self.0.iter().find(free) else { return false };
        named.fd.store(fd, Ordering::Relaxed);
        named.actions.store(actions, Ordering::Release);
        true
    }

    /// Removes the records of the object at this address, which is new or destroyed.
    pub fn release(&self, actions: usize) {
        // A plain load first: most entries are free.
        for named in self.0.iter().filter(|n| n.actions.load(Ordering::Relaxed) == actions) {
            let _ = named.actions.compare_exchange(actions, FREE, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// The descriptors that the object at this address duplicates.
    pub fn of(&self, actions: usize) -> impl Iterator<Item = c_int> {
        let of_it = move |n: &&Named| n.actions.load(Ordering::Acquire) == actions && actions > BEING_WRITTEN;
        self.0.iter().filter(of_it).map(|n| n.fd.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_are_remembered_until_their_object_goes() {
        let list = Actions::new();
        assert!(list.remember(0x1000, 5) && list.remember(0x2000, 6) && list.remember(0x1000, 7));
        assert_eq!(list.of(0x1000).collect::<Vec<_>>(), [5, 7]);
        assert_eq!(list.of(0).count(), 0);
        list.release(0x1000);
        assert_eq!(list.of(0x1000).count(), 0);
        assert_eq!(list.of(0x2000).collect::<Vec<_>>(), [6]);
        let room = (0..).take_while(|_| list.remember(0x3000, 8)).count();
        assert_eq!(room, NAMED_MAX - 1);
    }
}
