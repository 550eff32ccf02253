//! Setting connections up and taking them down, with the connection manager's events.
//!
//! ```text
//! connector                                        listener
//! resolve address, route
//! queue pair, connect with hello ────────────────▶ queue pair ready to receive and send, accept
//! queue pair ready, establish    ◀────────────────
//! Request (sizes, keys, private data) ───────────▶ the caller is asked
//!                                ◀──────────────── Accept (the same) or Reject
//! ```
//! Queue pairs are ours, not librdmacm's, which would make them on its own context of the device.

use std::ffi::{c_int, c_void};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::ptr::null_mut;

use super::VerbsProvider;
use super::device::Device;
use super::end::{End, Stage};
use super::frame::{self, Control};
use super::queue::{OWN_WORK, Queue};
use super::sys::cm::{self, CmId, ConnParam, EventChannel};
use super::sys::{self, Api, check, given, ibv};
use crate::{Event, PRIVATE_DATA_LEN_MAX, ViConfig, ViError, ViId};

/// Connectors that have not asked for a VI yet.
const SILENT_MAX: usize = 64;

/// Messages that a VI made for a connector can have posted at once: its queue pair is made before anybody has looked at
/// who the connector is.
const ACCEPTED_SENDS_MAX: u32 = 512;

/// Work requests that all the connectors which were not accepted yet may keep room for: two completion queues' worth, of
/// the 64 that a device has.
const UNACCEPTED_WORK_MAX: u32 = 32_768;

/// Requests that the kernel holds for a listener.
const BACKLOG: c_int = 256;

/// Events handled in a row.
const EVENTS_MAX: usize = 64;

/// Milliseconds for the network to resolve an address, and for the path to it.
const RESOLVE_MS: c_int = 2000;

/// Marks what belongs to a listener, whose number follows.
const LISTENER: usize = 1 << 63;

pub(super) fn listener_token(index: usize) -> usize {
    LISTENER | index
}

pub(super) struct Listener {
    pub address: SocketAddr,
    /// `None` while its device is gone.
    pub id: Option<*mut CmId>,
}

/// An event, copied out of the library's hands.
struct News {
    event: u32,
    status: c_int,
    id: *mut CmId,
    token: usize,
    private_data: [u8; PRIVATE_DATA_LEN_MAX],
    private_len: usize,
}

/// The library's event channel.
pub(super) struct Channel {
    api: &'static Api,
    raw: *mut EventChannel,
}

impl Channel {
    pub(super) fn new(api: &'static Api) -> Result<Self, ViError> {
        // SAFETY: no pointers are passed.
        let raw = given("rdma_create_event_channel", unsafe { (api.create_event_channel)() })?;
        let this = Channel { api, raw };
        sys::set_nonblocking(this.fd())?;
        Ok(this)
    }

    pub(super) fn fd(&self) -> RawFd {
        // SAFETY: open as long as this.
        unsafe { (*self.raw).fd }
    }

    fn create(&self, token: usize) -> Result<*mut CmId, ViError> {
        let mut id = null_mut();
        // SAFETY: the channel is open, `id` writable; the context is a number to the library.
        let result = unsafe { (self.api.create_id)(self.raw, &raw mut id, token as *mut c_void, cm::PS_TCP) };
        check("rdma_create_id", result)?;
        Ok(id)
    }

    /// An id bound to an address of this host.
    fn bind(&self, address: SocketAddr, token: usize) -> Result<*mut CmId, ViError> {
        let id = self.create(token)?;
        let mut storage = cm::socket_address(address);
        // SAFETY: the id is new, the address valid through the call.
        let bound = check("rdma_bind_addr", unsafe { (self.api.bind_addr)(id, (&raw mut storage).cast()) });
        if let Err(error) = bound {
            self.destroy(self.api, id);
            return Err(error);
        }
        Ok(id)
    }

    pub(super) fn listen(
        &self,
        api: &'static Api,
        address: SocketAddr,
        token: usize,
    ) -> Result<*mut CmId, ViError> {
        let id = self.bind(address, token)?;
        // SAFETY: the id is bound.
        if let Err(error) = check("rdma_listen", unsafe { (api.listen)(id, BACKLOG) }) {
            self.destroy(api, id);
            return Err(error);
        }
        Ok(id)
    }

    /// Ends an id, if it is one; the peer of a connected one is told.
    pub(super) fn destroy(&self, api: &'static Api, id: *mut CmId) {
        if !id.is_null() {
            // SAFETY: each id is destroyed once, by who takes it out of its place, and none of its events is unacknowledged.
            unsafe { (api.destroy_id)(id) };
        }
    }

