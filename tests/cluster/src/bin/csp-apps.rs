//! `make test-apps`: real programs, unmodified, behind the whole path, and a table of the results.

use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use csp_cluster::apps::{self, Options, Output};

/// Runs real programs from Debian unmodified under csp-run behind the four daemons, drives each with a real
/// client through the VIP, and prints a table: what was accelerated, what was left to the kernel, whether it
/// works. Needs root. Removes everything that it created.
#[derive(Parser)]
#[command(
    name = "csp-apps",
    version,
    after_help = "\
EXAMPLES:
  csp-apps                            every row, the table at the end
  csp-apps --quick                    10 s of load where a full run has 60 s
  csp-apps --only nginx-2 --keep      one row; its cluster stays until Ctrl-C
  csp-apps --only redis --only sshd --output json

EXIT CODES:
  0  every row works
  1  a row does not, or nothing could be run; the logs that matter are printed
  2  the command line is wrong"
)]
struct Arguments {
    /// Run only the row of this name (--list shows them); may be given several times.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Print the rows' names and what each of them does.
    #[arg(long)]
    list: bool,
    /// Ten seconds of load where a full run has sixty.
    #[arg(long)]
    quick: bool,
    /// Network node and proxy node are one process, csp-edge-node, in rows over shared memory.
    #[arg(long)]
    edge: bool,
    /// Leave each row's cluster running until Ctrl-C.
    #[arg(long)]
    keep: bool,
    /// Form of the table; progress goes to standard error.
    #[arg(long, value_enum, default_value_t = OutputArgument::Table)]
    output: OutputArgument,
}

#[derive(Clone, Copy, ValueEnum)]
enum OutputArgument {
    Table,
    Json,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.list {
        apps::list();
        return ExitCode::SUCCESS;
    }
    let output = match arguments.output {
        OutputArgument::Table => Output::Table,
        OutputArgument::Json => Output::Json,
    };
    let Arguments { only, quick, edge, keep, .. } = arguments;
    match apps::run(&Options { only, quick, edge, keep, output }) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("csp-apps: {error:#}");
            ExitCode::FAILURE
        }
    }
}
