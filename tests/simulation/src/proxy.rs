//! A proxy node: the worker that the daemon runs, listening on the fabric, with the simulation's policy.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use csp_gateway::HttpService;
use csp_gateway::spec::{Action, PoolOptions, RuleConfig, ServiceConfig, Timeouts};
use csp_http::head::Scheme;
use csp_http::route::RouteSpec;
use csp_messages::HashKey;
use csp_policy::{ConnectionLog, LogAddresses};
use csp_proxy_node::core::{
    BacklogLimits, CoreConfig, EgressRule, HairpinConfig, PoolServer, ServiceSpec, ServiceTcp,
};
use csp_proxy_node::{LocalServices, ProxyWorker, WorkerPolicy};
use csp_services::MessagesConfig;
use csp_tcp::{StackConfig, SynCookies};
use csp_transport::{ClusterKey, Endpoint, EndpointConfig, PeerIdentity};
use csp_types::{Duration, Instant, NodeId, Prefix, Role};
use csp_vi::ViAddress;
use csp_vi::memory::MemoryFabric;

use crate::http::HttpPlan;

/// Bytes of each connection that a proxy receives ahead of the application.
pub(crate) const RECEIVE_WINDOW: u32 = 64 * 1024;

/// The number of the service of HTTP, and the port of its pool, which no client reaches.
const HTTP: u32 = 1;
const POOL_PORT: u16 = 81;

/// Configuration of all proxies.
pub(crate) struct Policy {
    /// VIP and port of the one service.
    pub service: SocketAddr,
    /// The application nodes and the ports their processes listen on.
    pub pool: Vec<PoolServer>,
    /// Limits of the service's backlog.
    pub backlog: BacklogLimits,
    /// Capacities of the proxy's tables.
    pub sizes: Sizes,
    /// Source address of the applications' own connections.
    pub egress: IpAddr,
    /// Destinations of those connections.
    pub destinations: Prefix,
    /// Whether the proxies' secrets are the same, so that they choose the same source ports.
    pub same_secrets: bool,
    /// Whether the proxies store no half-open connections.
    pub cookies: bool,
    /// The service is one with TLS.
    pub tls: bool,
    /// The service is one of HTTP, by this plan.
    pub http: Option<HttpPlan>,
    /// Connections are recorded.
    pub logged: bool,
}

impl Policy {
    /// A service with these members, whose applications' connections come from `egress`. Nothing else is
    /// asked for.
    pub(crate) fn new(service: SocketAddr, pool: Vec<PoolServer>, egress: IpAddr) -> Self {
        Policy {
            service,
            pool,
            backlog: BacklogLimits::default(),
            sizes: Sizes::default(),
            egress,
            destinations: Prefix::new(IpAddr::from([10, 76, 0, 0]), 24).expect("a network"),
            same_secrets: false,
            cookies: false,
            tls: false,
            http: None,
            logged: false,
        }
    }
}

/// Capacities of a proxy's tables.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    /// Connections.
    pub connections: usize,
    /// Connections in SYN-RECEIVED.
    pub half_open: usize,
    /// Blocks of 8 KiB for payload.
    pub blocks: usize,
    /// Events of the flight recorder.
    pub trace_events: usize,
    /// Hairpins.
    pub hairpins: usize,
    /// The broker's tables.
    pub messages: MessagesConfig,
}

impl Default for Sizes {
    fn default() -> Self {
        Sizes {
            connections: 256,
            half_open: 64,
            blocks: 1024,
            trace_events: 1024,
            hairpins: 8,
            messages: MessagesConfig::new(HashKey([1, 2])),
        }
    }
}

/// Creates a proxy worker that listens for tunnels at `<name>.tunnel` and for channels at `<name>.channel`.
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
    let tunnels = vec![listen("tunnel", EndpointConfig::tunnel(identity, Some(key.clone().into())))];
    let channels = vec![listen("channel", EndpointConfig::channel(identity, Some(key.clone().into())))];
    let mut isn_secret = [incarnation as u8; 16];
    for (byte, of_name) in isn_secret.iter_mut().zip(name.bytes()).filter(|_| !policy.same_secrets) {
        *byte ^= of_name;
    }
    let tcp = StackConfig {
        connections: policy.sizes.connections,
        half_open: policy.sizes.half_open,
        time_wait_entries: 512,
        blocks: policy.sizes.blocks,
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
    let hairpin = HairpinConfig { first_label_index: 1 << 20, pairs: policy.sizes.hairpins };
    let trace_events = policy.sizes.trace_events;
    let config = CoreConfig { worker: 0, workers: 1, tcp, trace_events, hairpin, upstreams: 16 };
    let mut worker = ProxyWorker::new(config, policy.sizes.messages, tunnels, channels);
    worker.set_policy(now, worker_policy(policy)).expect("the policy has no channels");
    worker
}

/// Returns the policy of a worker, without channels of messages.
pub(crate) fn worker_policy(policy: &Policy) -> WorkerPolicy {
    let address = policy.service;
    let pool = ServiceSpec {
        pool: policy.pool.clone(),
        backlog: policy.backlog,
        ..ServiceSpec::new("pool".to_owned(), (address.ip(), POOL_PORT).into())
    };
    let local = policy.http.as_ref().map(|_| LocalServices::second_number(HTTP));
    let service = ServiceSpec {
        pool: if local.is_some() { Vec::new() } else { policy.pool.clone() },
        local,
        tls: policy.tls.then(|| crate::secure::identity().server.clone()),
        backlog: policy.backlog,
        ..ServiceSpec::new("web".to_owned(), policy.service)
    };
    let (destinations, tcp) = (vec![policy.destinations], ServiceTcp::default());
    let rule = EgressRule { address: policy.egress, destinations, except: Vec::new(), tcp };
    let log = policy.logged.then(|| ConnectionLog {
        sample: 1,
        services: BTreeMap::new(),
        addresses: LogAddresses::default(),
    });
    let http: Vec<_> = policy.http.iter().map(|plan| http_service(plan, policy.tls)).collect();
    let services = if http.is_empty() { vec![service] } else { vec![service, pool] };
    WorkerPolicy { services, egress: vec![rule], http, log, ..WorkerPolicy::default() }
}

/// Returns the service that forwards every request to the pool.
fn http_service(plan: &HttpPlan, tls: bool) -> Arc<HttpService> {
    let to_pool = Action::Forward(vec![("pool".into(), 1)]);
    let defaults = ServiceConfig::new(HTTP, "web", if tls { Scheme::Https } else { Scheme::Http });
    let config = ServiceConfig {
        timeouts: Timeouts { idle: plan.idle, upstream_idle: plan.upstream_idle, ..defaults.timeouts },
        pool: PoolOptions { requests_max: plan.requests_max, ..defaults.pool },
        rules: vec![RuleConfig::new("all", RouteSpec::default(), to_pool)],
        ..defaults
    };
    Arc::new(HttpService::new(config).expect("the simulation's own policy is valid"))
}
