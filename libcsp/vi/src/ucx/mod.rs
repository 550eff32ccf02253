//! `ucx`: VIs between hosts without RDMA, as active messages of UCP over TCP. For daemons only.
//!
//! libucp is loaded when the first provider is created, isolated from the process (see `sys`). A provider has
//! one worker, and each VI one endpoint. UCP has neither private data nor a receive queue, so the provider
//! adds both: a set-up message (`frame`) introduces each end to the other, and every message carries the
//! number of receives that its sender has posted.
//!
//! A clean end is a message that the peer acknowledges, since closing a TCP socket with unread data would
//! reset it and lose messages that the peer has not read. Any other end of an endpoint is unclean. Silence of
//! a peer is not detected here.
//!
//! The library starts a thread of its own and leaves its sockets open across `exec`: a process that starts
//! other programs must not use this provider, and a forked child must not touch it.
//!
//! Trust: UCX validates nothing that arrives from the network. The operator must trust all hosts of the SAN.
//! Messages with a wrong key, count or length are counted, and at most end their VI.

mod callbacks;
mod core;
mod device;
mod end;
mod frame;
mod sys;
#[cfg(test)]
mod tests;
mod turn;
mod worker;

use std::ptr::null_mut;

use crate::clock::monotonic_ms;
use crate::lingering::Lingering;
use crate::provider::check_private_data;
use crate::regions::{Place, Regions};
use crate::slots::short;
use crate::{
    Armed, BufferId, Completion, Counters, Event, Memory, Piece, Provider, RegionId, RequestId, ViAddress,
    ViConfig, ViError, ViId, Wake,
};
use core::{Owner, Todo, Waiting};
use end::{Context, End, Stage};
use frame::{HEADER_LEN, Header, Kind, REJECT_MISMATCH, SETUP_LEN_MAX, Setup, plain};
use sys::Endpoint;
use worker::Worker;

pub use frame::is_well_formed;

/// Calls of `poll_event` per progress of the library.
const PROGRESS_EVERY: u32 = 16;

/// Turns without any connection per look at the listeners.
const LISTEN_EVERY: u32 = 64;

/// Largest number of progress calls into the library per call of the provider.
const PROGRESS_MAX: u32 = 16;

/// Loads libucp; the error says why that failed. Creating a provider loads it, too. Loading modifies the
/// environment, so a daemon calls this before it starts threads.
pub fn load() -> Result<(), ViError> {
    sys::api().map(drop)
}

/// The UCX provider.
pub struct UcxProvider {
    worker: Worker,
    regions: Regions,
    /// VIs that the caller has released and the peer has not acknowledged.
    lingering: Lingering,
    order: u64,
    calls: u32,
    /// Turns since the library made progress.
    idle_turns: u32,
}

// SAFETY: all raw pointers refer to objects that only this provider uses. The worker is created for use by
// one thread at a time (serialized), which `&mut self` ensures, and its callbacks run on the calling thread.
unsafe impl Send for UcxProvider {}

impl UcxProvider {
    /// Creates a provider without VIs, which listens on every network interface. Fails without libucp.
    pub fn new() -> Result<Self, ViError> {
        Self::on_device(None)
    }

    /// As [`new`](Self::new), on the network interface with this address only. Fails if there is none.
    pub fn at(address: std::net::IpAddr) -> Result<Self, ViError> {
        Self::on_device(Some(&device::of_address(address)?))
    }

    fn on_device(device: Option<&str>) -> Result<Self, ViError> {
        let (worker, regions) = (Worker::new(device)?, Regions::new());
        Ok(UcxProvider {
            worker,
            regions,
            lingering: Lingering::default(),
            order: 0,
            calls: 0,
            idle_turns: 0,
        })
    }

    fn end_of(&self, vi: ViId) -> Result<&End, ViError> {
        let end = self.worker.core().ends.get(vi.0).ok_or(ViError::Unknown("VI"))?;
        if matches!(end.stage, Stage::Lingering | Stage::Dead) {
            Err(ViError::Unknown("VI"))
        } else {
            Ok(end)
        }
    }

    /// Returns an end from which messages can be sent.
    fn sending_end(&self, vi: ViId) -> Result<&End, ViError> {
        let end = self.end_of(vi)?;
        if end.stage == Stage::Open && !end.reported.has_ended() {
            Ok(end)
        } else {
            Err(ViError::NotConnected)
        }
    }

