//! HTTP/1.1 between conversations and the bytes of their connections: requests with heads and framed bodies,
//! several on one connection.
//!
//! ```text
//!  Conversation ─▶ Asking ──▶ client's connection ─▶ proxy ─▶ member's connection ─▶ Serving ─▶ Conversation
//!               ◀─ head, body ◀──────────────────────────────────────────── head, body ◀─
//! ```
//! A request's path names its transaction. How bodies are framed, and which connections a process keeps,
//! follow from its key.

mod asking;
mod framing;
mod plan;
mod run;
mod serving;

use csp_types::Instant;

pub(crate) use asking::{Ask, Asking};
pub use plan::HttpPlan;
pub(crate) use run::HttpState;
pub(crate) use serving::Serving;

use crate::conversation::{Conversation, Ended};
use crate::pattern::{Refusal, Request};

/// Returns a number below `below` that the key and `what` determine.
pub(crate) fn dice(key: u32, what: u32, below: u32) -> u32 {
    let mixed = (u64::from(key) << 32 | u64::from(what)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 33) as u32 % below
}

/// Returns whether a request's method is POST, which is not idempotent, instead of GET.
pub(crate) fn is_post(key: u32, upload: u32) -> bool {
    upload > 0 || dice(key, 1, 4) == 0
}

/// What one end of a connection does with it.
#[derive(Debug)]
pub(crate) enum Talk {
    /// The bytes of one conversation, as they are.
    Bytes(Conversation),
    /// It sends requests of HTTP.
    Asking(Box<Asking>),
    /// It serves requests of HTTP.
    Serving(Box<Serving>),
}

impl Talk {
    /// Creates the serving side.
    pub(crate) fn serving(http: bool) -> Self {
        match http {
            true => Talk::Serving(Box::default()),
            false => Talk::Bytes(Conversation::serving()),
        }
    }

    /// Processes bytes of the other side.
    pub(crate) fn take(&mut self, bytes: &[u8]) {
        match self {
            Talk::Bytes(talk) => talk.take(bytes),
            Talk::Asking(talk) => talk.take(bytes),
            Talk::Serving(talk) => talk.take(bytes),
        }
    }

    /// Processes the end of the other side's stream.
    pub(crate) fn on_end(&mut self) {
        match self {
            Talk::Bytes(talk) => talk.on_end(),
            Talk::Asking(talk) => talk.on_end(),
            Talk::Serving(talk) => talk.on_end(),
        }
    }

    /// Writes the next bytes of this side's stream into `into`; the caller reports with [`sent`](Self::sent)
    /// how many it sent.
    pub(crate) fn next(&mut self, into: &mut [u8]) -> usize {
        match self {
            Talk::Bytes(talk) => talk.next(into),
            Talk::Asking(talk) => talk.next(into),
            Talk::Serving(talk) => talk.next(into),
        }
    }

    /// Records that `len` bytes of [`next`](Self::next) were sent.
    pub(crate) fn sent(&mut self, len: usize) {
        match self {
            Talk::Bytes(talk) => talk.sent(len),
            Talk::Asking(talk) => talk.sent(len),
            Talk::Serving(talk) => talk.sent(len),
        }
    }

    /// Returns whether this side is to end its sending direction now; true only once.
    pub(crate) fn ends_sending(&mut self) -> bool {
        match self {
            Talk::Bytes(talk) => talk.ends_sending(),
            Talk::Asking(talk) => talk.ends_sending(),
            Talk::Serving(_) => false,
        }
    }

    /// Returns whether this side closes the connection now.
    pub(crate) fn is_over(&self) -> bool {
        match self {
            Talk::Bytes(talk) => talk.is_over(),
            Talk::Asking(talk) => talk.is_over(),
            Talk::Serving(talk) => talk.is_over(),
        }
    }

    /// Returns whether the requesting side aborts now.
    pub(crate) fn aborts(&self) -> bool {
        match self {
            Talk::Bytes(talk) => talk.aborts(),
            Talk::Asking(talk) => talk.aborts(),
            Talk::Serving(_) => false,
        }
    }

    /// Returns how each request ended for the requesting side, when the connection ends with `failure` or
    /// without one; none for the serving side.
    pub(crate) fn ended(&mut self, failure: Option<String>) -> Vec<(u32, Ended)> {
        match self {
            Talk::Bytes(talk) if talk.asks() => vec![(talk.key(), talk.ended(failure))],
            Talk::Asking(talk) => talk.ended(failure),
            Talk::Bytes(_) | Talk::Serving(_) => Vec::new(),
        }
    }

