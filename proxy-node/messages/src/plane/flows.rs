//! Messages on their way through the queues of information flows.

use std::sync::Arc;

use csp_handlers::FormatId;
use csp_quality::{FlowId, Item as Queued, LinkClient, Offered, Overflow, SharedLink};
use csp_types::Instant;

use super::publish::{Arrival, refused};
use super::{ChannelId, MessagePlane, PublishError, Published};
use crate::flows::{self, FlowFields, Wanted};
use crate::peers::PeerId;
use crate::pool::{MessagePool, PoolError};
use crate::trace::CopyState;

impl LinkClient for MessagePlane {
    fn process(&mut self, now: Instant, link: &mut SharedLink) {
        self.serve(now, link);
    }

    fn takes(&self, item: &Queued) -> bool {
        self.receivers_take(item.handle)
    }

    fn transmit(&mut self, now: Instant, item: Queued) {
        self.give(now, item);
    }

    fn transmit_unprocessed(&mut self, now: Instant, item: Queued) {
        self.enter_late(now, item);
    }

    fn evicted(&mut self, item: Queued) {
        self.release_evicted(item);
    }
}

impl MessagePlane {
    /// Sets the readers of the message fields that flows use, for flows of table `generation`. Those of the
    /// flows `in_force` are used until the link is shared by the new ones.
    pub fn set_flow_fields(&mut self, in_force: Option<u64>, generation: u64, fields: Arc<FlowFields>) {
        self.fields.set(in_force, generation, fields);
    }

    /// Returns the readers of the message fields that the flows of a link use.
    #[inline]
    pub fn flow_fields(&self, link: &SharedLink) -> Option<&FlowFields> {
        self.fields.of(link)
    }

    /// Sets the number by which the policy's flows know a channel.
    pub fn set_number(&mut self, channel: ChannelId, number: u32) {
        self.channels.set_number(channel, number);
    }

    /// Sets whether a peer is a process of the cluster, to which no output link leads.
    pub fn set_local(&mut self, peer: PeerId, local: bool) {
        self.distribution.peers_mut().set_local(peer.index, local);
    }

    /// Returns how many messages of a channel wait in queues of flows.
    pub fn waiting_in_flows(&self, channel: ChannelId) -> usize {
        self.channel(channel).map_or(0, |ch| ch.in_flows)
    }

    /// Returns whether no receiver of the message holds it back. True for a channel that was removed.
    fn receivers_take(&self, handle: u64) -> bool {
        self.slot_of(handle).and_then(|slot| self.channels.at(slot)).is_none_or(|ch| ch.has_room())
    }

    /// Returns the slot of the channel of a message, if it is still that channel's.
    pub(super) fn slot_of(&self, handle: u64) -> Option<u16> {
        let (index, generation) = flows::unpack(handle);
        let slot = self.pool.info(self.pool.at(index))?.channel;
        (self.channels.id(slot).generation == generation).then_some(slot)
    }

    /// Gives a message that was released to its receivers.
    pub(super) fn give(&mut self, now: Instant, queued: Queued) {
        let handle = self.pool.at(flows::unpack(queued.handle).0);
        let Some((slot, info)) = self.slot_of(queued.handle).zip(self.pool.info(handle)) else {
            self.pool.release(handle);
            return;
        };
        let Some(ch) = self.channels.at_mut(slot) else {
            self.pool.release(handle);
            return;
        };
        ch.in_flows = ch.in_flows.saturating_sub(1);
        self.distribution.give((slot, ch), &mut self.pool, now, flows::item(handle, info.len));
        self.schedule.set_channel(slot, ch);
        if self.distribution.traces().is_armed() {
            self.distribution.trace_released(slot, info.sequence);
        }
    }

