//! Configuration of the application's end.

use csp_types::NodeId;
#[cfg(doc)]
use csp_types::limits::VI_POOL_MAX;
use csp_vi::ViAddress;

use csp_transport::BackoffConfig;

/// Largest number of proxy workers to which one process has channels.
pub const CHANNELS_MAX: usize = 64;

/// Bounds of an [`AppSide`](super::AppSide).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AppConfig {
    /// Flows at once: open, waiting to be accepted, and closing.
    pub flows_max: usize,
    /// Listeners at once.
    pub listeners_max: usize,
    /// Bytes that a proxy may send on a flow before the program has read them.
    pub receive_window: u32,
    /// Connections that each proxy worker may have waiting in the accept queue of a listener.
    pub accept_window: u32,
    /// Entries of the flight recorder.
    pub trace_capacity: usize,
    /// Links to each proxy worker, 1 to [`VI_POOL_MAX`]. Flows are spread over them, so that a link that is
    /// lost or delayed affects only its own flows. The endpoint needs this many links for each proxy.
    pub pool: u8,
    /// Delays before a lost proxy is tried again.
    pub backoff: BackoffConfig,
    /// Seed of the retries' jitter.
    pub seed: u64,
}

impl Default for AppConfig {
    fn default() -> Self {
        AppConfig {
            flows_max: 16_384,
            listeners_max: 256,
            receive_window: 256 * 1024,
            accept_window: 256,
            trace_capacity: 4096,
            pool: 2,
            backoff: BackoffConfig::default(),
            seed: 1,
        }
    }
}

impl AppConfig {
    /// The number of links for which the endpoint must have room
    /// ([`EndpointConfig::links_max`](csp_transport::EndpointConfig::links_max)).
    pub fn links_max(&self) -> u32 {
        (CHANNELS_MAX * usize::from(self.pool)) as u32
    }
}

/// A worker of a proxy node, and its address for channels.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProxyTarget {
    /// The proxy node.
    pub node: NodeId,
    /// Number of the worker.
    pub worker: u8,
    /// The address at which that worker accepts channels.
    pub address: ViAddress,
    /// No connection is opened through it while another proxy is up.
    pub draining: bool,
}

impl ProxyTarget {
    /// Whether both are the same worker at the same address.
    pub(super) fn is_same_worker(&self, other: &ProxyTarget) -> bool {
        (self.node, self.worker, &self.address) == (other.node, other.worker, &other.address)
    }
}
