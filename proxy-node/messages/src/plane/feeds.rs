//! Channels that receive messages of other channels of the worker: the feeds of continual queries, and the
//! outlets of paths.
//!
//! ```text
//!   publisher ─▶ source ─▶ its receivers
//!                  ├─ feed, by format ─▶ [queue] path of the derived channel ─▶ its receivers
//!                  └─ path ─ outlet ───▶ [queue] path of the derived channel ─▶ its receivers
//! ```
//! An *outlet* is an output of a path that leads to another channel instead of the channel's own receivers.
//!
//! While the first queue of the other channel's path is more than half full, contexts have their turns before
//! more is published: the publisher's visit ends, and handlers of the channel's own path wait. If a channel
//! holds publishers back in any case, they are also held back while that queue is full. Both apply only while
//! the other path can continue: no publisher waits for a path that itself waits for memory. Messages for
//! which the queue has no room are dropped by the other channel's policy, and counted there. The bytes are
//! copied into the other channel's memory, so that neither channel uses the other's.

use csp_handlers::{FormatId, Piece};

use super::publish::Arrival;
use super::{ChannelId, MessagePlane, PublishError, Published};
use crate::channel::Channel;
use crate::contexts::Entry;
use crate::pool::derive::Origin;
use crate::pool::{FRAMES_MAX, MessageHandle};
use crate::queue::FullQueue;

/// Copies messages of one format to another channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Feed {
    /// The format at the receivers of the source channel; [`FormatId::ANY`]: all messages, including those of
    /// unknown format.
    pub format: FormatId,
    /// The channel that receives the copies. It has a path.
    pub to: ChannelId,
    /// The id of the format in the other channel; [`FormatId::ANY`]: unchanged.
    pub becomes: FormatId,
}

impl Feed {
    /// Copies all messages, with their formats.
    fn all(to: ChannelId) -> Self {
        Feed { format: FormatId::ANY, to, becomes: FormatId::ANY }
    }

    /// Returns whether it takes messages of all formats.
    #[inline]
    pub(crate) fn takes_all(&self) -> bool {
        self.format == FormatId::ANY
    }

    /// Returns whether it takes messages of a format.
    #[inline]
    pub(crate) fn takes(&self, format: FormatId) -> bool {
        self.format == format || self.takes_all()
    }

    /// Returns the other channel's id of a format that the feed accepts.
    #[inline]
    fn renamed(&self, format: FormatId) -> FormatId {
        if self.becomes == FormatId::ANY { format } else { self.becomes }
    }
}

impl MessagePlane {
    /// Replaces the feeds of a channel. Feeds lead to no channel that feeds this one.
    pub fn set_feeds(&mut self, channel: ChannelId, feeds: Vec<Feed>) {
        match self.channels.get_mut(channel) {
            Some(ch) => ch.feeds = feeds,
            None => self.counters.unknown += 1,
        }
    }

    /// Numbers the messages at the end of a channel's path from 1 on, instead of by the messages from which
    /// they are made. Handlers of the path make every one of them.
    pub fn number_rows(&mut self, channel: ChannelId) {
        match self.channels.get_mut(channel) {
            Some(ch) => ch.rows = Some(0),
            None => self.counters.unknown += 1,
        }
    }

    /// Returns whether messages of one channel reach another: by a feed, or by an outlet of a path.
    pub fn leads_to(&self, from: ChannelId, to: ChannelId) -> bool {
        let leads =
            |ch: &Channel| ch.feeds.iter().any(|feed| feed.to == to) || ch.paths.outlets.contains(&to);
        self.channel(from).is_some_and(leads)
    }

    fn feed_at(&self, slot: u16, at: usize) -> Option<Feed> {
        self.channels.at(slot)?.feeds.get(at).copied()
    }

    /// Returns the room at the entry of a feed's path; `None` if there is nothing to wait for: the channel or
    /// its path was removed, or the path itself waits for memory.
    fn room_of(&self, feed: Feed) -> Option<Entry> {
        let path = self.channel(feed.to)?.paths.find(feed.becomes)?;
        Some(self.contexts.entry(path)).filter(|entry| !entry.waits)
    }

    /// Returns whether publishers of a channel that holds them back must wait for a channel that this one
    /// feeds; for messages of one format, or of any.
    #[inline(never)]
    pub(super) fn feeds_hold(&self, slot: u16, format: Option<FormatId>) -> bool {
        let Some(ch) = self.channels.at(slot) else { return false };
        let is_full = |entry: Entry| entry.is_full || entry.was_full;
        let mut feeds = ch.feeds.iter().filter(|feed| format.is_none_or(|format| feed.takes(format)));
        ch.policy() == FullQueue::Block && feeds.any(|feed| self.room_of(*feed).is_some_and(is_full))
    }

