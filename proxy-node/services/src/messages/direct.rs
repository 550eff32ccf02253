//! Direct delivery: messages of one publisher go from the memory where they arrived to receivers that wait
//! for nothing.
//!
//! ```text
//!  begin: idle receivers, the room of each  ─▶ take, for each message: one copy ─▶ write: references to it
//!                     memory of the engine  | m1 | m2 |·····|  | m3 |·········|
//!                             receiver a     └─ write ┘         └ write
//!                             receiver b     └──┘                 write
//! ```
//! The bytes of a message in the publisher's stream are those of the streams to its receivers, unless it has
//! an unusual form. They are written when the publisher's visit is over, since its bytes lie in the memory of
//! the same engine. The first message that finds another receiver, no room or no memory ends direct delivery
//! until the next visit: it and those after it go through pool and queues, behind what was taken here.

use std::ops::Range;

use csp_messages::{MessagePlane, PeerId};
use csp_proxy_core::service::ClientEnd;
use csp_proxy_core::service::upstream::Ends;
use csp_tcp::Buffer;
use csp_types::FlowLabel;
use csp_zmtp::{FrameHeader, Mechanism, Message};

use super::channels::Bound;
use super::connections::Connections;
use super::framing::Speech;
use super::peer::Peer;
use super::placement::Ending;

/// Largest number of receivers of a channel whose messages are delivered directly.
pub(super) const RECEIVERS_MAX: usize = 8;
/// Largest number of buffers of the engine that one visit fills.
const BUFFERS_MAX: usize = 4;
/// Largest number of writes to connections after one visit.
const WRITES_MAX: usize = 256;

/// Messages of the publisher that is served, on their way to idle receivers.
#[derive(Debug)]
pub(super) struct Direct {
    receivers: Vec<Receiver>,
    buffers: Vec<Buffer>,
    /// The buffer that is filled, and the number of bytes in it.
    filled: (usize, usize),
    writes: Vec<Write>,
    /// Length of the longest message of the visit, in bytes.
    longest: usize,
    /// Messages are taken.
    open: bool,
    /// A receiver that was found and is not among `receivers`.
    missed: Option<u32>,
}

/// An idle receiver.
#[derive(Debug)]
struct Receiver {
    id: PeerId,
    label: FlowLabel,
    /// What its connection accepts beyond what was taken, in bytes.
    room: usize,
    messages: u64,
    /// The index of its last write.
    last: Option<usize>,
}

/// Bytes of a buffer for a receiver.
#[derive(Debug)]
struct Write {
    receiver: usize,
    buffer: usize,
    range: Range<usize>,
}

impl Default for Direct {
    fn default() -> Self {
        Direct {
            receivers: Vec::with_capacity(RECEIVERS_MAX),
            buffers: Vec::with_capacity(BUFFERS_MAX),
            filled: (0, 0),
            writes: Vec::with_capacity(WRITES_MAX),
            longest: 0,
            open: false,
            missed: None,
        }
    }
}

impl Direct {
    /// Prepares the visit of a connection, if it is one of a publisher whose messages may be delivered
    /// directly. Returns whether they may; [`finish`](Self::finish) is then called after the visit.
    pub fn begin(
        &mut self,
        label: FlowLabel,
        bound: &mut Bound,
        plane: &MessagePlane,
        connections: &Connections,
        ends: &mut impl Ends,
    ) -> bool {
        let known = plane.direct_receivers(bound.id);
        if known.is_none_or(|receivers| receivers == 0 || receivers > RECEIVERS_MAX) {
            return false;
        }
        let Some(readable) = ends.client(label).map(|client| client.readable()).filter(|len| *len > 0) else {
            return false;
        };
        (self.filled, self.longest, self.open, self.missed) = ((0, 0), 0, true, None);
        let Direct { receivers, buffers, .. } = self;
        receivers.clear();
        bound.near.retain(|id| {
            let idle = plane.is_idle(bound.id, *id);
            if idle == Some(true)
                && let Some(peer) = connections.of(*id).filter(|peer| peer.label != label && takes(peer))
                && let Some(client) = ends.client(peer.label)
            {
                let (id, label, room) = (*id, peer.label, client.room());
                receivers.push(Receiver { id, label, room, messages: 0, last: None });
            }
            idle.is_some()
        });
        if receivers.is_empty() {
            return true; // the first message shows who receives
        }
        let Some(mut client) = ends.client(label) else { return true };
        let mut len = 0;
        while buffers.len() < BUFFERS_MAX
            && len < readable
            && let Some(buffer) = client.lend()
        {
            len += buffer.bytes().len();
            buffers.push(buffer);
        }
        true
    }

    /// Returns whether messages are taken.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Takes no further messages: one that was not taken goes through the queues.
    #[inline]
    pub fn close(&mut self) {
        self.open = false;
    }

