//! Loss detection and recovery: what is in flight, what of it is lost, when to send it again, and when that was wrong.
//!
//! It owns the records of everything sent and not acknowledged, and the state of RACK-TLP (RFC 8985), proportional rate
//! reduction (RFC 9937), F-RTO (RFC 5682) and the taking back of spurious recoveries (RFC 3522, RFC 3708). It refuses to
//! know the congestion window (see [`crate::congestion`]), timers and segments: [`crate::tcb::Tcb`] tells it what
//! happened and acts on what it finds (`recovery/response.rs`).
//!
//! ```text
//!                    loss found                        timeout
//!          ┌──────────────────────▶ Recovery ───────────────────────┐
//!         Open ◀──────────────────── snd_una ≥ recover              ▼
//!          ▲ ◀────────── taken back ─────┴───────────────────── Timeout ◀┐ timeout
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
use crate::seq::Seq;

/// Where loss recovery stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// No loss known.
    Open,
    /// Acknowledgements told of loss: fast recovery (RFC 6675 §5, RFC 6582 §3.2).
    Recovery,
    /// The retransmission timer fired (RFC 5681 §3.1).
    Timeout,
}

/// A tail loss probe that is out (RFC 8985 §7.3).
#[derive(Clone, Copy, Debug)]
pub(crate) struct TailProbe {
    /// TLP.end_seq: snd_nxt behind it.
    pub end: Seq,
    /// TLP.is_retrans: it was sent before.
    pub is_retrans: bool,
}

/// The recovery state of one connection. What is used while nothing is lost lies in front.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Recovery {
    flight: Flight,
    phase: Phase,
    pub frto: Frto,
    /// The next retransmission may exceed the congestion window: the timer asked for it.
    forced: bool,
    pub tail_probe: Option<TailProbe>,
    /// snd_nxt when the loss was found: the phase ends when it is acknowledged.
    recover: Seq,
    /// Without SACK: how many bytes the duplicate acknowledgements that came in a row stand for.
    duplicate_bytes: u32,
    /// Bytes sent again for which no report of a duplicate was seen: so many the peer can report in good faith.
    resent: u32,
    delivery: Delivery,
    rack: Rack,
    /// How many duplicate acknowledgements they were.
    duplicates: u8,
    /// How many of them mean loss; more once we were wrong (RFC 4653).
    threshold: u8,
    prr: Prr,
    undo: Undo,
}

impl Recovery {
    /// Nothing sent yet; the first sequence number is `iss`.
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

    /// The records of what is in flight.
    pub fn flight(&self) -> &Flight {
        &self.flight
    }

    /// Where it stands.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether the next retransmission goes out regardless of the congestion window.
    pub fn is_forced(&self) -> bool {
        self.forced
    }

    /// Sequence numbers believed to be in the network (RFC 6675 §4; RFC 6582 §3.2 without SACK).
    pub fn pipe(&self) -> u32 {
        self.flight.in_flight().saturating_sub(self.duplicate_bytes)
    }

    /// The window in force where the congestion window is `cwnd`: proportional rate reduction rules in fast recovery.
    pub fn window(&self, cwnd: u32) -> u32 {
        if self.phase == Phase::Recovery { self.prr.cwnd() } else { cwnd }
    }

    /// Whether no loss is being recovered from, and no probe waits for its answer.
    pub fn is_quiet(&self) -> bool {
        self.phase == Phase::Open && self.tail_probe.is_none()
    }

    /// Whether a tail loss probe may be scheduled (RFC 8985 §7.2).
    pub fn may_probe_tail(&self) -> bool {
        self.phase == Phase::Open
            && self.tail_probe.is_none()
            && self.flight.sacked() + self.flight.lost() == 0
    }

    /// How many sequence numbers may be sent anew, as far as records go.
    pub fn room(&self, pool: &RecordPool) -> u32 {
        self.flight.room(pool)
    }

