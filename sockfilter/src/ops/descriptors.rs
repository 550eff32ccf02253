//! close, dup and their variants: a description ends with its last descriptor.

use libc::{c_int, c_uint};

use super::streams;
use crate::description::DescriptionId;
use crate::engine::{ENGINE, Engine};
use crate::fdtable::{self, Entry};
use crate::lock::Shared;
use crate::sys::{self, Errno, syscall};
use crate::{bootstrap, cancel, deferred, lock, real, signals};

impl Engine {
    /// Clears a descriptor that refers to this description, which ends if it was the last.
    pub fn release_descriptor(&mut self, fd: c_int, index: usize) {
        // Otherwise a signal handler has cleared it before.
        if fdtable::remove_if(fd, index) {
            self.count_references(index, -1);
        }
    }

    /// Clears a descriptor that is about to be closed, or that was closed without the filter's notice (as by
    /// fclose in the C library), since the kernel has just returned its number again.
    pub fn drop_descriptor(&mut self, fd: c_int) {
        if let Some(index) = fdtable::take(fd) {
            self.count_references(index, -1);
        }
    }

    /// Changes the number of descriptors that refer to a description, together with the changes left by
    /// signal handlers.
    fn count_references(&mut self, index: usize, change: i32) {
        let Some(d) = self.descriptions.get_mut(index) else { return };
        let references = d.references.saturating_add_signed(change.saturating_add(deferred::take(index)));
        if references > 0 {
            d.references = references;
        } else if d.calls > 0 {
            d.references = 0;
            // Threads that poll it must see that the descriptor is closed.
            d.waiters.iter().copied().for_each(sys::signal);
        } else {
            self.end(index);
        }
    }

    /// Records that a thread is about to sleep in a call on a description.
    pub fn begin_call(&mut self, index: usize) {
        if let Some(d) = self.descriptions.get_mut(index) {
            d.calls += 1;
        }
    }

    /// Records the end of a call. A description that was closed meanwhile ends with its last call.
    pub fn end_call(&mut self, id: DescriptionId) {
        if !self.descriptions.is_current(id) {
            return;
        }
        let Some(d) = self.descriptions.get_mut(id.index) else { return };
        // In a child that was forked by a signal handler the call is not counted.
        let last = d.calls <= 1;
        if last && d.references == 0 {
            self.end(id.index);
        } else {
            d.calls = d.calls.saturating_sub(1);
        }
    }

    /// Applies the reference changes of signal handlers.
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
        // First, since the end of a connection here may create work.
        self.settle();
        self.keep_others_awake();
    }
}

/// The part that is responsible for closing a descriptor.
enum Responsible {
    /// The kernel alone.
    Kernel,
    /// The filter: its own descriptor, which the program must not close.
    Filter,
    /// The engine, then the kernel.
    Engine,
}

fn responsible(fd: c_int) -> Responsible {
    match fdtable::entry(fd) {
        Entry::Kernel => Responsible::Kernel,
        // In a vfork child the tables are the parent's and must not change; exec closes the filter's
        // descriptors anyway.
        _ if !bootstrap::owns_tables() => Responsible::Kernel,
        // The filter's own code, or a signal handler that interrupts it.
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

    /// Closes a descriptor and clears its entry with the lock held, so that a child forked by another thread
    /// has both or neither. Closing a placeholder never waits.
    fn close(&mut self, fd: c_int) -> Result<usize, Errno> {
        self.let_go(fd);
        // SAFETY: the call takes no pointers, and the program that called close owns the descriptor.
        unsafe { syscall!(libc::SYS_close, fd) }
    }

    /// Duplicates a descriptor and its entry, with the lock held. `over` is the descriptor to be replaced.
    fn duplicate(
        &mut self,
        old: c_int,
        over: Option<c_int>,
        make: impl FnOnce() -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        over.into_iter().for_each(|fd| self.outlive(fd));
        // A signal handler could close a descriptor and have its number reused between the two.
        let (new, copied) = signals::undisturbed(|| {
            let new = make()?;
            Ok::<_, Errno>((new, fdtable::copy(old, new as c_int)))
        })?;
        // In this order, since both may be the same description.
        copied.now.into_iter().for_each(|index| self.count_references(index, 1));
        copied.before.into_iter().for_each(|index| self.count_references(index, -1));
        Ok(new)
    }
}

/// Clears the entry of `fd` before the C library closes it without calling close(2).
pub fn let_go(fd: c_int) {
    if let Responsible::Engine = responsible(fd) {
        ENGINE.with(|engine| engine.let_go(fd));
    }
}

/// dup, dup2 and their variants: `make` is the kernel's part, `over` the number for the duplicate if the
/// program specifies one. `None`: the filter is not concerned.
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
    let made = ENGINE.with(|engine| engine.duplicate(old, over, make));
    made.iter().for_each(|new| streams::duplicated(*new as c_int));
    Some(made)
}

/// close(); `None` means that the kernel has to do it.
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
            // With CLOSE_RANGE_UNSHARE the kernel closes them in a separate table of this thread.
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
