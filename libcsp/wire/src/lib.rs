//! Byte formats: for each format a checked view over received bytes, and a `Repr` value that is emitted.
//!
//! `parse` creates a view and checks every length before it reads anything. A `Repr` can only hold values
//! that the format can represent. Nothing in this crate allocates, blocks or reads the time.
#![forbid(unsafe_code)]

pub mod agent;
pub mod arp;
pub mod bytes;
pub mod channel;
pub mod checksum;
pub mod context;
pub mod election;

mod ecn;
mod error;
pub mod ethernet;
pub mod icmp;
pub mod ipv4;
pub mod ipv6;
pub mod link;
pub mod offload;
pub mod packets;
pub mod proxy_protocol;
pub mod segmentation;
pub mod tcp;
pub mod tls;
pub mod tunnel;

pub use ecn::Ecn;
pub use error::WireError;
