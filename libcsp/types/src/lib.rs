//! The values that all tiers share: ids, flow labels, addresses, time, limits and trace events.
//!
//! Contains plain values only. It has no clock, socket or thread: an [`Instant`] is a number that the caller
//! has read from its own clock.
#![forbid(unsafe_code)]
#![no_std]

extern crate alloc;

mod addr;
pub mod curve;
pub mod grant;
mod id;
mod label;
pub mod limits;
pub mod options;
mod owned;
mod placement;
mod prefix;
mod program;
pub mod spin;
pub mod steering;
mod time;
mod trace;

pub use addr::{Encapsulation, FourTuple, MacAddr, Transport};
pub use curve::CurvePublicKey;
pub use grant::Grant;
pub use id::{IdError, NodeId, Role};
pub use label::{FlowLabel, INDEX_BITS, LabelAllocator};
pub use owned::OwnedAddresses;
pub use placement::{Owner, PlacementKey, owner_of};
pub use prefix::{Prefix, PrefixError, longest_match};
pub use program::{PROGRAM_NAME_LEN_MAX, ProgramName, ProgramNameError};
pub use time::{Duration, Instant};
pub use trace::{TraceEvent, TraceKind, TraceRing};