    /// The same when the requesting side aborts it.
    pub(crate) fn aborted(&mut self) -> Vec<(u32, Ended)> {
        match self {
            Talk::Bytes(talk) => vec![(talk.key(), Ended::Aborted)],
            Talk::Asking(talk) => talk.aborted(),
            Talk::Serving(_) => Vec::new(),
        }
    }

    /// Returns how the serving side refuses the upload, if it does and this side knows it.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        match self {
            Talk::Bytes(talk) => talk.refusal(),
            Talk::Asking(_) | Talk::Serving(_) => None,
        }
    }

    /// Returns whether a process reads on.
    pub(crate) fn reads(&self) -> bool {
        match self {
            Talk::Bytes(talk) => talk.asks() || talk.refusal().is_none(),
            Talk::Asking(_) => true,
            Talk::Serving(talk) => talk.reads(),
        }
    }

    /// Returns the key of the present transaction; 0 if there is none.
    pub(crate) fn key(&self) -> u32 {
        match self {
            Talk::Bytes(talk) => talk.key(),
            Talk::Asking(talk) => talk.key(),
            Talk::Serving(talk) => talk.key(),
        }
    }

    pub(crate) fn asks(&self) -> bool {
        match self {
            Talk::Bytes(talk) => talk.asks(),
            Talk::Asking(_) => true,
            Talk::Serving(_) => false,
        }
    }

    /// Returns the bytes received of the present transaction, the request included.
    pub(crate) fn taken(&self) -> u64 {
        match self {
            Talk::Bytes(talk) => talk.taken(),
            Talk::Asking(_) => 0,
            Talk::Serving(talk) => talk.taken(),
        }
    }

    /// Returns the bytes sent of the present transaction.
    pub(crate) fn given(&self) -> u64 {
        match self {
            Talk::Bytes(talk) => talk.given(),
            Talk::Asking(talk) => talk.given(),
            Talk::Serving(talk) => talk.given(),
        }
    }

    /// Returns a description of wrong data received, once.
    pub(crate) fn take_wrong(&mut self) -> Option<String> {
        match self {
            Talk::Bytes(talk) => talk.wrong.take(),
            Talk::Asking(talk) => talk.wrong.take(),
            Talk::Serving(talk) => talk.wrong.take(),
        }
    }

    /// Adds a request to a connection of HTTP. `more`: others may follow. Returns it if the connection takes
    /// no more requests.
    pub(crate) fn add(&mut self, ask: Ask, more: bool) -> Option<Ask> {
        match self {
            Talk::Asking(talk) if talk.takes_more() => {
                talk.add(ask, more);
                None
            }
            _ => Some(ask),
        }
    }

    /// Removes and returns the requests that have not begun, and those that the other side has certainly not
    /// begun to serve; and whether others may follow.
    pub(crate) fn left(&mut self) -> (Vec<Ask>, bool) {
        match self {
            Talk::Asking(talk) => talk.left(),
            Talk::Bytes(_) | Talk::Serving(_) => (Vec::new(), false),
        }
    }

    /// Returns when an idle connection is closed by its process.
    pub(crate) fn wakes(&self) -> Option<Instant> {
        match self {
            Talk::Serving(talk) => talk.wakes(),
            Talk::Bytes(_) | Talk::Asking(_) => None,
        }
    }

    /// Processes the time, when nothing else is to be done.
    pub(crate) fn settle(&mut self, now: Instant) {
        if let Talk::Serving(talk) = self {
            talk.settle(now);
        }
    }

    /// Removes and returns the requests whose heads were read.
    pub(crate) fn take_served(&mut self) -> Vec<Request> {
        match self {
            Talk::Serving(talk) => std::mem::take(&mut talk.served),
            Talk::Bytes(_) | Talk::Asking(_) => Vec::new(),
        }
    }

    /// Removes and returns the bytes read of each request that is over; all if the connection is.
    pub(crate) fn take_read(&mut self, over: bool) -> Vec<(u32, u64)> {
        match self {
            Talk::Serving(talk) => talk.take_read(over),
            Talk::Bytes(talk) if over && !talk.asks() => vec![(talk.key(), talk.taken())],
            Talk::Bytes(_) | Talk::Asking(_) => Vec::new(),
        }
    }
}
