//! The whole data path in one process on virtual time: clients on a memory LAN, a network node, proxies and application
//! processes on a memory SAN.
//!
//! The nodes are the real ones — the same workers that the daemons run — between ports and VIs that a seed makes slow,
//! lossy or dead. Nothing here reads a clock: time jumps to whatever is due next. One seed is one run, bit for bit.
#![forbid(unsafe_code)]

mod accept;
mod application;
mod client;
mod clock;
mod conversation;
mod frames;
mod judge;
mod network;
mod pattern;
mod proxy;
mod scenario;
mod world;

pub use accept::{AcceptReport, AcceptScenario, AcceptWorld};
pub use judge::Report;
pub use scenario::{Incident, Scenario, Stall, Transaction};
pub use world::World;
