//! `verbs`: VIs between hosts with RDMA, as reliable connections of libibverbs, set up by librdmacm.
//!
//! Both libraries are loaded when the first provider is created (see `sys`). Each VI has one queue pair;
//! receives come from a queue shared by all VIs of a device. The receiver grants its free slots to the sender
//! (`grants`). Short messages are sent and then copied from the shared queue into their slot; longer ones are
//! written directly into the slot. On a VI of [`connect_into`](Provider::connect_into) every message is
//! written directly into the caller's pieces.
//!
//! The connection manager carries too little private data, so both ends exchange set-up messages (`frame`)
//! once they are connected. A clean end is a control message that the peer acknowledges; any other end is
//! unclean: a disconnect without it, a failed work request, a lost device. Every 250 ms a silent peer is
//! probed by a write of zero bytes, so that the VIs of a vanished host break within a second of polling.
//!
//! Trust: the peer may write anything at any time to the slots of its VI and to the ring of its grants; their
//! contents are copied before they are checked. The advertised keys give access to nothing else, and are
//! revoked with the VI. Keys are no cryptographic secrets: the operator must trust all hosts of the SAN.
//!
//! The caller waits on one epoll descriptor. The provider checks for connection and asynchronous events after
//! [`Provider::arm`], and on every 256th call of [`Provider::poll_event`].

mod cm;
mod device;
mod end;
mod ending;
mod frame;
mod grants;
mod memory;
mod poll;
mod queue;
mod regions;
mod send;
mod sys;
#[cfg(test)]
mod tests;
mod wake;

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::net::IpAddr;
use std::os::fd::RawFd;

use crate::lingering::Lingering;
use crate::provider::check_private_data;
use crate::region::{Memory, Piece, RegionId};
use crate::slots::{SLOTS_MAX, Slots};
use crate::{
    Armed, BufferId, Completion, Counters, Event, Provider, RequestId, ViAddress, ViConfig, ViError, ViId,
    Wake,
};
use cm::{Channel, Listener};
use device::{BATCH, Device};
use end::{End, Place, Stage};
use frame::{Control, REJECT_MISMATCH};
use memory::Span;
pub use regions::CacheCounters;
use regions::{DEVICES_MAX, Regions};
use sys::Api;
use sys::ibv::Wc;
use wake::Epoll;

/// Calls of `poll_event` per poll of the completion queues, and per check of the descriptors.
const PROGRESS_EVERY: u32 = 16;
const POLL_DESCRIPTORS_EVERY: u32 = 256;

/// Silence after which a peer is probed, and the interval of sweeps, in milliseconds.
const PROBE_MS: u64 = 250;

/// Initial capacity of the queue of completions for the caller.
const COMPLETIONS: usize = 1024;

/// Loads the libraries; the error says why that failed. Creating a provider loads them, too.
pub fn load() -> Result<(), ViError> {
    sys::api().map(drop)
}

/// Returns an error unless `address` belongs to an RDMA device whose port is active.
pub fn check_port(address: IpAddr) -> Result<(), ViError> {
    cm::check_port(sys::api()?, address)
}

/// Returns whether `bytes` are a well-formed hello or control message. For fuzzing the parsers.
pub fn is_well_formed(bytes: &[u8]) -> bool {
    frame::parse_hello(bytes).is_ok() || Control::parse(bytes).is_ok()
}

/// Hashes queue pair numbers. Devices choose them, not peers, so no defence against chosen collisions is
/// needed; and the map is read for every message, so the hash is cheap.
#[derive(Default)]
struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }
}

