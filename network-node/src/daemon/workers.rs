//! Creates the data workers: endpoints, threads.

use std::sync::{Arc, Mutex};

use csp_control::NodeRecord;
use csp_daemon::{DaemonError, DataThread, KeyFile, Threads};
use csp_lan::LanPort;
use csp_lan::tap::Tap;
use csp_telemetry::{MailboxSender, SnapshotCell};
use csp_transport::{Adjacency, Endpoint, EndpointConfig, PeerIdentity};
use csp_types::{MacAddr, Role};
use csp_vi::ProviderKind;

use crate::adjacent::Adjacent;
use crate::core::{CoreConfig, PluginCapacity, PortConfig, PortId};
use crate::links::TokenSource;
use crate::worker::NetworkWorker;

use super::config::{Config, LanSection};
use super::data_thread::Question;
use super::lan::{Lan, PortSocket};
use super::metrics::Published;
use super::proxies::Endpoints;

/// Capacity of a worker's mailbox, in requests.
const QUESTIONS_MAX: usize = 64;
/// Number of services and egress addresses in the largest possible policy.
pub const RULES_MAX: usize = csp_policy::SERVICES_MAX + csp_policy::EGRESS_MAX;

/// Capacities for the largest possible policy, and the number of flows whose rule a worker caches.
const PLUGINS: PluginCapacity = PluginCapacity {
    rules: csp_policy::PACKET_RULES_MAX,
    instances: csp_policy::PLUGINS_MAX,
    environments: 16,
    flows: 8192,
};

/// Handles on the data workers for the control thread.
pub struct DataWorkers {
    /// Indexed by worker number.
    pub threads: Vec<DataThread<Question, Published>>,
    /// This node's SAN keys.
    pub keys: KeyFile,
    /// The endpoints of each worker; equal for all workers.
    pub endpoints: Endpoints,
    /// The Ethernet addresses of the LAN ports.
    pub macs: Vec<MacAddr>,
    /// The sockets of AF_XDP ports.
    pub sockets: Vec<PortSocket>,
    /// For each AF_XDP port: the path of its frames back to the host's kernel.
    pub reinjection: Vec<Option<Tap>>,
}

impl DataWorkers {
    /// Opens endpoints and starts the workers of the ports of `lan` in `threads`, which the workers of a
    /// proxy share if there is an `adjacency`.
    pub fn start(
        config: &Config,
        record: &NodeRecord,
        lan: Lan,
        (threads, adjacency): (&Threads, Option<&Arc<Adjacency>>),
    ) -> Result<Self, DaemonError> {
        let keys = lan.keys;
        let mut all = DataWorkers {
            keys: keys.clone(),
            threads: Vec::new(),
            endpoints: Endpoints::default(),
            macs: Vec::new(),
            sockets: lan.sockets,
            reinjection: lan.reinjection,
        };
        for (number, ports) in (0..config.workers).zip(lan.ports) {
            let (endpoints, places) = open_endpoints(config, record, number)?;
            all.endpoints = places;
            all.macs = ports.iter().map(|port| port.info.mac).collect();
            let tokens = TokenSource { keys: keys.keys().clone(), node: record.id, nonce: rand::random() };
            let own_proxy = adjacency.map(|both| (both.proxy_node, number));
            let core = CoreConfig { own_proxy, ..core_config(config, number, &ports) };
            let mut worker = NetworkWorker::new(core, number, ports, endpoints, tokens);
            worker.set_lan_clock(csp_daemon::clock::boot_now);
            for (at, back) in all.reinjection.iter().enumerate() {
                if let Some(tap) = back {
                    worker.set_reinjection(PortId(at as u16), tap.transmitter());
                }
            }
            let thread = ("data", number);
            all.threads.push(match adjacency {
                None => threads.start(thread, worker, QUESTIONS_MAX, config.spin_us)?,
                Some(both) => {
                    worker.set_adjacency(Arc::clone(both));
                    let worker = Arc::new(Mutex::new(worker));
                    both.set(number, Arc::new(Adjacent::new(&worker, both.proxy_node)));
                    threads.start(thread, worker, QUESTIONS_MAX, config.spin_us)?
                }
            });
        }
        Ok(all)
    }

    /// Returns the workers' mailboxes, by worker number.
    pub fn mailboxes(&self) -> Vec<MailboxSender<Question>> {
        self.threads.iter().map(|thread| thread.mailbox().clone()).collect()
    }

    /// Returns the snapshots that the workers publish, by worker number.
    pub fn published(&self) -> Vec<Arc<SnapshotCell<Published>>> {
        self.threads.iter().map(|thread| Arc::clone(thread.published())).collect()
    }

    /// Closes all tunnels and stops the threads.
    pub fn stop(mut self) {
        DataThread::stop_all(&mut self.threads, || Question::Stop);
    }
}

fn core_config(config: &Config, worker: u8, ports: &[LanPort]) -> CoreConfig {
    let port = |(port, lan): (&LanPort, &LanSection)| PortConfig {
        on_link: lan.on_link.clone(),
        gateways: lan.gateways.clone(),
        ..PortConfig::new(port.info.mac, port.info.mtu)
    };
    CoreConfig {
        worker,
        workers: config.workers,
        flows_max: config.capacity.flows,
        proxies_max: config.capacity.proxies,
        rules_max: RULES_MAX,
        neighbours_max: config.capacity.neighbours,
        trace_len: config.capacity.trace_events,
        plugins: PLUGINS,
        ..CoreConfig::new(ports.iter().zip(&config.lan).map(port).collect(), rand::random())
    }
}

fn open_endpoints(
    config: &Config,
    record: &NodeRecord,
    worker: u8,
) -> Result<(Vec<Endpoint>, Endpoints), DaemonError> {
    let identity = PeerIdentity::daemon(Role::NetworkNode, record.id, record.incarnation, worker);
    let endpoint = EndpointConfig::tunnel(identity, None);
    let (mut endpoints, mut places) = (Vec::new(), Endpoints::default());
    let wanted = config.san.provider;
    for (kind, place) in [
        (ProviderKind::Shm, &mut places.shm),
        (ProviderKind::Verbs, &mut places.verbs),
        (ProviderKind::Tcp, &mut places.tcp),
        (ProviderKind::Ucx, &mut places.ucx),
    ] {
        if !wanted.allows(kind.as_str()) {
            continue;
        }
        // Loading a library may change the environment, so worker 0 loads it before any thread is started.
        match kind.open_at(Some(config.san.address)) {
            Ok(provider) => {
                *place = Some(endpoints.len());
                endpoints.push(Endpoint::new(provider, endpoint.clone()));
            }
            Err(error) if wanted.may_lack(kind.as_str()) => {
                tracing::info!(%error, "{kind} is not available: proxies that offer no other provider cannot be reached");
            }
            Err(error) => return Err(DaemonError::provider(kind, &error)),
        }
    }
    Ok((endpoints, places))
}