    /// Puts a message that has arrived into the queue of its flow. Not inlined, to keep the path without
    /// flows small.
    #[inline(never)]
    pub(super) fn offer<'a>(
        &mut self,
        slot: u16,
        (peer, flow): (u32, FlowId),
        message: Arrival<'_, impl Iterator<Item = &'a [u8]> + Clone>,
        link: &mut SharedLink,
    ) -> Result<Published, PublishError> {
        let ch = self.channels.at_mut(slot).ok_or(PublishError::UnknownPeer)?;
        if ch.backlog_limits().is_none() {
            self.distribution.check_topic(message.frames)?;
        }
        let copies = self.distribution.copies((slot, ch), message.frames[0], message.parts.clone());
        let (found, copies) = copies.ok_or(PublishError::LengthMismatch)?;
        let len = message.len;
        if found == 0 && ch.cache.is_none() {
            ch.counters.unmatched += 1;
            return Ok(Published { sequence: ch.number(len), receivers: 0, dropped: 0, yields: false });
        }
        if copies == 0 && link.is_empty(flow) {
            return self.fan_out(slot, message);
        }
        let bytes = len.saturating_mul(copies);
        self.queue(slot, (peer, flow), (found, bytes, None), message, link)
    }

    /// Puts a message into the queue of its flow, unless that is full. `format`: that of a message that a
    /// context is to process first.
    pub(super) fn queue<'a>(
        &mut self,
        slot: u16,
        (peer, flow): (u32, FlowId),
        (found, bytes, format): (u32, u32, Option<FormatId>),
        message: Arrival<'_, impl Iterator<Item = &'a [u8]> + Clone>,
        link: &mut SharedLink,
    ) -> Result<Published, PublishError> {
        let generation = self.channels.id(slot).generation;
        let ch = self.channels.at_mut(slot).ok_or(PublishError::UnknownPeer)?;
        let (now, len) = (message.now, message.len);
        let is_push = ch.backlog_limits().is_some();
        let holds = is_push || link.holds(flow);
        if !link.has_room(flow, bytes) && (holds || link.overflow(flow) == Overflow::DropNewest) {
            // Nothing is stored for it; the manager counts it.
            let refused = flows::queued(u32::MAX, generation, bytes, now);
            if is_push || link.offer(now, flow, refused, true) == Offered::Held {
                self.distribution.peers_mut().set_wanted(peer, Some(Wanted::new(link, flow, bytes)));
                return Err(PublishError::Held);
            }
            ch.counters.dropped_flow += 1;
            return Ok(Published { sequence: ch.number(len), receivers: 0, dropped: found, yields: false });
        }
        self.store_in(slot, (peer, flow), (found, bytes, holds, format), message, link)
    }

    fn store_in<'a>(
        &mut self,
        slot: u16,
        (peer, flow): (u32, FlowId),
        (found, bytes, holds, format): (u32, u32, bool, Option<FormatId>),
        message: Arrival<'_, impl Iterator<Item = &'a [u8]> + Clone>,
        link: &mut SharedLink,
    ) -> Result<Published, PublishError> {
        let generation = self.channels.id(slot).generation;
        let (pool, ch) = (&mut self.pool, self.channels.at_mut(slot).ok_or(PublishError::UnknownPeer)?);
        let Arrival { now, frames, parts, len } = message;
        self.distribution.peers_mut().set_wanted(peer, None);
        let dropped = |sequence| Published { sequence, receivers: 0, dropped: found, yields: false };
        let handle = match pool.store(slot, (now, ch.sequence + 1), frames, parts) {
            Ok(handle) => handle,
            Err(PoolError::Budget | PoolError::Exhausted) if !holds => {
                ch.counters.dropped_memory += u64::from(found);
                return Ok(dropped(ch.number(len)));
            }
            Err(error) => return Err(refused(ch, error, len)),
        };
        let sequence = ch.number(len);
        if let Some(format) = format {
            pool.set_format(handle, format);
        }
        let mut queued = flows::queued(MessagePool::place(handle), generation, bytes, now);
        if format.is_some() {
            queued = flows::unprocessed(queued);
        }
        let offered = link.offer(now, flow, queued, format.is_none());
        let done = match offered {
            Offered::Queued => {
                ch.in_flows += 1;
                ch.unprocessed += usize::from(format.is_some());
                Published { sequence, receivers: found, dropped: 0, yields: false }
            }
            Offered::Held | Offered::Dropped => {
                ch.counters.dropped_flow += 1;
                pool.release(handle);
                dropped(sequence)
            }
        };
        while let Some(item) = link.next_evicted() {
            self.release_evicted(item);
        }
        Ok(done)
    }

    /// Releases a message that gave way to another.
    fn release_evicted(&mut self, evicted: Queued) {
        let slot = self.slot_of(evicted.handle);
        let ch = slot.and_then(|slot| self.channels.at_mut(slot));
        if let Some(ch) = ch {
            ch.in_flows = ch.in_flows.saturating_sub(1);
            ch.unprocessed -= usize::from(flows::is_unprocessed(&evicted)).min(ch.unprocessed);
            ch.counters.dropped_flow += 1;
        }
        let handle = self.pool.at(flows::unpack(evicted.handle).0);
        let traces = self.distribution.traces_mut();
        if traces.is_armed()
            && let Some((slot, info)) = slot.zip(self.pool.info(handle))
        {
            traces.left_flow(slot, info.sequence, |_| CopyState::DroppedFlow);
        }
        self.pool.release(handle);
    }
}
