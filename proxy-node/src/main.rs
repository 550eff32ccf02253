//! csp-proxy-node: reads its configuration, runs, turns errors into exit codes.

use std::process::ExitCode;

use clap::Parser;
use csp_daemon::program::{self, ConfigFile};
use csp_daemon::{Cpus, Threads, trial};
use csp_proxy_node::daemon::{self, config::Config};

/// The proxy node of the Comm Services Platform: terminates every client's TCP connection at user level and
/// passes the byte streams to application processes over the system area network.
#[derive(Parser)]
#[command(
    name = "csp-proxy-node",
    version,
    after_help = "\
EXAMPLES:
  csp-proxy-node --config /etc/csp/proxy-node.yaml
  csp-proxy-node --config /etc/csp/proxy-node.yaml --check-config

EXIT CODES:
  0   stopped by SIGTERM or SIGINT; with --check-config: the configuration is right
  64  the command line is wrong
  69  an address or socket that it needs cannot be had
  70  internal error
  73  another live node has this node's id
  78  the configuration is wrong; the message names file, line and field"
)]
struct Arguments {
    #[command(flatten)]
    file: ConfigFile,
}

fn main() -> ExitCode {
    if let Some(code) = trial::child(csp_sandbox::compiles) {
        return code;
    }
    program::main(
        "csp-proxy-node",
        |arguments: &Arguments| &arguments.file,
        Config::load,
        |config| {
            csp_daemon::init_logging(&config.log)?;
            let threads = Threads::Own(Cpus::new(&config.cpus)?);
            daemon::run(config, &threads, None)
        },
    )
}
