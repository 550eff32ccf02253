//! Packet classification: which service a packet is for, which addresses are ours, and which proxy worker gets a new
//! flow.
//!
//! Owns fixed-capacity tables only. It parses nothing (the caller hands in a [`PacketKey`]) and forgets everything
//! about a packet when it has answered.
#![forbid(unsafe_code)]

mod maglev;
mod rules;

pub use maglev::{BACKENDS_MAX, MAGLEV_TABLE_LEN, Maglev};
pub use rules::{Classifier, PacketKey, Rule, RuleError, ServiceIndex, Target, Verdict};
