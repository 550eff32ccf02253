//! Messages on their way through the queues of information flows.

use csp_handlers::FormatId;
use csp_quality::{Descriptor, Fired, FlowId, FlowTable, Offered, Overflow, TriggerError};
use csp_types::Instant;

use super::publish::{Arrival, gather, refused};
use super::{ChannelId, ChannelSlot, MessagePlane, PublishError, Published};
use crate::contexts::Outlet;
use crate::flows::{self, FlowFields, FlowStatus, Flows, FlowsConfig, LinkStatus};
use crate::peers::PeerId;
use crate::pool::{MessagePool, PoolError};
use crate::trace::CopyState;

impl MessagePlane {
    /// Puts flows into force, or ends them. When they end, waiting messages go to receivers at once, in the
    /// order of each flow. Allocates the flows' memory if there were none. The former flows stay in force
    /// while items of a removed flow still use a number that the new flows assign again.
    ///
    /// # Errors
    /// A trigger that is not valid: the flows are in force without triggers.
    pub fn set_flows(&mut self, now: Instant, config: Option<FlowsConfig>) -> Result<(), TriggerError> {
        match (config, &mut self.flows) {
            (None, None) => Ok(()),
            (None, Some(_)) => {
                self.end_flows(now);
                Ok(())
            }
            (Some(config), Some(flows)) => flows.apply(config, now),
            (Some(config), none) => {
                *none = Some(Box::new(Flows::new(config, self.config.peers_max as usize, now)?));
                Ok(())
            }
        }
    }

    fn end_flows(&mut self, now: Instant) {
        while let Some(item) = self.flows.as_mut().and_then(|flows| flows.drain(now)) {
            // Byte streams need nobody's leave any more.
            if !flows::is_stream(&item) {
                self.give(now, item);
            }
        }
        // What no context has processed goes on as if there had been no flows.
        while let Some(item) = self.flows.as_mut().and_then(|flows| flows.drain_waiting(now)) {
            self.enter_late(now, item);
        }
        self.flows = None;
    }

    /// Returns the table by which messages are classified, if there are flows.
    #[inline]
    pub fn flow_table(&self) -> Option<&FlowTable> {
        self.flows.as_ref().map(|flows| flows.table())
    }

    /// Returns the readers of the message fields that flows use, if there are flows.
    #[inline]
    pub fn flow_fields(&self) -> Option<&FlowFields> {
        self.flows.as_ref().map(|flows| flows.fields())
    }

    /// Returns how many bytes may be unsent on a connection when it is given a further message; `None`
    /// without flows.
    #[inline]
    pub fn quantum(&self) -> Option<u32> {
        self.flows.as_ref().map(|flows| flows.quantum())
    }

    /// Sets the number by which the policy's flows know a channel.
    pub fn set_number(&mut self, channel: ChannelId, number: u32) {
        if let Some(known) = self.numbers.get_mut(usize::from(channel.index)) {
            *known = number;
        }
    }

    /// Sets whether a peer is a process of the cluster, to which no output link leads.
    pub fn set_local(&mut self, peer: PeerId, local: bool) {
        self.peers.set_local(peer.index, local);
    }

    /// Returns how many messages of a channel wait in queues of flows.
    pub fn waiting_in_flows(&self, channel: ChannelId) -> usize {
        self.channel(channel).map_or(0, |ch| ch.in_flows)
    }

    /// Asks for the link: the byte stream `tag` (its label on the wire) has this many bytes to send.
    /// [`next_allowed`](Self::next_allowed) returns it when the link takes all or a part of them. Without
    /// flows it is not called, because no permission is needed.
    pub fn want_bytes(&mut self, now: Instant, descriptor: &Descriptor, tag: u32, bytes: u32) {
        if let Some(flows) = &mut self.flows {
            let flow = flows.table().classify(descriptor);
            flows.want_bytes(now, flow, tag, bytes);
        }
    }

    /// A byte stream that may wait for the link has ended.
    pub fn end_stream(&mut self, tag: u32) {
        if let Some(flows) = &mut self.flows {
            flows.end_stream(tag);
        }
    }

    /// Removes and returns the tag of a byte stream that may send, and how many bytes.
    pub fn next_allowed(&mut self, now: Instant) -> Option<(u32, u32)> {
        self.release_flows(now);
        self.flows.as_mut()?.next_allowed()
    }

    /// Returns when to call [`release_flows`](Self::release_flows).
    pub fn next_release(&self) -> Option<Instant> {
        self.flows.as_ref()?.due()
    }

    /// Releases messages that the link takes to their receivers.
    #[inline]
    pub fn release_flows(&mut self, now: Instant) {
        if self.flows.as_ref().is_some_and(|flows| flows.is_due(now)) {
            self.release_due(now);
        }
    }

