//! `tcp`: VIs between hosts without RDMA, each a connection of kernel TCP. For daemons only.
//!
//! What the caller posts in one turn is sent by one call, and what arrives is received by one call; the body
//! of a large message goes from the kernel into its receive buffer. TCP has neither private data nor a
//! receive queue, so the provider adds both (`frame.rs`): a set-up introduces each end to the other, and
//! every frame carries the number of receives that its sender has posted and of messages that it has.
//!
//! That the kernel has taken a message says nothing: it is kept until the peer has it in its memory. Only
//! then is a signalled send complete, and until then it is listed as
//! [unconfirmed](crate::Provider::unconfirmed).
//!
//! A clean end is a frame of its own, after which the end that sent it waits until the peer has closed the
//! connection: to close it earlier would reset it and lose messages that the peer has not read. Any other end
//! of the connection is unclean. Silence of a peer is not detected here, except that the kernel gives up a
//! connection on which nothing is acknowledged for 800 ms.
//!
//! Trust: what arrives is parsed and bounded; whoever violates the format or the flow control loses its VI
//! and nothing else. Who the peer is, the transport asks. The bytes are not encrypted.

mod end;
mod frame;
mod incoming;
mod outgoing;
mod setup;
mod sys;
#[cfg(test)]
mod tests;
mod turn;

use std::collections::VecDeque;
use std::net::IpAddr;

use crate::lingering::Lingering;
use crate::provider::check_private_data;
use crate::receives::Receives;
use crate::regions::{Place, Regions};
use crate::reports::Reports;
use crate::slots::{SLOTS_MAX, Slots};
use crate::{
    Armed, BufferId, Completion, Counters, Event, Memory, Piece, Provider, RegionId, RequestId, ViAddress,
    ViConfig, ViError, ViId, Wake,
};
use end::{End, Stage};
use frame::{Kind, REJECT_MISMATCH, Setup};
use incoming::{Body, Frame, Incoming};
use setup::{REQUESTS_MAX, SILENT_MAX, Silent, Waiting};
use sys::Watched;

/// Calls of `poll_event` per look at the sockets.
const PROGRESS_EVERY: u32 = 16;

/// Turns without any connection per look at the listeners.
const LISTEN_EVERY: u32 = 64;

/// Bytes that wait to be sent beyond which they are sent at once, not at the end of the turn.
const SEND_LEN: usize = 128 * 1024;

/// Bytes received by one call beyond the rest of a message.
const SCRATCH_LEN: usize = 64 * 1024;

/// Reads a stream, in parts of at most `part` bytes, as an end does that has 32 receives of 1 KiB. Returns
/// the number of whole and well-formed frames before the end or the first violation. For fuzzing.
pub fn frames_of(stream: &[u8], part: usize) -> usize {
    let config = ViConfig { receive_depth: 32, send_depth: 32, message_len: 1024 };
    let (mut incoming, mut receives) = (Incoming::default(), Receives::new(&config));
    let mut count = 0;
    for mut part in stream.chunks(part.max(1)) {
        while !part.is_empty() {
            match incoming.feed(&mut receives, &mut part) {
                Ok(None) => {}
                Ok(Some(Frame { body: Body::Setup(setup), .. })) if Setup::parse(&setup).is_err() => {
                    return count;
                }
                Ok(Some(_)) => count += 1,
                Err(_) => return count,
            }
        }
    }
    count
}

/// A socket that accepts connections.
struct Listener {
    socket: sys::Listener,
    /// The kernel may have connections that could not be accepted.
    is_readable: bool,
}

