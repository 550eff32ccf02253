//! Tunnel records coalesced into link messages.

use std::collections::VecDeque;

use csp_types::Instant;
use csp_wire::link;
use csp_wire::tunnel::{self, ALIGNMENT, RECORD_HEADER_LEN, Record, padded_len};

use crate::endpoint::{Endpoint, GATHER_MAX};
use crate::event::{LinkId, MessageKind, SendError};

/// Shortest record, in bytes, that is posted directly from the caller's memory. Shorter records are copied
/// into the batch.
const DIRECT_LEN_MIN: usize = 2048;

/// The batch has no room and could not be sent, or the record exceeds a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the tunnel batch is full")]
pub struct Full;

/// Records queued for one link: several are sent in one VI message.
///
/// ```text
///   push, send ─▶ [ being filled ]                     sent whole by flush, or by a record without room
///              ─▶ [ full | full | being filled ]       while there is no credit: up to `messages_max` of them
/// ```
/// One buffer is allocated at once, those of messages that wait for credit when they are first needed, and
/// then kept. Records are sent only by [`flush`](Self::flush), which the worker calls at the end of each turn
/// of its loop, or by [`send`](Self::send).
#[derive(Debug)]
pub struct TunnelBatch {
    link: LinkId,
    /// Messages that wait for credit, oldest first.
    waiting: VecDeque<MessageBuffer>,
    /// The message to which further records are added.
    last: MessageBuffer,
    /// Buffers that are not in use.
    spare: Vec<MessageBuffer>,
    messages_max: usize,
}

/// The records of one message.
#[derive(Debug)]
struct MessageBuffer {
    buffer: Box<[u8]>,
    len: usize,
    /// The time at which the ages in the buffer are correct.
    aged: Instant,
}

impl MessageBuffer {
    fn new(message_len: usize) -> Self {
        MessageBuffer { buffer: vec![0; message_len].into_boxed_slice(), len: 0, aged: Instant::ZERO }
    }

    fn bytes(&self) -> &[u8] {
        self.buffer.get(..self.len).unwrap_or(&[])
    }

    fn has_room_for(&self, padded: usize) -> bool {
        self.len.saturating_add(padded) <= self.buffer.len()
    }

    /// Updates the ages of queued records to `now`. Records that are sent in the turn in which they were
    /// queued need no update.
    fn grow_older(&mut self, now: Instant) {
        let by = now.saturating_since(self.aged);
        self.aged = now;
        if self.len > 0 && !by.is_zero() {
            tunnel::grow_older(self.buffer.get_mut(..self.len).unwrap_or_default(), by);
        }
    }

    fn send(&mut self, now: Instant, endpoint: &mut Endpoint, link: LinkId) -> Result<(), SendError> {
        if self.len > 0 {
            self.grow_older(now);
            endpoint.send(now, link, MessageKind::Tunnel, 0, &[self.bytes()])?;
            self.len = 0;
        }
        Ok(())
    }
}

impl TunnelBatch {
    /// A batch of one message for `link` of `endpoint`. A record for which it has no room while there is no
    /// credit is refused.
    pub fn new(endpoint: &Endpoint, link: LinkId) -> Self {
        Self::with_queue(endpoint, link, 1)
    }

    /// A batch that keeps up to `messages_max` messages while there is no credit.
    pub fn with_queue(endpoint: &Endpoint, link: LinkId, messages_max: usize) -> Self {
        TunnelBatch {
            link,
            waiting: VecDeque::new(),
            last: MessageBuffer::new(endpoint.message_len()),
            spare: Vec::new(),
            messages_max,
        }
    }

    /// The link that the batch sends to.
    pub fn link(&self) -> LinkId {
        self.link
    }

    /// Empties the batch and directs it to another link of the same endpoint.
    pub fn reset(&mut self, link: LinkId) {
        self.link = link;
        self.last.len = 0;
        self.spare.extend(self.waiting.drain(..).map(|message| MessageBuffer { len: 0, ..message }));
    }

    /// Whether no record is queued.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of queued records.
    pub fn len(&self) -> usize {
        self.waiting.iter().map(|message| message.len).sum::<usize>() + self.last.len
    }

