//! Messages that their receivers are given where they arrived: past the pool and the queues.
//!
//! ```text
//!   arrives ─ find ─┬─ every receiver is idle ─▶ `take` passes the bytes on
//!                   └─ otherwise, or `take` refuses ─▶ pool, queues (`publish`)
//! ```
//! A receiver is idle if nothing waits for it and nothing is in flight to it: no message is overtaken.
//! Counters are those of a message that was queued and taken. A channel whose messages are kept, processed,
//! numbered, traced or read by queries delivers nothing directly.

use super::{ChannelId, MessagePlane, Published};
use crate::peers::{PeerId, Role};
use crate::pool::FRAMES_MAX;

impl MessagePlane {
    /// Returns the number of a channel's receivers if its messages may be delivered directly to those that
    /// are [idle](Self::is_idle); `None` if they may not.
    #[inline]
    pub fn direct_receivers(&self, channel: ChannelId) -> Option<usize> {
        let ch = self.channels.get(channel)?;
        let is_plain =
            ch.paths.is_empty() && ch.feeds.is_empty() && ch.cache.is_none() && !ch.config.sequence;
        let is_first = ch.in_flows == 0 && ch.backlog.is_empty();
        (is_plain && is_first && !self.distribution.traces().is_armed()).then_some(ch.receivers as usize)
    }

    /// Returns whether a peer sends messages to its channel.
    #[inline]
    pub fn is_sender(&self, peer: PeerId) -> bool {
        self.distribution.peers().get(peer).is_some_and(|known| known.role.is_some_and(Role::sends))
    }

    /// Returns whether nothing waits for a receiver of a channel or is in flight to it, and its connection is
    /// not parked; `None` if the channel has no such receiver.
    #[inline]
    pub fn is_idle(&self, channel: ChannelId, peer: PeerId) -> Option<bool> {
        self.channels.get(channel)?;
        let known = self.distribution.peers().get(peer).filter(|known| known.channel == channel.index)?;
        known.role.is_some_and(Role::receives).then(|| known.is_idle())
    }

    /// Publishes or pushes a message whose receivers are given its bytes at once. `take` is called with the
    /// indices of the receivers, if there are any: it passes the message on to each of them, or returns
    /// `false`. The caller has asked [`direct_receivers`](Self::direct_receivers) before, and `take` accepts
    /// only receivers that are [idle](Self::is_idle). `frames` and `parts` are those of
    /// [`publish_as`](Self::publish_as), which the caller calls if `None` is returned.
    #[inline]
    pub fn publish_directly<'a>(
        &mut self,
        peer: PeerId,
        (frames, parts): (&[u32], impl Iterator<Item = &'a [u8]>),
        take: impl FnOnce(&[u32]) -> bool,
    ) -> Option<Published> {
        let slot =
            self.distribution.peers().get(peer).filter(|known| known.role.is_some_and(Role::sends))?.channel;
        let ch = self.channels.at_mut(slot)?;
        let len: u64 = frames.iter().map(|frame| u64::from(*frame)).sum();
        let is_valid =
            (1..=FRAMES_MAX).contains(&frames.len()) && len <= u64::from(ch.config.message_len_max);
        if !is_valid || !ch.has_room() {
            return None;
        }
        let receivers = self.distribution.pass_on((slot, ch), (frames, parts), take)?;
        self.distribution.peers_mut().count_published(peer.index, true);
        Some(Published { sequence: ch.number(len as u32), receivers, dropped: 0, yields: false })
    }
}
