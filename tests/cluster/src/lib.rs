//! A CSP cluster on one machine: hosts are network namespaces joined by veth, daemons are the real binaries.
//!
//! ```text
//!              LAN 10.76.0.0/24                SAN and control network 10.77.0.0/24 (a bridge)
//!  [client .1]────────[network-node]──────┬────────[proxy-node]──┬──[app-node]──┬──[mgmt-node + etcd]
//!                      (VIPs .100 .101)   .1                     .2             .3             .4
//! ```
//! Owns what it creates — namespaces, processes, a scratch folder — and removes it when dropped. Ends only
//! processes that it started, by pid. Every wait has a deadline.
#![allow(clippy::disallowed_types, reason = "the harness runs real processes and needs a real clock")]
#![forbid(unsafe_code)]

pub mod apps;
mod client;
mod cluster;
pub mod configs;
mod crowd;
pub mod demo;
pub mod demo_flights;
mod demo_http;
pub mod demo_messages;
pub mod demo_supplied;
pub mod filter_bench;
mod host;
pub mod identities;
pub mod keys;
pub mod messages_bench;
pub mod prober;
mod process;
pub mod quality_bench;
pub mod schemas;
pub mod several;
pub mod steady;
pub mod testing;
pub mod trace;
pub mod wait_bench;

pub use client::{Digest, Fetch, Latencies, WRK_PATIENCE, micros};
pub use cluster::{Cluster, Far, Options, San, Tier};
pub use configs::{ADMIN_PORTS, CLIENT_ADDRESS, UPLOAD_PORT, VIP, nginx as nginx_configuration};
pub use crowd::{Crowd, Outcome};
pub use host::Host;
pub use process::{Process, cpu_ns_of_all, wait_until};
