//! One end of a VI: its memory, its flow control and its state.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;

use super::device::{Device, EAGER_LEN};
use super::frame::Setup;
use super::grants::{Granted, Posted, RING_LEN, Run};
use super::memory::{Registration, Span, pages};
use super::queue::Queue;
use super::sys::Api;
use super::sys::cm::CmId;
use super::sys::ibv::{self, Sge};
use crate::region::{Memory, Piece};
use crate::{ViConfig, ViError};

/// Largest memory of the buffers of one end, in bytes.
const END_MEMORY_LEN_MAX: usize = 1 << 28;

/// Alignment of buffers: a cache line.
const LINE: usize = 64;

/// Length in bytes of the ring that the peer writes its grants to.
const RING_BYTES: usize = RING_LEN * 8;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// Connector: the connection manager has not connected it yet.
    Resolving,
    /// Connector: the request is sent and not answered.
    Requested,
    /// Listener: connected, and the request has not arrived.
    AwaitingRequest,
    /// Listener: the request waits for the caller's answer.
    AwaitingAnswer,
    /// Connected; `Established` has not been polled.
    Opening,
    /// In use.
    Open,
    /// The caller has polled the end of the VI.
    Closed,
    /// The caller has released it; the peer has not acknowledged the last control message.
    Lingering,
}

/// A received message.
#[derive(Clone, Copy)]
pub(super) struct Arrived {
    pub slot: u32,
    pub len: u32,
    pub immediate: u32,
}

/// Receive slots at equal distances in a memory range.
#[derive(Clone)]
pub(super) struct Place {
    pub memory: Span,
    pub offset: usize,
    pub stride: usize,
}

/// The memory of an end: slots, send buffers and grants.
pub(super) struct Body {
    // Declared first, hence dropped before the memory that they register.
    /// Registration of the part that only this end accesses.
    private: Registration,
    /// Registration of the part that the peer writes: its grants and, unless the caller provided slots, the
    /// slots.
    offered: Registration,
    /// Registration of the caller's slots.
    lent: Option<Registration>,
    /// In this order: entries of grants to be written to the peer, send buffers, the ring of the peer's
    /// grants, slots.
    own: Span,
    grants_at: usize,
    slots: Place,
    eager_len: u32,
    config: ViConfig,
    pub granted: Granted,
    pub posted: Posted,
    send_free: Vec<u16>,
    send_at: usize,
    send_stride: usize,
}

impl Body {
    /// Allocates and registers memory for `config` with `sends` send buffers, and for receive slots unless
    /// the caller provided them.
    pub(super) fn new(
        api: &'static Api,
        device: &Device,
        config: ViConfig,
        sends: u32,
        slots: Option<Place>,
    ) -> Result<Self, ViError> {
        let stride = (config.message_len as usize).next_multiple_of(LINE);
        let depth = config.receive_depth as usize;
        let send_at = (Posted::ring_len(config.receive_depth) * 8).next_multiple_of(LINE);
        let grants_at = send_at + sends as usize * stride;
        let slots_at = grants_at + RING_BYTES;
        let len = slots_at + if slots.is_some() { 0 } else { depth * stride };
        if len > END_MEMORY_LEN_MAX {
            return Err(ViError::Exhausted("VI memory: lower the queue depths or message_len"));
        }
        let own = pages(len)?;
        let access = ibv::ACCESS_LOCAL_WRITE;
        let private = Registration::new(api, device.pd, own.memory(), (0, grants_at), access)?;
        let access = ibv::ACCESS_LOCAL_WRITE | ibv::ACCESS_REMOTE_WRITE;
        let run = (grants_at, len - grants_at);
        let offered = Registration::new(api, device.pd, own.memory(), run, access)?;
        // The key of the caller's slots is advertised to this peer only, and is revoked when the VI is
        // released.
        let (eager_len, lent) = match &slots {
            None => (EAGER_LEN as u32, None),
            Some(place) => {
                let run = (place.offset, (depth - 1) * place.stride + config.message_len as usize);
                (0, Some(Registration::new(api, device.pd, place.memory.memory(), run, access)?))
            }
        };
        let slots = slots.unwrap_or_else(|| Place { memory: own.clone(), offset: slots_at, stride });
        Ok(Body {
            private,
            offered,
            lent,
            own,
            grants_at,
            slots,
            eager_len,
            config,
            granted: Granted::new(0),
            posted: Posted::new(config.receive_depth),
            send_free: (0..sends as u16).rev().collect(),
            send_at,
            send_stride: stride,
        })
    }

