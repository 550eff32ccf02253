//! `csp-rdma-guests`: runs commands in guests with RDMA.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use csp_rdma_guests::{Fleet, Output, Sizes, agent, bench, demo, kernel, suite};

/// Exit code of the tool's own failures, as for env(1) and timeout(1).
const OWN_FAILURE: u8 = 125;

/// Runs commands in QEMU guests that have real RDMA verbs (Soft-RoCE) and see this machine's files.
#[derive(Parser)]
#[command(
    name = "csp-rdma-guests",
    version,
    after_help = "\
GUESTS:
  Guest n has eth0 with 10.99.0.n/24 and fd99::n/64, and the device rxe0 on it. It sees this machine's files as they
  are; what it writes goes to its memory. Commands run as root in the folder where this tool was called.

EXAMPLES:
  csp-rdma-guests run -- rdma link
  csp-rdma-guests run -- env CSP_VI_VERBS=10.99.0.1 target/release/deps/verbs-0123456789abcdef --ignored
  csp-rdma-guests bench --runs 1 --json verbs.json
  csp-rdma-guests run --guests 2 --background '2:ib_rc_pingpong -d rxe0 -g 1' \\
      -- sh -c 'sleep 1; ib_rc_pingpong -d rxe0 -g 1 10.99.0.2'

EXIT CODES:
  the command's own; 128 + n where signal n ended it, 127 where it could not be started
  1    a promise of bench is broken
  125  the tool failed or the command took too long"
)]
struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Boot guests, run a command in the first, and exit with its exit code.
    Run(Run),
    /// Run the whole path between guests: files from an unmodified nginx, and the silent death of a host.
    Demo(Demo),
    /// Check the RDMA device in one guest and run the tests on verbs of the given test binaries.
    Test {
        /// Test binaries, as printed by `cargo test --no-run`.
        binaries: Vec<PathBuf>,
    },
    /// Measure half round trips in one guest: the verbs provider, ibv_rc_pingpong, perftest, rsockets and the
    /// kernel's TCP.
    Bench(Bench),
    /// The agent, which runs inside a guest.
    #[command(hide = true)]
    Agent,
}

#[derive(Args)]
struct Run {
    /// Number of guests.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=9))]
    guests: u8,
    /// Processors of each guest.
    #[arg(long, default_value_t = 2)]
    cpus: u32,
    /// Memory of each guest in MiB.
    #[arg(long, default_value_t = 1024)]
    memory: u32,
    /// Largest IP packet between guests in bytes.
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u32).range(1280..=9000))]
    mtu: u32,
    /// Time limit of the command in seconds.
    #[arg(long, default_value_t = 900)]
    timeout: u64,
    /// A shell command to run in guest N at the same time, as N:COMMAND. May be repeated.
    #[arg(long, value_name = "N:COMMAND")]
    background: Vec<String>,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

#[derive(Args)]
struct Bench {
    /// Length of each batch in seconds.
    #[arg(long, default_value_t = 0.05)]
    seconds: f64,
    /// Runs of each point, of six batches each; the best batch counts.
    #[arg(long, default_value_t = 3)]
    runs: u32,
    /// Also write every point to this file, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// The directory of csp-perf; by default that of this tool.
    #[arg(long)]
    binaries: Option<PathBuf>,
}

#[derive(Args)]
struct Demo {
    /// The SAN's provider between guests: verbs, ucx or auto.
    #[arg(long, default_value = "verbs")]
    san: String,
    /// Run the application on the proxy node's guest: two guests, without an agent as relay.
    #[arg(long)]
    together: bool,
    /// The directory of the daemons; by default that of this tool.
    #[arg(long)]
    binaries: Option<PathBuf>,
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().action {
        Action::Run(arguments) => run(&arguments),
        Action::Demo(arguments) => demonstrate(arguments).map(|()| 0),
        Action::Test { binaries } => test(&binaries).map(|()| 0),
        Action::Bench(arguments) => measure(arguments).map(|holds| u8::from(!holds)),
        Action::Agent => agent::serve().map(|()| 0),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("csp-rdma-guests: {error:#}");
            ExitCode::from(OWN_FAILURE)
        }
    }
}

fn run(arguments: &Run) -> Result<u8> {
    let kernel = kernel::obtain(&folder()?)?;
    let sizes = Sizes { memory_mib: arguments.memory, cpus: arguments.cpus, mtu: arguments.mtu };
    let mut fleet = Fleet::boot(&kernel, arguments.guests, sizes)?;
    let mut background = Vec::new();
    for text in &arguments.background {
        let (number, command) = text.split_once(':').context("--background takes N:COMMAND")?;
        let guest = number.parse::<usize>().ok().and_then(|n| fleet.guests.get_mut(n.checked_sub(1)?));
        let guest = guest.with_context(|| format!("--background: there is no guest {number}"))?;
        background.push(guest.start(&["/bin/sh", "-c", command], Output::Inherit)?);
    }
    let command: Vec<&str> = arguments.command.iter().map(String::as_str).collect();
    let first = fleet.guests.first_mut().context("no guest")?;
    let mut program = first.start(&command, Output::Inherit)?;
    let code = program.wait(Duration::from_secs(arguments.timeout)).with_context(|| first.console())?;
    Ok(u8::try_from(code).unwrap_or(OWN_FAILURE))
}

fn demonstrate(arguments: Demo) -> Result<()> {
    let (provider, together) = (arguments.san, arguments.together);
    let options = demo::Options { provider, together, binaries: built(arguments.binaries)? };
    demo::run(&kernel::obtain(&folder()?)?, options)
}

/// Runs `bench` and returns whether the provider is within its bound.
fn measure(arguments: Bench) -> Result<bool> {
    let (seconds, runs) = (arguments.seconds, arguments.runs.max(1));
    let settings = bench::Settings { binaries: built(arguments.binaries)?, seconds, runs };
    let figures = bench::run(&kernel::obtain(&folder()?)?, &settings)?;
    println!("{figures}");
    arguments.json.map_or(Ok(()), |path| figures.write(&path))?;
    Ok(figures.holds())
}

/// Returns the given directory, or that of this program.
fn built(named: Option<PathBuf>) -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    Ok(named.unwrap_or(own.parent().context("this program's own folder")?.to_owned()))
}

fn test(binaries: &[PathBuf]) -> Result<()> {
    suite::run(&kernel::obtain(&folder()?)?, binaries)
}

/// Returns the directory in which the kernel is cached, beside those of the build's profiles.
fn folder() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let folder = own.ancestors().nth(2).context("this program's folder has no parent")?.join("rdma");
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    Ok(folder)
}
