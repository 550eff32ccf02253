//! What the application's end is made with.

use csp_types::NodeId;
use csp_vi::ViAddress;

use crate::backoff::BackoffConfig;

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
            backoff: BackoffConfig::default(),
            seed: 1,
        }
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
