//! The endpoints of one worker, over the providers that configuration and machine allow.

use csp_control::{ClusterKey, NodeRecord, SanAddress, SanProvider};
use csp_transport::{Endpoint, EndpointConfig, PeerIdentity};
use csp_types::Role;
use csp_vi::shm::ShmProvider;
use csp_vi::ucx::UcxProvider;
use csp_vi::{Provider, ViAddress, ViError};

use super::config::Config;
use super::control::DaemonError;

/// Channel links of processes that one worker holds.
const CHANNEL_LINKS_MAX: u32 = 1024;

/// A worker's endpoints, listening, and where.
pub struct San {
    /// For network nodes.
    pub tunnels: Vec<Endpoint>,
    /// For application processes of this host.
    pub channels: Endpoint,
    /// What is registered.
    pub address: SanAddress,
}

/// Opens what worker `worker` listens on.
pub fn listen(
    config: &Config,
    record: &NodeRecord,
    key: &ClusterKey,
    worker: u8,
) -> Result<San, DaemonError> {
    let identity = PeerIdentity::daemon(Role::ProxyNode, record.id, record.incarnation, worker);
    let key = csp_transport::ClusterKey::from_bytes(*key.as_bytes());
    let path = |purpose: &str| config.node.run_dir.join(format!("{}.w{worker}.{purpose}.sock", record.id));
    let fail = |address: &ViAddress, error: ViError| DaemonError::San {
        worker,
        address: address.to_string(),
        reason: error.to_string(),
    };
    let open = |provider: Result<Box<dyn Provider>, ViError>, address: &ViAddress, config: EndpointConfig| {
        let provider = provider.map_err(|error| fail(address, error))?;
        let mut endpoint = Endpoint::new(provider, config);
        endpoint.listen(address).map_err(|error| fail(address, error))?;
        Ok::<_, DaemonError>(endpoint)
    };
    let tunnel = EndpointConfig::tunnel(identity, Some(key.clone()));
    let channel =
        EndpointConfig { links_max: CHANNEL_LINKS_MAX, ..EndpointConfig::channel(identity, Some(key)) };

    let mut address = SanAddress { worker: worker.into(), shm: None, channel_shm: None, ucx: None };
    let mut tunnels = Vec::new();
    if matches!(config.san.provider, SanProvider::Auto | SanProvider::Shm) {
        let at = ViAddress::Path(path("tunnel"));
        tunnels.push(open(shm(), &at, tunnel.clone())?);
        address.shm = Some(at.to_string());
    }
    if matches!(config.san.provider, SanProvider::Auto | SanProvider::Ucx) {
        let at = ViAddress::Ip((config.san.address, config.san.port + u16::from(worker)).into());
        match open(ucx(), &at, tunnel) {
            Ok(endpoint) => {
                tunnels.push(endpoint);
                address.ucx = Some(at.to_string());
            }
            // Chosen by name it must work; chosen by default the host may lack the library.
            Err(error) if config.san.provider == SanProvider::Auto => {
                tracing::info!(%error, "no ucx: network nodes of other hosts cannot connect");
            }
            Err(error) => return Err(error),
        }
    }
    let at = ViAddress::Path(path("channel"));
    let channels = open(shm(), &at, channel)?;
    address.channel_shm = Some(at.to_string());
    Ok(San { tunnels, channels, address })
}

fn shm() -> Result<Box<dyn Provider>, ViError> {
    Ok(Box::new(ShmProvider::new()?))
}

fn ucx() -> Result<Box<dyn Provider>, ViError> {
    Ok(Box::new(UcxProvider::new()?))
}
