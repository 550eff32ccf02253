//! Messages that the owner reads where they lie, in the VI's memory.

use csp_types::Instant;
use csp_vi::{BufferId, Memory, ViError, ViId};
use csp_wire::link::HEADER_LEN;

use super::Endpoint;
use super::link::State;
use crate::event::{LinkId, MessageKind};

/// A message in its VI's memory. Its descriptor is the owner's until [`Endpoint::release`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InPlace {
    /// Where it came from.
    pub link: LinkId,
    /// What its body is.
    pub kind: MessageKind,
    /// The sender's immediate data.
    pub immediate: u32,
    /// Where its body starts in the link's [memory](Endpoint::memory).
    pub offset: usize,
    /// Bytes of body.
    pub len: usize,
    /// The VI that it came over: the link may go on over another one.
    vi: ViId,
    buffer: BufferId,
}

impl Endpoint {
    /// The memory that messages of a link lie in. It stays mapped as long as a clone of it does, whatever becomes of the
    /// link; the peer can write to it at any time. Unsupported by most providers.
    pub fn memory(&self, link: LinkId) -> Result<Memory, ViError> {
        let link = self.table.get(link).ok_or(ViError::NotConnected)?;
        self.provider.memory(link.vi)
    }

    /// The link of the message that [`receive`](Self::receive) or [`take`](Self::take) would give next.
    pub fn next_message(&mut self) -> Option<LinkId> {
        while let Some(ready) = self.ready.front() {
            match self.table.get(ready.link) {
                Some(link) => return link.up_polled.then_some(ready.link),
                None => drop(self.ready.pop_front()),
            }
        }
        None
    }

    /// The next data message, not copied. While the owner holds it the peer has one descriptor less. As
    /// [`receive`](Self::receive) in all else; `None` too where the provider does not tell where messages lie.
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

    /// The owner is done with a message that it took; its descriptor goes back to the peer. Once for each.
    pub fn release(&mut self, now: Instant, message: InPlace) {
        let link = self.table.get(message.link);
        if link.is_some_and(|link| link.vi == message.vi && !matches!(link.state, State::Ending(_))) {
            self.repost(message.link, message.buffer);
            self.after_receive(now, message.link);
        }
    }
}