    #[inline(never)]
    fn release_due(&mut self, now: Instant) {
        let Some(flows) = &mut self.flows else { return };
        flows.begin(now);
        self.release_evicted(); // those that messages at the end of paths have replaced
        let mut at = 0;
        while let Some((_, item)) = self.flows.as_ref().and_then(|flows| flows.stuck_at(at)) {
            match self.receivers_take(item.handle) {
                true => {
                    if let Some(flows) = &mut self.flows {
                        flows.unstick(at, now);
                    }
                    self.give(now, item);
                }
                false => at += 1,
            }
        }
        self.serve(now);
        while let Some((flow, item)) = self.flows.as_mut().and_then(|flows| flows.release(now)) {
            if flows::is_stream(&item) {
                if let Some(flows) = &mut self.flows {
                    flows.allow_bytes(&item);
                }
            } else if self.receivers_take(item.handle) {
                self.give(now, item);
            } else if let Some(flows) = &mut self.flows {
                flows.stick(flow, item, now);
            }
        }
        if let Some(flows) = &mut self.flows {
            flows.end(now);
        }
    }

    /// Returns whether no receiver of the message holds it back. True for a channel that was removed.
    fn receivers_take(&self, handle: u64) -> bool {
        self.slot_of(handle)
            .and_then(|slot| self.channels[usize::from(slot)].channel.as_ref())
            .is_none_or(|ch| ch.has_room())
    }

    /// Returns the slot of the channel of a message, if it is still that channel's.
    pub(super) fn slot_of(&self, handle: u64) -> Option<u16> {
        let (index, generation) = flows::unpack(handle);
        let slot = self.pool.info(self.pool.at(index))?.channel;
        self.channels.get(usize::from(slot)).filter(|known| known.generation == generation).map(|_| slot)
    }

    /// Gives a message that was released to its receivers.
    pub(super) fn give(&mut self, now: Instant, queued: csp_quality::Item) {
        let handle = self.pool.at(flows::unpack(queued.handle).0);
        let Some((slot, info)) = self.slot_of(queued.handle).zip(self.pool.info(handle)) else {
            self.pool.release(handle);
            return;
        };
        let MessagePlane {
            peers,
            pool,
            subscriptions,
            matched,
            channels,
            schedule,
            topic: space,
            traces,
            fed,
            ..
        } = self;
        let Some(ch) = channels.get_mut(usize::from(slot)).and_then(|slot| slot.channel.as_mut()) else {
            pool.release(handle);
            return;
        };
        ch.in_flows = ch.in_flows.saturating_sub(1);
        let (flows, number, flow) = (None, (0, 0), None);
        let mut outlet = Outlet {
            now,
            slot,
            ch,
            pool,
            peers,
            subscriptions,
            matched,
            space,
            traces,
            fed,
            flows,
            number,
            flow,
        };
        outlet.give(flows::item(handle, info.len));
        let has_work = !outlet.ch.pending.is_empty();
        schedule.set_active(slot, has_work);
        if self.traces.is_armed() {
            self.trace_released(slot, info.sequence);
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
    ) -> Result<Published, PublishError> {
        let (found, copies) = self.copies(slot, &message)?;
        let MessagePlane { channels, flows: Some(flows), .. } = self else {
            return Err(PublishError::UnknownPeer);
        };
        let ChannelSlot { channel: Some(ch), .. } = &mut channels[usize::from(slot)] else {
            return Err(PublishError::UnknownPeer);
        };
        let len = message.len;
        if found == 0 && ch.cache.is_none() {
            ch.counters.unmatched += 1;
            return Ok(Published { sequence: ch.number(len), receivers: 0, dropped: 0, yields: false });
        }
        if copies == 0 && flows.is_empty(flow) {
            return self.fan_out(slot, message);
        }
        let bytes = len.saturating_mul(copies);
        self.queue(slot, (peer, flow), (found, bytes, None), message)
    }

    /// Puts a message into the queue of its flow, unless that is full. `format`: that of a message that a
    /// context is to process first.
    pub(super) fn queue<'a>(
        &mut self,
        slot: u16,
        (peer, flow): (u32, FlowId),
        (found, bytes, format): (u32, u32, Option<FormatId>),
        message: Arrival<'_, impl Iterator<Item = &'a [u8]> + Clone>,
    ) -> Result<Published, PublishError> {
        let MessagePlane { channels, flows: Some(flows), .. } = self else {
            return Err(PublishError::UnknownPeer);
        };
        let ChannelSlot { channel: Some(ch), generation } = &mut channels[usize::from(slot)] else {
            return Err(PublishError::UnknownPeer);
        };
        let (now, len, generation) = (message.now, message.len, *generation);
        let is_push = ch.backlog_limits().is_some();
        let holds = is_push || flows.overflow(flow) == Overflow::Hold;
        if !flows.has_room(flow, bytes) && (holds || flows.overflow(flow) == Overflow::DropNewest) {
            // Nothing is stored for it; the manager counts it.
            let refused = flows::queued(u32::MAX, generation, bytes, now);
            if is_push || flows.offer(now, flow, refused, true) == Offered::Held {
                flows.want(peer, Some((flow, bytes)));
                return Err(PublishError::Held);
            }
            ch.counters.dropped_flow += 1;
            return Ok(Published { sequence: ch.number(len), receivers: 0, dropped: found, yields: false });
        }
        self.store_in(slot, (peer, flow), (found, bytes, holds), format, message)
    }