    fn end_mut(&mut self, vi: ViId) -> Result<&mut End, ViError> {
        self.end_of(vi)?;
        self.worker.core_mut().ends.get_mut(vi.0).ok_or(ViError::Unknown("VI"))
    }

    fn insert(&mut self, end: End, endpoint: *mut Endpoint) -> Result<u64, ViError> {
        // If the table is full, the end that has lingered longest is removed.
        if self.worker.core().ends.is_full()
            && let Some(oldest) = self.lingering.oldest()
        {
            self.finish(oldest);
        }
        let core = self.worker.core_mut();
        let vi = core.ends.insert(end).ok_or(ViError::Exhausted("VI"))?;
        if !endpoint.is_null() {
            core.owners.insert(endpoint, Owner::End(vi));
        }
        Ok(vi)
    }

    /// Sends a message of a VI: the parts of `gather`, then the pieces of registered memory.
    fn transmit(
        &mut self,
        vi: u64,
        header: Header,
        (gather, pieces): (&[&[u8]], &[Piece]),
        signal: Option<u64>,
    ) -> Result<(), ViError> {
        let (core, api) = (self.worker.core, self.worker.api);
        let end = self.worker.core_mut().ends.get_mut(vi).ok_or(ViError::Unknown("VI"))?;
        let endpoint = end.endpoint;
        if endpoint.is_null() {
            return Err(ViError::NotConnected);
        }
        let control = header.kind != Kind::Data;
        let buffer = end.fill(header, gather, signal, control).ok_or(ViError::Full)?;
        let len = gather.iter().map(|part| part.len()).sum();
        let start = (end.send_pointer(buffer), HEADER_LEN);
        let body = end.body(buffer, len, &self.regions, pieces);
        let context = end.context(Context { core, api, vi, buffer });
        let flags = if header.kind == Kind::Request { sys::AM_SEND_REPLY } else { 0 };
        // SAFETY: header, body, list of parts and context are in boxes of the end, which is removed only once
        // the library has completed all its sends. `End::body` keeps the pieces' memory mapped until the
        // buffer is released. Until then nothing but the caller, to its own pieces, writes to them.
        let result = unsafe { self.worker.send(endpoint, start, body, flags, context.cast()) };
        let core = self.worker.core_mut();
        if sys::error_of(result).is_some() {
            if let Some(end) = core.ends.get_mut(vi) {
                end.withdraw(buffer);
            }
            return Err(ViError::NotConnected);
        }
        if let (Kind::Data, Some(end)) = (header.kind, core.ends.get_mut(vi)) {
            end.window.count();
        }
        if result.is_null() {
            core.on_sent(vi, buffer, true);
        }
        Ok(())
    }

    fn transmit_setup(&mut self, vi: u64, kind: Kind, private_data: &[u8]) -> Result<(), ViError> {
        let end = self.worker.core().ends.get(vi).ok_or(ViError::Unknown("VI"))?;
        let setup =
            Setup { vi: short(vi), key: end.key, config: end.config, private_data: private_data.to_vec() };
        let mut bytes = [0; SETUP_LEN_MAX];
        let len = setup.write(&mut bytes);
        self.transmit(vi, plain(kind, 0), (&[&bytes[..len]], &[]), None)
    }

    /// Sends a message without a body, now or when a buffer is free.
    fn send_control(&mut self, vi: u64, kind: Kind) {
        if self.transmit(vi, plain(kind, 0), (&[], &[]), None) == Err(ViError::Full) {
            self.worker.core_mut().todo.push_back(Todo::Send(vi, kind));
        }
    }

    /// Advertises posted receives to the peer, if that is due.
    fn send_due_credit(&mut self, vi: u64) {
        let end = self.worker.core().ends.get(vi);
        if end.is_some_and(|end| {
            end.stage == Stage::Open && !end.reported.has_ended() && end.receives.is_credit_due()
        }) {
            self.send_control(vi, Kind::Credit);
        }
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
        let ip = address.ip("ucx")?;
        let mut end = End::new(Stage::Connecting, null_mut(), config, sys::new_key()?)?;
        places.into_iter().for_each(|places| end.receives.receive_into(places));
        let vi = self.insert(end, null_mut())?;
        let connected = self.worker.connect(ip);
        let api = self.worker.api;
        let core = self.worker.core_mut();
        match connected {
            Ok(endpoint) => {
                core.owners.insert(endpoint, Owner::End(vi));
                if let Some(end) = core.ends.get_mut(vi) {
                    end.endpoint = endpoint;
                }
                // On failure the endpoint has failed, which the library reports to the callback.
                let _ = self.transmit_setup(vi, Kind::Request, private_data);
            }
            Err(status) => core.refuse(vi, address.unreachable(api.text(status))),
        }
        Ok(ViId(vi))
    }

