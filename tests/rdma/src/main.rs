//! `csp-rdma-guests`: commands in guests with RDMA.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use csp_rdma_guests::{Fleet, Output, Sizes, agent, bench, demo, kernel, suite};

/// Exit code of the tool's own failures, as env(1) and timeout(1) have it.
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
    /// Boots guests, runs a command in the first, and ends with its exit code.
    Run(Run),
    /// The whole path between guests: files from an unmodified nginx, and a machine that falls silent.
    Demo(Demo),
    /// Verbs in one guest: the device's checks, then the tests on verbs of the test binaries that are named.
    Test {
        /// Test binaries, as `cargo test --no-run` names them.
        binaries: Vec<PathBuf>,
    },
    /// Half round trips in one guest: the verbs provider beside ibv_rc_pingpong, perftest, rsockets and the kernel's TCP.
    Bench(Bench),
    /// What runs inside a guest.
    #[command(hide = true)]
    Agent,
}

#[derive(Args)]
struct Run {
    /// How many guests to boot.
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
    /// Seconds that the command may take.
    #[arg(long, default_value_t = 900)]
    timeout: u64,
    /// A shell command that runs in guest N meanwhile, as N:COMMAND. May be given several times.
    #[arg(long, value_name = "N:COMMAND")]
    background: Vec<String>,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

#[derive(Args)]
struct Bench {
    /// How long each batch is measured.
    #[arg(long, default_value_t = 0.05)]
    seconds: f64,
    /// Runs of each point, of six batches each; the best batch counts.
    #[arg(long, default_value_t = 3)]
    runs: u32,
    /// Also writes every point to this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// The folder with csp-perf; this tool's own where it is not given.
    #[arg(long)]
    binaries: Option<PathBuf>,
}

#[derive(Args)]
struct Demo {
    /// What carries the SAN between guests: verbs, ucx or auto.
    #[arg(long, default_value = "verbs")]
    san: String,
    /// The application on the proxy node's machine: two guests, and no agent relays.
    #[arg(long)]
    together: bool,
    /// The folder with the daemons; this tool's own where it is not given.
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

/// Whether the provider is as fast as promised.
fn measure(arguments: Bench) -> Result<bool> {
    let (seconds, runs) = (arguments.seconds, arguments.runs.max(1));
    let settings = bench::Settings { binaries: built(arguments.binaries)?, seconds, runs };
    let figures = bench::run(&kernel::obtain(&folder()?)?, &settings)?;
    println!("{figures}");
    arguments.json.map_or(Ok(()), |path| figures.write(&path))?;
    Ok(figures.holds())
}

/// The folder that was named, or this program's own.
fn built(named: Option<PathBuf>) -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    Ok(named.unwrap_or(own.parent().context("this program's own folder")?.to_owned()))
}

fn test(binaries: &[PathBuf]) -> Result<()> {
    suite::run(&kernel::obtain(&folder()?)?, binaries)
}

/// Where the kernel is kept: in the folder of the build's profiles.
fn folder() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let folder = own.ancestors().nth(2).context("this program's folder has no parent")?.join("rdma");
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    Ok(folder)
}