    fn store_in<'a>(
        &mut self,
        slot: u16,
        (peer, flow): (u32, FlowId),
        (found, bytes, holds): (u32, u32, bool),
        format: Option<FormatId>,
        message: Arrival<'_, impl Iterator<Item = &'a [u8]> + Clone>,
    ) -> Result<Published, PublishError> {
        let MessagePlane { channels, pool, flows: Some(flows), .. } = self else {
            return Err(PublishError::UnknownPeer);
        };
        let ChannelSlot { channel: Some(ch), generation } = &mut channels[usize::from(slot)] else {
            return Err(PublishError::UnknownPeer);
        };
        let (Arrival { now, frames, parts, len }, generation) = (message, *generation);
        flows.want(peer, None);
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
        let offered = flows.offer(now, flow, queued, format.is_none());
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
        self.release_evicted();
        Ok(done)
    }

    /// Releases messages that gave way to others.
    fn release_evicted(&mut self) {
        while let Some(evicted) = self.flows.as_mut().and_then(|flows| flows.evicted.pop()) {
            let slot = self.slot_of(evicted.handle);
            let ch = slot.and_then(|slot| self.channels[usize::from(slot)].channel.as_mut());
            if let Some(ch) = ch {
                ch.in_flows = ch.in_flows.saturating_sub(1);
                ch.unprocessed -= usize::from(flows::is_unprocessed(&evicted)).min(ch.unprocessed);
                ch.counters.dropped_flow += 1;
            }
            let handle = self.pool.at(flows::unpack(evicted.handle).0);
            if self.traces.is_armed()
                && let Some((slot, info)) = slot.zip(self.pool.info(handle))
            {
                self.traces.left_flow(slot, info.sequence, |_| CopyState::DroppedFlow);
            }
            self.pool.release(handle);
        }
    }

    /// Returns how many receivers a message has, and for how many of them a copy will take the output link.
    fn copies<'a>(
        &mut self,
        slot: u16,
        message: &Arrival<'_, impl Iterator<Item = &'a [u8]> + Clone>,
    ) -> Result<(u32, u32), PublishError> {
        let MessagePlane { peers, subscriptions, channels, topic: space, .. } = self;
        let ChannelSlot { channel: Some(ch), .. } = &channels[usize::from(slot)] else {
            return Err(PublishError::UnknownPeer);
        };
        if ch.backlog_limits().is_some() {
            return Ok((1, 1));
        }
        let (first, topic_len_max) = (message.frames[0], subscriptions.topic_len_max());
        if message.frames.len() > 1 && first as usize > topic_len_max {
            return Err(PublishError::TopicTooLong(first));
        }
        let topic_len = topic_len_max.min(first as usize);
        let topic = gather(space, message.parts.clone(), topic_len).ok_or(PublishError::LengthMismatch)?;
        let (mut found, mut copies) = (0, 0);
        subscriptions.matches(slot, topic, |subscriber| {
            found += 1;
            copies += u32::from(peers.takes_link(ch, subscriber));
        });
        Ok((found, copies))
    }

    /// Returns the next change of a trigger, with its name.
    pub fn next_fired(&mut self) -> Option<(String, Fired)> {
        self.flows.as_mut()?.next_fired()
    }

    /// Returns the state of link and flows; `None` if there are none.
    pub fn flow_status(&mut self, now: Instant) -> Option<(LinkStatus, Vec<FlowStatus>)> {
        self.flows.as_mut().map(|flows| flows.status(now))
    }
}

/// Returns the policy's number of a channel, and the generation of its slot.
pub(super) fn number_of(numbers: &[u32], channels: &[ChannelSlot], slot: u16) -> (u32, u16) {
    let at = usize::from(slot);
    (numbers.get(at).copied().unwrap_or(u32::MAX), channels.get(at).map_or(0, |slot| slot.generation))
}
