//! The data that one connection has sent and that is not acknowledged, record by record.
//!
//! ```text
//!   snd_una                                                     snd_nxt
//!     |-- lost --|= SACKed =|-- in flight --|= SACKed =|-- in flight --|      by sequence number: every record
//!   in flight: a list in the order of (last) transmission, so that RACK looks at the oldest only
//!   lost:      a list in the order in which they are sent again
//! ```
//!
//! A transmission of up to 64 KB is one record. It is split when the peer reports a part; SACKed neighbours
//! merge. Data in order costs O(1), an acknowledgement O(records covered). SACK searches have a step budget.

use csp_types::Instant;
use csp_types::limits::SEGMENT_LEN_MAX;

use crate::list::NIL;
use crate::recovery::pool::{BY_SEQUENCE, BY_TURN, List, Record, RecordPool, RecordState};
use crate::seq::{Seq, SeqRange};

/// What a record stores about its transmission (see [`crate::recovery::pool::Record`]).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp {
    pub sent: Instant,
    pub delivered: u64,
    pub delivered_at: Instant,
    pub first_sent: Instant,
    pub app_limited: bool,
}

/// The records of one connection; `hint` is where the last SACK block was found.
#[derive(Debug)]
pub(crate) struct Flight {
    all: List<BY_SEQUENCE>,
    in_flight: List<BY_TURN>,
    lost: List<BY_TURN>,
    hint: u32,
    count: u32,
    in_flight_len: u32,
    sacked_len: u32,
    lost_len: u32,
    /// The part of `in_flight_len` that was sent more than once.
    resent_len: u32,
}

impl Flight {
    pub const EMPTY: Flight = Flight {
        all: List::EMPTY,
        in_flight: List::EMPTY,
        lost: List::EMPTY,
        hint: NIL,
        count: 0,
        in_flight_len: 0,
        sacked_len: 0,
        lost_len: 0,
        resent_len: 0,
    };

    /// Sequence numbers estimated to be in the network.
    pub fn in_flight(&self) -> u32 {
        self.in_flight_len
    }

    /// Those of them that were retransmissions.
    pub fn resent(&self) -> u32 {
        self.resent_len
    }

    /// Sequence numbers SACKed.
    pub fn sacked(&self) -> u32 {
        self.sacked_len
    }

    /// Sequence numbers lost and not yet retransmitted.
    pub fn lost(&self) -> u32 {
        self.lost_len
    }

    /// How many sequence numbers a new transmission may have before records run out.
    pub fn room(&self, pool: &RecordPool) -> u32 {
        if pool.has_for_new(self.count) {
            return SEGMENT_LEN_MAX as u32;
        }
        match self.foldable(pool) {
            Some(tail) => (SEGMENT_LEN_MAX as u32).saturating_sub(pool.at(tail).len()),
            None => 0,
        }
    }

    /// The last record, if a further transmission may be added to it.
    fn foldable(&self, pool: &RecordPool) -> Option<u32> {
        let tail = self.all.last;
        let fits = tail != NIL && {
            let record = pool.at(tail);
            record.state == RecordState::InFlight && !record.retransmitted
        };
        fits.then_some(tail)
    }

    /// Records the first transmission of `start .. end`; `false` if no record is free (see [`Flight::room`]).
    pub fn push(&mut self, pool: &mut RecordPool, start: Seq, end: Seq, stamp: &Stamp) -> bool {
        let tail = self.foldable(pool).filter(|&tail| {
            pool.at(tail).end == start && end.since(pool.at(tail).start) <= SEGMENT_LEN_MAX as u32
        });
        let full = !pool.has_for_new(self.count);
        if let Some(tail) = tail {
            let record = pool.at_mut(tail);
            let alike = record.sent == stamp.sent && record.app_limited == stamp.app_limited;
            if alike || full {
                record.end = end;
                record.folded |= !alike;
                record.sent = stamp.sent;
                self.in_flight_len += end.since(start);
                self.in_flight.remove(pool, tail);
                self.in_flight.push_back(pool, tail);
                return true;
            }
        }
        let record = Record {
            start,
            end,
            sent: stamp.sent,
            delivered: stamp.delivered,
            delivered_at: stamp.delivered_at,
            first_sent: stamp.first_sent,
            app_limited: stamp.app_limited,
            ..Record::NEW
        };
        let Some(index) = pool.allocate(self.count, record) else { return false };
        self.count += 1;
        self.all.push_back(pool, index);
        self.in_flight.push_back(pool, index);
        self.in_flight_len += end.since(start);
        true
    }

