//! The daemon: one control thread and one thread for each data worker, on the base of `csp_daemon`.
//!
//! ```text
//!  etcd ─▶ control ─▶ Mailbox ─▶ data_thread (ProxyWorker::turn, then wait)
//!  /metrics, /v1/… ◀─ admin ◀── SnapshotCell, replies ◀──┘
//! ```
#![allow(clippy::disallowed_types, reason = "the daemon owns clocks and sockets")]

mod admin;
mod applied;
mod cache_routes;
mod certificates;
mod challenges;
mod channels;
pub mod config;
mod contexts;
mod control;
mod curve_keys;
mod data_thread;
mod events;
mod handlers;
mod handshakes;
mod http_trace;
mod messages;
mod metrics;
mod modules;
mod names;
mod planning;
mod plans;
mod policy;
mod prepare;
mod providers;
mod quality;
mod record_log;
mod recorders;
mod specialised;

pub use control::run;
pub use events::WorkerEvents;
pub use metrics::{HttpBoard, ServiceBoard};
pub use record_log::{ConnectionLog, HttpLog};
