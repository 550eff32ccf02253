//! close, dup and their kin: descriptors come and go, descriptions end with their last one.

use libc::{c_int, c_uint};

use super::c_int_result;
use crate::description::DescriptionId;
use crate::engine::{ENGINE, Engine};
use crate::fdtable::{self, Entry};
use crate::lock::Shared;
use crate::{bootstrap, deferred, lock, real, sys};

impl Engine {
    /// A descriptor stops referring to its description, which ends if it was the last.
    pub fn release_descriptor(&mut self, fd: c_int, index: usize) {
        // Else a signal handler was first.
        if fdtable::forget(fd, index) {
            self.count_references(index, -1);
        }
    }

    /// A number means nothing here any more: it is to be closed, or it was closed past us (as fclose in the C library does), since
    /// the kernel has just given it out.
    pub fn forget_descriptor(&mut self, fd: c_int) {
        if let Some(index) = fdtable::take(fd) {
            self.count_references(index, -1);
        }
    }

    /// Descriptors refer to a description or do so no more, beside what signal handlers have left to be counted.
    fn count_references(&mut self, index: usize, change: i32) {
        let Some(d) = self.descriptions.get_mut(index) else { return };
        let references = d.references.saturating_add_signed(change.saturating_add(deferred::take(index)));
        if references > 0 {
            d.references = references;
        } else if d.calls > 0 {
            d.references = 0;
            // Who polls it is to find the number closed.
            d.waiters.iter().copied().for_each(sys::signal);
        } else {
            self.end(index);
        }
    }

    /// A thread is about to sleep in a call on a description.
    pub fn begin_call(&mut self, index: usize) {
        if let Some(d) = self.descriptions.get_mut(index) {
            d.calls += 1;
        }
    }

    /// The call is over. With the last one a description ends that was closed meanwhile.
    pub fn end_call(&mut self, id: DescriptionId) {
        if !self.descriptions.is_current(id) {
            return;
        }
        let Some(d) = self.descriptions.get_mut(id.index) else { return };
        // In a child whose parent was forked by a signal handler the call is not counted.
        let last = d.calls <= 1;
        if last && d.references == 0 {
            self.end(id.index);
        } else {
            d.calls = d.calls.saturating_sub(1);
        }
    }

    /// Counts again what signal handlers have closed and duplicated.
    fn settle(&mut self) {
        while deferred::take_any() {
            for index in 0..self.descriptions.slots() {
                match deferred::take(index) {
                    0 => {}
                    change => self.count_references(index, change),
                }
            }
        }
    }
}

impl Shared for Engine {
    fn is_unsettled() -> bool {
        deferred::any()
    }

    fn before_unlock(&mut self) {
        // First: a connection that ends here may have something to say.
        self.settle();
        self.keep_others_awake();
    }
}

/// Before the kernel closes or replaces `fd`: lets go of it. `false` where the program may not touch it.
pub fn let_go(fd: c_int) -> bool {
    match fdtable::entry(fd) {
        Entry::Kernel => true,
        // In a vfork child the tables are the parent's: nothing of ours may change, and exec closes ours anyway.
        _ if !bootstrap::owns_tables() => true,
        // Our own code, or a signal handler that interrupts it.
        _ if lock::inside() => {
            deferred::closed(fd);
            true
        }
        Entry::Hidden => false,
        Entry::Candidate(_) | Entry::Carried(_) | Entry::Set(_) | Entry::Ours(_) => {
            ENGINE.with(|engine| engine.forget_descriptor(fd));
            true
        }
    }
}

/// After the kernel made `new` a duplicate of `old`.
pub fn duplicated(old: c_int, new: c_int) {
    if new < 0 || new == old || fdtable::entry(old) == Entry::Kernel {
        return;
    }
    if !bootstrap::owns_tables() {
        return;
    }
    if lock::inside() {
        return deferred::duplicated(old, new);
    }
    ENGINE.with(|engine| {
        if let Some(index) = fdtable::copy(old, new) {
            engine.count_references(index, 1);
        }
    });
}

/// dup2 and dup3: `make` is the kernel's part.
pub fn replace(old: c_int, new: c_int, make: impl FnOnce() -> c_int) -> c_int {
    let concerns = fdtable::entry(old) != Entry::Kernel || fdtable::entry(new) != Entry::Kernel;
    if !concerns || old == new {
        return make();
    }
    // An old descriptor that is not open must leave the new one alone.
    // SAFETY: no pointers.
    if unsafe { sys::syscall!(libc::SYS_fcntl, old, libc::F_GETFD) }.is_err() {
        return make();
    }
    if !let_go(new) {
        return c_int_result(Err(libc::EBADF));
    }
    let made = make();
    duplicated(old, made);
    made
}

/// close()
pub fn close(fd: c_int) -> c_int {
    if !let_go(fd) {
        return c_int_result(Err(libc::EBADF));
    }
    // SAFETY: no pointers.
    unsafe { real::close(fd) }
}

/// close_range(), which must spare the filter's own descriptors.
pub fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let highest = fdtable::highest() as c_uint;
    let close_now = flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0;
    if !close_now || first > last || first > highest || !bootstrap::owns_tables() {
        // SAFETY: no pointers.
        return unsafe { real::close_range(first, last, flags) };
    }
    let mut from = first;
    for fd in first..=last.min(highest) {
        if fdtable::entry(fd as c_int) == Entry::Hidden || !let_go(fd as c_int) {
            if fd > from {
                // SAFETY: no pointers.
                unsafe { real::close_range(from, fd - 1, flags) };
            }
            from = fd + 1;
        }
    }
    if from > last {
        return 0;
    }
    // SAFETY: no pointers.
    unsafe { real::close_range(from, last, flags) }
}
