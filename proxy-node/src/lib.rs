//! The proxy node: ends every client's TCP at user level and passes only byte streams on (CSP §4.4).
//!
//! [`core`] is the sans-I/O heart; [`ProxyWorker`] puts it between tunnels and channels; the rest runs it as a daemon.
#![forbid(unsafe_code)]

pub mod core;
pub mod daemon;
mod links;
mod worker;

pub use worker::ProxyWorker;
