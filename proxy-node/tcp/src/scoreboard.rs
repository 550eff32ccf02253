//! What the sender believes of its sent data: SACKed, lost, retransmitted (RFC 6675; RFC 6582 without SACK).

use csp_wire::tcp::SackBlock;

use crate::ranges::{RangePool, Ranges};
use crate::seq::Seq;

/// Where loss recovery stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// No loss known.
    Open,
    /// Acknowledgements told of loss: fast retransmission (RFC 6675 §5, RFC 6582 §3.2).
    Recovery,
    /// The retransmission timer fired (RFC 5681 §3.1).
    Timeout,
}

/// ```text
///   snd_una          high_rxt            lost_end              snd_nxt
///     |--- lost, sent again --|--- lost, waiting ---|--- in flight ---|
///            SACKed ranges may lie anywhere; they count as neither
/// ```
#[derive(Debug)]
pub(crate) struct Scoreboard {
    sacked: Ranges,
    phase: Phase,
    /// Everything unSACKed before it was retransmitted since it was found lost.
    high_rxt: Seq,
    /// Everything unSACKed before it is lost.
    lost_end: Seq,
    /// snd_nxt when the loss was found: the phase ends when it is acknowledged.
    recover: Seq,
    /// Without SACK: how many duplicate acknowledgements came in a row, and how many bytes they stand for.
    duplicates: u32,
    duplicate_bytes: u32,
    /// How many segments must overtake one before it counts as lost; rises when we were wrong (RFC 4653).
    threshold: u32,
    /// The next retransmission may exceed the congestion window: it is the one an acknowledgement asked for.
    forced: bool,
    /// Nothing was retransmitted yet in this phase.
    fresh: bool,
    /// Our timestamp on the first retransmission, until the next acknowledgement shows whether it was needed.
    first_retransmission: Option<u32>,
    /// Everything unSACKed before it is lost unless it arrives within the reordering window.
    suspect_end: Seq,
    /// The head that was retransmitted last, and snd_nxt then: SACKs of later data mean that it was lost again.
    head: (Seq, Seq),
}

const THRESHOLD: u32 = 3;
const THRESHOLD_MAX: u32 = 12;

impl Scoreboard {
    /// Nothing sent yet; the first sequence number is `iss`.
    pub fn new(iss: Seq) -> Self {
        Scoreboard {
            sacked: Ranges::EMPTY,
            phase: Phase::Open,
            high_rxt: iss,
            lost_end: iss,
            recover: iss,
            duplicates: 0,
            duplicate_bytes: 0,
            threshold: THRESHOLD,
            forced: false,
            fresh: false,
            first_retransmission: None,
            suspect_end: iss,
            head: (iss, iss),
        }
    }

    pub fn phase(&self) -> Phase {
        self.phase
    }

    pub fn has_sacked(&self) -> bool {
        !self.sacked.is_empty()
    }

    /// Whether the next retransmission goes out regardless of the congestion window.
    pub fn is_forced(&self) -> bool {
        self.forced
    }

    /// Sequence numbers believed to be in the network (RFC 6675 §4, SetPipe).
    pub fn pipe(&self, pool: &RangePool, una: Seq, nxt: Seq) -> u32 {
        let waiting_from = self.high_rxt.max(una);
        let waiting =
            self.lost_end.since(waiting_from) - self.sacked.count_within(pool, waiting_from, self.lost_end);
        let sacked = self.sacked.count_within(pool, una, nxt);
        nxt.since(una).saturating_sub(sacked + waiting + self.duplicate_bytes)
    }

    /// The lost stretch to be retransmitted next.
    pub fn next_hole(&mut self, pool: &RangePool, una: Seq) -> Option<(Seq, Seq)> {
        let (start, end) = self.sacked.first_gap(pool, self.high_rxt.max(una));
        let end = end.unwrap_or(self.lost_end).min(self.lost_end);
        start.before(end).then_some((start, end))
    }

    /// `start .. end` of a hole is on its way again; `timestamp` is what it carries.
    pub fn on_retransmit(&mut self, una: Seq, nxt: Seq, start: Seq, end: Seq, timestamp: Option<u32>) {
        if self.fresh {
            self.first_retransmission = timestamp;
            self.fresh = false;
        }
        self.forced = false;
        if start == una {
            self.head = (una, nxt);
        }
        self.high_rxt = self.high_rxt.max(end);
    }

    /// Takes in the SACK blocks of an acknowledgement and says how many bytes were not known of before. Blocks that
    /// cannot be of what is in flight are ignored, D-SACKs (RFC 2883) among them.
    pub fn on_sack(&mut self, pool: &mut RangePool, una: Seq, nxt: Seq, blocks: &[SackBlock]) -> u32 {
        let mut new = 0;
        for block in blocks {
            let (start, end) = (Seq(block.start), Seq(block.end));
            // Measured from snd_una, because a hostile block can span more than comparisons hold for.
            let (first, last) = (start.0.wrapping_sub(una.0), end.0.wrapping_sub(una.0));
            if first > 0 && first < last && last <= nxt.since(una) {
                // Without room the data counts as not SACKed: it may be sent once too often.
                new += self.sacked.insert(pool, start, end).unwrap_or(0);
            }
        }
        new
    }

