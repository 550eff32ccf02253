//! Segments without a connection. A SYN to a listener opens a connection, with a connection block or with a
//! cookie; the acknowledgement of a cookie creates its connection; everything else is refused (RFC 9293
//! §3.10.7.1, §3.10.7.2).

use csp_types::{FourTuple, Instant};
use csp_wire::tcp::Flags;

use crate::api::DropReason;
use crate::cookies::{self, SynCookies};
use crate::ecn::EcnMode;
use crate::input::Incoming;
use crate::listen::Listener;
use crate::replies::{self, Reply};
use crate::seq::Seq;
use crate::stack::Stack;
use crate::tcb::{FinalTransmit, Tcb};
use crate::timewait::TimeWait;

/// How a SYN to a listener is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Admission {
    /// A connection block.
    State,
    /// A connection block; the oldest half-open connection is evicted for it.
    InPlaceOfOldest,
    /// A SYN cookie; no state is kept.
    Cookie,
    /// No reply, because established connections use every block. The client retransmits its SYN.
    Refusal,
}

/// A segment without a connection. `time_wait` is the TIME-WAIT entry with its addresses, if there is one.
#[derive(Clone, Copy)]
pub(super) struct UnmatchedSegment<'a, 'b> {
    pub tuple: FourTuple,
    pub via: u32,
    pub segment: &'a Incoming<'b>,
    pub time_wait: Option<u32>,
}

impl Stack {
    /// Processes a segment without a connection.
    pub(super) fn deliver_to_listener(
        &mut self,
        now: Instant,
        unmatched: UnmatchedSegment<'_, '_>,
    ) -> Result<(), DropReason> {
        let UnmatchedSegment { tuple, segment, .. } = unmatched;
        let flags = segment.flags;
        if flags.rst() {
            return Err(DropReason::NoConnection);
        }
        let Some(listener) = self.listeners.get(&tuple.local) else {
            self.reply_reset(now, tuple, unmatched.via, segment);
            return Err(DropReason::NoConnection);
        };
        if flags.ack() {
            return self.on_unmatched_acknowledgement(now, unmatched, listener);
        }
        // RFC 9293 §3.10.7.2, fourth check. No honest peer sends SYN with FIN.
        if !flags.syn() || flags.fin() {
            return Err(DropReason::BadFlags);
        }
        let remote = tuple.remote;
        let same_family = remote.is_ipv4() == tuple.local.is_ipv4();
        if !same_family || remote.port() == 0 || remote.ip().is_unspecified() || remote.ip().is_multicast() {
            return Err(DropReason::NoAddresses);
        }
        if listener.backlog_full {
            return Err(DropReason::BacklogFull);
        }
        match self.admission() {
            Admission::Cookie => {
                self.send_cookie(now, unmatched, listener);
                return Ok(());
            }
            Admission::Refusal => return Err(DropReason::TableFull),
            Admission::InPlaceOfOldest => self.evict_half_open(now, FinalTransmit::Record),
            Admission::State => {}
        }
        self.open_half(now, unmatched, listener)
    }

    fn admission(&self) -> Admission {
        let cookies = self.config.syn_cookies;
        let half_open = self.half_open.len();
        if cookies == SynCookies::Always {
            return Admission::Cookie;
        }
        if half_open >= self.config.half_open {
            let auto = cookies == SynCookies::Auto;
            return if auto { Admission::Cookie } else { Admission::InPlaceOfOldest };
        }
        match (self.labels.available(), half_open) {
            (0, 0) => Admission::Refusal,
            // A half-open connection is evicted only after the peer has returned the cookie, and so proved
            // its address.
            (0, _) if cookies == SynCookies::Auto => Admission::Cookie,
            _ => Admission::State,
        }
    }

