//! `shm`: VIs between processes of one host, of any users, through sealed shared memory.
//!
//! The connector sends its configuration over a Unix socket (SOCK_SEQPACKET). The listener creates a sealed
//! memfd for both directions and passes its descriptor back. From then on messages pass through the memory
//! alone; the socket carries wakes to a sleeping receiver, and its hang-up reports the end of the peer at
//! once, whatever the cause. The memory outlives its writer: messages sent before the end are still received.
//!
//! Trust: neither side relies on the contents of the memory or the socket. Lengths and slot numbers are read
//! once and checked; an invalid one breaks the VI. The listener accepts no descriptor from a connector:
//! closing a foreign file can block (FUSE), and the blocking mode of a shared eventfd can be changed by the
//! peer. A wake is therefore a non-blocking send.
//!
//! The provider runs in daemons and in unmodified applications: it starts no thread, writes no output and
//! calls no libc symbol that a socket filter interposes (see `sys`). The caller waits on one epoll
//! descriptor; the provider maintains the set of files in it.
//!
//! The provider checks its sockets, and so for hang-ups, after [`Provider::arm`] and on every 256th call of
//! [`Provider::poll_event`].

mod acceptor;
mod cache;
mod layout;
mod lend;
pub mod rendezvous;
mod ring;
mod setup;
mod sync;
mod sys;
#[cfg(test)]
mod tests;
mod vi;

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::atomic::{Ordering, fence};

use crate::regions::Regions;
use crate::slots::{SLOTS_MAX, Slots};
use crate::{
    Armed, BufferId, Completion, Counters, Event, Memory, Piece, Place, Provider, RegionId, RequestId,
    ViAddress, ViConfig, ViError, ViId, Wake,
};
use acceptor::{Acceptor, Token};
pub use lend::Loan;
use ring::Sending;
use vi::{Stage, Vi};

/// Calls of `poll_event` per check of the sockets, which is a system call: a check on every 64th call made a
/// round trip of 64 bytes a quarter slower.
const POLL_SOCKETS_EVERY: u32 = 256;

/// Messages received from one VI before the next VI is polled.
const BURST_MAX: u32 = 16;

/// The shared-memory provider.
pub struct ShmProvider {
    vis: Slots<Vi>,
    regions: Regions,
    /// The slot of `vis` polled first, and the number of messages received from it in a row.
    cursor: usize,
    burst: u32,
    sent: VecDeque<(u64, u64)>,
    events: VecDeque<Event>,
    /// VIs whose socket hung up and whose end has not been queued as an event.
    hung_up: usize,
    armed: bool,
    calls: u32,
    epoll: sys::Fd,
    acceptor: Acceptor,
    /// Lowest number for the provider's descriptors.
    floor: RawFd,
    counters: Counters,
    abandoned: bool,
}

impl ShmProvider {
    /// Creates a provider without VIs.
    pub fn new() -> Result<Self, ViError> {
        Self::with_descriptor_floor(0)
    }

    /// Creates a provider whose descriptors have numbers from `floor` on, where the process's limit allows:
    /// the application that hosts it may rely on the lowest free number.
    pub fn with_descriptor_floor(floor: RawFd) -> Result<Self, ViError> {
        let epoll = sys::epoll().map_err(|e| e.of("epoll_create1"))?.lifted(floor);
        Ok(ShmProvider {
            vis: Slots::new(SLOTS_MAX),
            regions: Regions::new(),
            cursor: 0,
            burst: 0,
            sent: VecDeque::new(),
            events: VecDeque::new(),
            hung_up: 0,
            armed: false,
            calls: 0,
            epoll,
            acceptor: Acceptor::new(floor),
            floor,
            counters: Counters::default(),
            abandoned: false,
        })
    }

    /// In a forked child: closes the descriptors and unmaps the memory without notifying the peers. The VIs
    /// remain the parent's.
    pub fn abandon_after_fork(mut self) {
        self.abandoned = true;
    }

    /// Appends every descriptor that the provider owns now to `into`: the application must not close them.
    pub fn descriptors(&self, into: &mut Vec<RawFd>) {
        into.push(self.epoll.raw());
        self.acceptor.descriptors(into);
        into.extend(self.vis.iter().filter_map(|(_, vi)| vi.socket.as_ref()).map(sys::Fd::raw));
    }

