//! The worker as the proxy's worker of the same thread reaches it.

use std::sync::{Arc, Mutex};

use csp_transport::AdjacentWorker;
use csp_types::{Instant, NodeId};
use csp_wire::tunnel::Record;

use crate::worker::NetworkWorker;

/// A network node's worker that takes records of the proxy's worker of its number.
pub struct Adjacent {
    worker: Arc<Mutex<NetworkWorker>>,
    proxy: NodeId,
}

impl Adjacent {
    /// `worker`, for the worker of equal number of `proxy`, which runs in the same thread.
    pub fn new(worker: Arc<Mutex<NetworkWorker>>, proxy: NodeId) -> Self {
        Adjacent { worker, proxy }
    }
}

impl std::fmt::Debug for Adjacent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Adjacent").field("proxy", &self.proxy).finish_non_exhaustive()
    }
}

// The lock is free: both workers run in one thread, which alone uses them.
impl AdjacentWorker for Adjacent {
    fn take(&self, now: Instant, record: &Record<'_>, parts: &[&[u8]]) -> bool {
        let worker = self.worker.try_lock();
        worker.is_ok_and(|mut worker| worker.take_adjacent(now, self.proxy, record, parts))
    }

    fn flush(&self, now: Instant) {
        if let Ok(mut worker) = self.worker.try_lock() {
            worker.flush(now);
        }
    }
}
