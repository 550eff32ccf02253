//! What the application's end is made with.

use csp_types::NodeId;
#[cfg(doc)]
use csp_types::limits::VI_POOL_MAX;
use csp_vi::ViAddress;

use csp_transport::BackoffConfig;

/// Proxy workers one process can have channels to.
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
    /// Connections that each proxy worker may have waiting in a listener's accept queue.
    pub accept_window: u32,
    /// Entries of the flight recorder.
    pub trace_capacity: usize,
    /// Links to each proxy worker, 1 to [`VI_POOL_MAX`]: flows are spread over them, so that one that is lost or held up
    /// takes only its own flows along. The endpoint needs as many links for each proxy.
    pub pool: u8,
    /// When to try a lost proxy again.
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
    /// The links that an endpoint must have room for ([`EndpointConfig::links_max`](csp_transport::EndpointConfig::links_max)).
    pub fn links_max(&self) -> u32 {
        (CHANNELS_MAX * usize::from(self.pool)) as u32
    }
}

/// A worker of a proxy node, and where it listens for channels.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProxyTarget {
    /// The proxy node.
    pub node: NodeId,
    /// Which of its workers.
    pub worker: u8,
    /// Where that worker takes channels.
    pub address: ViAddress,
}