    fn next(&self) -> Option<News> {
        let mut raw = null_mut();
        // SAFETY: the channel is open and does not block; the event is acknowledged once, after all was copied.
        unsafe {
            if (self.api.get_cm_event)(self.raw, &raw mut raw) != 0 || raw.is_null() {
                return None;
            }
            let event = &*raw;
            let mut news = News {
                event: event.event,
                status: event.status,
                id: event.id,
                token: (*event.id).context as usize,
                private_data: [0; PRIVATE_DATA_LEN_MAX],
                private_len: 0,
            };
            if !event.conn.private_data.is_null() && event.event == cm::CONNECT_REQUEST {
                news.private_len = usize::from(event.conn.private_data_len).min(PRIVATE_DATA_LEN_MAX);
                let into = news.private_data.as_mut_ptr();
                event.conn.private_data.cast::<u8>().copy_to_nonoverlapping(into, news.private_len);
            }
            (self.api.ack_cm_event)(raw);
            Some(news)
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: closed once; the provider destroyed its ids before.
        unsafe { (self.api.destroy_event_channel)(self.raw) };
    }
}

/// Whether `address` is that of a device whose port is active.
pub(super) fn check_port(api: &'static Api, address: IpAddr) -> Result<(), ViError> {
    let channel = Channel::new(api)?;
    let id = channel.bind(SocketAddr::new(address, 0), 0)?;
    // SAFETY: the id is bound; zero is a value of the struct, which the call fills in.
    let state = unsafe {
        let verbs = (*id).verbs;
        let mut port: ibv::PortAttr = std::mem::zeroed();
        let queried = !verbs.is_null() && (api.query_port)(verbs, (*id).port_num, &raw mut port) == 0;
        queried.then_some(port.state)
    };
    channel.destroy(api, id);
    let unreachable =
        |reason: &str| Err(ViError::Unreachable { address: address.to_string(), reason: reason.to_owned() });
    match state {
        Some(ibv::PORT_ACTIVE) => Ok(()),
        Some(_) => unreachable("the RDMA port is not active"),
        None => unreachable("no RDMA device has this address"),
    }
}

/// The descriptors of the library's context that an id is bound to.
pub(super) fn descriptors(id: *mut CmId) -> Option<[RawFd; 2]> {
    // SAFETY: the id is null or open; its context, once set, stays open as long.
    unsafe { id.as_ref()?.verbs.as_ref().map(|verbs| [verbs.cmd_fd, verbs.async_fd]) }
}

/// What goes with a connection; the rest is said by messages. Nothing is read from the peer's memory, but some devices
/// want these numbers not to be zero.
fn parameters(queue: &Queue, private_data: &[u8]) -> ConnParam {
    ConnParam {
        private_data: private_data.as_ptr().cast(),
        private_data_len: private_data.len() as u8,
        responder_resources: 1,
        initiator_depth: 1,
        flow_control: 0,
        retry_count: 6,
        rnr_retry_count: 7,
        srq: 1,
        qp_num: queue.number(),
    }
}

impl VerbsProvider {
    /// Starts to look for the way to a listener.
    pub(super) fn resolve(&mut self, vi: u64, address: SocketAddr) {
        let started = self.channel.create(vi as usize).and_then(|id| {
            if let Some(end) = self.ends.get_mut(vi) {
                end.id = id;
            }
            let mut storage = cm::socket_address(address);
            let to = (&raw mut storage).cast();
            // SAFETY: the id is new, the address valid through the call.
            check("rdma_resolve_addr", unsafe { (self.api.resolve_addr)(id, null_mut(), to, RESOLVE_MS) })
        });
        if let Err(error) = started {
            self.fail(vi, &error.to_string());
        }
    }

    /// Handles what the connection manager tells.
    pub(super) fn hear(&mut self) {
        for _ in 0..EVENTS_MAX {
            let Some(news) = self.channel.next() else { break };
            if news.event == cm::CONNECT_REQUEST {
                self.on_connector(&news);
            } else if news.token & LISTENER != 0 {
                self.on_listener(&news);
            } else {
                if matches!(news.event, cm::DISCONNECTED | cm::DEVICE_REMOVAL) {
                    // What the peer sent before lies in the completion queues: messages, its consent to a VI.
                    self.drain();
                }
                self.on_connection(&news);
            }
        }
    }

    fn on_listener(&mut self, news: &News) {
        let listener = self.listeners.get_mut(news.token & !LISTENER);
        if news.event == cm::DEVICE_REMOVAL
            && let Some(id) = listener.and_then(|listener| listener.id.take())
        {
            self.channel.destroy(self.api, id);
        }
    }

