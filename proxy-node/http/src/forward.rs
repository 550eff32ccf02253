//! Heads that go on: to the member without what belongs to the client's connection, to the client without
//! what belongs to the member's (RFC 9110 §7.6).
//!
//! A head is written into the caller's buffer in one pass. Field lines that stay as they are, and follow each
//! other, are copied as one range. The proxy writes the fields of framing and of the connection itself, from
//! what the machine has decided: what it read is never passed on as text.

mod answer;
mod edits;
mod origin;
mod request;
mod response;
mod trace;
mod writer;

pub use answer::{Answer, answer, reason_phrase, trailers};
pub use edits::{Edit, EditError, Edits};
pub use origin::{Origin, OriginFields, PeerText};
pub use request::{RequestForward, Written, request};
pub use response::{ResponseForward, response};
pub use trace::{TraceContext, TraceIds};

/// The head is longer than the buffer for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the head to be sent is longer than the {0} bytes of its buffer")]
pub struct TooLong(pub usize);

/// A field that the caller adds: a token, and a value without control characters. Both are written as they
/// are, so that nothing of a peer may stand here that this crate has not read as a field.
pub type Extra<'a> = (&'a [u8], &'a [u8]);
