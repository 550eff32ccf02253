//! Delivery rate estimation: the state recorded with transmissions, and the sample that an acknowledgement
//! yields (draft-ietf-ccwg-bbr, "Delivery Rate Samples").

use csp_types::Instant;

use crate::congestion::RateSample;
use crate::recovery::flight::Stamp;
use crate::recovery::pool::Record;

/// The delivery state of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delivery {
    /// C.delivered, C.delivered_time
    delivered: u64,
    at: Instant,
    /// C.first_send_time: send time of the most recently delivered transmission.
    first_sent: Instant,
    /// C.app_limited: until this many bytes are delivered, samples do not show the path's capacity. 0: they
    /// do.
    limited_until: u64,
}

impl Delivery {
    pub const NONE: Delivery =
        Delivery { delivered: 0, at: Instant::ZERO, first_sent: Instant::ZERO, limited_until: 0 };

    /// The state to record with a transmission at `now`; `in_flight` bytes are in the network before it.
    pub fn stamp(&mut self, now: Instant, in_flight: u32) -> Stamp {
        if in_flight == 0 {
            (self.at, self.first_sent) = (now, now);
        }
        Stamp {
            sent: now,
            delivered: self.delivered,
            delivered_at: self.at,
            first_sent: self.first_sent,
            app_limited: self.limited_until != 0,
        }
    }

    /// Records that `record` was delivered at `at`. `newest` is updated to the record sent last among those
    /// that this acknowledgement delivered.
    pub fn on_delivered(&mut self, record: &Record, at: Instant, newest: &mut Option<Record>) {
        self.delivered += u64::from(record.len());
        self.at = at;
        let newer =
            newest.is_none_or(|n| record.sent > n.sent || (record.sent == n.sent && record.end.after(n.end)));
        if newer {
            *newest = Some(*record);
        }
    }

    /// Records that `len` bytes without a record were delivered at `at`.
    pub fn on_unrecorded_delivered(&mut self, len: u32, at: Instant) {
        self.delivered += u64::from(len);
        self.at = at;
    }

    /// The delivery rate sample of an acknowledgement.
    pub fn sample(&mut self, newest: Option<&Record>) -> Option<RateSample> {
        if self.limited_until != 0 && self.delivered > self.limited_until {
            self.limited_until = 0;
        }
        let newest = newest?;
        let send = newest.sent.saturating_since(newest.first_sent);
        let acknowledged = self.at.saturating_since(newest.delivered_at);
        self.first_sent = newest.sent;
        let delivered = u32::try_from(self.delivered.saturating_sub(newest.delivered)).unwrap_or(u32::MAX);
        Some(RateSample { delivered, interval: send.max(acknowledged), app_limited: newest.app_limited })
    }

    /// Records that no data is left to send although the window permits it; `in_flight` bytes are in the
    /// network.
    pub fn limit(&mut self, in_flight: u32) {
        self.limited_until = (self.delivered + u64::from(in_flight)).max(1);
    }
}
