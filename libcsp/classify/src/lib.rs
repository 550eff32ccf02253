//! Packet classification: the service that a packet is addressed to, the addresses that the cluster owns, the
//! proxy worker or server that receives a new flow; and in [`multifield`] the plug-in instance that a packet
//! is handed to.
//!
//! Owns tables of fixed capacity and nothing else. Services are found without parsing bytes (the caller
//! passes a [`PacketKey`]), and no state of a packet is kept after a lookup.
#![forbid(unsafe_code)]

mod maglev;
pub mod multifield;
mod rules;

pub use maglev::{BACKENDS_MAX, MAGLEV_TABLE_LEN, Maglev};
pub use rules::{
    ChannelIndex, Classifier, PacketKey, PoolIndex, Rule, RuleError, ServiceIndex, Target, Verdict,
};
