//! csp-context: parses its command line, runs, turns errors into exit codes.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use csp_context::daemon::{self, Options};
use csp_context::packets::{self, PacketArguments};
use csp_context::session::Limits;
use csp_control::exit_code;
use csp_daemon::program::{self, Shell, exit_code_of, print_completions};
use csp_daemon::trial;
use csp_telemetry::{LogFormat, init_logging};

/// A context of the Comm Services Platform: runs handlers of messages for proxy workers. Start it with
/// csp-run on an application node, and name it in the policy's `contexts`.
#[derive(Parser)]
#[command(
    name = "csp-context",
    version,
    after_help = "\
EXAMPLES:
  csp-run --mode strict csp-context
  csp-run --mode strict csp-context --listen 0.0.0.0:7100 --listen 0.0.0.0:7101
  csp-context --handlers
  csp-context packets --node an-1 --cluster-key-file /etc/csp/app-node.key --shm /run/csp/h0.sock --tcp 10.77.0.3:7200

  In the policy:
    contexts:
      - {name: g0, pool: [{node: an-1, port: 7100}]}
    channels:
      - name: ticks
        ...
        path: [{handler: drop-every, parameters: \"10\", context: g0}]
    plugin_hosts:
      - {name: h0, node: an-1, shm: /run/csp/h0.sock, tcp: \"10.77.0.3:7200\"}
    plugins:
      - {name: count, module: counter, level: 3, context: h0}

EXIT CODES:
  0   stopped by SIGTERM or SIGINT
  64  the command line is wrong
  69  an address to listen at cannot be had
  70  internal error
  78  the log level is wrong"
)]
struct Arguments {
    /// Where proxy workers connect; may be repeated, for several contexts in one program.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:7100")]
    listen: Vec<SocketAddr>,
    /// Largest number of connections at a time. Each has a thread; a proxy worker has one connection for each
    /// context that its channels need.
    #[arg(long, value_name = "N", default_value_t = 256)]
    connections_max: usize,
    /// Messages of a stage that a proxy may send before they are answered.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    calls: u32,
    /// Log level, and levels of single modules, as `info` or `warn,csp_context=debug`.
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log: String,
    /// Print the names of the handlers that there are.
    #[arg(long)]
    handlers: bool,
    /// Print a completion script for a shell, for packages.
    #[arg(long, value_name = "SHELL", hide = true)]
    completions: Option<Shell>,
    #[command(subcommand)]
    mode: Option<Mode>,
}

/// The program's other mode.
#[derive(Subcommand)]
enum Mode {
    /// Run packet plug-ins of level 3 for network nodes, without csp-run
    Packets(PacketArguments),
}

fn main() -> ExitCode {
    if let Some(code) = trial::child(csp_sandbox::compiles) {
        return code;
    }
    let arguments: Arguments = match program::parse() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    if let Some(shell) = arguments.completions {
        return print_completions::<Arguments>("csp-context", shell);
    }
    if arguments.handlers {
        csp_handlers::builtin::NAMES.iter().for_each(|name| println!("{name}"));
        return exit_code::OK.into();
    }
    if let Err(error) = init_logging(&arguments.log, LogFormat::Text) {
        eprintln!("csp-context: --log: {error}");
        return exit_code::CONFIG.into();
    }
    if let Some(Mode::Packets(packets)) = &arguments.mode {
        return exit_code_of("csp-context", packets::run(packets));
    }
    let limits = Limits { calls: arguments.calls, ..Limits::default() };
    let options = Options { listen: arguments.listen, connections_max: arguments.connections_max, limits };
    exit_code_of("csp-context", daemon::run(&options))
}
