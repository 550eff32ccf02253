//! Processing of data and FIN: trimming, reassembly and acknowledgement (RFC 9293 §3.10.7.4, seventh and
//! eighth check).

use core::time::Duration;

use csp_types::Instant;

use crate::api::{DropReason, State};
use crate::blocks::Place;
use crate::input::full_sized::estimate;
use crate::input::{Incoming, Reject};
use crate::reassembly::{Arrived, Pools, Stored};
use crate::seq::{Seq, SeqRange};
use crate::tcb::{Context, FinalTransmit, Tcb};

/// Segments after a hole that are acknowledged immediately, one by one: as many duplicate acknowledgements as
/// a sender without RACK needs to detect the loss (RFC 5681 §3.2).
const HOLE_ACKS_AT_ONCE: u8 = 3;
/// Most segments after a hole that share one acknowledgement. With many more, acknowledgements would be
/// further apart than the 2 ms within which senders with HyStart count them as one train, and slow start
/// would overflow the queue.
const COALESCED_SEGMENTS_MAX: u8 = 7;
/// Most ranges that share one acknowledgement: with timestamps, the options have room for three SACK blocks.
const COALESCED_RANGES_MAX: u8 = 3;
/// Longest delay of a shared acknowledgement; it is also at most a third of a round trip.
const COALESCED_TIME_MAX: Duration = Duration::from_millis(1);

/// Acknowledgements of segments after a hole, counted since RCV.NXT last advanced.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HoleAcks {
    rcv_nxt: Seq,
    /// Segments acknowledged immediately, and segments that wait for a shared acknowledgement.
    acked: u8,
    pending: u8,
    /// Ranges that the pending segments belong to, and the end of the latest segment.
    ranges: u8,
    end: Seq,
}

impl Tcb {
    pub(super) fn process_data(
        &mut self,
        cx: &mut Context<'_>,
        segment: &Incoming<'_>,
    ) -> Result<(), Reject> {
        if segment.len() == 0 {
            return Ok(());
        }
        if !self.receives() {
            self.ack_at_once(); // a retransmitted FIN, or bytes after it
            return Ok(());
        }
        if !segment.payload.is_empty() {
            let most = cx.config.mss_v4.max(cx.config.mss_v6) - if self.timestamps { 12 } else { 0 };
            self.full_sized = estimate(self.full_sized, &mut self.short_segment, segment, most);
        }
        let (seq, data) = self.trim(cx, segment);
        let closed = self.closed && !matches!(self.state, State::Established | State::Resetting);
        if closed && !data.is_empty() {
            // RFC 9293 §3.6.1: the data has no reader.
            self.begin_reset(cx);
            if self.state == State::Done {
                return Err(DropReason::DataAfterClose.into());
            }
        }
        if segment.flags.fin() {
            let fin_at = segment.end().minus(1);
            let within = !fin_at.before(self.rcv_nxt) && !fin_at.after(self.rcv_edge.max(self.rcv_nxt));
            if within && !self.fin_seen {
                (self.fin_seen, self.fin_at) = (true, fin_at);
            }
            self.ack_at_once();
        }
        let data = self.cut_at_fin(seq, data);
        if !data.is_empty() {
            self.store(cx, seq, data, segment.place_of(data, cx.blocks.block_len()));
        }
        if self.fin_seen && self.fin_at == self.rcv_nxt {
            self.process_fin(cx);
        }
        Ok(())
    }

