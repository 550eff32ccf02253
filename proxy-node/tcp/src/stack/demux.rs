//! Assigns an arriving segment to a connection, a TIME-WAIT entry, a listener or none (RFC 9293 §3.10.7.1,
//! §3.10.7.2).

use csp_types::{FlowLabel, FourTuple, Instant};
use csp_wire::tcp::Segment;

use crate::api::{Arrival, DropReason, State};
use crate::blocks::{Buffer, Direction, Place};
use crate::input::Incoming;
use crate::replies::Reply;
use crate::seq::Seq;
use crate::stack::Stack;
use crate::stack::listener::UnmatchedSegment;
use crate::stack::settle::TIME_WAIT_SLOTS;
use crate::tcb;
use crate::timewait::Answer;

/// The owner of a segment.
enum Owner {
    Connection(u32),
    TimeWait(u32, FourTuple),
    NoConnection(FourTuple),
}

impl Stack {
    /// Processes a segment; `payload` is what follows its header.
    ///
    /// # Errors
    /// [`DropReason`]: the segment had no effect but possibly an answer. It is counted already.
    pub fn on_segment(
        &mut self,
        now: Instant,
        arrival: Arrival,
        segment: &Segment<'_>,
        payload: &[u8],
    ) -> Result<(), DropReason> {
        self.process_segment(now, arrival, segment, payload, None)
    }

    /// As [`Stack::on_segment`], for a segment in a buffer lent by this stack ([`Stack::lend`]). The payload
    /// remains there, unless that would hold much more memory than its length; then it is copied.
    ///
    /// # Errors
    /// [`DropReason`]: the segment had no effect but possibly an answer. It is counted already.
    pub fn on_segment_in(
        &mut self,
        now: Instant,
        arrival: Arrival,
        segment: &Segment<'_>,
        payload: &[u8],
        buffer: &Buffer,
    ) -> Result<(), DropReason> {
        let place = buffer.place_of(payload).filter(|_| buffer.direction == Direction::Receive);
        self.process_segment(now, arrival, segment, payload, place)
    }

    fn process_segment(
        &mut self,
        now: Instant,
        arrival: Arrival,
        segment: &Segment<'_>,
        payload: &[u8],
        place: Option<Place>,
    ) -> Result<(), DropReason> {
        self.counters.segments_received += 1;
        let arrival = Arrival { ingress: arrival.ingress.min(now), ..arrival };
        let incoming = Incoming { place, ..Incoming::read(segment, payload, &arrival) };
        let ports = (segment.destination_port(), segment.source_port());
        let result = self.deliver(now, &arrival, ports, incoming);
        if let Err(reason) = result {
            self.counters.count_drop(reason);
        }
        result
    }

    fn deliver(
        &mut self,
        now: Instant,
        arrival: &Arrival,
        ports: (u16, u16),
        segment: Incoming<'_>,
    ) -> Result<(), DropReason> {
        let owner = self.owner(arrival)?;
        let known = match &owner {
            Owner::Connection(slot) => match &self.tcbs[*slot as usize] {
                Some(tcb) => tcb.ports,
                None => return Err(DropReason::StaleLabel),
            },
            Owner::TimeWait(_, tuple) | Owner::NoConnection(tuple) => tcb::ports(tuple),
        };
        if ports != known {
            return Err(DropReason::PortsDiffer);
        }
        match owner {
            Owner::Connection(slot) => self.deliver_to(now, slot, arrival, segment),
            Owner::TimeWait(slot, _) => self.deliver_in_time_wait(now, slot, arrival, segment),
            Owner::NoConnection(tuple) => {
                let unmatched =
                    UnmatchedSegment { tuple, via: arrival.via, segment: &segment, time_wait: None };
                self.deliver_to_listener(now, unmatched)
            }
        }
    }

    /// A live label identifies the connection; otherwise the addresses do.
    fn owner(&self, arrival: &Arrival) -> Result<Owner, DropReason> {
        let mut tuple = arrival.tuple;
        if arrival.label != FlowLabel::NONE {
            let slot = arrival.label.index().checked_sub(self.config.first_label_index as usize);
            let tcb =
                slot.and_then(|slot| self.tcbs.get(slot)?.as_ref()).filter(|tcb| tcb.label == arrival.label);
            match (tcb, slot) {
                (Some(tcb), Some(slot)) if tcb.state != State::Done => {
                    return Ok(Owner::Connection(slot as u32));
                }
                (Some(tcb), _) => tuple = Some(tcb.tuple),
                _ if tuple.is_none() => return Err(DropReason::StaleLabel),
                _ => {}
            }
        }
        let tuple = tuple.ok_or(DropReason::NoAddresses)?;
        Ok(match self.find_by_tuple(&tuple) {
            Some(slot) if slot >= TIME_WAIT_SLOTS => Owner::TimeWait(slot - TIME_WAIT_SLOTS, tuple),
            Some(slot) => Owner::Connection(slot),
            None => Owner::NoConnection(tuple),
        })
    }