    /// Opens a connection in SYN-RECEIVED. If it replaces a TIME-WAIT entry, its sequence numbers start after
    /// those of the old connection.
    fn open_half(
        &mut self,
        now: Instant,
        unmatched: UnmatchedSegment<'_, '_>,
        listener: Listener,
    ) -> Result<(), DropReason> {
        let UnmatchedSegment { tuple, via, segment, time_wait } = unmatched;
        let mut isn = self.keys.isn(now, &tuple);
        // RFC 9293 §3.4.3: beyond what the old connection used
        if let Some(after) = self.reuse_time_wait(time_wait)
            && !isn.after(after.plus(1 << 16))
        {
            isn = after.plus(1 << 17);
        }
        let slot = self.open(now, tuple, via, listener.service, isn).ok_or(DropReason::TableFull)?;
        if let Some((tcb, mut cx)) = self.split(slot, now) {
            tcb.apply(listener.options);
            tcb.accept(&mut cx, segment.seq, segment.window, &segment.options);
            tcb.negotiate_ecn(segment);
            cx.counters.passive_opens += 1;
        }
        self.half_open.push_back(slot);
        self.settle(slot, now);
        Ok(())
    }

    /// Removes the TIME-WAIT entry and returns its SND.NXT.
    fn reuse_time_wait(&mut self, slot: Option<u32>) -> Option<Seq> {
        let slot = slot?;
        let after = self.time_wait.get(slot)?.snd_nxt;
        self.counters.time_wait_reused += 1;
        self.leave_time_wait(slot);
        Some(after)
    }

    /// Evicts the oldest half-open connection (RFC 4987 §3.4).
    fn evict_half_open(&mut self, now: Instant, final_transmit: FinalTransmit) {
        let Some(slot) = self.half_open.front() else { return };
        if let Some((tcb, mut cx)) = self.split(slot, now) {
            cx.counters.half_open_evicted += 1;
            tcb.evict(&mut cx, final_transmit);
        }
        self.settle(slot, now);
    }

    /// Answers a SYN as a connection block would, without keeping the block.
    fn send_cookie(&mut self, now: Instant, unmatched: UnmatchedSegment<'_, '_>, listener: Listener) {
        let UnmatchedSegment { tuple, via, segment, .. } = unmatched;
        let (queued, capacity) = self.replies.cookies();
        if queued >= capacity {
            self.counters.syn_cookies_suppressed += 1;
            return;
        }
        let mut options = segment.options;
        if options.timestamps.is_none() {
            // Without timestamps the cookie cannot carry these options.
            (options.window_scale, options.sack_permitted) = (None, false);
        }
        let mss = options.mss.unwrap_or(if tuple.remote.is_ipv4() { 536 } else { 1_220 });
        let isn = cookies::sequence(&self.keys, now, &tuple, segment.seq, mss);
        let offset = self.keys.timestamp_offset(&tuple);
        let mut cx = self.context(now);
        let mut block = Tcb::new(&cx, csp_types::FlowLabel::NONE, tuple, via, listener.service, isn);
        block.timestamp_offset = offset;
        block.apply(listener.options);
        block.accept(&mut cx, segment.seq, segment.window, &options);
        if options.timestamps.is_some() {
            block.negotiate_ecn(segment);
        }
        let ecn = block.ecn.capable;
        let Some(mut header) = block.syn_ack(&mut cx) else { return };
        if let Some(timestamps) = &mut header.options.timestamps {
            timestamps.value = cookies::timestamp(timestamps.value, &options, ecn);
        }
        self.counters.syn_cookies_sent += 1;
        self.replies.push_cookie(now, Reply { tuple, via, header, last: false, silent: false });
    }

