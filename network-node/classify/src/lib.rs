//! Packet classification: the service that a packet is addressed to, the addresses that the cluster owns, and the proxy
//! worker that receives a new flow.
//!
//! Owns tables of fixed capacity and nothing else. It parses no bytes (the caller passes a [`PacketKey`]) and keeps no
//! state of a packet after a lookup.
#![forbid(unsafe_code)]

mod maglev;
mod rules;

pub use maglev::{BACKENDS_MAX, MAGLEV_TABLE_LEN, Maglev};
pub use rules::{ChannelIndex, Classifier, PacketKey, Rule, RuleError, ServiceIndex, Target, Verdict};
