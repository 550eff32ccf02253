//! Traces of messages through the plane, and walks over its peers: what people ask for.

use csp_handlers::Profile;
use csp_types::Instant;

use super::{ChannelId, Delivery, MessagePlane, Published};
use crate::peers::{PeerId, Peers};
use crate::pool::MessagePool;
use crate::trace::{
    CopyState, TRACE_TOPIC_LEN_MAX, TraceError, TraceId, TraceRequest, TracedArrival, TracedMessage,
    TracedStage, Traces,
};

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
        self.traces.arm(now, channel, request)
    }

    /// Returns whether a trace is armed.
    pub fn is_tracing(&self) -> bool {
        self.traces.is_armed()
    }

    /// Returns the messages of a trace in the order of arrival; `None` if it has ended.
    pub fn traced(&self, id: TraceId) -> Option<impl Iterator<Item = &TracedMessage>> {
        self.traces.of(id)
    }

    /// Ends a trace; does nothing if it has ended.
    pub fn end_trace(&mut self, id: TraceId) {
        self.traces.end(id);
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
        if self.traces.is_armed() {
            let state = len(self).map_or(CopyState::Unwritable, |len| CopyState::Written(len as u32));
            if let Some(slot) = self.peers.get(peer).map(|known| known.channel) {
                self.traces.settle(slot, delivery.sequence, peer, state);
            }
        }
    }

    /// Records that bytes written for a receiver are in its connection.
    #[inline]
    pub fn trace_flushed(&mut self, peer: PeerId) {
        if self.traces.is_armed() {
            self.traces.flushed(peer);
        }
    }

    /// Begins to record a message if a trace waits for it, with the subscribers of its topic; returns whether
    /// one does. The subscribers are looked up once more when the message is published.
    #[cold]
    pub(super) fn trace_arrival<'a>(
        &mut self,
        now: Instant,
        (slot, publisher): (u16, PeerId),
        frames: &[u32],
        parts: impl Iterator<Item = &'a [u8]>,
    ) -> bool {
        let MessagePlane { peers, subscriptions, channels, topic: space, traces, .. } = self;
        let known = &channels[usize::from(slot)];
        let Some(ch) = &known.channel else { return false };
        let channel = ChannelId { index: slot, generation: known.generation };
        let len_max = subscriptions.topic_len_max();
        let first = frames.first().map_or(0, |first| *first as usize).min(len_max.max(TRACE_TOPIC_LEN_MAX));
        let Some(topic) = super::publish::gather(space, parts, first) else { return false };
        let (receivers, pushed) = (ch.receivers, ch.backlog_limits().is_some());
        let arrival = TracedArrival { channel, publisher, topic, frames, receivers, pushed };
        if !traces.arrived(now, arrival) {
            return false;
        }
        if !pushed {
            let topic = &topic[..first.min(len_max)];
            subscriptions.matches(slot, topic, |subscriber| traces.found(peers.id(subscriber)));
            traces.looked_up();
        }
        true
    }

    /// Prepares the recording of a message. The result is passed to
    /// [`trace_published`](Self::trace_published).
    #[cold]
    pub(super) fn trace_begins(&mut self, slot: u16) -> Drops {
        self.matched.clear();
        self.drops(slot)
    }

    /// Records the outcome of the message with which a trace has begun. `published` is `None` if it was not
    /// published; `way`: how it continued.
    #[cold]
    pub(super) fn trace_published(
        &mut self,
        slot: u16,
        published: Option<Published>,
        way: Way,
        before: Drops,
    ) {
        let Some(published) = published else { return self.traces.withdraw() };
        let after = self.drops(slot);
        let stored = published.receivers > 0;
        let of_all = match way {
            // Its receivers are found when the path emits it.
            Way::Path if stored => Some(CopyState::Waiting),
            Way::Path => Some(CopyState::DroppedPath),
            Way::Served if stored => Some(CopyState::InFlow),
            // Receivers were found here only if it has not gone to a flow's queue.
            Way::Receivers if stored && self.matched.is_empty() => Some(CopyState::InFlow),
            _ if !stored && after.flow > before.flow => Some(CopyState::DroppedFlow),
            _ if !stored && self.matched.is_empty() && after.memory > before.memory => {
                Some(CopyState::DroppedMemory)
            }
            _ => None,
        };
        let matched = &self.matched;
        self.traces.published(published.sequence, |peer| {
            of_all.unwrap_or_else(|| match matched.contains(&peer.index) {
                true if stored => CopyState::Waiting,
                true => CopyState::DroppedMemory,
                false => CopyState::DroppedNewest,
            })
        });
    }

    /// Records that a message has left its flow's queue for the queues of the receivers that were found last.
    #[cold]
    pub(super) fn trace_released(&mut self, slot: u16, sequence: u64) {
        let matched = &self.matched;
        self.traces.left_flow(slot, sequence, |peer| match matched.contains(&peer.index) {
            true => CopyState::Waiting,
            false => CopyState::DroppedNewest,
        });
    }

    /// Returns the number of messages that a channel dropped before receivers' queues.
    fn drops(&self, slot: u16) -> Drops {
        let ch = self.channels.get(usize::from(slot)).and_then(|slot| slot.channel.as_ref());
        ch.map_or(Drops::default(), |ch| Drops {
            flow: ch.counters.dropped_flow,
            memory: ch.counters.dropped_memory,
        })
    }

    /// Returns what a trace knows of the message that a stage processes next.
    #[cold]
    pub(super) fn watch(&self, queue: u16) -> Option<Watched> {
        let next = self.contexts.next_of(queue)?;
        let sequence = self.pool.info(next.handle)?.sequence;
        let (at, done) = (self.traces.now(), Instant::ZERO);
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
        let ch = self.channels.get(usize::from(slot)).and_then(|slot| slot.channel.as_ref());
        let name = ch.map_or("", |ch| ch.config.name.as_str());
        self.traces.passed((slot, name), sequence, stage);
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
        self.peers.walk(cursor, slots_max, is_of, each)
    }

    /// Calls `each` with up to `max` prefixes that a peer subscribes to, the latest first. Returns how many
    /// it has.
    pub fn prefixes_of(&self, peer: PeerId, max: u32, each: impl FnMut(&[u8])) -> u32 {
        match self.peers.get(peer) {
            Some(_) => self.subscriptions.prefixes_of(peer.index, max, each),
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

/// Messages of a channel that were dropped because a flow's queue was full, or memory was short.
#[derive(Clone, Copy, Default)]
pub(super) struct Drops {
    flow: u64,
    memory: u64,
}

/// A message that a stage is about to process.
pub(super) struct Watched {
    sequence: u64,
    len: u32,
    before: Profile,
    stage: TracedStage,
}

/// Records that a queue's messages were dropped because their receiver takes nothing.
#[cold]
pub(super) fn trace_shed(traces: &mut Traces, slot: u16, peers: &Peers, pool: &MessagePool) {
    traces.check(slot, |peer, sequence, state| {
        if state == CopyState::InFlow {
            return None;
        }
        let queue = &peers.get(peer)?.queue;
        let number = |handle| pool.info(handle).map(|info| info.sequence);
        let has =
            !queue.is_empty() || queue.handles_in_flight().any(|handle| number(handle) == Some(sequence));
        (!has).then_some(CopyState::DroppedStalled)
    });
}
