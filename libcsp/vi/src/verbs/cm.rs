//! Set-up and release of connections by the events of the connection manager (librdmacm).
//!
//! ```text
//! connector                                        listener
//! resolve address, route
//! queue pair, connect with hello ────────────────▶ queue pair ready to receive and send, accept
//! queue pair ready, establish    ◀────────────────
//! Request (sizes, keys, private data) ───────────▶ Event::Request
//!                                ◀──────────────── Accept (the same) or Reject
//! ```
//! Queue pairs are created by the provider: librdmacm would create them on its own context of the device.

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

/// Largest number of connectors whose request has not arrived.
const SILENT_MAX: usize = 64;

/// Largest number of messages posted at once on a VI that was created for a connector. Its queue pair is
/// created before the connector has been authenticated.
const ACCEPTED_SENDS_MAX: u32 = 512;

/// Largest number of work requests reserved for all connectors that are not accepted yet: two of the 64
/// completion queues of a device.
const UNACCEPTED_WORK_MAX: u32 = 32_768;

/// Largest number of connections that the kernel holds for a listener.
const BACKLOG: c_int = 256;

/// Connection events handled per call.
const EVENTS_MAX: usize = 64;

/// Time limit for resolving an address, and for resolving a route, in milliseconds.
const RESOLVE_MS: c_int = 2000;

/// Marks the token of a listener; the other bits are its number.
const LISTENER: usize = 1 << 63;

pub(super) fn listener_token(index: usize) -> usize {
    LISTENER | index
}

pub(super) struct Listener {
    pub address: SocketAddr,
    /// `None` while the listener's device is removed.
    pub id: Option<*mut CmId>,
}

/// A connection event, copied from the library's memory.
struct ConnectionEvent {
    kind: u32,
    status: c_int,
    id: *mut CmId,
    token: usize,
    private_data: [u8; PRIVATE_DATA_LEN_MAX],
    private_len: usize,
}

/// The event channel of librdmacm.
pub(super) struct Channel {
    api: &'static Api,
    raw: *mut EventChannel,
}

impl Channel {
    pub(super) fn new(api: &'static Api) -> Result<Self, ViError> {
        // SAFETY: the call takes no pointers; its result is checked.
        let raw = given("rdma_create_event_channel", unsafe { (api.create_event_channel)() })?;
        let this = Channel { api, raw };
        sys::set_nonblocking(this.fd())?;
        Ok(this)
    }

    pub(super) fn fd(&self) -> RawFd {
        // SAFETY: `raw` is the channel created by `new`, which is destroyed by `Drop` only.
        unsafe { (*self.raw).fd }
    }

    fn create(&self, token: usize) -> Result<*mut CmId, ViError> {
        let mut id = null_mut();
        // SAFETY: `raw` is an open channel and `id` a local that outlives the call. The library stores
        // `token` and never dereferences it.
        let result = unsafe { (self.api.create_id)(self.raw, &raw mut id, token as *mut c_void, cm::PS_TCP) };
        check("rdma_create_id", result)?;
        Ok(id)
    }

    /// Creates an id bound to an address of this host.
    fn bind(&self, address: SocketAddr, token: usize) -> Result<*mut CmId, ViError> {
        let id = self.create(token)?;
        let mut storage = cm::socket_address(address);
        // SAFETY: `create` has just returned the id; `storage` is a local that outlives the call.
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
        // SAFETY: `bind` has just returned the id, which is bound and not destroyed.
        if let Err(error) = check("rdma_listen", unsafe { (api.listen)(id, BACKLOG) }) {
            self.destroy(api, id);
            return Err(error);
        }
        Ok(id)
    }

    /// Destroys an id; null is ignored. The library notifies the peer of a connected id.
    pub(super) fn destroy(&self, api: &'static Api, id: *mut CmId) {
        if !id.is_null() {
            // SAFETY: the caller has removed the id from the only place that held it, so it is destroyed
            // once. `next` acknowledges every event before it returns, so none of this id is outstanding.
            unsafe { (api.destroy_id)(id) };
        }
    }