    /// Removes and returns the first record, or the part of it, that `una` covers.
    pub fn pop_acked(&mut self, pool: &mut RecordPool, una: Seq) -> Option<Record> {
        let first = self.all.first;
        if first == NIL || !una.after(pool.at(first).start) {
            return None;
        }
        let record = *pool.at(first);
        if una.before(record.end) {
            let piece = Record { end: una, ..record };
            pool.at_mut(first).start = una;
            self.count_bytes(&piece, false);
            return Some(piece);
        }
        self.leave_turn(pool, first);
        self.drop_record(pool, first);
        Some(record)
    }

    /// Marks the first part of `range` that is not yet SACKed and returns it in its previous state; `None` if
    /// there is none. `most`: records the connection may hold; `budget`: steps that may be made.
    pub fn sack(
        &mut self,
        pool: &mut RecordPool,
        range: SeqRange,
        most: u32,
        budget: &mut u32,
    ) -> Option<Record> {
        let mut index = self.seek(pool, range.start, budget)?;
        while pool.at(index).start.before(range.end) {
            if pool.at(index).state != RecordState::Sacked
                && let Some(cut) = self.cut(pool, index, range, most)
            {
                let piece = *pool.at(cut);
                self.set_state(pool, cut, RecordState::Sacked);
                self.merge_sacked(pool, cut);
                return Some(piece);
            }
            self.hint = index;
            index = pool.at(index).links[BY_SEQUENCE].next;
            *budget = budget.checked_sub(1)?;
            if index == NIL {
                break;
            }
        }
        None
    }

    /// The first record that ends after `seq`.
    fn seek(&mut self, pool: &RecordPool, seq: Seq, budget: &mut u32) -> Option<u32> {
        // Most SACK blocks lie where the receiver last filled a hole, or at the end of the flight.
        let distance = |index: u32| (pool.at(index).start.0.wrapping_sub(seq.0) as i32).unsigned_abs();
        let anchors = [self.hint, self.all.last, self.all.first];
        let mut index =
            anchors.into_iter().filter(|&index| index != NIL).min_by_key(|&index| distance(index))?;
        loop {
            let record = pool.at(index);
            self.hint = index;
            let previous = record.links[BY_SEQUENCE].previous;
            if !record.start.after(seq) || previous == NIL {
                break;
            }
            index = previous;
            *budget = budget.checked_sub(1)?;
        }
        while !pool.at(index).end.after(seq) {
            index = pool.at(index).links[BY_SEQUENCE].next;
            if index == NIL {
                return None;
            }
            self.hint = index;
            *budget = budget.checked_sub(1)?;
        }
        Some(index)
    }

    /// Splits off the parts of record `index` outside the range; `None` if no record is free for them.
    fn cut(
        &mut self,
        pool: &mut RecordPool,
        mut index: u32,
        SeqRange { start, end }: SeqRange,
        most: u32,
    ) -> Option<u32> {
        let before = pool.at(index).start.before(start);
        let behind = pool.at(index).end.after(end);
        if self.count + u32::from(before) + u32::from(behind) > most.min(pool.most) {
            return None;
        }
        if before {
            index = self.split(pool, index, start)?;
        }
        if behind {
            self.split(pool, index, end)?;
        }
        Some(index)
    }

    /// Splits record `index` at `at`, which lies within; returns the new record, which starts there.
    fn split(&mut self, pool: &mut RecordPool, index: u32, at: Seq) -> Option<u32> {
        let record = *pool.at(index);
        let behind = pool.allocate(self.count, Record { start: at, ..record })?;
        self.count += 1;
        pool.at_mut(index).end = at;
        self.all.insert_after(pool, index, behind);
        match record.state {
            RecordState::InFlight => self.in_flight.insert_after(pool, index, behind),
            RecordState::Lost => self.lost.insert_after(pool, index, behind),
            RecordState::Sacked => {}
        }
        Some(behind)
    }

    /// Merges record `index` with adjacent SACKed records.
    fn merge_sacked(&mut self, pool: &mut RecordPool, index: u32) {
        let links = pool.at(index).links[BY_SEQUENCE];
        let mut kept = index;
        if links.previous != NIL && pool.at(links.previous).state == RecordState::Sacked {
            kept = links.previous;
            pool.at_mut(kept).end = pool.at(index).end;
            self.drop_record(pool, index);
        }
        if links.next != NIL && pool.at(links.next).state == RecordState::Sacked {
            pool.at_mut(kept).end = pool.at(links.next).end;
            self.drop_record(pool, links.next);
        }
        self.hint = kept;
    }

