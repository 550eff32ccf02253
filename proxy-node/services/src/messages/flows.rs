//! The information flow of each message, and the state of flows for display.

use csp_messages::{FlowId, FormatId, MessagePlane};
use csp_operators::body_frame;
use csp_quality::{Descriptor, Fired, Run};
use csp_types::{FlowLabel, FourTuple, Instant};

use super::peer::Peer;
use super::{MessageBroker, SpecError};

pub use csp_messages::{FieldReader, FlowFields, FlowStatus, FlowsConfig, LinkStatus};

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
    /// The classifier of a connection; `None` if there are no flows. The first one of a connection allocates.
    #[inline]
    pub(super) fn of(plane: &mut MessagePlane, peer: &mut Peer, local: bool) -> Option<Self> {
        plane.flow_table()?;
        Some(Self::begin(plane, peer, local))
    }

    #[inline(never)]
    fn begin(plane: &mut MessagePlane, peer: &mut Peer, local: bool) -> Self {
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
        plane: &MessagePlane,
        now: Instant,
        format: FormatId,
        lens: &[u32],
        record: impl Fn(usize) -> R,
    ) -> FlowId {
        let Some((table, fields)) = plane.flow_table().zip(plane.flow_fields()) else {
            return FlowId::DEFAULT;
        };
        let mut descriptor = self.base;
        if format != FormatId::UNKNOWN {
            descriptor = descriptor.format(format.0.into());
            let frame = usize::from(body_frame(u8::try_from(lens.len()).unwrap_or(u8::MAX)));
            let len = lens.get(frame).map_or(0, |len| *len as usize);
            fields.read((self.number, format), || record(frame), len, &mut descriptor);
        }
        let len = lens.iter().fold(0u32, |sum, len| sum.saturating_add(*len));
        table.next_message(&mut self.run, now, &descriptor, len).0
    }
}

impl MessageBroker {
    /// Puts information flows into force; `None` ends them.
    ///
    /// # Errors
    /// A trigger that is not valid: the flows are in force without it. Or an error of the memory for
    /// messages.
    pub fn set_flows(&mut self, now: Instant, flows: Option<FlowsConfig>) -> Result<(), SpecError> {
        self.paths.now = now;
        if self.plane.is_none() && flows.is_none() {
            return Ok(());
        }
        // Byte streams share the link also without channels.
        let clock = self.paths.clock;
        let plane = self.plane_or_new()?;
        let done = plane.set_flows(now, flows).map_err(SpecError::Flows);
        plane.set_flow_clock(clock);
        done
    }

    /// Asks for the link that messages share: a byte stream has this many bytes to send to its client.
    pub(super) fn stream_wants(&mut self, now: Instant, label: FlowLabel, tuple: FourTuple, bytes: u32) {
        let end = |address: std::net::SocketAddr| (address.ip(), address.port());
        let descriptor = Descriptor::default().network(end(tuple.remote), end(tuple.local));
        if let Some(plane) = &mut self.plane {
            plane.want_bytes(now, &descriptor, label.to_wire(), bytes);
        }
    }

    /// Removes and returns a byte stream that may send over the link, and how many bytes.
    pub(super) fn stream_allowed(&mut self, now: Instant) -> Option<(FlowLabel, u32)> {
        let (tag, bytes) = self.plane.as_mut()?.next_allowed(now)?;
        FlowLabel::from_wire(tag).map(|label| (label, bytes))
    }

    /// Returns the state of the link and of the flows; `None` if there are none.
    pub fn flow_status(&mut self, now: Instant) -> Option<(LinkStatus, Vec<FlowStatus>)> {
        self.plane.as_mut()?.flow_status(now)
    }

    /// Returns the next change of a trigger to log, with its name.
    pub fn poll_fired(&mut self) -> Option<(String, Fired)> {
        self.plane.as_mut()?.next_fired()
    }
}
