//! `make bench`: what a request costs through this platform, beside nginx directly and beside other proxies.
#![allow(clippy::disallowed_types, reason = "measures elapsed time")]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand, ValueEnum};
use csp_cluster::Far;
use csp_performance::bench::contender::Contender;
use csp_performance::bench::offer::Offer;
use csp_performance::bench::work::Work;
use csp_performance::bench::{self, Layout, Plan, hold, offer, page, secure};

/// Compares requests through this platform with nginx reached directly and through HAProxy and nginx's stream
/// module: all serve the same files, take turns in every round, and are compared within a round. Needs root.
#[derive(Parser)]
#[command(
    name = "csp-bench",
    version,
    args_conflicts_with_subcommands = true,
    after_help = "\
EXAMPLES:
  csp-bench --quick                           6 works on one host, nginx directly and HAProxy beside it (3 minutes)
  csp-bench                                   everything in every layout
  csp-bench --layout apart --work 100b-64 --rounds 9
  csp-bench --write docs/performance          a page with charts, and JSON

EXIT CODES:
  0  measured; bars that were missed are marked
  1  something cannot be measured, or a request failed"
)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: Run,
}

#[derive(Args)]
struct Run {
    /// Fewer works, contenders and layouts.
    #[arg(long)]
    quick: bool,
    /// Where tiers and servers are; all layouts if none is named (with --quick: one-host).
    #[arg(long, value_enum)]
    layout: Vec<Layout>,
    /// What carries the SAN between hosts.
    #[arg(long, value_enum, default_value_t = FarArgument::Tcp)]
    san: FarArgument,
    /// Network node and proxy node as two processes even where they are on one host.
    #[arg(long)]
    two_processes: bool,
    /// How long the daemons and nginx under the filter poll before they sleep, in microseconds; 0: never.
    /// They decide themselves if this is not given.
    #[arg(long, value_parser = clap::value_parser!(u16).range(..=1000))]
    spin_us: Option<u16>,
    /// What CSP is compared with; everything if nothing is named.
    #[arg(long, value_enum)]
    contender: Vec<Contender>,
    /// What is asked, by key: 100b-64, 100b-256, 16kib-64, 64kib-32, 1mib-16, upload, 100b-each, 100b-1,
    /// idle, mix, open-loop; of proxies that read HTTP also tls-100b-64, tls-1mib-16, h2-100b-100,
    /// handshakes-full, handshakes-resumed, memory-http1, memory-tls, memory-http2, which are not part of
    /// all.
    #[arg(long, value_parser = work)]
    work: Vec<Work>,
    /// Rounds of each work.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Seconds of each contender's turn.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// A folder for README.md, charts and bench.json.
    #[arg(long)]
    write: Option<PathBuf>,
    /// Form of the report on standard output; progress goes to standard error.
    #[arg(long, value_enum, default_value_t = Form::Text)]
    output: Form,
}

#[derive(Subcommand)]
enum Command {
    /// Offers requests at a fixed rate on kept connections; prints JSON. Latency is counted from when a
    /// request was due.
    Offer {
        /// Address and port of the server.
        server: SocketAddr,
        /// Path of the request.
        path: String,
        /// Requests a second.
        rate: u32,
        /// Seconds.
        seconds: u64,
        /// Connections.
        connections: usize,
    },
    /// Opens connections, has each answered once, creates the file READY, and holds them until standard input
    /// ends.
    Hold {
        /// Address and port of the server.
        server: SocketAddr,
        /// Path of the request.
        path: String,
        /// Connections.
        count: u32,
        /// File that is created when all are open.
        ready: PathBuf,
        /// What they speak.
        #[arg(value_enum, default_value_t = hold::Protocol::Http1)]
        protocol: hold::Protocol,
    },
    /// Makes connections with TLS, each with one request; prints JSON.
    Handshakes {
        /// Address and port of the server.
        server: SocketAddr,
        /// Path of the request.
        path: String,
        /// Seconds.
        seconds: u64,
        /// Their kind.
        #[arg(value_enum)]
        kind: secure::Kind,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum FarArgument {
    Tcp,
    Ucx,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    Text,
    Json,
}

fn work(key: &str) -> Result<Work, String> {
    let all = || Work::ALL.into_iter().chain(Work::SECURE).chain(Work::CACHED);
    let known = || all().map(|work| work.key()).collect::<Vec<_>>().join(", ");
    all().find(|work| work.key() == key).ok_or_else(|| format!("there is {}", known()))
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("\n✗ {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> anyhow::Result<bool> {
    match arguments.command {
        Some(Command::Offer { server, path, rate, seconds, connections }) => {
            let time = Duration::from_secs(seconds);
            let offered = offer::run(&Offer { server, path, rate, time, connections })?;
            println!("{}", serde_json::to_string(&offered)?);
            Ok(true)
        }
        Some(Command::Hold { server, path, count, ready, protocol }) => {
            hold::run(server, &path, count, &ready, protocol).map(|()| true)
        }
        Some(Command::Handshakes { server, path, seconds, kind }) => {
            println!("{}", serde_json::to_string(&secure::run(server, &path, seconds, kind)?)?);
            Ok(true)
        }
        None => compare(&arguments.run),
    }
}

fn compare(run: &Run) -> anyhow::Result<bool> {
    if let Some(obstacle) = csp_cluster::testing::obstacle() {
        anyhow::bail!("this machine cannot: {obstacle}");
    }
    let plan = Plan {
        binaries: bench::own_folder()?,
        far: match run.san {
            FarArgument::Tcp => Far::Tcp,
            FarArgument::Ucx => Far::Ucx,
        },
        edge: !run.two_processes,
        spin: run.spin_us,
        layouts: match (run.layout.is_empty(), run.quick) {
            (false, _) => run.layout.clone(),
            (true, true) => vec![Layout::OneHost],
            (true, false) => Layout::value_variants().to_vec(),
        },
        contenders: match (run.contender.is_empty(), run.quick) {
            (false, _) => run.contender.clone(),
            (true, true) => Contender::QUICK.to_vec(),
            (true, false) => Contender::ALL.to_vec(),
        },
        works: match (run.work.is_empty(), run.quick) {
            (false, _) => run.work.clone(),
            (true, true) => Work::QUICK.to_vec(),
            (true, false) => Work::ALL.to_vec(),
        },
        rounds: run.rounds,
        seconds: run.seconds,
    };
    let begin = Instant::now();
    let mut progress = |text: &str| eprintln!("{:>6.1} s  {text}", begin.elapsed().as_secs_f64());
    let report = bench::run(&plan, &mut progress)?;
    if let Some(folder) = &run.write {
        page::write(&report, folder).context("the page")?;
    }
    match run.output {
        Form::Text => print!("{}", page::text(&report)),
        Form::Json => println!("{}", serde_json::to_string_pretty(&report)?),
    }
    Ok(report.is_valid())
}
