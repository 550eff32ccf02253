//! `make test-scale`: many connections at once through the real path, new ones on top, no errors, nothing left.
#![allow(clippy::disallowed_types, reason = "measures elapsed time")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::{Parser, ValueEnum};
use csp_cluster::San;
use csp_performance::scale::{self, Settings};

/// Lays out hosts as network namespaces with etcd, the four daemons, echo servers under csp-run and load generators;
/// opens connections, exchanges a request and its answer on each, opens and closes others on top, closes all, and
/// waits until every table is empty. Needs root.
#[derive(Parser)]
#[command(
    name = "csp-scale",
    version,
    after_help = "\
EXAMPLES:
  csp-scale                                    100,000 connections, 10,000 new ones a second on top
  csp-scale --connections 5000 --churn-rate 1000 --output json

EXIT CODES:
  0  no error, and nothing left behind
  1  something failed; the summary says what"
)]
struct Arguments {
    /// Connections at once.
    #[arg(long, default_value_t = 100_000)]
    connections: usize,
    /// Connections a second while these are opened.
    #[arg(long, default_value_t = 4_000)]
    open_rate: usize,
    /// New connections a second on top: opened, one request and answer, closed.
    #[arg(long, default_value_t = 10_000)]
    churn_rate: usize,
    /// For how many seconds.
    #[arg(long, default_value_t = 5)]
    churn_seconds: u64,
    /// What carries the SAN between network node and proxy node.
    #[arg(long, value_enum, default_value_t = SanArgument::Shm)]
    san: SanArgument,
    /// The form of the summary on standard output; progress goes to standard error.
    #[arg(long, value_enum, default_value_t = Form::Text)]
    output: Form,
}

#[derive(Clone, Copy, ValueEnum)]
enum SanArgument {
    Shm,
    Ucx,
}

#[derive(Clone, Copy, ValueEnum)]
enum Form {
    Text,
    Json,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("\n✗ {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    if let Some(obstacle) = csp_cluster::testing::obstacle() {
        anyhow::bail!("this machine cannot: {obstacle}");
    }
    let own = std::env::current_exe()?;
    let binaries: PathBuf = own.parent().context("the program lies in a folder")?.to_owned();
    let settings = Settings {
        binaries,
        san: if matches!(arguments.san, SanArgument::Shm) { San::Shm } else { San::Ucx },
        connections: arguments.connections.max(1),
        open_rate: arguments.open_rate.max(1),
        churn_rate: arguments.churn_rate,
        churn_time: Duration::from_secs(arguments.churn_seconds),
    };
    let begin = Instant::now();
    let mut progress = |text: &str| eprintln!("{:>6.1} s  {text}", begin.elapsed().as_secs_f64());
    let report = scale::run(&settings, &mut progress)?;
    match arguments.output {
        Form::Text => println!("{report}"),
        Form::Json => println!("{}", serde_json::to_string_pretty(&report)?),
    }
    Ok(report.passed())
}