    /// Returns the set-up that advertises this memory to the peer.
    pub(super) fn setup(&self, private_data: &[u8]) -> Setup {
        let slots_key = self.lent.as_ref().unwrap_or(&self.offered).remote_key();
        let address = |memory: &Span, offset| memory.at(offset, 0).map_or(0, |at| at as u64);
        Setup {
            config: self.config,
            eager_len: self.eager_len,
            slots: address(&self.slots.memory, self.slots.offset),
            stride: self.slots.stride as u32,
            slots_key,
            grants: address(&self.own, self.grants_at),
            grants_key: self.offered.remote_key(),
            private_data: private_data.to_vec(),
        }
    }

    /// Returns the ring that the peer writes its grants to.
    pub(super) fn granted_ring(&self) -> &[AtomicU64] {
        self.own.words(self.grants_at, RING_LEN)
    }

    /// Posts a held slot again. `None` if the slot is not held.
    pub(super) fn post(&mut self, slot: u32) -> Option<()> {
        let ring = self.own.words(0, Posted::ring_len(self.config.receive_depth));
        self.posted.post(ring, slot)
    }

    /// Returns the segment of a run of grants to be written to the peer.
    pub(super) fn run_segment(&self, run: Run) -> Option<Sge> {
        let (offset, len) = (run.here * 8, run.count * 8);
        Some(self.segment(self.own.at(offset, len)? as u64, len))
    }

    fn segment(&self, addr: u64, len: usize) -> Sge {
        Sge { addr, length: len as u32, lkey: self.private.local_key() }
    }

    /// Allocates a send buffer.
    pub(super) fn take_buffer(&mut self) -> Option<u16> {
        self.send_free.pop()
    }

    /// Frees a send buffer.
    pub(super) fn free_buffer(&mut self, buffer: u16) {
        self.send_free.push(buffer);
    }

    /// Copies `part` to `offset` in a send buffer. Returns `false` if it does not fit.
    pub(super) fn fill(&self, buffer: u16, offset: usize, part: &[u8]) -> bool {
        let fits = offset.checked_add(part.len()).is_some_and(|end| end <= self.send_stride);
        let at = self.send_at + usize::from(buffer) * self.send_stride;
        fits && self.own.write(at + offset, part)
    }

    /// Copies a piece of registered memory to `offset` in a send buffer. Returns `false` if it does not fit.
    pub(super) fn copy_piece(&self, buffer: u16, offset: usize, from: &Memory, piece: &Piece) -> bool {
        let fits = offset.checked_add(piece.len).is_some_and(|end| end <= self.send_stride);
        let at = self.send_at + usize::from(buffer) * self.send_stride + offset;
        match (fits, from.at(piece.offset, piece.len), self.own.at(at, piece.len)) {
            (true, Some(from), Some(to)) => {
                // SAFETY: `from` and `to` point to `piece.len` bytes that `Memory` and `Span` keep mapped.
                // The end's own pages are never handed out as a region, so the two do not overlap.
                unsafe { std::ptr::copy_nonoverlapping(from, to, piece.len) };
                true
            }
            _ => false,
        }
    }

    /// Returns the segment of the first `len` bytes of a send buffer.
    pub(super) fn buffer_segment(&self, buffer: u16, len: usize) -> Option<Sge> {
        let at = self.own.at(self.send_at + usize::from(buffer) * self.send_stride, len)?;
        Some(self.segment(at as u64, len))
    }