    /// Releases a record that is in no list by turn and whose bytes are not counted.
    fn drop_record(&mut self, pool: &mut RecordPool, index: u32) {
        if self.hint == index {
            let links = pool.at(index).links[BY_SEQUENCE];
            self.hint = if links.previous == NIL { links.next } else { links.previous };
        }
        self.all.remove(pool, index);
        self.count -= 1;
        pool.release(index, self.count);
    }

    /// Adds a record's bytes to the counts of its state, or subtracts them.
    fn count_bytes(&mut self, record: &Record, add: bool) {
        let len = record.len();
        let apply = |total: &mut u32| *total = if add { *total + len } else { total.saturating_sub(len) };
        match record.state {
            RecordState::InFlight => {
                apply(&mut self.in_flight_len);
                if record.retransmitted {
                    apply(&mut self.resent_len);
                }
            }
            RecordState::Sacked => apply(&mut self.sacked_len),
            RecordState::Lost => apply(&mut self.lost_len),
        }
    }

    /// Removes a record from its list by turn, and its bytes from the counts.
    fn leave_turn(&mut self, pool: &mut RecordPool, index: u32) {
        let record = *pool.at(index);
        self.count_bytes(&record, false);
        match record.state {
            RecordState::InFlight => self.in_flight.remove(pool, index),
            RecordState::Lost => self.lost.remove(pool, index),
            RecordState::Sacked => {}
        }
    }

    fn set_state(&mut self, pool: &mut RecordPool, index: u32, state: RecordState) {
        self.leave_turn(pool, index);
        pool.at_mut(index).state = state;
        let record = *pool.at(index);
        self.count_bytes(&record, true);
        match state {
            RecordState::InFlight => self.in_flight.push_back(pool, index),
            RecordState::Sacked => {}
            RecordState::Lost => {
                // Records are mostly marked in order; sorting fully would cost more than it gains.
                let first = self.lost.first;
                let front = first != NIL && record.start.before(pool.at(first).start);
                let after = if front { NIL } else { self.lost.last };
                self.lost.insert_after(pool, after, index);
            }
        }
    }

