//! Replies to segments that belong to no connection. RSTs and acknowledgements in TIME-WAIT are bounded in
//! number and rate. SYN cookies are bounded in number only and have a queue of their own, so that neither
//! kind delays the other.

use std::collections::VecDeque;

use csp_types::{FourTuple, Instant};
use csp_wire::tcp::{Flags, Options, Repr};

use crate::input::Incoming;

/// A queued reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reply {
    pub tuple: FourTuple,
    pub via: u32,
    pub header: Repr,
    /// No record of the flow follows, so the network node releases it. Not set for SYN cookies, which the
    /// peer acknowledges.
    pub last: bool,
    /// The reply occupies a place and a token but is not sent. Otherwise the number of replies left for other
    /// segments would reveal that this segment was not answered.
    pub silent: bool,
}

/// The two queues, and the token bucket of the first.
#[derive(Debug)]
pub(crate) struct Replies {
    queue: VecDeque<Reply>,
    capacity: usize,
    cookies: VecDeque<Reply>,
    cookie_capacity: usize,
    /// Time of the last cookie.
    last_cookie: Option<Instant>,
    /// Whether the reply removed last was a cookie.
    after_cookie: bool,
    per_second: u64,
    /// Token bucket: unused sending time in nanoseconds, up to one second.
    credit_ns: u64,
    refilled: Instant,
}

const SECOND_NS: u64 = 1_000_000_000;

impl Replies {
    pub fn new(capacity: usize, per_second: u32, cookie_capacity: usize) -> Self {
        Replies {
            queue: VecDeque::with_capacity(capacity),
            capacity,
            cookies: VecDeque::with_capacity(cookie_capacity),
            cookie_capacity,
            last_cookie: None,
            after_cookie: false,
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

    /// Queues a reply; `false` if the queue is full or the rate limit is reached.
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

    /// Number of queued SYN cookies, and the queue's capacity.
    pub fn cookies(&self) -> (usize, usize) {
        (self.cookies.len(), self.cookie_capacity)
    }

    /// Queues a SYN cookie; `false` if the queue is full.
    pub fn push_cookie(&mut self, now: Instant, reply: Reply) -> bool {
        if self.cookies.len() >= self.cookie_capacity {
            return false;
        }
        self.last_cookie = Some(now);
        self.cookies.push_back(reply);
        true
    }

    /// Whether a peer may still have a valid cookie.
    pub fn cookies_may_be_valid(&self, now: Instant) -> bool {
        self.last_cookie.is_some_and(|last| now.saturating_since(last) < crate::cookies::VALID)
    }

    /// Removes the next reply that is to be sent, alternating between the queues.
    pub fn pop(&mut self) -> Option<Reply> {
        loop {
            let cookie = !self.cookies.is_empty() && (self.queue.is_empty() || !self.after_cookie);
            self.after_cookie = cookie;
            let reply = if cookie { self.cookies.pop_front() } else { self.queue.pop_front() }?;
            if !reply.silent {
                return Some(reply);
            }
        }
    }
}

/// The RST that replies to `segment`; `None` if that is a RST itself (RFC 9293 §3.10.7.1).
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
