//! ICMP for both families: echo, the errors TCP learns from, and neighbour discovery.
//!
//! Messages of other types are [`WireError::Unsupported`](crate::WireError::Unsupported). What an error quotes was
//! written by whoever sent the error: [`QuotedTcp`] reads no more than names the connection and the sequence number,
//! and the TCP engine judges whether to believe it (RFC 5927).

mod quoted;
pub mod v4;
pub mod v6;

pub use quoted::QuotedTcp;
