//! The bench: what a request costs through this platform, beside what people would otherwise use, in one run.
//!
//! ```text
//!             ┌── direct0 ─────────────────────────▶ nginx on kernel TCP          "direct"
//!  client ────┼── direct0 or edge0 ─▶ HAProxy … ───▶ nginx on kernel TCP          "haproxy-tcp" …
//!  (wrk, or   └── lan0 ─▶ network-node ─▶ proxy-node ─▶ nginx under csp-run       "csp"
//!   csp-bench offer)
//! ```
//! All contenders serve the same files by the same nginx with one worker. They take turns in every round of a
//! [`Work`], a ratio is taken within a round, and the median of the rounds is reported with its spread,
//! because machines are shared. Where bytes differ or a request fails there is no ratio.
//!
//! A newcomer reads [`run`], then [`contender`] (what is compared), [`work`] (what is asked of it),
//! [`report`].

pub mod contender;
pub mod h2load;
pub mod hold;
pub mod offer;
pub mod page;
pub mod report;
pub mod secure;
pub mod work;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use csp_cluster::{Cluster, Far, Options, San};

use contender::{Contender, Running};
use report::{Report, Row, Sample};
use work::Work;

/// Where tiers and servers are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Layout {
    /// Everything on one host: shared memory between tiers, HAProxy and nginx joined by loopback.
    OneHost,
    /// An edge host (network and proxy tier, or HAProxy) and an application host, without RDMA between them.
    Edge,
    /// Each tier on a host of its own, without RDMA.
    Apart,
}

impl Layout {
    /// Returns its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Layout::OneHost => "one host",
            Layout::Edge => "edge and application host",
            Layout::Apart => "each tier on its own host",
        }
    }

    const fn san(self, far: Far) -> San {
        match self {
            Layout::OneHost => San::Shm,
            Layout::Edge => San::ToProcesses(far),
            Layout::Apart => San::Apart(far),
        }
    }
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The folder with the built binaries and libcsp_sockfilter.so.
    pub binaries: PathBuf,
    /// What carries the SAN between hosts.
    pub far: Far,
    /// Network node and proxy node are one process, where they are on one host.
    pub edge: bool,
    /// `spin_us` of the daemons and `CSP_SPIN_US` of nginx, if not their own defaults.
    pub spin: Option<u16>,
    /// Layouts, one after another.
    pub layouts: Vec<Layout>,
    /// What is compared; [`Contender::Csp`] is always there.
    pub contenders: Vec<Contender>,
    /// What is asked of them.
    pub works: Vec<Work>,
    /// Rounds of each work.
    pub rounds: u32,
    /// Seconds of load for each contender in each round.
    pub seconds: u32,
}

/// Runs the plan; `progress` receives what is being done.
///
/// # Errors
/// Something cannot be laid out or started. What a contender does wrong is part of the report.
pub fn run(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    let mut report = Report::new(plan);
    for layout in &plan.layouts {
        progress(&format!("{}: four daemons, nginx twice, contenders", layout.name()));
        let tag = format!("bench{}", std::process::id());
        let mut cluster = Cluster::lay_out(Options {
            binaries: plan.binaries.clone(),
            san: layout.san(plan.far),
            edge: plan.edge && *layout != Layout::Apart,
            tag,
        })?;
        let rows = measure(&mut cluster, plan, *layout, progress)
            .map_err(|error| error.context(cluster.casualties()).context(cluster.all_logs()))?;
        report.rows.extend(rows);
        cluster.stop()?;
    }
    report.compare();
    Ok(report)
}

fn measure(
    cluster: &mut Cluster,
    plan: &Plan,
    layout: Layout,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Row>> {
    work::write_files(&cluster.scratch().join("www"))?;
    let (all, _sink) = contender::start(cluster, layout, plan)?;
    let mut rows = Vec::new();
    for work in &plan.works {
        let able: Vec<&Running> = all.iter().filter(|one| one.contender.does(*work)).collect();
        let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); able.len()];
        // The open loop is offered what the first round's HAProxy can do, halved: equal for all.
        let mut rate = None;
        for running in &able {
            work.verify(cluster, running)?;
        }
        if work.is_open_loop() {
            progress(&format!("{}: {}: the peak to halve", layout.name(), work.name()));
            rate = Some(half_of_peak(cluster, &able, plan.seconds)?);
        }
        let rounds = if work.is_memory() { 1 } else { plan.rounds };
        for round in 0..rounds as usize {
            progress(&format!("{}: {}: round {} of {rounds}", layout.name(), work.name(), round + 1));
            for turn in 0..able.len() {
                // Each round begins with another contender: nobody always runs on a warm machine.
                let at = (turn + round) % able.len();
                samples[at].push(work.run(cluster, able[at], plan.seconds, rate)?);
            }
        }
        let finished = able.iter().zip(samples);
        rows.extend(finished.map(|(one, samples)| Row::new(layout, *work, one.contender, samples)));
    }
    for running in all {
        running.stop()?;
    }
    Ok(rows)
}

/// Returns half of what HAProxy does at most for the open loop's requests (a second), or half of the
/// slowest's if it is not there.
fn half_of_peak(cluster: &Cluster, able: &[&Running], seconds: u32) -> Result<u32> {
    let of = |wanted: Contender| able.iter().find(move |one| one.contender == wanted);
    let reference = of(Contender::HaproxyTcp).or(of(Contender::HaproxyHttp)).or(able.last());
    let reference = reference.context("no contender does this work")?;
    let sample = Work::KEPT_SMALL.run(cluster, reference, seconds, None)?;
    if sample.requests_per_second < 2.0 {
        bail!("{} answered nothing: {}", reference.contender.name(), sample.wrong.unwrap_or_default());
    }
    Ok((sample.requests_per_second / 2.0) as u32)
}

/// Returns the folder of the program that runs.
///
/// # Errors
/// The program has no path.
pub fn own_folder() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    own.parent().map(Path::to_owned).context("the program lies in a folder")
}
