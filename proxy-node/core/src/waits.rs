//! Resets that wait until a process has received the bytes that precede them: for [`RESET_STALL`] while it
//! receives none, and for [`RESET_WAIT`] in total ([decision
//! 0073](../../../docs/decisions/0073-resets-follow-data.md)).

use std::collections::VecDeque;

use csp_types::limits::{RESET_STALL, RESET_WAIT};
use csp_types::{FlowLabel, Instant};

/// What a reset waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ahead {
    /// A process receives this number of bytes first.
    Bytes(usize),
    /// No process can receive the bytes, or it had no time to: both limits restart.
    NoReader,
    /// Nothing: the reset was sent, or the flow has ended.
    Nothing,
}

/// A reset that waits.
#[derive(Clone, Copy, Debug)]
struct Wait {
    label: FlowLabel,
    /// When it is examined.
    due: Instant,
    /// When it is sent at the latest.
    latest: Instant,
    /// Number of bytes before it when it was last examined.
    waiting: usize,
}

/// Waiting resets in order of their due times; some were sent since.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    queue: VecDeque<Wait>,
    max: usize,
}

impl Waits {
    /// Creates a list for this number of flows.
    pub(crate) fn new(max: usize) -> Self {
        Waits { queue: VecDeque::new(), max }
    }

    /// Adds a reset behind `waiting` bytes; `false` if there is no room. `waits` returns whether an entry
    /// still waits.
    pub(crate) fn add(
        &mut self,
        now: Instant,
        (label, waiting): (FlowLabel, usize),
        waits: impl Fn(FlowLabel) -> bool,
    ) -> bool {
        while let Some(first) = self.queue.front()
            && !waits(first.label)
        {
            self.queue.pop_front();
        }
        let room = self.queue.len() < self.max;
        if room {
            let (due, latest) = (now + RESET_STALL, now + RESET_WAIT);
            self.queue.push_back(Wait { label, due, latest, waiting });
        }
        room
    }

    /// Returns when [`next_overdue`](Self::next_overdue) is to be called.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.queue.front().map(|wait| wait.due)
    }

    /// Removes and returns a flow whose reset has waited long enough.
    pub(crate) fn next_overdue(
        &mut self,
        now: Instant,
        ahead: impl Fn(FlowLabel) -> Ahead,
    ) -> Option<FlowLabel> {
        while let Some(wait) = self.queue.pop_front_if(|wait| wait.due <= now) {
            let due = now + RESET_STALL;
            match ahead(wait.label) {
                Ahead::Nothing => {}
                Ahead::NoReader => self.queue.push_back(Wait { due, latest: now + RESET_WAIT, ..wait }),
                Ahead::Bytes(waiting) if waiting == wait.waiting || wait.latest <= now => {
                    return Some(wait.label);
                }
                Ahead::Bytes(waiting) => self.queue.push_back(Wait { due, waiting, ..wait }),
            }
        }
        None
    }
}
