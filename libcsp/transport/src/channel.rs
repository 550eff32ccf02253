//! A channel: the pool of links between one process and one proxy worker, and the flow messages queued for
//! it.
//!
//! Order: each flow stays on one link (the owner keeps the [`LinkId`] that [`Channel::pick`] returned, or on
//! which OPEN arrived), and the messages of a link are sent first in, first out. No message overtakes another
//! of its flow.
//!
//! Loss: a link whose VI breaks while its peer lives resumes over another VI; its flows only lack credit
//! meanwhile. When a link of the pool is lost, neither side knows which messages of its flows arrived. These
//! flows end (both their ends receive RESET). Flows on other links continue, new flows use the remaining
//! links, and the process side replaces the lost link.

use csp_types::Instant;
use csp_types::limits::VI_POOL_MAX;
use csp_wire::channel::{
    ALIGNMENT, MESSAGE_HEADER_LEN, MessageHeader, MessageKind as FlowMessage, padded_len,
};

use crate::endpoint::{Endpoint, GATHER_MAX};
use crate::event::{LinkId, MessageKind, SendError};

/// Shortest DATA message, in bytes, that is posted directly from the caller's memory. Shorter messages are
/// copied into the queue and sent together.
const DIRECT_LEN_MIN: usize = 2048;

/// Configuration of a [`Channel`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChannelConfig {
    /// Largest number of links in the pool, 1 to [`VI_POOL_MAX`].
    pub links_max: usize,
    /// Capacity, in bytes, of the queue that holds a link's control messages while there is no descriptor
    /// credit. A flow that ends takes 32 bytes of it.
    pub control_capacity: usize,
}

impl Default for ChannelConfig {
    /// A full pool, 256 KiB a link.
    fn default() -> Self {
        ChannelConfig { links_max: VI_POOL_MAX, control_capacity: 256 * 1024 }
    }
}

/// Why a flow message was not queued or sent. No part of it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ChannelError {
    /// DATA without descriptor credit. Retry when [`Channel::writable`] returns `true`.
    #[error("no descriptor credit")]
    Blocked,
    /// The link is not, or no longer, in the pool: the flow is lost.
    #[error("the flow's link is gone")]
    Lost,
    /// The queue of control messages is full, since the peer does not read. Close the link.
    #[error("the queue of control messages is full")]
    Full,
    /// The message exceeds the link's message length.
    #[error("too long for one message")]
    TooLong,
    /// The header violates the format, for example DATA without a label. This is an error of the caller.
    #[error("the message is ill-formed")]
    Invalid,
}

/// Messages of one link that wait for descriptor credit: whole messages, contiguous, oldest first.
#[derive(Debug)]
struct Queue {
    link: LinkId,
    buffer: Box<[u8]>,
    head: usize,
    tail: usize,
}

/// The pool of links between a process and a proxy worker.
#[derive(Debug)]
pub struct Channel {
    queues: Vec<Queue>,
    /// Buffers of removed links, reused for links added later.
    spare: Vec<Box<[u8]>>,
    links_max: usize,
    queue_len: usize,
    body_max: usize,
}

impl Channel {
    /// Creates an empty pool for links of `endpoint`.
    pub fn new(endpoint: &Endpoint, config: ChannelConfig) -> Self {
        let body_max = endpoint.message_len() / ALIGNMENT * ALIGNMENT;
        let links_max = config.links_max.clamp(1, VI_POOL_MAX);
        Channel {
            queues: Vec::with_capacity(links_max),
            spare: Vec::with_capacity(links_max),
            links_max,
            queue_len: config.control_capacity.max(body_max) / ALIGNMENT * ALIGNMENT,
            body_max,
        }
    }

    /// Adds a link that is up. Returns `false` if it is in the pool already or the pool is full.
    pub fn add_link(&mut self, link: LinkId) -> bool {
        if self.queues.len() >= self.links_max || self.position(link).is_some() {
            return false;
        }
        let buffer = self.spare.pop().unwrap_or_else(|| vec![0; self.queue_len].into_boxed_slice());
        self.queues.push(Queue { link, buffer, head: 0, tail: 0 });
        true
    }

    /// Removes a link that went down, together with its queued messages. Flows on it are lost. Returns
    /// `false` if it is not in the pool.
    pub fn remove_link(&mut self, link: LinkId) -> bool {
        let Some(at) = self.position(link) else { return false };
        self.spare.push(self.queues.swap_remove(at).buffer);
        true
    }

