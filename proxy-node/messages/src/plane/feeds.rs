//! Channels that get their messages from other channels of the worker: the feeds of continual queries.
//!
//! ```text
//!   publisher ─▶ source ─▶ its receivers
//!                  └─ feed, by format ─▶ [queue] path of the derived channel ─▶ its receivers
//! ```
//! A feed never holds anybody back: what the first queue of the other channel's path has no room for is dropped there by its policy,
//! and counted with it. The bytes are copied into the other channel's memory, so that neither uses up that of the other.

use csp_handlers::{FormatId, Piece};

use super::publish::Arrival;
use super::{ChannelId, MessagePlane, UnknownChannel};
use crate::pool::derive::Origin;
use crate::pool::{FRAMES_MAX, MessageHandle};

/// Gives messages of one format to another channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Feed {
    /// The format, as receivers of the channel get it.
    pub format: FormatId,
    /// The channel that gets them. It has a path.
    pub to: ChannelId,
    /// What the format is called there.
    pub becomes: FormatId,
}

impl MessagePlane {
    /// Replaces the feeds of a channel. Feeds lead to no channel that feeds this one.
    ///
    /// # Errors
    /// When there is no such channel.
    pub fn set_feeds(&mut self, channel: ChannelId, feeds: Vec<Feed>) -> Result<(), UnknownChannel> {
        self.channel(channel).ok_or(UnknownChannel)?;
        let slot = self.channels.get_mut(usize::from(channel.index)).and_then(|slot| slot.channel.as_mut());
        slot.ok_or(UnknownChannel)?.feeds = feeds;
        Ok(())
    }

    fn feed_at(&self, slot: u16, at: usize) -> Option<Feed> {
        self.channels.get(usize::from(slot))?.channel.as_ref()?.feeds.get(at).copied()
    }

    /// Gives a message to the channels that get it from this one.
    #[inline(never)]
    pub(super) fn feed<'a>(
        &mut self,
        slot: u16,
        format: FormatId,
        message: &Arrival<'_, impl Iterator<Item = &'a [u8]> + Clone>,
    ) {
        let mut at = 0;
        while let Some(feed) = self.feed_at(slot, at) {
            at += 1;
            if feed.format != format {
                continue;
            }
            let Some(path) = self.entry_of(feed, message.len) else { continue };
            let done = self.enter(feed.to.index, Some(path), feed.becomes, message.clone());
            self.count_unfed(feed, done.is_err());
        }
    }

    /// Gives the messages at the end of paths to the channels that get them.
    #[inline]
    pub(super) fn feed_stored(&mut self) {
        if !self.fed.is_empty() {
            self.feed_all_stored();
        }
    }

    #[inline(never)]
    fn feed_all_stored(&mut self) {
        while let Some((slot, handle)) = self.fed.pop() {
            let format = self.pool.format(handle);
            let mut at = 0;
            while let Some(feed) = self.feed_at(slot, at) {
                at += 1;
                if feed.format == format {
                    self.feed_copy(feed, handle);
                }
            }
            self.pool.release(handle);
        }
    }

    fn feed_copy(&mut self, feed: Feed, handle: MessageHandle) {
        let Some(info) = self.pool.info(handle) else { return };
        let Some(path) = self.entry_of(feed, info.len) else { return };
        let (mut lens, mut count) = ([0; FRAMES_MAX], 0);
        for (into, len) in lens.iter_mut().zip(self.pool.frame_lens(handle)) {
            (*into, count) = (len, count + 1);
        }
        let frames = &lens[..count];
        let (channel, arrived) = (feed.to.index, info.arrived);
        let done =
            self.enter_with(channel, Some(path), feed.becomes, (frames, info.len), |pool, sequence| {
                let origin = Origin { channel, arrived, sequence, of: Some(handle) };
                pool.compose(origin, frames, &[Piece::Of { start: 0, len: info.len }])
            });
        self.count_unfed(feed, done.is_err());
    }

    /// Returns the path that a message of a feed enters; `None`: it is dropped there, or the channel was removed.
    fn entry_of(&mut self, feed: Feed, len: u32) -> Option<u16> {
        let ch = self.channel(feed.to)?;
        let path = ch.paths.find(feed.becomes).filter(|_| len <= ch.config.message_len_max);
        self.count_unfed(feed, path.is_none());
        path
    }

    fn count_unfed(&mut self, feed: Feed, dropped: bool) {
        if let Some(ch) = self.channels[usize::from(feed.to.index)].channel.as_mut() {
            ch.counters.dropped_path += u64::from(dropped);
        }
    }
}
