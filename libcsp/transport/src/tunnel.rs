//! Tunnel records coalesced into link messages.

use csp_types::Instant;
use csp_wire::link;
use csp_wire::tunnel::{self, ALIGNMENT, RECORD_HEADER_LEN, Record, padded_len};

use crate::endpoint::{Endpoint, GATHER_MAX};
use crate::event::{LinkId, MessageKind, SendError};

/// Records of at least so many bytes are posted from where they lie; smaller ones are copied together first.
const DIRECT_LEN_MIN: usize = 2048;

/// The batch has no room and could not be sent, or the record is longer than any message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the tunnel batch is full")]
pub struct Full;

/// Records on their way to one link: several travel in one VI message.
///
/// The buffer is allocated once. Nothing leaves by itself: [`flush`](Self::flush) at the end of each turn of the
/// worker's loop.
#[derive(Debug)]
pub struct TunnelBatch {
    link: LinkId,
    buffer: Box<[u8]>,
    len: usize,
    /// When the ages in the buffer were right.
    aged: Instant,
}

impl TunnelBatch {
    /// A batch for `link` of `endpoint`.
    pub fn new(endpoint: &Endpoint, link: LinkId) -> Self {
        let buffer = vec![0; endpoint.message_len()].into_boxed_slice();
        TunnelBatch { link, buffer, len: 0, aged: Instant::ZERO }
    }

    /// Where it sends to.
    pub fn link(&self) -> LinkId {
        self.link
    }

    /// Points an old batch, which is emptied, to a new link of the same endpoint.
    pub fn reset(&mut self, link: LinkId) {
        self.link = link;
        self.len = 0;
    }

    /// Whether nothing waits to be flushed.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of records that wait to be flushed.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Longest payload that still fits.
    pub fn room(&self) -> usize {
        let rest = self.buffer.len().saturating_sub(self.len) / ALIGNMENT * ALIGNMENT;
        rest.saturating_sub(RECORD_HEADER_LEN)
    }

    /// Copies a record into the batch: the fields of `record` (its own `payload` is not looked at) and the payload
    /// that lies in `parts`. `record.age` is the segment's at `now`; it grows while the record waits here.
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

    /// As [`push`](Self::push), but makes room by flushing where needed, and posts a long record from where it lies,
    /// together with what waits before it. `Full` means that there is no credit for as much: nothing was taken.
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

    /// Sends what waits as one message. `Ok` when nothing waits; on an error all is kept.
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

    /// Brings the ages of what waits up to `now`. Records that leave in the turn in which they came need no walk.
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

// A whole segment with its headers fits one message.
const _: () = assert!(
    csp_types::limits::SEGMENT_LEN_MAX + 120 + RECORD_HEADER_LEN + link::HEADER_LEN
        <= csp_types::limits::TUNNEL_MESSAGE_LEN_MAX
);
