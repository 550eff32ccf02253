//! Deadlines of connections.

use std::collections::BTreeSet;

use csp_types::{FlowLabel, Instant};

/// When connections are to be looked at. An entry may be earlier than the connection's deadline: the owner
/// then arms it again, so that a deadline that moves into the future costs nothing.
#[derive(Debug, Default)]
pub(crate) struct Timers(BTreeSet<(Instant, u32)>);

/// The entry of one connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Armed(Option<Instant>);

impl Timers {
    /// Has a connection looked at by `deadline`.
    pub(crate) fn arm(&mut self, label: FlowLabel, armed: &mut Armed, deadline: Option<Instant>) {
        let Some(deadline) = deadline.filter(|at| *at != Instant::FAR_FUTURE) else { return };
        if armed.0.is_some_and(|at| at <= deadline) {
            return;
        }
        self.disarm(label, armed);
        armed.0 = Some(deadline);
        self.0.insert((deadline, label.to_wire()));
    }

    /// Removes the entry of a connection.
    pub(crate) fn disarm(&mut self, label: FlowLabel, armed: &mut Armed) {
        if let Some(at) = armed.0.take() {
            self.0.remove(&(at, label.to_wire()));
        }
    }

    /// Removes and returns a connection whose entry is due. Its owner calls [`Armed::clear`].
    pub(crate) fn next_due(&mut self, now: Instant) -> Option<FlowLabel> {
        let (_, label) = *self.0.first().filter(|(at, _)| *at <= now)?;
        self.0.pop_first();
        FlowLabel::from_wire(label)
    }

    /// Returns the time of the earliest entry.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.first().map(|(at, _)| *at)
    }
}

impl Armed {
    /// Records that the entry was removed because it was due.
    pub(crate) fn clear(&mut self) {
        self.0 = None;
    }
}
