//! A proxy node: the worker that the daemon runs, listening on the fabric, with the simulation's policy.

use std::net::{IpAddr, SocketAddr};

use csp_proxy_node::ProxyWorker;
use csp_proxy_node::core::{CoreConfig, EgressRule, PoolServer, ServiceSpec, ServiceTcp};
use csp_tcp::{StackConfig, SynCookies};
use csp_transport::{ClusterKey, Endpoint, EndpointConfig, PeerIdentity};
use csp_types::{Duration, Instant, NodeId, Prefix, Role};
use csp_vi::ViAddress;
use csp_vi::memory::MemoryFabric;

/// Bytes that a proxy receives ahead of the application, each connection.
pub(crate) const RECEIVE_WINDOW: u32 = 64 * 1024;

/// What all proxies are told.
pub(crate) struct Policy {
    /// VIP and port of the one service.
    pub service: SocketAddr,
    /// The application node and the port its processes listen on.
    pub pool: (NodeId, u16),
    /// Source address of the applications' own connections.
    pub egress: IpAddr,
    /// Where those may go.
    pub destinations: Prefix,
    /// Whether the proxies' secrets are the same, so that they choose the same source ports.
    pub same_secrets: bool,
    /// Whether they keep no half-open connections.
    pub cookies: bool,
}

/// A proxy worker that takes tunnels at `<name>.tunnel` and channels at `<name>.channel`.
pub(crate) fn proxy(
    fabric: &MemoryFabric,
    key: &ClusterKey,
    name: &str,
    (now, incarnation): (Instant, u64),
    policy: &Policy,
) -> ProxyWorker {
    let node: NodeId = name.parse().expect("the simulation's own names are valid");
    let identity = PeerIdentity::daemon(Role::ProxyNode, node, incarnation, 0);
    let listen = |purpose: &str, config: EndpointConfig| {
        let address = format!("{name}.{purpose}");
        let mut endpoint = Endpoint::new(Box::new(fabric.provider(&address)), config);
        endpoint.listen(&ViAddress::Name(address)).expect("a dead node's name is free again");
        endpoint
    };
    let tunnels = vec![listen("tunnel", EndpointConfig::tunnel(identity, Some(key.clone())))];
    let channels = vec![listen("channel", EndpointConfig::channel(identity, Some(key.clone())))];
    let mut isn_secret = [incarnation as u8; 16];
    for (byte, of_name) in isn_secret.iter_mut().zip(name.bytes()).filter(|_| !policy.same_secrets) {
        *byte ^= of_name;
    }
    let tcp = StackConfig {
        connections: 256,
        half_open: 64,
        time_wait_entries: 512,
        blocks: 1024,
        block_len: 8192,
        range_sets: 512,
        receive_window_max: RECEIVE_WINDOW,
        isn_secret,
        time_wait: Duration::from_secs(2),
        fin_wait_2: Duration::from_secs(30),
        keepalive_idle: Some(Duration::from_secs(10)),
        keepalive_interval: Duration::from_secs(1),
        keepalive_probes: 8,
        syn_cookies: if policy.cookies { SynCookies::Always } else { SynCookies::Auto },
        ..StackConfig::default()
    };
    let config = CoreConfig { worker: 0, workers: 1, tcp, trace_events: 1024 };
    let mut worker = ProxyWorker::new(config, tunnels, channels);
    let pool = vec![PoolServer { node: policy.pool.0, port: policy.pool.1 }];
    let service =
        ServiceSpec { name: "web".to_owned(), address: policy.service, pool, tcp: ServiceTcp::default() };
    let (destinations, tcp) = (vec![policy.destinations], ServiceTcp::default());
    let rule = EgressRule { address: policy.egress, destinations, except: Vec::new(), tcp };
    worker.set_policy(now, vec![service], vec![rule]);
    worker
}
