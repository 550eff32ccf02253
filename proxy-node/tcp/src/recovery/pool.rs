//! Memory for the records of what is in flight, shared by all connections of a stack.

use csp_types::Instant;

use crate::list::NIL;
use crate::seq::Seq;

/// What is believed of a record's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RecordState {
    /// In the network.
    InFlight,
    /// The peer told that it has them (RFC 2018).
    Sacked,
    /// Lost, and not sent again yet.
    Lost,
}

/// Neighbours in one of a record's two orders.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    pub previous: u32,
    pub next: u32,
}

const UNLINKED: Links = Links { previous: NIL, next: NIL };

/// One transmission, or the part of it that shares one fate: `start .. end`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub start: Seq,
    pub end: Seq,
    /// When it was sent last.
    pub sent: Instant,
    /// What the connection had delivered, and since when, as it was sent; and when the first transmission of that
    /// round was sent (draft-ietf-ccwg-bbr, "Delivery Rate Samples").
    pub delivered: u64,
    pub delivered_at: Instant,
    pub first_sent: Instant,
    /// By sequence number, and by time (in flight) or by turn (lost).
    pub(super) links: [Links; 2],
    pub state: RecordState,
    /// The sender had nothing more to send then.
    pub app_limited: bool,
    /// Sent more than once.
    pub retransmitted: bool,
    /// Stands for several transmissions, for want of records: its time is that of the last.
    pub folded: bool,
}

const _: () = assert!(size_of::<Record>() <= 64, "a record fills one cache line");

impl Record {
    /// Sequence numbers it covers.
    pub fn len(&self) -> u32 {
        self.end.since(self.start)
    }

    /// In flight, and nothing else is known.
    pub const NEW: Record = Record::empty(NIL);

    const fn empty(next: u32) -> Self {
        Record {
            start: Seq(0),
            end: Seq(0),
            sent: Instant::ZERO,
            delivered: 0,
            delivered_at: Instant::ZERO,
            first_sent: Instant::ZERO,
            links: [Links { previous: NIL, next }, UNLINKED],
            state: RecordState::InFlight,
            app_limited: false,
            retransmitted: false,
            folded: false,
        }
    }
}

/// All records of a stack. Each connection is owed one, so that nobody who exhausts the rest silences the others.
#[derive(Debug)]
pub(crate) struct RecordPool {
    records: Vec<Record>,
    /// Free records, chained by their first links.
    free: u32,
    available: usize,
    /// Connections that hold none.
    without_record: usize,
    /// Records that only splits may take: what was sent must be told apart even when nothing more can be sent.
    reserve: usize,
    /// Most records of one connection.
    pub most: u32,
}

impl RecordPool {
    /// `shared` records above the one of each of the `connections`.
    pub fn new(connections: usize, shared: usize, most: u32) -> Self {
        let count = (connections + shared).min(NIL as usize - 1) as u32;
        RecordPool {
            records: (1..=count).map(|next| Record::empty(if next == count { NIL } else { next })).collect(),
            free: if count == 0 { NIL } else { 0 },
            available: count as usize,
            without_record: connections,
            reserve: shared / 8,
            most: most.max(1),
        }
    }

    pub fn capacity(&self) -> usize {
        self.records.len()
    }

    pub fn free(&self) -> usize {
        self.available
    }

    /// Whether a connection that holds `held` records may take one for a new transmission.
    pub(super) fn has_for_new(&self, held: u32) -> bool {
        held == 0 || (self.available > self.without_record + self.reserve && held < self.most - self.most / 4)
    }

    /// A record for a connection that holds `held`.
    pub(super) fn allocate(&mut self, held: u32, record: Record) -> Option<u32> {
        if held > 0 && (self.available <= self.without_record || held >= self.most) {
            return None;
        }
        let index = self.free;
        let slot = self.records.get_mut(index as usize)?;
        self.free = slot.links[0].next;
        *slot = Record { links: [UNLINKED; 2], ..record };
        self.available -= 1;
        self.without_record -= usize::from(held == 0);
        Some(index)
    }

    /// Gives a record back; `held` are left.
    pub(super) fn release(&mut self, index: u32, held: u32) {
        self.records[index as usize].links[0].next = self.free;
        self.free = index;
        self.available += 1;
        self.without_record += usize::from(held == 0);
    }

    pub(super) fn at(&self, index: u32) -> &Record {
        &self.records[index as usize]
    }

    pub(super) fn at_mut(&mut self, index: u32) -> &mut Record {
        &mut self.records[index as usize]
    }
}

/// Which of a record's links a list uses.
pub(super) const BY_SEQUENCE: usize = 0;
pub(super) const BY_TURN: usize = 1;

/// A list of records through one of their links.
#[derive(Clone, Copy, Debug)]
pub(super) struct List<const ORDER: usize> {
    pub first: u32,
    pub last: u32,
}

impl<const ORDER: usize> List<ORDER> {
    pub const EMPTY: Self = List { first: NIL, last: NIL };

    pub fn push_back(&mut self, pool: &mut RecordPool, index: u32) {
        self.insert_after(pool, self.last, index);
    }

    /// Puts `index` behind `previous`; [`NIL`]: in front of all.
    pub fn insert_after(&mut self, pool: &mut RecordPool, previous: u32, index: u32) {
        let next = match previous {
            NIL => self.first,
            previous => pool.at(previous).links[ORDER].next,
        };
        pool.at_mut(index).links[ORDER] = Links { previous, next };
        self.join(pool, previous, index);
        self.join(pool, index, next);
    }

    pub fn remove(&mut self, pool: &mut RecordPool, index: u32) {
        let Links { previous, next } = pool.at(index).links[ORDER];
        self.join(pool, previous, next);
        pool.at_mut(index).links[ORDER] = UNLINKED;
    }

    /// Makes `b` follow `a`; [`NIL`] stands for the ends.
    fn join(&mut self, pool: &mut RecordPool, a: u32, b: u32) {
        match a {
            NIL => self.first = b,
            a => pool.at_mut(a).links[ORDER].next = b,
        }
        match b {
            NIL => self.last = a,
            b => pool.at_mut(b).links[ORDER].previous = a,
        }
    }
}