/// The verbs provider.
pub struct VerbsProvider {
    api: &'static Api,
    // Fields are dropped in this order: each before those that it uses.
    ends: Slots<End>,
    regions: Regions,
    devices: [Option<Device>; DEVICES_MAX],
    listeners: Vec<Listener>,
    channel: Channel,
    epoll: Epoll,
    /// The end that owns each queue pair, by device and number.
    numbers: HashMap<(usize, u32), u64, BuildHasherDefault<NumberHasher>>,
    /// The last one that was looked up.
    found: Option<poll::Found>,
    batch: [Wc; BATCH],
    completions: VecDeque<Completion>,
    events: VecDeque<Event>,
    /// Ends to be removed by the next [`progress`](VerbsProvider::progress).
    finished: VecDeque<u64>,
    /// Ends that the caller has released and the peer has not acknowledged.
    lingering: Lingering,
    /// VIs whose end was detected and not reported.
    ending: usize,
    armed: bool,
    calls: u32,
    /// Time of the last sweep for silent peers, in milliseconds.
    swept_ms: u64,
    counters: Counters,
}

// SAFETY: all raw pointers refer to library objects that only this provider uses. The libraries allow calls
// from any thread, and `&mut self` ensures one at a time.
unsafe impl Send for VerbsProvider {}

impl VerbsProvider {
    /// Creates a provider without VIs. Fails if rdma-core is not installed or the kernel has no RDMA.
    pub fn new() -> Result<Self, ViError> {
        let api = sys::api()?;
        let channel = Channel::new(api)?;
        let epoll = Epoll::new()?;
        epoll.add(channel.fd(), wake::CHANNEL)?;
        Ok(VerbsProvider {
            api,
            ends: Slots::new(SLOTS_MAX),
            regions: Regions::new(api),
            devices: [const { None }; DEVICES_MAX],
            listeners: Vec::new(),
            channel,
            epoll,
            numbers: HashMap::default(),
            found: None,
            batch: [Wc::default(); BATCH],
            completions: VecDeque::with_capacity(COMPLETIONS),
            events: VecDeque::new(),
            finished: VecDeque::new(),
            lingering: Lingering::default(),
            ending: 0,
            armed: false,
            calls: 0,
            swept_ms: sys::monotonic_ms(),
            counters: Counters::default(),
        })
    }

    /// Returns the counters of registrations.
    pub fn cache_counters(&self) -> CacheCounters {
        self.regions.counters
    }

    fn end_of(&self, vi: ViId) -> Result<&End, ViError> {
        let end = self.ends.get(vi.0).ok_or(ViError::Unknown("VI"))?;
        match end.stage {
            Stage::AwaitingRequest | Stage::AwaitingAnswer | Stage::Lingering => Err(ViError::Unknown("VI")),
            _ => Ok(end),
        }
    }

    fn end_mut(&mut self, vi: ViId) -> Result<&mut End, ViError> {
        self.end_of(vi)?;
        self.ends.get_mut(vi.0).ok_or(ViError::Unknown("VI"))
    }

    fn start_connect(
        &mut self,
        address: &ViAddress,
        config: ViConfig,
        private_data: &[u8],
        place: Option<Place>,
    ) -> Result<ViId, ViError> {
        check_private_data(private_data)?;
        config.check()?;
        let ip = address.ip("verbs")?;
        let mut end = End::new(Stage::Resolving, config, sys::monotonic_ms());
        (end.address, end.private_data, end.place) = (Some(ip), private_data.to_vec(), place);
        end.sends_max = config.send_depth;
        self.evict_lingering();
        let vi = self.ends.insert(end).ok_or(ViError::Exhausted("VI"))?;
        self.resolve(vi, ip);
        Ok(ViId(vi))
    }

    /// Returns the end of a request that waits for the caller's answer.
    fn awaiting_answer(&mut self, id: RequestId) -> Result<&mut End, ViError> {
        let waiting = self.ends.get_mut(id.0).filter(|end| end.stage == Stage::AwaitingAnswer);
        waiting.ok_or(ViError::Unknown("connection request"))
    }

