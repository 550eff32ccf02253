//! RACK: loss is what was sent before something that was delivered, and had time enough (RFC 8985 §6).

use core::time::Duration;

use csp_types::Instant;

use crate::recovery::Phase;
use crate::recovery::flight::Flight;
use crate::recovery::pool::{Record, RecordPool};
use crate::rtt::Rtt;
use crate::seq::Seq;

/// RFC 8985 §6.2 step 4: segments SACKed that count as loss while no reordering was seen.
pub(crate) const DUPLICATE_THRESHOLD: u32 = 3;
/// Recoveries without D-SACK after which the reordering window shrinks again (RFC 8985 §6.2 step 4).
const PERSIST: u8 = 16;

/// What RACK knows of one connection.
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
    /// RACK.rtt of it, in nanoseconds.
    rtt: u64,
    /// The highest sequence number known to be delivered.
    fack: Seq,
    reordering_seen: bool,
    /// RACK.reo_wnd_mult, RACK.reo_wnd_persist, RACK.dsack_round.
    multiplier: u8,
    persist: u8,
    round_end: Seq,
}

/// What a search for losses found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Found {
    /// Bytes newly taken for lost.
    pub lost: u32,
    /// Some of them had been sent again before.
    pub again: bool,
    /// When the next record will have had time enough.
    pub deadline: Option<Instant>,
}

/// What decides how long records may be overtaken.
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

    /// RFC 8985 §5.2, RACK_sent_after: whether what is told of was sent after `record`.
    fn sent_after(&self, record: &Record) -> bool {
        self.xmit_ts > record.sent || (self.xmit_ts == record.sent && self.end_seq.after(record.end))
    }

    /// RFC 8985 §6.2 steps 2 and 3: `record` was delivered at `at`. `echo_before`: the peer's echo shows an earlier
    /// transmission of it than the last.
    pub fn on_delivered(&mut self, record: &Record, at: Instant, echo_before: bool, min: Option<Duration>) {
        let rtt = at.saturating_since(record.sent);
        if !record.retransmitted && record.end.before(self.fack) {
            self.reordering_seen = true;
        }
        // An acknowledgement of the original, not of what was sent again.
        if record.retransmitted && (echo_before || min.is_some_and(|min| rtt < min)) {
            return;
        }
        if !self.sent_after(record) {
            let nanos = u64::try_from(rtt.as_nanos()).unwrap_or(u64::MAX);
            (self.xmit_ts, self.end_seq, self.rtt) = (record.sent, record.end, nanos);
        }
    }

    /// Everything of an acknowledgement was told; the highest sequence number of it was `highest`.
    pub fn on_highest(&mut self, highest: Seq) {
        self.fack = self.fack.max(highest);
        // Kept near, so that it stays comparable.
        self.round_end = self.round_end.max(highest.minus(1 << 30));
    }

    /// What was sent later arrived earlier, as the taking back of a recovery shows.
    pub fn set_reordering_seen(&mut self) {
        self.reordering_seen = true;
    }

    /// What was taken for the answer to a retransmission answered the original: what is sent before it is not late.
    pub fn reset_xmit_ts(&mut self) {
        self.xmit_ts = Instant::ZERO;
    }

    /// RFC 8985 §6.2 step 4: the window grows by a step in each round trip that tells of duplicates.
    pub fn on_duplicate_report(&mut self, una: Seq, nxt: Seq) {
        if una.before(self.round_end) {
            return;
        }
        self.round_end = nxt;
        self.multiplier = self.multiplier.saturating_add(1);
        self.persist = PERSIST;
    }

    /// A recovery is over.
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

    /// RFC 8985 §6.2 step 5: marks what had time enough at `now`. The time of the next is that of the oldest, where the
    /// RFC waits for the youngest.
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

    /// RFC 8985 §6.3: the retransmission timer fired. The head is lost, and so is what had time enough.
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
