//! csp-network-node: reads its configuration, runs, turns errors into exit codes.

use std::process::ExitCode;

use clap::Parser;
use csp_daemon::program::{self, ConfigFile};
use csp_daemon::{Cpus, Threads, trial};
use csp_network_node::daemon::{self, Lan, config::Config};

/// The network node of the Comm Services Platform: receives clients' packets from the LAN, assigns each flow
/// to a proxy over the system area network, and transmits the proxies' packets.
#[derive(Parser)]
#[command(
    name = "csp-network-node",
    version,
    after_help = "\
EXAMPLES:
  csp-network-node --config /etc/csp/network-node.yaml
  csp-network-node --config /etc/csp/network-node.yaml --check-config

EXIT CODES:
  0   stopped by SIGTERM or SIGINT; with --check-config: the configuration is right
  64  the command line is wrong
  69  an interface, address or provider that it needs cannot be had
  70  internal error
  73  another live node has this node's id
  78  the configuration is wrong; the message names file, line and field"
)]
struct Arguments {
    #[command(flatten)]
    file: ConfigFile,
}

fn main() -> ExitCode {
    if let Some(code) = trial::child(csp_plugin_modules::compiles) {
        return code;
    }
    program::main(
        "csp-network-node",
        |arguments: &Arguments| &arguments.file,
        Config::load,
        |config| {
            csp_daemon::init_logging(&config.log)?;
            let threads = Threads::Own(Cpus::new(&config.cpus)?);
            let lan = Lan::open(&config)?;
            daemon::run(config, lan, &threads, None)
        },
    )
}
