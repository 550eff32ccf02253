//! Snapshots of connections for the caller.

use csp_types::Instant;

use crate::api::{ConnectionInfo, Figures};
use crate::config::StackConfig;
use crate::ranges::RangePool;
use crate::tcb::Tcb;

impl Tcb {
    /// Returns what the log says of the connection.
    pub(crate) fn figures(&self) -> Figures {
        let srtt = self.rtt.srtt().unwrap_or_default();
        let srtt_us = u32::try_from(srtt.as_micros()).unwrap_or(u32::MAX);
        Figures { srtt_us, retransmits: self.retransmits }
    }

    /// Returns a snapshot of the connection.
    pub fn info(&self, config: &StackConfig, ranges: &RangePool) -> ConnectionInfo {
        let deadline = self.deadline();
        let srtt = self.rtt.srtt().unwrap_or_default();
        ConnectionInfo {
            label: self.label,
            tuple: self.tuple,
            state: self.state,
            service: self.service,
            via: self.via,
            srtt_us: u64::try_from(srtt.as_micros()).unwrap_or(u64::MAX),
            rto: self.rtt.rto(config),
            congestion: self.congestion.algorithm(),
            cwnd: self.congestion.cwnd(),
            ssthresh: self.congestion.ssthresh(),
            ecn: self.ecn.capable,
            pacing_rate: self.pacing_rate(),
            delivery_rate: self.congestion.delivery_rate(),
            in_flight: self.outstanding(),
            send_window: self.snd_wnd,
            mss: self.mss(),
            send_queue: self.send.len() as usize,
            receive_queue: self.receive.readable() as usize,
            out_of_order: self.receive.out_of_order(ranges) as usize,
            retransmits: self.retransmits,
            deadline: (deadline != Instant::FAR_FUTURE).then_some(deadline),
        }
    }
}