    /// Polls the sockets: new connections, answers, wakes and hang-ups.
    fn poll_sockets(&mut self) {
        self.calls = 0;
        let mut tokens = [0; sys::READY_MAX];
        let count = sys::ready(&self.epoll, &mut tokens, 0);
        self.handle(&tokens[..count]);
    }

    fn handle(&mut self, tokens: &[u64]) {
        for &token in tokens {
            match Token::from_u64(token) {
                Token::Listener(listener) => {
                    let events = &mut self.events;
                    let found = |request| events.push_back(Event::Request(request));
                    self.acceptor.accept(&self.epoll, listener, &mut self.counters, found);
                }
                Token::Silent(id) => {
                    let request = self.acceptor.receive_request(&self.epoll, id, &mut self.counters);
                    self.events.extend(request.map(Event::Request));
                }
                Token::Vi(id) => self.on_socket(id),
            }
        }
    }

    /// Disarms the receivers, since the caller is awake and needs no wake, and polls the sockets.
    fn wake_up(&mut self) {
        self.armed = false;
        self.disarm();
        self.poll_sockets();
    }

    fn disarm(&mut self) {
        for index in 0..self.vis.len() {
            if let Some(receiver) = self.vis.at_mut(index).and_then(|(_, vi)| vi.receiving()) {
                receiver.disarm();
            }
        }
    }

    fn is_any_ready(&mut self) -> bool {
        (0..self.vis.len()).any(|index| {
            let receiver = self.vis.at_mut(index).and_then(|(_, vi)| vi.receiving());
            receiver.is_some_and(|receiver| receiver.is_ready())
        })
    }

    /// Returns the next message of any VI. A VI may give up to [`BURST_MAX`] messages before the next one is
    /// polled.
    fn receive(&mut self) -> Option<Completion> {
        let count = self.vis.len();
        let mut index = self.cursor;
        for _ in 0..count {
            if index >= count {
                index = 0;
            }
            if let Some((id, vi)) = self.vis.at_mut(index)
                && let Some(receiver) = vi.receiving()
            {
                match receiver.receive() {
                    Ok(Some(message)) => {
                        self.burst = if index == self.cursor { self.burst + 1 } else { 1 };
                        self.cursor = index;
                        if self.burst >= BURST_MAX {
                            (self.cursor, self.burst) = (index + 1, 0);
                        }
                        return Some(Completion::Received {
                            vi: ViId(id),
                            buffer: BufferId(message.slot),
                            len: message.len,
                            immediate: message.immediate,
                        });
                    }
                    Ok(None) => {}
                    Err(ring::Violation) => self.break_vi(id),
                }
            }
            index += 1;
        }
        None
    }

    /// Completes a send: wakes the receiver if needed and queues the completion, or returns why nothing was
    /// sent.
    fn after_send(
        &mut self,
        vi: u64,
        sending: Result<Sending, ring::Violation>,
        signal: Option<u64>,
    ) -> Result<(), ViError> {
        match sending {
            Ok(Sending::Done) => {}
            // A socket too full for another wake has unread ones already; a hang-up is found when the sockets
            // are polled.
            Ok(Sending::Wake) => {
                let socket = self.vis.get(vi).and_then(|end| end.socket.as_ref());
                let _ = socket.map(|socket| sys::send(socket, &[0], None));
            }
            Ok(Sending::Full) => return Err(ViError::Full),
            Err(ring::Violation) => {
                self.break_vi(vi);
                return Err(ViError::NotConnected);
            }
        }
        if let (Some(wr_id), Some(end)) = (signal, self.vis.get_mut(vi)) {
            end.signalled += 1;
            self.sent.push_back((vi, wr_id));
        }
        Ok(())
    }

    /// Queues the end of VIs whose peer is gone and whose last message was polled.
    fn report_hang_ups(&mut self) {
        for index in 0..self.vis.len() {
            let Some((id, vi)) = self.vis.at_mut(index) else { continue };
            if vi.stage != Stage::Open || !vi.is_hung_up() {
                continue;
            }
            let Some(rings) = &vi.rings else { continue };
            if !rings.receiver.is_ready() {
                let clean = rings.receiver.is_closed();
                vi.ended = true;
                self.hung_up -= 1;
                self.events.push_back(Event::Disconnected { vi: ViId(id), clean });
            }
        }
    }
}

