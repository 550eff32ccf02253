//! The whole data path in one process on virtual time: clients on a memory LAN, a network node, proxies and
//! application processes on a memory SAN.
//!
//! The nodes are the real ones — the workers that the daemons run — between ports and VIs that a seed makes
//! slow, lossy or dead. No clock is read: time advances to whatever is due next. A seed determines a run bit
//! for bit.
#![forbid(unsafe_code)]

mod accept;
mod application;
mod client;
mod clock;
mod conversation;
mod frames;
mod host;
mod http;
mod judge;
mod measured;
pub mod messages;
mod network;
mod pattern;
mod proxy;
mod scenario;
mod secure;
mod signing;
mod takeover;
mod world;

pub use accept::{AcceptReport, AcceptScenario, AcceptWorld};
pub use client::Pace;
pub use http::HttpPlan;
pub use judge::Report;
pub use pattern::Refusal;
pub use scenario::{Drain, Incident, Scenario, Stall, Transaction};
pub use takeover::{Fault, Outage, TakeoverReport, TakeoverScenario, TakeoverWorld, Target, Visit};
pub use world::World;
