//! csp-network-node: reads its configuration, runs, turns errors into exit codes.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use csp_control::exit_code;
use csp_network_node::daemon::{self, config::Config};

/// The network node of the Comm Services Platform: takes clients' packets from the LAN, gives each flow to a proxy
/// over the system area network, and transmits what the proxies answer.
#[derive(Parser)]
#[command(
    name = "csp-network-node",
    version,
    after_help = "\
EXAMPLES:
  csp-network-node --config /etc/csp/network-node.yaml
  csp-network-node --config /etc/csp/network-node.yaml --check

EXIT CODES:
  0   stopped by SIGTERM or SIGINT; with --check: the configuration is right
  64  the command line is wrong
  69  an interface, address or provider that it needs cannot be had
  70  internal error
  73  another live node has this node's id
  78  the configuration is wrong; the message names file, line and field"
)]
struct Arguments {
    /// The configuration file (YAML).
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Only check the configuration.
    #[arg(long)]
    check: bool,
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { exit_code::USAGE } else { exit_code::OK });
        }
    };
    let config = match Config::load(&arguments.config) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("csp-network-node: {error}");
            return ExitCode::from(exit_code::CONFIG);
        }
    };
    if arguments.check {
        println!("{}: the configuration is right", arguments.config.display());
        return ExitCode::from(exit_code::OK);
    }
    match daemon::run(config) {
        Ok(()) => ExitCode::from(exit_code::OK),
        Err(error) => {
            eprintln!("csp-network-node: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
