//! `csp-context packets`: the attached host of packet plug-ins (level 3), with one data thread.
//!
//! The process holds the keys of its links to network nodes. It runs no handlers, because these may be code
//! of other parties.
#![allow(clippy::disallowed_types, reason = "it owns clocks and threads")]

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use csp_daemon::trial::Trial;
use csp_daemon::{DaemonError, DataThread, DataWorker, KeyFile, StopSignals, clock};
use csp_plugin_host::{HostCounters, HostNotice, HostWorker, SessionConfig};
use csp_plugin_modules::PluginModules;
use csp_plugins::{HashKey, Supply};
use csp_transport::{Endpoint, EndpointConfig, Holder, PeerIdentity};
use csp_types::spin::SpinSetting;
use csp_types::{Instant, NodeId, Role};
use csp_vi::{Armed, ProviderKind, ViAddress, ViError, Wake};

/// Most links: workers of network nodes.
const LINKS_MAX: u32 = 256;
/// Capacity of the thread's mailbox. The only message ends the thread.
const QUESTIONS_MAX: usize = 4;
/// Turns after closing, so that CLOSE is sent before the process ends.
const LAST_TURNS: usize = 3;

/// The command line.
#[derive(Args, Clone, Debug)]
pub struct PacketArguments {
    /// The application node on whose host the process runs, as the policy's plugin_hosts name it.
    #[arg(long, value_name = "NODE")]
    node: NodeId,
    /// Key file with the keys of this host's links to network nodes (`cspctl key derive ... --network-node`).
    #[arg(long, value_name = "FILE")]
    cluster_key_file: PathBuf,
    /// Unix socket for network nodes of the same host.
    #[arg(long, value_name = "PATH", required_unless_present_any = ["tcp", "ucx", "verbs"])]
    shm: Option<PathBuf>,
    /// Where network nodes connect by TCP.
    #[arg(long, value_name = "ADDRESS:PORT")]
    tcp: Option<SocketAddr>,
    /// Where network nodes connect by UCX.
    #[arg(long, value_name = "ADDRESS:PORT")]
    ucx: Option<SocketAddr>,
    /// Where network nodes connect by RDMA.
    #[arg(long, value_name = "ADDRESS:PORT")]
    verbs: Option<SocketAddr>,
    /// How long the thread polls without work before it sleeps: `auto`, or microseconds, 0 to 1000.
    #[arg(long, value_name = "US", default_value = "auto")]
    spin_us: SpinSetting,
}

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// The key cannot be read, or an address is not available.
pub fn run(arguments: &PacketArguments) -> Result<(), DaemonError> {
    let keys = KeyFile::load(&arguments.cluster_key_file, Holder::Host(arguments.node))?;
    let identity = PeerIdentity::daemon(Role::AppNode, arguments.node, rand::random(), 0);
    let config = EndpointConfig {
        links_max: LINKS_MAX,
        ..EndpointConfig::tunnel(identity, Some(keys.keys().clone()))
    };
    let mut endpoints = Vec::new();
    // The first of UCX loads a library, which threads would disturb.
    for (kind, address) in [
        (ProviderKind::Shm, arguments.shm.clone().map(ViAddress::Path)),
        (ProviderKind::Verbs, arguments.verbs.map(ViAddress::Ip)),
        (ProviderKind::Tcp, arguments.tcp.map(ViAddress::Ip)),
        (ProviderKind::Ucx, arguments.ucx.map(ViAddress::Ip)),
    ] {
        let Some(address) = address else { continue };
        let fail =
            |error: ViError| DaemonError::Unavailable(format!("--{kind} {address} cannot be had: {error}"));
        let ip = match &address {
            ViAddress::Ip(address) => Some(address.ip()).filter(|ip| !ip.is_unspecified()),
            _ => None,
        };
        let mut endpoint = Endpoint::new(kind.open_at(ip).map_err(fail)?, config.clone());
        endpoint.listen(&address).map_err(fail)?;
        tracing::info!(%address, provider = kind.as_str(), "waiting for network nodes");
        endpoints.push(endpoint);
    }
    let modules = PluginModules::in_memory(Some(Trial::default()));
    let host = PacketHost(HostWorker::new(endpoints, session_config(&modules)), modules);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut signals = runtime.block_on(async { StopSignals::new() })?;
    let mut threads = [DataThread::start("packets".to_owned(), host, QUESTIONS_MAX, arguments.spin_us)?];
    let signal = runtime.block_on(async {
        tokio::spawn(keys.follow());
        signals.recv().await
    });
    let counters = threads[0].published().read();
    DataThread::stop_all(&mut threads, || Stop);
    let (packets, links) = (counters.sessions.packets, counters.links);
    tracing::info!(signal, packets, links, "stopped");
    Ok(())
}

fn session_config(modules: &Arc<PluginModules>) -> SessionConfig {
    let supply: Arc<dyn Supply> = modules.clone();
    let unix_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    let clock_offset_ns = unix_ns.saturating_sub(clock::now().as_nanos());
    let hash_key = HashKey(rand::random(), rand::random());
    SessionConfig { hash_key, clock_offset_ns, supply: Some(supply) }
}

/// The only message: ends the thread.
struct Stop;

/// A host in its data thread, and the modules of supplied plug-ins.
struct PacketHost(HostWorker, Arc<PluginModules>);

impl DataWorker for PacketHost {
    type Question = Stop;
    type Published = HostCounters;

    fn turn(&mut self, now: Instant, unix_s: u64) -> bool {
        self.0.turn(now, unix_s)
    }

    fn answer(&mut self, now: Instant, _: Stop) -> ControlFlow<()> {
        self.0.close(now);
        for _ in 0..LAST_TURNS {
            self.0.turn(clock::now(), clock::unix_now_s());
        }
        ControlFlow::Break(())
    }

    fn publish(&mut self) -> HostCounters {
        while let Some(notice) = self.0.poll_notice() {
            log(&notice);
        }
        self.1.log_stops();
        self.0.counters()
    }

    fn arm(&mut self) -> Result<Armed, ViError> {
        self.0.arm()
    }

    fn wake(&self, into: &mut Vec<Wake>) {
        self.0.wake(into);
    }

    fn wake_generation(&self) -> u64 {
        self.0.wake_generation()
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.0.next_timeout()
    }
}

fn log(notice: &HostNotice) {
    match notice {
        HostNotice::Up { node, worker } => tracing::info!(%node, worker, "a network node has connected"),
        HostNotice::Down { node, worker, reason, counters } => {
            let (packets, absent, unsent) = (counters.packets, counters.absent, counters.unsent);
            tracing::warn!(%node, worker, reason, packets, absent, unsent, "a network node is gone");
        }
    }
}
