//! The network node: LAN ports, flow table, SAN tunnel.
//!
//! [`core`] is the node's logic, without clock, socket or thread. [`NetworkWorker`] connects one core to its LAN ports
//! and to the tunnels to proxies; time is an argument, so that the simulation runs it too. [`daemon`] owns the threads.
#![forbid(unsafe_code)]

pub mod core;
pub mod daemon;
mod links;
mod worker;

pub use links::{DialSpec, LinkNotice, ProxySpec, TokenSource, TunnelInfo};
pub use worker::{LanCounters, NetworkWorker};
