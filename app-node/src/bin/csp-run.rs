//! csp-run: starts a program with the socket filter.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use csp_app_node::launch::{Launch, Mode};
use csp_daemon::program::{Shell, print_completions};

/// Starts an unmodified program whose TCP sockets go through the cluster instead of the kernel.
#[derive(Parser)]
#[command(
    name = "csp-run",
    version,
    after_help = "\
EXAMPLES:
  csp-run nginx -g 'daemon off;'
  csp-run --mode strict python3 -m http.server 8000
  csp-run --check /usr/sbin/nginx

ENVIRONMENT:
  CSP_SOCKFILTER  path of libcsp_sockfilter.so (default: beside csp-run, or in ../lib)
  CSP_AGENT       the agent's socket, as --agent
  CSP_SPIN_US     how long a blocking call polls before it sleeps: auto (default), or 0 to 1000 microseconds
  CSP_IO_URING    refuse: the kernel refuses io_uring to the program (set for programs whose code contains the call)
  CSP_POOL        Virtual Interfaces to each proxy worker (1 to 16, default 2)

EXIT CODES:
  64   the command line is wrong
  78   the filter is not there, or (--mode strict, --check) the program cannot be accelerated
  126  the program cannot be executed
  127  the program was not found
  else the program's own"
)]
struct Arguments {
    /// on: accelerate what can be; off: change nothing; strict: refuse what should be accelerated and cannot
    /// be.
    #[arg(long, value_enum, default_value_t, env = "CSP_MODE")]
    mode: Mode,
    /// The agent's socket [default: /run/csp/agent.sock].
    #[arg(long, value_name = "PATH", env = "CSP_AGENT")]
    agent: Option<PathBuf>,
    /// Only report whether the program can be accelerated.
    #[arg(long)]
    check: bool,
    /// Print a completion script for a shell, for packages.
    #[arg(long, value_name = "SHELL", hide = true)]
    completions: Option<Shell>,
    /// The program and its arguments.
    #[arg(required_unless_present = "completions", trailing_var_arg = true, value_name = "PROGRAM [ARGS]")]
    command: Vec<OsString>,
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 64 } else { 0 });
        }
    };
    if let Some(shell) = arguments.completions {
        return print_completions::<Arguments>("csp-run", shell);
    }
    let mut command = arguments.command.into_iter();
    let program = command.next().unwrap_or_default();
    let launch =
        Launch { mode: arguments.mode, agent: arguments.agent, program, arguments: command.collect() };
    let error = if arguments.check {
        match launch.check() {
            Ok(verdict) => {
                println!("{verdict}");
                return ExitCode::from(if verdict.obstacle.is_some() { 78 } else { 0 });
            }
            Err(error) => error,
        }
    } else {
        launch.exec()
    };
    eprintln!("csp-run: {error}");
    ExitCode::from(error.exit_code())
}
