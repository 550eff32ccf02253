//! A connection's response to acknowledgements and timers that indicate loss.

use core::time::Duration;

use csp_types::Instant;

use crate::congestion::AckSample;
use crate::recovery::ack_summary::AckSummary;
use crate::recovery::frto::{Frto, FrtoInput};
use crate::recovery::pool::{RecordPool, RecordState};
use crate::recovery::prr::Prr;
use crate::recovery::rack::{Found, LossContext};
use crate::recovery::undo::Undo;
use crate::recovery::{Phase, Recovery};
use crate::seq::Seq;
use crate::tcb::{Context, Tcb};

/// Upper bound of the duplicate acknowledgement threshold.
const THRESHOLD_MAX: u8 = 12;

impl Tcb {
    /// Begins the summary of an acknowledgement.
    pub fn begin_ack_summary(&self, at: Instant, ack: Seq, echo: Option<u32>) -> AckSummary {
        let mut summary = AckSummary::new(at, ack, self.snd_una, self.recovery.pipe());
        summary.echo = echo.filter(|_| self.timestamps);
        summary.timestamp_offset = self.timestamp_offset;
        summary.rtt_min = self.rtt.min();
        summary.timed_out = self.timers.retries > 0;
        summary.duplicate_bytes_apply = !self.sack;
        summary
    }

    /// Acts on a complete summary: detects loss and spurious responses, enters and leaves recovery, updates
    /// congestion control.
    pub fn respond(&mut self, cx: &mut Context<'_>, summary: &mut AckSummary) {
        let phase = self.recovery.phase;
        let rtt = self.sample_round_trip(summary);
        self.recovery.rack.on_highest(summary.highest);
        cx.counters.sack_blocks_skipped += u64::from(summary.skipped);
        if let Some(range) = summary.dsack {
            cx.counters.duplicates_reported += 1;
            self.recovery.on_duplicate_report(range, self.snd_una, self.snd_nxt);
        }
        self.end_tail_probe(summary);
        self.detect_spurious_response(cx, summary);
        self.recovery.leave_when_recovered(self.snd_una);
        let found = self.find_losses(cx, summary);
        self.enter_recovery(cx, summary, found);
        let entered = phase == Phase::Open && self.recovery.phase == Phase::Recovery;
        let rate = self.recovery.delivery.sample(summary.newest.as_ref());
        if summary.delivered > 0 {
            self.congestion.on_ack(&AckSample {
                now: cx.now,
                una: self.snd_una,
                nxt: self.snd_nxt,
                acked: summary.acked,
                delivered: summary.delivered,
                in_flight: summary.in_flight,
                rtt,
                srtt: self.rtt.srtt(),
                phase: if entered { Phase::Recovery } else { phase },
                rate,
            });
        }
        if self.recovery.phase == Phase::Recovery {
            let safe = summary.acked > 0 && found.lost == 0;
            let in_flight = self.recovery.pipe();
            self.recovery.prr.on_ack(summary.delivered, in_flight, safe, u32::from(self.mss()));
        }
    }

    /// Processes the round trip that an acknowledgement measures, if any; returns the shortest.
    fn sample_round_trip(&mut self, summary: &AckSummary) -> Option<Duration> {
        let (una, nxt) = (self.snd_una, self.snd_nxt);
        if let Some((long, short)) = summary.round_trips() {
            self.rtt.sample(long, una, nxt);
            self.rtt.sample_min(short, summary.at);
            return Some(short);
        }
        let rtt = summary.round_trip_by_timestamp()?;
        self.rtt.sample(rtt, una, nxt);
        Some(rtt)
    }

    /// RFC 8985 §7.4.2: ends a tail loss probe, and reduces the window if the probe repaired a loss. (A
    /// D-SACK of the probe has ended it before.)
    fn end_tail_probe(&mut self, summary: &AckSummary) {
        let Some(probe) = self.recovery.tail_probe.filter(|probe| !summary.ack.before(probe.end)) else {
            return;
        };
        let beyond = summary.ack.after(probe.end);
        if probe.is_retrans && beyond {
            self.congestion.on_loss(summary.in_flight);
            self.congestion.discard_undo();
        }
        let plain_duplicate = summary.acked == 0 && summary.sacked == 0 && summary.dsack.is_none();
        if !probe.is_retrans || beyond || plain_duplicate {
            self.recovery.tail_probe = None;
        }
    }

