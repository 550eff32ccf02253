//! csp-edge-node: the network node and the proxy node of one host in one process. Each worker of the one
//! shares its thread with a worker of the other, so that a segment on its way needs no wake-up between them.
//! They stay two nodes, with a configuration, a registration and an admin endpoint each.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use csp_daemon::{DaemonError, SharedThreads, Threads, program, trial};
use csp_network_node::daemon as network;
use csp_proxy_node::daemon as proxy;
use csp_transport::Adjacency;
use rustix::process::{Signal, getpid, kill_process};

/// The edge of the Comm Services Platform: a network node and a proxy node of one host, in one process whose
/// data threads run a worker of each.
#[derive(Parser)]
#[command(
    name = "csp-edge-node",
    version,
    after_help = "\
EXAMPLES:
  csp-edge-node --network-node /etc/csp/network-node.yaml --proxy-node /etc/csp/proxy-node.yaml
  csp-edge-node --network-node network-node.yaml --proxy-node proxy-node.yaml --check-config

Both nodes end when the process does: a fault of either takes both along. The proxy's processes of other hosts
and the network nodes of other edges reach it as they reach any proxy.

EXIT CODES:
  0   stopped by SIGTERM or SIGINT; with --check-config: both configurations are right
  64  the command line is wrong
  69  an interface, address or provider that it needs cannot be had
  70  internal error
  73  another live node has the id of one of the nodes
  78  a configuration is wrong; the message names file, line and field"
)]
struct Arguments {
    /// The network node's configuration file (YAML).
    #[arg(long, value_name = "FILE")]
    network_node: PathBuf,
    /// The proxy node's configuration file (YAML).
    #[arg(long, value_name = "FILE")]
    proxy_node: PathBuf,
    /// Only check the configurations.
    #[arg(long, alias = "check")]
    check_config: bool,
}

fn main() -> ExitCode {
    if let Some(code) = trial::child(csp_plugin_modules::compiles) {
        return code;
    }
    let arguments: Arguments = match program::parse() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    program::exit_code_of("csp-edge-node", run(&arguments))
}

fn run(arguments: &Arguments) -> Result<(), DaemonError> {
    let Arguments { network_node, proxy_node, check_config } = arguments;
    let network = network::config::Config::load(network_node)?;
    let proxy = proxy::config::Config::load(proxy_node)?;
    if *check_config {
        let right = |path: &Path| println!("{}: the configuration is right", path.display());
        right(network_node);
        right(proxy_node);
        return Ok(());
    }
    program::raise_descriptor_limit("csp-edge-node");
    csp_daemon::init_logging(&network.log)?;
    if [network.san.provider, proxy.san.provider].iter().any(|provider| provider.allows("ucx")) {
        // Loading the library changes the environment, which no other thread may read meanwhile. A node that
        // needs it reports why it cannot be had.
        let _ = csp_vi::ucx::load();
    }
    let threads = Threads::Shared(SharedThreads::new(&[network.workers, proxy.workers]));
    let adjacency = Adjacency::new(network.node.id, proxy.node.id, network.workers.min(proxy.workers));
    let adjacency = Arc::new(adjacency);
    let of_proxy = (threads.clone(), Arc::clone(&adjacency));
    let control = std::thread::Builder::new().name("proxy".to_owned());
    let control =
        control.spawn(move || or_exit("proxy node", proxy::run(proxy, &of_proxy.0, Some(&of_proxy.1))))?;
    or_exit("network node", network::run(network, &threads, Some(&adjacency)));
    let _ = control.join(); // a panic would have ended the process
    Ok(())
}

/// Ends the process if a node could not go on; has the other node stop if it has been stopped.
fn or_exit(node: &str, ended: Result<(), DaemonError>) {
    match ended {
        Ok(()) => {
            // Each node has handlers of its own for the signal: the other may have seen it already.
            let _ = kill_process(getpid(), Signal::TERM);
        }
        Err(error) => {
            // The other node's workers wait in vain for those of this one, or share their threads.
            eprintln!("csp-edge-node: {node}: {error}");
            tracing::error!(%error, "the {node} has ended, and the process with it");
            std::process::exit(error.exit_code().into());
        }
    }
}
