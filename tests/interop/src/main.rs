//! `csp-interop`: measures the TCP engine against the kernel's TCP and reports where it is slower.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use csp_interop::cell::{Cell, Workload};
use csp_interop::matrix::{self, Plan};
use csp_interop::report::BAR;

/// Format of the results on standard output.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Table,
    Json,
}

/// Measures the goodput of the TCP engine and of Linux over the same link, in a matrix of loss, round-trip
/// time and reordering. Needs root. Exit code 0: at least 90 % of Linux in every cell; 1: less in some cell,
/// or a failure.
#[derive(Parser)]
struct Arguments {
    /// Round-trip times in ms.
    #[arg(long, value_delimiter = ',', default_value = "1,20,100")]
    rtt: Vec<u32>,
    /// Losses in percent.
    #[arg(long, value_delimiter = ',', default_value = "0,0.1,1,5")]
    loss: Vec<f64>,
    /// Reordered packets in percent.
    #[arg(long, value_delimiter = ',', default_value = "0,5")]
    reorder: Vec<f64>,
    /// Run only these workloads.
    #[arg(long, value_delimiter = ',', value_enum)]
    workload: Vec<Workload>,
    /// Run a few cells once, for a quick check.
    #[arg(long)]
    quick: bool,
    /// Rate of every link's bottleneck in Mbit/s.
    #[arg(long, default_value_t = 100)]
    rate: u32,
    /// Smallest number of measurements of each cell.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Seconds after which no further measurement starts.
    #[arg(long, default_value_t = 1_140)]
    budget: u64,
    /// Seconds of a bulk measurement over long round trips; others are shorter.
    #[arg(long, default_value_t = 8.0)]
    bulk_seconds: f64,
    /// Seconds of a measurement of transactions over long round trips; others are shorter.
    #[arg(long, default_value_t = 6.0)]
    small_seconds: f64,
    /// Number of parallel measurements.
    #[arg(long, default_value_t = 6)]
    lanes: usize,
    /// Largest load on all links together, in Mbit/s.
    #[arg(long, default_value_t = 300)]
    load: u32,
    /// Seed of the faults.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Directory for packet traces.
    #[arg(long)]
    trace: Option<PathBuf>,
    /// Print the device's reports and the engine's counters.
    #[arg(long, short)]
    verbose: bool,
    /// Format of the results.
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
}

impl Arguments {
    fn plan(&self) -> Plan {
        let ppm = |percent: f64| (percent * 1e4).round() as u32;
        let (mut rtts, mut rounds) = (self.rtt.clone(), self.rounds);
        if self.quick {
            rtts.retain(|rtt| *rtt == 20);
            rounds = 1;
        }
        let mut cells = Vec::new();
        for rtt_ms in rtts {
            for loss_ppm in self.loss.iter().copied().map(ppm) {
                for reorder_ppm in self.reorder.iter().copied().map(ppm) {
                    cells.push(Cell { rtt_ms, loss_ppm, reorder_ppm, rate_mbit: self.rate.max(1) });
                }
            }
        }
        let all = Workload::ALL.to_vec();
        let budget = if self.quick { self.budget.min(60) } else { self.budget };
        Plan {
            cells,
            workloads: if self.workload.is_empty() { all } else { self.workload.clone() },
            rounds: rounds.max(1),
            budget: Duration::from_secs(budget),
            times: (Duration::from_secs_f64(self.bulk_seconds), Duration::from_secs_f64(self.small_seconds)),
            lanes: self.lanes.max(1),
            load_mbit: self.load,
            seed: self.seed,
            trace: self.trace.clone(),
            verbose: self.verbose,
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let results = match matrix::run(&arguments.plan()) {
        Ok(results) => results,
        Err(error) => {
            eprintln!("csp-interop: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    match arguments.output {
        Output::Table => print!("{}", results.table()),
        Output::Json => println!("{}", results.json()),
    }
    let below = results.below().count();
    eprintln!("{below} of {} below {BAR}", results.outcomes.len());
    if below == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