    /// Rejects a connector's request. The endpoint is closed when the peer disconnects, or after a while.
    fn refuse(&mut self, waiting: Waiting, reason: u32) {
        let config = ViConfig { receive_depth: 2, send_depth: 2, message_len: 1 };
        let end = End::new(Stage::Lingering, waiting.endpoint, config, 0).and_then(|mut end| {
            end.set_peer(waiting.setup.vi, waiting.setup.key, &waiting.setup.config);
            self.insert(end, waiting.endpoint)
        });
        match end {
            Ok(vi) => {
                let sent = self.transmit(vi, plain(Kind::Reject, reason), (&[], &[]), None);
                self.linger(vi);
                if sent.is_err() {
                    self.finish(vi);
                }
            }
            Err(_) => self.worker.close(waiting.endpoint),
        }
    }

    fn linger(&mut self, vi: u64) {
        self.lingering.push(vi, monotonic_ms());
    }

    /// Closes the endpoints of VIs that have lingered long enough.
    fn expire_lingering(&mut self) {
        while let Some(vi) = self.lingering.expired(monotonic_ms()) {
            self.finish(vi);
        }
    }

    /// Closes the endpoint of a VI and removes the VI once the library has returned its send buffers.
    fn finish(&mut self, vi: u64) {
        self.lingering.remove(vi);
        let Some(end) = self.worker.core_mut().ends.get_mut(vi) else { return };
        end.stage = Stage::Dead;
        let endpoint = std::mem::replace(&mut end.endpoint, null_mut());
        self.worker.close(endpoint);
        let core = self.worker.core_mut();
        if core.ends.get(vi).is_some_and(|end| !end.is_sending()) {
            core.ends.remove(vi);
        }
    }
}

