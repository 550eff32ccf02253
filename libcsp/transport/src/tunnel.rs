//! Tunnel records coalesced into link messages.

use csp_types::Instant;
use csp_wire::link;
use csp_wire::tunnel::{self, ALIGNMENT, RECORD_HEADER_LEN, Record, padded_len};

use crate::endpoint::{Endpoint, GATHER_MAX};
use crate::event::{LinkId, MessageKind, SendError};

/// Shortest record, in bytes, that is posted directly from the caller's memory. Shorter records are copied into the
/// batch.
const DIRECT_LEN_MIN: usize = 2048;

/// The batch has no room and could not be sent, or the record exceeds a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the tunnel batch is full")]
pub struct Full;

/// Records queued for one link: several are sent in one VI message.
///
/// The buffer is allocated once. Records are sent only by [`flush`](Self::flush), which the worker calls at the end of
/// each turn of its loop, or by [`send`](Self::send).
#[derive(Debug)]
pub struct TunnelBatch {
    link: LinkId,
    buffer: Box<[u8]>,
    len: usize,
    /// The time at which the ages in the buffer are correct.
    aged: Instant,
}

impl TunnelBatch {
    /// A batch for `link` of `endpoint`.
    pub fn new(endpoint: &Endpoint, link: LinkId) -> Self {
        let buffer = vec![0; endpoint.message_len()].into_boxed_slice();
        TunnelBatch { link, buffer, len: 0, aged: Instant::ZERO }
    }

    /// The link that the batch sends to.
    pub fn link(&self) -> LinkId {
        self.link
    }

    /// Empties the batch and directs it to another link of the same endpoint.
    pub fn reset(&mut self, link: LinkId) {
        self.link = link;
        self.len = 0;
    }

    /// Whether no record is queued.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of queued records.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Longest payload of a further record, in bytes.
    pub fn room(&self) -> usize {
        let rest = self.buffer.len().saturating_sub(self.len) / ALIGNMENT * ALIGNMENT;
        rest.saturating_sub(RECORD_HEADER_LEN)
    }

    /// Copies a record into the batch: the fields of `record` (its own `payload` is ignored) and the payload in
    /// `parts`. `record.age` is the segment's age at `now`; it grows while the record is queued.
    pub fn push(&mut self, now: Instant, record: &Record<'_>, parts: &[&[u8]]) -> Result<(), Full> {
        self.grow_older(now);
        let payload_len = payload_len(parts);
        let header = record.emit_header(u32::try_from(payload_len).map_err(|_| Full)?);
        let start = self.len;
        let end = start.saturating_add(padded_len(RECORD_HEADER_LEN.saturating_add(payload_len)));
        let mut room = self.buffer.get_mut(start..end).ok_or(Full)?;
        for part in core::iter::once(&header[..]).chain(parts.iter().copied()) {
            let (here, rest) = core::mem::take(&mut room).split_at_mut_checked(part.len()).ok_or(Full)?;
            here.copy_from_slice(part);
            room = rest;
        }
        room.fill(0);
        self.len = end;
        Ok(())
    }

    /// As [`push`](Self::push), but flushes the batch if it lacks room, and posts a long record directly from the
    /// caller's memory, together with the records queued before it. `Full` means that there is not enough credit; the
    /// record was not queued.
    pub fn send(
        &mut self,
        now: Instant,
        endpoint: &mut Endpoint,
        record: &Record<'_>,
        parts: &[&[u8]],
    ) -> Result<(), Full> {
        let payload_len = payload_len(parts);
        let total = padded_len(RECORD_HEADER_LEN.saturating_add(payload_len));
        if self.len.saturating_add(total) > self.buffer.len() && self.flush(now, endpoint).is_err() {
            return Err(Full);
        }
        if total < DIRECT_LEN_MIN || self.send_direct(now, endpoint, record, parts, payload_len).is_err() {
            return self.push(now, record, parts);
        }
        Ok(())
    }

    /// Sends the queued records as one message. Returns `Ok` if nothing is queued; on an error all records are kept.
    pub fn flush(&mut self, now: Instant, endpoint: &mut Endpoint) -> Result<(), SendError> {
        if self.len == 0 {
            return Ok(());
        }
        self.grow_older(now);
        let body = self.buffer.get(..self.len).unwrap_or(&[]);
        endpoint.send(now, self.link, MessageKind::Tunnel, 0, &[body])?;
        self.len = 0;
        Ok(())
    }

    /// Updates the ages of queued records to `now`. Records that are sent in the turn in which they were queued need no
    /// update.
    fn grow_older(&mut self, now: Instant) {
        let by = now.saturating_since(self.aged);
        self.aged = now;
        if self.len > 0 && !by.is_zero() {
            tunnel::grow_older(self.buffer.get_mut(..self.len).unwrap_or_default(), by);
        }
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
        self.grow_older(now);
        let header = record.emit_header(u32::try_from(payload_len).map_err(|_| SendError::TooLong)?);
        let unpadded = RECORD_HEADER_LEN + payload_len;
        let padding = PADDING.get(..padded_len(unpadded) - unpadded).unwrap_or(&[]);
        let waiting = self.buffer.get(..self.len).unwrap_or(&[]);
        let mut gather: [&[u8]; GATHER_MAX] = [&[]; GATHER_MAX];
        let count = parts.len() + 3;
        let slots = gather.get_mut(..count).ok_or(SendError::TooLong)?;
        let all = [waiting, &header].into_iter().chain(parts.iter().copied()).chain([padding]);
        for (slot, part) in slots.iter_mut().zip(all) {
            *slot = part;
        }
        endpoint.send(now, self.link, MessageKind::Tunnel, 0, slots)?;
        self.len = 0;
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
