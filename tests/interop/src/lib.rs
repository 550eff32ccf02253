//! Compares the TCP engine with the kernel's TCP: hosts in network namespaces, a fault device between them,
//! and a matrix of loss, round-trip time and reordering that both run over the same device.
//!
//! ```text
//!   client (kernel TCP) ──┐                        ┌── server (kernel TCP)
//!                         ├── fault device ────────┤
//!                         │   rate, queue, delay,  └── engine (csp-tcp on a raw-socket port)
//!                         │   loss, reordering
//! ```
//!
//! All hosts and the device are threads of this process, each in an unnamed network namespace. When the
//! process ends, in whatever way, the kernel removes namespaces and links.
#![deny(unsafe_code)]
#![allow(clippy::disallowed_types, reason = "real sockets and clocks are what this tool is about")]

pub mod cell;
pub mod client;
pub mod device;
pub mod engine;
pub mod fault;
pub mod frames;
pub mod host;
pub mod kernel;
pub mod lane;
pub mod matrix;
pub mod pcap;
pub mod report;
pub mod schedule;
pub mod session;
