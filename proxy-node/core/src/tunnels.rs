//! Connects tunnel records with the TCP engine.
//!
//! ```text
//!  record ─▶ inbound ─▶ csp-tcp Stack ─▶ outbound ─▶ record
//! ```

mod announced;
mod inbound;
mod outbound;
mod path_error;

use csp_tcp::Buffer;
use csp_types::FlowLabel;
use csp_wire::tunnel::{Record, RecordKind};

use self::announced::Announced;
use super::ProxyOutput;
use super::context::Context;

/// Result of processing a record.
pub(crate) enum Arrived {
    /// A segment of this flow, or [`FlowLabel::NONE`].
    Segment(FlowLabel),
    /// A segment that would have opened a connection, but the table is full.
    TableFull,
    /// A network node rejects the addresses of this flow, since another proxy uses them.
    AddressesTaken(FlowLabel),
    /// The record was processed completely.
    Done,
}

/// The tunnel side of one worker.
#[derive(Debug)]
pub(crate) struct Tunnels {
    worker: u8,
    announced: Announced,
}

impl Tunnels {
    /// Creates the tunnel side of worker `worker` for `connections` labels from `first_index` on.
    pub(crate) fn new(worker: u8, first_index: u32, connections: usize) -> Self {
        Tunnels { worker, announced: Announced::new(first_index, connections) }
    }

    /// Processes one record of the network node `via`.
    pub(crate) fn on_record(
        &mut self,
        cx: &mut Context<'_, impl ProxyOutput>,
        via: u32,
        record: &Record<'_>,
        buffer: Option<&Buffer>,
    ) -> Arrived {
        cx.recorder.counters.records_in += 1;
        match record.kind {
            RecordKind::Segment if record.worker == self.worker => {
                return self.on_segment(cx, via, record, buffer);
            }
            RecordKind::IcmpError if record.worker == self.worker => {
                path_error::on_icmp_error(cx, record.payload);
            }
            RecordKind::FlowEnd => return Arrived::AddressesTaken(record.label),
            // Elections are the worker's.
            RecordKind::Segment | RecordKind::IcmpError | RecordKind::Unknown | RecordKind::Election => {
                cx.recorder.counters.drop_misdirected += 1;
            }
        }
        Arrived::Done
    }
}
