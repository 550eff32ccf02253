//! Tunnels whose two ends are workers of one thread: records go from end to end by a call, without a message.

use std::fmt::Debug;
use std::sync::{Arc, OnceLock};

use csp_types::{Instant, NodeId};
use csp_wire::tunnel::Record;

/// The network node's worker of a thread, as the proxy's worker of the same thread sees it. Callable only
/// between the turns of the network node's worker.
pub trait AdjacentWorker: Send + Sync + Debug {
    /// Returns whether the tunnel between the two is up, so that records are taken. It changes only in turns
    /// of the network node's worker.
    fn is_up(&self) -> bool;

    /// Takes a record of the proxy's worker, with its payload in `parts`, and does with it what it does with
    /// records of the tunnel between the two. `false` if that tunnel is not up: nothing was taken.
    fn take(&self, now: Instant, record: &Record<'_>, parts: &[&[u8]]) -> bool;

    /// Sends what has resulted from the records taken.
    fn flush(&self, now: Instant);
}

/// A network node and a proxy node whose workers of equal numbers share threads.
#[derive(Debug)]
pub struct Adjacency {
    /// The network node.
    pub network_node: NodeId,
    /// The proxy node.
    pub proxy_node: NodeId,
    /// The network node's workers, once they exist.
    workers: Box<[OnceLock<Arc<dyn AdjacentWorker>>]>,
}

impl Adjacency {
    /// Two nodes with up to `workers` common threads. Their workers do not exist yet.
    pub fn new(network_node: NodeId, proxy_node: NodeId, workers: u8) -> Self {
        Adjacency { network_node, proxy_node, workers: (0..workers).map(|_| OnceLock::new()).collect() }
    }

    /// Sets the network node's worker of a number; the first one stays.
    pub fn set(&self, number: u8, worker: Arc<dyn AdjacentWorker>) {
        if let Some(place) = self.workers.get(usize::from(number)) {
            let _ = place.set(worker); // set before
        }
    }

    /// Returns the network node's worker of a number, if it exists.
    pub fn get(&self, number: u8) -> Option<&Arc<dyn AdjacentWorker>> {
        self.workers.get(usize::from(number))?.get()
    }
}