impl Provider for ShmProvider {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn listen(&mut self, address: &ViAddress) -> Result<(), ViError> {
        self.acceptor.listen(&self.epoll, setup::path_of(address)?)
    }

    fn connect(
        &mut self,
        address: &ViAddress,
        config: ViConfig,
        private_data: &[u8],
    ) -> Result<ViId, ViError> {
        self.start_connect(address, config, private_data)
    }

    fn accept(&mut self, id: RequestId, config: ViConfig, private_data: &[u8]) -> Result<ViId, ViError> {
        self.answer(id, config, private_data)
    }

    fn reject(&mut self, id: RequestId) -> Result<(), ViError> {
        let waiting = self.acceptor.waiting.remove(id.0).ok_or(ViError::Unknown("connection request"))?;
        setup::refuse(&waiting, rendezvous::Kind::Reject);
        Ok(())
    }

    fn post_send(
        &mut self,
        vi: ViId,
        wr_id: u64,
        immediate: u32,
        gather: &[&[u8]],
        signalled: bool,
    ) -> Result<(), ViError> {
        let max = self.vis.get(vi.0).ok_or(ViError::Unknown("VI"))?.config.message_len as usize;
        let len = gather.iter().fold(0usize, |len, part| len.saturating_add(part.len()));
        if len > max {
            return Err(ViError::TooLong { len, max });
        }
        let end = self.vis.get_mut(vi.0).ok_or(ViError::Unknown("VI"))?;
        let sending = end.send(immediate, len, signalled, |arena, slot| {
            let mut at = 0;
            for part in gather {
                arena.write(slot, at, part);
                at += part.len();
            }
        });
        self.after_send(vi.0, sending?, signalled.then_some(wr_id))
    }

    fn can_fill(&self) -> bool {
        true
    }

