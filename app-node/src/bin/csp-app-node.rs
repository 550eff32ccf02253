//! csp-app-node: reads its configuration, runs, turns errors into exit codes.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use csp_app_node::config::Config;
use csp_app_node::daemon;
use csp_daemon::program::{self, ConfigFile};

/// The application node of the Comm Services Platform: the agent of a host that runs servers. It connects
/// processes started by csp-run to the cluster, and reports what they do.
#[derive(Parser)]
#[command(
    name = "csp-app-node",
    version,
    after_help = "\
EXAMPLES:
  csp-app-node --config /etc/csp/app-node.yaml
  csp-app-node --config /etc/csp/app-node.yaml --check-config

EXIT CODES:
  0   stopped by SIGTERM or SIGINT; with --check-config: the configuration is right
  64  the command line is wrong
  69  a socket or address that it needs cannot be had
  70  internal error
  73  another live node has this node's id
  78  the configuration is wrong; the message names file, line and field"
)]
struct Arguments {
    #[command(flatten)]
    file: ConfigFile,
}

fn main() -> ExitCode {
    program::main(
        "csp-app-node",
        |arguments: &Arguments| &arguments.file,
        Config::load,
        |config| daemon::run(&config),
    )
}
