//! The daemon: one control thread and one thread for each data worker, on the base of `csp_daemon`.
//!
//! ```text
//!  etcd ─▶ control ─▶ Mailbox ─▶ data_thread (NetworkWorker::turn, then wait)
//!  /metrics, /v1/… ◀─ admin ◀── SnapshotCell, replies ◀──┘
//! ```
#![allow(clippy::disallowed_types, reason = "the daemon owns clocks and sockets")]

mod admin;
pub mod config;
mod control;
mod data_thread;
mod driver;
mod driver_objects;
mod forwarding;
mod groups;
mod host_calls;
mod lan;
mod metrics;
mod module_routes;
mod plugin_held;
mod plugin_metrics;
mod plugin_places;
mod plugin_routes;
mod plugin_views;
mod plugins;
mod proxies;
mod verification;
mod workers;

pub use control::run;
pub use lan::Lan;