    /// Returns whether contexts should have turns for a channel that this one feeds, or to which its paths
    /// lead, before it receives more.
    #[inline]
    pub(super) fn feeds_fill(&self, slot: u16) -> bool {
        let ch = self.channels.at(slot);
        let fills = |feed: Feed| self.room_of(feed).is_some_and(|entry| entry.is_half);
        ch.is_some_and(|ch| {
            ch.feeds.iter().any(|feed| fills(*feed))
                || ch.paths.outlets.iter().any(|outlet| fills(Feed::all(*outlet)))
        })
    }

    /// Copies a message to the channels that this one feeds. Returns whether contexts should have turns
    /// before they receive more.
    #[inline(never)]
    pub(super) fn feed<'a>(
        &mut self,
        slot: u16,
        (format, sequence): (FormatId, u64),
        message: &Arrival<'_, impl Iterator<Item = &'a [u8]> + Clone>,
    ) -> bool {
        let mut at = 0;
        while let Some(feed) = self.feed_at(slot, at) {
            at += 1;
            if !feed.takes(format) {
                continue;
            }
            let Some(path) = self.entry_of(feed, message.len) else { continue };
            let done = self.enter(feed.to.index, Some(path), feed.renamed(format), message.clone());
            self.fed(feed, (slot, sequence), done);
        }
        self.feeds_fill(slot)
    }

    /// Copies messages at the ends of paths to the channels that their channels feed.
    #[inline]
    pub(super) fn feed_stored(&mut self) {
        if !self.fed.is_empty() {
            self.feed_all_stored();
        }
    }

    #[inline(never)]
    fn feed_all_stored(&mut self) {
        while let Some((slot, outlet, handle)) = self.fed.pop() {
            let format = self.pool.format(handle);
            match outlet {
                Some(outlet) if self.channel(outlet).is_some() => {
                    self.feed_copy(slot, Feed::all(outlet), (handle, format));
                }
                Some(_) => self.count_without_outlet(slot),
                None => {}
            }
            let mut at = 0;
            while let Some(feed) = self.feed_at(slot, at).filter(|_| outlet.is_none()) {
                at += 1;
                if feed.takes(format) {
                    self.feed_copy(slot, feed, (handle, format));
                }
            }
            self.pool.release(handle);
        }
    }

    /// Counts a message for an outlet whose channel was removed, or is not served, at the channel of its
    /// path.
    #[cold]
    fn count_without_outlet(&mut self, slot: u16) {
        if let Some(ch) = self.channels.at_mut(slot) {
            ch.counters.dropped_path += 1;
        }
    }

    fn feed_copy(&mut self, slot: u16, feed: Feed, (handle, format): (MessageHandle, FormatId)) {
        let Some(info) = self.pool.info(handle) else { return };
        let Some(path) = self.entry_of(feed, info.len) else { return };
        let (mut lens, mut count) = ([0; FRAMES_MAX], 0);
        for (into, len) in lens.iter_mut().zip(self.pool.frame_lens(handle)) {
            (*into, count) = (len, count + 1);
        }
        let frames = &lens[..count];
        let (channel, arrived) = (feed.to.index, info.arrived);
        let done = self.enter_with(
            channel,
            Some(path),
            feed.renamed(format),
            (frames, info.len),
            |pool, sequence| {
                let origin = Origin { channel, arrived, sequence, of: Some(handle) };
                pool.compose(origin, frames, &[Piece::Of { start: 0, len: info.len }])
            },
        );
        self.fed(feed, (slot, info.sequence), done);
    }

    /// Counts or traces the outcome of a copy.
    fn fed(&mut self, feed: Feed, of: (u16, u64), done: Result<Published, PublishError>) {
        self.count_unfed(feed, done.is_err());
        let traces = self.distribution.traces_mut();
        if traces.is_armed()
            && let Ok(published) = done
        {
            traces.fed(of.0, of.1, (feed.to.index, published.sequence));
        }
    }

    /// Returns the path that a message of a feed enters; `None`: it is dropped there, or the channel was
    /// removed.
    fn entry_of(&mut self, feed: Feed, len: u32) -> Option<u16> {
        let ch = self.channel(feed.to)?;
        let path = ch.paths.find(feed.becomes).filter(|_| len <= ch.config.message_len_max);
        self.count_unfed(feed, path.is_none());
        path
    }

    fn count_unfed(&mut self, feed: Feed, dropped: bool) {
        if let Some(ch) = self.channels.at_mut(feed.to.index) {
            ch.counters.dropped_path += u64::from(dropped);
        }
    }
}
