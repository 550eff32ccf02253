//! The network node: LAN ports, flow table, SAN tunnel.
//!
//! [`core`] (`csp-network-core`) is the sans-I/O logic. [`NetworkWorker`] connects one core to its LAN ports
//! and to the tunnels to proxies; time is an argument, so that the simulation runs it too. [`daemon`] owns
//! the threads.
#![forbid(unsafe_code)]

mod adjacent;
pub mod daemon;
mod links;
mod worker;

pub use adjacent::Adjacent;
pub use csp_network_core as core;
pub use links::{
    Answered, DialSpec, HostInstances, HostSpec, LinkNotice, ProxySpec, TokenSource, TunnelInfo,
};
pub use worker::{Condition, ElectionInfo, HeldGroup, LanCounters, NetworkWorker, OwnGroup};
