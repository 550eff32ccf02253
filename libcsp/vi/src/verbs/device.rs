//! The provider's objects of one device: context, protection domain, shared receive queue and completion
//! queues.
//!
//! The context is the provider's own, not the process-wide one of librdmacm: asynchronous events are
//! delivered to only one reader of a context.
//!
//! No completion queue can overflow: each queue pair reserves room for all work requests that it can have
//! posted, successful or flushed, and the receive queue for all its buffers. A VI for which there is no room
//! is refused.

use std::ffi::{c_int, c_uint};
use std::ptr::{NonNull, null_mut};

use super::frame::CONTROL_LEN_MAX;
use super::memory::{Registration, Span, pages};
use super::sys::ibv::{self, Wc};
use super::sys::{self, Api, check, given};
use crate::ViError;

/// Longest message that is sent as a message; longer ones are written into their slot. In bytes.
pub(super) const EAGER_LEN: usize = 512;

/// Buffers of the shared receive queue: messages to all VIs that can arrive between two polls. Further
/// messages wait at their senders.
const RECEIVES: usize = 1024;

/// Capacity of a completion queue.
const QUEUE_LEN: c_int = 16384;

/// Largest number of completion queues of a device. Each is polled in turn.
const QUEUES_MAX: usize = 64;

/// Completions fetched from a queue by one call.
pub(super) const BATCH: usize = 16;

/// Marks the wr_id of a receive; the lower bits are the buffer's number.
pub(super) const RECEIVE: u64 = 1 << 31;

const _: () = assert!(EAGER_LEN >= CONTROL_LEN_MAX);

struct CompletionQueue {
    cq: NonNull<ibv::Cq>,
    len: u32,
    reserved: u32,
}

pub(super) struct Device {
    api: &'static Api,
    pub context: NonNull<ibv::Context>,
    pub pd: *mut ibv::Pd,
    channel: *mut ibv::CompChannel,
    pub srq: *mut ibv::Srq,
    queues: Vec<CompletionQueue>,
    /// The queue polled first next time.
    cursor: usize,
    buffers: Span,
    registered: Option<Registration>,
    /// Largest number of segments of a work request.
    pub segments_max: usize,
    /// Largest number of work requests of a queue pair.
    pub work_max: u32,
    queue_len: c_int,
    /// The device is lost: nothing more is posted to it.
    pub dead: bool,
    /// Number of VIs that use the device.
    pub vis: usize,
}

impl Device {
    /// Opens the device `of`, which a context of librdmacm keeps open during the call.
    pub(super) fn open(api: &'static Api, of: *mut ibv::Device) -> Result<Self, ViError> {
        // SAFETY: `of` is the device of an open context (of librdmacm), hence a valid device of the library's
        // list.
        let context = given("ibv_open_device", unsafe { (api.open_device)(of) })?;
        let context = NonNull::new(context).ok_or_else(|| sys::failed("ibv_open_device"))?;
        // From here on `Drop` destroys whatever has been created.
        let mut this = Device {
            api,
            context,
            pd: null_mut(),
            channel: null_mut(),
            srq: null_mut(),
            queues: Vec::new(),
            cursor: 0,
            buffers: pages(RECEIVES * EAGER_LEN)?,
            registered: None,
            segments_max: 0,
            work_max: 0,
            queue_len: 0,
            dead: false,
            vis: 0,
        };
        this.make()?;
        Ok(this)
    }

    fn make(&mut self) -> Result<(), ViError> {
        let (api, context) = (self.api, self.context.as_ptr());
        // SAFETY: the context is open; all-zero bytes are a valid DeviceAttr, a local that outlives the call.
        let attr = unsafe {
            let mut attr: ibv::DeviceAttr = std::mem::zeroed();
            check("ibv_query_device", (api.query_device)(context, &raw mut attr))?;
            attr
        };
        self.segments_max = usize::try_from(attr.max_sge).unwrap_or(0);
        self.work_max = u32::try_from(attr.max_qp_wr).unwrap_or(0);
        self.queue_len = attr.max_cqe.min(QUEUE_LEN);
        let receives = RECEIVES.min(usize::try_from(attr.max_srq_wr).unwrap_or(0));
        // SAFETY: the context is open; `given` checks each new object before it is used, and `init` is a
        // local that outlives the call. The descriptors belong to the channel and context just created.
        unsafe {
            self.pd = given("ibv_alloc_pd", (api.alloc_pd)(context))?;
            self.channel = given("ibv_create_comp_channel", (api.create_comp_channel)(context))?;
            sys::set_nonblocking((*self.channel).fd)?;
            sys::set_nonblocking((*context).async_fd)?;
            let mut init = ibv::SrqInitAttr {
                srq_context: null_mut(),
                max_wr: receives as u32,
                max_sge: 1,
                srq_limit: 0,
            };
            self.srq = given("ibv_create_srq", (api.create_srq)(self.pd, &raw mut init))?;
        }
        self.reserve(receives as u32)?;
        let (memory, access) = (self.buffers.memory(), ibv::ACCESS_LOCAL_WRITE);
        let registered = Registration::new(api, self.pd, memory, (0, memory.len()), access)?;
        self.registered = Some(registered);
        (0..receives as u32).try_for_each(|buffer| self.post_receive(buffer))
    }

