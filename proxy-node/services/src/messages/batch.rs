//! Messages with their headers, encoded once for all receivers that are served in one pass.
//!
//! ```text
//!   the batch      | m7 | m8 | m9 | m10 |·········|
//!   receiver a      └── run ──────┘
//!   receiver b           └── run ───────┘            its connection refers to the same memory
//! ```
//! The memory is the TCP engine's if it lends some: then the connections refer to it until their peers have
//! acknowledged it, and nothing is copied for the second receiver and those after it.

use std::ops::Range;

use csp_messages::{Delivery, MessageHandle, MessagePlane};
use csp_proxy_core::service::ClientEnd;
use csp_tcp::Buffer;

use super::framing::Encoding;

/// Bytes of the batch while the engine lends no memory.
const OWN_LEN: usize = 64 * 1024;

#[derive(Debug, Default)]
pub(super) struct Batch {
    lent: Option<Buffer>,
    own: Box<[u8]>,
    /// Each message, with the number of its encoding, and the position behind it.
    messages: Vec<((MessageHandle, u8), usize)>,
    /// Number of messages that fit into the list without allocating.
    most: usize,
}

/// A receiver's position in the batch: the index after the last message that it was given.
#[derive(Clone, Copy, Default)]
pub(super) struct Mark(usize);

impl Batch {
    /// A batch of at most `messages` messages; its memory is allocated.
    pub(super) fn new(messages: usize) -> Self {
        Batch {
            lent: None,
            own: vec![0; OWN_LEN].into_boxed_slice(),
            messages: Vec::with_capacity(messages),
            most: messages,
        }
    }

    /// Returns the range of a delivery of `len` bytes. The message is encoded when its first receiver asks
    /// for it. `None` if the batch has no room.
    pub(super) fn place(
        &mut self,
        plane: &MessagePlane,
        (delivery, encoding, len): (&Delivery, &Encoding, usize),
        mark: &mut Mark,
        client: &mut impl ClientEnd,
    ) -> Option<Range<usize>> {
        let key = (delivery.handle, encoding.number());
        let later = self.messages.get(mark.0..).unwrap_or(&[]);
        if let Some(passed) = later.iter().position(|(known, _)| *known == key) {
            mark.0 += passed + 1;
            return Some(self.start(mark.0 - 1)..self.messages[mark.0 - 1].1);
        }
        let start = self.start(self.messages.len());
        let end = start + len;
        if self.messages.is_empty() && self.lent.is_none() {
            self.lent = client.lend();
        }
        let bytes = self.lent.as_mut().map_or(&mut self.own[..], Buffer::bytes_mut);
        let mut room = bytes.get_mut(start..end).filter(|_| self.messages.len() < self.most)?;
        encoding.pieces(plane, delivery, |piece| {
            let (to, rest) = std::mem::take(&mut room).split_at_mut(piece.len());
            to.copy_from_slice(piece);
            room = rest;
            true
        });
        self.messages.push((key, end));
        mark.0 = self.messages.len();
        Some(start..end)
    }

    /// Writes a part of the batch to a connection; returns the number of bytes accepted.
    pub(super) fn write(&self, client: &mut impl ClientEnd, part: Range<usize>) -> usize {
        let bytes = self.lent.as_ref().map_or(&self.own[..], Buffer::bytes);
        client.write(bytes.get(part).unwrap_or(&[]), self.lent.as_ref())
    }

    /// Empties the batch for a receiver that was written nothing of it; `false` if its connection cannot
    /// return the memory.
    pub(super) fn renew(&mut self, client: &mut impl ClientEnd) -> bool {
        if let Some(lent) = self.lent.take() {
            self.lent = client.give_back(lent);
        }
        let renewed = self.lent.is_none();
        if renewed {
            self.messages.clear();
        }
        renewed
    }

    /// Empties the batch. Returns the lent memory, which the caller gives back.
    pub(super) fn end(&mut self) -> Option<Buffer> {
        self.messages.clear();
        self.lent.take()
    }

    fn start(&self, message: usize) -> usize {
        message.checked_sub(1).and_then(|before| self.messages.get(before)).map_or(0, |(_, end)| *end)
    }
}