    /// Listens again where that was lost with a device.
    pub(super) fn listen_again(&mut self) {
        for (index, listener) in self.listeners.iter_mut().enumerate().filter(|(_, l)| l.id.is_none()) {
            listener.id = self.channel.listen(self.api, listener.address, listener_token(index)).ok();
        }
    }

    fn on_connection(&mut self, news: &News) {
        let vi = news.token as u64;
        let Some(end) = self.ends.get(vi).filter(|end| end.id == news.id) else { return };
        let number = end.queue.as_ref().map(|_| end.device);
        let done = match (news.event, end.stage) {
            // SAFETY: the id's address is resolved.
            (cm::ADDR_RESOLVED, Stage::Resolving) => unsafe {
                check("rdma_resolve_route", (self.api.resolve_route)(news.id, RESOLVE_MS))
            },
            (cm::ROUTE_RESOLVED, Stage::Resolving) => self.call(vi),
            (cm::CONNECT_RESPONSE, Stage::Resolving) => self.answered(vi),
            (cm::DEVICE_REMOVAL, _) => {
                if let Some(number) = number {
                    self.lose(number);
                }
                self.fail(vi, "the device is lost");
                Ok(())
            }
            (cm::ADDR_ERROR | cm::ROUTE_ERROR, _) => {
                let reason = std::io::Error::from_raw_os_error(-news.status).to_string();
                self.fail(vi, &reason);
                Ok(())
            }
            (cm::UNREACHABLE | cm::CONNECT_ERROR, _) => {
                self.fail(vi, "no answer");
                Ok(())
            }
            (cm::REJECTED, _) => {
                self.fail(vi, "nobody listens there, or it has no room");
                Ok(())
            }
            (cm::DISCONNECTED, _) => {
                self.fail(vi, "the peer hung up");
                Ok(())
            }
            _ => Ok(()),
        };
        if let Err(error) = done {
            self.refuse(vi, error);
        }
    }

    /// The provider's device that an id is bound to, opened when it is met for the first time.
    fn device_of(&mut self, id: *mut CmId) -> Result<usize, ViError> {
        // SAFETY: the id is open; its context, once set, stays open as long.
        let wanted = unsafe { (*id).verbs.as_ref().map(|verbs| verbs.device) };
        let wanted = wanted.ok_or(ViError::Exhausted("device"))?;
        // SAFETY: the provider's own context is open.
        let is_it = |device: &Device| !device.dead && unsafe { device.context.as_ref().device } == wanted;
        if let Some(found) = self.devices.iter().position(|place| place.as_ref().is_some_and(is_it)) {
            return Ok(found);
        }
        let free = self.devices.iter().position(Option::is_none).ok_or(ViError::Exhausted("device"))?;
        let device = Device::open(self.api, wanted)?;
        let joined = self.regions.join(free, device.pd);
        self.devices[free] = Some(device);
        if let Err(error) = joined.and_then(|()| self.watch(free)) {
            self.regions.leave(free);
            self.devices[free] = None;
            return Err(error);
        }
        Ok(free)
    }

    /// Makes the queue pair of an end that can have `messages` posted at once.
    fn equip(&mut self, vi: u64, messages: u32) -> Result<(), ViError> {
        let id = self.ends.get(vi).ok_or(ViError::Unknown("VI"))?.id;
        let number = self.device_of(id)?;
        let Some(Some(device)) = self.devices.get_mut(number) else { return Err(ViError::Unknown("device")) };
        let mut queue = Queue::new(self.api, device, vi, messages)?;
        let ready = queue.go(id, ibv::QPS_INIT);
        self.numbers.insert((number, queue.number()), vi);
        let Some(end) = self.ends.get_mut(vi) else { return Err(ViError::Unknown("VI")) };
        (end.device, end.sends_max, end.queue) = (number, messages, Some(queue));
        ready
    }

    /// The way is known: calls the listener.
    fn call(&mut self, vi: u64) -> Result<(), ViError> {
        let config = self.ends.get(vi).ok_or(ViError::Unknown("VI"))?.config;
        self.equip(vi, config.send_depth)?;
        let Some(end) = self.ends.get_mut(vi) else { return Ok(()) };
        if let Some(Some(device)) = self.devices.get(end.device) {
            end.furnish(self.api, device)?;
        }
        let hello = frame::hello(&config);
        let Some(queue) = &end.queue else { return Ok(()) };
        let mut parameters = parameters(queue, &hello);
        // SAFETY: the id's route is resolved, the parameters valid through the call.
        check("rdma_connect", unsafe { (self.api.connect)(end.id, &raw mut parameters) })
    }

