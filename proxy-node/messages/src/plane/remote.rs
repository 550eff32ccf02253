//! Contexts elsewhere: messages to them, and the records that they send.

use csp_handlers::{Emit, FormatId, Reported};
use csp_quality::SharedLink;
use csp_types::Instant;

use super::MessagePlane;
use crate::contexts::{Outlet, RemoteCall, RemoteDone, RemoteError, RemoteStage, Ticket};
use crate::pool::{MessageHandle, MessageInfo};

impl MessagePlane {
    /// Makes a context remote: its messages are fetched by [`next_call`](Self::next_call), at most `credit`
    /// unanswered ones of each stage. A credit of 0 makes it local again, once
    /// [`remote_lost`](Self::remote_lost) is called. Returns whether there is such a context.
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

    /// Records a remote context's report of a stage. `why`: the reason for which the context does not run it.
    /// Returns whether the reason is new.
    pub fn remote_report(&mut self, ticket: Ticket, report: &Reported, why: &str) -> bool {
        self.contexts.remote_report(ticket, report, why)
    }

    /// Returns the description of a message for a remote context, and its format; `None` if the message was
    /// released.
    pub fn remote_message(&self, handle: MessageHandle) -> Option<(MessageInfo, FormatId)> {
        Some((self.pool.info(handle)?, self.pool.format(handle)))
    }

    /// Processes an emit of a remote handler for the oldest message that its stage was passed. `link` as for
    /// [`run_context`](Self::run_context).
    ///
    /// # Errors
    /// [`RemoteError::Full`]: the caller passes the same record again later. Any other error is the remote
    /// context's violation.
    pub fn remote_emit(
        &mut self,
        now: Instant,
        ticket: Ticket,
        (output, emit): (u8, Emit<'_>),
        link: Option<&mut SharedLink>,
    ) -> Result<(), RemoteError> {
        let slot = self.contexts.channel_of_call(ticket).ok_or(RemoteError::Stale)?;
        let (id, number) = (self.channels.id(slot), self.channels.number(slot));
        let ch = self.channels.at_mut(slot).ok_or(RemoteError::Stale)?;
        let outlet = Outlet {
            now,
            id,
            number,
            ch,
            pool: &mut self.pool,
            distribution: &mut self.distribution,
            fed: &mut self.fed,
            link: link.map(|link| (link, &self.fields)),
            flow: None,
        };
        let done = self.contexts.remote_emit(ticket, (output, emit), outlet, &mut self.schedule);
        self.feed_stored();
        if let Some(ch) = self.channels.at(slot) {
            self.schedule.set_channel(slot, ch);
        }
        done
    }

    /// Records that a remote handler has finished the oldest message that its stage was passed. A message
    /// that the handler has given up continues unchanged, if the path says so.
    ///
    /// # Errors
    /// When the path has ended, or the stage was passed no message. [`RemoteError::Full`]: as for
    /// [`remote_emit`](Self::remote_emit).
    pub fn remote_done(
        &mut self,
        now: Instant,
        ticket: Ticket,
        done: RemoteDone,
        link: Option<&mut SharedLink>,
    ) -> Result<(), RemoteError> {
        let passed = done == RemoteDone::GivenUp && self.contexts.passes_faults(ticket);
        if passed {
            self.remote_emit(now, ticket, (0, Emit::Same), link)?;
        }
        let slot = self.contexts.channel_of_call(ticket).ok_or(RemoteError::Stale)?;
        let (handle, queue) =
            self.contexts.remote_done(ticket, (done, passed), &self.pool, &mut self.schedule)?;
        self.pool.release(handle);
        if let Some(path) = self.contexts.ending(queue)
            && let Some(ch) = self.channels.at_mut(slot)
        {
            self.contexts.settle(path, ch, &mut self.schedule);
        }
        Ok(())
    }

    /// Records the loss of a remote context. Its unanswered messages are passed to its successor.
    pub fn remote_lost(&mut self, context: u16) {
        self.contexts.remote_lost(context, &mut self.schedule);
    }

    /// Discards messages that wait for a context in replaced or removed paths, which would otherwise not end:
    /// those of stages that it does not run, and if it is lost, those of all stages. Returns their number.
    pub fn give_up(&mut self, context: u16, is_lost: bool) -> u64 {
        let mut all = 0;
        for (path, slot) in self.contexts.retired_at(context) {
            let Some(ch) = self.channels.at_mut(slot) else { continue };
            let of = (path, context, is_lost);
            let lost = self.contexts.give_up(of, ch, &mut self.pool, &mut self.schedule);
            ch.counters.lost += lost;
            all += lost;
        }
        all
    }
}
