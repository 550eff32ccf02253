//! Contexts elsewhere: what is given to them, and what they send back.

use csp_handlers::{Emit, FormatId, Reported};
use csp_types::Instant;

use super::MessagePlane;
use super::flows::number_of;
use crate::contexts::{Outlet, RemoteCall, RemoteDone, RemoteError, RemoteStage, Ticket};
use crate::pool::{MessageHandle, MessageInfo};
use crate::schedule::Schedule as _;

impl MessagePlane {
    /// Makes a context remote: its messages are fetched by [`next_call`](Self::next_call), at most `credit` of each stage that are not
    /// answered. With a credit of 0 it is local again, once [`remote_lost`](Self::remote_lost) is called. Returns whether there is such a context.
    pub fn set_remote(&mut self, context: u16, credit: u32) -> bool {
        self.contexts.set_remote(context, credit)
    }

    /// Returns the next message for a handler of a remote context.
    pub fn next_call(&mut self, context: u16) -> Option<RemoteCall> {
        self.contexts.next_call(context)
    }

    /// Returns whether [`next_call`](Self::next_call) may have something to return.
    pub fn has_calls(&self, context: u16) -> bool {
        self.contexts.is_active(context)
    }

    /// Returns the handler of a remote call; `None` once its path is over.
    pub fn remote_stage(&self, ticket: Ticket) -> Option<RemoteStage<'_>> {
        self.contexts.remote_stage(ticket)
    }

    /// Records what a remote context reports of a stage; `why`: it does not run it. Returns whether that is new.
    pub fn remote_report(&mut self, ticket: Ticket, report: &Reported, why: &str) -> bool {
        self.contexts.remote_report(ticket, report, why)
    }

    /// Returns what a remote context is to know of a message, with its format; `None` if it is gone.
    pub fn remote_message(&self, handle: MessageHandle) -> Option<(MessageInfo, FormatId)> {
        Some((self.pool.info(handle)?, self.pool.format(handle)))
    }

    /// Processes what a remote handler has emitted of the oldest message that its stage was given.
    ///
    /// # Errors
    /// [`RemoteError::Full`]: the caller passes the same again later. Any other error is the remote context's violation.
    pub fn remote_emit(
        &mut self,
        now: Instant,
        ticket: Ticket,
        output: u8,
        emit: Emit<'_>,
    ) -> Result<(), RemoteError> {
        let slot = self.contexts.channel_of_call(ticket).ok_or(RemoteError::Stale)?;
        let MessagePlane {
            peers,
            pool,
            subscriptions,
            matched,
            channels,
            schedule,
            topic: space,
            contexts,
            fed,
            flows,
            numbers,
            traces,
            ..
        } = self;
        let number = number_of(numbers, channels, slot);
        let ch = channels.get_mut(usize::from(slot)).and_then(|slot| slot.channel.as_mut());
        let ch = ch.ok_or(RemoteError::Stale)?;
        let (flows, flow) = (flows.as_deref_mut(), None);
        let outlet = Outlet {
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
        let done = contexts.remote_emit(ticket, (output, emit), outlet, (schedule, self.config.channels_max));
        self.feed_stored();
        let has_work =
            self.channels[usize::from(slot)].channel.as_ref().is_some_and(|ch| !ch.pending.is_empty());
        self.schedule.set_active(slot, has_work);
        done
    }

    /// Records that a remote handler is done with the oldest message that its stage was given. One that it has given up goes on as it is, if
    /// the path says so.
    ///
    /// # Errors
    /// When its path is over, or it was given none. [`RemoteError::Full`]: as for [`remote_emit`](Self::remote_emit).
    pub fn remote_done(&mut self, now: Instant, ticket: Ticket, done: RemoteDone) -> Result<(), RemoteError> {
        let passed = done == RemoteDone::GivenUp && self.contexts.passes_faults(ticket);
        if passed {
            self.remote_emit(now, ticket, 0, Emit::Same)?;
        }
        let slot = self.contexts.channel_of_call(ticket).ok_or(RemoteError::Stale)?;
        let flows = (&mut self.schedule, self.config.channels_max);
        let (handle, queue) = self.contexts.remote_done(ticket, (done, passed), &self.pool, flows)?;
        self.pool.release(handle);
        if let Some(path) = self.contexts.ending(queue)
            && let Some(ch) = self.channels.get_mut(usize::from(slot)).and_then(|slot| slot.channel.as_mut())
        {
            self.contexts.settle(path, ch, (&mut self.schedule, self.config.channels_max));
        }
        Ok(())
    }

    /// Records that a remote context is lost, with what it has not answered: that is given again.
    pub fn remote_lost(&mut self, context: u16) {
        self.contexts.remote_lost(context, (&mut self.schedule, self.config.channels_max));
    }

    /// Discards what waits for a context in paths that are replaced or removed, for stages that it does not run and, if it is lost, for all:
    /// nothing else would end them. Returns how many messages.
    pub fn give_up(&mut self, context: u16, is_lost: bool) -> u64 {
        let mut all = 0;
        for (path, slot) in self.contexts.retired_at(context) {
            let Some(ch) = self.channels.get_mut(usize::from(slot)).and_then(|slot| slot.channel.as_mut())
            else {
                continue;
            };
            let flows = (&mut self.schedule, self.config.channels_max);
            let lost = self.contexts.give_up((path, context, is_lost), ch, &mut self.pool, flows);
            ch.counters.lost += lost;
            all += lost;
        }
        all
    }
}