    /// The listener's side is ready: asks for the VI.
    fn answered(&mut self, vi: u64) -> Result<(), ViError> {
        let Some(end) = self.ends.get_mut(vi) else { return Ok(()) };
        let (id, Some(queue), Some(body)) = (end.id, &mut end.queue, &end.body) else { return Ok(()) };
        queue.go(id, ibv::QPS_RTR)?;
        queue.go(id, ibv::QPS_RTS)?;
        // SAFETY: the id was answered, its queue pair is ours.
        check("rdma_establish", unsafe { (self.api.establish)(id) })?;
        let request = Control::Request(body.setup(&std::mem::take(&mut end.private_data)));
        end.stage = Stage::Asking;
        self.tell(vi, &request);
        Ok(())
    }

    /// A connector calls.
    fn on_connector(&mut self, news: &News) {
        let hello = frame::parse_hello(&news.private_data[..news.private_len]);
        let Ok(config) = hello else {
            self.counters.handshakes_malformed += 1;
            return self.dismiss(news.id);
        };
        let sends = config.receive_depth.min(ACCEPTED_SENDS_MAX);
        if !self.make_room(sends + OWN_WORK) {
            self.counters.handshakes_dropped += 1;
            return self.dismiss(news.id);
        }
        self.make_way();
        let mut end = End::new(Stage::Silent, config, sys::monotonic_ms());
        (end.id, end.listener) = (news.id, Some((news.token & !LISTENER) as u32));
        let Some(vi) = self.ends.insert(end) else {
            self.counters.handshakes_dropped += 1;
            return self.dismiss(news.id);
        };
        // SAFETY: the id is open; its context is ours to set.
        unsafe { (*news.id).context = vi as usize as *mut c_void };
        if self.welcome(vi, news.id, sends).is_err() {
            self.counters.handshakes_dropped += 1;
            self.finish(vi);
        }
    }

    /// Whether one more connector may have `work` work requests; those that have not introduced themselves give way, the
    /// oldest first.
    fn make_room(&mut self, work: u32) -> bool {
        loop {
            let (mut silent, mut reserved, mut oldest) = (0, 0, (u64::MAX, 0));
            for (vi, end) in self.ends.iter() {
                let is_silent = end.stage == Stage::Silent;
                if is_silent || end.stage == Stage::Waiting {
                    reserved += end.queue.as_ref().map_or(0, |queue| queue.completions.1);
                }
                if is_silent {
                    silent += 1;
                    oldest = oldest.min((end.since_ms, vi));
                }
            }
            if silent < SILENT_MAX && reserved + work <= UNACCEPTED_WORK_MAX {
                return true;
            }
            if silent == 0 {
                return false;
            }
            self.counters.handshakes_dropped += 1;
            self.finish(oldest.1);
        }
    }

    fn dismiss(&mut self, id: *mut CmId) {
        // SAFETY: the request was not answered before.
        unsafe { (self.api.reject)(id, std::ptr::null(), 0) };
        self.channel.destroy(self.api, id);
    }

    /// Connects with a connector, so that it can ask for a VI of `sends` messages posted at once.
    fn welcome(&mut self, vi: u64, id: *mut CmId, sends: u32) -> Result<(), ViError> {
        self.equip(vi, sends)?;
        let Some(queue) = self.ends.get_mut(vi).and_then(|end| end.queue.as_mut()) else { return Ok(()) };
        queue.go(id, ibv::QPS_RTR)?;
        queue.go(id, ibv::QPS_RTS)?;
        let mut parameters = parameters(queue, &[]);
        // SAFETY: the request was not answered before, the parameters are valid through the call.
        check("rdma_accept", unsafe { (self.api.accept)(id, &raw mut parameters) })
    }

    /// The caller accepts a connector that has asked.
    pub(super) fn admit(&mut self, vi: u64, config: ViConfig, private_data: &[u8]) -> Result<(), ViError> {
        let end = self.ends.get_mut(vi).ok_or(ViError::Unknown("connection request"))?;
        end.config = config;
        // The queue pair has no room for more than the peer has receives for: they cannot be on their way.
        end.sends_max = end.sends_max.min(config.send_depth);
        let Some(Some(device)) = self.devices.get(end.device) else { return Err(ViError::NotConnected) };
        end.furnish(self.api, device)?;
        let Some(body) = &end.body else { return Err(ViError::NotConnected) };
        let accept = Control::Accept(body.setup(private_data));
        end.stage = Stage::Opening;
        self.tell(vi, &accept);
        self.events.push_back(Event::Established { vi: ViId(vi), private_data: Vec::new() });
        Ok(())
    }
}
