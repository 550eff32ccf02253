//! Two network nodes of one LAN that take over a group of addresses from each other while clients have
//! connections to it: the real election at network nodes and proxies, over the tunnels of the simulation.
//!
//! A run is judged by its clients, which neither lose a connection nor a byte, by the frames that network
//! nodes transmit in the group's name, and by what the election permits with the proxies that are reached.

mod clocks;
mod host;
mod judge;
mod scenario;
mod tap;
mod world;

pub use judge::TakeoverReport;
pub use scenario::{Fault, Outage, TakeoverScenario, Target, Visit};
pub use world::TakeoverWorld;
