//! A queue pair: its state, and the work requests on its send queue.
//!
//! Work requests complete in order, so most of them are unsignalled: a completion retires all work requests
//! before it.

use std::ffi::{c_int, c_uint};
use std::ptr::{NonNull, null_mut};

use super::device::Device;
use super::frame::CONTROL_LEN_MAX;
use super::memory::{Registration, Span, pages};
use super::sys::cm::CmId;
use super::sys::ibv::{self, Sge};
use super::sys::{self, Api, check};
use crate::slots::short;
use crate::{PIECES_MAX, ViError};

/// Sizes of inline data to request, in bytes. Creation is repeated with the next size until the device
/// supports it.
const INLINE_ASKED: [u32; 5] = [512, 256, 128, 64, 0];

/// Largest number of segments of one work request.
pub(super) const SEGMENTS_MAX: usize = 1 + PIECES_MAX;

/// Work requests reserved for the provider's own use: grants, control messages, probes.
pub(super) const OWN_WORK: u32 = 16;

/// ACK timeout 4.096 µs · 2¹⁴ = 67 ms; after `RETRIES` retransmissions, half a second in total, the
/// connection fails. (With 7 retries Soft-RoCE never fails.)
const TIMEOUT: u8 = 14;
const RETRIES: u8 = 6;

/// A receiver without a posted buffer is backpressure: the sender retries without limit, every `RNR_TIMER`
/// (0.64 ms).
const RNR_RETRIES: u8 = 7;
const RNR_TIMER: u8 = 12;

/// Bits of a wr_id that hold the work request's number.
const NUMBER_MASK: u32 = (1 << 31) - 1;

/// The regions that a work request sends from, by their index in the registration table; unused entries are
/// [`NO_REGION`].
pub(super) type Regions = [u64; PIECES_MAX];
/// No region.
pub(super) const NO_REGION: u64 = u64::MAX;

/// The purpose of a posted work request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    /// A message of the caller.
    Data {
        /// The send buffer that holds its bytes or its head.
        buffer: Option<u16>,
        /// The caller's id, for a signalled send.
        wr_id: Option<u64>,
        /// The regions that it is sent from.
        regions: Regions,
        /// Its immediate data; and its length, if the send buffer holds all of it.
        immediate: u32,
        held: Option<u32>,
    },
    /// The provider's own: a grant, control message or probe.
    Own,
}

/// A work request to be posted.
pub(super) struct Request<'a> {
    pub opcode: c_uint,
    pub immediate: u32,
    /// Destination of a write: address and key.
    pub remote: (u64, u32),
    pub segments: &'a mut [Sge],
    /// The driver copies the bytes before the call returns.
    pub inline: bool,
    pub signalled: bool,
}

/// Why a work request was not posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
    /// The queue is full.
    Full,
    /// The queue pair has failed.
    Broken,
}

fn control_room(api: &'static Api, device: &Device) -> Result<(Registration, Span), ViError> {
    let len = OWN_WORK as usize * CONTROL_LEN_MAX;
    let memory = pages(len)?;
    let registered = Registration::new(api, device.pd, memory.memory(), (0, len), ibv::ACCESS_LOCAL_WRITE)?;
    Ok((registered, memory))
}

pub(super) struct Queue {
    api: &'static Api,
    qp: NonNull<ibv::Qp>,
    /// Number of the completion queue, and the room reserved in it.
    pub completions: (usize, u32),
    /// The number of the end, part of each wr_id.
    vi: u64,
    pub inline_max: usize,
    pub segments_max: usize,
    records: Box<[Work]>,
    /// Numbers of the next work request to be posted and to be retired.
    posted: u32,
    retired: u32,
    /// Messages, and work requests of the provider's own, that are posted and not retired.
    pub messages: u32,
    own: u32,
    /// Messages since the last signalled work request, and their bound.
    unsignalled: u32,
    unsignalled_max: u32,
    /// Memory for control messages, if the device does not send them inline; and the number of messages
    /// stored in it so far.
    control: Option<(Registration, Span)>,
    stored: usize,
}

