//! Passes numbers from a data worker to the control thread.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// The latest snapshot of a worker's counters.
///
/// The worker publishes at intervals and never waits. If the control thread is reading at that moment, the
/// worker skips this publication.
#[derive(Debug, Default)]
pub struct SnapshotCell<T> {
    slot: Mutex<T>,
}

impl<T> SnapshotCell<T> {
    /// Creates a cell that holds `initial` until the first publication.
    pub fn new(initial: T) -> Self {
        SnapshotCell { slot: Mutex::new(initial) }
    }

    /// Has `change` change the snapshot in its place. Returns `false` if a reader holds the cell; nothing is
    /// then published.
    pub fn update(&self, change: impl FnOnce(&mut T)) -> bool {
        match self.slot.try_lock() {
            Ok(mut slot) => change(&mut slot),
            Err(TryLockError::Poisoned(poisoned)) => change(&mut poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => return false,
        }
        true
    }

    /// Returns the latest snapshot. Nothing is published while the guard lives.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        // A panic during a change may leave a mixture of old and new counters, which is acceptable.
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Clone> SnapshotCell<T> {
    /// Replaces the snapshot by a copy of `value`, reusing its memory (`clone_from`). Returns `false` if a
    /// reader holds the cell; nothing is then published.
    pub fn publish(&self, value: &T) -> bool {
        self.update(|slot| slot.clone_from(value))
    }

    /// Returns a copy of the latest snapshot.
    pub fn read(&self) -> T {
        self.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_publication_beside_a_reader_is_skipped_not_waited_for() {
        let cell = SnapshotCell::new(1);
        let reader = cell.lock();
        assert!(!cell.publish(&2));
        drop(reader);
        assert_eq!(cell.read(), 1);
        assert!(cell.publish(&3));
        assert_eq!(cell.read(), 3);
    }
}
