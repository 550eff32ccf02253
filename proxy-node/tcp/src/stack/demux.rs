//! Whose segment is it? By label, by addresses, for a listener, for nobody (RFC 9293 §3.10.7.1, §3.10.7.2).

use csp_types::{FlowLabel, FourTuple, Instant};
use csp_wire::tcp::Segment;

use crate::api::{Arrival, DropReason, State};
use crate::input::Incoming;
use crate::replies::{self, Reply};
use crate::seq::Seq;
use crate::stack::Stack;
use crate::stack::settle::TIME_WAIT_SLOTS;
use crate::tcb::Farewell;
use crate::timewait::Answer;

/// Where a segment belongs.
enum Owner {
    Connection(u32),
    TimeWait(u32, FourTuple),
    Nobody(FourTuple),
}

impl Stack {
    /// Takes in a segment that arrived; `payload` is what follows its header.
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
        self.counters.segments_received += 1;
        let incoming = Incoming::read(segment, payload, arrival.ingress.min(now));
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
        let tuple = match owner {
            Owner::Connection(slot) => match &self.tcbs[slot as usize] {
                Some(tcb) => tcb.tuple,
                None => return Err(DropReason::StaleLabel),
            },
            Owner::TimeWait(_, tuple) | Owner::Nobody(tuple) => tuple,
        };
        if ports != (tuple.local.port(), tuple.remote.port()) {
            return Err(DropReason::PortsDiffer);
        }
        match owner {
            Owner::Connection(slot) => self.deliver_to(now, slot, arrival, segment),
            Owner::TimeWait(slot, _) => self.deliver_in_time_wait(now, slot, arrival, segment),
            Owner::Nobody(tuple) => self.deliver_to_listener(now, tuple, arrival.via, &segment, None),
        }
    }

    /// The label decides where it is live; otherwise the addresses do.
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
            None => Owner::Nobody(tuple),
        })
    }

    /// The label of the connection with these addresses; `None` also for those in TIME-WAIT.
    pub fn label_of(&self, tuple: &FourTuple) -> Option<FlowLabel> {
        let slot = self.find_by_tuple(tuple)?;
        self.tcbs.get(slot as usize)?.as_ref().map(|tcb| tcb.label)
    }

    /// The connection or TIME-WAIT entry (from [`TIME_WAIT_SLOTS`] on) of these addresses.
    pub(super) fn find_by_tuple(&self, tuple: &FourTuple) -> Option<u32> {
        self.tuples.find(self.keys.place(tuple), |slot| match slot.checked_sub(TIME_WAIT_SLOTS) {
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
        // A node that does not know the label, or one that is new, is told it with the next segment.
        if arrival.label.is_none() || tcb.via != arrival.via {
            tcb.announced = false;
            tcb.via = arrival.via;
        }
        let result = tcb.on_segment(&mut cx, segment);
        let tuple = tcb.tuple;
        self.settle(slot, now);
        result.map_err(|reject| {
            if reject.reset {
                self.reply_reset(now, tuple, arrival.via, &segment);
            }
            reject.reason
        })
    }

    fn deliver_in_time_wait(
        &mut self,
        now: Instant,
        slot: u32,
        arrival: &Arrival,
        segment: Incoming<'_>,
    ) -> Result<(), DropReason> {
        let Some(entry) = self.time_wait.get(slot).copied() else { return Err(DropReason::TimeWait) };
        match entry.answer(&segment) {
            Answer::Ignore => {}
            Answer::Acknowledge => {
                if segment.flags.fin() {
                    self.time_wait.restart(slot, now, self.config.time_wait);
                }
                self.reply(
                    now,
                    Reply { tuple: entry.tuple, via: arrival.via, header: entry.acknowledgement(now) },
                );
            }
            Answer::Reuse => {
                self.counters.time_wait_reused += 1;
                self.leave_time_wait(slot);
                let after = Some(entry.snd_nxt);
                return self.deliver_to_listener(now, entry.tuple, arrival.via, &segment, after);
            }
        }
        Err(DropReason::TimeWait)
    }

    /// A segment without a connection: a SYN to a listener opens one, whose sequence numbers lie behind `after`.
    fn deliver_to_listener(
        &mut self,
        now: Instant,
        tuple: FourTuple,
        via: u32,
        segment: &Incoming<'_>,
        after: Option<Seq>,
    ) -> Result<(), DropReason> {
        let flags = segment.flags;
        if flags.rst() {
            return Err(DropReason::NoConnection);
        }
        let service = self.listeners.service(&tuple.local);
        let (Some(service), true, false) = (service, flags.syn(), flags.ack()) else {
            self.reply_reset(now, tuple, via, segment);
            return Err(DropReason::NoConnection);
        };
        if flags.fin() {
            return Err(DropReason::BadFlags);
        }
        let remote = tuple.remote;
        let same_family = remote.is_ipv4() == tuple.local.is_ipv4();
        if !same_family || remote.port() == 0 || remote.ip().is_unspecified() || remote.ip().is_multicast() {
            return Err(DropReason::NoAddresses);
        }
        self.make_half_open_room(now);
        let mut isn = self.keys.isn(now, &tuple);
        if let Some(after) = after
            && !isn.after(after.plus(1 << 16))
        {
            isn = after.plus(1 << 17); // RFC 9293 §3.4.3: beyond what the old connection used
        }
        let slot = self.open(now, tuple, via, service, isn).ok_or(DropReason::TableFull)?;
        if let Some((tcb, mut cx)) = self.split(slot, now) {
            tcb.accept(&mut cx, segment);
        }
        self.half_open.push_back(slot);
        self.settle(slot, now);
        Ok(())
    }

    /// Drops the oldest half-open connection where there are as many as may be (RFC 4987 §3.4).
    fn make_half_open_room(&mut self, now: Instant) {
        if self.half_open.len() < self.config.half_open {
            return;
        }
        let Some(slot) = self.half_open.front() else { return };
        if let Some((tcb, mut cx)) = self.split(slot, now) {
            cx.counters.half_open_evicted += 1;
            tcb.evict(&mut cx, Farewell::Record);
        }
        self.settle(slot, now);
    }

    fn reply_reset(&mut self, now: Instant, tuple: FourTuple, via: u32, segment: &Incoming<'_>) {
        if let Some(header) = replies::reset(&tuple, segment)
            && self.reply(now, Reply { tuple, via, header })
        {
            self.counters.resets_sent += 1;
        }
    }

    fn reply(&mut self, now: Instant, reply: Reply) -> bool {
        let queued = self.replies.push(now, reply);
        if !queued {
            self.counters.replies_suppressed += 1;
        }
        queued
    }
}