impl Queue {
    /// Creates a queue pair for end `vi`, with room for `messages` posted messages.
    pub(super) fn new(
        api: &'static Api,
        device: &mut Device,
        vi: u64,
        messages: u32,
    ) -> Result<Self, ViError> {
        let work = messages + OWN_WORK;
        if work > device.work_max {
            return Err(ViError::Exhausted("work request: lower the queue depths"));
        }
        let number = device.reserve(work)?;
        let (qp, inline_max, segments_max) =
            Self::create(api, device, number, work).inspect_err(|_| device.release(number, work))?;
        device.vis += 1;
        let mut this = Queue {
            api,
            qp,
            completions: (number, work),
            vi,
            inline_max,
            segments_max,
            records: vec![Work::Own; work.next_power_of_two() as usize].into(),
            posted: 0,
            retired: 0,
            messages: 0,
            own: 0,
            unsignalled: 0,
            unsignalled_max: messages / 4,
            control: None,
            stored: 0,
        };
        if inline_max < CONTROL_LEN_MAX {
            let made = control_room(api, device);
            let undo = |_: &ViError| {
                device.release(number, work);
                device.vis -= 1;
            };
            this.control = Some(made.inspect_err(undo)?);
        }
        Ok(this)
    }

    /// Copies a control message into registered memory, where it stays until it was sent.
    pub(super) fn store_control(&mut self, bytes: &[u8]) -> Option<Sge> {
        let (registered, memory) = self.control.as_ref()?;
        // One place for each work request of the provider's own that can be outstanding, used in turn.
        let offset = self.stored % OWN_WORK as usize * CONTROL_LEN_MAX;
        self.stored += 1;
        memory.write(offset, bytes);
        let addr = memory.at(offset, bytes.len())? as u64;
        Some(Sge { addr, length: bytes.len() as u32, lkey: registered.local_key() })
    }

    fn create(
        api: &'static Api,
        device: &Device,
        number: usize,
        work: u32,
    ) -> Result<(NonNull<ibv::Qp>, usize, usize), ViError> {
        let (send_cq, recv_cq) = device.queues(number).ok_or(ViError::Exhausted("completion queue"))?;
        let segments = SEGMENTS_MAX.min(device.segments_max);
        for inline in INLINE_ASKED {
            let cap = ibv::QpCap {
                max_send_wr: work,
                max_recv_wr: 0,
                max_send_sge: segments as u32,
                max_recv_sge: 0,
                max_inline_data: inline,
            };
            let mut init = ibv::QpInitAttr {
                qp_context: null_mut(),
                send_cq,
                recv_cq,
                srq: device.srq,
                cap,
                qp_type: ibv::QPT_RC,
                sq_sig_all: 0,
            };
            // SAFETY: the protection domain, the receive queue and the completion queues exist, and outlive
            // the queue pair; `init` is a local that outlives the call.
            let qp = unsafe { (api.create_qp)(device.pd, &raw mut init) };
            if let Some(qp) = NonNull::new(qp) {
                return Ok((qp, init.cap.max_inline_data as usize, segments));
            }
        }
        Err(sys::failed("ibv_create_qp"))
    }

    /// Returns the number that identifies the queue pair in completions of received messages.
    pub(super) fn number(&self) -> u32 {
        // SAFETY: `qp` is valid until `Drop` destroys it.
        unsafe { (*self.qp.as_ptr()).qp_num }
    }

    pub(super) fn is(&self, qp: *mut ibv::Qp) -> bool {
        self.qp.as_ptr() == qp
    }

    /// Moves the queue pair to `state`, with the attributes that the connection manager has for the
    /// connection.
    pub(super) fn transition(&mut self, id: *mut CmId, state: c_uint) -> Result<(), ViError> {
        let mut mask: c_int = 0;
        // SAFETY: all-zero bytes are a valid QpAttr, a local that outlives the calls; `id` belongs to the
        // live end of this queue, and `qp` is valid until `Drop`.
        unsafe {
            let mut attr: ibv::QpAttr = std::mem::zeroed();
            attr.qp_state = state;
            check("rdma_init_qp_attr", (self.api.init_qp_attr)(id, &raw mut attr, &raw mut mask))?;
            attr.qp_access_flags = (ibv::ACCESS_LOCAL_WRITE | ibv::ACCESS_REMOTE_WRITE) as c_uint;
            attr.min_rnr_timer = RNR_TIMER;
            (attr.timeout, attr.retry_cnt, attr.rnr_retry) = (TIMEOUT, RETRIES, RNR_RETRIES);
            mask &= !ibv::QP_NEVER_EXPOSED;
            check("ibv_modify_qp", (self.api.modify_qp)(self.qp.as_ptr(), &raw mut attr, mask))
        }
    }

