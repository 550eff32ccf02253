//! Posting messages, grants and control messages.

use super::VerbsProvider;
use super::end::{End, Stage};
use super::frame::{CONTROL_LEN_MAX, Control, Setup};
use super::queue::{NO_REGION, OWN_WORK, Queue, Refusal, Regions, Request, SEGMENTS_MAX, Work};
use super::sys::ibv::{self, Sge};
use crate::region::Piece;
use crate::{PIECES_MAX, ViError, ViId};

const EMPTY: Sge = Sge { addr: 0, length: 0, lkey: 0 };
const NONE: Regions = [NO_REGION; PIECES_MAX];

/// Work requests of the provider's own that grants leave free for control messages and probes.
const WORK_RESERVED: u32 = OWN_WORK / 2;

/// The segments of a message, and the resources that it holds.
struct Gathered {
    segments: [Sge; SEGMENTS_MAX],
    count: usize,
    regions: Regions,
    buffer: Option<u16>,
    /// The buffer holds the whole message.
    held: bool,
    inline: bool,
}

impl Gathered {
    fn new() -> Self {
        let segments = [EMPTY; SEGMENTS_MAX];
        Gathered { segments, count: 0, regions: NONE, buffer: None, held: false, inline: false }
    }

    /// Adds a segment. Empty ones are left out, since some devices take a length of zero for 2 GiB.
    fn push(&mut self, segment: Sge) {
        if segment.length > 0
            && let Some(place) = self.segments.get_mut(self.count)
        {
            *place = segment;
            self.count += 1;
        }
    }

    /// Records the region of a segment in registered memory.
    fn note(&mut self, region: u64) {
        if !self.regions.contains(&region)
            && let Some(place) = self.regions.iter_mut().find(|place| **place == NO_REGION)
        {
            *place = region;
        }
    }
}

fn plain(part: &[u8]) -> Sge {
    Sge { addr: part.as_ptr() as u64, length: part.len() as u32, lkey: 0 }
}

/// Copies the parts into a send buffer, also where the driver copies a short message once more: they stay
/// there for [`VerbsProvider::visit_unconfirmed`] until they are known to have arrived.
fn gather(end: &mut End, parts: &[&[u8]], len: usize, gathered: &mut Gathered) -> Option<()> {
    let (queue, body) = (end.queue.as_ref()?, end.body.as_mut()?);
    let buffer = body.take_buffer()?;
    (gathered.buffer, gathered.held) = (Some(buffer), true);
    gathered.inline = len <= queue.inline_max;
    let mut at = 0;
    for part in parts {
        if !body.fill(buffer, at, part) {
            body.free_buffer(buffer);
            return None;
        }
        at += part.len();
    }
    gathered.push(body.buffer_segment(buffer, at)?);
    Some(())
}

/// Returns the operation of a message of `len` bytes, and its remote address and key.
fn target(peer: &Setup, slot: u32, len: usize) -> (u32, (u64, u32)) {
    if len <= peer.eager_len as usize {
        return (ibv::WR_SEND_WITH_IMM, (0, 0));
    }
    let address = peer.slots + u64::from(slot) * u64::from(peer.stride);
    (ibv::WR_RDMA_WRITE_WITH_IMM, (address, peer.slots_key))
}

impl VerbsProvider {
    /// Returns the slot for a message of `len` bytes, or why it cannot be sent now.
    fn reserve_slot(&mut self, vi: ViId, len: usize) -> Result<u32, ViError> {
        let end = self.end_of(vi)?;
        if end.stage != Stage::Open || end.ended.is_some() {
            return Err(ViError::NotConnected);
        }
        let max = end.config.message_len as usize;
        if len > max {
            return Err(ViError::TooLong { len, max });
        }
        let is_full = |end: &End| end.queue.as_ref().is_none_or(|queue| queue.messages >= end.sends_max);
        if is_full(end) {
            // Completions of unsignalled work become visible only by polling.
            self.reap();
        }
        let end = self.end_of(vi)?;
        let body = end.body.as_ref().filter(|_| end.ended.is_none()).ok_or(ViError::NotConnected)?;
        if is_full(end) {
            return Err(ViError::Full);
        }
        match body.granted.next(body.granted_ring()) {
            Ok(Some(slot)) => Ok(slot),
            Ok(None) => Err(ViError::Full),
            Err(super::grants::Violation) => {
                self.violate(vi.0);
                Err(ViError::NotConnected)
            }
        }
    }

