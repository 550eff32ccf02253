//! Contexts of information flows: a message waits in its flow's queue, passes its channel's path in the time
//! of a context, and waits for the link.

use csp_handlers::FormatId;
use csp_quality::{FlowId, SharedLink, Work};
use csp_types::Instant;

use super::publish::{Arrival, refused};
use super::{MessagePlane, PublishError, Published};
use crate::contexts::{Outlet, Step};
use crate::flows;
use crate::pool::PoolError;
use crate::queue::Item;
use crate::trace::CopyState;

/// Largest number of messages that contexts process before connections are served again.
const ITEMS_MAX: u32 = 64;

impl MessagePlane {
    /// Returns whether contexts of flows process the messages of a path. For a path with a stage elsewhere
    /// they do so only while earlier messages of the channel wait for them, so that no message overtakes
    /// them.
    #[inline]
    pub(super) fn is_served(&self, path: u16, unprocessed: usize, link: Option<&SharedLink>) -> bool {
        link.is_some_and(|link| link.serves()) && (unprocessed > 0 || self.contexts.is_local(path))
    }

    /// Puts a message that a path must process into the queue of its flow.
    #[inline(never)]
    pub(super) fn offer_unprocessed<'a>(
        &mut self,
        slot: u16,
        of: (u32, FlowId),
        format: FormatId,
        message: Arrival<'_, impl Iterator<Item = &'a [u8]> + Clone>,
        link: &mut SharedLink,
    ) -> Result<Published, PublishError> {
        let MessagePlane { channels, pool, distribution, .. } = self;
        let ch = channels.at_mut(slot).ok_or(PublishError::UnknownPeer)?;
        let (len, is_push) = (message.len, ch.backlog_limits().is_some());
        if !is_push {
            distribution.check_topic(message.frames)?;
        }
        // Handlers must be able to go on with what is stored, if publishers are held back.
        let blocks = pool.blocks_for(len) + ch.paths.reserve;
        if (is_push || link.holds(of.1)) && !pool.admits(slot, blocks) {
            let wanted = u64::from(blocks) * u64::from(self.config.pool.block_len);
            return Err(refused(ch, PoolError::Budget, u32::try_from(wanted).unwrap_or(u32::MAX)));
        }
        self.queue(slot, of, (1, len, Some(format)), message, link)
    }

    /// Lets contexts process waiting messages.
    pub(super) fn serve(&mut self, now: Instant, link: &mut SharedLink) {
        link.resume(now, |path| self.contexts.is_occupied(path));
        for _ in 0..ITEMS_MAX {
            let Some(work) = link.take(now) else { return };
            self.process_item(now, work, link);
        }
    }

    /// Processes one message.
    fn process_item(&mut self, now: Instant, work: Work, link: &mut SharedLink) {
        let handle = self.pool.at(flows::unpack(work.item.handle).0);
        let clock = link.clock();
        let begin = clock.filter(|_| work.measures).map(|clock| clock());
        let mut waits = None;
        match self.slot_of(work.item.handle).zip(self.pool.info(handle)) {
            None => _ = self.pool.release(handle),
            Some((slot, info)) => {
                let item = Item { handle, len: info.len, cached: false };
                waits = self.pass(now, slot, item, work.flow, link);
            }
        }
        let time = begin.zip(clock).map(|(begin, clock)| clock().saturating_since(begin));
        link.finished(now, work, waits, time);
    }

    /// Passes a message of a flow through its channel's path. Returns the path if the message waits in it for
    /// a resource.
    fn pass(
        &mut self,
        now: Instant,
        slot: u16,
        item: Item,
        flow: FlowId,
        link: &mut SharedLink,
    ) -> Option<u16> {
        let format = self.pool.format(item.handle);
        let traces = self.distribution.traces_mut();
        if traces.is_armed()
            && let Some(info) = self.pool.info(item.handle)
        {
            traces.left_flow(slot, info.sequence, |_| CopyState::Waiting);
        }
        let ch = self.channels.at_mut(slot)?;
        ch.in_flows = ch.in_flows.saturating_sub(1);
        ch.unprocessed = ch.unprocessed.saturating_sub(1);
        let path = if ch.paths.is_empty() { None } else { ch.paths.find(format) };
        let Some(path) = path else {
            self.pass_by(now, slot, item, flow, link);
            return None;
        };
        if self.contexts.entry(path).is_ended {
            self.contexts.refuse_ended(path);
            ch.counters.dropped_path += 1;
            self.pool.release(item.handle);
            return None;
        }
        if !self.contexts.is_local(path) {
            // A stage has moved elsewhere while the message waited.
            self.contexts.enter_late(path, item, &mut self.schedule);
            return None;
        }
        self.contexts.enter_served(path, item);
        while let Some(queue) = self.contexts.last_waiting(path) {
            if self.feeds_fill(slot) {
                break;
            }
            let watched = if self.distribution.traces().is_armed() { self.watch(queue) } else { None };
            let mut read = link.clock();
            let clock = read.as_mut().map(|clock| clock as &mut dyn FnMut() -> Instant);
            let step = self.step(now, slot, (queue, Some(flow)), clock, Some(link));
            if let (Some(watched), Step::Done(_)) = (watched, step) {
                self.trace_passed(slot, queue, watched);
            }
            self.feed_stored();
            // A stage that waits for a later one goes on once that is empty.
            if step == Step::Idle && self.contexts.last_waiting(path) == Some(queue) {
                break;
            }
        }
        if let Some(ch) = self.channels.at(slot) {
            self.schedule.set_channel(slot, ch);
        }
        match self.contexts.is_occupied(path) {
            true => {
                self.contexts.wake_all(path, &mut self.schedule);
                Some(path)
            }
            false => {
                self.contexts.rest(path);
                None
            }
        }
    }

    /// Passes on a message that has no path, or whose path was removed.
    fn pass_by(&mut self, now: Instant, slot: u16, item: Item, flow: FlowId, link: &mut SharedLink) {
        let (id, number) = (self.channels.id(slot), self.channels.number(slot));
        let Some(ch) = self.channels.at_mut(slot) else { return };
        let mut outlet = Outlet {
            now,
            id,
            number,
            ch,
            pool: &mut self.pool,
            distribution: &mut self.distribution,
            fed: &mut self.fed,
            link: Some((link, &self.fields)),
            flow: Some(flow),
        };
        outlet.wait(item);
    }

    /// Puts a message that waited for a context of flows into its path, or passes it to receivers if there is
    /// no path.
    pub(super) fn enter_late(&mut self, now: Instant, queued: csp_quality::Item) {
        let handle = self.pool.at(flows::unpack(queued.handle).0);
        let known = self.slot_of(queued.handle).zip(self.pool.info(handle));
        let path = known.and_then(|(slot, _)| {
            let ch = self.channels.at_mut(slot)?;
            ch.unprocessed = ch.unprocessed.saturating_sub(1);
            let path = ch.paths.find(self.pool.format(handle))?;
            ch.in_flows = ch.in_flows.saturating_sub(1);
            Some(path)
        });
        match (path, known) {
            (Some(path), Some((_, info))) => {
                let item = Item { handle, len: info.len, cached: false };
                self.contexts.enter_late(path, item, &mut self.schedule);
            }
            _ => self.give(now, queued),
        }
    }
}