    /// The place is in the peer's memory.
    fn post_send_filled(
        &mut self,
        vi: ViId,
        immediate: u32,
        room: usize,
        fill: &mut dyn FnMut(&Place<'_>) -> usize,
    ) -> Result<usize, ViError> {
        let end = self.vis.get_mut(vi.0).ok_or(ViError::Unknown("VI"))?;
        let max = end.config.message_len as usize;
        if room > max {
            return Err(ViError::TooLong { len: room, max });
        }
        let mut made = 0;
        let sending = end.send_made(immediate, |arena, slot| {
            made = fill(&arena.place(slot, room)).min(room);
            (made > 0).then_some(made)
        });
        match sending? {
            Ok(None) => Ok(0),
            Ok(Some(sending)) => self.after_send(vi.0, Ok(sending), None).map(|()| made),
            Err(violation) => self.after_send(vi.0, Err(violation), None).map(|()| 0),
        }
    }

    fn register(&mut self, memory: &Memory) -> Result<RegionId, ViError> {
        self.regions.register(memory)
    }

    fn deregister(&mut self, region: RegionId) -> Result<(), ViError> {
        self.regions.deregister(region)
    }

    /// Copies into the ring, so the pieces may change at once.
    fn post_send_from(
        &mut self,
        vi: ViId,
        wr_id: u64,
        immediate: u32,
        head: &[u8],
        pieces: &[Piece],
    ) -> Result<(), ViError> {
        let end = self.vis.get_mut(vi.0).ok_or(ViError::Unknown("VI"))?;
        let len = self.regions.message_len(head, pieces, &end.config)?;
        let regions = &self.regions;
        let sending = end.send(immediate, len, true, |arena, slot| {
            arena.write(slot, 0, head);
            let mut at = head.len();
            for piece in pieces {
                if let Ok(memory) = regions.find(piece) {
                    arena.write_from(slot, at, memory, piece.offset, piece.len);
                }
                at += piece.len;
            }
        });
        self.after_send(vi.0, sending?, Some(wr_id))
    }

    fn post_recv(&mut self, vi: ViId, buffer: BufferId) -> Result<(), ViError> {
        let end = self.vis.get_mut(vi.0).ok_or(ViError::Unknown("VI"))?;
        let rings = end.rings.as_mut().ok_or(ViError::Unknown("buffer"))?;
        // After the peer's socket hung up no receive is posted: a surviving copy of its memory can then send
        // only a bounded number of messages.
        let publish = end.socket.is_some();
        rings.receiver.post(buffer.0, publish).ok_or(ViError::Unknown("buffer"))
    }

    fn read(&self, vi: ViId, buffer: BufferId, offset: usize, into: &mut [u8]) -> Result<usize, ViError> {
        let end = self.vis.get(vi.0).ok_or(ViError::Unknown("VI"))?;
        let rings = end.rings.as_ref().ok_or(ViError::Unknown("buffer"))?;
        rings.receiver.read(buffer.0, offset, into).ok_or(ViError::Unknown("buffer"))
    }

    fn memory(&self, vi: ViId) -> Result<Memory, ViError> {
        let end = self.vis.get(vi.0).ok_or(ViError::Unknown("VI"))?;
        end.rings.as_ref().map(vi::Rings::memory).ok_or(ViError::NotConnected)
    }

    fn received_at(&self, vi: ViId, buffer: BufferId) -> Result<(usize, usize), ViError> {
        ShmProvider::received_at(self, vi, buffer)
    }

    fn poll(&mut self) -> Option<Completion> {
        if self.armed {
            self.wake_up();
        }
        if let Some((id, wr_id)) = self.sent.pop_front() {
            if let Some(vi) = self.vis.get_mut(id) {
                vi.signalled -= 1;
            }
            return Some(Completion::Sent { vi: ViId(id), wr_id });
        }
        self.receive()
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.calls += 1;
        if self.armed {
            self.wake_up();
        } else if self.calls >= POLL_SOCKETS_EVERY {
            self.poll_sockets();
        }
        if self.hung_up > 0 {
            self.report_hang_ups();
        }
        let event = self.events.pop_front()?;
        let (vi, stage) = match &event {
            Event::Established { vi, .. } => (vi, Stage::Open),
            Event::Refused { vi, .. } | Event::Disconnected { vi, .. } => (vi, Stage::Closed),
            Event::Request(_) => return Some(event),
        };
        if let Some(vi) = self.vis.get_mut(vi.0) {
            vi.stage = stage;
        }
        Some(event)
    }

    fn arm(&mut self) -> Result<Armed, ViError> {
        // The sockets need no check: a readable one keeps the epoll descriptor readable.
        if self.hung_up > 0 {
            self.report_hang_ups();
        }
        if !self.events.is_empty() || !self.sent.is_empty() {
            return Ok(Armed::Busy);
        }
        self.armed = true;
        for index in 0..self.vis.len() {
            if let Some(receiver) = self.vis.at_mut(index).and_then(|(_, vi)| vi.receiving()) {
                receiver.arm();
            }
        }
        fence(Ordering::SeqCst);
        if self.is_any_ready() {
            self.armed = false;
            self.disarm();
            return Ok(Armed::Busy);
        }
        Ok(Armed::Armed)
    }

    fn wake(&self, into: &mut Vec<Wake>) {
        into.push(self.epoll.raw());
    }

    fn wake_generation(&self) -> u64 {
        0
    }

    fn disconnect(&mut self, vi: ViId) -> Result<(), ViError> {
        self.end(vi, true)
    }

    /// Messages in the memory are still received.
    fn abort(&mut self, vi: ViId) -> Result<(), ViError> {
        self.end(vi, false)
    }

    fn unconfirmed(&self, vi: ViId, visit: &mut dyn FnMut(u32, &[u8])) -> Result<(), ViError> {
        let end = self.vis.get(vi.0).ok_or(ViError::Unknown("VI"))?;
        let sender = end.rings.as_ref().map(|rings| &rings.sender).filter(|sender| !sender.is_lent());
        sender.ok_or(ViError::NotConnected)?.recent(visit);
        Ok(())
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn abandon_after_fork(self: Box<Self>) {
        ShmProvider::abandon_after_fork(*self);
    }

    fn descriptors(&self, into: &mut Vec<RawFd>) {
        ShmProvider::descriptors(self, into);
    }
}

impl Drop for ShmProvider {
    fn drop(&mut self) {
        if self.abandoned {
            return;
        }
        // A forked child may hold copies of the sockets: closing them here would not hang up.
        for socket in self.vis.iter().filter_map(|(_, vi)| vi.socket.as_ref()) {
            sys::shutdown(socket);
        }
        self.acceptor.unlink();
    }
}
