//! The proxy node: terminates every client's TCP connection at user level and passes on byte streams (CSP
//! §4.4).
//!
//! [`core`] (`csp-proxy-core`) is the sans-I/O logic; [`ProxyWorker`] connects it to tunnels and channels;
//! the rest runs it as a daemon.
#![forbid(unsafe_code)]

pub mod daemon;
mod links;
mod worker;

pub use csp_proxy_core as core;
pub use worker::{FlowsConfig, LocalServices, PolicyError, ProxyWorker, Registered, Signers, WorkerPolicy};
