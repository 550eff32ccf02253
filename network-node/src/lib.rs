//! The network node: LAN ports, flow table, SAN tunnel.
//!
//! [`core`] is the node's logic without clock, socket or thread. [`NetworkWorker`] joins one core with its LAN ports and
//! the tunnels to the proxies; time still comes in, so that the simulation runs it too. [`daemon`] owns the threads.
#![forbid(unsafe_code)]

pub mod core;
pub mod daemon;
mod links;
mod worker;

pub use links::{DialSpec, LinkNotice, ProxySpec, TokenSource, TunnelInfo};
pub use worker::{LanCounters, NetworkWorker};
