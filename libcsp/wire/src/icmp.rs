//! ICMP for both families: echo, the errors that concern TCP, and neighbour discovery.
//!
//! Messages of other types are [`WireError::Unsupported`](crate::WireError::Unsupported). The quotation in an
//! error is written by the sender of the error: [`QuotedTcp`] reads only what identifies the connection and
//! the sequence number, and the TCP engine decides whether to accept the error (RFC 5927).

mod quoted;
pub mod v4;
pub mod v6;

pub use quoted::QuotedTcp;
