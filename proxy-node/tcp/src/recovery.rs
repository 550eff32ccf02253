//! Loss detection and recovery: which data is in flight, which of it is lost, when it is retransmitted, and
//! when that turns out to have been spurious.
//!
//! The module owns the records of all data sent and not acknowledged, and the state of RACK-TLP (RFC 8985),
//! proportional rate reduction (RFC 9937), F-RTO (RFC 5682), and the undoing of spurious recoveries (RFC
//! 3522, RFC 3708). It has no access to the congestion window (see [`crate::congestion`]), timers or
//! segments: [`crate::tcb::Tcb`] passes events in and acts on the results (`recovery/response.rs`).
//!
//! ```text
//!                    loss detected                     timeout
//!          ┌──────────────────────▶ Recovery ───────────────────────┐
//!         Open ◀──────────────────── snd_una ≥ recover              ▼
//!          ▲ ◀───────────── undone ──────┴───────────────────── Timeout ◀┐ timeout
//!          └───────────────────────── snd_una ≥ recover ────────────┴────┘
//! ```

pub(crate) mod ack_summary;
pub(crate) mod delivery;
pub(crate) mod flight;
pub(crate) mod frto;
pub(crate) mod pool;
pub(crate) mod prr;
pub(crate) mod rack;
mod response;
pub(crate) mod sack;
mod undo;

#[cfg(test)]
mod tests;

use csp_types::Instant;

use crate::recovery::ack_summary::AckSummary;
use crate::recovery::delivery::Delivery;
use crate::recovery::flight::{Flight, Stamp};
use crate::recovery::frto::Frto;
use crate::recovery::pool::{Record, RecordPool, RecordState};
use crate::recovery::prr::Prr;
use crate::recovery::rack::Rack;
use crate::recovery::undo::Undo;
use crate::seq::{Seq, SeqRange};

/// The phase of loss recovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// No loss is known.
    Open,
    /// Fast recovery: acknowledgements indicated a loss (RFC 6675 §5, RFC 6582 §3.2).
    Recovery,
    /// The retransmission timer fired (RFC 5681 §3.1).
    Timeout,
}

/// An outstanding tail loss probe (RFC 8985 §7.3).
#[derive(Clone, Copy, Debug)]
pub(crate) struct TailProbe {
    /// TLP.end_seq: SND.NXT after the probe was sent.
    pub end: Seq,
    /// TLP.is_retrans: the probe is a retransmission.
    pub is_retrans: bool,
}

/// The recovery state of one connection. The fields used while nothing is lost come first.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Recovery {
    flight: Flight,
    phase: Phase,
    pub frto: Frto,
    /// The next retransmission may exceed the congestion window.
    forced: bool,
    pub tail_probe: Option<TailProbe>,
    /// SND.NXT when the loss was detected; the phase ends when it is acknowledged (RecoveryPoint).
    recover: Seq,
    /// Without SACK: bytes that the consecutive duplicate acknowledgements stand for.
    duplicate_bytes: u32,
    /// Bytes retransmitted and not yet reported as duplicates: an honest peer cannot report more.
    resent: u32,
    delivery: Delivery,
    rack: Rack,
    /// Number of consecutive duplicate acknowledgements.
    duplicates: u8,
    /// Number of duplicate acknowledgements that indicates a loss; doubled after each spurious recovery (RFC
    /// 4653).
    threshold: u8,
    prr: Prr,
    undo: Undo,
}

impl Recovery {
    /// The state before anything was sent; the first sequence number is `iss`.
    pub fn new(iss: Seq) -> Self {
        Recovery {
            phase: Phase::Open,
            flight: Flight::EMPTY,
            recover: iss,
            rack: Rack::new(iss),
            tail_probe: None,
            prr: Prr::default(),
            frto: Frto::Off,
            undo: Undo::NONE,
            delivery: Delivery::NONE,
            duplicates: 0,
            duplicate_bytes: 0,
            threshold: rack::DUPLICATE_THRESHOLD as u8,
            forced: false,
            resent: 0,
        }
    }

    /// The records of all data sent and not acknowledged.
    pub fn flight(&self) -> &Flight {
        &self.flight
    }

    /// The current phase.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether the next retransmission is sent regardless of the congestion window.
    pub fn is_forced(&self) -> bool {
        self.forced
    }

    /// Estimate of the sequence numbers in the network (pipe: RFC 6675 §4; without SACK, RFC 6582 §3.2).
    pub fn pipe(&self) -> u32 {
        self.flight.in_flight().saturating_sub(self.duplicate_bytes)
    }

    /// The window that limits sending; `cwnd` is the congestion window. In fast recovery it is that of
    /// proportional rate reduction.
    pub fn window(&self, cwnd: u32) -> u32 {
        if self.phase == Phase::Recovery { self.prr.cwnd() } else { cwnd }
    }

    /// Whether no recovery is in progress and no probe is outstanding.
    pub fn is_quiet(&self) -> bool {
        self.phase == Phase::Open && self.tail_probe.is_none()
    }

    /// Whether a tail loss probe may be scheduled (RFC 8985 §7.2).
    pub fn may_probe_tail(&self) -> bool {
        self.phase == Phase::Open
            && self.tail_probe.is_none()
            && self.flight.sacked() + self.flight.lost() == 0
    }