    /// snd_una moved to `una`.
    pub fn on_advance(&mut self, pool: &mut RangePool, una: Seq, nxt: Seq, acked: u32, mss: u32, sack: bool) {
        self.sacked.trim_before(pool, una);
        self.duplicates = 0;
        self.high_rxt = self.high_rxt.max(una);
        self.lost_end = self.lost_end.max(una);
        match self.phase {
            Phase::Open => {
                self.duplicate_bytes = 0;
                // Kept near, so that it stays comparable.
                self.recover = self.recover.max(una.minus(1 << 24));
            }
            _ if !una.before(self.recover) => self.end(una),
            // RFC 6582 §3.2 step 3: a partial acknowledgement names the next lost segment.
            Phase::Recovery if !sack => {
                self.duplicate_bytes = self.duplicate_bytes.saturating_sub(acked);
                self.high_rxt = una;
                self.lost_end = una.plus(mss).min(nxt);
                self.forced = true;
            }
            Phase::Recovery | Phase::Timeout => self.head = (una, nxt),
        }
    }

    /// A duplicate acknowledgement without SACK (RFC 5681 §2) of `mss` bytes. `true`: loss was found.
    pub fn on_duplicate(&mut self, una: Seq, nxt: Seq, mss: u32) -> bool {
        if self.phase == Phase::Timeout {
            return false;
        }
        self.duplicates += 1;
        self.duplicate_bytes = (self.duplicate_bytes + mss).min(nxt.since(una).saturating_sub(mss));
        // RFC 6582 §3.2 step 1: not for data that was already recovered.
        let found = self.phase == Phase::Open && self.duplicates == self.threshold && una.after(self.recover);
        if found {
            self.lost_end = una.plus(mss).min(nxt);
        }
        found
    }

    /// Finds what the SACKed ranges show to be lost (RFC 6675 §4, IsLost). With `probed`, a tail loss probe was
    /// answered, and whatever precedes a SACKed range had time enough to arrive. `true`: something new is lost.
    pub fn find_losses(&mut self, pool: &RangePool, una: Seq, mss: u32, probed: bool) -> bool {
        let ranges = self.sacked.as_slice(pool);
        let (mut bytes, mut count) = (0, 0);
        let overtaken = ranges.iter().rev().find(|range| {
            bytes += range.1.since(range.0);
            count += 1;
            probed || count >= self.threshold || bytes > (self.threshold - 1) * mss
        });
        let Some(&(lost_end, _)) = overtaken else { return false };
        let highest = ranges.last().map_or(una, |r| r.1);
        let (head, sent_before) = self.head;
        if self.phase == Phase::Recovery
            && head == una
            && highest.after(sent_before.plus((self.threshold - 1) * mss))
        {
            // Data sent after the head's retransmission was delivered: that was lost as well.
            self.high_rxt = una;
            self.head = (una, highest);
            self.forced = true;
        }
        if !lost_end.after(self.lost_end) {
            return false;
        }
        self.lost_end = lost_end;
        true
    }

    /// Whether something precedes a SACKed range and is not taken for lost yet, so that the reordering window must run.
    /// `running`: it does already, for what was suspected before.
    pub fn has_suspects(&mut self, pool: &RangePool, una: Seq, running: bool) -> bool {
        let settled = self.lost_end.max(una);
        let Some(&(start, _)) = self.sacked.as_slice(pool).last() else { return false };
        if !running || !self.suspect_end.after(settled) {
            self.suspect_end = start;
        }
        self.suspect_end.after(settled)
    }

    /// Up to where things are suspected to be lost.
    pub fn suspect_end(&self) -> Seq {
        self.suspect_end
    }

    /// The reordering window is over (RFC 8985 §6.2, with one deadline for all). `true`: something is lost.
    pub fn on_reordering_window(&mut self, una: Seq) -> bool {
        let found = self.suspect_end.after(self.lost_end.max(una)) && self.has_sacked();
        if found {
            self.lost_end = self.suspect_end;
        }
        found
    }

    /// By how many quarters of a round trip we let segments overtake each other: more once we were wrong.
    pub fn reordering_quarters(&self) -> u32 {
        self.threshold / THRESHOLD
    }

    /// Enters recovery.
    pub fn begin(&mut self, phase: Phase, una: Seq, nxt: Seq) {
        self.phase = phase;
        self.recover = nxt;
        self.high_rxt = una;
        self.forced = true;
        self.fresh = true;
        self.first_retransmission = None;
        if phase == Phase::Timeout {
            self.lost_end = nxt;
            self.duplicate_bytes = 0;
        }
    }

    /// The receiver may have discarded what it had SACKed (RFC 2018 §8).
    pub fn forget_sacked(&mut self, pool: &mut RangePool) {
        self.sacked.clear(pool);
    }

    /// Whether the other side's echo of our timestamp shows that the original arrived and not the retransmission
    /// (Eifel detection, RFC 3522 §3.2). Asked on the first acknowledgement of new data after it.
    pub fn is_spurious(&mut self, echo: Option<u32>) -> bool {
        let (Some(sent), Some(echo)) = (self.first_retransmission.take(), echo) else { return false };
        self.phase != Phase::Open && (echo.wrapping_sub(sent) as i32) < 0
    }

    /// Takes the recovery back: nothing was lost, and reordering reaches further than we thought.
    pub fn undo(&mut self, una: Seq) {
        if self.phase == Phase::Recovery {
            self.threshold = (self.threshold * 2).min(THRESHOLD_MAX);
        }
        self.end(una);
    }

    fn end(&mut self, una: Seq) {
        self.phase = Phase::Open;
        self.high_rxt = una;
        self.lost_end = una;
        self.duplicate_bytes = 0;
        self.forced = false;
        self.fresh = false;
    }

    /// Gives back the range set.
    pub fn clear(&mut self, pool: &mut RangePool) {
        self.sacked.clear(pool);
    }
}
