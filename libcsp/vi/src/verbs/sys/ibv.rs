//! The declarations of `infiniband/verbs.h` that the provider uses.

use std::ffi::{c_int, c_uint, c_void};

/// A struct of the library that is only used behind pointers.
macro_rules! opaque {
    ($($name:ident)*) => { $(#[repr(C)] pub(in crate::verbs) struct $name([u8; 0]);)* };
}

opaque!(Device Pd Srq);

type PollCq = unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int;
type ReqNotifyCq = unsafe extern "C" fn(*mut Cq, c_int) -> c_int;
type PostSrqRecv = unsafe extern "C" fn(*mut Srq, *mut RecvWr, *mut *mut RecvWr) -> c_int;
type PostSend = unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int;

/// The driver's functions, which the inline functions of the header call.
#[repr(C)]
pub(in crate::verbs) struct ContextOps {
    older: [*mut c_void; 11],
    pub poll_cq: PollCq,
    pub req_notify_cq: ReqNotifyCq,
    between: [*mut c_void; 7],
    pub post_srq_recv: PostSrqRecv,
    queue_pairs: [*mut c_void; 4],
    pub post_send: PostSend,
    rest: [*mut c_void; 6],
}

#[repr(C)]
pub(in crate::verbs) struct Context {
    pub device: *mut Device,
    pub ops: ContextOps,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
}

#[repr(C)]
pub(in crate::verbs) struct CompChannel {
    pub context: *mut Context,
    pub fd: c_int,
}

#[repr(C)]
pub(in crate::verbs) struct Cq {
    pub context: *mut Context,
    channel: *mut CompChannel,
    cq_context: *mut c_void,
    handle: u32,
    /// The capacity in completions.
    pub cqe: c_int,
}

#[repr(C)]
pub(in crate::verbs) struct Mr {
    context: *mut Context,
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

#[repr(C)]
pub(in crate::verbs) struct Qp {
    pub context: *mut Context,
    qp_context: *mut c_void,
    pd: *mut Pd,
    send_cq: *mut Cq,
    recv_cq: *mut Cq,
    srq: *mut Srq,
    handle: u32,
    pub qp_num: u32,
}

#[repr(C)]
pub(in crate::verbs) struct DeviceAttr {
    fw_ver: [u8; 64],
    guids: [u64; 2],
    max_mr_size: u64,
    page_size_cap: u64,
    vendor: [u32; 3],
    max_qp: c_int,
    pub max_qp_wr: c_int,
    device_cap_flags: c_uint,
    pub max_sge: c_int,
    max_sge_rd: c_int,
    max_cq: c_int,
    pub max_cqe: c_int,
    between: [c_int; 20],
    pub max_srq_wr: c_int,
    max_srq_sge: c_int,
    max_pkeys: u16,
    local_ca_ack_delay: u8,
    phys_port_cnt: u8,
}

/// The layout that the exported `ibv_query_port` writes.
#[repr(C)]
pub(in crate::verbs) struct PortAttr {
    pub state: c_uint,
    rest: [u32; 12],
    /// Room for fields that a later library may add.
    reserve: [u32; 16],
}

pub(in crate::verbs) const PORT_ACTIVE: c_uint = 4;

pub(in crate::verbs) const ACCESS_LOCAL_WRITE: c_int = 1;
pub(in crate::verbs) const ACCESS_REMOTE_WRITE: c_int = 2;

#[repr(C)]
#[derive(Clone, Copy)]
pub(in crate::verbs) struct Sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

#[repr(C)]
pub(in crate::verbs) struct RecvWr {
    pub wr_id: u64,
    pub next: *mut RecvWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
}

#[repr(C)]
pub(in crate::verbs) struct SendWr {
    pub wr_id: u64,
    pub next: *mut SendWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
    pub opcode: c_uint,
    pub send_flags: c_uint,
    /// In network byte order.
    pub imm_data: u32,
    pub remote_addr: u64,
    pub rkey: u32,
    /// The rest of the unions; RDMA WRITE and SEND do not use it.
    pub rest: [u64; 9],
}

pub(in crate::verbs) const WR_RDMA_WRITE: c_uint = 0;
pub(in crate::verbs) const WR_RDMA_WRITE_WITH_IMM: c_uint = 1;
pub(in crate::verbs) const WR_SEND: c_uint = 2;
pub(in crate::verbs) const WR_SEND_WITH_IMM: c_uint = 3;

pub(in crate::verbs) const SEND_SIGNALED: c_uint = 2;
pub(in crate::verbs) const SEND_INLINE: c_uint = 8;

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(in crate::verbs) struct Wc {
    pub wr_id: u64,
    pub status: c_uint,
    pub opcode: c_uint,
    pub vendor_err: u32,
    pub byte_len: u32,
    /// In network byte order.
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

pub(in crate::verbs) const WC_SUCCESS: c_uint = 0;
pub(in crate::verbs) const WC_RECV: c_uint = 128;
pub(in crate::verbs) const WC_RECV_RDMA_WITH_IMM: c_uint = 129;
pub(in crate::verbs) const WC_WITH_IMM: c_uint = 2;

#[repr(C)]
pub(in crate::verbs) struct SrqInitAttr {
    pub srq_context: *mut c_void,
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(in crate::verbs) struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

#[repr(C)]
pub(in crate::verbs) struct QpInitAttr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    pub cap: QpCap,
    pub qp_type: c_uint,
    pub sq_sig_all: c_int,
}

pub(in crate::verbs) const QPT_RC: c_uint = 2;

pub(in crate::verbs) const QPS_INIT: c_uint = 1;
pub(in crate::verbs) const QPS_RTR: c_uint = 2;
pub(in crate::verbs) const QPS_RTS: c_uint = 3;
pub(in crate::verbs) const QPS_ERR: c_uint = 6;

#[repr(C)]
pub(in crate::verbs) struct AhAttr {
    gid: [u64; 2],
    flow_label: u32,
    small: [u8; 4],
    dlid: u16,
    path: [u8; 6],
}

#[repr(C)]
pub(in crate::verbs) struct QpAttr {
    pub qp_state: c_uint,
    pub cur_qp_state: c_uint,
    pub path_mtu: c_uint,
    pub path_mig_state: c_uint,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: QpCap,
    pub ah_attr: AhAttr,
    pub alt_ah_attr: AhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

pub(in crate::verbs) const QP_STATE: c_int = 1 << 0;
/// Attributes of the kernel's connection manager that the verbs interface does not accept.
pub(in crate::verbs) const QP_NEVER_EXPOSED: c_int = 0xf << 21;

#[repr(C)]
pub(in crate::verbs) struct AsyncEvent {
    /// The object of the event: a queue pair, for the events of queue pairs.
    pub element: *mut c_void,
    pub event_type: c_uint,
}

pub(in crate::verbs) const EVENT_CQ_ERR: c_uint = 0;
pub(in crate::verbs) const EVENT_QP_FATAL: c_uint = 1;
pub(in crate::verbs) const EVENT_QP_REQ_ERR: c_uint = 2;
pub(in crate::verbs) const EVENT_QP_ACCESS_ERR: c_uint = 3;
pub(in crate::verbs) const EVENT_DEVICE_FATAL: c_uint = 8;
pub(in crate::verbs) const EVENT_SRQ_ERR: c_uint = 14;

// Sizes and offsets of the structs of rdma-core 44 on 64-bit Linux, as a C compiler computes them from its
// headers.
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<ContextOps>() == 256);
    assert!(offset_of!(Context, cmd_fd) == 264 && offset_of!(Context, async_fd) == 268);
    assert!(offset_of!(ContextOps, poll_cq) == 88 && offset_of!(ContextOps, req_notify_cq) == 96);
    assert!(offset_of!(ContextOps, post_srq_recv) == 160 && offset_of!(ContextOps, post_send) == 200);
    assert!(offset_of!(CompChannel, fd) == 8 && offset_of!(Cq, cqe) == 28);
    assert!(offset_of!(Mr, lkey) == 36 && offset_of!(Mr, rkey) == 40);
    assert!(offset_of!(Qp, qp_num) == 52);
    assert!(size_of::<DeviceAttr>() == 232 && offset_of!(DeviceAttr, max_qp_wr) == 112);
    assert!(offset_of!(DeviceAttr, max_sge) == 120 && offset_of!(DeviceAttr, max_cqe) == 132);
    assert!(offset_of!(DeviceAttr, max_srq_wr) == 216);
    assert!(size_of::<PortAttr>() >= 52);
    assert!(size_of::<Sge>() == 16 && size_of::<RecvWr>() == 32 && size_of::<Wc>() == 48);
    assert!(size_of::<SendWr>() == 128 && offset_of!(SendWr, remote_addr) == 40);
    assert!(offset_of!(SendWr, imm_data) == 36 && offset_of!(Wc, imm_data) == 24);
    assert!(size_of::<SrqInitAttr>() == 24 && size_of::<QpInitAttr>() == 64);
    assert!(size_of::<AhAttr>() == 32 && size_of::<QpAttr>() == 144);
    assert!(offset_of!(QpAttr, ah_attr) == 56 && offset_of!(QpAttr, max_rd_atomic) == 126);
    assert!(offset_of!(QpAttr, timeout) == 130 && offset_of!(QpAttr, rnr_retry) == 132);
    assert!(size_of::<AsyncEvent>() == 16);
};