    /// The links of the pool, in no particular order.
    pub fn links(&self) -> impl Iterator<Item = LinkId> + '_ {
        self.queues.iter().map(|queue| queue.link)
    }

    /// Whether `link` belongs to this pool. A message received on any other link must not affect this pool's
    /// flows.
    pub fn contains(&self, link: LinkId) -> bool {
        self.position(link).is_some()
    }

    /// Whether the pool has no link.
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Selects the link for a new flow. Any number of the flow (its label, its request id) spreads flows
    /// evenly. The owner keeps the link with the flow: all its messages, in both directions, use this link.
    pub fn pick(&self, number: u32) -> Option<LinkId> {
        let count = u32::try_from(self.queues.len()).ok().filter(|&n| n > 0)?;
        self.queues.get((number % count) as usize).map(|queue| queue.link)
    }

    /// Whether [`send`](Self::send) would accept DATA on `link` now, provided that it is no longer than
    /// [`data_len_max`](Self::data_len_max).
    pub fn writable(&self, endpoint: &Endpoint, link: LinkId) -> bool {
        let Some(queue) = self.position(link).and_then(|at| self.queues.get(at)) else { return false };
        // The queued messages take one link message or more; DATA may follow if a credit remains for it.
        let messages = (queue.len() / self.body_max.max(1)) as u32 + u32::from(queue.len() > 0);
        endpoint.credits(link) > messages
    }

    /// Longest payload of one DATA message, in bytes.
    pub fn data_len_max(&self) -> usize {
        self.body_max.saturating_sub(MESSAGE_HEADER_LEN)
    }

    /// Sends a flow message on its flow's link. Small messages are queued until [`flush`](Self::flush) and
    /// sent together. `parts` (at most [`GATHER_MAX`] - 3) hold the payload; their length replaces the length
    /// in `header`.
    ///
    /// Without descriptor credit DATA fails with [`ChannelError::Blocked`]; other messages are queued and
    /// sent in order as credit returns.
    pub fn send(
        &mut self,
        now: Instant,
        endpoint: &mut Endpoint,
        link: LinkId,
        header: &MessageHeader,
        parts: &[&[u8]],
    ) -> Result<(), ChannelError> {
        let at = self.position(link).ok_or(ChannelError::Lost)?;
        let body_max = self.body_max;
        let queue = self.queues.get_mut(at).ok_or(ChannelError::Lost)?;
        let payload_len: usize = parts.iter().map(|part| part.len()).sum();
        let total = padded_len(MESSAGE_HEADER_LEN.saturating_add(payload_len));
        if total > body_max {
            return Err(ChannelError::TooLong);
        }
        let payload_len = u32::try_from(payload_len).map_err(|_| ChannelError::TooLong)?;
        let header = MessageHeader { payload_len, ..*header };
        MessageHeader::parse(&header.emit()).map_err(|_| ChannelError::Invalid)?;
        if queue.len() + total > body_max {
            queue.flush(now, endpoint, body_max)?;
        }
        if header.kind == FlowMessage::Data {
            if queue.len() + total > body_max || endpoint.credits(link) == 0 {
                return Err(ChannelError::Blocked);
            }
            if total >= DIRECT_LEN_MIN && queue.send_direct(now, endpoint, &header, parts)? {
                return Ok(());
            }
        }
        queue.append(&header, total, parts)
    }

    /// Sends queued messages as far as there is credit. Returns whether the queues are empty. The queue of a
    /// link that is down remains until [`remove_link`](Self::remove_link).
    pub fn flush(&mut self, now: Instant, endpoint: &mut Endpoint) -> bool {
        let mut all = true;
        for queue in &mut self.queues {
            // The loss of a link is reported by its event; here its queue only stays as it is.
            let _ = queue.flush(now, endpoint, self.body_max);
            all &= queue.len() == 0;
        }
        all
    }

    fn position(&self, link: LinkId) -> Option<usize> {
        self.queues.iter().position(|queue| queue.link == link)
    }
}

impl Queue {
    fn len(&self) -> usize {
        self.tail - self.head
    }

    fn waiting(&self) -> &[u8] {
        self.buffer.get(self.head..self.tail).unwrap_or(&[])
    }

