//! From a publisher to queues: matching, one copy into the pool, fan-out; and publishers that are held back.

use csp_handlers::FormatId;
use csp_quality::{FlowId, SharedLink};
use csp_types::Instant;

use super::distribution::Drops;
use super::trace::Way;
use super::{Feed, MessagePlane, PublishError, Published};
use crate::channel::Channel;
use crate::peers::{PeerId, Role};
use crate::pool::{FRAMES_MAX, PoolError};
use crate::queue::Item;

/// A message as it arrived.
#[derive(Clone, Copy)]
pub(super) struct Arrival<'f, I> {
    pub now: Instant,
    pub frames: &'f [u32],
    pub parts: I,
    pub len: u32,
}

impl MessagePlane {
    /// Publishes or pushes a message. `frames` has the length of each frame in bytes; `parts` the bytes of
    /// all frames in order, cut in any way. The first frame is the topic; the topic of a message with one
    /// frame is its beginning, up to the longest topic.
    ///
    /// The bytes are copied once, or not at all if the message has no receiver. No information flows share
    /// the output link; if they do, [`publish_in`](Self::publish_in) is called.
    ///
    /// # Errors
    /// When the message or the peer is not valid, or when the publisher is held back. The caller then stops
    /// reading from its connection, and publishes the same message again when
    /// [`next_resumed`](Self::next_resumed) has returned the publisher.
    pub fn publish_as<'a>(
        &mut self,
        now: Instant,
        peer: PeerId,
        format: FormatId,
        frames: &[u32],
        parts: impl Iterator<Item = &'a [u8]> + Clone,
    ) -> Result<Published, PublishError> {
        self.publish_in(now, peer, (format, FlowId::DEFAULT), (frames, parts), None)
    }

    /// The same for a message of an information flow, if flows share the output link: it waits in the flow's
    /// queue until the link takes it.
    ///
    /// # Errors
    /// As [`publish_as`](Self::publish_as).
    pub fn publish_in<'a>(
        &mut self,
        now: Instant,
        peer: PeerId,
        kind: (FormatId, FlowId),
        message: (&[u32], impl Iterator<Item = &'a [u8]> + Clone),
        link: Option<&mut SharedLink>,
    ) -> Result<Published, PublishError> {
        let done = self.try_publish(now, peer, kind, message, link);
        if let Err(error) = done {
            self.counters.count(error);
        }
        done
    }

    fn try_publish<'a>(
        &mut self,
        now: Instant,
        peer: PeerId,
        (format, flow): (FormatId, FlowId),
        (frames, parts): (&[u32], impl Iterator<Item = &'a [u8]> + Clone),
        link: Option<&mut SharedLink>,
    ) -> Result<Published, PublishError> {
        let known = self.distribution.peers().get(peer).ok_or(PublishError::UnknownPeer)?;
        let slot = known.channel;
        if !known.role.is_some_and(Role::sends) {
            return Err(PublishError::NotAPublisher);
        }
        let ch = self.channels.at(slot).ok_or(PublishError::UnknownPeer)?;
        if frames.is_empty() || frames.len() > FRAMES_MAX {
            return Err(PublishError::Frames(frames.len()));
        }
        let len: u64 = frames.iter().map(|frame| u64::from(*frame)).sum();
        if len > u64::from(ch.config.message_len_max) {
            return Err(PublishError::TooLong(len));
        }
        let path = if ch.paths.is_empty() { None } else { ch.paths.find(format) };
        // What takes a path reaches other channels at its end.
        let feeds = path.is_none()
            && !ch.feeds.is_empty()
            && (format != FormatId::UNKNOWN || ch.feeds.iter().any(Feed::takes_all));
        let unprocessed = ch.unprocessed;
        let (mut has_room, is_push) = (ch.has_room(), ch.backlog_limits().is_some());
        if feeds {
            has_room &= !self.feeds_hold(slot, Some(format));
        }
        let before = match self.distribution.traces().is_armed() {
            true => self.trace_arrival(now, (slot, peer), frames, parts.clone()),
            false => None,
        };
        let way = match path {
            None => Way::Receivers,
            Some(path) if self.is_served(path, unprocessed, link.as_deref()) => Way::Served,
            Some(_) => Way::Path,
        };
        let arrival = Arrival { now, frames, parts, len: len as u32 };
        let fed = feeds.then(|| arrival.clone());
        let of = (peer.index, flow);
        let mut done = match (link, has_room) {
            (Some(link), _) if way == Way::Served => self.offer_unprocessed(slot, of, format, arrival, link),
            _ if way == Way::Path => self.enter(slot, path, format, arrival),
            (Some(link), true) => self.offer(slot, of, arrival, link),
            (None, true) if is_push => self.push(slot, arrival),
            (None, true) => self.fan_out(slot, arrival),
            (_, false) => Err(PublishError::Held),
        };
        self.distribution.peers_mut().count_published(peer.index, done.is_ok());
        if let Some(before) = before {
            let after = Drops::of(self.channels.at(slot));
            self.distribution.trace_published(done.ok(), way, (before, after));
        }
        if let (Some(fed), Ok(published)) = (fed, &mut done) {
            published.yields |= self.feed(slot, (format, published.sequence), &fed);
        }
        if done == Err(PublishError::Held) {
            self.hold(slot, peer);
        }
        done
    }

    /// Stores a message and queues it for one puller, or in the backlog.
    pub(super) fn push<'a>(
        &mut self,
        slot: u16,
        message: Arrival<'_, impl Iterator<Item = &'a [u8]>>,
    ) -> Result<Published, PublishError> {
        let ch = self.channels.at_mut(slot).ok_or(PublishError::UnknownPeer)?;
        let Arrival { now, frames, parts, len } = message;
        let stored = self.pool.store(slot, (now, ch.sequence + 1), frames, parts);
        let handle = stored.map_err(|error| refused(ch, error, len))?;
        let sequence = ch.number(len);
        self.distribution.give_one(ch, Item { handle, len, cached: false });
        self.schedule.set_channel(slot, ch);
        Ok(Published { sequence, receivers: 1, dropped: 0, yields: false })
    }

    /// Queues a message for all subscribers of its topic.
    pub(super) fn fan_out<'a>(
        &mut self,
        slot: u16,
        message: Arrival<'_, impl Iterator<Item = &'a [u8]> + Clone>,
    ) -> Result<Published, PublishError> {
        let ch = self.channels.at_mut(slot).ok_or(PublishError::UnknownPeer)?;
        let stalled_after = self.config.stalled_after;
        let published = self.distribution.fan_out((slot, ch), &mut self.pool, message, stalled_after)?;
        if published.receivers > 0 {
            self.schedule.set_channel(slot, ch);
        }
        Ok(published)
    }

    /// Records that a publisher is held back.
    fn hold(&mut self, slot: u16, peer: PeerId) {
        if let Some(ch) = self.channels.at_mut(slot) {
            self.distribution.peers_mut().hold(ch, peer.index);
            self.channels.hold(slot);
        }
    }

    /// Returns a publisher that was held back and may continue: the first of a channel whose queues and
    /// memory have room again. The caller calls this once a turn, lets the publisher publish until it is held
    /// back again or has no more, and repeats.
    ///
    /// The time is proportional to the number of channels with publishers that are held back. `link`: if
    /// information flows share the output link, the publisher's flow must have room, too.
    pub fn next_resumed(&mut self, link: Option<&SharedLink>) -> Option<PeerId> {
        self.resume_paths();
        let mut next = self.channels.first_held();
        while let Some(slot) = next {
            next = self.channels.next_held(slot);
            let feeds_hold = self.feeds_hold(slot, None);
            let Some(ch) = self.channels.at_mut(slot) else { continue };
            let has_memory = |len| self.pool.admit(slot, len).is_ok();
            let enters = ch.paths.is_empty() || self.contexts.have_room(&ch.paths);
            if feeds_hold || !enters || !ch.has_room() || !ch.wanted_len.is_none_or(has_memory) {
                continue;
            }
            ch.wanted_len = None;
            let peers = self.distribution.peers_mut();
            let resumed = match link {
                None => peers.unhold(ch),
                Some(link) => peers.unhold_with_room(ch, link),
            };
            if ch.held.is_empty() {
                self.channels.unhold(slot);
            }
            if resumed.is_some() {
                return resumed;
            }
        }
        None
    }
}

