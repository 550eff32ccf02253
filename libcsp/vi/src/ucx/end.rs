//! One end of a VI: its buffers, its windows, how far it is.

use std::collections::VecDeque;

use super::core::Core;
use super::frame::{HEADER_LEN, Header, SETUP_LEN_MAX};
use super::sys::{Api, Endpoint, Iov};
use super::worker::Body;
use crate::regions::{Place, Regions};
use crate::{Memory, PIECES_MAX, Piece, ViConfig, ViError};

/// Most memory of one end's buffers, in bytes.
const END_MEMORY_LEN_MAX: usize = 1 << 28;

/// Send buffers kept for the provider's own messages.
const CONTROL_BUFFERS: usize = 4;

const POSTED: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// The listener has not answered yet.
    Connecting,
    /// Connected; the caller has not been told.
    Opening,
    /// In use.
    Open,
    /// The caller was told of its end.
    Closed,
    /// The caller gave it back; the peer has not confirmed the last message.
    Lingering,
    /// Waits only for the library to give the send buffers back.
    Dead,
}

/// What the library hands back when it is done with a send buffer.
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
    /// Data messages sent, and receives that the peer has posted in all, both modulo 2³².
    sent: u32,
    peer_posted: u32,
    /// Receives posted here in all, how many of them the peer was told, and messages received, modulo 2³².
    posted: u32,
    told: u32,
    received: u32,
    send_memory: Box<[u8]>,
    /// Free buffers for data, the one that was used longest ago first: the others still hold what was sent from them.
    send_free: VecDeque<u16>,
    /// Free buffers for the provider's own messages.
    control_free: Vec<u16>,
    pub send_total: usize,
    /// The data message in each send buffer, if all of it is there.
    sent_from: Box<[Option<Sent>]>,
    contexts: Box<[Option<Context>]>,
    /// The caller's id of the signalled send in each send buffer.
    signals: Box<[Option<u64>]>,
    /// What the send in each send buffer has of registered memory.
    lent: Box<[Lent]>,
    receive_memory: Buffers,
    /// Posted buffers, in the order posted.
    receive_free: VecDeque<u16>,
    held: Box<[u32]>,
    /// Messages that came before the caller was told of the VI.
    pub early: VecDeque<Arrived>,
    /// Messages received and not polled.
    pub unpolled: u32,
    /// The peer's end was seen, and whether it was clean.
    pub ended: Option<bool>,
    /// It is in the event queue.
    pub told_end: bool,
}

/// A data message that was sent.
#[derive(Clone, Copy)]
struct Sent {
    /// Its number, modulo 2³².
    number: u32,
    immediate: u32,
    len: u32,
}

/// What a send has of registered memory until the library is done with it.
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

/// Where messages are received.
enum Buffers {
    /// Each `message_len` bytes long, one after another.
    Own(Box<[u8]>),
    /// In the caller's memory.
    Lent(Box<[Place]>),
}

