//! Memory for transmission records, shared by all connections of a stack.

use csp_types::Instant;

use crate::list::NIL;
use crate::seq::Seq;

/// The delivery state of a record's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RecordState {
    /// Sent, and neither delivered nor lost as far as known.
    InFlight,
    /// The peer reported them as received (RFC 2018).
    Sacked,
    /// Lost, and not yet retransmitted.
    Lost,
}

/// Neighbours of a record in one of its two lists.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    pub previous: u32,
    pub next: u32,
}

const UNLINKED: Links = Links { previous: NIL, next: NIL };

/// One transmission, or a part of it with one delivery state: `start .. end`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub start: Seq,
    pub end: Seq,
    /// Time of the latest transmission.
    pub sent: Instant,
    /// At the time of transmission: bytes delivered by the connection, time of that delivery, and send time
    /// of the first transmission of the sampling interval (draft-ietf-ccwg-bbr, "Delivery Rate Samples").
    pub delivered: u64,
    pub delivered_at: Instant,
    pub first_sent: Instant,
    /// Links of the two lists: by sequence number, and by turn, which is send time (in flight) or order of
    /// retransmission (lost).
    pub(super) links: [Links; 2],
    pub state: RecordState,
    /// The sender had no more data at the time of transmission.
    pub app_limited: bool,
    /// Sent more than once.
    pub retransmitted: bool,
    /// Covers several transmissions, because no record was free; `sent` is the time of the last.
    pub folded: bool,
}

const _: () = assert!(size_of::<Record>() <= 64, "a record fills one cache line");

impl Record {
    /// Number of sequence numbers.
    pub fn len(&self) -> u32 {
        self.end.since(self.start)
    }

    /// An empty record in flight.
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

/// All records of a stack. One record is set aside for each connection, so that connections that exhaust the
/// shared records cannot stop others from sending.
#[derive(Debug)]
pub(crate) struct RecordPool {
    records: Vec<Record>,
    /// Free records, chained by their first links.
    free: u32,
    available: usize,
    /// Connections that hold no record; as many free records are set aside for them.
    without_record: usize,
    /// Records that are used only for splits: delivery states of sent data must remain distinguishable when
    /// no record is left for new data.
    reserve: usize,
    /// Most records of one connection.
    pub most: u32,
}

impl RecordPool {
    /// A pool with one record for each of the `connections`, and `shared` further ones.
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

    /// Allocates a record for a connection that holds `held`.
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

    /// Releases a record of a connection; `held` remain with it.
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

/// Indices into [`Record::links`].
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

    /// Inserts `index` after `previous`, or at the front if that is [`NIL`].
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

    /// Links `b` after `a`; [`NIL`] stands for the ends of the list.
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
