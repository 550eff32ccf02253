//! The connections of one service that wait for a process: the counterpart of the kernel's accept queue, one
//! for all processes of the service on all hosts.
//!
//! ```text
//!  established ──┐                       ┌─▶ offered to a process ──▶ accepted
//!                ├─▶ by time of arrival ─┤
//!  handed back ──┘   oldest first        ├─▶ client gone
//!                                        └─▶ reset: no process for GRACE, or `time` is over
//! ```
//! A connection that a process hands back returns to its former place: the order is that of arrival. While
//! the backlog is full, SYNs are dropped unanswered, so that clients retransmit them; established connections
//! are never dropped because of its length.

use std::collections::VecDeque;

use csp_tcp::Stack;
use csp_types::{Duration, FlowLabel};

use super::Dispatcher;
use crate::flow::FlowTable;

/// How long a connection waits while no process of the service listens anywhere. A server that is restarted
/// within this time keeps its clients.
pub const NO_SERVER_GRACE: Duration = Duration::from_secs(3);
/// Entries of ended connections are removed when they exceed the waiting ones by this number.
const STALE_MAX: usize = 64;

/// Limits of a service's backlog.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BacklogLimits {
    /// Largest number of waiting connections; beyond it SYNs are dropped.
    pub connections: usize,
    /// How long a connection waits while processes of the service listen; `None`: as long as its client does.
    pub time: Option<Duration>,
}

impl Default for BacklogLimits {
    fn default() -> Self {
        BacklogLimits { connections: 4096, time: Some(Duration::from_secs(60)) }
    }
}

/// The queue. Entries of connections that left it elsewhere than at the front stay until they reach the
/// front; the argument `waits` of the methods distinguishes them.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    queue: VecDeque<(u64, FlowLabel)>,
    waiting: usize,
}

impl Backlog {
    /// Returns the number of waiting connections.
    pub(crate) fn len(&self) -> usize {
        self.waiting
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Returns the connection that arrived first. The front of the queue always waits
    /// ([`settle`](Self::settle)).
    pub(crate) fn first(&self) -> Option<FlowLabel> {
        self.queue.front().map(|(_, label)| *label)
    }

    /// Inserts a connection behind those that arrived before it; `arrived` is its number in the order of
    /// arrival.
    pub(crate) fn insert(&mut self, arrived: u64, label: FlowLabel) {
        let at = match self.queue.back() {
            Some((last, _)) if *last > arrived => self.queue.partition_point(|(other, _)| *other <= arrived),
            _ => self.queue.len(),
        };
        self.queue.insert(at, (arrived, label));
        self.waiting += 1;
    }

    /// Records that a connection no longer waits.
    pub(crate) fn left(&mut self, waits: impl Fn(u64, FlowLabel) -> bool) {
        self.waiting = self.waiting.saturating_sub(1);
        self.settle(waits);
    }

    /// Removes entries that no longer wait from the front; from all of the queue if there are too many.
    fn settle(&mut self, waits: impl Fn(u64, FlowLabel) -> bool) {
        while self.queue.front().is_some_and(|(arrived, label)| !waits(*arrived, *label)) {
            self.queue.pop_front();
        }
        if self.queue.len() > 2 * self.waiting + STALE_MAX {
            self.queue.retain(|(arrived, label)| waits(*arrived, *label));
        }
    }
}

impl Dispatcher {
    /// Removes a connection that is about to end from its service's backlog, if it waits there.
    pub(crate) fn leave_backlog(&mut self, flows: &mut FlowTable, tcp: &mut Stack, label: FlowLabel) {
        let Some(flow) = flows.get_mut(label).filter(|flow| flow.waiting) else { return };
        flow.waiting = false;
        let service = flow.service;
        self.left_backlog(flows, tcp, service);
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
