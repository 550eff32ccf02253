//! Records of any format coalesced into link messages, for links of packets.

use std::collections::VecDeque;

use csp_types::Instant;
use csp_wire::packets::{Head, padded_len};

use crate::endpoint::Endpoint;
use crate::event::{LinkId, MessageKind, SendError};
use crate::tunnel::Full;

/// Packet records queued for one link. The records of one turn of the loop are sent in as few messages as
/// they fit into.
///
/// A message without descriptor credit waits, together with up to `messages_max - 1` others; a record for
/// which there is no room then is refused. Buffers are allocated when first needed, and kept.
#[derive(Debug)]
pub struct PacketBatch {
    link: LinkId,
    /// Messages that wait for credit, oldest first; the last one is being filled.
    messages: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    message_len: usize,
    messages_max: usize,
}

impl PacketBatch {
    /// A batch for `link` of `endpoint` of up to `messages_max` messages, at least 1.
    pub fn new(endpoint: &Endpoint, link: LinkId, messages_max: usize) -> Self {
        let messages_max = messages_max.max(1);
        PacketBatch {
            link,
            messages: VecDeque::with_capacity(messages_max),
            spare: Vec::with_capacity(messages_max),
            message_len: endpoint.message_len(),
            messages_max,
        }
    }

    /// The link that the batch sends to.
    pub fn link(&self) -> LinkId {
        self.link
    }

    /// Bytes of queued records.
    pub fn len(&self) -> usize {
        self.messages.iter().map(Vec::len).sum()
    }

    /// Whether no record is queued.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Whether another whole message could be queued.
    pub fn has_room(&self) -> bool {
        self.messages.len() < self.messages_max
    }

    /// Longest payload of a record, in bytes.
    pub fn payload_len_max(&self) -> usize {
        self.message_len.saturating_sub(csp_wire::packets::HEADER_LEN) / 4 * 4
    }

    /// Copies a record into the batch. If it does not fit into the current message, that message is sent, or
    /// waits for credit.
    ///
    /// # Errors
    /// The record exceeds a message, or the largest number of messages is waiting. Nothing was queued.
    pub fn push(
        &mut self,
        now: Instant,
        endpoint: &mut Endpoint,
        head: &Head,
        payload: &[u8],
    ) -> Result<(), Full> {
        if payload.len() > self.payload_len_max() {
            return Err(Full);
        }
        let header = head.emit(payload.len() as u32);
        let total = padded_len(header.len() + payload.len());
        let fits = |message: &Vec<u8>| message.len() + total <= self.message_len;
        if !self.messages.back().is_some_and(fits) {
            // Messages that wait for credit stay queued; a later call sends them.
            let _ = self.flush(now, endpoint);
            if !self.has_room() {
                return Err(Full);
            }
            let empty = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(self.message_len));
            self.messages.push_back(empty);
        }
        let Some(message) = self.messages.back_mut() else { return Err(Full) };
        let end = message.len() + total;
        message.extend_from_slice(&header);
        message.extend_from_slice(payload);
        message.resize(end, 0);
        Ok(())
    }

    /// Sends the queued records, as far as there is descriptor credit.
    ///
    /// # Errors
    /// Those of [`Endpoint::send`]; records that were not sent stay queued.
    pub fn flush(&mut self, now: Instant, endpoint: &mut Endpoint) -> Result<(), SendError> {
        while let Some(first) = self.messages.front() {
            endpoint.send(now, self.link, MessageKind::Packets, 0, &[first])?;
            if let Some(mut sent) = self.messages.pop_front() {
                sent.clear();
                self.spare.push(sent);
            }
        }
        Ok(())
    }
}