    /// Sends a message whose parts are copied.
    pub(super) fn send(
        &mut self,
        vi: ViId,
        immediate: u32,
        parts: &[&[u8]],
        signal: Option<u64>,
    ) -> Result<(), ViError> {
        let len = parts.iter().fold(0usize, |len, part| len.saturating_add(part.len()));
        let slot = self.reserve_slot(vi, len)?;
        let end = self.ends.get_mut(vi.0).ok_or(ViError::Unknown("VI"))?;
        let mut gathered = Gathered::new();
        gather(end, parts, len, &mut gathered).ok_or(ViError::Full)?;
        self.post_message(vi, slot, immediate, len, &mut gathered, signal)
    }

    /// Sends a message of `head`, which is copied, and `pieces`, which are sent from where they lie.
    pub(super) fn send_from(
        &mut self,
        vi: ViId,
        wr_id: u64,
        immediate: u32,
        head: &[u8],
        pieces: &[Piece],
    ) -> Result<(), ViError> {
        if pieces.len() > PIECES_MAX {
            return Err(ViError::Config("a message has at most 4 pieces"));
        }
        let len = pieces.iter().fold(head.len(), |len, piece| len.saturating_add(piece.len));
        let slot = self.reserve_slot(vi, len)?;
        let mut gathered = Gathered::new();
        self.gather_from(vi, head, pieces, len, &mut gathered)?;
        for &region in gathered.regions.iter().take_while(|&&region| region != NO_REGION) {
            self.regions.hold(region);
        }
        self.post_message(vi, slot, immediate, len, &mut gathered, Some(wr_id))
    }

    fn gather_from(
        &mut self,
        vi: ViId,
        head: &[u8],
        pieces: &[Piece],
        len: usize,
        gathered: &mut Gathered,
    ) -> Result<(), ViError> {
        let end = self.ends.get_mut(vi.0).ok_or(ViError::Unknown("VI"))?;
        let number = end.device;
        let Some(Some(device)) = self.devices.get(number) else { return Err(ViError::NotConnected) };
        let (Some(queue), Some(body)) = (&end.queue, &mut end.body) else {
            return Err(ViError::NotConnected);
        };
        let parts = pieces.len() + usize::from(!head.is_empty());
        if parts > queue.segments_max {
            // More segments than the device supports: copy them.
            let buffer = body.take_buffer().ok_or(ViError::Full)?;
            (gathered.buffer, gathered.held) = (Some(buffer), true);
            copy_all(&self.regions, body, buffer, head, pieces).inspect_err(|_| body.free_buffer(buffer))?;
            body.buffer_segment(buffer, len).into_iter().for_each(|segment| gathered.push(segment));
            return Ok(());
        }
        // Check everything that can fail before allocating a buffer.
        for piece in pieces {
            let (region, _) = self.regions.locate(piece)?;
            self.regions.key(region, number, device.pd)?;
        }
        gathered.inline = len <= queue.inline_max;
        if gathered.inline {
            gathered.push(plain(head));
        } else if !head.is_empty() {
            let buffer = body.take_buffer().ok_or(ViError::Full)?;
            body.fill(buffer, 0, head);
            gathered.buffer = Some(buffer);
            body.buffer_segment(buffer, head.len()).into_iter().for_each(|segment| gathered.push(segment));
        }
        for piece in pieces.iter().filter(|piece| piece.len > 0) {
            let (region, addr) = self.regions.locate(piece)?;
            let lkey = self.regions.key(region, number, device.pd)?;
            gathered.push(Sge { addr, length: piece.len as u32, lkey });
            gathered.note(region);
        }
        Ok(())
    }

