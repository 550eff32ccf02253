//! What another program reports of a stage that it runs.

use csp_types::Duration;

pub use csp_types::options::Standing;

/// Times of a stage's calls, in that program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReportedTimes {
    /// Calls that were measured.
    pub measured: u64,
    /// Mean of recent ones.
    pub mean: Duration,
    /// Time within which half of the recent ones ended.
    pub p50: Duration,
    /// The same of 99 of 100.
    pub p99: Duration,
    /// The longest.
    pub max: Duration,
}

/// What a stage has counted since it began there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reported {
    /// How it stands.
    pub standing: Standing,
    /// Calls of a supplied handler that its module ended itself.
    pub calls: u64,
    /// Their fuel.
    pub fuel: u64,
    /// The fuel of the most expensive one.
    pub fuel_max: u64,
    /// Messages that the module gave up.
    pub given_up: u64,
    /// Messages given up because it was stopped.
    pub waited: u64,
    /// Messages that passed by it.
    pub passed: u64,
    /// Restarts.
    pub restarts: u64,
    /// How often it was stopped, by reason.
    pub stops: [u64; 10],
    /// Times of calls.
    pub times: ReportedTimes,
}
