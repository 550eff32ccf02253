//! A discrete-event simulator of whole configurations: clients, network, proxy and application nodes,
//! links and a switch. It makes the figures of section 5.2 of the CSP paper and answers how many nodes
//! a load needs.
//!
//! The core takes a [`Scenario`] and returns an [`Outcome`]. It opens no file and reads no clock: the same
//! scenario gives the same outcome on every machine. Virtual time counts picoseconds, since a packet of 282
//! bytes takes 22.56 ns on 100 Gb/s. docs/evaluation.md says what is modelled and what is not.

pub mod command;
pub mod costs;
pub mod figures;
pub mod link;
pub mod model;
pub mod outcome;
pub mod plan;
pub mod plot;
pub mod queue;
pub mod report;
pub mod scenario;
pub mod station;
pub mod workload;

pub use costs::{CostError, Costs};
pub use model::run;
pub use outcome::Outcome;
pub use scenario::{Arrivals, Scenario, Stop};

/// Picoseconds of virtual time.
pub type Picoseconds = u64;
/// Picoseconds of a second.
pub const SECOND: f64 = 1e12;
/// Picoseconds of a microsecond.
pub const MICROSECOND: f64 = 1e6;
/// Picoseconds of a nanosecond.
pub const NANOSECOND: f64 = 1e3;