/// The TCP provider.
pub struct TcpProvider {
    watched: Watched,
    /// The address from which connections are opened.
    source: Option<IpAddr>,
    listeners: Vec<Listener>,
    /// More connections wait than are accepted in a turn.
    has_more_to_accept: bool,
    silent: Slots<Silent>,
    waiting: Slots<Waiting>,
    ends: Slots<End>,
    regions: Regions,
    reports: Reports,
    /// VIs that the caller has released and whose peer has not closed its end.
    lingering: Lingering,
    /// VIs that have something to send, each once.
    dirty: VecDeque<u64>,
    /// VIs for which the kernel may have bytes, each once.
    readable: VecDeque<u64>,
    scratch: Box<[u8]>,
    order: u64,
    calls: u32,
    /// Turns since the sockets were looked at.
    idle_turns: u32,
    counters: Counters,
}

impl TcpProvider {
    /// Creates a provider without VIs.
    pub fn new() -> Result<Self, ViError> {
        Ok(TcpProvider {
            watched: Watched::new()?,
            source: None,
            listeners: Vec::new(),
            has_more_to_accept: false,
            silent: Slots::new(SILENT_MAX),
            waiting: Slots::new(REQUESTS_MAX),
            ends: Slots::new(SLOTS_MAX),
            regions: Regions::new(),
            reports: Reports::default(),
            lingering: Lingering::default(),
            dirty: VecDeque::new(),
            readable: VecDeque::new(),
            scratch: vec![0; SCRATCH_LEN].into(),
            order: 0,
            calls: 0,
            idle_turns: 0,
            counters: Counters::default(),
        })
    }

    /// As [`new`](Self::new); connections are opened from this address of the host, so that they take the
    /// network that it belongs to.
    pub fn at(address: IpAddr) -> Result<Self, ViError> {
        Ok(TcpProvider { source: Some(address), ..Self::new()? })
    }

    fn end_of(&self, vi: ViId) -> Result<&End, ViError> {
        let end = self.ends.get(vi.0).filter(|end| end.stage != Stage::Lingering);
        end.ok_or(ViError::Unknown("VI"))
    }

    fn end_mut(&mut self, vi: ViId) -> Result<&mut End, ViError> {
        let end = self.ends.get_mut(vi.0).filter(|end| end.stage != Stage::Lingering);
        end.ok_or(ViError::Unknown("VI"))
    }

    /// Marks a VI that may have something to send.
    fn mark_dirty(&mut self, vi: u64) {
        if let Some(end) = self.ends.get_mut(vi)
            && !std::mem::replace(&mut end.is_dirty, true)
        {
            self.dirty.push_back(vi);
        }
    }

    /// Sends a message of `len` bytes: the parts of `gather`, then the pieces of registered memory.
    fn transmit(
        &mut self,
        vi: ViId,
        immediate: u32,
        (gather, pieces): (&[&[u8]], &[Piece]),
        signal: Option<u64>,
    ) -> Result<(), ViError> {
        let end = self.ends.get_mut(vi.0).ok_or(ViError::Unknown("VI"))?;
        if end.stage != Stage::Open || end.reported.has_ended() {
            return Err(ViError::NotConnected);
        }
        if end.window.len() == 0 || end.outgoing.is_full() {
            return Err(ViError::Full);
        }
        end.push(Kind::Data, immediate, gather, (pieces, Some(&self.regions)), signal)
            .ok_or(ViError::Full)?;
        let is_much = end.outgoing.unsent_len() >= SEND_LEN && !end.is_blocked;
        if is_much {
            self.send(vi.0);
        } else {
            self.mark_dirty(vi.0);
        }
        Ok(())
    }

    fn start_connect(
        &mut self,
        address: &ViAddress,
        config: ViConfig,
        private_data: &[u8],
        places: Option<Box<[Place]>>,
    ) -> Result<ViId, ViError> {
        check_private_data(private_data)?;
        config.check()?;
        let ip = address.ip("tcp")?;
        let mut end = End::new(Stage::Connecting, None, config)?;
        places.into_iter().for_each(|places| end.receives.receive_into(places));
        end.is_pending = true;
        end.push_setup(Kind::Request, private_data).ok_or(ViError::Full)?;
        let vi = self.insert(end)?;
        if let Err(error) = self.dial(vi, ip) {
            self.refuse(vi, address.unreachable(error.to_string()));
        }
        Ok(ViId(vi))
    }

