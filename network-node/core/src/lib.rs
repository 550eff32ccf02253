//! The network node's logic, sans-I/O: frames and tunnel records in, frames and tunnel records out.
//!
//! One core belongs to one worker. It owns the flow table, the label tables, the neighbour cache and the
//! responses to ARP, ND and ICMP echo. It has no clock (`now` is an argument of every call), no LAN port and
//! no link: both are behind [`NetworkOutput`].
//!
//! States of an entry in the flow table:
//!
//! ```text
//!               SYN from the LAN                FLOW_NEW from the proxy
//!   (none) ───────────────────────▶ pending ───────────────────────────▶ bound
//!     │ ▲                             │ 60 s                              │ │ 1 h of silence
//!     │ └─────────────────────────────┴───────────────────────────────────┼─┘
//!     │ any other segment                                         FLOW_END │
//!     └───────────────▶ lingering ◀────────────────────────────────────────┘
//!                         │ 5 s, or room is needed: (none)
//! ```
//!
//! Segments of a pending or lingering flow are sent as whole packets without a label to the proxy worker
//! stored in the entry; if another segment than a SYN made the entry, the proxies are asked one after the
//! other (`search`). Thus the last ACK of a client reaches the proxy that holds TIME-WAIT, and a reset that
//! the proxy sends reaches the client. A connection that an application opens starts with FLOW_NEW and is
//! bound at once.
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_types)]

mod addresses;
mod api;
mod classified;
mod emit;
mod flow_table;
mod forward;
mod fragments;
mod hosted;
mod hosts;
mod in_parts;
mod inbound;
mod kernel;
mod label_table;
mod neighbour;
mod node;
mod outbound;
mod path_error;
mod peer_location;
mod plugins;
mod ports;
mod proxies;
mod rate_limit;
mod reassembly;
mod responder;
mod rules;
mod search;
mod sweep;
#[cfg(test)]
mod tests;
mod trace_query;

pub use api::{CoreConfig, Counters, FlowInfo, NetworkOutput, PortConfig, PortId, ProxyId, TunnelFull};
pub use forward::{ForwardCounts, POOL_SERVERS_MAX, Pool, PoolServer, Pools, ServerView};
pub use hosts::HostCounters;
pub use node::NetworkCore;
pub use plugins::{DriverRules, PluginCapacity, PluginChange, PluginCounts};
pub use rules::{AddressGroup, RuleSet};
