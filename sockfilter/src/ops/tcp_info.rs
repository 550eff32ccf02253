//! TCP_INFO of an accelerated connection: requested from its proxy, which owns the client's TCP connection.

use csp_wire::channel::InfoPayload;
use libc::{c_int, c_void, socklen_t};

use super::now;
use crate::description::Kind;
use crate::engine::{ENGINE, errno_of};
use crate::lock;
use crate::sys::Errno;
use crate::wait::{Attempt, Deadline, blocking};

/// Time limit for the proxy's answer, in nanoseconds.
const TIMEOUT_NS: u64 = 1_000_000_000;

/// The start of Linux' `struct tcp_info`, as far as a proxy knows its fields; the others are zero.
#[repr(C)]
#[derive(Default)]
struct TcpInfo {
    state: u8,
    ca_state: u8,
    retransmits: u8,
    probes: u8,
    backoff: u8,
    options: u8,
    wscale: u8,
    flags: u8,
    rto: u32,
    ato: u32,
    snd_mss: u32,
    rcv_mss: u32,
    unacked: u32,
    sacked: u32,
    lost: u32,
    retrans: u32,
    fackets: u32,
    times: [u32; 4],
    pmtu: u32,
    rcv_ssthresh: u32,
    rtt: u32,
    rttvar: u32,
    snd_ssthresh: u32,
    snd_cwnd: u32,
    advmss: u32,
    reordering: u32,
    rcv_rtt: u32,
    rcv_space: u32,
    total_retrans: u32,
    pacing_rate: u64,
    max_pacing_rate: u64,
    bytes_acked: u64,
    bytes_received: u64,
    segs: [u32; 2],
    notsent_bytes: u32,
    min_rtt: u32,
    data_segs: [u32; 2],
    delivery_rate: u64,
}

impl From<InfoPayload> for TcpInfo {
    fn from(info: InfoPayload) -> Self {
        let segments = |bytes: u32| bytes.div_ceil(info.mss.max(1));
        TcpInfo {
            state: info.state as u8,
            rto: info.rto_us,
            snd_mss: info.mss,
            rcv_mss: info.mss,
            advmss: info.mss,
            unacked: segments(info.in_flight),
            rtt: info.rtt_us,
            // The timeout is the round trip and four of its deviations (RFC 6298 §2).
            rttvar: info.rto_us.saturating_sub(info.rtt_us) / 4,
            snd_ssthresh: segments(info.ssthresh),
            snd_cwnd: segments(info.cwnd),
            reordering: 3,
            total_retrans: info.retransmits,
            notsent_bytes: info.send_queue.saturating_sub(info.in_flight),
            delivery_rate: info.delivery_rate,
            ..TcpInfo::default()
        }
    }
}

/// getsockopt(TCP_INFO); `None`: not an accelerated connection.
///
/// # Safety
/// `value` must have `*len` writable bytes, `len` be readable and writable.
pub unsafe fn get(fd: c_int, value: *mut c_void, len: *mut socklen_t) -> Option<Result<usize, Errno>> {
    if lock::inside() {
        return None;
    }
    let asked = ENGINE.with(|engine| {
        let id = engine.of_fd(fd)?;
        let Kind::Flow(flow) = engine.descriptions.get(id.index)?.kind else { return None };
        Some(engine.link.as_mut()?.app.ask_info(now(), flow).map(|()| (id, flow)).map_err(errno_of))
    })?;
    let answer = asked.and_then(|(id, flow)| {
        blocking(id, Deadline::after(Some(TIMEOUT_NS)), |engine| {
            let info = engine.link.as_ref().and_then(|l| l.app.info(flow));
            info.map_or(Attempt::WouldBlock, |info| Attempt::Done(Ok(info)))
        })
    });
    Some(answer.map(|info| {
        let reported = TcpInfo::from(info);
        // SAFETY: by the caller's contract `value` is writable for `*len` bytes, and `len` for one length; at
        // most the structure is copied.
        unsafe {
            let room = (*len as usize).min(size_of::<TcpInfo>());
            core::ptr::copy_nonoverlapping((&raw const reported).cast::<u8>(), value.cast::<u8>(), room);
            *len = room as socklen_t;
        }
        0
    }))
}