    /// Adds an end. If the table is full, the end that has lingered longest is removed.
    fn insert(&mut self, end: End) -> Result<u64, ViError> {
        if self.ends.is_full()
            && let Some(oldest) = self.lingering.oldest()
        {
            self.finish(oldest);
        }
        self.ends.insert(end).ok_or(ViError::Exhausted("VI"))
    }

    /// Removes a VI that its caller has released.
    fn finish(&mut self, vi: u64) {
        self.lingering.remove(vi);
        self.ends.remove(vi);
    }
}

impl Provider for TcpProvider {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn listen(&mut self, address: &ViAddress) -> Result<(), ViError> {
        self.add_listener(address.ip("tcp")?)
    }

    fn connect(
        &mut self,
        address: &ViAddress,
        config: ViConfig,
        private_data: &[u8],
    ) -> Result<ViId, ViError> {
        self.start_connect(address, config, private_data, None)
    }

    fn accept(&mut self, id: RequestId, config: ViConfig, private_data: &[u8]) -> Result<ViId, ViError> {
        check_private_data(private_data)?;
        config.check()?;
        let waiting = self.waiting.remove(id.0).ok_or(ViError::Unknown("connection request"))?;
        if waiting.setup.config.message_len != config.message_len {
            self.turn_away(waiting.connection, REJECT_MISMATCH);
            return Err(ViError::Protocol("the message lengths differ"));
        }
        let vi = self.admit(Stage::Opening, waiting.connection, config)?;
        if let Some(end) = self.ends.get_mut(vi) {
            end.set_peer(&waiting.setup.config);
            end.push_setup(Kind::Accept, private_data).ok_or(ViError::Full)?;
        }
        self.send(vi);
        self.reports.events.push_back(Event::Established { vi: ViId(vi), private_data: Vec::new() });
        Ok(ViId(vi))
    }

    fn reject(&mut self, id: RequestId) -> Result<(), ViError> {
        let waiting = self.waiting.remove(id.0).ok_or(ViError::Unknown("connection request"))?;
        self.turn_away(waiting.connection, 1);
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
        let max = self.end_of(vi)?.config.message_len as usize;
        let len = gather.iter().fold(0usize, |len, part| len.saturating_add(part.len()));
        if len > max {
            return Err(ViError::TooLong { len, max });
        }
        self.transmit(vi, immediate, (gather, &[]), signalled.then_some(wr_id))
    }

    fn register(&mut self, memory: &Memory) -> Result<RegionId, ViError> {
        self.regions.register(memory)
    }

    fn deregister(&mut self, region: RegionId) -> Result<(), ViError> {
        self.regions.deregister(region)
    }

    /// The kernel copies the pieces from the caller's memory.
    fn post_send_from(
        &mut self,
        vi: ViId,
        wr_id: u64,
        immediate: u32,
        head: &[u8],
        pieces: &[Piece],
    ) -> Result<(), ViError> {
        self.regions.message_len(head, pieces, &self.end_of(vi)?.config)?;
        self.transmit(vi, immediate, (&[head], pieces), Some(wr_id))
    }

    /// The kernel copies what it receives into the caller's buffers.
    fn connect_into(
        &mut self,
        address: &ViAddress,
        config: ViConfig,
        private_data: &[u8],
        buffers: &[Piece],
    ) -> Result<ViId, ViError> {
        config.check()?;
        let places = self.regions.places(buffers, &config)?;
        self.start_connect(address, config, private_data, Some(places))
    }

    fn post_recv(&mut self, vi: ViId, buffer: BufferId) -> Result<(), ViError> {
        let end = self.end_mut(vi)?;
        end.receives.post(buffer.0).ok_or(ViError::Unknown("buffer"))?;
        if end.are_counts_due() {
            self.mark_dirty(vi.0);
        }
        Ok(())
    }

