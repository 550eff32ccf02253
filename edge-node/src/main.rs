//! csp-edge-node: the network node and the proxy node of one host in one process. Each worker of the one
//! shares its thread with a worker of the other, so that a segment on its way needs no wake-up between them.
//! They stay two nodes, with a configuration, a registration and an admin endpoint each.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{ArgGroup, Parser};
use csp_daemon::{Cpus, DaemonError, ServiceManager, SharedThreads, Threads, privileges, program, trial};
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
    group = ArgGroup::new("files").args(["network_node", "proxy_node"]).multiple(true),
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
    #[arg(long, value_name = "FILE", required_unless_present_any = ["completions", "check_config"])]
    network_node: Option<PathBuf>,
    /// The proxy node's configuration file (YAML).
    #[arg(long, value_name = "FILE", required_unless_present_any = ["completions", "check_config"])]
    proxy_node: Option<PathBuf>,
    /// Only check the configurations, or the one that is named.
    #[arg(long, alias = "check", requires = "files")]
    check_config: bool,
    /// Print a completion script for a shell, for packages.
    #[arg(long, value_name = "SHELL", hide = true)]
    completions: Option<program::Shell>,
}

/// Why rules of packet plug-ins that name level 1 stay at level 2.
const NO_PROGRAMS: &str = "csp-edge-node gives up the capabilities for it before it serves; a network node in a process of its own has level 1";

fn main() -> ExitCode {
    if let Some(code) = trial::child(csp_plugin_modules::compiles) {
        return code;
    }
    let arguments: Arguments = match program::parse() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    if let Some(shell) = arguments.completions {
        return program::print_completions::<Arguments>("csp-edge-node", shell);
    }
    program::exit_code_of("csp-edge-node", run(&arguments))
}

fn run(arguments: &Arguments) -> Result<(), DaemonError> {
    let network = arguments.network_node.as_deref().map(network::config::Config::load).transpose()?;
    let proxy = arguments.proxy_node.as_deref().map(proxy::config::Config::load).transpose()?;
    if let (Some(network), Some(proxy)) = (&network, &proxy) {
        cpus_of(arguments, network, proxy)?;
    }
    if arguments.check_config {
        for path in [&arguments.network_node, &arguments.proxy_node].into_iter().flatten() {
            println!("{}: the configuration is right", path.display());
        }
        return Ok(());
    }
    // The parser requires both unless they are only checked.
    let (Some(network), Some(proxy)) = (network, proxy) else { return Ok(()) };
    program::raise_descriptor_limit("csp-edge-node");
    ServiceManager::of_nodes(2);
    csp_daemon::init_logging(&network.log)?;
    let lan = open_ports(&network).unwrap_or_else(|error| exit("network node", &error));
    if [network.san.provider, proxy.san.provider].iter().any(|provider| provider.allows("ucx")) {
        // Loading the library changes the environment, which no other thread may read meanwhile. A node that
        // needs it reports why it cannot be had.
        let _ = csp_vi::ucx::load();
    }
    let cpus = Cpus::new(cpus_of(arguments, &network, &proxy)?)?;
    let threads = Threads::Shared(SharedThreads::new(&[network.workers, proxy.workers], cpus));
    let adjacency = Adjacency::new(network.node.id, proxy.node.id, network.workers.min(proxy.workers));
    let adjacency = Arc::new(adjacency);
    let of_proxy = (threads.clone(), Arc::clone(&adjacency));
    let control = std::thread::Builder::new().name("proxy".to_owned());
    let control =
        control.spawn(move || or_exit("proxy node", proxy::run(proxy, &of_proxy.0, Some(&of_proxy.1))))?;
    or_exit("network node", network::run(network, lan, &threads, Some(&adjacency)));
    let _ = control.join(); // a panic would have ended the process
    Ok(())
}

/// Returns the processors of the threads, which workers of both nodes share.
fn cpus_of<'a>(
    arguments: &Arguments,
    network: &'a network::config::Config,
    proxy: &'a proxy::config::Config,
) -> Result<&'a [u16], DaemonError> {
    match (&network.cpus[..], &proxy.cpus[..]) {
        (one, other) if one == other || other.is_empty() => Ok(one),
        ([], other) => Ok(other),
        (one, other) => {
            let fault = format!(
                "{other:?} are not the network node's {one:?}, but their workers share threads: name the same"
            );
            let file = arguments.proxy_node.as_deref().unwrap_or(Path::new(""));
            Err(DaemonError::config(file, "cpus", fault))
        }
    }
}

/// Opens the ports and gives up what that needed, since this process reads the memory of applications. AF_XDP
/// ports keep their program in the driver up to date, so that with them the capabilities stay.
fn open_ports(config: &network::config::Config) -> Result<network::Lan, DaemonError> {
    let mut lan = network::Lan::open(config)?;
    if lan.needs_programs() {
        privileges::keep_to_this_process()?;
        tracing::warn!(
            "with AF_XDP ports this process keeps the capabilities to change the driver's program"
        );
    } else {
        privileges::give_up_ports()?;
        lan.without_programs(NO_PROGRAMS);
    }
    Ok(lan)
}

/// Ends the process if a node could not go on; has the other node stop if it has been stopped.
fn or_exit(node: &str, ended: Result<(), DaemonError>) {
    match ended {
        Ok(()) => {
            // Each node has handlers of its own for the signal: the other may have seen it already.
            let _ = kill_process(getpid(), Signal::TERM);
        }
        // The other node's workers wait in vain for those of this one, or share their threads.
        Err(error) => exit(node, &error),
    }
}

fn exit(node: &str, error: &DaemonError) -> ! {
    eprintln!("csp-edge-node: {node}: {error}");
    tracing::error!(%error, "the {node} has ended, and the process with it");
    std::process::exit(error.exit_code().into());
}
