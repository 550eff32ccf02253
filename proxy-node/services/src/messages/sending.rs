//! Messages on their way to connections: whose turn it is, and the buffers in which messages are encoded.

use csp_messages::{ChannelId, MessagePlane, Turn};
use csp_proxy_core::service::ClientEnd;
use csp_tcp::Buffer;
use csp_types::{FlowLabel, Instant};
use csp_zmtp::{Connection, Counters, Mechanism};

use super::batch::Batch;
use super::connections::Connections;
use super::outbound::{self, Bounds, MESSAGES_PER_VISIT};
use super::peer::Peer;
use super::placement::Ending;
use super::sealed;

/// What a worker needs to send messages to its peers.
#[derive(Debug, Default)]
pub(super) struct Sending {
    /// The turn of the channel that is served, or of a context.
    turn: Option<Turn>,
    batch: Batch,
    /// Buffer in which frames for CURVE peers are sealed, as long as the longest frame of a channel with
    /// keys.
    sealing: Vec<u8>,
}

impl Sending {
    /// Allocates the memory in which messages are encoded.
    pub fn prepare(&mut self) {
        self.batch = Batch::new(2 * MESSAGES_PER_VISIT);
    }

    /// Allocates room for a sealed frame of `len` bytes.
    pub fn reserve_sealing(&mut self, len: usize) {
        if self.sealing.len() < len {
            self.sealing = vec![0; len];
        }
    }

    /// Returns the turn of a context, if it is one's. `Err` if it is a channel's; `Ok(None)` if there is no
    /// work.
    pub fn next_context(&mut self, plane: &mut MessagePlane) -> Result<Option<Turn>, IsChannels> {
        match self.turn.take().or_else(|| plane.next_flow()) {
            Some(turn) if !plane.is_context(&turn) => {
                self.turn = Some(turn);
                Err(IsChannels)
            }
            turn => Ok(turn),
        }
    }

    /// Returns the next receiver to serve of `channels` channels; `None` also while it is a context's turn.
    pub fn next_receiver(
        &mut self,
        plane: &mut MessagePlane,
        connections: &mut Connections,
        channels: usize,
    ) -> Option<FlowLabel> {
        // A receiver that is to be served is not named again: then all of the channel's have been.
        for _ in 0..=channels {
            let mut turn = match self.turn.take() {
                Some(turn) => turn,
                None => plane.next_flow()?,
            };
            if plane.is_context(&turn) {
                self.turn = Some(turn);
                return None;
            }
            if let Some(label) = plane.next_peer(&turn).and_then(|id| connections.queue(id)) {
                turn.charge(0); // a visit is worth at least a message, so that a channel of many receivers has its turns too
                self.turn = Some(turn);
                return Some(label);
            }
            plane.end_turn(turn);
        }
        None
    }

    /// Sends what waits for a peer of a channel. Returns whether bytes were written. `quantum`: see
    /// [`Bounds::quantum`].
    pub fn send(
        &mut self,
        now: Instant,
        (peer, client): (&mut Peer, &mut impl ClientEnd),
        (plane, channel): (&mut MessagePlane, ChannelId),
        quantum: Option<u32>,
        zmtp: &mut Counters,
    ) -> bool {
        let Sending { turn, batch, sealing } = self;
        // Messages of this channel are not charged to the turn of another one.
        let mut none = None;
        let is_its_turn = turn.as_ref().is_some_and(|turn| turn.flow == channel.index);
        let bounds = Bounds { turn: if is_its_turn { turn } else { &mut none }, quantum };
        let before = peer.before_visit(client);
        let sent = match peer.connection.zmtp().map(Connection::mechanism) {
            _ if matches!(peer.ending, Ending::Finished { .. }) => false,
            Some(Mechanism::Curve) => sealed::send(now, peer, client, plane, bounds, sealing, zmtp),
            _ => outbound::send(now, peer, client, plane, bounds, batch, zmtp),
        };
        peer.after_visit(before, client);
        sent
    }

    /// Ends the batch. Returns the lent memory, which the caller gives back.
    pub fn take_lent(&mut self) -> Option<Buffer> {
        self.batch.end()
    }
}

/// It is the turn of a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct IsChannels;
