//! Messages with their headers, encoded once for all receivers that are served in one pass.
//!
//! ```text
//!   the batch      | m7 | m8 | m9 | m10 |·········|
//!   receiver a      └── run ──────┘
//!   receiver b           └── run ───────┘            its connection refers to the same memory
//! ```
//! The memory is the TCP engine's if it lends some: then the connections refer to it until their peers have
//! acknowledged it, and nothing is copied for the second receiver and those after it. The engine's buffers
//! are short, so that a batch has several; each message lies in one of them.

use std::ops::Range;

use csp_messages::{Delivery, MessageHandle, MessagePlane};
use csp_proxy_core::service::ClientEnd;
use csp_tcp::Buffer;

use super::framing::Encoding;

/// Bytes of the batch while the engine lends no memory.
const OWN_LEN: usize = 64 * 1024;
/// Largest number of buffers that the engine lends for one batch.
const BUFFERS_MAX: usize = 6;

#[derive(Debug, Default)]
pub(super) struct Batch {
    lent: Vec<Buffer>,
    own: Box<[u8]>,
    /// Each message, with the number of its encoding, and its place.
    messages: Vec<((MessageHandle, u8), Place)>,
    /// Number of messages that fit into the list without allocating.
    most: usize,
}

/// Bytes of the batch: the buffer, and the range in it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Place {
    pub buffer: usize,
    pub range: Range<usize>,
}

/// A receiver's position in the batch: the index after the last message that it was given.
#[derive(Clone, Copy, Default)]
pub(super) struct Mark(usize);

impl Batch {
    /// A batch of at most `messages` messages; its memory is allocated.
    pub(super) fn new(messages: usize) -> Self {
        Batch {
            lent: Vec::with_capacity(BUFFERS_MAX),
            own: vec![0; OWN_LEN].into_boxed_slice(),
            messages: Vec::with_capacity(messages),
            most: messages,
        }
    }

    /// Returns the place of a delivery of `len` bytes. The message is encoded when its first receiver asks
    /// for it. `None` if the batch has no room.
    pub(super) fn place(
        &mut self,
        plane: &MessagePlane,
        (delivery, encoding, len): (&Delivery, &Encoding, usize),
        mark: &mut Mark,
        client: &mut impl ClientEnd,
    ) -> Option<Place> {
        let key = (delivery.handle, encoding.number());
        let later = self.messages.get(mark.0..).unwrap_or(&[]);
        if let Some(passed) = later.iter().position(|(known, _)| *known == key) {
            mark.0 += passed + 1;
            return self.messages.get(mark.0 - 1).map(|(_, place)| place.clone());
        }
        if self.messages.len() >= self.most {
            return None;
        }
        let place = self.free(len, client)?;
        let bytes = self.lent.get_mut(place.buffer).map_or(&mut self.own[..], Buffer::bytes_mut);
        let mut room = bytes.get_mut(place.range.clone())?;
        encoding.pieces(plane, delivery, |piece| {
            let (to, rest) = std::mem::take(&mut room).split_at_mut(piece.len());
            to.copy_from_slice(piece);
            room = rest;
            true
        });
        self.messages.push((key, place.clone()));
        mark.0 = self.messages.len();
        Some(place)
    }

    /// Returns the place behind the last message if it has `len` bytes, otherwise the start of another
    /// buffer.
    fn free(&mut self, len: usize, client: &mut impl ClientEnd) -> Option<Place> {
        let Some((_, Place { buffer, range })) = self.messages.last() else {
            if self.lent.is_empty() {
                self.lent.extend(client.lend());
            }
            return (len <= self.len_of(0)).then_some(Place { buffer: 0, range: 0..len });
        };
        let (buffer, from) = (*buffer, range.end);
        if from + len <= self.len_of(buffer) {
            return Some(Place { buffer, range: from..from + len });
        }
        let is_lent = !self.lent.is_empty() && len <= self.len_of(buffer);
        if !is_lent || self.lent.len() == BUFFERS_MAX {
            return None;
        }
        self.lent.push(client.lend()?);
        Some(Place { buffer: self.lent.len() - 1, range: 0..len })
    }

    fn len_of(&self, buffer: usize) -> usize {
        self.lent.get(buffer).map_or(self.own.len(), |lent| lent.bytes().len())
    }

    /// Writes a part of the batch to a connection; returns the number of bytes accepted.
    pub(super) fn write(&self, client: &mut impl ClientEnd, part: &Place) -> usize {
        let lent = self.lent.get(part.buffer);
        let bytes = lent.map_or(&self.own[..], Buffer::bytes);
        client.write(bytes.get(part.range.clone()).unwrap_or(&[]), lent)
    }

    /// Empties the batch for a receiver that was written nothing of it; `false` if its connection cannot
    /// return the memory.
    pub(super) fn renew(&mut self, client: &mut impl ClientEnd) -> bool {
        while let Some(lent) = self.lent.pop() {
            if let Some(kept) = client.give_back(lent) {
                self.lent.push(kept);
                return false;
            }
        }
        self.messages.clear();
        true
    }

    /// Empties the batch. Returns memory that was lent, until there is none: the caller gives it back.
    pub(super) fn end(&mut self) -> Option<Buffer> {
        self.messages.clear();
        self.lent.pop()
    }
}