impl Provider for UcxProvider {
    fn name(&self) -> &'static str {
        "ucx"
    }

    fn listen(&mut self, address: &ViAddress) -> Result<(), ViError> {
        self.worker.listen(address.ip("ucx")?)
    }

    fn connect(
        &mut self,
        address: &ViAddress,
        config: ViConfig,
        private_data: &[u8],
    ) -> Result<ViId, ViError> {
        self.start_connect(address, config, private_data, None)
    }

    fn register(&mut self, memory: &Memory) -> Result<RegionId, ViError> {
        self.regions.register(memory)
    }

    fn deregister(&mut self, region: RegionId) -> Result<(), ViError> {
        self.regions.deregister(region)
    }

    /// The library sends in place or copies at once, whichever suits it.
    fn post_send_from(
        &mut self,
        vi: ViId,
        wr_id: u64,
        immediate: u32,
        head: &[u8],
        pieces: &[Piece],
    ) -> Result<(), ViError> {
        let end = self.sending_end(vi)?;
        self.regions.message_len(head, pieces, &end.config)?;
        if end.window.len() == 0 {
            return Err(ViError::Full);
        }
        self.transmit(vi.0, plain(Kind::Data, immediate), (&[head], pieces), Some(wr_id))
    }

    /// The library receives into its own buffers; messages are copied from there into the caller's.
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

    fn accept(&mut self, id: RequestId, config: ViConfig, private_data: &[u8]) -> Result<ViId, ViError> {
        check_private_data(private_data)?;
        config.check()?;
        let key = sys::new_key()?;
        let waiting = self.worker.core_mut().waiting.remove(id.0);
        let waiting = waiting.ok_or(ViError::Unknown("connection request"))?;
        if waiting.setup.config.message_len != config.message_len {
            self.refuse(waiting, REJECT_MISMATCH);
            return Err(ViError::Protocol("the message lengths differ"));
        }
        let made = End::new(Stage::Opening, waiting.endpoint, config, key).and_then(|mut end| {
            end.set_peer(waiting.setup.vi, waiting.setup.key, &waiting.setup.config);
            self.insert(end, waiting.endpoint)
        });
        let vi = match made {
            Ok(vi) => vi,
            Err(error) => {
                self.worker.close(waiting.endpoint);
                return Err(error);
            }
        };
        if self.transmit_setup(vi, Kind::Accept, private_data).is_err() {
            self.finish(vi);
            return Err(ViError::Unknown("connection request (its peer is gone)"));
        }
        let event = Event::Established { vi: ViId(vi), private_data: Vec::new() };
        self.worker.core_mut().reports.events.push_back(event);
        Ok(ViId(vi))
    }

    fn reject(&mut self, id: RequestId) -> Result<(), ViError> {
        let waiting = self.worker.core_mut().waiting.remove(id.0);
        self.refuse(waiting.ok_or(ViError::Unknown("connection request"))?, 1);
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
        let end = self.sending_end(vi)?;
        let max = end.config.message_len as usize;
        let len = gather.iter().fold(0usize, |len, part| len.saturating_add(part.len()));
        if len > max {
            return Err(ViError::TooLong { len, max });
        }
        if end.window.len() == 0 {
            return Err(ViError::Full);
        }
        self.transmit(vi.0, plain(Kind::Data, immediate), (gather, &[]), signalled.then_some(wr_id))
    }

    fn post_recv(&mut self, vi: ViId, buffer: BufferId) -> Result<(), ViError> {
        self.end_mut(vi)?.receives.post(buffer.0).ok_or(ViError::Unknown("buffer"))?;
        self.send_due_credit(vi.0);
        Ok(())
    }

    fn read(&self, vi: ViId, buffer: BufferId, offset: usize, into: &mut [u8]) -> Result<usize, ViError> {
        self.end_of(vi)?.receives.read(buffer.0, offset, into).ok_or(ViError::Unknown("buffer"))
    }

    fn poll(&mut self) -> Option<Completion> {
        if self.worker.core().reports.completions.is_empty() {
            self.progress();
        }
        let core = self.worker.core_mut();
        let completion = core.reports.completions.pop_front()?;
        core.on_polled(&completion);
        if let Completion::Received { vi, .. } = completion {
            self.send_due_credit(vi.0);
        }
        Some(completion)
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.calls += 1;
        if self.calls >= PROGRESS_EVERY && self.worker.core().reports.events.is_empty() {
            self.calls = 0;
            self.progress();
        }
        let core = self.worker.core_mut();
        core.report_ends();
        let event = core.reports.events.pop_front()?;
        match &event {
            Event::Established { vi, .. } => core.open(vi.0),
            Event::Refused { vi, .. } | Event::Disconnected { vi, .. } => {
                if let Some(end) = core.ends.get_mut(vi.0) {
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
        let core = self.worker.core_mut();
        core.report_ends();
        let idle = core.reports.is_empty() && core.todo.is_empty();
        Ok(if idle && self.worker.arm()? { Armed::Armed } else { Armed::Busy })
    }

    fn wake(&self, into: &mut Vec<Wake>) {
        into.push(self.worker.event_fd());
    }

    fn wake_generation(&self) -> u64 {
        0
    }

    fn disconnect(&mut self, vi: ViId) -> Result<(), ViError> {
        let end = self.end_mut(vi)?;
        let connected = matches!(end.stage, Stage::Opening | Stage::Open) && !end.reported.has_ended();
        if !connected {
            return self.abort(vi);
        }
        self.worker.core_mut().discard_reports(vi.0);
        self.end_mut(vi)?.stage = Stage::Lingering;
        self.send_control(vi.0, Kind::Close);
        self.linger(vi.0);
        Ok(())
    }

    fn abort(&mut self, vi: ViId) -> Result<(), ViError> {
        self.end_of(vi)?;
        self.worker.core_mut().discard_reports(vi.0);
        self.finish(vi.0);
        Ok(())
    }

    fn can_break(&self) -> bool {
        true
    }

    fn unconfirmed(&self, vi: ViId, visit: &mut dyn FnMut(u32, &[u8])) -> Result<(), ViError> {
        self.end_of(vi)?.unconfirmed(visit);
        Ok(())
    }

    fn counters(&self) -> Counters {
        self.worker.core().counters
    }
}