    /// Converts `buffers` to a [`Place`], if they are evenly spaced in one region.
    fn place_of(&self, config: &ViConfig, buffers: &[Piece]) -> Result<Place, ViError> {
        let len = config.message_len as usize;
        let [first, rest @ ..] = buffers else {
            return Err(ViError::Config("at least one receive piece is required"));
        };
        if buffers.len() != config.receive_depth as usize {
            return Err(ViError::Config("the number of receive pieces must equal receive_depth"));
        }
        let stride = rest.first().map_or(0, |second| second.offset.wrapping_sub(first.offset));
        let is_even = |(n, piece): (usize, &Piece)| {
            piece.region == first.region
                && piece.len >= len
                && stride.checked_mul(n).and_then(|after| first.offset.checked_add(after))
                    == Some(piece.offset)
        };
        if stride < len || u32::try_from(stride).is_err() || !buffers.iter().enumerate().all(is_even) {
            return Err(ViError::Config(
                "receive pieces must be evenly spaced in one region, each at least message_len long",
            ));
        }
        let memory = self.regions.memory(first.region)?;
        let run = (buffers.len() - 1) * stride + len;
        memory.at(first.offset, run).ok_or(ViError::Config("a piece is not within its region"))?;
        Ok(Place { memory: Span::new(memory.clone()), offset: first.offset, stride })
    }
}