    fn read(&self, vi: ViId, buffer: BufferId, offset: usize, into: &mut [u8]) -> Result<usize, ViError> {
        self.end_of(vi)?.receives.read(buffer.0, offset, into).ok_or(ViError::Unknown("buffer"))
    }

    fn poll(&mut self) -> Option<Completion> {
        if self.reports.completions.is_empty() {
            self.progress();
        }
        let completion = self.reports.completions.pop_front()?;
        if let Completion::Received { vi, .. } = completion
            && let Some(end) = self.ends.get_mut(vi.0)
        {
            self.reports.polled(&mut end.reported);
        }
        Some(completion)
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.calls += 1;
        if self.calls >= PROGRESS_EVERY && self.reports.events.is_empty() {
            self.calls = 0;
            self.progress();
        }
        self.report_ends();
        let event = self.reports.events.pop_front()?;
        match &event {
            Event::Established { vi, .. } => {
                if let Some(end) = self.ends.get_mut(vi.0) {
                    end.stage = Stage::Open;
                    self.reports.open(vi.0, &mut end.reported);
                }
            }
            Event::Refused { vi, .. } | Event::Disconnected { vi, .. } => {
                if let Some(end) = self.ends.get_mut(vi.0) {
                    end.stage = Stage::Closed;
                }
            }
            Event::Request(_) => {}
        }
        Some(event)
    }

    fn arm(&mut self) -> Result<Armed, ViError> {
        self.idle_turns = LISTEN_EVERY;
        self.progress();
        self.report_ends();
        let has_work = !self.readable.is_empty() || !self.dirty.is_empty() || self.has_more_to_accept;
        let is_idle = self.reports.is_empty() && !has_work;
        Ok(if is_idle { Armed::Armed } else { Armed::Busy })
    }

    /// The kernel's edges make the set readable until they are fetched, whether armed or not.
    fn wake(&self, into: &mut Vec<Wake>) {
        into.push(self.watched.raw());
    }

    fn wake_generation(&self) -> u64 {
        0
    }

    fn disconnect(&mut self, vi: ViId) -> Result<(), ViError> {
        let end = self.end_mut(vi)?;
        let is_connected = matches!(end.stage, Stage::Opening | Stage::Open) && !end.reported.has_ended();
        if !is_connected || end.push_own(Kind::Close, 0, &[]).is_none() {
            return self.abort(vi);
        }
        end.stage = Stage::Lingering;
        if let Some(end) = self.ends.get_mut(vi.0) {
            self.reports.discard(vi.0, &mut end.reported);
        }
        self.linger(vi.0);
        Ok(())
    }

    fn abort(&mut self, vi: ViId) -> Result<(), ViError> {
        let end = self.ends.get_mut(vi.0).filter(|end| end.stage != Stage::Lingering);
        self.reports.discard(vi.0, &mut end.ok_or(ViError::Unknown("VI"))?.reported);
        self.finish(vi.0);
        Ok(())
    }

    fn incomplete(&self, vi: ViId) -> usize {
        self.ends.get(vi.0).map_or(0, |end| end.incoming.incomplete())
    }

    fn can_break(&self) -> bool {
        true
    }

    fn unconfirmed(&self, vi: ViId, visit: &mut dyn FnMut(u32, &[u8])) -> Result<(), ViError> {
        self.end_of(vi)?.outgoing.unconfirmed(visit);
        Ok(())
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn descriptors(&self, into: &mut Vec<Wake>) {
        self.wake(into);
        into.extend(self.listeners.iter().map(|listener| listener.socket.raw()));
        into.extend(self.silent.iter().map(|(_, silent)| silent.connection.raw()));
        into.extend(self.waiting.iter().map(|(_, waiting)| waiting.connection.raw()));
        into.extend(
            self.ends.iter().filter_map(|(_, end)| end.connection.as_ref()).map(sys::Connection::raw),
        );
    }
}
