//! Which measurement comes next: lanes take tasks so that all of them together do not ask too much of the machine.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A task and how much it asks for.
struct State<T> {
    tasks: VecDeque<(T, u32)>,
    in_use: u32,
    running: usize,
    closed: bool,
}

/// Tasks with weights, taken by several threads.
pub struct Schedule<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    limit: u32,
}

impl<T> Schedule<T> {
    /// At most `limit` of weight runs at once; a heavier task runs alone.
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

    /// No tasks are added any more, and those that wait are forgotten if `at_once`.
    pub fn close(&self, at_once: bool) {
        let mut state = self.lock();
        state.closed = true;
        if at_once {
            state.tasks.clear();
        }
        self.changed.notify_all();
    }

    /// Waits for a task that fits; `None` when there are none and none will come.
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

    /// A task that was taken is done.
    pub fn done(&self, weight: u32) {
        let mut state = self.lock();
        state.in_use -= weight;
        state.running -= 1;
        self.changed.notify_all();
    }

    /// Waits until no task waits or runs.
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
