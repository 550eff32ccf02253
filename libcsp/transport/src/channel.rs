//! A channel: the pool of links between one process and one proxy worker, and the flow messages on their way over it.
//!
//! Order: each flow stays on one link (the owner keeps the [`LinkId`] that [`Channel::pick`] gave, or on which OPEN
//! came), and each link's messages leave first in, first out. Nothing overtakes within a flow.
//!
//! Loss: a link whose VI breaks while its peer lives goes on over another VI, and its flows notice nothing but missing
//! credit. When a link of the pool dies, neither side can know what of the flows on it arrived. These flows are over
//! (RESET to both their ends); flows on the other links live on, new flows use what is left of the pool, and the
//! process side replaces the link.

use csp_types::Instant;
use csp_types::limits::VI_POOL_MAX;
use csp_wire::channel::{
    ALIGNMENT, MESSAGE_HEADER_LEN, MessageHeader, MessageKind as FlowMessage, padded_len,
};

use crate::endpoint::{Endpoint, GATHER_MAX};
use crate::event::{LinkId, MessageKind, SendError};

/// DATA of at least so many bytes is posted from where it lies; less is copied together with other messages first.
const DIRECT_LEN_MIN: usize = 2048;

/// What a [`Channel`] is made with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChannelConfig {
    /// Most links in the pool, 1 to [`VI_POOL_MAX`].
    pub links_max: usize,
    /// Bytes of control messages that each link's queue holds while there is no descriptor credit. Flows that end all
    /// at once need 32 bytes each.
    pub control_capacity: usize,
}

impl Default for ChannelConfig {
    /// A full pool, 256 KiB a link.
    fn default() -> Self {
        ChannelConfig { links_max: VI_POOL_MAX, control_capacity: 256 * 1024 }
    }
}

/// Why a flow message was not taken. Nothing of it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ChannelError {
    /// DATA: no descriptor credit. Try again when [`Channel::writable`].
    #[error("no descriptor credit")]
    Blocked,
    /// The link is not in the pool (any more): the flow is lost.
    #[error("the flow's link is gone")]
    Lost,
    /// A control message found the queue full: the peer reads nothing. Close the link.
    #[error("the queue of control messages is full")]
    Full,
    /// Longer than one message can be.
    #[error("too long for one message")]
    TooLong,
    /// The header is none that the format allows, such as DATA without label: our own mistake.
    #[error("the message is ill-formed")]
    Invalid,
}

/// Messages of one link that wait for a descriptor: whole messages, back to back, oldest first.
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
    /// Buffers of links that left, for those that come.
    spare: Vec<Box<[u8]>>,
    links_max: usize,
    queue_len: usize,
    body_max: usize,
}

impl Channel {
    /// An empty pool over links of `endpoint`.
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

    /// Adds a link that came up. `false`: it is there already, or the pool is full.
    pub fn add_link(&mut self, link: LinkId) -> bool {
        if self.queues.len() >= self.links_max || self.position(link).is_some() {
            return false;
        }
        let buffer = self.spare.pop().unwrap_or_else(|| vec![0; self.queue_len].into_boxed_slice());
        self.queues.push(Queue { link, buffer, head: 0, tail: 0 });
        true
    }

    /// Removes a link that went down, with what waited for it. Flows that were on it are lost. `false`: not here.
    pub fn remove_link(&mut self, link: LinkId) -> bool {
        let Some(at) = self.position(link) else { return false };
        self.spare.push(self.queues.swap_remove(at).buffer);
        true
    }

    /// The links of the pool, in no particular order.
    pub fn links(&self) -> impl Iterator<Item = LinkId> + '_ {
        self.queues.iter().map(|queue| queue.link)
    }

    /// Whether `link` belongs to this pool: a message that came over another has no business with its flows.
    pub fn contains(&self, link: LinkId) -> bool {
        self.position(link).is_some()
    }

    /// Whether the pool has no link.
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// The link for a new flow: any number of it (its label, its request id) spreads flows evenly. Keep the link with
    /// the flow; all its messages, both ways, use this one.
    pub fn pick(&self, number: u32) -> Option<LinkId> {
        let count = u32::try_from(self.queues.len()).ok().filter(|&n| n > 0)?;
        self.queues.get((number % count) as usize).map(|queue| queue.link)
    }

    /// Whether DATA would be taken on `link` now, if it is no longer than [`data_len_max`](Self::data_len_max).
    pub fn writable(&self, endpoint: &Endpoint, link: LinkId) -> bool {
        let Some(queue) = self.position(link).and_then(|at| self.queues.get(at)) else { return false };
        // What waits takes one message (or more): DATA may follow it when a credit is left for DATA's own.
        let messages = (queue.len() / self.body_max.max(1)) as u32 + u32::from(queue.len() > 0);
        endpoint.credits(link) > messages
    }

    /// Longest payload of one DATA message, in bytes.
    pub fn data_len_max(&self) -> usize {
        self.body_max.saturating_sub(MESSAGE_HEADER_LEN)
    }

    /// Sends a flow message on its flow's link. Small messages wait for [`flush`](Self::flush), and travel together.
    /// The payload lies in `parts` (at most [`GATHER_MAX`] - 3); its length replaces that in `header`.
    ///
    /// DATA is [refused](ChannelError::Blocked) while there is no descriptor credit. Other messages are queued and
    /// leave in order as credit returns.
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

    /// Sends what waits, as far as there is credit. Returns whether nothing waits any more. A link that is down keeps
    /// its queue until [`remove_link`](Self::remove_link).
    pub fn flush(&mut self, now: Instant, endpoint: &mut Endpoint) -> bool {
        let mut all = true;
        for queue in &mut self.queues {
            // A link that is down tells so by its event; here it merely does not drain.
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

    /// Posts what waits and the message after it, the payload from where it lies. `false`: not possible now.
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

/// How many of the waiting bytes, cut between messages, fill one body, and the label to tell with them.
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

/// `label` if all waiting messages are of this flow, else 0.
fn shared_label(waiting: &[u8], label: u32) -> u32 {
    let (_, shared) = first_body(waiting, waiting.len());
    if shared == label { label } else { 0 }
}

/// Length with padding, and label (0 where it has none), of the message at the start of our own queue.
fn measure(bytes: &[u8]) -> Option<(usize, u32)> {
    let header = MessageHeader::parse(bytes).ok()?;
    let id = if header.kind.is_of_flow() { header.id } else { 0 };
    Some((padded_len(MESSAGE_HEADER_LEN + header.payload_len as usize), id))
}
