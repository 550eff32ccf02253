//! csp-proxy-node: reads its configuration, runs, turns errors into exit codes.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use csp_control::exit_code;
use csp_proxy_node::daemon::{self, config::Config};

/// The proxy node of the Comm Services Platform: ends every client's TCP connection at user level and passes the byte
/// streams to application processes over the system area network.
#[derive(Parser)]
#[command(
    name = "csp-proxy-node",
    version,
    after_help = "\
EXAMPLES:
  csp-proxy-node --config /etc/csp/proxy-node.yaml
  csp-proxy-node --config /etc/csp/proxy-node.yaml --check

EXIT CODES:
  0   stopped by SIGTERM or SIGINT; with --check: the configuration is right
  64  the command line is wrong
  69  an address or socket that it needs cannot be had
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
            eprintln!("csp-proxy-node: {error}");
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
            eprintln!("csp-proxy-node: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