    /// Reserves room for `work` completions and returns the number of the queue.
    pub(super) fn reserve(&mut self, work: u32) -> Result<usize, ViError> {
        if let Some(found) = self.queues.iter().position(|queue| queue.len - queue.reserved >= work) {
            self.queues[found].reserved += work;
            return Ok(found);
        }
        if self.queues.len() >= QUEUES_MAX || i64::from(work) > i64::from(self.queue_len) {
            return Err(ViError::Exhausted("VI in the device's completion queues"));
        }
        let (context, channel) = (self.context.as_ptr(), self.channel);
        // SAFETY: context and channel are created and not destroyed; the queue's own context pointer is null
        // and unused.
        let cq = unsafe { (self.api.create_cq)(context, self.queue_len, null_mut(), channel, 0) };
        let cq = NonNull::new(cq).ok_or_else(|| sys::failed("ibv_create_cq"))?;
        self.queues.push(CompletionQueue { cq, len: self.queue_len as u32, reserved: work });
        Ok(self.queues.len() - 1)
    }

    /// Releases a reservation made by [`reserve`](Self::reserve).
    pub(super) fn release(&mut self, queue: usize, work: u32) {
        if let Some(queue) = self.queues.get_mut(queue) {
            queue.reserved = queue.reserved.saturating_sub(work);
        }
    }

    /// Returns the completion queue with this number, and the one for receives.
    pub(super) fn queues(&self, number: usize) -> Option<(*mut ibv::Cq, *mut ibv::Cq)> {
        Some((self.queues.get(number)?.cq.as_ptr(), self.queues.first()?.cq.as_ptr()))
    }

    /// Fetches completions from the next queue that has some. Returns their number.
    pub(super) fn poll(&mut self, into: &mut [Wc; BATCH]) -> usize {
        for _ in 0..self.queues.len() {
            let Some(queue) = self.queues.get(self.cursor) else {
                self.cursor = 0;
                continue;
            };
            // SAFETY: the queue exists until this device is dropped, and its context is open; `into` has
            // BATCH writable entries.
            let count = unsafe {
                let ops = &(*(*queue.cq.as_ptr()).context).ops;
                (ops.poll_cq)(queue.cq.as_ptr(), BATCH as c_int, into.as_mut_ptr())
            };
            self.cursor = if self.cursor + 1 < self.queues.len() { self.cursor + 1 } else { 0 };
            match usize::try_from(count) {
                Ok(0) => {}
                Ok(count) => return count.min(BATCH),
                Err(_) => {
                    self.dead = true;
                    return 0;
                }
            }
        }
        0
    }

    /// Makes the descriptor of [`channel_fd`](Self::channel_fd) readable at the next completion of any queue.
    pub(super) fn arm(&mut self) -> Result<(), ViError> {
        for queue in &self.queues {
            let cq = queue.cq.as_ptr();
            // SAFETY: the queue exists until this device is dropped, and its context is open.
            check("ibv_req_notify_cq", unsafe { ((*(*cq).context).ops.req_notify_cq)(cq, 0) })?;
        }
        Ok(())
    }

    /// Reads the wakes from the completion channel: at most one for each queue since it was armed.
    pub(super) fn drain_channel(&mut self) {
        let (mut cq, mut context) = (null_mut(), null_mut());
        for _ in 0..self.queues.len() {
            // SAFETY: the channel is open and non-blocking; `cq` and `context` are locals that outlive the
            // call. Each event is acknowledged once.
            unsafe {
                if (self.api.get_cq_event)(self.channel, &raw mut cq, &raw mut context) != 0 {
                    break;
                }
                (self.api.ack_cq_events)(cq, 1);
            }
        }
    }

