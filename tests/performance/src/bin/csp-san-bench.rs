//! `make bench-san`: the cost of messages over the SAN's providers, compared with today's alternatives, in
//! one run.
#![allow(clippy::disallowed_types, reason = "measures elapsed time")]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
use csp_performance::san::{self, Settings};

/// Measures half round trips, bandwidth and transactions (CSP, Fig. 2) with csp-perf over shared memory, UCX
/// and the kernel's sockets, and for comparison a bare ring in shared memory, ZeroMQ over ipc and UCX's own
/// ucx_perftest; then reports which of the promised ratios hold. Needs root (the veth pair), gcc, libzmq3-dev
/// and ucx-utils.
#[derive(Parser)]
#[command(
    name = "csp-san-bench",
    version,
    after_help = "\
EXAMPLES:
  csp-san-bench
  csp-san-bench --seconds 0.2 --json figures.json

EXIT CODES:
  0  every promise holds
  1  one does not, or something could not be measured; the summary names it"
)]
struct Arguments {
    /// Length of the measurement of each point.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Runs of each point; the median counts, because others use this machine as well.
    #[arg(long, default_value_t = 5)]
    runs: u32,
    /// Also write every figure to this file.
    #[arg(long)]
    json: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("csp-san-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    let own = std::env::current_exe()?;
    let settings = Settings {
        binaries: own.parent().context("the program lies in a folder")?.to_owned(),
        seconds: arguments.seconds,
        runs: arguments.runs.max(1),
    };
    let figures = san::measure(&settings)?;
    println!("{figures}");
    if let Some(path) = &arguments.json {
        std::fs::write(path, serde_json::to_string_pretty(&figures.points)?)?;
    }
    Ok(figures.promises.iter().all(|promise| promise.holds))
}
