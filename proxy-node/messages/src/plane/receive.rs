//! From queues to receivers: turns of channels, deliveries, and receivers whose connections have no room.

use csp_types::Instant;

use super::{DeliveredError, Delivery, MessagePlane, UnknownPeer};
use crate::channel::Channel;
use crate::peers::{PeerId, Peers};
use crate::pool::{MessageHandle, MessagePool};
use crate::schedule::Turn;

impl MessagePlane {
    /// Returns the turn of the next channel with messages for receivers that have room; `None` if there is
    /// none.
    ///
    /// ```text
    ///   while the worker's own budget lasts, and next_flow() returns a turn:
    ///       while next_peer(&turn) returns a peer:
    ///           next_delivery(now, peer) → write it; turn.charge(len); park the peer if its connection is full
    ///       end_turn(turn)
    /// ```
    pub fn next_flow(&mut self) -> Option<Turn> {
        self.schedule.next_flow()
    }

    /// Returns the next receiver of the turn's channel, each in turn; `None` if the turn is over, or no
    /// receiver has messages and room.
    pub fn next_peer(&mut self, turn: &Turn) -> Option<PeerId> {
        if turn.is_over() {
            return None;
        }
        let ch = self.channels.get_mut(usize::from(turn.flow))?.channel.as_mut()?;
        self.peers.next_pending(ch)
    }

    /// Ends a turn.
    pub fn end_turn(&mut self, turn: Turn) {
        self.schedule.end_turn(turn);
    }

    /// Returns the next message for a receiver, which is in flight until it is reported as
    /// [`delivered`](Self::delivered). `None` if no message waits, as many are in flight as may be, or the
    /// receiver is parked or not attached.
    pub fn next_delivery(&mut self, now: Instant, peer: PeerId) -> Option<Delivery> {
        let (peers, _, ch, slot) = self.parts(peer)?;
        let (item, numbered) = (peers.take(ch, peer.index, now), ch.config.sequence);
        let (has_work, refills) = (!ch.pending.is_empty(), peers.wants_replay(ch, peer.index));
        self.schedule.set_active(slot, has_work);
        if refills {
            self.resume_replay(now, peer);
        }
        let item = item?;
        let info = self.pool.info(item.handle)?;
        Some(Delivery {
            handle: item.handle,
            len: info.len,
            frames: info.frames,
            sequence: info.sequence,
            arrived: info.arrived,
            cached: item.cached,
            numbered,
        })
    }

    /// Records that the transport no longer needs a message: it has copied the bytes, or the receiver has
    /// acknowledged them. The message is the oldest one in flight to the peer.
    ///
    /// # Errors
    /// When the peer is not attached, or another message is older.
    pub fn delivered(&mut self, peer: PeerId, handle: MessageHandle) -> Result<(), DeliveredError> {
        let Some((peers, pool, ch, slot)) = self.parts(peer) else {
            self.counters.delivered_refused += 1;
            return Err(DeliveredError::UnknownPeer);
        };
        let is_next = peers.finish(ch, peer.index, handle);
        if is_next {
            pool.release(handle);
        }
        let has_work = !ch.pending.is_empty();
        self.schedule.set_active(slot, has_work);
        match is_next {
            true => Ok(()),
            false => {
                self.counters.delivered_refused += 1;
                Err(DeliveredError::NotNext)
            }
        }
    }

    /// Records that `messages` messages [delivered](Self::delivered) to a puller may be lost with its
    /// connection. Called before the puller is detached.
    pub fn lost(&mut self, peer: PeerId, messages: u64) {
        if let Some((_, _, ch, _)) = self.parts(peer) {
            ch.counters.lost += messages;
        }
    }

    /// Sets whether a receiver's connection has no room. A parked receiver is given no message, and no turn
    /// examines it.
    ///
    /// # Errors
    /// When the peer is not attached.
    pub fn set_parked(&mut self, peer: PeerId, parked: bool) -> Result<(), UnknownPeer> {
        let (peers, _, ch, slot) = self.parts(peer).ok_or(UnknownPeer)?;
        peers.set_parked(ch, peer.index, parked);
        let has_work = !ch.pending.is_empty();
        self.schedule.set_active(slot, has_work);
        Ok(())
    }

    /// Queues last values that wait for room in a subscriber's queue, for a subscriber that took nothing
    /// because its messages were dropped.
    #[inline]
    pub fn refill(&mut self, now: Instant, peer: PeerId) {
        if self.parts(peer).is_some_and(|(peers, _, ch, _)| peers.wants_replay(ch, peer.index)) {
            self.resume_replay(now, peer);
        }
    }

    /// Returns the parts that a call about an attached peer works on.
    fn parts(&mut self, peer: PeerId) -> Option<(&mut Peers, &mut MessagePool, &mut Channel, u16)> {
        let slot = self.peers.get(peer)?.channel;
        let ch = self.channels.get_mut(usize::from(slot))?.channel.as_mut()?;
        Some((&mut self.peers, &mut self.pool, ch, slot))
    }
}