    fn append(&mut self, header: &MessageHeader, total: usize, parts: &[&[u8]]) -> Result<(), ChannelError> {
        if self.tail + total > self.buffer.len() {
            self.buffer.copy_within(self.head..self.tail, 0);
            self.tail -= self.head;
            self.head = 0;
        }
        let mut room = self.buffer.get_mut(self.tail..self.tail + total).ok_or(ChannelError::Full)?;
        let header = header.emit();
        for part in core::iter::once(&header[..]).chain(parts.iter().copied()) {
            let (here, rest) =
                core::mem::take(&mut room).split_at_mut_checked(part.len()).ok_or(ChannelError::TooLong)?;
            here.copy_from_slice(part);
            room = rest;
        }
        room.fill(0);
        self.tail += total;
        Ok(())
    }

    fn flush(&mut self, now: Instant, endpoint: &mut Endpoint, body_max: usize) -> Result<(), ChannelError> {
        while self.len() > 0 {
            let (len, immediate) = first_body(self.waiting(), body_max);
            if len == 0 {
                return Err(ChannelError::Invalid);
            }
            let body = self.waiting().get(..len).unwrap_or(&[]);
            match endpoint.send(now, self.link, MessageKind::Channel, immediate, &[body]) {
                Ok(()) => self.head += len,
                Err(SendError::NoCredit) => break,
                Err(SendError::Down | SendError::TooLong) => return Err(ChannelError::Lost),
            }
        }
        if self.head == self.tail {
            (self.head, self.tail) = (0, 0);
        }
        Ok(())
    }

    /// Posts the queued messages and the message after them, whose payload is not copied. Returns `false` if
    /// the parts exceed a gather list or the message length.
    fn send_direct(
        &mut self,
        now: Instant,
        endpoint: &mut Endpoint,
        header: &MessageHeader,
        parts: &[&[u8]],
    ) -> Result<bool, ChannelError> {
        const PADDING: [u8; ALIGNMENT] = [0; ALIGNMENT];
        let unpadded = MESSAGE_HEADER_LEN + header.payload_len as usize;
        let padding = PADDING.get(..padded_len(unpadded) - unpadded).unwrap_or(&[]);
        let immediate = if self.len() == 0 { header.id } else { shared_label(self.waiting(), header.id) };
        let emitted = header.emit();
        let mut gather: [&[u8]; GATHER_MAX] = [&[]; GATHER_MAX];
        let Some(slots) = gather.get_mut(..parts.len() + 3) else { return Ok(false) };
        let all = [self.waiting(), &emitted].into_iter().chain(parts.iter().copied()).chain([padding]);
        for (slot, part) in slots.iter_mut().zip(all) {
            *slot = part;
        }
        match endpoint.send(now, self.link, MessageKind::Channel, immediate, slots) {
            Ok(()) => {
                (self.head, self.tail) = (0, 0);
                Ok(true)
            }
            Err(SendError::NoCredit) => Err(ChannelError::Blocked),
            Err(SendError::TooLong) => Ok(false),
            Err(SendError::Down) => Err(ChannelError::Lost),
        }
    }
}

/// Returns how many of the queued bytes, cut between messages, fill one body, and the immediate data for that
/// body: the label that all its messages share, or 0.
fn first_body(waiting: &[u8], body_max: usize) -> (usize, u32) {
    let mut len = 0;
    let mut label = None;
    while let Some((message_len, id)) = waiting.get(len..).and_then(measure) {
        if len + message_len > body_max {
            break;
        }
        label = Some(if label.is_none_or(|known| known == id) { id } else { 0 });
        len += message_len;
    }
    (len, label.unwrap_or(0))
}

/// `label` if all queued messages belong to this flow, else 0.
fn shared_label(waiting: &[u8], label: u32) -> u32 {
    let (_, shared) = first_body(waiting, waiting.len());
    if shared == label { label } else { 0 }
}

/// Length with padding, and label (0 for a message that belongs to no flow), of the first message in `bytes`,
/// which come from this side's own queue.
fn measure(bytes: &[u8]) -> Option<(usize, u32)> {
    let header = MessageHeader::parse(bytes).ok()?;
    let id = if header.kind.is_of_flow() { header.id } else { 0 };
    Some((padded_len(MESSAGE_HEADER_LEN + header.payload_len as usize), id))
}
