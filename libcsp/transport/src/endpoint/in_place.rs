//! Messages that the owner reads in place, in the VI's memory.

use csp_types::Instant;
use csp_vi::{BufferId, Memory, ViError, ViId};
use csp_wire::link::HEADER_LEN;

use super::Endpoint;
use super::link::State;
use crate::event::{LinkId, MessageKind};

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
