//! Connections that wait for their first bytes, in the order of their deadlines.

use std::collections::{HashMap, VecDeque};

use csp_types::{FlowLabel, FourTuple, Instant};

/// A connection that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting<W> {
    pub(super) service: u32,
    pub(super) tuple: FourTuple,
    deadline: Instant,
    /// What was read so far.
    pub(super) so_far: W,
}

/// Connections that wait, all for the same time. The TCP engine bounds their number.
#[derive(Debug)]
pub(super) struct FirstBytes<W> {
    waiting: HashMap<FlowLabel, Waiting<W>>,
    /// In the order of their deadlines. Some behind the first one may have ended.
    deadlines: VecDeque<(Instant, FlowLabel)>,
}

impl<W> Default for FirstBytes<W> {
    fn default() -> Self {
        FirstBytes { waiting: HashMap::new(), deadlines: VecDeque::new() }
    }
}

impl<W> FirstBytes<W> {
    /// Adds a connection.
    pub(super) fn begin(&mut self, label: FlowLabel, of: (u32, FourTuple), deadline: Instant, so_far: W) {
        let (service, tuple) = of;
        self.waiting.insert(label, Waiting { service, tuple, deadline, so_far });
        self.deadlines.push_back((deadline, label));
    }

    /// Returns a connection.
    pub(super) fn get_mut(&mut self, label: FlowLabel) -> Option<&mut Waiting<W>> {
        self.waiting.get_mut(&label)
    }

    /// Returns when the next connection is given up.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadlines.front().map(|(at, _)| *at)
    }

    /// Returns how many connections wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns whether a connection waits.
    #[inline]
    pub(super) fn has(&self, label: FlowLabel) -> bool {
        !self.waiting.is_empty() && self.waiting.contains_key(&label)
    }

    /// Removes a connection that goes on, or has ended.
    #[inline]
    pub(super) fn remove(&mut self, label: FlowLabel) -> Option<Waiting<W>> {
        if self.waiting.is_empty() {
            return None;
        }
        let removed = self.waiting.remove(&label)?;
        let waiting = &self.waiting;
        // A label may have been given to another connection since.
        let ended = |(at, label): &mut (Instant, FlowLabel)| {
            waiting.get(label).is_none_or(|waiting| waiting.deadline != *at)
        };
        while self.deadlines.pop_front_if(ended).is_some() {}
        Some(removed)
    }

    /// Returns the connection that has waited longest.
    pub(super) fn oldest(&self) -> Option<FlowLabel> {
        self.deadlines.front().map(|(_, label)| *label)
    }

    /// Returns a connection that has waited too long.
    pub(super) fn next_overdue(&self, now: Instant) -> Option<FlowLabel> {
        self.deadlines.front().filter(|(at, _)| *at <= now).map(|(_, label)| *label)
    }
}