    /// Returns the part of the payload that is new and lies within the window, and its sequence number. If
    /// bytes are cut off, the segment is acknowledged immediately.
    fn trim<'a>(&mut self, cx: &mut Context<'_>, segment: &Incoming<'a>) -> (Seq, &'a [u8]) {
        let mut seq = segment.seq;
        let mut data = segment.payload;
        let old = (self.rcv_nxt.since(seq) as usize).min(data.len());
        if old > 0 {
            cx.counters.duplicate_bytes_received += old as u64;
            if self.sack {
                self.duplicate = Some(SeqRange::new(seq, seq.plus(old as u32)));
            }
            data = data.get(old..).unwrap_or(&[]);
            seq = seq.plus(old as u32);
            self.ack_at_once();
        }
        let room = self.rcv_edge.since(seq) as usize;
        if data.len() > room {
            cx.counters.bytes_beyond_window += (data.len() - room) as u64;
            data = data.get(..room).unwrap_or(&[]);
            self.ack_at_once();
        }
        (seq, data)
    }

    /// Cuts off bytes after the peer's FIN.
    fn cut_at_fin<'a>(&self, seq: Seq, data: &'a [u8]) -> &'a [u8] {
        match self.fin_seen {
            true => data.get(..data.len().min(self.fin_at.since(seq) as usize)).unwrap_or(&[]),
            false => data,
        }
    }

    fn store(&mut self, cx: &mut Context<'_>, seq: Seq, data: &[u8], place: Option<Place>) {
        let (had_holes, in_order) = (self.receive.has_holes(), seq == self.rcv_nxt);
        let advertised = self.receive.readable() + self.rcv_edge.since(self.rcv_nxt);
        let window = self.receive_limit(cx).max(advertised);
        let arrived = Arrived { rcv_nxt: self.rcv_nxt, seq, data, place };
        let Stored { advanced, out_of_order, dropped } =
            self.receive.insert(Pools { blocks: cx.blocks, ranges: cx.ranges }, arrived, window);
        cx.counters.bytes_received += u64::from(advanced);
        cx.counters.out_of_order_bytes_received += u64::from(out_of_order);
        if dropped > 0 {
            match in_order {
                true => cx.counters.bytes_dropped_no_block += u64::from(dropped),
                false => cx.counters.out_of_order_bytes_dropped += u64::from(dropped),
            }
        }
        if self.sack && advanced + out_of_order + dropped == 0 {
            // RFC 2883 §4.1.3: all of the data was stored before, after a hole.
            self.duplicate = Some(SeqRange::new(seq, seq.plus(data.len() as u32)));
            cx.counters.duplicate_bytes_received += data.len() as u64;
        }
        if advanced > 0 {
            self.rcv_nxt = self.rcv_nxt.plus(advanced);
            self.rcv_edge = self.rcv_edge.max(self.rcv_nxt);
            self.pending.readable = true;
        }
        if in_order && dropped > 0 {
            // Without memory the window closes, including the part that was advertised already: the peer then
            // probes instead of failing after its retries.
            self.rcv_edge = self.rcv_nxt;
        }
        // RFC 5681 §4.2: a segment that fills a hole is acknowledged immediately.
        if advanced == 0 && dropped == 0 && out_of_order > 0 {
            return self.acknowledge_behind_hole(cx, seq, seq.plus(data.len() as u32));
        }
        if had_holes {
            // The peer is in loss recovery: its window may be a single segment, which grows with each
            // acknowledgement.
            self.quick_acks = self.quick_acks.max(cx.config.quick_acks);
        }
        if had_holes || dropped > 0 || advanced == 0 {
            return self.ack_at_once();
        }
        self.acknowledge_in_order(cx);
    }

    /// RFC 5681 §4.2: the segment that reveals a hole is acknowledged immediately, and so are the next ones
    /// after it, by which the sender detects the loss. Further segments share acknowledgements: one for each
    /// would add little information, and would make packets that are merely late look lost sooner.
    fn acknowledge_behind_hole(&mut self, cx: &Context<'_>, seq: Seq, end: Seq) {
        if self.hole_acks.rcv_nxt != self.rcv_nxt {
            self.hole_acks = HoleAcks { rcv_nxt: self.rcv_nxt, ..HoleAcks::default() };
        }
        let delay = self.rtt.srtt().map_or(Duration::ZERO, |srtt| srtt / 3).min(COALESCED_TIME_MAX);
        let HoleAcks { acked, pending, ranges, end: last, .. } = &mut self.hole_acks;
        *ranges += u8::from(*pending == 0 || seq != *last);
        *last = end;
        // The sender takes ranges that are missing from the SACK blocks for lost.
        let full = *pending >= COALESCED_SEGMENTS_MAX || *ranges >= COALESCED_RANGES_MAX;
        if !self.sack || *acked < HOLE_ACKS_AT_ONCE || full || delay.is_zero() {
            *acked = acked.saturating_add(1);
            (*pending, *ranges) = (0, 0);
            return self.ack_at_once();
        }
        *pending += 1;
        self.delayed_ack = self.delayed_ack.min(cx.now + delay);
    }

    /// RFC 9293 §3.8.6.3: acknowledges at least every second full-sized segment of the peer. Bytes are
    /// counted instead of segments, because one record can carry many segments.
    fn acknowledge_in_order(&mut self, cx: &Context<'_>) {
        if self.quick_acks > 0 {
            self.quick_acks -= 1;
            return self.ack_at_once();
        }
        if self.rcv_nxt.since(self.last_ack_sent) >= 2 * u32::from(self.full_sized) {
            return self.ack_at_once();
        }
        if self.delayed_ack == Instant::FAR_FUTURE {
            self.delayed_ack = cx.now + cx.config.delayed_ack;
        }
    }

    fn ack_at_once(&mut self) {
        self.ack_now = true;
        self.maybe_transmit = true;
    }

    /// Processes the peer's FIN, which is in order.
    fn process_fin(&mut self, cx: &mut Context<'_>) {
        self.rcv_nxt = self.rcv_nxt.plus(1);
        self.rcv_edge = self.rcv_edge.max(self.rcv_nxt);
        self.pending.peer_finished = true;
        self.receive.discard_out_of_order(cx.blocks, cx.ranges);
        self.ack_at_once();
        match self.state {
            State::Established => self.state = State::CloseWait,
            State::FinWait1 => self.state = State::Closing,
            State::FinWait2 => {
                self.time_wait = true;
                self.finish(cx, FinalTransmit::Acknowledgement);
            }
            _ => {}
        }
    }
}