    /// Returns whether another message like those of this visit has no room in the buffers. The visit is then
    /// over, and the next one begins with other buffers.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.open
            && self.longest > 0
            && (self.filled.0 + 1 >= self.buffers.len() && self.left() < self.longest
                || self.writes.len() + self.receivers.len() > WRITES_MAX)
    }

    /// Takes a message of `len` bytes for the receivers with these indices. Returns `false` if it cannot be
    /// delivered directly to all of them; then it was taken for none.
    #[inline]
    pub fn take<'a>(&mut self, found: &[u32], len: usize, bytes: impl Iterator<Item = &'a [u8]>) -> bool {
        if !self.has_room(found, len) || !self.place(len, bytes) {
            return false;
        }
        let (buffer, end) = self.filled;
        for index in found {
            let Some(at) = self.receivers.iter().position(|known| known.id.index == *index) else { continue };
            let receiver = &mut self.receivers[at];
            receiver.room -= len;
            receiver.messages += 1;
            let last = receiver.last.and_then(|last| self.writes.get_mut(last));
            match last.filter(|write| (write.buffer, write.range.end) == (buffer, end - len)) {
                Some(write) => write.range.end = end,
                None => {
                    receiver.last = Some(self.writes.len());
                    self.writes.push(Write { receiver: at, buffer, range: end - len..end });
                }
            }
        }
        true
    }

    /// Returns whether all receivers that were found are idle, and their connections accept `len` bytes.
    fn has_room(&mut self, found: &[u32], len: usize) -> bool {
        for index in found {
            match self.receivers.iter().find(|known| known.id.index == *index) {
                Some(receiver) if receiver.room >= len => {}
                Some(_) => return false,
                None => {
                    self.missed = Some(*index);
                    return false;
                }
            }
        }
        self.writes.len() + found.len() <= WRITES_MAX
    }

    /// Copies a message behind the one before, into one buffer; `false` if no buffer has room.
    fn place<'a>(&mut self, len: usize, bytes: impl Iterator<Item = &'a [u8]>) -> bool {
        if self.left() < len {
            self.filled = (self.filled.0 + 1, 0);
        }
        let (buffer, from) = self.filled;
        let whole = self.buffers.get_mut(buffer).map(Buffer::bytes_mut);
        let Some(mut room) = whole.and_then(|bytes| bytes.get_mut(from..from + len)) else { return false };
        for slice in bytes {
            let Some((to, rest)) = std::mem::take(&mut room).split_at_mut_checked(slice.len()) else {
                return false;
            };
            to.copy_from_slice(slice);
            room = rest;
        }
        if !room.is_empty() {
            return false;
        }
        self.filled.1 = from + len;
        self.longest = self.longest.max(len);
        true
    }

    /// Returns the number of bytes left in the buffer that is filled.
    fn left(&self) -> usize {
        self.buffers.get(self.filled.0).map_or(0, |buffer| buffer.bytes().len() - self.filled.1)
    }

    /// Writes what was taken to its receivers, and returns the memory.
    pub fn finish(&mut self, bound: Option<&mut Bound>, connections: &mut Connections, ends: &mut impl Ends) {
        for at in 0..self.receivers.len() {
            if self.receivers[at].messages > 0 {
                self.write_to(at, connections, ends);
            }
        }
        self.open = false;
        self.writes.clear();
        self.buffers.drain(..).for_each(|buffer| ends.give_back(buffer));
        if let (Some(index), Some(bound)) = (self.missed.take(), bound)
            && let Some(id) = connections.at(index).filter(|id| !bound.near.contains(id))
            && bound.near.len() < RECEIVERS_MAX
        {
            bound.near.push(id);
        }
    }

    /// Writes what was taken for one receiver.
    fn write_to(&self, at: usize, connections: &mut Connections, ends: &mut impl Ends) {
        let Receiver { label, messages, .. } = self.receivers[at];
        let (Some(mut client), Some(peer)) = (ends.client(label), connections.get_mut(label)) else { return };
        let before = peer.before_visit(&client);
        for Write { buffer, range, .. } in self.writes.iter().filter(|write| write.receiver == at) {
            let Some(buffer) = self.buffers.get(*buffer) else { continue };
            let bytes = buffer.bytes().get(range.clone()).unwrap_or(&[]);
            let written = if peer.own.is_empty() { client.write(bytes, Some(buffer)) } else { 0 };
            debug_assert_eq!(written, bytes.len(), "the room was looked at");
            peer.own.extend_from_slice(&bytes[written..]);
        }
        peer.delivered += messages;
        peer.after_visit(before, &client);
    }
}

/// Returns whether messages may be written to the connection of an idle receiver as they are in a publisher's
/// stream.
fn takes(peer: &Peer) -> bool {
    let Speech::Zmtp(connection) = &peer.connection else { return false };
    let is_between_messages = peer.writing.is_none() && peer.own.is_empty();
    let stays = !peer.ended && peer.ending == Ending::Stays && !peer.connection.has_failed();
    is_between_messages && stays && connection.mechanism() != Mechanism::Curve
}

/// Returns the part of a publisher's stream that is written to a receiver for a message: all of it, from its
/// first frame's header on. `None` if the proxy would write other headers, or the message was sealed.
#[inline]
pub(super) fn wire_form(message: &Message<'_>) -> Option<Range<u64>> {
    let span = message.span();
    let mut len = 0;
    for frame in message.frames() {
        let header = FrameHeader::message(frame.len, false).as_bytes().len();
        if header != usize::from(frame.header_len) {
            return None;
        }
        len += (header + frame.len) as u64;
    }
    (len == span.end - span.start).then_some(span) // no command lies between its frames
}