    /// Processes an acknowledgement to a listener: that of a cookie opens a connection, any other is refused.
    fn on_unmatched_acknowledgement(
        &mut self,
        now: Instant,
        unmatched: UnmatchedSegment<'_, '_>,
        listener: Listener,
    ) -> Result<(), DropReason> {
        let UnmatchedSegment { tuple, via, segment, .. } = unmatched;
        let expected = self.replies.cookies_may_be_valid(now);
        if expected && !segment.flags.syn() {
            let peer_isn = segment.seq.minus(1);
            if let Some(mss) = cookies::verify(&self.keys, now, &tuple, peer_isn, segment.ack.minus(1)) {
                if listener.backlog_full {
                    return Err(DropReason::BacklogFull);
                }
                return self.open_by_cookie(now, unmatched, listener, mss);
            }
            self.counters.syn_cookies_rejected += 1;
            // The segment may follow a lost one that carried a valid cookie. A RST would end a connection
            // that the peer considers established, whereas without a reply the peer retransmits the lost
            // segment. Data of an ended connection is answered; otherwise its sender would wait until the
            // flood is over. Silence costs the same token as a RST: otherwise an attacker that guesses
            // cookies for another address could see from the RSTs left for its own segments whether a guess
            // was right, and could guess the two MACs one after the other.
            let follows = segment.len() > 0;
            if follows && cookies::may_be_valid(&self.keys, now, &tuple, segment.ack.minus(1)) {
                if let Some(header) = replies::reset(&tuple, segment) {
                    self.reply(now, Reply { tuple, via, header, last: true, silent: true });
                }
                return Err(DropReason::NoConnection);
            }
        }
        // RFC 9293 §3.10.7.2, second check
        self.reply_reset(now, tuple, via, segment);
        Err(DropReason::NoConnection)
    }

    /// Whether a segment acknowledges a cookie that was sent for a SYN later than the connection in
    /// TIME-WAIT. Late duplicates of the segments that opened that connection do not qualify.
    pub(super) fn is_newer_by_cookie(&self, now: Instant, old: &TimeWait, segment: &Incoming<'_>) -> bool {
        let numbers = (segment.seq, segment.ack);
        self.acknowledges_cookie(now, &old.tuple, segment.flags, numbers)
            && old.precedes(segment.seq.minus(1), segment)
    }

    /// Whether a segment with these flags, sequence and acknowledgement number acknowledges a SYN cookie of
    /// this engine.
    pub(super) fn acknowledges_cookie(
        &self,
        now: Instant,
        tuple: &FourTuple,
        flags: Flags,
        (seq, ack): (Seq, Seq),
    ) -> bool {
        flags.ack()
            && !flags.intersects(Flags::SYN | Flags::RST)
            && self.replies.cookies_may_be_valid(now)
            && cookies::verify(&self.keys, now, tuple, seq.minus(1), ack.minus(1)).is_some()
    }

    fn open_by_cookie(
        &mut self,
        now: Instant,
        unmatched: UnmatchedSegment<'_, '_>,
        listener: Listener,
        mss: u16,
    ) -> Result<(), DropReason> {
        let UnmatchedSegment { tuple, via, segment, time_wait } = unmatched;
        if self.labels.available() == 0 {
            self.evict_half_open(now, FinalTransmit::None);
        }
        if self.labels.available() == 0 {
            return Err(DropReason::TableFull); // the client retransmits the segment
        }
        self.reuse_time_wait(time_wait);
        let isn = segment.ack.minus(1);
        let slot = self.open(now, tuple, via, listener.service, isn).ok_or(DropReason::TableFull)?;
        let Some((tcb, mut cx)) = self.split(slot, now) else { return Err(DropReason::TableFull) };
        let contents = cookies::recall(mss, tcb.timestamp(now), &segment.options);
        tcb.apply(listener.options);
        tcb.ecn.capable = contents.ecn && listener.options.ecn != EcnMode::Off;
        tcb.accept(&mut cx, segment.seq.minus(1), segment.window, &contents.options);
        tcb.resume_after_cookie(&mut cx);
        cx.counters.passive_opens += 1;
        cx.counters.syn_cookies_accepted += 1;
        let result = tcb.on_segment(&mut cx, *segment);
        self.settle(slot, now);
        result.map_err(|reject| reject.reason)
    }

    pub(super) fn reply_reset(&mut self, now: Instant, tuple: FourTuple, via: u32, segment: &Incoming<'_>) {
        if let Some(header) = replies::reset(&tuple, segment)
            && self.reply(now, Reply { tuple, via, header, last: true, silent: false })
        {
            self.counters.resets_sent += 1;
        }
    }

    pub(super) fn reply(&mut self, now: Instant, reply: Reply) -> bool {
        let queued = self.replies.push(now, reply);
        if !queued {
            self.counters.replies_suppressed += 1;
        }
        queued
    }
}