    /// Undoes a spurious loss response, detected by F-RTO, timestamps or duplicate reports. The back-off
    /// stays until a round trip is measured (RFC 6298 §5): if the round trip has become longer than the
    /// timeout, the next timeout would be spurious, too.
    fn detect_spurious_response(&mut self, cx: &mut Context<'_>, summary: &AckSummary) {
        let complete = !self.snd_una.before(self.recovery.recover);
        let timeout = self.recovery.phase == Phase::Timeout;
        let input = FrtoInput {
            advanced: summary.acked > 0,
            complete,
            original: summary.original_delivered,
            new_data: self.data_end().after(self.snd_nxt)
                && self.snd_una.plus(self.snd_wnd).after(self.snd_nxt),
            sack: self.sack,
        };
        let by_order = timeout && self.recovery.frto.on_ack(&input);
        // Other retransmitted data in flight may really have been lost: the whole response is spurious only
        // if there is none.
        let settled = timeout || complete || self.recovery.flight.resent() == 0;
        let by_echo = self.recovery.phase != Phase::Open
            && summary.acked > 0
            && settled
            && self.recovery.undo.is_spurious_by_echo(summary.echo);
        let by_duplicates = summary.dsack.is_some() && self.recovery.undo.is_spurious_by_dsack();
        if by_order || by_echo || by_duplicates {
            cx.counters.spurious_recoveries += 1;
            self.congestion.undo(cx.now);
            self.recovery.undo_response(cx.records);
        }
    }

    fn find_losses(&mut self, cx: &mut Context<'_>, summary: &mut AckSummary) -> Found {
        if self.sack {
            let found = self.detect(cx, summary.at);
            self.timers.reordering = found.deadline.unwrap_or(Instant::FAR_FUTURE);
            return found;
        }
        let lost = self.recovery.find_losses_without_sack(
            cx.records,
            summary,
            self.snd_una,
            self.snd_nxt,
            u32::from(self.mss()),
        );
        Found { lost, ..Found::default() }
    }

    fn detect(&mut self, cx: &mut Context<'_>, now: Instant) -> Found {
        let context = self.loss_context();
        let Recovery { rack, flight, .. } = &mut self.recovery;
        let found = rack.detect(flight, cx.records, now, &context);
        cx.counters.retransmissions_lost += u64::from(found.again);
        found
    }

    fn loss_context(&self) -> LossContext {
        LossContext { phase: self.recovery.phase, mss: u32::from(self.mss()), rtt: self.rtt }
    }

    /// The reordering timer fired (RFC 8985 §6.2 step 5).
    pub fn on_reordering_timer(&mut self, cx: &mut Context<'_>) {
        let summary = AckSummary::new(cx.now, self.snd_una, self.snd_una, self.recovery.pipe());
        let found = self.detect(cx, cx.now);
        self.timers.reordering = found.deadline.unwrap_or(Instant::FAR_FUTURE);
        if found.lost > 0 && self.recovery.phase == Phase::Recovery {
            let in_flight = self.recovery.pipe();
            self.recovery.prr.on_loss(in_flight, u32::from(self.mss()));
        }
        self.enter_recovery(cx, &summary, found);
        self.maybe_transmit = true;
    }

    /// Loss was detected: begins fast recovery, unless a recovery is in progress (RFC 6675 §5 step 4, RFC
    /// 9937 §6.1).
    fn enter_recovery(&mut self, cx: &mut Context<'_>, summary: &AckSummary, found: Found) {
        if found.lost == 0 || self.recovery.phase != Phase::Open {
            return;
        }
        cx.counters.fast_recoveries += 1;
        self.congestion.on_loss(summary.in_flight);
        // Data SACKed before does not count as delivered in this recovery.
        let known = self.recovery.flight.sacked().saturating_sub(summary.sacked);
        let flight = self.outstanding().saturating_sub(known) + summary.acked;
        let in_flight = self.recovery.pipe();
        self.recovery.prr = Prr::begin(self.congestion.ssthresh(), flight, in_flight, u32::from(self.mss()));
        self.recovery.begin(Phase::Recovery, self.snd_una, self.snd_nxt);
        self.arm_timeout(cx);
        self.maybe_transmit = true;
    }

