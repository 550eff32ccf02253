//! Making the data workers: ports, endpoints, threads.

use std::sync::Arc;
use std::thread::JoinHandle;

use csp_control::{ClusterKey, NodeRecord};
use csp_lan::LanPort;
use csp_lan::af_packet::{self, AfPacketConfig};
use csp_telemetry::{MailboxSender, SnapshotCell};
use csp_transport::{Endpoint, EndpointConfig, PeerIdentity};
use csp_types::Role;
use csp_vi::{ProviderKind, WaitSet};

use crate::core::{CoreConfig, PortConfig};
use crate::links::TokenSource;
use crate::worker::NetworkWorker;

use super::config::{Config, LanSection};
use super::control::DaemonError;
use super::data_thread::{self, Question};
use super::metrics::Published;
use super::proxies::Endpoints;

/// Questions that may wait for one worker.
const MAILBOX_CAPACITY: usize = 64;
/// Services and egress addresses of the largest policy.
const RULES_MAX: usize = csp_control::policy::SERVICES_MAX + csp_control::policy::EGRESS_MAX;

/// The data workers as the control thread sees them.
pub struct DataWorkers {
    /// Their mailboxes, by worker number.
    pub mailboxes: Vec<MailboxSender<Question>>,
    /// What they publish.
    pub published: Vec<Arc<SnapshotCell<Published>>>,
    /// Which endpoints each of them has (all the same).
    pub endpoints: Endpoints,
    threads: Vec<JoinHandle<()>>,
}

impl DataWorkers {
    /// Opens everything and starts the threads.
    pub fn start(config: &Config, record: &NodeRecord) -> Result<Self, DaemonError> {
        let key = ClusterKey::load(&config.node.cluster_key_file)?;
        let mut all = DataWorkers {
            mailboxes: Vec::new(),
            published: Vec::new(),
            endpoints: Endpoints::default(),
            threads: Vec::new(),
        };
        for number in 0..config.workers {
            let ports = open_ports(config)?;
            let (endpoints, places) = open_endpoints(config, record, number)?;
            all.endpoints = places;
            let tokens = TokenSource {
                key: csp_transport::ClusterKey::from_bytes(*key.as_bytes()),
                node: record.id,
                nonce: rand::random(),
            };
            let worker = NetworkWorker::new(core_config(config, &ports), number, ports, endpoints, tokens);
            all.spawn(number, worker)?;
        }
        Ok(all)
    }

    fn spawn(&mut self, number: u8, worker: NetworkWorker) -> Result<(), DaemonError> {
        let (mailbox, receiver) = csp_telemetry::mailbox::mailbox(MAILBOX_CAPACITY)?;
        let published = Arc::new(SnapshotCell::new(Published::default()));
        let (cell, set) = (Arc::clone(&published), WaitSet::new()?);
        let thread = std::thread::Builder::new()
            .name(format!("data-{number}"))
            .spawn(move || data_thread::run(worker, receiver, &cell, set))?;
        self.mailboxes.push(mailbox);
        self.published.push(published);
        self.threads.push(thread);
        Ok(())
    }

    /// Closes all tunnels and ends the threads.
    pub fn stop(self) {
        for mailbox in &self.mailboxes {
            let _ = mailbox.send(Question::Stop); // one that is gone has stopped
        }
        for thread in self.threads {
            let _ = thread.join();
        }
    }
}

fn open_ports(config: &Config) -> Result<Vec<LanPort>, DaemonError> {
    let open = |(at, lan): (usize, &LanSection)| {
        let mut port = AfPacketConfig::new(&lan.interface);
        if config.workers > 1 {
            // Different for each port, and for another daemon in this namespace unless process ids collide.
            port.fanout_group = Some((std::process::id() as u16) ^ ((at as u16) << 12));
        }
        Ok(af_packet::open(&port)?)
    };
    config.lan.iter().enumerate().map(open).collect()
}

fn core_config(config: &Config, ports: &[LanPort]) -> CoreConfig {
    let port = |(port, lan): (&LanPort, &LanSection)| PortConfig {
        on_link: lan.on_link.iter().map(|p| (p.address(), p.length())).collect(),
        gateways: lan.gateways.clone(),
        ..PortConfig::new(port.info.mac, port.info.mtu)
    };
    CoreConfig {
        flows_max: config.capacity.flows,
        proxies_max: config.capacity.proxies,
        rules_max: RULES_MAX,
        neighbours_max: config.capacity.neighbours,
        trace_len: config.capacity.trace_events,
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
        (ProviderKind::Ucx, &mut places.ucx),
    ] {
        if !wanted.allows(kind.as_str()) {
            continue;
        }
        // Loading a library may change the environment: worker 0 does it before any thread is started.
        match kind.open() {
            Ok(provider) => {
                *place = Some(endpoints.len());
                endpoints.push(Endpoint::new(provider, endpoint.clone()));
            }
            Err(error) if wanted.may_lack(kind.as_str()) => {
                tracing::info!(%error, "no {kind}: proxies that offer only that cannot be reached");
            }
            Err(error) => {
                return Err(DaemonError::San { provider: kind.as_str(), reason: error.to_string() });
            }
        }
    }
    Ok((endpoints, places))
}
