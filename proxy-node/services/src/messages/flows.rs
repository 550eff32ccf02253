//! The information flow of each message.

use std::sync::Arc;

use csp_messages::{FlowId, FormatId, MessagePlane};
use csp_operators::body_frame;
use csp_quality::{Descriptor, Run, SharedLink};
use csp_types::Instant;

use super::MessageBroker;
use super::peer::Peer;

pub use csp_messages::{FieldReader, FlowFields};

/// Finds the flows of a connection's messages. Successive messages with equal values in all fields that flows
/// use are looked up once.
#[derive(Debug)]
pub(super) struct Classifier {
    base: Descriptor,
    /// The policy's number of the channel.
    number: u32,
    pub(super) run: Box<Run>,
}

impl Classifier {
    /// The classifier of a connection, while flows share the output link. The first one of a connection
    /// allocates.
    #[inline(never)]
    pub(super) fn begin(plane: &mut MessagePlane, peer: &mut Peer, local: bool) -> Self {
        if let Some(id) = peer.id {
            plane.set_local(id, local);
        }
        let end = |address: std::net::SocketAddr| (address.ip(), address.port());
        let base = Descriptor::default().network(end(peer.client), end(peer.server)).channel(peer.number);
        Classifier { base, number: peer.number, run: peer.run.take().unwrap_or_default() }
    }

    /// Returns the flow of a message with frames of these lengths. `record` returns the slices of a frame.
    pub(super) fn flow_of<'a, R: Iterator<Item = &'a [u8]>>(
        &mut self,
        (plane, link): (&MessagePlane, &SharedLink),
        now: Instant,
        format: FormatId,
        lens: &[u32],
        record: impl Fn(usize) -> R,
    ) -> FlowId {
        let mut descriptor = self.base;
        if format != FormatId::UNKNOWN {
            descriptor = descriptor.format(format.0.into());
            let frame = usize::from(body_frame(u8::try_from(lens.len()).unwrap_or(u8::MAX)));
            let len = lens.get(frame).map_or(0, |len| *len as usize);
            if let Some(fields) = plane.flow_fields(link) {
                fields.read((self.number, format), || record(frame), len, &mut descriptor);
            }
        }
        let len = lens.iter().fold(0u32, |sum, len| sum.saturating_add(*len));
        link.table().next_message(&mut self.run, now, &descriptor, len).0
    }
}

impl MessageBroker {
    /// Sets the readers of the message fields that information flows use, for flows of table `generation`.
    /// Called after the channels are set, and before the output link is shared by these flows: the readers of
    /// the flows `in_force` are used until then.
    pub fn set_flow_fields(&mut self, in_force: Option<u64>, generation: u64, fields: Arc<FlowFields>) {
        if let Some(plane) = &mut self.plane {
            plane.set_flow_fields(in_force, generation, fields);
        }
    }
}
