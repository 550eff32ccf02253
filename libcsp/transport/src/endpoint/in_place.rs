//! Messages that the owner reads or writes in place, in the VI's memory.

use csp_types::Instant;
use csp_vi::{BufferId, Memory, Place, ViError, ViId};
use csp_wire::link::HEADER_LEN;

use super::Endpoint;
use super::link::{Link, State};
use crate::event::{LinkId, MessageKind, SendError};
use crate::identity::{kind_of, wire_kind};

/// A message in its VI's memory. The owner holds its descriptor until [`Endpoint::release`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InPlace {
    /// The link on which it arrived.
    pub link: LinkId,
    /// The kind of its body.
    pub kind: MessageKind,
    /// The sender's immediate data.
    pub immediate: u32,
    /// Offset of its body in the link's [memory](Endpoint::memory).
    pub offset: usize,
    /// Length of its body, in bytes.
    pub len: usize,
    /// The VI on which it arrived; the link may since have resumed over another VI.
    vi: ViId,
    buffer: BufferId,
}

impl Endpoint {
    /// Whether [`send_filled`](Self::send_filled) works on links of the provider.
    pub fn can_fill(&self) -> bool {
        self.provider.can_fill()
    }

    /// Sends one message whose body, of at most `room` bytes, `fill` writes where it leaves from. `fill` is
    /// called once, unless the call fails before, and returns the length of the body; 0: nothing is sent.
    /// Returns that length. Otherwise as [`send`](Self::send).
    pub fn send_filled(
        &mut self,
        now: Instant,
        link: LinkId,
        (kind, immediate): (MessageKind, u32),
        room: usize,
        fill: &mut dyn FnMut(&Place<'_>) -> usize,
    ) -> Result<usize, SendError> {
        if room > self.message_len() {
            return Err(SendError::TooLong);
        }
        let fits = |link: &&mut Link| link.can_send() && kind_of(link.purpose) == kind;
        let link = self.table.get_mut(link).filter(fits).ok_or(SendError::Down)?;
        let what = (wire_kind(kind), immediate, room);
        let sent = link.post_filled(now, self.provider.as_mut(), &mut self.counters, what, fill);
        match sent {
            Ok(len) if len > 0 => {
                let heartbeat = &self.config.heartbeat;
                self.counters.bytes_sent += len as u64;
                link.used(now, heartbeat);
                self.next_check = self.next_check.min(link.next_deadline(now, heartbeat));
            }
            Err(SendError::NoCredit) => self.counters.no_credit += 1,
            _ => {}
        }
        sent
    }

    /// The memory that holds a link's messages. It stays mapped as long as a clone of it exists, even after
    /// the link has ended. The peer can write to it at any time. Most providers do not support this.
    pub fn memory(&self, link: LinkId) -> Result<Memory, ViError> {
        let link = self.table.get(link).ok_or(ViError::NotConnected)?;
        self.provider.memory(link.vi)
    }

    /// The link of the message that [`receive`](Self::receive) or [`take`](Self::take) would return next.
    pub fn next_message(&mut self) -> Option<LinkId> {
        while let Some(ready) = self.ready.front() {
            match self.table.get(ready.link) {
                Some(link) => return link.up_polled.then_some(ready.link),
                None => drop(self.ready.pop_front()),
            }
        }
        None
    }

    /// Returns the next data message without copying it. The peer has one descriptor less until the owner
    /// [releases](Self::release) the message. Otherwise as [`receive`](Self::receive); also returns `None` if
    /// the provider does not expose the location of messages.
    pub fn take(&mut self, now: Instant) -> Option<InPlace> {
        let id = self.next_message()?;
        let vi = self.table.get(id)?.vi;
        let (start, _) = self.provider.received_at(vi, self.ready.front()?.buffer).ok()?;
        let ready = self.ready.pop_front()?;
        if let Some(link) = self.table.get_mut(id) {
            link.waiting = link.waiting.saturating_sub(1);
        }
        self.after_receive(now, id);
        let (kind, immediate, buffer) = (ready.kind, ready.immediate, ready.buffer);
        Some(InPlace {
            link: id,
            kind,
            immediate,
            offset: start + HEADER_LEN,
            len: ready.body_len,
            vi,
            buffer,
        })
    }

    /// Releases a message that [`take`](Self::take) returned: its descriptor returns to the peer. To be
    /// called once for each message.
    pub fn release(&mut self, now: Instant, message: InPlace) {
        let link = self.table.get(message.link);
        if link.is_some_and(|link| link.vi == message.vi && !matches!(link.state, State::Ending(_))) {
            self.repost(message.link, message.buffer);
            self.after_receive(now, message.link);
        }
    }
}