    pub(super) fn channel_fd(&self) -> c_int {
        // SAFETY: `make` has created the channel, which is destroyed when this device is dropped.
        unsafe { (*self.channel).fd }
    }

    pub(super) fn async_fd(&self) -> c_int {
        // SAFETY: the context is open until this device is dropped.
        unsafe { (*self.context.as_ptr()).async_fd }
    }

    pub(super) fn command_fd(&self) -> c_int {
        // SAFETY: the context is open until this device is dropped.
        unsafe { (*self.context.as_ptr()).cmd_fd }
    }

    /// Returns the next asynchronous event and its object, which is a queue pair for the events of queue
    /// pairs.
    pub(super) fn event(&mut self) -> Option<(c_uint, *mut ibv::Qp)> {
        // SAFETY: all-zero bytes are a valid AsyncEvent, a local that outlives the calls; the context is open
        // and its descriptor non-blocking. The event is acknowledged once, and at once, since a queue pair
        // with an unacknowledged event cannot be destroyed.
        unsafe {
            let mut event: ibv::AsyncEvent = std::mem::zeroed();
            if (self.api.get_async_event)(self.context.as_ptr(), &raw mut event) != 0 {
                return None;
            }
            let found = (event.event_type, event.element.cast());
            (self.api.ack_async_event)(&raw mut event);
            Some(found)
        }
    }

    /// Posts a receive buffer to the shared receive queue.
    pub(super) fn post_receive(&mut self, buffer: u32) -> Result<(), ViError> {
        let Some(registered) = &self.registered else { return Ok(()) };
        let Some(at) = self.buffers.at(buffer as usize * EAGER_LEN, EAGER_LEN) else { return Ok(()) };
        let mut segment =
            ibv::Sge { addr: at as u64, length: EAGER_LEN as u32, lkey: registered.local_key() };
        let mut work = ibv::RecvWr {
            wr_id: RECEIVE | u64::from(buffer),
            next: null_mut(),
            sg_list: &raw mut segment,
            num_sge: 1,
        };
        let mut bad = null_mut();
        // SAFETY: the queue exists, `work` and `segment` are locals that outlive the call. The buffer lies in
        // pages that stay mapped and registered until this device is dropped, and is not posted now.
        let result =
            unsafe { ((*self.context.as_ptr()).ops.post_srq_recv)(self.srq, &raw mut work, &raw mut bad) };
        check("ibv_post_srq_recv", result)
    }

    /// Copies the first bytes of a receive buffer that holds a message.
    pub(super) fn received(&self, buffer: u32, into: &mut [u8]) {
        let count = into.len().min(EAGER_LEN);
        self.buffers.read(buffer as usize * EAGER_LEN, &mut into[..count]);
    }

    /// Copies `len` bytes (at most [`EAGER_LEN`]) of a receive buffer to `offset` in `to`, where the caller
    /// reads the message.
    pub(super) fn deliver(&self, buffer: u32, len: usize, to: &Span, offset: usize) {
        let len = len.min(EAGER_LEN);
        if let (Some(from), Some(to)) =
            (self.buffers.at(buffer as usize * EAGER_LEN, len), to.at(offset, len))
        {
            // SAFETY: both Spans keep `len` bytes mapped at these addresses. `buffers` are pages of the
            // provider that are never handed out, so they do not overlap `to`.
            unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.registered = None;
        if !self.channel.is_null() {
            self.drain_channel();
        }
        // SAFETY: each object is destroyed once, before the objects that it uses; the provider drops queue
        // pairs and other registrations before the device. An error means that the device is gone; its
        // objects then need no release.
        unsafe {
            if !self.srq.is_null() {
                (self.api.destroy_srq)(self.srq);
            }
            for queue in self.queues.drain(..) {
                (self.api.destroy_cq)(queue.cq.as_ptr());
            }
            if !self.channel.is_null() {
                (self.api.destroy_comp_channel)(self.channel);
            }
            if !self.pd.is_null() {
                (self.api.dealloc_pd)(self.pd);
            }
            (self.api.close_device)(self.context.as_ptr());
        }
    }
}