    /// Posts a message whose segments are complete.
    fn post_message(
        &mut self,
        vi: ViId,
        slot: u32,
        immediate: u32,
        len: usize,
        gathered: &mut Gathered,
        signal: Option<u64>,
    ) -> Result<(), ViError> {
        let end = self.ends.get_mut(vi.0).ok_or(ViError::Unknown("VI"))?;
        let held = gathered.held.then_some(len as u32);
        let (buffer, regions) = (gathered.buffer, gathered.regions);
        let work = Work::Data { buffer, wr_id: signal, regions, immediate, held };
        let (Some(queue), Some(peer), Some(body)) = (&mut end.queue, &end.peer, &mut end.body) else {
            return Err(ViError::NotConnected);
        };
        let (opcode, remote) = target(peer, slot, len);
        let request = Request {
            opcode,
            immediate,
            remote,
            segments: &mut gathered.segments[..gathered.count],
            inline: gathered.inline,
            signalled: signal.is_some(),
        };
        let posted = queue.post(request, work);
        match posted {
            Ok(()) => {
                body.granted.advance();
                return Ok(());
            }
            Err(_) => super::poll::release_work(end, &mut self.regions, &work),
        }
        if posted == Err(Refusal::Full) {
            return Err(ViError::Full);
        }
        self.fail(vi.0, "the queue pair failed");
        Err(ViError::NotConnected)
    }

    /// Advertises posted receives to the peer, if that is due.
    pub(super) fn advertise_grants(&mut self, vi: u64) {
        let Some(end) = self.ends.get_mut(vi) else { return };
        if end.ended.is_some() || end.stage != Stage::Open {
            return;
        }
        let (Some(queue), Some(peer), Some(body)) = (&mut end.queue, &end.peer, &mut end.body) else {
            return;
        };
        while body.posted.advertisement_due() {
            let Some(run) = body.posted.run() else { return };
            let Some(segment) = body.run_segment(run) else { return };
            // Grants that do not fit now are written when earlier work completes.
            if !queue.has_room(WORK_RESERVED + 1) {
                return;
            }
            let request = Request {
                opcode: ibv::WR_RDMA_WRITE,
                immediate: 0,
                remote: (peer.grants + run.there as u64 * 8, peer.grants_key),
                segments: &mut [segment],
                inline: segment.length as usize <= queue.inline_max,
                signalled: true,
            };
            if queue.post(request, Work::Own).is_err() {
                return self.fail(vi, "the queue pair failed");
            }
            body.posted.mark_advertised(run);
        }
    }

    /// Calls `visit` for the messages that no completion has covered, oldest first.
    pub(super) fn visit_unconfirmed(
        &self,
        vi: ViId,
        visit: &mut dyn FnMut(u32, &[u8]),
    ) -> Result<(), ViError> {
        let end = self.end_of(vi)?;
        let (Some(queue), Some(body)) = (&end.queue, &end.body) else { return Err(ViError::NotConnected) };
        for work in queue.pending() {
            if let Work::Data { buffer: Some(buffer), held: Some(len), immediate, .. } = work
                && let Some(bytes) = body.sent_bytes(*buffer, *len)
            {
                visit(*immediate, &bytes);
            }
        }
        Ok(())
    }

    /// Sends a control message.
    pub(super) fn send_control(&mut self, vi: u64, message: &Control) {
        let mut bytes = [0; CONTROL_LEN_MAX];
        let len = message.write(&mut bytes);
        let queue = self.ends.get_mut(vi).and_then(|end| end.queue.as_mut());
        let posted = queue.map(|queue| post_control(queue, &bytes[..len]));
        if posted.is_some_and(|posted| posted.is_err()) {
            self.fail(vi, "the queue pair failed");
        }
    }
}

fn post_control(queue: &mut Queue, bytes: &[u8]) -> Result<(), Refusal> {
    let inline = bytes.len() <= queue.inline_max;
    let segment = if inline { plain(bytes) } else { queue.store_control(bytes).ok_or(Refusal::Broken)? };
    let request = Request {
        opcode: ibv::WR_SEND,
        immediate: 0,
        remote: (0, 0),
        segments: &mut [segment],
        inline,
        signalled: true,
    };
    queue.post(request, Work::Own)
}

/// Copies head and pieces into a send buffer.
fn copy_all(
    regions: &super::regions::Regions,
    body: &super::end::Body,
    buffer: u16,
    head: &[u8],
    pieces: &[Piece],
) -> Result<(), ViError> {
    body.fill(buffer, 0, head);
    let mut at = head.len();
    for piece in pieces {
        regions.locate(piece)?;
        let memory = regions.memory(piece.region)?;
        if !body.copy_piece(buffer, at, memory, piece) {
            return Err(ViError::Config("a piece is not within its region"));
        }
        at += piece.len;
    }
    Ok(())
}
