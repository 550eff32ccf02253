//! The endpoints of one worker, over the providers that configuration and host permit.

use csp_control::{NodeRecord, SanAddress, SanProvider};
use csp_daemon::DaemonError;
use csp_transport::{Endpoint, EndpointConfig, Keys, PeerIdentity};
use csp_types::Role;
use csp_vi::{ProviderKind, ViAddress, ViError};

use super::config::Config;

/// Largest number of channel links of processes that one worker holds over one provider.
const CHANNEL_LINKS_MAX: u32 = 2048;

/// Distance between the ports of tunnels and of channels.
const CHANNEL_PORTS: u16 = 256;

/// Where UCX listens when TCP has its ports, from the first port on: tunnels and channels.
const UCX_PORTS: [u16; 2] = [512, 768];

/// A worker's listening endpoints, and their addresses.
pub struct San {
    /// Endpoints for network nodes.
    pub tunnels: Vec<Endpoint>,
    /// Endpoints for application processes: of this host, and of others through their agents.
    pub channels: Vec<Endpoint>,
    /// The addresses to register.
    pub address: SanAddress,
}

/// Opens the endpoints that worker `worker` listens on.
pub fn listen(config: &Config, record: &NodeRecord, keys: &Keys, worker: u8) -> Result<San, DaemonError> {
    let identity = PeerIdentity::daemon(Role::ProxyNode, record.id, record.incarnation, worker);
    let tunnel = EndpointConfig::tunnel(identity, Some(keys.clone()));
    let channel = EndpointConfig::channel(identity, Some(keys.clone()));
    let channel = EndpointConfig { links_max: CHANNEL_LINKS_MAX, ..channel };
    let path = |purpose: &str| {
        ViAddress::Path(
            config.node.run_dir(Role::ProxyNode).join(format!("{}.w{worker}.{purpose}.sock", record.id)),
        )
    };
    let port = config.san.port + u16::from(worker);
    let at = |port: u16| ViAddress::Ip((config.san.address, port).into());

    let mut address = SanAddress { worker: worker.into(), ..SanAddress::default() };
    let (mut tunnels, mut channels) = (Vec::new(), Vec::new());
    let wanted = config.san.provider;
    for kind in [ProviderKind::Shm, ProviderKind::Verbs, ProviderKind::Tcp, ProviderKind::Ucx] {
        let (tunnel_at, channel_at) = match kind {
            ProviderKind::Shm => (path("tunnel"), path("channel")),
            ProviderKind::Ucx if wanted == SanProvider::Auto => {
                let [tunnels, channels] = UCX_PORTS;
                (at(port + tunnels), at(port + channels))
            }
            ProviderKind::Verbs | ProviderKind::Tcp | ProviderKind::Ucx => {
                (at(port), at(port + CHANNEL_PORTS))
            }
        };
        let (of_tunnels, of_channels) = match kind {
            ProviderKind::Shm => (&mut address.shm, &mut address.channel_shm),
            ProviderKind::Verbs => (&mut address.verbs, &mut address.channel_verbs),
            ProviderKind::Tcp => (&mut address.tcp, &mut address.channel_tcp),
            ProviderKind::Ucx => (&mut address.ucx, &mut address.channel_ucx),
        };
        // Processes of this host connect by shared memory, whatever provider carries the links between nodes.
        let allowed = wanted.allows(kind.as_str());
        if !allowed && kind != ProviderKind::Shm {
            continue;
        }
        let opened = open(kind, worker, &channel_at, channel.clone()).and_then(|channel_endpoint| {
            let tunnel_endpoint = allowed.then(|| open(kind, worker, &tunnel_at, tunnel.clone()));
            Ok((channel_endpoint, tunnel_endpoint.transpose()?))
        });
        match opened {
            Ok((channel_endpoint, tunnel_endpoint)) => {
                *of_channels = Some(channel_at.to_string());
                channels.push(channel_endpoint);
                *of_tunnels = tunnel_endpoint.is_some().then(|| tunnel_at.to_string());
                tunnels.extend(tunnel_endpoint);
            }
            Err(error) if wanted.may_lack(kind.as_str()) => {
                tracing::info!(%error, "{kind} is not available: nodes of other hosts cannot connect by it");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(San { tunnels, channels, address })
}

fn open(
    kind: ProviderKind,
    worker: u8,
    address: &ViAddress,
    config: EndpointConfig,
) -> Result<Endpoint, DaemonError> {
    let fail = |error: ViError| {
        DaemonError::Unavailable(format!("san: worker {worker} cannot listen on {address}: {error}"))
    };
    let ip = match address {
        ViAddress::Ip(address) => Some(address.ip()).filter(|ip| !ip.is_unspecified()),
        _ => None,
    };
    let mut endpoint = Endpoint::new(kind.open_at(ip).map_err(fail)?, config);
    endpoint.listen(address).map_err(fail)?;
    Ok(endpoint)
}
