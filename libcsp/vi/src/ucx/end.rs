//! One end of a VI: its buffers, its flow control and its state.

use std::collections::VecDeque;

use super::core::Core;
use super::frame::{HEADER_LEN, Header, SETUP_LEN_MAX};
use super::sys::{Api, Endpoint, Iov};
use super::worker::Body;
use crate::receives::{Receives, Window, check_memory};
use crate::regions::Regions;
use crate::reports::Reported;
use crate::{Memory, PIECES_MAX, Piece, ViConfig, ViError};

/// Send buffers reserved for the provider's own messages.
const CONTROL_BUFFERS: usize = 4;

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

pub(super) struct End {
    pub stage: Stage,
    /// Null once closed.
    pub endpoint: *mut Endpoint,
    pub config: ViConfig,
    pub key: u32,
    pub peer_vi: u32,
    pub peer_key: u32,
    pub window: Window,
    pub receives: Receives,
    pub reported: Reported,
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
        let send_total = config.send_depth as usize + CONTROL_BUFFERS;
        let send_len = send_total * send_stride(&config);
        check_memory(send_len, &config)?;
        Ok(End {
            stage,
            endpoint,
            config,
            key,
            peer_vi: 0,
            peer_key: 0,
            window: Window::default(),
            receives: Receives::new(&config),
            reported: Reported::default(),
            send_memory: vec![0; send_len].into(),
            send_free: (0..config.send_depth as u16).collect(),
            control_free: (config.send_depth as u16..send_total as u16).collect(),
            send_total,
            sent_data: vec![None; send_total].into(),
            contexts: vec![None; send_total].into(),
            signals: vec![None; send_total].into(),
            lent: (0..send_total).map(|_| Lent::default()).collect(),
        })
    }

    /// Stores the peer's part of the set-up.
    pub(super) fn set_peer(&mut self, vi: u32, key: u32, config: &ViConfig) {
        (self.peer_vi, self.peer_key) = (vi, key);
        self.window = Window::new(config.receive_depth);
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
        let sent = Sent { number: self.window.sent(), immediate: header.immediate, len };
        if let Some(place) = self.sent_data.get_mut(usize::from(buffer)) {
            *place = (!control).then_some(sent);
        }
        (header.vi, header.key, header.posted) = (self.peer_vi, self.peer_key, self.receives.advertise());
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
        let open = self.window.used();
        let age = |sent: &Sent| self.window.sent().wrapping_sub(sent.number);
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
}