    /// The retransmission timer fired with data in flight (RFC 8985 §6.3, RFC 5681 §3.1, RFC 5682).
    pub fn on_data_timeout(&mut self, cx: &mut Context<'_>) {
        let again = self.timers.retries > 1;
        // RFC 5681 §3.1: ssthresh is reduced once for the losses of a flight.
        let first = self.recovery.phase == Phase::Open;
        self.congestion.on_timeout(first);
        let context = self.loss_context();
        let recovery = &mut self.recovery;
        // RFC 2018 §8: a head that is SACKed and not acknowledged shows that the peer has discarded it. A
        // second timeout without any response may have the same cause.
        let reneged = recovery.flight.head(cx.records).is_some_and(|head| head.state == RecordState::Sacked);
        if reneged || again {
            cx.counters.reneged += u64::from(reneged);
            recovery.flight.mark_sacked_lost(cx.records);
        }
        if self.sack {
            recovery.rack.on_timeout(&mut recovery.flight, cx.records, cx.now, &context);
        } else {
            recovery.mark_all_lost(cx.records);
        }
        let undo = if first { Undo::begin(self.snd_una, false) } else { recovery.undo };
        recovery.begin(Phase::Timeout, self.snd_una, self.snd_nxt);
        recovery.undo = undo;
        // RFC 5682 §2.1 step 1: not while an earlier recovery is in progress.
        recovery.frto = if first || again { Frto::Retransmitted } else { Frto::Off };
        self.timers.reordering = Instant::FAR_FUTURE;
    }

    /// Retransmits all data in flight for a reason other than congestion.
    pub fn resend(&mut self, cx: &mut Context<'_>) {
        if self.outstanding() == 0 {
            return;
        }
        self.recovery.mark_all_lost(cx.records);
        self.recovery.undo = Undo::NONE;
        self.congestion.discard_undo();
        self.arm_timeout(cx);
        self.maybe_transmit = true;
    }
}

impl Recovery {
    fn begin(&mut self, phase: Phase, una: Seq, nxt: Seq) {
        self.phase = phase;
        self.recover = nxt;
        self.undo = Undo::begin(una, phase == Phase::Recovery);
        self.frto = Frto::Off;
        self.tail_probe = None;
        self.forced = true;
        if phase == Phase::Timeout {
            (self.duplicates, self.duplicate_bytes) = (0, 0);
        }
    }

    /// Marks everything that is not SACKed as lost.
    fn mark_all_lost(&mut self, pool: &mut RecordPool) {
        while self.flight.oldest(pool).is_some() {
            self.flight.mark_oldest_lost(pool);
        }
        (self.duplicates, self.duplicate_bytes) = (0, 0);
        self.forced = true;
    }

    fn leave_when_recovered(&mut self, una: Seq) {
        if self.phase != Phase::Open && !una.before(self.recover) {
            self.rack.on_recovered();
            self.end();
        }
    }

    fn end(&mut self) {
        self.phase = Phase::Open;
        self.frto = Frto::Off;
        self.forced = false;
        (self.duplicates, self.duplicate_bytes) = (0, 0);
    }

    /// Ends a recovery that was spurious: nothing was lost, and reordering is larger than assumed.
    fn undo_response(&mut self, pool: &mut RecordPool) {
        if self.phase == Phase::Recovery {
            self.rack.set_reordering_seen();
            self.threshold = (self.threshold * 2).min(THRESHOLD_MAX);
        }
        if self.phase != Phase::Open {
            self.flight.unmark_lost(pool);
            self.end();
        }
        self.rack.reset_xmit_ts();
        self.undo = Undo::NONE;
    }

    /// RFC 5681 §3.2, RFC 6582 §3.2: returns how many bytes were newly marked as lost.
    fn find_losses_without_sack(
        &mut self,
        pool: &mut RecordPool,
        summary: &mut AckSummary,
        una: Seq,
        nxt: Seq,
        mss: u32,
    ) -> u32 {
        if summary.acked > 0 && self.phase == Phase::Recovery {
            // RFC 6582 §3.2 step 3: a partial acknowledgement identifies the next lost segment.
            self.forced = true;
            return self.flight.mark_head_lost(pool, mss);
        }
        if !summary.duplicate || self.phase == Phase::Timeout {
            return 0;
        }
        self.duplicates = self.duplicates.saturating_add(1);
        self.duplicate_bytes = (self.duplicate_bytes + mss).min(nxt.since(una).saturating_sub(mss));
        // RFC 9937 §6.2: each duplicate stands for one delivered segment.
        summary.delivered = mss;
        // RFC 6582 §3.2 step 2: not for data of an earlier recovery.
        let found = self.phase == Phase::Open && self.duplicates == self.threshold && una.after(self.recover);
        if found { self.flight.mark_head_lost(pool, mss) } else { 0 }
    }
}