impl Provider for VerbsProvider {
    fn name(&self) -> &'static str {
        "verbs"
    }

    fn listen(&mut self, address: &ViAddress) -> Result<(), ViError> {
        let address = address.ip("verbs")?;
        let index = self.listeners.len();
        let id = self.channel.listen(self.api, address, cm::listener_token(index))?;
        self.listeners.push(Listener { address, id: Some(id) });
        Ok(())
    }

    fn connect(
        &mut self,
        address: &ViAddress,
        config: ViConfig,
        private_data: &[u8],
    ) -> Result<ViId, ViError> {
        self.start_connect(address, config, private_data, None)
    }

    fn connect_into(
        &mut self,
        address: &ViAddress,
        config: ViConfig,
        private_data: &[u8],
        buffers: &[Piece],
    ) -> Result<ViId, ViError> {
        config.check()?;
        let place = self.place_of(&config, buffers)?;
        self.start_connect(address, config, private_data, Some(place))
    }

    fn accept(&mut self, id: RequestId, config: ViConfig, private_data: &[u8]) -> Result<ViId, ViError> {
        check_private_data(private_data)?;
        config.check()?;
        let end = self.awaiting_answer(id)?;
        if end.ended.is_some() {
            self.finish(id.0);
            return Err(ViError::Unknown("connection request (its peer is gone)"));
        }
        if end.config.message_len != config.message_len {
            self.refuse_request(id.0, REJECT_MISMATCH);
            return Err(ViError::Protocol("the message lengths differ"));
        }
        if let Err(error) = self.accept_request(id.0, config, private_data) {
            self.finish(id.0);
            return Err(error);
        }
        Ok(ViId(id.0))
    }

    fn reject(&mut self, id: RequestId) -> Result<(), ViError> {
        self.awaiting_answer(id)?;
        self.refuse_request(id.0, 1);
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
        self.send(vi, immediate, gather, signalled.then_some(wr_id))
    }

    fn register(&mut self, memory: &Memory) -> Result<RegionId, ViError> {
        let open = self.devices.iter().enumerate();
        let open = open.filter_map(|(number, device)| Some((number, device.as_ref()?.pd)));
        self.regions.register(memory, open)
    }

    fn deregister(&mut self, region: RegionId) -> Result<(), ViError> {
        self.regions.deregister(region)
    }

    fn post_send_from(
        &mut self,
        vi: ViId,
        wr_id: u64,
        immediate: u32,
        head: &[u8],
        pieces: &[Piece],
    ) -> Result<(), ViError> {
        self.send_from(vi, wr_id, immediate, head, pieces)
    }

    fn post_recv(&mut self, vi: ViId, buffer: BufferId) -> Result<(), ViError> {
        let body = self.end_mut(vi)?.body.as_mut();
        body.and_then(|body| body.post(buffer.0)).ok_or(ViError::Unknown("buffer"))?;
        self.advertise_grants(vi.0);
        Ok(())
    }

    fn read(&self, vi: ViId, buffer: BufferId, offset: usize, into: &mut [u8]) -> Result<usize, ViError> {
        let body = self.end_of(vi)?.body.as_ref();
        body.and_then(|body| body.read(buffer.0, offset, into)).ok_or(ViError::Unknown("buffer"))
    }

    fn poll(&mut self) -> Option<Completion> {
        if self.armed {
            self.wake_up();
        }
        if self.completions.is_empty() {
            self.progress();
        }
        let completion = self.completions.pop_front()?;
        if let Completion::Received { vi, .. } = completion
            && let Some(end) = self.ends.get_mut(vi.0)
        {
            end.unpolled -= 1;
        }
        Some(completion)
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.calls += 1;
        if self.armed {
            self.wake_up();
        } else if self.calls.is_multiple_of(POLL_DESCRIPTORS_EVERY) {
            self.poll_descriptors();
        } else if self.calls.is_multiple_of(PROGRESS_EVERY) && self.events.is_empty() {
            self.progress();
        }
        if self.ending > 0 {
            self.report_ends();
        }
        let event = self.events.pop_front()?;
        match &event {
            Event::Established { vi, .. } => self.open(vi.0),
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
        self.progress();
        if self.ending > 0 {
            self.report_ends();
        }
        if !self.completions.is_empty() || !self.events.is_empty() {
            return Ok(Armed::Busy);
        }
        for device in self.devices.iter_mut().flatten().filter(|device| !device.dead) {
            device.arm()?;
        }
        self.armed = true;
        // A completion that arrived before arming raises no event: poll once more.
        self.progress();
        if self.ending > 0 {
            self.report_ends();
        }
        let idle = self.completions.is_empty() && self.events.is_empty();
        Ok(if idle { Armed::Armed } else { Armed::Busy })
    }

    fn wake(&self, into: &mut Vec<Wake>) {
        into.push(self.epoll.fd());
    }

    fn wake_generation(&self) -> u64 {
        0
    }

    fn disconnect(&mut self, vi: ViId) -> Result<(), ViError> {
        let end = self.end_mut(vi)?;
        let connected = matches!(end.stage, Stage::Opening | Stage::Open) && end.ended.is_none();
        if !connected {
            return self.abort(vi);
        }
        self.discard_reports(vi.0);
        self.linger(vi.0, &Control::Close);
        Ok(())
    }

    fn abort(&mut self, vi: ViId) -> Result<(), ViError> {
        self.end_of(vi)?;
        self.discard_reports(vi.0);
        self.finish(vi.0);
        Ok(())
    }

    fn can_break(&self) -> bool {
        true
    }

    fn unconfirmed(&self, vi: ViId, visit: &mut dyn FnMut(u32, &[u8])) -> Result<(), ViError> {
        self.visit_unconfirmed(vi, visit)
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn abandon_after_fork(self: Box<Self>) {
        let mut descriptors = Vec::new();
        self.descriptors(&mut descriptors);
        for fd in descriptors {
            // SAFETY: the descriptors belong to this provider, which is forgotten below, so nothing uses
            // their numbers again. The parent keeps its own descriptors of the same files.
            unsafe { libc::close(fd) };
        }
        // The library objects belong to the parent: destroying them here would end its VIs.
        std::mem::forget(self);
    }

    fn descriptors(&self, into: &mut Vec<RawFd>) {
        into.extend([self.epoll.fd(), self.channel.fd()]);
        for device in self.devices.iter().flatten() {
            into.extend([device.channel_fd(), device.async_fd(), device.command_fd()]);
        }
        // librdmacm has its own context of each device.
        let ids = self.ends.iter().map(|(_, end)| end.id).chain(self.listeners.iter().filter_map(|l| l.id));
        for descriptor in ids.filter_map(cm::descriptors).flatten() {
            if !into.contains(&descriptor) {
                into.push(descriptor);
            }
        }
    }
}

impl Drop for VerbsProvider {
    fn drop(&mut self) {
        for index in 0..self.ends.len() {
            if let Some((_, end)) = self.ends.at_mut(index) {
                end.queue = None;
                self.channel.destroy(self.api, std::mem::replace(&mut end.id, std::ptr::null_mut()));
            }
        }
        for listener in self.listeners.drain(..) {
            self.channel.destroy(self.api, listener.id.unwrap_or(std::ptr::null_mut()));
        }
    }
}