    /// The record in flight that was sent longest ago.
    pub fn oldest<'a>(&self, pool: &'a RecordPool) -> Option<&'a Record> {
        (self.in_flight.first != NIL).then(|| pool.at(self.in_flight.first))
    }

    /// Marks the record in flight that was sent longest ago as lost.
    pub fn mark_oldest_lost(&mut self, pool: &mut RecordPool) {
        if self.in_flight.first != NIL {
            self.set_state(pool, self.in_flight.first, RecordState::Lost);
        }
    }

    /// The record at snd_una.
    pub fn head<'a>(&self, pool: &'a RecordPool) -> Option<&'a Record> {
        (self.all.first != NIL).then(|| pool.at(self.all.first))
    }

    /// Marks at most the first `len` sequence numbers as lost if they are in flight; returns how many.
    pub fn mark_head_lost(&mut self, pool: &mut RecordPool, len: u32) -> u32 {
        let first = self.all.first;
        if first == NIL || pool.at(first).state != RecordState::InFlight {
            return 0;
        }
        let at = pool.at(first).start.plus(len);
        if at.before(pool.at(first).end) {
            self.split(pool, first, at);
        }
        self.set_state(pool, first, RecordState::Lost);
        pool.at(first).len()
    }

    /// Marks all SACKed records as lost, because the peer may have discarded them (RFC 2018 §8).
    pub fn mark_sacked_lost(&mut self, pool: &mut RecordPool) {
        let mut index = self.all.last;
        while index != NIL {
            if pool.at(index).state == RecordState::Sacked {
                self.set_state(pool, index, RecordState::Lost);
            }
            index = pool.at(index).links[BY_SEQUENCE].previous;
        }
    }

    /// Returns records that were marked as lost and not retransmitted to the state in flight.
    pub fn unmark_lost(&mut self, pool: &mut RecordPool) {
        let mut index = self.lost.last;
        while index != NIL {
            let previous = pool.at(index).links[BY_TURN].previous;
            if !pool.at(index).retransmitted {
                self.leave_turn(pool, index);
                pool.at_mut(index).state = RecordState::InFlight;
                let record = *pool.at(index);
                self.count_bytes(&record, true);
                // A record marked as lost was sent before all records in flight.
                self.in_flight.insert_after(pool, NIL, index);
            }
            index = previous;
        }
    }

    /// The lost record to retransmit next: first the one at SND.UNA, for which the receiver waits.
    fn turn(&self, pool: &RecordPool) -> u32 {
        let first = self.all.first;
        if first != NIL && pool.at(first).state == RecordState::Lost { first } else { self.lost.first }
    }

    /// The lost range to retransmit next, at most 64 KB.
    pub fn next_lost(&self, pool: &RecordPool) -> Option<SeqRange> {
        let mut index = self.turn(pool);
        if index == NIL {
            return None;
        }
        let start = pool.at(index).start;
        let mut end = pool.at(index).end;
        while end.since(start) < SEGMENT_LEN_MAX as u32 {
            index = pool.at(index).links[BY_SEQUENCE].next;
            if index == NIL || pool.at(index).state != RecordState::Lost {
                break;
            }
            end = pool.at(index).end;
        }
        Some(SeqRange { start, end })
    }

    /// Records the retransmission of [`Flight::next_lost`] up to `end`; returns the end of the part now sent.
    pub fn resend(&mut self, pool: &mut RecordPool, end: Seq, stamp: &Stamp) -> Seq {
        let index = self.turn(pool);
        if index == NIL {
            return end;
        }
        loop {
            let next = pool.at(index).links[BY_SEQUENCE].next;
            if !pool.at(index).end.before(end) || next == NIL || pool.at(next).state != RecordState::Lost {
                break;
            }
            self.lost.remove(pool, next);
            pool.at_mut(index).end = pool.at(next).end;
            self.drop_record(pool, next);
        }
        if pool.at(index).end.after(end) {
            // Without a free record the rest counts as sent, too, and will be detected as lost again.
            self.split(pool, index, end);
        }
        self.leave_turn(pool, index);
        self.restamp(pool, index, stamp);
        pool.at(index).end
    }

    /// Records that at most the last `len` sequence numbers, not marked lost, were resent; returns the range.
    pub fn resend_tail(&mut self, pool: &mut RecordPool, len: u32, stamp: &Stamp) -> Option<SeqRange> {
        let mut index = self.all.last;
        if index == NIL || pool.at(index).state != RecordState::InFlight {
            return None;
        }
        let record = *pool.at(index);
        if record.len() > len {
            index = self.split(pool, index, record.end.minus(len))?;
        }
        self.leave_turn(pool, index);
        self.restamp(pool, index, stamp);
        Some(SeqRange::new(pool.at(index).start, record.end))
    }

    fn restamp(&mut self, pool: &mut RecordPool, index: u32, stamp: &Stamp) {
        let record = pool.at_mut(index);
        record.state = RecordState::InFlight;
        record.retransmitted = true;
        record.folded = false;
        record.sent = stamp.sent;
        record.delivered = stamp.delivered;
        record.delivered_at = stamp.delivered_at;
        record.first_sent = stamp.first_sent;
        record.app_limited = stamp.app_limited;
        let record = *record;
        self.count_bytes(&record, true);
        self.in_flight.push_back(pool, index);
    }

    /// Records the retransmission of at most the first `len` sequence numbers, unless they are SACKed.
    pub fn resend_head(&mut self, pool: &mut RecordPool, len: u32, stamp: &Stamp) {
        self.mark_head_lost(pool, len);
        if let Some(head) = self.head(pool).filter(|head| head.state == RecordState::Lost) {
            let end = head.end.min(head.start.plus(len));
            self.resend(pool, end, stamp);
        }
    }

    /// Panics unless the records cover `una .. nxt` without gaps and every list is consistent.
    #[cfg(test)]
    pub fn check(&self, pool: &RecordPool, una: Seq, nxt: Seq) {
        let (mut index, mut at, mut counts) = (self.all.first, una, [0u32; 3]);
        while index != NIL {
            let record = pool.at(index);
            assert!(record.start == at && record.end.after(at), "a gap or nothing at {at:?}");
            counts[record.state as usize] += 1;
            (at, index) = (record.end, record.links[BY_SEQUENCE].next);
        }
        assert_eq!((at, counts.iter().sum::<u32>()), (nxt, self.count));
        for (list, state) in [(self.in_flight, RecordState::InFlight), (self.lost, RecordState::Lost)] {
            let (mut index, mut count, mut sent) = (list.first, 0, Instant::ZERO);
            while index != NIL {
                let record = pool.at(index);
                assert!(record.state == state && (state == RecordState::Lost || record.sent >= sent));
                (index, count, sent) = (record.links[BY_TURN].next, count + 1, record.sent);
            }
            assert_eq!(count, counts[state as usize]);
        }
    }

    #[cfg(test)]
    pub fn tail_start(&self, pool: &RecordPool) -> Seq {
        pool.at(self.all.last).start
    }

    /// Releases all records.
    pub fn clear(&mut self, pool: &mut RecordPool) {
        while self.all.first != NIL {
            self.drop_record(pool, self.all.first);
        }
        *self = Flight::EMPTY;
    }
}
