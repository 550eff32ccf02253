//! Byte formats: for each a checked view over bytes that came from somewhere, and a `Repr` value that emits them.
//!
//! A view is made by `parse`, which checks every length before anything is read; a `Repr` cannot hold what the format
//! cannot say. Nothing here allocates, blocks or knows the time.
#![forbid(unsafe_code)]

pub mod agent;
pub mod arp;
pub mod bytes;
pub mod channel;
pub mod checksum;
mod ecn;
mod error;
pub mod ethernet;
pub mod icmp;
pub mod ipv4;
pub mod ipv6;
pub mod link;
pub mod tcp;
pub mod tunnel;

pub use ecn::Ecn;
pub use error::WireError;
