//! The network node's worker in this worker's thread, which takes records by a call.

use std::sync::Arc;

use csp_transport::{Adjacency, AdjacentWorker};
use csp_types::{Instant, NodeId};
use csp_wire::tunnel::Record;

/// Bytes that are sent in one turn, so that the LAN's frames are received in between.
const BYTES_PER_TURN: usize = 1 << 20;
/// What a record without payload counts, in bytes: it costs about as much as this many more bytes.
const RECORD_WORTH: usize = 4096;

/// The network node's worker in this worker's thread, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Adjacent {
    nodes: Option<(Arc<Adjacency>, u8)>,
    worker: Option<Arc<dyn AdjacentWorker>>,
    /// Bytes sent in this turn, plus [`RECORD_WORTH`] for each record.
    sent: usize,
}

impl Adjacent {
    /// Sets the nodes that share threads, and the number of this worker.
    pub(crate) fn set(&mut self, nodes: Arc<Adjacency>, number: u8) {
        self.nodes = Some((nodes, number));
    }

    /// Returns whether the worker at the other end of a tunnel is the one in this thread.
    pub(super) fn is(&mut self, node: NodeId, worker: u8) -> bool {
        let Some((nodes, number)) = &self.nodes else { return false };
        if (node, worker) != (nodes.network_node, *number) {
            return false;
        }
        self.worker = nodes.get(*number).cloned();
        self.worker.is_some()
    }

    /// Allows further records; returns whether the turn before had to stop.
    pub(crate) fn begin_turn(&mut self) -> bool {
        std::mem::take(&mut self.sent) >= BYTES_PER_TURN
    }

    /// Returns whether more may be sent in this turn.
    pub(super) fn is_ready(&self) -> bool {
        self.sent < BYTES_PER_TURN
    }

    /// Passes a record on; `false` if it has to go through the tunnel.
    pub(super) fn take(&mut self, now: Instant, record: &Record<'_>, parts: &[&[u8]]) -> bool {
        let Some(worker) = &self.worker else { return false };
        self.sent += RECORD_WORTH + parts.iter().map(|part| part.len()).sum::<usize>();
        worker.take(now, record, parts)
    }

    /// Sends what the records of this turn have resulted in.
    pub(super) fn flush(&self, now: Instant) {
        if let Some(worker) = self.worker.as_ref().filter(|_| self.sent > 0) {
            worker.flush(now);
        }
    }
}
