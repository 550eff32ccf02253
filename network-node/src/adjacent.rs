//! The worker as the proxy's worker of the same thread reaches it.

use std::sync::{Arc, Mutex, Weak};

use csp_transport::AdjacentWorker;
use csp_types::{Instant, NodeId};
use csp_wire::tunnel::Record;

use crate::worker::NetworkWorker;

/// A network node's worker that takes records of the proxy's worker of its number.
pub struct Adjacent {
    /// Ends with the worker's seat in the thread, and its ports and links with it.
    worker: Weak<Mutex<NetworkWorker>>,
    proxy: NodeId,
}

impl Adjacent {
    /// `worker`, for the worker of equal number of `proxy`, which runs in the same thread.
    pub fn new(worker: &Arc<Mutex<NetworkWorker>>, proxy: NodeId) -> Self {
        Adjacent { worker: Arc::downgrade(worker), proxy }
    }

    /// Calls `then` with the worker, unless it has ended. Its lock is free: both workers run in one thread,
    /// which alone uses them.
    fn with<T>(&self, then: impl FnOnce(&mut NetworkWorker) -> T) -> Option<T> {
        let worker = self.worker.upgrade()?;
        let mut worker = worker.try_lock().ok()?;
        Some(then(&mut worker))
    }
}

impl std::fmt::Debug for Adjacent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Adjacent").field("proxy", &self.proxy).finish_non_exhaustive()
    }
}

impl AdjacentWorker for Adjacent {
    fn is_up(&self) -> bool {
        self.with(|worker| worker.is_adjacent(self.proxy)).unwrap_or(false)
    }

    fn take(&self, now: Instant, record: &Record<'_>, parts: &[&[u8]]) -> bool {
        self.with(|worker| worker.take_adjacent(now, self.proxy, record, parts)).unwrap_or(false)
    }

    fn flush(&self, now: Instant) {
        self.with(|worker| worker.flush(now));
    }
}