    /// How many new sequence numbers may be sent before records run out.
    pub fn room(&self, pool: &RecordPool) -> u32 {
        self.flight.room(pool)
    }

    /// Records the first transmission of `start .. end`. `false`: no record is free, and it must not be sent.
    pub fn on_transmit(&mut self, pool: &mut RecordPool, now: Instant, start: Seq, end: Seq) -> bool {
        let stamp = self.delivery.stamp(now, self.flight.in_flight());
        if self.phase == Phase::Recovery {
            self.prr.on_transmit(end.since(start));
        }
        self.flight.push(pool, start, end, &stamp)
    }

    /// The lost range to retransmit next.
    pub fn next_lost(&self, pool: &RecordPool) -> Option<SeqRange> {
        if self.frto.holds_back() { None } else { self.flight.next_lost(pool) }
    }

    /// Records the retransmission of `range`, the beginning of [`next_lost`](Self::next_lost); `timestamp` is
    /// the segment's TSval.
    pub fn on_retransmit(
        &mut self,
        pool: &mut RecordPool,
        now: Instant,
        range: SeqRange,
        timestamp: Option<u32>,
    ) {
        self.forced = false;
        let stamp = self.stamp_again(now, range.len(), timestamp);
        self.flight.resend(pool, range.end, &stamp);
    }

    fn stamp_again(&mut self, now: Instant, len: u32, timestamp: Option<u32>) -> Stamp {
        self.undo.on_resend(len, timestamp);
        self.prr.on_transmit(len);
        self.resent = self.resent.saturating_add(len);
        self.delivery.stamp(now, self.flight.in_flight())
    }

    /// Records a tail loss probe that retransmits the last `len` sequence numbers, or fewer, and returns the
    /// range (RFC 8985 §7.3).
    pub fn on_probe_again(&mut self, pool: &mut RecordPool, now: Instant, len: u32) -> Option<SeqRange> {
        let stamp = self.delivery.stamp(now, self.flight.in_flight());
        let range = self.flight.resend_tail(pool, len, &stamp)?;
        self.resent = self.resent.saturating_add(range.len());
        Some(range)
    }

    /// Records a window probe of the first `len` sequence numbers, as far as they were sent before.
    pub fn on_window_probe(&mut self, pool: &mut RecordPool, now: Instant, len: u32) {
        let stamp = self.delivery.stamp(now, self.flight.in_flight());
        self.flight.resend_head(pool, len, &stamp);
    }

    /// Records that the window permits sending and no data is left to send.
    pub fn on_idle(&mut self) {
        if self.flight.lost() == 0 {
            self.delivery.limit(self.flight.in_flight());
        }
    }

    /// Removes the records covered by an acknowledgement that advances SND.UNA to `una`.
    pub fn on_advance(&mut self, pool: &mut RecordPool, summary: &mut AckSummary, una: Seq) {
        while let Some(record) = self.flight.pop_acked(pool, una) {
            self.on_delivered(summary, &record, true);
        }
        summary.acked = una.since(summary.una);
        if summary.duplicate_bytes_apply {
            // RFC 9937 §6.2: the bytes that duplicate acknowledgements stood for were counted as delivered
            // before.
            let known = self.duplicate_bytes.min(summary.acked);
            summary.delivered = summary.delivered.saturating_sub(known);
            self.duplicate_bytes -= known;
        }
        self.duplicates = 0;
        // Kept within comparable distance of SND.UNA.
        self.recover = self.recover.max(una.minus(1 << 24));
    }

    /// Processes a record, or part of one, that an acknowledgement reports as delivered.
    fn on_delivered(&mut self, summary: &mut AckSummary, record: &Record, cumulative: bool) {
        summary.highest = summary.highest.max(record.end);
        if record.state == RecordState::Sacked {
            return; // delivered before
        }
        summary.delivered += record.len();
        if !record.retransmitted && !record.end.after(self.recover) {
            summary.original_delivered = true;
        }
        summary.note_send_time(record, cumulative);
        self.delivery.on_delivered(record, summary.at, &mut summary.newest);
        // A segment that arrives after a hole does not update the echo (RFC 7323 §4.3); then only the elapsed
        // time can distinguish the transmissions.
        let echo_before = cumulative && summary.echoes_before(record.sent);
        self.rack.on_delivered(record, summary.at, echo_before, summary.rtt_min);
    }

    /// Processes the delivery of the numbers of `range`, which follow everything in flight and have no record
    /// because only a path MTU probe has carried them. Their send time is unknown: they yield no round trip
    /// and no delivery rate sample, and RACK.xmit_ts remains that of a record.
    pub fn on_unrecorded_delivered(&mut self, summary: &mut AckSummary, range: SeqRange) {
        let len = range.len();
        summary.highest = summary.highest.max(range.end);
        summary.delivered += len;
        self.delivery.on_unrecorded_delivered(len, summary.at);
        // RFC 8985 §7.4.2 infers from an acknowledgement beyond TLP.end_seq that the tail loss probe repaired
        // a loss. The inference requires that nothing beyond TLP.end_seq was sent before the probe.
        self.tail_probe = None;
    }

    /// Releases all records.
    pub fn clear(&mut self, pool: &mut RecordPool) {
        self.flight.clear(pool);
    }
}
