//! Connections in TIME-WAIT (RFC 9293 §3.3.2), without a connection block, label or payload memory.

use core::time::Duration;

use csp_types::{FourTuple, Instant};
use csp_wire::tcp::{Flags, Options, Repr, Timestamps};

use crate::input::Incoming;
use crate::list::IndexList;
use crate::seq::Seq;

/// The state kept for a connection in TIME-WAIT.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeWait {
    pub tuple: FourTuple,
    pub hash: u32,
    pub snd_nxt: Seq,
    pub rcv_nxt: Seq,
    pub window: u16,
    /// (TS.Recent, offset of our timestamp clock), if timestamps were in use.
    pub timestamps: Option<(u32, u32)>,
    pub deadline: Instant,
}

/// The response to a segment for a connection in TIME-WAIT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// No response.
    Ignore,
    /// The last acknowledgement is sent again.
    Acknowledge,
    /// A new connection of the same addresses may begin.
    Reuse,
}

impl TimeWait {
    /// Whether a connection that begins with sequence number `isn` is later than this one (RFC 6191 §2).
    pub fn precedes(&self, isn: Seq, segment: &Incoming<'_>) -> bool {
        match (self.timestamps, segment.options.timestamps) {
            (Some((recent, _)), Some(now)) if now.value != recent => {
                (now.value.wrapping_sub(recent) as i32) > 0
            }
            _ => isn.after(self.rcv_nxt),
        }
    }

    /// Returns the response to `segment` (RFC 9293 §3.10.7.4, RFC 6191 §2, RFC 1337).
    pub fn answer(&self, segment: &Incoming<'_>) -> Answer {
        if segment.flags.rst() {
            return Answer::Ignore; // RFC 1337 §3: assassination hazards
        }
        if segment.flags.syn() && !segment.flags.ack() {
            return if self.precedes(segment.seq, segment) { Answer::Reuse } else { Answer::Acknowledge };
        }
        // Only a pure acknowledgement in sequence needs no response.
        if segment.len() == 0 && segment.seq == self.rcv_nxt { Answer::Ignore } else { Answer::Acknowledge }
    }

    /// The last acknowledgement of the connection.
    pub fn acknowledgement(&self, now: Instant) -> Repr {
        let timestamps = self.timestamps.map(|(recent, offset)| Timestamps {
            value: now.as_millis_u32().wrapping_add(offset),
            echo: recent,
        });
        Repr {
            source_port: self.tuple.local.port(),
            destination_port: self.tuple.remote.port(),
            seq: self.snd_nxt.0,
            ack: self.rcv_nxt.0,
            flags: Flags::ACK,
            window: self.window,
            options: Options { timestamps, ..Options::default() },
        }
    }
}

/// The table. Its order is that of the deadlines, because all entries last equally long.
#[derive(Debug)]
pub(crate) struct TimeWaitTable {
    entries: Vec<Option<TimeWait>>,
    free: Vec<u32>,
    order: IndexList,
}

impl TimeWaitTable {
    pub fn new(entries: usize) -> Self {
        TimeWaitTable {
            entries: vec![None; entries],
            free: (0..entries as u32).rev().collect(),
            order: IndexList::new(entries),
        }
    }

    pub fn capacity(&self) -> usize {
        self.entries.len()
    }

    pub fn len(&self) -> usize {
        self.order.len()
    }

    pub fn get(&self, slot: u32) -> Option<&TimeWait> {
        self.entries.get(slot as usize)?.as_ref()
    }

    /// Adds an entry; `None` when the table is full.
    pub fn insert(&mut self, entry: TimeWait) -> Option<u32> {
        let slot = self.free.pop()?;
        self.entries[slot as usize] = Some(entry);
        self.order.push_back(slot);
        Some(slot)
    }

    /// The entry that expires first.
    pub fn oldest(&self) -> Option<(u32, &TimeWait)> {
        let slot = self.order.front()?;
        Some((slot, self.get(slot)?))
    }

    /// Restarts the timer of `slot`.
    pub fn restart(&mut self, slot: u32, now: Instant, time_wait: Duration) {
        if let Some(entry) = self.entries.get_mut(slot as usize).and_then(Option::as_mut) {
            entry.deadline = now + time_wait;
            self.order.remove(slot);
            self.order.push_back(slot);
        }
    }

    /// Removes an entry.
    pub fn remove(&mut self, slot: u32) -> Option<TimeWait> {
        let entry = self.entries.get_mut(slot as usize)?.take()?;
        self.order.remove(slot);
        self.free.push(slot);
        Some(entry)
    }
}
