//! The scheduler of measurements: lanes take tasks such that the load of all running tasks stays within a
//! limit.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The queued tasks with their weights, and the load in use.
struct State<T> {
    tasks: VecDeque<(T, u32)>,
    in_use: u32,
    running: usize,
    closed: bool,
}

/// A queue of weighted tasks for several threads.
pub struct Schedule<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    limit: u32,
}

impl<T> Schedule<T> {
    /// Creates a schedule that runs tasks up to a total weight of `limit`. A heavier task runs alone.
    pub fn new(limit: u32) -> Self {
        let state = State { tasks: VecDeque::new(), in_use: 0, running: 0, closed: false };
        Schedule { state: Mutex::new(state), changed: Condvar::new(), limit }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a task.
    pub fn push(&self, task: T, weight: u32) {
        self.lock().tasks.push_back((task, weight));
        self.changed.notify_all();
    }

    /// Ends the adding of tasks. With `at_once` the queued tasks are dropped.
    pub fn close(&self, at_once: bool) {
        let mut state = self.lock();
        state.closed = true;
        if at_once {
            state.tasks.clear();
        }
        self.changed.notify_all();
    }

    /// Waits for a task that fits. `None` if there are none and none will be added.
    pub fn take(&self) -> Option<(T, u32)> {
        let mut state = self.lock();
        loop {
            let room = self.limit.saturating_sub(state.in_use);
            let alone = state.running == 0;
            let fits = state.tasks.iter().position(|(_, weight)| *weight <= room || alone);
            if let Some((task, weight)) = fits.and_then(|at| state.tasks.remove(at)) {
                state.in_use += weight;
                state.running += 1;
                return Some((task, weight));
            }
            if state.closed && state.tasks.is_empty() {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Releases the weight of a finished task.
    pub fn done(&self, weight: u32) {
        let mut state = self.lock();
        state.in_use -= weight;
        state.running -= 1;
        self.changed.notify_all();
    }

    /// Waits until no task is queued or running.
    pub fn wait_idle(&self) {
        let mut state = self.lock();
        while state.running > 0 || !state.tasks.is_empty() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn light_tasks_pass_by_one_that_does_not_fit() {
        let schedule = Schedule::new(100);
        for (task, weight) in [("heavy", 80), ("heavier", 90), ("light", 20), ("huge", 300)] {
            schedule.push(task, weight);
        }
        assert_eq!(schedule.take(), Some(("heavy", 80)));
        assert_eq!(schedule.take(), Some(("light", 20)));
        schedule.done(80);
        schedule.done(20);
        assert_eq!(schedule.take(), Some(("heavier", 90)));
        schedule.done(90);
        assert_eq!(schedule.take(), Some(("huge", 300)));
        schedule.close(false);
        assert_eq!(schedule.take(), None);
    }
}
