//! A network node: the worker that the daemon runs, with the fabric's endpoints and the names that it dials.

use std::net::{IpAddr, SocketAddr};

use csp_lan::LanPort;
use csp_network_node::core::{CoreConfig, PortConfig};
use csp_network_node::{DialSpec, NetworkWorker, ProxySpec, TokenSource};
use csp_transport::{ClusterKey, Endpoint, EndpointConfig, PeerIdentity};
use csp_types::{Instant, NodeId, Role};
use csp_vi::ViAddress;
use csp_vi::memory::MemoryFabric;

/// Returns the name of a network node's worker on the fabric.
pub(crate) fn provider_name(node: &str, number: u8) -> String {
    if number == 0 { node.to_owned() } else { format!("{node}.{number}") }
}

/// Creates worker `number` of `workers` of a network node, on a fabric and a LAN port. `incarnation`
/// distinguishes its starts.
pub(crate) fn network_node(
    fabric: &MemoryFabric,
    key: &ClusterKey,
    name: &str,
    incarnation: u64,
    (number, workers): (u8, u8),
    port: LanPort,
) -> NetworkWorker {
    let node: NodeId = name.parse().expect("the simulation's own names are valid");
    let identity = PeerIdentity::daemon(Role::NetworkNode, node, incarnation, number);
    let endpoint = Endpoint::new(
        Box::new(fabric.provider(&provider_name(name, number))),
        EndpointConfig::tunnel(identity, None),
    );
    let ports = vec![PortConfig::new(port.info.mac, port.info.mtu)];
    let config = CoreConfig {
        worker: number,
        workers,
        flows_max: 1024,
        proxies_max: 4,
        rules_max: 16,
        neighbours_max: 16,
        trace_len: 1024,
        ..CoreConfig::new(ports, (incarnation, 7))
    };
    let tokens =
        TokenSource { keys: key.clone().into(), node, nonce: incarnation << 32 | u64::from(number) << 16 };
    NetworkWorker::new(config, number, vec![port], vec![endpoint], tokens)
}

/// Returns a network node's worker's view of a proxy.
pub(crate) fn proxy_spec(name: &str, incarnation: u64, draining: bool) -> ProxySpec {
    ProxySpec {
        draining,
        node: name.parse().expect("the simulation's own names are valid"),
        incarnation,
        dial: true,
        workers: vec![DialSpec {
            worker: 0,
            endpoint: 0,
            address: ViAddress::Name(format!("{name}.tunnel")),
        }],
    }
}

/// Configures a network node as the management node and the membership would.
pub(crate) fn configure(
    worker: &mut NetworkWorker,
    now: Instant,
    proxies: &[ProxySpec],
    services: &[SocketAddr],
    egress: &[IpAddr],
) {
    worker.set_proxies(now, proxies);
    worker.set_services(now, services, egress).expect("the simulation's policy fits");
}