    /// `start .. end` is sent for the first time. `false`: it must not be, for want of records.
    pub fn on_transmit(&mut self, pool: &mut RecordPool, now: Instant, start: Seq, end: Seq) -> bool {
        let stamp = self.delivery.stamp(now, self.flight.in_flight());
        if self.phase == Phase::Recovery {
            self.prr.on_transmit(end.since(start));
        }
        self.flight.push(pool, start, end, &stamp)
    }

    /// The lost stretch to be sent again next.
    pub fn next_lost(&self, pool: &RecordPool) -> Option<(Seq, Seq)> {
        if self.frto.holds_back() { None } else { self.flight.next_lost(pool) }
    }

    /// `start .. end`, the beginning of that stretch, is sent again; `timestamp` is what it carries.
    pub fn on_retransmit(
        &mut self,
        pool: &mut RecordPool,
        now: Instant,
        (start, end): (Seq, Seq),
        timestamp: Option<u32>,
    ) {
        self.forced = false;
        let stamp = self.stamp_again(now, end.since(start), timestamp);
        self.flight.resend(pool, end, &stamp);
    }

    fn stamp_again(&mut self, now: Instant, len: u32, timestamp: Option<u32>) -> Stamp {
        self.undo.on_resend(len, timestamp);
        self.prr.on_transmit(len);
        self.resent = self.resent.saturating_add(len);
        self.delivery.stamp(now, self.flight.in_flight())
    }

    /// A tail loss probe sends the end of the flight again, at most `len` sequence numbers (RFC 8985 §7.3).
    pub fn on_probe_again(&mut self, pool: &mut RecordPool, now: Instant, len: u32) -> Option<(Seq, Seq)> {
        let stamp = self.delivery.stamp(now, self.flight.in_flight());
        let range = self.flight.resend_tail(pool, len, &stamp)?;
        self.resent = self.resent.saturating_add(range.1.since(range.0));
        Some(range)
    }

    /// The first `len` sequence numbers probe the peer's window, as far as they were sent before.
    pub fn on_window_probe(&mut self, pool: &mut RecordPool, now: Instant, len: u32) {
        let stamp = self.delivery.stamp(now, self.flight.in_flight());
        self.flight.resend_head(pool, len, &stamp);
    }

    /// There is room to send, and nothing to be sent.
    pub fn on_idle(&mut self) {
        if self.flight.lost() == 0 {
            self.delivery.limit(self.flight.in_flight());
        }
    }

    /// snd_una moves to `una`: takes the records out that it covers.
    pub fn on_advance(&mut self, pool: &mut RecordPool, summary: &mut AckSummary, una: Seq) {
        while let Some(record) = self.flight.pop_acked(pool, una) {
            self.on_delivered(summary, &record, true);
        }
        summary.acked = una.since(summary.una);
        if summary.duplicate_bytes_apply {
            // RFC 9937 §6.2: what duplicates stood for was delivered before.
            let known = self.duplicate_bytes.min(summary.acked);
            summary.delivered = summary.delivered.saturating_sub(known);
            self.duplicate_bytes -= known;
        }
        self.duplicates = 0;
        // Kept near, so that it stays comparable.
        self.recover = self.recover.max(una.minus(1 << 24));
    }

    /// A record, or a part of it, is told to have arrived.
    fn on_delivered(&mut self, summary: &mut AckSummary, record: &Record, cumulative: bool) {
        summary.highest = summary.highest.max(record.end);
        if record.state == RecordState::Sacked {
            return; // known before
        }
        summary.delivered += record.len();
        if !record.retransmitted && !record.end.after(self.recover) {
            summary.original_delivered = true;
        }
        summary.note_send_time(record, cumulative);
        self.delivery.on_delivered(record, summary.at, &mut summary.newest);
        // What arrives behind a hole is not echoed (RFC 7323 §4.3): then only the time can tell.
        let echo_before = cumulative && summary.echoes_before(record.sent);
        self.rack.on_delivered(record, summary.at, echo_before, summary.rtt_min);
    }

    /// Gives every record back.
    pub fn clear(&mut self, pool: &mut RecordPool) {
        self.flight.clear(pool);
    }
}
