//! `make test-scale`: many connections at once through the real path, additional new ones, no errors, nothing
//! left over.
#![allow(clippy::disallowed_types, reason = "measures elapsed time")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::{Parser, ValueEnum};
use csp_cluster::{Far, San};
use csp_performance::scale::{self, Settings};

/// Creates hosts as network namespaces with etcd, the four daemons, echo servers under csp-run and load
/// generators; opens connections, exchanges a request and its response on each, opens and closes additional
/// ones, closes all, and waits until every table is empty. Needs root.
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
  1  something failed; the summary names it"
)]
struct Arguments {
    /// Connections at once.
    #[arg(long, default_value_t = 100_000)]
    connections: usize,
    /// Connections per second while these are opened.
    #[arg(long, default_value_t = 4_000)]
    open_rate: usize,
    /// Additional new connections per second: opened, one request and response, closed.
    #[arg(long, default_value_t = 10_000)]
    churn_rate: usize,
    /// Number of seconds of additional connections.
    #[arg(long, default_value_t = 5)]
    churn_seconds: u64,
    /// Provider of the SAN.
    #[arg(long, value_enum, default_value_t = SanArgument::Shm)]
    san: SanArgument,
    /// Form of the summary on standard output; progress goes to standard error.
    #[arg(long, value_enum, default_value_t = Form::Text)]
    output: Form,
}

#[derive(Clone, Copy, ValueEnum)]
enum SanArgument {
    Shm,
    Tcp,
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
        san: match arguments.san {
            SanArgument::Shm => San::Shm,
            SanArgument::Tcp => San::Apart(Far::Tcp),
            SanArgument::Ucx => San::Apart(Far::Ucx),
        },
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
