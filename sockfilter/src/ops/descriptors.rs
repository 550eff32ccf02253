//! close, dup and their kin: descriptors come and go, descriptions end with their last one.

use libc::{c_int, c_uint};

use crate::description::DescriptionId;
use crate::engine::{ENGINE, Engine};
use crate::fdtable::{self, Entry};
use crate::lock::Shared;
use crate::sys::{self, Errno, syscall};
use crate::{bootstrap, cancel, deferred, lock, real, signals};

impl Engine {
    /// A descriptor stops referring to its description, which ends if it was the last.
    pub fn release_descriptor(&mut self, fd: c_int, index: usize) {
        // Else a signal handler was first.
        if fdtable::remove_if(fd, index) {
            self.count_references(index, -1);
        }
    }

    /// A number means nothing here any more: it is to be closed, or it was closed past us (as fclose in the C library does), since
    /// the kernel has just given it out.
    pub fn drop_descriptor(&mut self, fd: c_int) {
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

/// Responsible affair the end of a number is.
enum Responsible {
    /// The kernel's alone.
    Kernel,
    /// The filter's own number, which the program may not touch.
    Filter,
    /// The engine's, before the kernel's.
    Engine,
}

fn responsible(fd: c_int) -> Responsible {
    match fdtable::entry(fd) {
        Entry::Kernel => Responsible::Kernel,
        // In a vfork child the tables are the parent's: nothing of ours may change, and exec closes ours anyway.
        _ if !bootstrap::owns_tables() => Responsible::Kernel,
        // Our own code, or a signal handler that interrupts it.
        _ if lock::inside() => {
            deferred::closed(fd);
            Responsible::Kernel
        }
        Entry::Hidden => Responsible::Filter,
        Entry::Candidate(_) | Entry::Carried(_) | Entry::Set(_) | Entry::Ours(_) => Responsible::Engine,
    }
}

impl Engine {
    fn let_go(&mut self, fd: c_int) {
        self.outlive(fd);
        self.drop_descriptor(fd);
    }

    /// Both parts of closing a number, with the lock held: a child that another thread forks has it open, with what it means
    /// here, or has not. A placeholder's close never waits.
    fn close(&mut self, fd: c_int) -> Result<usize, Errno> {
        self.let_go(fd);
        // SAFETY: no pointers. The caller owns the descriptor.
        unsafe { syscall!(libc::SYS_close, fd) }
    }

    /// Both parts of duplicating, likewise; `over` is the number that is to be replaced.
    fn duplicate(
        &mut self,
        old: c_int,
        over: Option<c_int>,
        make: impl FnOnce() -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        over.into_iter().for_each(|fd| self.outlive(fd));
        // A handler could close a number, and have it made anew, between the two.
        let (new, copied) = signals::undisturbed(|| {
            let new = make()?;
            Ok::<_, Errno>((new, fdtable::copy(old, new as c_int)))
        })?;
        // In this order: they may be the same.
        copied.now.into_iter().for_each(|index| self.count_references(index, 1));
        copied.before.into_iter().for_each(|index| self.count_references(index, -1));
        Ok(new)
    }
}

/// Before the C library closes `fd` past close(2): lets go of it.
pub fn let_go(fd: c_int) {
    if let Responsible::Engine = responsible(fd) {
        ENGINE.with(|engine| engine.let_go(fd));
    }
}

/// dup, dup2 and their kin: `make` is the kernel's part, `over` the number that the duplicate is to have, where the program
/// says so. `None`: it does not concern us.
pub fn duplicate(
    old: c_int,
    over: Option<c_int>,
    make: impl FnOnce() -> Result<usize, Errno>,
) -> Option<Result<usize, Errno>> {
    let replaced = over.map_or(Entry::Kernel, fdtable::entry);
    let concerns = fdtable::entry(old) != Entry::Kernel || replaced != Entry::Kernel;
    if !concerns || over == Some(old) || !bootstrap::owns_tables() {
        return None;
    }
    if replaced == Entry::Hidden {
        return Some(Err(libc::EBADF));
    }
    if lock::inside() {
        let made = make();
        made.iter().for_each(|new| deferred::duplicated(old, *new as c_int));
        return Some(made);
    }
    Some(ENGINE.with(|engine| engine.duplicate(old, over, make)))
}

/// close(): `None` means that the kernel shall do it.
pub fn close(fd: c_int) -> Option<Result<usize, Errno>> {
    match responsible(fd) {
        Responsible::Kernel => None,
        Responsible::Filter => Some(Err(libc::EBADF)),
        Responsible::Engine => {
            cancel::test();
            Some(ENGINE.with(|engine| engine.close(fd)))
        }
    }
}

/// close_range(), which must spare the filter's own descriptors.
pub fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let highest = fdtable::highest() as c_uint;
    let close_now = flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0;
    let unknown = flags & !(libc::CLOSE_RANGE_UNSHARE | libc::CLOSE_RANGE_CLOEXEC) as c_int != 0;
    if unknown || !close_now || first > last || first > highest || !bootstrap::owns_tables() {
        // SAFETY: no pointers.
        return unsafe { real::close_range(first, last, flags) };
    }
    let mut from = first;
    for number in first..=last.min(highest) {
        let fd = number as c_int;
        if fdtable::entry(fd) == Entry::Hidden {
            if number > from {
                // SAFETY: no pointers.
                unsafe { real::close_range(from, number - 1, flags) };
            }
            from = number + 1;
        } else if let Responsible::Engine = responsible(fd) {
            // With CLOSE_RANGE_UNSHARE the kernel closes them in a table of this thread's own.
            ENGINE.with(
                |engine| {
                    if flags == 0 { engine.close(fd).map_or((), drop) } else { engine.let_go(fd) }
                },
            );
        }
    }
    if from > last {
        return 0;
    }
    // SAFETY: no pointers.
    unsafe { real::close_range(from, last, flags) }
}
