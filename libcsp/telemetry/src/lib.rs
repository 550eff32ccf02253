//! What operators observe of a daemon: logs, metrics, the admin endpoint.
//!
//! Protocol crates count in plain structs of `u64`; only this crate knows Prometheus. Data workers publish
//! their numbers through [`SnapshotCell`] and answer requests through [`mailbox`]; neither can make a worker
//! wait.
#![forbid(unsafe_code)]
// This crate owns sockets and reads the wall clock for log lines.
#![allow(clippy::disallowed_types)]

mod admin;
mod build_info;
mod histogram;
mod logging;
pub mod mailbox;
mod metrics;
mod process;
mod readiness;
mod shares;
mod snapshot;

pub use admin::{AdminError, AdminOptions, AdminServer, Refused, RemoteAddress, require};
pub use build_info::BuildInfo;
pub use csp_api::{Condition, ConditionState};
pub use histogram::{LATENCY_BUCKETS_NS, LatencyHistogram};
pub use logging::{LogError, LogFormat, init_logging, without_abort};
pub use mailbox::{Mailbox, MailboxError, MailboxSender, Reply};
pub use metrics::{Exposition, MetricSource, MetricWriter};
pub use readiness::Readiness;
pub use shares::{Place, Shares};
pub use snapshot::SnapshotCell;