/// Returns the error of a message that the pool has not stored, and records how much memory it needs.
pub(super) fn refused(ch: &mut Channel, error: PoolError, len: u32) -> PublishError {
    match error {
        PoolError::LengthMismatch => PublishError::LengthMismatch,
        PoolError::NoFrames => PublishError::Frames(0),
        PoolError::TooManyFrames(frames) => PublishError::Frames(frames),
        PoolError::Budget | PoolError::Exhausted | PoolError::UnknownChannel(_) => {
            ch.wanted_len = Some(len);
            PublishError::Held
        }
    }
}

/// Returns the first `len` bytes, in `space` if they are not in the first slice; `None` if there are fewer.
pub(super) fn gather<'s, 'a: 's>(
    space: &'s mut Vec<u8>,
    mut parts: impl Iterator<Item = &'a [u8]>,
    len: usize,
) -> Option<&'s [u8]> {
    if len == 0 {
        return Some(&[]);
    }
    let first = parts.next()?;
    if let Some(topic) = first.get(..len) {
        return Some(topic);
    }
    space.clear();
    space.extend_from_slice(first);
    for part in parts {
        let rest = len - space.len();
        space.extend_from_slice(part.get(..rest).unwrap_or(part));
        if space.len() == len {
            return Some(space);
        }
    }
    None
}
