#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_types)]

mod caching;
mod certificates;
mod challenges;
mod client;
mod clock;
mod compressor;
mod counters;
mod exchange;
mod framer;
mod gateway;
mod grpc;
mod held;
mod http2;
mod links;
mod out;
mod pool;
mod reason;
mod record;
mod shared;
pub mod spec;
mod table;
mod timers;
mod watch;

pub use caching::CacheResult;
pub use certificates::CertificateFields;
pub use challenges::Challenges;
pub use counters::{CLASSES, LATENCY_BOUNDS_NS, RuleCounters, ServiceCounters, Snapshot, UpstreamCounters};
pub use gateway::Gateway;
pub use reason::Reason;
pub use record::{Phases, RECORDS_MAX, Record, Records, TEXT_LEN_MAX};
pub use spec::HttpService;
pub use watch::{WATCHED_MAX, WATCHES_MAX, WatchFilter, WatchId};
