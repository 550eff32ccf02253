//! The caller's side of the pipe: bytes in within the budgets, bytes out within a bound.

use std::task::Waker;

use csp_types::Instant;

use crate::budget::{Budget, Flood};
use crate::frames::Frames;
use crate::limits::{INPUT_MAX, Limits, OUTPUT_MAX};
use crate::pipe::Pipe;
use crate::wake::Flag;

/// Most polls of h2 in one turn. A poll reads what was received, and writes what there is room for.
pub(crate) const STEPS_MAX: usize = 8;

/// The bytes of a connection in both directions.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) pipe: Pipe,
    pub(crate) frames: Frames,
    pub(crate) budget: Budget,
    pub(crate) flag: std::sync::Arc<Flag>,
    pub(crate) waker: Waker,
    flood: Option<Flood>,
    output: Vec<u8>,
    /// Bytes of `output` that the caller has sent.
    sent: usize,
}

impl Link {
    pub(crate) fn new(of_client: bool, limits: &Limits) -> Self {
        let (flag, waker) = Flag::new();
        Link {
            pipe: Pipe::default(),
            frames: Frames::new(of_client),
            budget: Budget::new(limits),
            flag,
            waker,
            flood: None,
            output: Vec::new(),
            sent: 0,
        }
    }

    pub(crate) fn receive(&mut self, now: Instant, slices: &[&[u8]]) -> usize {
        self.budget.earn_time(now);
        let mut room = INPUT_MAX.saturating_sub(self.pipe.unread());
        let (mut taken, mut frames) = (0, 0);
        for slice in slices {
            let part = &slice[..slice.len().min(room)];
            match self.frames.read(part, &mut frames, &mut self.budget) {
                Ok(len) => {
                    self.pipe.receive(&part[..len]);
                    (taken, room) = (taken + len, room - len);
                    if len < slice.len() {
                        break;
                    }
                }
                Err(flood) => {
                    self.flood.get_or_insert(flood);
                    break;
                }
            }
        }
        taken
    }

    pub(crate) fn flood(&self) -> Option<Flood> {
        self.flood
    }

    /// Lets h2 write as much as the output has room for.
    pub(crate) fn give_room(&self) {
        self.pipe.set_room(OUTPUT_MAX.saturating_sub(self.output.len() - self.sent));
    }

    /// Moves what h2 has written to the output.
    pub(crate) fn collect(&mut self) {
        if self.sent == self.output.len() {
            self.output.clear();
            self.sent = 0;
        }
        self.pipe.take_written(&mut self.output);
    }

    pub(crate) fn output(&self) -> &[u8] {
        &self.output[self.sent..]
    }

    pub(crate) fn sent(&mut self, len: usize) {
        self.sent = (self.sent + len).min(self.output.len());
        if self.sent >= OUTPUT_MAX {
            self.output.drain(..self.sent);
            self.sent = 0;
        }
        // What waited for room can be written now.
        self.give_room();
    }

    pub(crate) fn shrink(&mut self) {
        if self.sent == self.output.len() {
            (self.output, self.sent) = (Vec::new(), 0);
        }
        self.pipe.shrink();
    }
}
