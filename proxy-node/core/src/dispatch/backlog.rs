//! Connections of one service that wait for a process: what a listening socket's accept queue is in the kernel, one for
//! all processes of the service on all its hosts.
//!
//! ```text
//!  established ──┐                       ┌─▶ offered to a process ──▶ accepted
//!                ├─▶ by time of arrival ─┤
//!  handed back ──┘   oldest first        ├─▶ client gone
//!                                        └─▶ reset: nobody serves for GRACE, or `time` is over
//! ```
//! A connection that a process hands back takes its former place: the order is that of arrival. When the backlog is full,
//! SYNs are dropped unanswered, so that clients try again; whoever is established is never turned away for its length.

use std::collections::VecDeque;

use csp_types::{Duration, FlowLabel};

/// How long a connection waits while no process of its service listens anywhere: a server that is restarted finds its
/// clients still there.
pub const NO_SERVER_GRACE: Duration = Duration::from_secs(3);
/// Entries of connections that are gone are taken out once there are so many more of them than waiting ones.
const STALE_MAX: usize = 64;

/// What a service lets wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BacklogLimits {
    /// Connections that wait at once; from there on SYNs are dropped.
    pub connections: usize,
    /// How long one waits while processes of the service listen; `None`: as long as its client does.
    pub time: Option<Duration>,
}

impl Default for BacklogLimits {
    fn default() -> Self {
        BacklogLimits { connections: 4096, time: Some(Duration::from_secs(60)) }
    }
}

/// The queue. Entries of connections that left it otherwise than from its front stay until they come up; `waits` distinguishes
/// them.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    queue: VecDeque<(u64, FlowLabel)>,
    waiting: usize,
}

impl Backlog {
    /// Connections that wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// The connection that arrived first; the queue is [settled](Self::settle).
    pub(crate) fn first(&self) -> Option<FlowLabel> {
        self.queue.front().map(|(_, label)| *label)
    }

    /// Puts a connection behind those that arrived before it; `arrived` counts arrivals.
    pub(crate) fn insert(&mut self, arrived: u64, label: FlowLabel) {
        let at = match self.queue.back() {
            Some((last, _)) if *last > arrived => self.queue.partition_point(|(other, _)| *other <= arrived),
            _ => self.queue.len(),
        };
        self.queue.insert(at, (arrived, label));
        self.waiting += 1;
    }

    /// A connection waits no longer.
    pub(crate) fn left(&mut self, waits: impl Fn(u64, FlowLabel) -> bool) {
        self.waiting = self.waiting.saturating_sub(1);
        self.settle(waits);
    }

    /// Takes entries of connections that are gone off the front, and out of the middle where they are too many.
    fn settle(&mut self, waits: impl Fn(u64, FlowLabel) -> bool) {
        while self.queue.front().is_some_and(|(arrived, label)| !waits(*arrived, *label)) {
            self.queue.pop_front();
        }
        if self.queue.len() > 2 * self.waiting + STALE_MAX {
            self.queue.retain(|(arrived, label)| waits(*arrived, *label));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(index: u32) -> FlowLabel {
        FlowLabel::new(index, 0)
    }

    #[test]
    fn a_connection_that_comes_back_takes_its_former_place() {
        let mut backlog = Backlog::default();
        for (arrived, index) in [(5, 5), (7, 7), (2, 2), (6, 6), (1, 1), (7, 8)] {
            backlog.insert(arrived, label(index));
        }
        let mut gone = Vec::new();
        while let Some(first) = backlog.first() {
            gone.push(first);
            backlog.left(|_, label| !gone.contains(&label));
        }
        let order: Vec<usize> = gone.iter().map(|label| label.index()).collect();
        assert_eq!((order, backlog.len()), (vec![1, 2, 5, 6, 7, 8], 0));
    }

    #[test]
    fn connections_that_leave_the_middle_take_no_memory_for_long() {
        let mut backlog = Backlog::default();
        backlog.insert(0, label(0));
        for index in 1..10_000 {
            backlog.insert(index.into(), label(index));
            backlog.left(|_, label| label.index() == 0);
        }
        assert_eq!((backlog.len(), backlog.first()), (1, Some(label(0))));
        assert!(backlog.queue.len() <= 2 + STALE_MAX + 1);
    }
}
