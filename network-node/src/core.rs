//! The network node's logic, sans-I/O: frames and tunnel records in, frames and tunnel records out.
//!
//! One core is one worker's own. It owns the flow table, the label tables, the neighbour cache and the answers to ARP,
//! ND and ICMP echo. It has no clock (`now` comes with every call), no port and no link: both are behind
//! [`NetworkOutput`].

mod api;
mod node;

pub use api::{CoreConfig, Counters, FlowInfo, NetworkOutput, PortConfig, PortId, ProxyId, TunnelFull};
pub use node::NetworkCore;