/// Bytes of one send buffer: a header and the longest message, or a set-up.
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
            return Err(ViError::Exhausted("VI memory: lower its depths or length"));
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
            told: config.receive_depth,
            received: 0,
            send_memory: vec![0; send_len].into(),
            send_free: (0..config.send_depth as u16).collect(),
            control_free: (config.send_depth as u16..send_total as u16).collect(),
            send_total,
            sent_from: vec![None; send_total].into(),
            contexts: vec![None; send_total].into(),
            signals: vec![None; send_total].into(),
            lent: (0..send_total).map(|_| Lent::default()).collect(),
            receive_memory: Buffers::Own(vec![0; receive_len].into()),
            receive_free: (0..config.receive_depth as u16).collect(),
            held: vec![POSTED; config.receive_depth as usize].into(),
            early: VecDeque::new(),
            unpolled: 0,
            ended: None,
            told_end: false,
        })
    }

    /// Receives into these buffers from now on: there are as many as the receive depth, all long enough.
    pub(super) fn receive_into(&mut self, places: Box<[Place]>) {
        self.receive_memory = Buffers::Lent(places);
    }

    /// The peer introduced itself.
    pub(super) fn meet(&mut self, vi: u32, key: u32, config: &ViConfig) {
        (self.peer_vi, self.peer_key) = (vi, key);
        (self.peer_depth, self.peer_posted) = (config.receive_depth, config.receive_depth);
    }

    /// Receives that the peer has posted and this end has not used.
    pub(super) fn window(&self) -> u32 {
        self.peer_posted.wrapping_sub(self.sent)
    }

    /// Takes note of the peer's count; `false` where it cannot be.
    pub(super) fn widen(&mut self, peer_posted: u32) -> bool {
        let window = peer_posted.wrapping_sub(self.sent);
        let plausible = window <= self.peer_depth;
        // Counts of messages that overtook each other in the library only ever grow.
        if plausible && window > self.window() {
            self.peer_posted = peer_posted;
        }
        plausible
    }

    /// Whether the peer has to be told of receives without waiting for a message to carry it.
    pub(super) fn owes_credit(&self) -> bool {
        let owed = self.posted.wrapping_sub(self.told);
        let window = self.told.wrapping_sub(self.received);
        owed > 0 && (window == 0 || owed * 2 >= self.config.receive_depth)
    }

    /// Fills a send buffer with a message to the peer. `None` where none is free.
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
        if let Some(place) = self.sent_from.get_mut(usize::from(buffer)) {
            *place = (!control).then_some(sent);
        }
        (header.vi, header.key, header.posted) = (self.peer_vi, self.peer_key, self.posted);
        self.told = self.posted;
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

    /// Where a send buffer starts, with its header.
    pub(super) fn send_pointer(&mut self, buffer: u16) -> *const u8 {
        self.send_slice(buffer).as_ptr()
    }

    /// The body of a send buffer's message: `len` bytes in it, then the pieces, which are kept mapped.
    pub(super) fn body(&mut self, buffer: u16, len: usize, regions: &Regions, pieces: &[Piece]) -> Body {
        let start = self.send_pointer(buffer).wrapping_add(HEADER_LEN);
        let Some(lent) = self.lent.get_mut(usize::from(buffer)).filter(|_| !pieces.is_empty()) else {
            return Body::Bytes(start, len);
        };
        if let Some(sent) = self.sent_from.get_mut(usize::from(buffer)) {
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

    /// Where the context of a send buffer lies, until [`release`](End::release).
    pub(super) fn context(&mut self, context: Context) -> *mut Option<Context> {
        match self.contexts.get_mut(usize::from(context.buffer)) {
            Some(place) => {
                *place = Some(context);
                place
            }
            None => std::ptr::null_mut(),
        }
    }

    /// The library is done with a send buffer; gives the id of a signalled send.
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

    /// Whether the library still has a send buffer.
    pub(super) fn is_sending(&self) -> bool {
        self.send_free.len() + self.control_free.len() < self.send_total
    }

    /// What was put into a send buffer was not sent after all.
    pub(super) fn withdraw(&mut self, buffer: u16) {
        if let Some(sent) = self.sent_from.get_mut(usize::from(buffer)) {
            *sent = None;
        }
        self.release(buffer);
    }

    /// Tells the data messages that the peer has not given receives back for, oldest first, as far as they still are in
    /// send buffers: the library calls a message sent when the kernel has it, which the peer need not.
    pub(super) fn unconfirmed(&self, tell: &mut dyn FnMut(u32, &[u8])) {
        let open = self.peer_depth.saturating_sub(self.window());
        let age = |sent: &Sent| self.sent.wrapping_sub(sent.number);
        let sent_from = self.sent_from.iter().enumerate();
        let sent = sent_from.filter_map(|(buffer, sent)| Some((buffer, (*sent)?)));
        let mut sent: Vec<_> = sent.filter(|(_, sent)| (1..=open).contains(&age(sent))).collect();
        sent.sort_by_key(|(_, sent)| std::cmp::Reverse(age(sent)));
        for (buffer, Sent { immediate, len, .. }) in sent {
            let start = buffer * send_stride(&self.config) + HEADER_LEN;
            if let Some(bytes) = self.send_memory.get(start..start + len as usize) {
                tell(immediate, bytes);
            }
        }
    }

    /// Copies a message in. `None` where the peer sent more, or a longer one, than it may.
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

    /// Gives a held buffer back; `None` where it is not held.
    pub(super) fn post(&mut self, buffer: u32) -> Option<()> {
        let held = self.held.get_mut(buffer as usize).filter(|held| **held != POSTED)?;
        *held = POSTED;
        self.receive_free.push_back(buffer as u16);
        self.posted = self.posted.wrapping_add(1);
        Some(())
    }

    /// Copies from a held buffer; `None` where it is not held.
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
