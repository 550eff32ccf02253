//! What the papers measured of messages in transit, through TCP: real daemons in network namespaces, real
//! sockets at both ends.
//!
//! ```text
//!  sender ── lan0 ── network node ── SAN ── proxy node: channels, paths, queries ── SAN ── destination under csp-run
//!                                             └── SAN ── network node ── lan0 ── pullers and subscribers (libzmq)
//! ```
//! [`run`] measures C-CORE's continual queries at a part of the rate that the channels have without them, its
//! Figure 3: a handler in both kinds of contexts, and Morphing's Figure 5: the same job in a channel's path,
//! and at the destination.

mod bench;
mod contexts;
mod ends;
mod figures;
mod queries;
mod transit;
mod work;

use std::path::PathBuf;

use anyhow::Result;

pub use contexts::{Placed, figure as contexts_figure};
pub use ends::{receive, send};
pub use figures::figures;
pub use queries::{Part, Queries};
pub use transit::{Place, Transit};
pub use work::Job;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The folder of the programs.
    pub binaries: PathBuf,
    /// Rounds; medians of each figure are reported.
    pub rounds: u32,
    /// Seconds of each load.
    pub seconds: u32,
    /// Whether continual queries are measured.
    pub queries: bool,
    /// Whether jobs in transit are measured.
    pub transit: bool,
    /// Whether contexts of the proxy worker and of another program are measured.
    pub contexts: bool,
}

/// What was measured.
#[derive(Clone, Default, Debug)]
pub struct Report {
    /// Continual queries.
    pub queries: Option<Queries>,
    /// Jobs in transit and at the destination, under each load.
    pub transit: Vec<Transit>,
    /// A handler in both kinds of contexts, by the length of messages.
    pub contexts: Vec<Placed>,
}

/// Measures what is planned. SIGINT and SIGTERM end the measurement before the next load, and leave nothing
/// behind.
///
/// # Errors
/// If something cannot be set up or measured, with the reason.
pub fn run(plan: &Plan, progress: &dyn Fn(&str)) -> Result<Report> {
    let mut bench = bench::Bench::set_up(plan)?;
    let transit = if plan.transit { bench.transit(progress)? } else { Vec::new() };
    let queries = if plan.queries { Some(bench.queries(progress)?) } else { None };
    let contexts = if plan.contexts { bench.contexts(progress)? } else { Vec::new() };
    bench.stop()?;
    Ok(Report { queries, transit, contexts })
}

/// Returns the median; NaN of nothing.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
