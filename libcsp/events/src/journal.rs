//! The events that a node has recorded, the last ones of them.

use std::collections::VecDeque;

use csp_api::Text;
use csp_api::events::{EVENTS_MAX, Event, Push, What};

/// Events that a journal keeps.
const KEPT_MAX: usize = 8192;

/// The events of one incarnation of a node.
#[derive(Clone, Debug)]
pub struct Journal {
    origin: Text,
    incarnation: u64,
    /// Number of the oldest event that is kept, or of the next one.
    first: u64,
    kept: VecDeque<Event>,
}

impl Journal {
    /// Returns the empty journal of a node that has just started.
    pub fn new(origin: Text, incarnation: u64) -> Journal {
        Journal { origin, incarnation, first: 1, kept: VecDeque::new() }
    }

    /// Records what happened at `time_ms` of the Unix epoch; gives up the oldest event if there are too many.
    /// Returns the event.
    pub fn record(&mut self, time_ms: u64, what: &What) -> &Event {
        if self.kept.len() >= KEPT_MAX {
            self.kept.pop_front();
            self.first += 1;
        }
        let sequence = self.latest() + 1;
        let at = self.kept.len();
        self.kept.push_back(Event::new((&self.origin, self.incarnation), sequence, time_ms, what));
        &self.kept[at]
    }

    /// Returns the number of the latest event; 0 if there is none.
    pub fn latest(&self) -> u64 {
        self.first - 1 + self.kept.len() as u64
    }

    /// Returns what to push to somebody who has the events up to `known`: at most [`EVENTS_MAX`].
    pub fn after(&self, known: u64) -> Push {
        let skipped = known.saturating_add(1).saturating_sub(self.first);
        let skipped = usize::try_from(skipped).unwrap_or(usize::MAX).min(self.kept.len());
        let events = self.kept.iter().skip(skipped).take(EVENTS_MAX).cloned().collect();
        Push { origin: self.origin.clone(), incarnation: self.incarnation, first: self.first, events }
    }
}
