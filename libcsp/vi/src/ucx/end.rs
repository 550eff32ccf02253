//! One end of a VI: its buffers, its flow control and its state.

use std::collections::VecDeque;

use super::core::Core;
use super::frame::{HEADER_LEN, Header, SETUP_LEN_MAX};
use super::sys::{Api, Endpoint, Iov};
use super::worker::Body;
use crate::regions::{Place, Regions};
use crate::{Memory, PIECES_MAX, Piece, ViConfig, ViError};

/// Largest memory of the buffers of one end, in bytes.
const END_MEMORY_LEN_MAX: usize = 1 << 28;

/// Send buffers reserved for the provider's own messages.
const CONTROL_BUFFERS: usize = 4;

const POSTED: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// The request is sent and not answered.
    Connecting,
    /// Connected; `Established` has not been polled.
    Opening,
    /// In use.
    Open,
    /// The caller has polled the end of the VI.
    Closed,
    /// The caller has released it; the peer has not acknowledged the last message.
    Lingering,
    /// Closed; waits only for the library to return the send buffers.
    Dead,
}

/// Identifies a send buffer in the library's completion callback.
#[derive(Clone, Copy)]
pub(super) struct Context {
    pub core: *mut Core,
    pub api: &'static Api,
    pub vi: u64,
    pub buffer: u16,
}

/// A received message.
#[derive(Clone, Copy)]
pub(super) struct Arrived {
    pub buffer: u32,
    pub len: u32,
    pub immediate: u32,
}

pub(super) struct End {
    pub stage: Stage,
    /// Null once closed.
    pub endpoint: *mut Endpoint,
    pub config: ViConfig,
    pub key: u32,
    pub peer_vi: u32,
    pub peer_key: u32,
    peer_depth: u32,
    /// Data messages sent, and receives that the peer has posted in total; both modulo 2³².
    sent: u32,
    peer_posted: u32,
    /// Receives posted here in total, receives advertised to the peer in total, and messages received; all
    /// modulo 2³².
    posted: u32,
    advertised: u32,
    received: u32,
    send_memory: Box<[u8]>,
    /// Free buffers for data, the least recently used first: the others still hold the messages sent from
    /// them.
    send_free: VecDeque<u16>,
    /// Free buffers for the provider's own messages.
    control_free: Vec<u16>,
    pub send_total: usize,
    /// The data message in each send buffer, if the buffer holds all of it.
    sent_data: Box<[Option<Sent>]>,
    contexts: Box<[Option<Context>]>,
    /// The caller's id of the signalled send in each send buffer.
    signals: Box<[Option<u64>]>,
    /// The registered memory that the send in each send buffer uses.
    lent: Box<[Lent]>,
    receive_memory: Buffers,
    /// Posted buffers, in the order posted.
    receive_free: VecDeque<u16>,
    held: Box<[u32]>,
    /// Messages that arrived before `Established` was polled.
    pub early: VecDeque<Arrived>,
    /// Messages received and not polled.
    pub unpolled: u32,
    /// `Some` once the end of the VI was detected: whether it is clean.
    pub ended: Option<bool>,
    /// The end of the VI is in the event queue, or the caller has released the VI.
    pub end_reported: bool,
}

/// A data message that was sent.
#[derive(Clone, Copy)]
struct Sent {
    /// Its number, modulo 2³².
    number: u32,
    immediate: u32,
    len: u32,
}

/// The registered memory that a send uses until the library has completed it.
struct Lent {
    parts: [Iov; PIECES_MAX + 1],
    keep: [Option<Memory>; PIECES_MAX],
}

impl Default for Lent {
    fn default() -> Self {
        Lent {
            parts: [Iov { buffer: std::ptr::null(), length: 0 }; PIECES_MAX + 1],
            keep: Default::default(),
        }
    }
}

/// The memory for received messages.
enum Buffers {
    /// Buffers of `message_len` bytes each, one after another.
    Own(Box<[u8]>),
    /// In the caller's memory.
    Lent(Box<[Place]>),
}

/// Returns the length of a send buffer in bytes: a header, and the longest message or set-up.
fn send_stride(config: &ViConfig) -> usize {
    HEADER_LEN + SETUP_LEN_MAX.max(config.message_len as usize)
}

impl End {
    pub(super) fn new(
        stage: Stage,
        endpoint: *mut Endpoint,
        config: ViConfig,
        key: u32,
    ) -> Result<Self, ViError> {
        let message_len = config.message_len as usize;
        let send_total = config.send_depth as usize + CONTROL_BUFFERS;
        let send_len = send_total * send_stride(&config);
        let receive_len = config.receive_depth as usize * message_len;
        if send_len + receive_len > END_MEMORY_LEN_MAX {
            return Err(ViError::Exhausted("VI memory: lower the queue depths or message_len"));
        }
        Ok(End {
            stage,
            endpoint,
            config,
            key,
            peer_vi: 0,
            peer_key: 0,
            peer_depth: 0,
            sent: 0,
            peer_posted: 0,
            posted: config.receive_depth,
            advertised: config.receive_depth,
            received: 0,
            send_memory: vec![0; send_len].into(),
            send_free: (0..config.send_depth as u16).collect(),
            control_free: (config.send_depth as u16..send_total as u16).collect(),
            send_total,
            sent_data: vec![None; send_total].into(),
            contexts: vec![None; send_total].into(),
            signals: vec![None; send_total].into(),
            lent: (0..send_total).map(|_| Lent::default()).collect(),
            receive_memory: Buffers::Own(vec![0; receive_len].into()),
            receive_free: (0..config.receive_depth as u16).collect(),
            held: vec![POSTED; config.receive_depth as usize].into(),
            early: VecDeque::new(),
            unpolled: 0,
            ended: None,
            end_reported: false,
        })
    }