    fn next(&self) -> Option<ConnectionEvent> {
        let mut raw = null_mut();
        // SAFETY: the channel is open and non-blocking. After success `raw` points to an event that stays
        // valid until it is acknowledged, once, after all fields were copied. `private_data` points to
        // `private_data_len` bytes, and the buffer has room for PRIVATE_DATA_LEN_MAX.
        unsafe {
            if (self.api.get_cm_event)(self.raw, &raw mut raw) != 0 || raw.is_null() {
                return None;
            }
            let raised = &*raw;
            let mut event = ConnectionEvent {
                kind: raised.event,
                status: raised.status,
                id: raised.id,
                token: (*raised.id).context as usize,
                private_data: [0; PRIVATE_DATA_LEN_MAX],
                private_len: 0,
            };
            if !raised.conn.private_data.is_null() && raised.event == cm::CONNECT_REQUEST {
                event.private_len = usize::from(raised.conn.private_data_len).min(PRIVATE_DATA_LEN_MAX);
                let into = event.private_data.as_mut_ptr();
                raised.conn.private_data.cast::<u8>().copy_to_nonoverlapping(into, event.private_len);
            }
            (self.api.ack_cm_event)(raw);
            Some(event)
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: the channel is destroyed once, here; the provider has destroyed all its ids before.
        unsafe { (self.api.destroy_event_channel)(self.raw) };
    }
}

/// Returns an error unless `address` belongs to an RDMA device whose port is active.
pub(super) fn check_port(api: &'static Api, address: IpAddr) -> Result<(), ViError> {
    let channel = Channel::new(api)?;
    let id = channel.bind(SocketAddr::new(address, 0), 0)?;
    // SAFETY: the id is bound and not destroyed; its `verbs` is null or an open context. All-zero bytes are a
    // valid PortAttr, which is a local with room for what the call writes.
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

/// Returns the descriptors of librdmacm's own context of the device that an id is bound to.
pub(super) fn descriptors(id: *mut CmId) -> Option<[RawFd; 2]> {
    // SAFETY: the id is null or not destroyed; its context, once set, stays open as long as the id exists.
    unsafe { id.as_ref()?.verbs.as_ref().map(|verbs| [verbs.cmd_fd, verbs.async_fd]) }
}

/// Returns the parameters of a connection. All else is negotiated by messages. The provider issues no RDMA
/// READ, but some devices reject a depth of zero.
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
    /// Starts to resolve the address of a listener.
    pub(super) fn resolve(&mut self, vi: u64, address: SocketAddr) {
        let started = self.channel.create(vi as usize).and_then(|id| {
            if let Some(end) = self.ends.get_mut(vi) {
                end.id = id;
            }
            let mut storage = cm::socket_address(address);
            let to = (&raw mut storage).cast();
            // SAFETY: `create` has just returned the id; `storage` is a local that outlives the call.
            check("rdma_resolve_addr", unsafe { (self.api.resolve_addr)(id, null_mut(), to, RESOLVE_MS) })
        });
        if let Err(error) = started {
            self.fail(vi, &error.to_string());
        }
    }

    /// Handles pending events of the connection manager.
    pub(super) fn handle_connection_events(&mut self) {
        for _ in 0..EVENTS_MAX {
            let Some(event) = self.channel.next() else { break };
            if event.kind == cm::CONNECT_REQUEST {
                self.on_connector(&event);
            } else if event.token & LISTENER != 0 {
                self.on_listener(&event);
            } else {
                if matches!(event.kind, cm::DISCONNECTED | cm::DEVICE_REMOVAL) {
                    // Messages sent before the disconnect, also an Accept, are in the completion queues by
                    // now.
                    self.drain();
                }
                self.on_connection(&event);
            }
        }
    }

    fn on_listener(&mut self, event: &ConnectionEvent) {
        let listener = self.listeners.get_mut(event.token & !LISTENER);
        if event.kind == cm::DEVICE_REMOVAL
            && let Some(id) = listener.and_then(|listener| listener.id.take())
        {
            self.channel.destroy(self.api, id);
        }
    }

    /// Restores the listeners that were lost with a device.
    pub(super) fn listen_again(&mut self) {
        for (index, listener) in self.listeners.iter_mut().enumerate().filter(|(_, l)| l.id.is_none()) {
            listener.id = self.channel.listen(self.api, listener.address, listener_token(index)).ok();
        }
    }

    fn on_connection(&mut self, event: &ConnectionEvent) {
        let vi = event.token as u64;
        let Some(end) = self.ends.get(vi).filter(|end| end.id == event.id) else { return };
        let number = end.queue.as_ref().map(|_| end.device);
        let done = match (event.kind, end.stage) {
            // SAFETY: the id belongs to a live end (checked above), and its address is resolved.
            (cm::ADDR_RESOLVED, Stage::Resolving) => unsafe {
                check("rdma_resolve_route", (self.api.resolve_route)(event.id, RESOLVE_MS))
            },
            (cm::ROUTE_RESOLVED, Stage::Resolving) => self.connect_resolved(vi),
            (cm::CONNECT_RESPONSE, Stage::Resolving) => self.on_connect_response(vi),
            (cm::DEVICE_REMOVAL, _) => {
                if let Some(number) = number {
                    self.lose(number);
                }
                self.fail(vi, "the device is lost");
                Ok(())
            }
            (cm::ADDR_ERROR | cm::ROUTE_ERROR, _) => {
                let reason = std::io::Error::from_raw_os_error(-event.status).to_string();
                self.fail(vi, &reason);
                Ok(())
            }
            (cm::UNREACHABLE | cm::CONNECT_ERROR, _) => {
                self.fail(vi, "no answer");
                Ok(())
            }
            (cm::REJECTED, _) => {
                self.fail(vi, "no listener at this address, or it has no room");
                Ok(())
            }
            (cm::DISCONNECTED, _) => {
                self.fail(vi, "the peer disconnected");
                Ok(())
            }
            _ => Ok(()),
        };
        if let Err(error) = done {
            self.refuse(vi, error);
        }
    }

    /// Returns the number of the provider's device that an id is bound to, and opens the device at first use.
    fn device_of(&mut self, id: *mut CmId) -> Result<usize, ViError> {
        // SAFETY: the id belongs to a live end; its context, once set, stays open as long as the id exists.
        let wanted = unsafe { (*id).verbs.as_ref().map(|verbs| verbs.device) };
        let wanted = wanted.ok_or(ViError::Exhausted("device"))?;
        // SAFETY: `context` was opened by `Device::open` and is closed when the device is dropped.
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

    /// Creates the queue pair of an end, with room for `messages` posted messages.
    fn create_queue(&mut self, vi: u64, messages: u32) -> Result<(), ViError> {
        let id = self.ends.get(vi).ok_or(ViError::Unknown("VI"))?.id;
        let number = self.device_of(id)?;
        let Some(Some(device)) = self.devices.get_mut(number) else { return Err(ViError::Unknown("device")) };
        let mut queue = Queue::new(self.api, device, vi, messages)?;
        let ready = queue.transition(id, ibv::QPS_INIT);
        self.numbers.insert((number, queue.number()), vi);
        let Some(end) = self.ends.get_mut(vi) else { return Err(ViError::Unknown("VI")) };
        (end.device, end.sends_max, end.queue) = (number, messages, Some(queue));
        ready
    }

    /// Connects to the listener, once the route is resolved.
    fn connect_resolved(&mut self, vi: u64) -> Result<(), ViError> {
        let config = self.ends.get(vi).ok_or(ViError::Unknown("VI"))?.config;
        self.create_queue(vi, config.send_depth)?;
        let Some(end) = self.ends.get_mut(vi) else { return Ok(()) };
        let hello = frame::hello(&config);
        let Some(queue) = &end.queue else { return Ok(()) };
        let mut parameters = parameters(queue, &hello);
        // SAFETY: the id's route is resolved; `parameters` is a local, and points to `hello`, a local too;
        // both outlive the call.
        check("rdma_connect", unsafe { (self.api.connect)(end.id, &raw mut parameters) })
    }

    /// Completes the connection when the listener has answered, and sends the request for the VI. The VI's
    /// memory is registered now and not earlier: registration blocks this thread, and a peer that is dead
    /// does not answer.
    fn on_connect_response(&mut self, vi: u64) -> Result<(), ViError> {
        let Some(end) = self.ends.get_mut(vi) else { return Ok(()) };
        let Some(Some(device)) = self.devices.get(end.device) else { return Err(ViError::NotConnected) };
        end.allocate_body(self.api, device)?;
        let (id, Some(queue), Some(body)) = (end.id, &mut end.queue, &end.body) else { return Ok(()) };
        queue.transition(id, ibv::QPS_RTR)?;
        queue.transition(id, ibv::QPS_RTS)?;
        // SAFETY: the id belongs to a live end and has received its CONNECT_RESPONSE; its queue pair is the
        // provider's, which is when `rdma_establish` is required.
        check("rdma_establish", unsafe { (self.api.establish)(id) })?;
        let request = Control::Request(body.setup(&std::mem::take(&mut end.private_data)));
        end.stage = Stage::Requested;
        self.send_control(vi, &request);
        Ok(())
    }

    /// Handles a new connection of a connector.
    fn on_connector(&mut self, event: &ConnectionEvent) {
        let hello = frame::parse_hello(&event.private_data[..event.private_len]);
        let Ok(config) = hello else {
            self.counters.handshakes_malformed += 1;
            return self.reject_connection(event.id);
        };
        let sends = config.receive_depth.min(ACCEPTED_SENDS_MAX);
        if !self.make_room(sends + OWN_WORK) {
            self.counters.handshakes_dropped += 1;
            return self.reject_connection(event.id);
        }
        self.evict_lingering();
        let mut end = End::new(Stage::AwaitingRequest, config, sys::monotonic_ms());
        (end.id, end.listener) = (event.id, Some((event.token & !LISTENER) as u32));
        let Some(vi) = self.ends.insert(end) else {
            self.counters.handshakes_dropped += 1;
            return self.reject_connection(event.id);
        };
        // SAFETY: the request event has just delivered this id, which is not destroyed; its `context` field
        // is for the application's use.
        unsafe { (*event.id).context = vi as usize as *mut c_void };
        if self.accept_connection(vi, event.id, sends).is_err() {
            self.counters.handshakes_dropped += 1;
            self.finish(vi);
        }
    }

    /// Returns whether one more connector may reserve `work` work requests. Connectors whose request has not
    /// arrived are dropped to make room, the oldest first.
    fn make_room(&mut self, work: u32) -> bool {
        loop {
            let (mut silent, mut reserved, mut oldest) = (0, 0, (u64::MAX, 0));
            for (vi, end) in self.ends.iter() {
                let is_silent = end.stage == Stage::AwaitingRequest;
                if is_silent || end.stage == Stage::AwaitingAnswer {
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

    fn reject_connection(&mut self, id: *mut CmId) {
        // SAFETY: the id is that of a connection request neither accepted nor rejected so far; no private
        // data is passed.
        unsafe { (self.api.reject)(id, std::ptr::null(), 0) };
        self.channel.destroy(self.api, id);
    }

    /// Accepts the connection of a connector, so that it can request a VI with up to `sends` posted messages.
    fn accept_connection(&mut self, vi: u64, id: *mut CmId, sends: u32) -> Result<(), ViError> {
        self.create_queue(vi, sends)?;
        let Some(queue) = self.ends.get_mut(vi).and_then(|end| end.queue.as_mut()) else { return Ok(()) };
        queue.transition(id, ibv::QPS_RTR)?;
        queue.transition(id, ibv::QPS_RTS)?;
        let mut parameters = parameters(queue, &[]);
        // SAFETY: the id is that of a connection request neither accepted nor rejected so far; `parameters`
        // is a local that outlives the call.
        check("rdma_accept", unsafe { (self.api.accept)(id, &raw mut parameters) })
    }

    /// Creates the VI for a connector's request that the caller accepts.
    pub(super) fn accept_request(
        &mut self,
        vi: u64,
        config: ViConfig,
        private_data: &[u8],
    ) -> Result<(), ViError> {
        let end = self.ends.get_mut(vi).ok_or(ViError::Unknown("connection request"))?;
        end.config = config;
        // The queue pair was created for at most the peer's receive depth, which bounds the messages in
        // flight.
        end.sends_max = end.sends_max.min(config.send_depth);
        let Some(Some(device)) = self.devices.get(end.device) else { return Err(ViError::NotConnected) };
        end.allocate_body(self.api, device)?;
        let Some(body) = &end.body else { return Err(ViError::NotConnected) };
        let accept = Control::Accept(body.setup(private_data));
        end.stage = Stage::Opening;
        self.send_control(vi, &accept);
        self.events.push_back(Event::Established { vi: ViId(vi), private_data: Vec::new() });
        Ok(())
    }
}