    /// Returns the first `len` bytes of a send buffer.
    pub(super) fn sent_bytes(&self, buffer: u16, len: u32) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len as usize];
        let at = self.send_at + usize::from(buffer) * self.send_stride;
        self.own.read(at, &mut bytes).then_some(bytes)
    }

    /// Accepts a message of `len` bytes from the given eager buffer, or one that the device has written into
    /// its slot. Returns its slot, or `None` if the peer had no grant for it or it is too long.
    pub(super) fn arrive(&mut self, len: u32, eager: Option<(&Device, u32)>) -> Option<u32> {
        let longest = if eager.is_some() { self.eager_len } else { self.config.message_len };
        let slot = self.posted.next().filter(|_| len <= longest.min(self.config.message_len))?;
        if let Some((device, buffer)) = eager {
            let offset = self.slots.offset + slot as usize * self.slots.stride;
            device.deliver(buffer, len as usize, &self.slots.memory, offset);
        }
        self.posted.arrive(slot, len);
        Some(slot)
    }

    /// Copies from a held slot. `None` if the slot is not held.
    pub(super) fn read(&self, slot: u32, offset: usize, into: &mut [u8]) -> Option<usize> {
        let len = self.posted.held(slot)? as usize;
        let count = len.saturating_sub(offset).min(into.len());
        let at = self.slots.offset + slot as usize * self.slots.stride + offset.min(len);
        self.slots.memory.read(at, &mut into[..count]).then_some(count)
    }
}

pub(super) struct End {
    pub stage: Stage,
    /// The connection manager's id of the connection.
    pub id: *mut CmId,
    pub address: Option<SocketAddr>,
    /// Number of the listener that accepted the connection.
    pub listener: Option<u32>,
    pub device: usize,
    /// The caller's configuration; until the caller accepts a connector, the configuration of its hello.
    pub config: ViConfig,
    /// The private data of the request, until it is sent.
    pub private_data: Vec<u8>,
    /// The caller's receive slots, until `body` is created.
    pub place: Option<Place>,
    // Declared before `body`, hence dropped before the memory that the queue pair may write to.
    pub queue: Option<Queue>,
    pub body: Option<Body>,
    /// The peer's set-up: where and how it receives.
    pub peer: Option<Setup>,
    /// Largest number of messages posted at once.
    pub sends_max: u32,
    /// Messages that arrived before `Established` was polled.
    pub early: VecDeque<Arrived>,
    /// Messages received and not polled.
    pub unpolled: u32,
    /// `Some` once the end of the VI was detected: whether it is clean.
    pub ended: Option<bool>,
    /// The end of the VI is in the event queue, or the caller has released the VI.
    pub end_reported: bool,
    /// Messages of the peer are ignored: it has sent its last one or violated the protocol, or the end of the
    /// VI was reported.
    pub receive_closed: bool,
    /// A completion of this end was seen since the last sweep for silent peers.
    pub peer_active: bool,
    /// Creation time in milliseconds.
    pub since_ms: u64,
}

impl End {
    pub(super) fn new(stage: Stage, config: ViConfig, since_ms: u64) -> Self {
        End {
            stage,
            id: std::ptr::null_mut(),
            address: None,
            listener: None,
            device: 0,
            config,
            private_data: Vec::new(),
            place: None,
            queue: None,
            body: None,
            peer: None,
            sends_max: 0,
            early: VecDeque::new(),
            unpolled: 0,
            ended: None,
            end_reported: false,
            receive_closed: false,
            peer_active: true,
            since_ms,
        }
    }

    /// Allocates the memory of the end.
    pub(super) fn allocate_body(&mut self, api: &'static Api, device: &Device) -> Result<(), ViError> {
        self.body = Some(Body::new(api, device, self.config, self.sends_max, self.place.take())?);
        self.early.reserve(self.config.receive_depth as usize);
        if let (Some(body), Some(peer)) = (&mut self.body, &self.peer) {
            body.granted = Granted::new(peer.config.receive_depth);
        }
        Ok(())
    }

    /// Stores the peer's set-up and returns its private data.
    pub(super) fn set_peer(&mut self, mut setup: Setup) -> Vec<u8> {
        if let Some(body) = &mut self.body {
            body.granted = Granted::new(setup.config.receive_depth);
        }
        let private_data = std::mem::take(&mut setup.private_data);
        self.peer = Some(setup);
        private_data
    }
}
