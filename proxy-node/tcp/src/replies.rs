//! Answers to segments that belong to no connection: RSTs, and acknowledgements in TIME-WAIT. Bounded in number and rate.

use std::collections::VecDeque;

use csp_types::{FourTuple, Instant};
use csp_wire::tcp::{Flags, Options, Repr};

use crate::input::Incoming;

/// An answer that waits to be transmitted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reply {
    pub tuple: FourTuple,
    pub via: u32,
    pub header: Repr,
}

/// The queue and its token bucket.
#[derive(Debug)]
pub(crate) struct Replies {
    queue: VecDeque<Reply>,
    capacity: usize,
    per_second: u64,
    /// Nanoseconds worth of sending that may be used at once; up to one second.
    credit_ns: u64,
    refilled: Instant,
}

const SECOND_NS: u64 = 1_000_000_000;

impl Replies {
    pub fn new(capacity: usize, per_second: u32) -> Self {
        Replies {
            queue: VecDeque::with_capacity(capacity),
            capacity,
            per_second: u64::from(per_second.max(1)),
            credit_ns: SECOND_NS,
            refilled: Instant::ZERO,
        }
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Queues an answer; `false`: there are too many.
    pub fn push(&mut self, now: Instant, reply: Reply) -> bool {
        let gained = now.as_nanos().saturating_sub(self.refilled.as_nanos());
        self.refilled = self.refilled.max(now);
        self.credit_ns = self.credit_ns.saturating_add(gained).min(SECOND_NS);
        let cost = SECOND_NS / self.per_second;
        if self.queue.len() >= self.capacity || self.credit_ns < cost {
            return false;
        }
        self.credit_ns -= cost;
        self.queue.push_back(reply);
        true
    }

    pub fn pop(&mut self) -> Option<Reply> {
        self.queue.pop_front()
    }
}

/// The RST that answers `segment`; `None` where it is a RST itself (RFC 9293 §3.10.7.1).
pub(crate) fn reset(tuple: &FourTuple, segment: &Incoming<'_>) -> Option<Repr> {
    if segment.flags.rst() {
        return None;
    }
    let (seq, ack, flags) = if segment.flags.ack() {
        (segment.ack.0, 0, Flags::RST)
    } else {
        (0, segment.seq.plus(segment.len()).0, Flags::RST | Flags::ACK)
    };
    let (source_port, destination_port) = (tuple.local.port(), tuple.remote.port());
    Some(Repr { source_port, destination_port, seq, ack, flags, window: 0, options: Options::default() })
}