    /// The label of the connection with these addresses; `None` if there is none, or only a TIME-WAIT entry.
    pub fn label_of(&self, tuple: &FourTuple) -> Option<FlowLabel> {
        let slot = self.find_by_tuple(tuple)?;
        self.tcbs.get(slot as usize)?.as_ref().map(|tcb| tcb.label)
    }

    /// Whether a segment belongs to a connection of this engine: to one in the table, to one in TIME-WAIT, or
    /// to one that exists in a SYN cookie only.
    pub fn owns(&self, now: Instant, tuple: &FourTuple, segment: &Segment<'_>) -> bool {
        self.find_by_tuple(tuple).is_some() || {
            let (seq, ack) = (Seq(segment.seq()), Seq(segment.ack()));
            self.acknowledges_cookie(now, tuple, segment.flags(), (seq, ack))
        }
    }

    /// The slot of the connection, or [`TIME_WAIT_SLOTS`] plus that of the TIME-WAIT entry, with these
    /// addresses.
    pub(super) fn find_by_tuple(&self, tuple: &FourTuple) -> Option<u32> {
        self.tuples.find(self.keys.table_hash(tuple), |slot| match slot.checked_sub(TIME_WAIT_SLOTS) {
            Some(slot) => self.time_wait.get(slot).is_some_and(|entry| entry.tuple == *tuple),
            None => {
                self.tcbs.get(slot as usize).and_then(Option::as_ref).is_some_and(|tcb| tcb.tuple == *tuple)
            }
        })
    }

    fn deliver_to(
        &mut self,
        now: Instant,
        slot: u32,
        arrival: &Arrival,
        segment: Incoming<'_>,
    ) -> Result<(), DropReason> {
        let Some((tcb, mut cx)) = self.split(slot, now) else { return Err(DropReason::StaleLabel) };
        // A record without a label shows that the network node does not know it, so the next segment
        // announces it.
        if arrival.label.is_none() {
            tcb.announced.invalidate();
        }
        let result = tcb.on_segment(&mut cx, segment);
        // A segment through another node moves the connection to that node, which then needs the label, too.
        // A segment without effect may be forged, and moves nothing.
        if tcb.via != arrival.via && result.is_ok() {
            tcb.via = arrival.via;
            tcb.announced.invalidate();
        }
        let refused = match &result {
            Err(reject) if reject.reset => Some(tcb.tuple),
            _ => None,
        };
        self.settle(slot, now);
        if let Some(tuple) = refused {
            self.reply_reset(now, tuple, arrival.via, &segment);
        }
        result.map_err(|reject| reject.reason)
    }

    fn deliver_in_time_wait(
        &mut self,
        now: Instant,
        slot: u32,
        arrival: &Arrival,
        segment: Incoming<'_>,
    ) -> Result<(), DropReason> {
        let Some(entry) = self.time_wait.get(slot).copied() else { return Err(DropReason::TimeWait) };
        let answer = match self.is_newer_by_cookie(now, &entry, &segment) {
            true => Answer::Reuse,
            false => entry.answer(&segment),
        };
        match answer {
            Answer::Ignore => {}
            Answer::Acknowledge => {
                // RFC 9293 §3.10.7.4, eighth check: only a retransmission of the peer's FIN restarts the
                // timer
                if segment.flags.fin() && segment.end() == entry.rcv_nxt {
                    self.time_wait.restart(slot, now, self.config.time_wait);
                }
                let header = entry.acknowledgement(now);
                self.reply(
                    now,
                    Reply { tuple: entry.tuple, via: arrival.via, header, last: true, silent: false },
                );
            }
            Answer::Reuse => {
                let (tuple, via) = (entry.tuple, arrival.via);
                let unmatched = UnmatchedSegment { tuple, via, segment: &segment, time_wait: Some(slot) };
                return self.deliver_to_listener(now, unmatched);
            }
        }
        Err(DropReason::TimeWait)
    }
}