    /// Moves the queue pair to the error state: it sends and receives nothing more.
    pub(super) fn stop(&mut self) {
        // SAFETY: all-zero bytes are a valid QpAttr, a local that outlives the call; `qp` is valid until
        // `Drop`. A failure means that the device is gone.
        unsafe {
            let mut attr: ibv::QpAttr = std::mem::zeroed();
            attr.qp_state = ibv::QPS_ERR;
            (self.api.modify_qp)(self.qp.as_ptr(), &raw mut attr, ibv::QP_STATE);
        }
    }

    /// Returns whether the provider may post `count` more work requests of its own.
    pub(super) fn has_room(&self, count: u32) -> bool {
        self.own + count <= OWN_WORK
    }

    /// Returns whether no completion is expected. Unsignalled messages after the last signalled work request
    /// may still be in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.own == 0 && self.messages == self.unsignalled
    }

    /// Posts a work request and records it as `work`.
    pub(super) fn post(&mut self, request: Request, work: Work) -> Result<(), Refusal> {
        let is_data = matches!(work, Work::Data { .. });
        if !is_data && !self.has_room(1) {
            return Err(Refusal::Full);
        }
        let signalled = request.signalled || !is_data || self.unsignalled >= self.unsignalled_max;
        let mut flags = if signalled { ibv::SEND_SIGNALED } else { 0 };
        if request.inline && !request.segments.is_empty() {
            flags |= ibv::SEND_INLINE;
        }
        let mut raw = ibv::SendWr {
            wr_id: u64::from(short(self.vi)) << 32 | u64::from(self.posted),
            next: null_mut(),
            sg_list: request.segments.as_mut_ptr(),
            num_sge: request.segments.len() as c_int,
            opcode: request.opcode,
            send_flags: flags,
            imm_data: request.immediate.to_be(),
            remote_addr: request.remote.0,
            rkey: request.remote.1,
            rest: [0; 9],
        };
        let mut bad = null_mut();
        // SAFETY: `qp` is valid until `Drop`; `raw`, its segments and `bad` outlive the call. The bytes of
        // the segments are copied during the call if inline; otherwise they lie in registered memory that
        // stays mapped until the work request is retired.
        let result = unsafe {
            let qp = self.qp.as_ptr();
            ((*(*qp).context).ops.post_send)(qp, &raw mut raw, &raw mut bad)
        };
        match result {
            0 => {}
            libc::ENOMEM => return Err(Refusal::Full),
            _ => return Err(Refusal::Broken),
        }
        let mask = self.records.len() - 1;
        self.records[self.posted as usize & mask] = work;
        self.posted = (self.posted + 1) & NUMBER_MASK;
        if is_data {
            self.messages += 1;
            self.unsignalled = if signalled { 0 } else { self.unsignalled + 1 };
        } else {
            self.own += 1;
            self.unsignalled = 0;
        }
        Ok(())
    }

    /// Retires the oldest work request, if the completion with number `until` covers it.
    pub(super) fn retire(&mut self, until: u32) -> Option<Work> {
        let pending = self.posted.wrapping_sub(self.retired) & NUMBER_MASK;
        let covered = (until.wrapping_sub(self.retired) & NUMBER_MASK) < pending;
        if !covered {
            return None;
        }
        let work = self.records[self.retired as usize & (self.records.len() - 1)];
        self.retired = (self.retired + 1) & NUMBER_MASK;
        match work {
            Work::Data { .. } => self.messages -= 1,
            Work::Own => self.own -= 1,
        }
        Some(work)
    }

    /// Iterates over the work requests that are not retired, oldest first.
    pub(super) fn pending(&self) -> impl Iterator<Item = &Work> {
        let count = self.posted.wrapping_sub(self.retired) & NUMBER_MASK;
        let at = |n: u32| self.retired.wrapping_add(n) as usize & (self.records.len() - 1);
        (0..count).filter_map(move |n| self.records.get(at(n)))
    }

    /// Retires the oldest work request after the queue pair was stopped, without a completion.
    pub(super) fn abandon(&mut self) -> Option<Work> {
        self.retire(self.posted.wrapping_sub(1) & NUMBER_MASK)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: destroyed once, here. An error means that the device is gone.
        unsafe { (self.api.destroy_qp)(self.qp.as_ptr()) };
    }
}
