//! From queues to receivers: turns of channels, deliveries, and receivers whose connections have no room.

use csp_types::Instant;

use super::channels::Channels;
use super::{DeliveredError, Delivery, Distribution, MessagePlane};
use crate::channel::Channel;
use crate::peers::PeerId;
use crate::pool::MessageHandle;
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
        let ch = self.channels.at_mut(turn.flow)?;
        self.distribution.peers_mut().next_pending(ch)
    }

    /// Ends a turn.
    pub fn end_turn(&mut self, turn: Turn) {
        self.schedule.end_turn(turn);
    }

    /// Returns the next message for a receiver, which is in flight until it is reported as
    /// [`delivered`](Self::delivered). `None` if no message waits, as many are in flight as may be, or the
    /// receiver is parked or not attached.
    pub fn next_delivery(&mut self, now: Instant, peer: PeerId) -> Option<Delivery> {
        let MessagePlane { channels, distribution, pool, schedule, .. } = self;
        let (slot, ch) = channel_of(distribution, channels, peer)?;
        let (item, numbered) = (distribution.peers_mut().take(ch, peer.index, now), ch.config.sequence);
        if distribution.wants_replay(ch, peer.index) {
            distribution.resume_replay(now, (slot, ch), pool, peer.index);
        }
        schedule.set_channel(slot, ch);
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
        let MessagePlane { channels, distribution, pool, schedule, .. } = self;
        let Some((slot, ch)) = channel_of(distribution, channels, peer) else {
            self.counters.delivered_refused += 1;
            return Err(DeliveredError::UnknownPeer);
        };
        let is_next = distribution.peers_mut().finish(ch, peer.index, handle);
        if is_next {
            pool.release(handle);
        }
        schedule.set_channel(slot, ch);
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
        if let Some((_, ch)) = channel_of(&self.distribution, &mut self.channels, peer) {
            ch.counters.lost += messages;
        }
    }

    /// Sets whether a receiver's connection has no room. A parked receiver is given no message, and no turn
    /// examines it.
    pub fn set_parked(&mut self, peer: PeerId, parked: bool) {
        let MessagePlane { channels, distribution, schedule, .. } = self;
        match channel_of(distribution, channels, peer) {
            Some((slot, ch)) => {
                distribution.peers_mut().set_parked(ch, peer.index, parked);
                schedule.set_channel(slot, ch);
            }
            None => self.counters.unknown += 1,
        }
    }

    /// Queues last values that wait for room in a subscriber's queue, for a subscriber that took nothing
    /// because its messages were dropped.
    #[inline]
    pub fn refill(&mut self, now: Instant, peer: PeerId) {
        let MessagePlane { channels, distribution, pool, schedule, .. } = self;
        if let Some((slot, ch)) = channel_of(distribution, channels, peer)
            && distribution.wants_replay(ch, peer.index)
        {
            distribution.resume_replay(now, (slot, ch), pool, peer.index);
            schedule.set_channel(slot, ch);
        }
    }
}

/// Returns the channel of an attached peer, with its slot.
#[inline]
fn channel_of<'c>(
    distribution: &Distribution,
    channels: &'c mut Channels,
    peer: PeerId,
) -> Option<(u16, &'c mut Channel)> {
    let slot = distribution.peers().get(peer)?.channel;
    Some((slot, channels.at_mut(slot)?))
}