    /// Longest payload of a further record, in bytes, in the message that is being filled.
    pub fn room(&self) -> usize {
        let rest = self.last.buffer.len().saturating_sub(self.last.len) / ALIGNMENT * ALIGNMENT;
        rest.saturating_sub(RECORD_HEADER_LEN)
    }

    /// Copies a record into the message that is being filled: the fields of `record` (its own `payload` is
    /// ignored) and the payload in `parts`. `record.age` is the segment's age at `now`; it grows while the
    /// record is queued.
    pub fn push(&mut self, now: Instant, record: &Record<'_>, parts: &[&[u8]]) -> Result<(), Full> {
        let last = &mut self.last;
        last.grow_older(now);
        let room = last.buffer.get_mut(last.len..).ok_or(Full)?;
        last.len += record.emit_parts(parts, room).ok_or(Full)?;
        Ok(())
    }

    /// As [`push`](Self::push), but flushes the batch if it lacks room, and posts a long record directly from
    /// the caller's memory, together with the records queued before it. `Full` means that there is not enough
    /// credit, and no room for one more message that waits for it; the record was not queued.
    pub fn send(
        &mut self,
        now: Instant,
        endpoint: &mut Endpoint,
        record: &Record<'_>,
        parts: &[&[u8]],
    ) -> Result<(), Full> {
        let payload_len = payload_len(parts);
        let total = padded_len(RECORD_HEADER_LEN.saturating_add(payload_len));
        if !self.last.has_room_for(total)
            && self.flush(now, endpoint).is_err()
            && !self.last.has_room_for(total)
        {
            self.set_aside()?;
        }
        let direct = total >= DIRECT_LEN_MIN && self.waiting.is_empty();
        if !direct || self.send_direct(now, endpoint, record, parts, payload_len).is_err() {
            return self.push(now, record, parts);
        }
        Ok(())
    }

    /// Sends the queued records, as one message unless some had to wait for credit. Returns `Ok` if nothing
    /// is queued; on an error all records that are not sent are kept.
    pub fn flush(&mut self, now: Instant, endpoint: &mut Endpoint) -> Result<(), SendError> {
        while let Some(first) = self.waiting.front_mut() {
            first.send(now, endpoint, self.link)?;
            self.spare.extend(self.waiting.pop_front());
        }
        self.last.send(now, endpoint, self.link)
    }

    /// Puts the message that is being filled behind those that wait for credit.
    fn set_aside(&mut self) -> Result<(), Full> {
        if self.waiting.len() + 1 >= self.messages_max {
            return Err(Full);
        }
        let empty = self.spare.pop().unwrap_or_else(|| MessageBuffer::new(self.last.buffer.len()));
        self.waiting.push_back(core::mem::replace(&mut self.last, empty));
        Ok(())
    }

    fn send_direct(
        &mut self,
        now: Instant,
        endpoint: &mut Endpoint,
        record: &Record<'_>,
        parts: &[&[u8]],
        payload_len: usize,
    ) -> Result<(), SendError> {
        const PADDING: [u8; ALIGNMENT] = [0; ALIGNMENT];
        self.last.grow_older(now);
        let header = record.emit_header(u32::try_from(payload_len).map_err(|_| SendError::TooLong)?);
        let unpadded = RECORD_HEADER_LEN + payload_len;
        let padding = PADDING.get(..padded_len(unpadded) - unpadded).unwrap_or(&[]);
        let mut gather: [&[u8]; GATHER_MAX] = [&[]; GATHER_MAX];
        let count = parts.len() + 3;
        let slots = gather.get_mut(..count).ok_or(SendError::TooLong)?;
        let all = [self.last.bytes(), &header].into_iter().chain(parts.iter().copied()).chain([padding]);
        for (slot, part) in slots.iter_mut().zip(all) {
            *slot = part;
        }
        endpoint.send(now, self.link, MessageKind::Tunnel, 0, slots)?;
        self.last.len = 0;
        Ok(())
    }
}

fn payload_len(parts: &[&[u8]]) -> usize {
    parts.iter().map(|part| part.len()).sum()
}

// A whole segment with its headers fits into one message.
const _: () = assert!(
    csp_types::limits::SEGMENT_LEN_MAX + 120 + RECORD_HEADER_LEN + link::HEADER_LEN
        <= csp_types::limits::TUNNEL_MESSAGE_LEN_MAX
);