    /// Makes the VI receive into these buffers. Their number equals the receive depth, and each is long
    /// enough (checked by the caller).
    pub(super) fn receive_into(&mut self, places: Box<[Place]>) {
        self.receive_memory = Buffers::Lent(places);
    }

    /// Stores the peer's part of the set-up.
    pub(super) fn set_peer(&mut self, vi: u32, key: u32, config: &ViConfig) {
        (self.peer_vi, self.peer_key) = (vi, key);
        (self.peer_depth, self.peer_posted) = (config.receive_depth, config.receive_depth);
    }

    /// Returns the number of receives that the peer has posted and this end has not used.
    pub(super) fn window(&self) -> u32 {
        self.peer_posted.wrapping_sub(self.sent)
    }

    /// Updates the peer's count of posted receives. Returns `false` if the count is impossible.
    pub(super) fn update_window(&mut self, peer_posted: u32) -> bool {
        let window = peer_posted.wrapping_sub(self.sent);
        let plausible = window <= self.peer_depth;
        // The library may reorder messages, so a count below the current one is ignored.
        if plausible && window > self.window() {
            self.peer_posted = peer_posted;
        }
        plausible
    }

    /// Returns whether posted receives should be advertised now, without waiting for a message that carries
    /// the count.
    pub(super) fn is_credit_due(&self) -> bool {
        let unadvertised = self.posted.wrapping_sub(self.advertised);
        let window = self.advertised.wrapping_sub(self.received);
        unadvertised > 0 && (window == 0 || unadvertised * 2 >= self.config.receive_depth)
    }

    /// Fills a send buffer with a message to the peer. `None` if none is free.
    pub(super) fn fill(
        &mut self,
        mut header: Header,
        gather: &[&[u8]],
        signal: Option<u64>,
        control: bool,
    ) -> Option<u16> {
        let buffer = if control { self.control_free.pop()? } else { self.send_free.pop_front()? };
        let len = gather.iter().map(|part| part.len()).sum::<usize>() as u32;
        let sent = Sent { number: self.sent, immediate: header.immediate, len };
        if let Some(place) = self.sent_data.get_mut(usize::from(buffer)) {
            *place = (!control).then_some(sent);
        }
        (header.vi, header.key, header.posted) = (self.peer_vi, self.peer_key, self.posted);
        self.advertised = self.posted;
        let (start, mut rest) = self.send_slice(buffer).split_first_chunk_mut::<HEADER_LEN>()?;
        header.write(start);
        for part in gather {
            let (place, after) = rest.split_at_mut_checked(part.len())?;
            place.copy_from_slice(part);
            rest = after;
        }
        if let Some(place) = self.signals.get_mut(usize::from(buffer)) {
            *place = signal;
        }
        Some(buffer)
    }

    /// Counts a data message against the window.
    pub(super) fn count_sent(&mut self) {
        self.sent = self.sent.wrapping_add(1);
    }

    fn send_slice(&mut self, buffer: u16) -> &mut [u8] {
        let stride = send_stride(&self.config);
        let start = usize::from(buffer) * stride;
        self.send_memory.get_mut(start..start + stride).unwrap_or_default()
    }

    /// Returns the address of a send buffer, which starts with the header.
    pub(super) fn send_pointer(&mut self, buffer: u16) -> *const u8 {
        self.send_slice(buffer).as_ptr()
    }

    /// Returns the body of a send buffer's message: `len` bytes in the buffer, then the pieces, which stay
    /// mapped until [`release`](End::release).
    pub(super) fn body(&mut self, buffer: u16, len: usize, regions: &Regions, pieces: &[Piece]) -> Body {
        let start = self.send_pointer(buffer).wrapping_add(HEADER_LEN);
        let Some(lent) = self.lent.get_mut(usize::from(buffer)).filter(|_| !pieces.is_empty()) else {
            return Body::Bytes(start, len);
        };
        if let Some(sent) = self.sent_data.get_mut(usize::from(buffer)) {
            *sent = None;
        }
        let mut count = 0;
        if len > 0 {
            lent.parts[0] = Iov { buffer: start.cast(), length: len };
            count = 1;
        }
        for (keep, piece) in lent.keep.iter_mut().zip(pieces) {
            *keep = regions.find(piece).ok().cloned();
            let at = keep.as_ref().and_then(|memory| memory.at(piece.offset, piece.len));
            let Some(at) = at.filter(|_| piece.len > 0) else { continue };
            lent.parts[count] = Iov { buffer: at.cast_const().cast(), length: piece.len };
            count += 1;
        }
        match (count, &lent.parts[0]) {
            (0, _) => Body::Bytes(start, 0),
            (1, part) => Body::Bytes(part.buffer.cast(), part.length),
            _ => Body::Parts(lent.parts.as_ptr(), count),
        }
    }

