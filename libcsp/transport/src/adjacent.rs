//! Tunnels whose two ends are workers of one thread: records go from end to end by a call, without a message.

use std::fmt::Debug;
use std::sync::{Arc, OnceLock, Weak};

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

/// Where the network node's worker of a thread leaves records for the proxy's worker of the same thread,
/// which takes them in its next turn, before what arrives through the tunnel.
pub trait AdjacentInbox: Send + Sync + Debug {
    /// Copies a record, with its payload in `parts`. `false` if the proxy's end of the tunnel is not up, the
    /// inbox is shut, or there is no room: the record has to go through the tunnel.
    fn leave(&self, record: &Record<'_>, parts: &[&[u8]]) -> bool;

    /// A record goes through the tunnel. So do all others, until the proxy has taken it, so that they keep
    /// their order.
    fn shut(&self);
}

/// A network node and a proxy node whose workers of equal numbers share threads.
#[derive(Debug)]
pub struct Adjacency {
    /// The network node.
    pub network_node: NodeId,
    /// The proxy node.
    pub proxy_node: NodeId,
    /// The pairs of workers, as far as they exist.
    pairs: Box<[Pair]>,
}

#[derive(Debug, Default)]
struct Pair {
    network: OnceLock<Arc<dyn AdjacentWorker>>,
    /// Ends with the proxy's worker.
    inbox: OnceLock<Weak<dyn AdjacentInbox>>,
}

impl Adjacency {
    /// Two nodes with up to `workers` common threads. Their workers do not exist yet.
    pub fn new(network_node: NodeId, proxy_node: NodeId, workers: u8) -> Self {
        Adjacency { network_node, proxy_node, pairs: (0..workers).map(|_| Pair::default()).collect() }
    }

    /// Sets the network node's worker of a number; the first one stays.
    pub fn set(&self, number: u8, worker: Arc<dyn AdjacentWorker>) {
        if let Some(pair) = self.pairs.get(usize::from(number)) {
            let _ = pair.network.set(worker); // set before
        }
    }

    /// Returns the network node's worker of a number, if it exists.
    pub fn get(&self, number: u8) -> Option<&Arc<dyn AdjacentWorker>> {
        self.pairs.get(usize::from(number))?.network.get()
    }

    /// Sets where records for the proxy's worker of a number are left; the first one stays.
    pub fn set_inbox(&self, number: u8, inbox: Weak<dyn AdjacentInbox>) {
        if let Some(pair) = self.pairs.get(usize::from(number)) {
            let _ = pair.inbox.set(inbox); // set before
        }
    }

    /// Returns where records for the proxy's worker of a number are left, if that worker exists.
    pub fn inbox(&self, number: u8) -> Option<Arc<dyn AdjacentInbox>> {
        self.pairs.get(usize::from(number))?.inbox.get()?.upgrade()
    }
}
