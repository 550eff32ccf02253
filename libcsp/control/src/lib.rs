//! The control plane of every daemon: configuration, registration, membership and policy.
//!
//! This crate owns everything that CSP stores in etcd (`/csp/v1/...`) and the node's persistent state, such
//! as the last-known-good policy. The data path never calls it: daemons pass its results to their workers.
#![forbid(unsafe_code)]
// This crate owns clocks (leases, back-off) and sockets (etcd).
#![allow(clippy::disallowed_types)]

mod client;
pub mod config;
mod daemon;
pub mod drain;
mod durable;
mod endpoints;
mod error;
mod etcd_process;
mod follow;
pub mod key_file;
pub mod keys;
mod lkg;
mod manager;
mod membership;
mod outlets;
mod policy_store;
mod predecessor;
mod registration;
mod registry;
mod signatures;
mod state_files;
mod status;
pub mod users;

#[cfg(test)]
mod tests;

pub use client::{EtcdAccess, EtcdClient};
pub use config::{
    AdminSection, ConfigError, EtcdSection, LogSection, NodeSection, Problems, SanProvider, SanSection,
};
pub use daemon::{ControlOptions, ControlPlane, PolicyCheck};
pub use error::{ControlError, exit_code};
pub use etcd_process::{EtcdProcess, EtcdProcessError, EtcdProcessOptions};
pub use manager::{ApplyOutcome, GenerationSummary, ManagerError, PolicyManager, Signer, StageFailure};
pub use membership::{Member, MemberState, Membership};
pub use policy_store::{AckState, ActivePolicy, GenerationRecord, NodeAck, PolicySource};
pub use registry::{EventsAddress, NodeRecord, SanAddress, unix_now_ms};
pub use signatures::{Activation, PolicySignature};
pub use status::ControlStatus;
