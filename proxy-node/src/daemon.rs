//! The daemon around the workers: one control thread, and a thread per data worker, in the shell of `csp_daemon`.
//!
//! ```text
//!  etcd ─▶ control ─▶ Mailbox ─▶ data_thread (ProxyWorker::turn, then wait)
//!  /metrics, /v1/… ◀─ admin ◀── SnapshotCell, replies ◀──┘
//! ```
#![allow(clippy::disallowed_types, reason = "the daemon owns clocks and sockets")]

mod admin;
pub mod config;
mod control;
mod data_thread;
mod metrics;
mod policy;
mod providers;

pub use control::run;
