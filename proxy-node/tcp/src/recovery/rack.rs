//! RACK: a record is lost if it was sent before a delivered one and enough time has passed (RFC 8985 §6).

use core::time::Duration;

use csp_types::Instant;

use crate::recovery::Phase;
use crate::recovery::flight::Flight;
use crate::recovery::pool::{Record, RecordPool};
use crate::rtt::Rtt;
use crate::seq::Seq;

/// RFC 8985 §6.2 step 4: number of SACKed segments that indicates a loss while no reordering was observed.
pub(crate) const DUPLICATE_THRESHOLD: u32 = 3;
/// Number of recoveries without D-SACK after which the reordering window is reset (RFC 8985 §6.2 step 4).
const PERSIST: u8 = 16;

/// The RACK state of one connection.
///
/// ```text
///   sent:   |---- before `sent` ----------|x|--- later, nothing known ----|
///            lost once older than          what was sent last
///            rtt + reordering window       of all that was delivered
/// ```
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rack {
    /// RACK.xmit_ts, RACK.end_seq: of the most recently sent record that was delivered.
    xmit_ts: Instant,
    end_seq: Seq,
    /// RACK.rtt of that record, in nanoseconds.
    rtt: u64,
    /// The highest sequence number known to be delivered.
    fack: Seq,
    reordering_seen: bool,
    /// RACK.reo_wnd_mult, RACK.reo_wnd_persist, RACK.dsack_round.
    multiplier: u8,
    persist: u8,
    round_end: Seq,
}

/// Result of loss detection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Found {
    /// Bytes newly marked as lost.
    pub lost: u32,
    /// Some of them were retransmissions.
    pub again: bool,
    /// When the next record will be lost if it is not delivered.
    pub deadline: Option<Instant>,
}

/// Connection state that determines how much reordering is tolerated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LossContext {
    pub phase: Phase,
    pub mss: u32,
    pub rtt: Rtt,
}

impl Rack {
    pub fn new(iss: Seq) -> Self {
        Rack {
            xmit_ts: Instant::ZERO,
            end_seq: iss,
            rtt: 0,
            fack: iss,
            reordering_seen: false,
            multiplier: 1,
            persist: 0,
            round_end: iss,
        }
    }

    /// RFC 8985 §5.2, RACK_sent_after: whether the most recently sent delivered record was sent after
    /// `record`.
    fn sent_after(&self, record: &Record) -> bool {
        self.xmit_ts > record.sent || (self.xmit_ts == record.sent && self.end_seq.after(record.end))
    }

    /// RFC 8985 §6.2 steps 2 and 3: `record` was delivered at `at`. `echo_before`: the peer's timestamp echo
    /// belongs to an earlier transmission of it than the last.
    pub fn on_delivered(&mut self, record: &Record, at: Instant, echo_before: bool, min: Option<Duration>) {
        let rtt = at.saturating_since(record.sent);
        if !record.retransmitted && record.end.before(self.fack) {
            self.reordering_seen = true;
        }
        // The acknowledgement is of the original transmission, not of the retransmission.
        if record.retransmitted && (echo_before || min.is_some_and(|min| rtt < min)) {
            return;
        }
        if !self.sent_after(record) {
            let nanos = u64::try_from(rtt.as_nanos()).unwrap_or(u64::MAX);
            (self.xmit_ts, self.end_seq, self.rtt) = (record.sent, record.end, nanos);
        }
    }

    /// Ends the processing of an acknowledgement; `highest` is the highest sequence number that it reported
    /// as delivered.
    pub fn on_highest(&mut self, highest: Seq) {
        self.fack = self.fack.max(highest);
        // Kept within comparable distance.
        self.round_end = self.round_end.max(highest.minus(1 << 30));
    }

    /// Records that reordering was observed: a recovery turned out to be spurious.
    pub fn set_reordering_seen(&mut self) {
        self.reordering_seen = true;
    }

    /// Discards RACK.xmit_ts: an acknowledgement attributed to a retransmission belonged to the original, so
    /// that records sent before the retransmission are not late.
    pub fn reset_xmit_ts(&mut self) {
        self.xmit_ts = Instant::ZERO;
    }

    /// RFC 8985 §6.2 step 4: the reordering window grows by one step in each round trip with a duplicate
    /// report.
    pub fn on_duplicate_report(&mut self, una: Seq, nxt: Seq) {
        if una.before(self.round_end) {
            return;
        }
        self.round_end = nxt;
        self.multiplier = self.multiplier.saturating_add(1);
        self.persist = PERSIST;
    }

    /// Counts a recovery that has ended.
    pub fn on_recovered(&mut self) {
        self.persist = self.persist.saturating_sub(1);
        if self.persist == 0 {
            self.multiplier = 1;
        }
    }

    /// RACK.reo_wnd
    fn reordering_window(&self, flight: &Flight, context: &LossContext) -> Duration {
        let (Some(min), Some(srtt)) = (context.rtt.min(), context.rtt.srtt()) else { return Duration::ZERO };
        if !self.reordering_seen {
            let enough = flight.sacked() > (DUPLICATE_THRESHOLD - 1) * context.mss;
            if context.phase != Phase::Open || enough {
                return Duration::ZERO;
            }
        }
        (min / 4 * u32::from(self.multiplier)).min(srtt)
    }

    /// RFC 8985 §6.2 step 5: marks records as lost whose time is over at `now`. The deadline returned is that
    /// of the oldest remaining record, whereas the RFC uses that of the youngest.
    pub fn detect(
        &self,
        flight: &mut Flight,
        pool: &mut RecordPool,
        now: Instant,
        context: &LossContext,
    ) -> Found {
        let loss_delay = Duration::from_nanos(self.rtt) + self.reordering_window(flight, context);
        let mut found = Found::default();
        while let Some(record) = flight.oldest(pool) {
            if !self.sent_after(record) {
                break;
            }
            let due = record.sent + loss_delay;
            if due > now {
                found.deadline = Some(due);
                break;
            }
            found.lost += record.len();
            found.again |= record.retransmitted;
            flight.mark_oldest_lost(pool);
        }
        found
    }

    /// RFC 8985 §6.3: the retransmission timer fired. Marks the head of the flight as lost, and all records
    /// whose time is over.
    pub fn on_timeout(
        &self,
        flight: &mut Flight,
        pool: &mut RecordPool,
        now: Instant,
        context: &LossContext,
    ) {
        let loss_delay = Duration::from_nanos(self.rtt) + self.reordering_window(flight, context);
        while let Some(record) = flight.oldest(pool)
            && record.sent + loss_delay <= now
        {
            flight.mark_oldest_lost(pool);
        }
        flight.mark_head_lost(pool, context.mss);
    }
}
