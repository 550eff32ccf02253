//! Traces of messages through the plane, and walks over its peers: what people ask for.

use csp_handlers::Profile;
use csp_types::Instant;

use super::distribution::Drops;
use super::{ChannelId, Delivery, MessagePlane};
use crate::peers::PeerId;
use crate::trace::{CopyState, TraceError, TraceId, TraceRequest, TracedMessage, TracedStage};

impl MessagePlane {
    /// Arms a trace, which records the next messages of a channel. Allocates its memory.
    ///
    /// # Errors
    /// When there is no such channel, the topic is too long, or too many traces are armed.
    pub fn arm_trace(
        &mut self,
        now: Instant,
        channel: ChannelId,
        request: TraceRequest<'_>,
    ) -> Result<TraceId, TraceError> {
        self.channel(channel).ok_or(TraceError::UnknownChannel)?;
        self.distribution.traces_mut().arm(now, channel, request)
    }

    /// Returns whether a trace is armed.
    pub fn is_tracing(&self) -> bool {
        self.distribution.traces().is_armed()
    }

    /// Returns the messages of a trace in the order of arrival; `None` if it has ended.
    pub fn traced(&self, id: TraceId) -> Option<impl Iterator<Item = &TracedMessage>> {
        self.distribution.traces().of(id)
    }

    /// Ends a trace; does nothing if it has ended.
    pub fn end_trace(&mut self, id: TraceId) {
        self.distribution.traces_mut().end(id);
    }

    /// Records that a message is written to a receiver, in as many bytes as `len` returns; `None`: its
    /// framing cannot carry the message. To be called before the message is reported as
    /// [`delivered`](Self::delivered).
    #[inline]
    pub fn trace_written(
        &mut self,
        peer: PeerId,
        delivery: &Delivery,
        len: impl FnOnce(&Self) -> Option<usize>,
    ) {
        if self.distribution.traces().is_armed() {
            let state = len(self).map_or(CopyState::Unwritable, |len| CopyState::Written(len as u32));
            if let Some(slot) = self.distribution.peers().get(peer).map(|known| known.channel) {
                self.distribution.traces_mut().settle(slot, delivery.sequence, peer, state);
            }
        }
    }

    /// Records that bytes written for a receiver are in its connection.
    #[inline]
    pub fn trace_flushed(&mut self, peer: PeerId) {
        let traces = self.distribution.traces_mut();
        if traces.is_armed() {
            traces.flushed(peer);
        }
    }

    /// Begins to record a message if a trace waits for it; returns the drops of its channel so far.
    #[cold]
    pub(super) fn trace_arrival<'a>(
        &mut self,
        now: Instant,
        (slot, publisher): (u16, PeerId),
        frames: &[u32],
        parts: impl Iterator<Item = &'a [u8]>,
    ) -> Option<Drops> {
        let ch = self.channels.at(slot)?;
        let channel = (self.channels.id(slot), ch);
        let is_traced = self.distribution.trace_arrival(now, channel, publisher, frames, parts);
        is_traced.then(|| Drops::of(Some(ch)))
    }

    /// Returns what a trace knows of the message that a stage processes next.
    #[cold]
    pub(super) fn watch(&self, queue: u16) -> Option<Watched> {
        let next = self.contexts.next_of(queue)?;
        let sequence = self.pool.info(next.handle)?.sequence;
        let (at, done) = (self.distribution.traces().now(), Instant::ZERO);
        let stage = TracedStage {
            context: next.context,
            handler: next.handler.to_owned(),
            at,
            done,
            emitted: 0,
            bytes: 0,
        };
        Some(Watched { sequence, len: next.len, before: next.profile, stage })
    }

    /// Records that a stage is done with a message.
    #[cold]
    pub(super) fn trace_passed(&mut self, slot: u16, queue: u16, watched: Watched) {
        let Watched { sequence, len, before, mut stage } = watched;
        // Timers have their turns too, and then no message was processed.
        let Some(after) = self.contexts.profile_of(queue).filter(|after| after.messages > before.messages)
        else {
            return;
        };
        stage.emitted = after.emitted - before.emitted;
        let made = after.bytes_made - before.bytes_made;
        stage.bytes = if made > 0 { made } else { stage.emitted * u64::from(len) };
        let name = self.channels.at(slot).map_or("", |ch| ch.config.name.as_str());
        self.distribution.traces_mut().passed((slot, name), sequence, stage);
    }

    /// Calls `each` with the peers of a channel, or of all. Looks at up to `slots_max` places of peers from
    /// `cursor` on, and returns the cursor for the next call; `None` after the last. Start with 0.
    pub fn peers_of(
        &self,
        channel: Option<ChannelId>,
        cursor: u32,
        slots_max: u32,
        each: impl FnMut(PeerId),
    ) -> Option<u32> {
        let is_of = |slot: u16| match channel {
            Some(id) => id.index == slot && self.channel(id).is_some(),
            None => true,
        };
        self.distribution.peers().walk(cursor, slots_max, is_of, each)
    }

    /// Calls `each` with up to `max` prefixes that a peer subscribes to, the latest first. Returns how many
    /// it has.
    pub fn prefixes_of(&self, peer: PeerId, max: u32, each: impl FnMut(&[u8])) -> u32 {
        match self.distribution.peers().get(peer) {
            Some(_) => self.distribution.subscriptions().prefixes_of(peer.index, max, each),
            None => 0,
        }
    }
}

/// How a message that has arrived goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// To its receivers, directly or through its flow's queue.
    Receivers,
    /// Through a path.
    Path,
    /// Through its flow's queue to a context of flows, which passes it through a path.
    Served,
}

/// A message that a stage is about to process.
pub(super) struct Watched {
    sequence: u64,
    len: u32,
    before: Profile,
    stage: TracedStage,
}