    /// Stores the context of a send buffer and returns its address, which stays valid as long as the end.
    pub(super) fn context(&mut self, context: Context) -> *mut Option<Context> {
        match self.contexts.get_mut(usize::from(context.buffer)) {
            Some(place) => {
                *place = Some(context);
                place
            }
            None => std::ptr::null_mut(),
        }
    }

    /// Releases a send buffer that the library has completed. Returns the id of a signalled send.
    pub(super) fn release(&mut self, buffer: u16) -> Option<u64> {
        if u32::from(buffer) < self.config.send_depth {
            self.send_free.push_back(buffer);
        } else {
            self.control_free.push(buffer);
        }
        if let Some(lent) = self.lent.get_mut(usize::from(buffer)) {
            lent.keep = Default::default();
        }
        self.signals.get_mut(usize::from(buffer))?.take()
    }

    /// Returns whether the library still uses a send buffer.
    pub(super) fn is_sending(&self) -> bool {
        self.send_free.len() + self.control_free.len() < self.send_total
    }

    /// Releases a send buffer whose message was not sent.
    pub(super) fn withdraw(&mut self, buffer: u16) {
        if let Some(sent) = self.sent_data.get_mut(usize::from(buffer)) {
            *sent = None;
        }
        self.release(buffer);
    }

    /// Calls `visit` for the data messages for which the peer has not posted a receive again, oldest first,
    /// as far as send buffers still hold them. The library's completions do not help: it completes a send
    /// when the kernel has the data, not when the peer has.
    pub(super) fn unconfirmed(&self, visit: &mut dyn FnMut(u32, &[u8])) {
        let open = self.peer_depth.saturating_sub(self.window());
        let age = |sent: &Sent| self.sent.wrapping_sub(sent.number);
        let sent_data = self.sent_data.iter().enumerate();
        let sent = sent_data.filter_map(|(buffer, sent)| Some((buffer, (*sent)?)));
        let mut sent: Vec<_> = sent.filter(|(_, sent)| (1..=open).contains(&age(sent))).collect();
        sent.sort_by_key(|(_, sent)| std::cmp::Reverse(age(sent)));
        for (buffer, Sent { immediate, len, .. }) in sent {
            let start = buffer * send_stride(&self.config) + HEADER_LEN;
            if let Some(bytes) = self.send_memory.get(start..start + len as usize) {
                visit(immediate, bytes);
            }
        }
    }

    /// Copies a received message into a buffer. `None` if the peer had no posted receive for it or it is too
    /// long.
    pub(super) fn store(&mut self, data: &[u8], immediate: u32) -> Option<Arrived> {
        let message_len = self.config.message_len as usize;
        if data.len() > message_len {
            return None;
        }
        let buffer = self.receive_free.pop_front()?;
        match &mut self.receive_memory {
            Buffers::Own(bytes) => {
                let start = usize::from(buffer) * message_len;
                bytes.get_mut(start..start + data.len())?.copy_from_slice(data);
            }
            Buffers::Lent(places) => {
                let place = places.get(usize::from(buffer))?;
                place.memory.write(place.offset, data);
            }
        }
        *self.held.get_mut(usize::from(buffer))? = data.len() as u32;
        self.received = self.received.wrapping_add(1);
        self.unpolled += 1;
        Some(Arrived { buffer: u32::from(buffer), len: data.len() as u32, immediate })
    }

    /// Posts a held buffer again. `None` if the buffer is not held.
    pub(super) fn post(&mut self, buffer: u32) -> Option<()> {
        let held = self.held.get_mut(buffer as usize).filter(|held| **held != POSTED)?;
        *held = POSTED;
        self.receive_free.push_back(buffer as u16);
        self.posted = self.posted.wrapping_add(1);
        Some(())
    }

    /// Copies from a held buffer. `None` if the buffer is not held.
    pub(super) fn read(&self, buffer: u32, offset: usize, into: &mut [u8]) -> Option<usize> {
        let len = self.held.get(buffer as usize).copied().filter(|&len| len != POSTED)? as usize;
        let offset = offset.min(len);
        let count = (len - offset).min(into.len());
        match &self.receive_memory {
            Buffers::Own(bytes) => {
                let start = buffer as usize * self.config.message_len as usize + offset;
                into[..count].copy_from_slice(bytes.get(start..start + count)?);
                Some(count)
            }
            Buffers::Lent(places) => {
                let place = places.get(buffer as usize)?;
                Some(place.memory.read(place.offset + offset, &mut into[..count]))
            }
        }
    }
}
