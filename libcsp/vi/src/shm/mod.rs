//! `shm`: VIs between processes of one host, of any users, through sealed memory.
//!
//! The connector sends its wishes over a Unix socket (SOCK_SEQPACKET); the listener makes a sealed memfd for both
//! directions and passes it back. From then on messages go through the memory alone; the socket carries wakes to a
//! sleeping receiver, and its hang-up tells of the peer's end at once, whatever ended it. The memory outlives its
//! writer: what was sent before the end is still received.
//!
//! Trust: neither side believes the memory (lengths and slots are read once and checked, a wrong one breaks the VI) nor
//! the socket. The listener takes no descriptor from strangers: closing a stranger's file can block (FUSE), and an
//! eventfd's blocking mode belongs to whoever shares it. Hence waking is a non-blocking send.
//!
//! Made for daemons and for unmodified applications alike: no thread, no output, no libc symbol that a socket filter
//! interposes (see `sys`). Waiting is on one epoll descriptor, whose set of files the provider keeps.
//!
//! A hang-up is looked for after [`Provider::arm`], and on every 256th [`Provider::poll_event`].

mod cache;
mod door;
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
    Armed, BufferId, Completion, Counters, Event, Memory, Piece, Provider, RegionId, RequestId, ViAddress,
    ViConfig, ViError, ViId, Wake,
};
use door::{Door, Token};
pub use lend::Loan;
use ring::Sending;
use vi::{Stage, Vi};

/// How many calls of `poll_event` share one look at the sockets, a system call: every 64th call made a round trip of
/// 64 bytes a quarter slower.
const LOOK_EVERY: u32 = 256;

/// Messages taken from one VI before the others have their turn.
const BURST_MAX: u32 = 16;

/// The shared-memory provider.
pub struct ShmProvider {
    vis: Slots<Vi>,
    regions: Regions,
    /// The slot of `vis` to look at first, and how many messages it gave in a row.
    cursor: usize,
    burst: u32,
    sent: VecDeque<(u64, u64)>,
    events: VecDeque<Event>,
    /// VIs whose socket hung up and whose end the caller has not been told.
    hung_up: usize,
    armed: bool,
    calls: u32,
    epoll: sys::Fd,
    door: Door,
    /// Descriptors are given numbers from here on.
    floor: RawFd,
    counters: Counters,
    abandoned: bool,
}

impl ShmProvider {
    /// A provider without VIs.
    pub fn new() -> Result<Self, ViError> {
        Self::with_descriptor_floor(0)
    }

    /// The same, whose descriptors are numbered from `floor` on where the process's limit allows: an application
    /// whose process this is may rely on getting the lowest free number.
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
            door: Door::new(floor),
            floor,
            counters: Counters::default(),
            abandoned: false,
        })
    }

    /// In a forked child: closes the descriptors and takes the mappings away without a word to the peers, whose VIs
    /// stay the parent's.
    pub fn abandon_after_fork(mut self) {
        self.abandoned = true;
    }

    /// Every descriptor that the provider owns now, appended to `into`: an application must not close them.
    pub fn descriptors(&self, into: &mut Vec<RawFd>) {
        into.push(self.epoll.raw());
        self.door.descriptors(into);
        into.extend(self.vis.iter().filter_map(|(_, vi)| vi.socket.as_ref()).map(sys::Fd::raw));
    }

    /// Looks at the sockets: new connections, answers, wakes, hang-ups.
    fn look(&mut self) {
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
                    self.door.accept(&self.epoll, listener, &mut self.counters, found);
                }
                Token::Silent(id) => {
                    let request = self.door.hear(&self.epoll, id, &mut self.counters);
                    self.events.extend(request.map(Event::Request));
                }
                Token::Vi(id) => self.hear(id),
            }
        }
    }

    /// The caller is awake: senders need not wake it.
    fn wake_up(&mut self) {
        self.armed = false;
        self.disarm();
        self.look();
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

    /// The next message of any VI, a burst of one and then the next.
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

    /// What follows a message that was put into a ring, or was not.
    fn after_send(
        &mut self,
        vi: u64,
        sending: Result<Sending, ring::Violation>,
        signal: Option<u64>,
    ) -> Result<(), ViError> {
        match sending {
            Ok(Sending::Done) => {}
            // A socket too full for another wake has unread ones already; one that hung up is found by looking.
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

    /// Announces the end of VIs whose peer is gone and whose last message was polled.
    fn tell_hang_ups(&mut self) {
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
        self.door.listen(&self.epoll, setup::path_of(address)?)
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
        let waiting = self.door.waiting.remove(id.0).ok_or(ViError::Unknown("connection request"))?;
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

    fn register(&mut self, memory: &Memory) -> Result<RegionId, ViError> {
        self.regions.register(memory)
    }

    fn deregister(&mut self, region: RegionId) -> Result<(), ViError> {
        self.regions.deregister(region)
    }

    /// Copies into the ring, so that the pieces may change at once.
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
        // What a gone peer wrote is bounded by what it was given before: a copy of it that lives on gets no more.
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
        } else if self.calls >= LOOK_EVERY {
            self.look();
        }
        if self.hung_up > 0 {
            self.tell_hang_ups();
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
        // The sockets need no look: what is there already keeps the descriptor readable.
        if self.hung_up > 0 {
            self.tell_hang_ups();
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

    /// What lies in the memory is still received.
    fn abort(&mut self, vi: ViId) -> Result<(), ViError> {
        self.end(vi, false)
    }

    fn unconfirmed(&self, vi: ViId, tell: &mut dyn FnMut(u32, &[u8])) -> Result<(), ViError> {
        let end = self.vis.get(vi.0).ok_or(ViError::Unknown("VI"))?;
        let sender = end.rings.as_ref().map(|rings| &rings.sender).filter(|sender| !sender.is_lent());
        sender.ok_or(ViError::NotConnected)?.recent(tell);
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
        // A forked child may hold copies of the sockets: closing alone would not hang up.
        for socket in self.vis.iter().filter_map(|(_, vi)| vi.socket.as_ref()) {
            sys::shutdown(socket);
        }
        self.door.unlink();
    }
}
