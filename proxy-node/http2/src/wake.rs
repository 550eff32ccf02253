//! Wakers that set a flag: polls are driven by the caller's turns, not by an executor.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

/// A flag that a waker sets.
#[derive(Debug)]
pub(crate) struct Flag(AtomicBool);

impl Flag {
    /// Creates a flag that is set, and its waker.
    pub(crate) fn new() -> (Arc<Flag>, Waker) {
        let flag = Arc::new(Flag(AtomicBool::new(true)));
        (flag.clone(), flag.into())
    }

    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Clears the flag; returns whether it was set.
    pub(crate) fn take(&self) -> bool {
        // Both ends are of one thread: what a worker does to a connection it does in turn.
        let was = self.is_set();
        self.0.store(false, Ordering::Relaxed);
        was
    }
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}
