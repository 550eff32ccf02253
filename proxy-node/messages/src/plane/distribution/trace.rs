//! What traces record of the copies of a message.

use csp_types::Instant;

use super::{Distribution, Receivers, gather};
use crate::channel::Channel;
use crate::peers::PeerId;
use crate::plane::trace::Way;
use crate::plane::{ChannelId, Published};
use crate::pool::MessagePool;
use crate::trace::{CopyState, TRACE_TOPIC_LEN_MAX, TracedArrival};

/// Messages of a channel that were dropped because a flow's queue was full, or memory was short.
#[derive(Clone, Copy, Default)]
pub(in crate::plane) struct Drops {
    flow: u64,
    memory: u64,
}

impl Drops {
    /// Returns the number of messages that a channel dropped before receivers' queues.
    pub fn of(ch: Option<&Channel>) -> Self {
        let counters = ch.map(|ch| ch.counters).unwrap_or_default();
        Drops { flow: counters.dropped_flow, memory: counters.dropped_memory }
    }
}

impl Distribution {
    /// Begins to record a message if a trace waits for it, with the subscribers of its topic; returns whether
    /// one does. The subscribers are looked up once more when the message is published.
    #[cold]
    pub fn trace_arrival<'a>(
        &mut self,
        now: Instant,
        (channel, ch): (ChannelId, &Channel),
        publisher: PeerId,
        frames: &[u32],
        parts: impl Iterator<Item = &'a [u8]>,
    ) -> bool {
        let Receivers { peers, subscriptions, traces, matched } = &mut self.receivers;
        let len_max = subscriptions.topic_len_max();
        let first = frames.first().map_or(0, |first| *first as usize).min(len_max.max(TRACE_TOPIC_LEN_MAX));
        let Some(topic) = gather(&mut self.topic, parts, first) else { return false };
        let (receivers, pushed) = (ch.receivers, ch.backlog_limits().is_some());
        let arrival = TracedArrival { channel, publisher, topic, frames, receivers, pushed };
        if !traces.arrived(now, arrival) {
            return false;
        }
        if !pushed {
            let topic = &topic[..first.min(len_max)];
            subscriptions.matches(channel.index, topic, |subscriber| traces.found(peers.id(subscriber)));
            traces.looked_up();
        }
        matched.clear();
        true
    }

    /// Records the outcome of the message with which a trace has begun. `published` is `None` if it was not
    /// published; `way`: how it continued; the drops of its channel `before` and `after` it.
    #[cold]
    pub(in crate::plane) fn trace_published(
        &mut self,
        published: Option<Published>,
        way: Way,
        (before, after): (Drops, Drops),
    ) {
        let Receivers { traces, matched, .. } = &mut self.receivers;
        let Some(published) = published else { return traces.withdraw() };
        let stored = published.receivers > 0;
        let of_all = match way {
            // Its receivers are found when the path emits it.
            Way::Path if stored => Some(CopyState::Waiting),
            Way::Path => Some(CopyState::DroppedPath),
            Way::Served if stored => Some(CopyState::InFlow),
            // Receivers were found here only if it has not gone to a flow's queue.
            Way::Receivers if stored && matched.is_empty() => Some(CopyState::InFlow),
            _ if !stored && after.flow > before.flow => Some(CopyState::DroppedFlow),
            _ if !stored && matched.is_empty() && after.memory > before.memory => {
                Some(CopyState::DroppedMemory)
            }
            _ => None,
        };
        traces.published(published.sequence, |peer| {
            of_all.unwrap_or_else(|| match matched.contains(&peer.index) {
                true if stored => CopyState::Waiting,
                true => CopyState::DroppedMemory,
                false => CopyState::DroppedNewest,
            })
        });
    }

    /// Records that a message has left its flow's queue for the queues of the receivers that were found last.
    #[cold]
    pub fn trace_released(&mut self, slot: u16, sequence: u64) {
        let Receivers { traces, matched, .. } = &mut self.receivers;
        traces.left_flow(slot, sequence, |peer| match matched.contains(&peer.index) {
            true => CopyState::Waiting,
            false => CopyState::DroppedNewest,
        });
    }
}

impl Receivers {
    /// Records that a queue's messages were dropped because their receiver takes nothing.
    #[cold]
    pub(super) fn trace_shed(&mut self, slot: u16, pool: &MessagePool) {
        let Receivers { traces, peers, .. } = self;
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
}
