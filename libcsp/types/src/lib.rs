//! What every tier speaks of: ids, flow labels, time and limits.
//!
//! Owns plain values only. It refuses clocks, sockets, threads and allocation: an [`Instant`] is a number that the
//! caller read from a clock of its own.
#![forbid(unsafe_code)]
#![no_std]

extern crate alloc;

mod addr;
pub mod grant;
mod id;
mod label;
pub mod limits;
mod prefix;
mod time;
mod trace;

pub use addr::{FourTuple, MacAddr};
pub use grant::Grant;
pub use id::{IdError, NodeId, Role};
pub use label::{FlowLabel, INDEX_BITS, LabelAllocator};
pub use prefix::{Prefix, PrefixError, longest_match};
pub use time::{Duration, Instant};
pub use trace::{TraceEvent, TraceKind, TraceRing};
