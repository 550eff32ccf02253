//! csp-app-node: reads its configuration, runs, turns errors into exit codes.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use csp_app_node::config::Config;
use csp_app_node::daemon;
use csp_control::exit_code;

/// The application node of the Comm Services Platform: the agent of a host that runs servers. It gives processes
/// started by csp-run their place in the cluster, and shows what they do.
#[derive(Parser)]
#[command(
    name = "csp-app-node",
    version,
    after_help = "\
EXAMPLES:
  csp-app-node --config /etc/csp/app-node.yaml
  csp-app-node --config /etc/csp/app-node.yaml --check

EXIT CODES:
  0   stopped by SIGTERM or SIGINT; with --check: the configuration is right
  64  the command line is wrong
  69  a socket or address that it needs cannot be had
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
    let result = match Config::load(&arguments.config) {
        Ok(_) if arguments.check => {
            println!("{}: the configuration is right", arguments.config.display());
            Ok(())
        }
        Ok(config) => daemon::run(&config).map_err(|error| (error.to_string(), error.exit_code())),
        Err(error) => Err((error.to_string(), exit_code::CONFIG)),
    };
    match result {
        Ok(()) => ExitCode::from(exit_code::OK),
        Err((words, code)) => {
            eprintln!("csp-app-node: {words}");
            ExitCode::from(code)
        }
    }
}
