//! The proxy node: ends every client's TCP at user level and passes only byte streams on (CSP §4.4).
//!
//! [`core`] (`csp-proxy-core`) is the sans-I/O logic; [`ProxyWorker`] puts it between tunnels and channels; the rest runs it
//! as a daemon.
#![forbid(unsafe_code)]

pub mod daemon;
mod links;
mod worker;

pub use csp_proxy_core as core;
pub use worker::ProxyWorker;
