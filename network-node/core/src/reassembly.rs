//! Reassembly of IP fragments (RFC 791, RFC 8200 §4.5) in memory that is allocated at construction.
//!
//! ```text
//!  slot: │ room for headers ─────────▶│ payload, up to DATAGRAM_LEN_MAX                 │
//!                 Ethernet │ IP │ … ──┘ each fragment is copied to its offset
//!  filled: a bit for each 8 bytes received;  starts: a bit where a fragment begins
//! ```
//! A datagram with overlapping fragments is discarded with all its fragments (RFC 5722, applied to IPv4 as
//! well); an exact duplicate is dropped and has no effect (RFC 8200 §4.5). The number of datagrams, their
//! length, the time that they wait and the number of one source are bounded. A source at its bound loses its
//! own oldest datagram; a full table loses the oldest of all.

use std::net::IpAddr;

use csp_types::{Duration, Instant};
use csp_wire::{Ecn, ethernet};

use super::api::{Counters, PortId};

/// Incomplete datagrams at once.
pub(super) const DATAGRAMS_MAX: usize = 256;
/// Incomplete datagrams of one source: an IPv4 address or an IPv6 /64.
pub(super) const DATAGRAMS_OF_SOURCE_MAX: usize = 32;
/// Longest payload of a datagram, in bytes: that of the longest Ethernet frames in use.
pub(super) const DATAGRAM_LEN_MAX: usize = 9_216;
/// How long fragments wait for the missing ones. RFC 1122 §3.3.2 recommends a minute; TCP sends lost segments
/// again much earlier, and identifications of IPv4 repeat within seconds (RFC 4963).
pub(super) const REASSEMBLY_TIMEOUT: Duration = Duration::from_secs(5);

/// Space in front of the payload: Ethernet header, and an IPv4 header with options or an IPv6 header with
/// short extension headers.
const HEADERS_LEN_MAX: usize = ethernet::HEADER_LEN + 122;
const STRIDE: usize = HEADERS_LEN_MAX + DATAGRAM_LEN_MAX;
/// Offsets of fragments count units of 8 bytes.
const UNIT: usize = 8;
const WORDS: usize = DATAGRAM_LEN_MAX / UNIT / u64::BITS as usize;
const _: () = assert!(DATAGRAM_LEN_MAX.is_multiple_of(UNIT * u64::BITS as usize));

/// The fields by which fragments belong to the same datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Key {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    /// Protocol of an IPv4 datagram; 0 for IPv6, whose identifications do not depend on it.
    pub(super) protocol: u8,
    pub(super) identification: u32,
}

impl Key {
    /// Returns a non-zero hash for the search.
    fn tag(&self) -> u32 {
        let low = match self.source {
            IpAddr::V4(address) => address.to_bits(),
            IpAddr::V6(address) => address.to_bits() as u32,
        };
        (self.identification ^ low.rotate_left(16)) | 1
    }

    fn is_of_source(&self, source: IpAddr) -> bool {
        match (self.source, source) {
            (IpAddr::V6(a), IpAddr::V6(b)) => a.to_bits() >> 64 == b.to_bits() >> 64,
            (a, b) => a == b,
        }
    }
}

/// A fragment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece<'a> {
    pub(super) key: Key,
    /// Position of the payload in the datagram.
    pub(super) offset: usize,
    pub(super) more: bool,
    pub(super) ecn: Ecn,
    pub(super) port: PortId,
    /// Whether every worker receives this fragment.
    pub(super) shared: bool,
    pub(super) ethernet: &'a [u8],
    /// The IP headers of the whole datagram if this is the first fragment, and a byte to change in them.
    pub(super) headers: &'a [u8],
    pub(super) patch: Option<(usize, u8)>,
    pub(super) payload: &'a [u8],
}

impl Piece<'_> {
    fn end(&self) -> usize {
        self.offset + self.payload.len()
    }

    fn is_valid(&self) -> bool {
        let whole_units = !self.more || self.payload.len().is_multiple_of(UNIT);
        let headers = self.ethernet.len() + self.headers.len() <= HEADERS_LEN_MAX;
        !self.payload.is_empty() && whole_units && headers && self.end() <= DATAGRAM_LEN_MAX
    }
}

/// A complete datagram: the position of its frame in the memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Whole {
    pub(super) port: PortId,
    /// Whether every worker has received all of its fragments.
    pub(super) shared: bool,
    pub(super) ecn: Ecn,
    pub(super) frame: core::ops::Range<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Collecting,
    /// Fragments overlapped. Further ones are dropped until the slot expires.
    Refused,
}

/// Received units of a datagram, one bit each.
#[derive(Clone, Copy)]
struct Units([u64; WORDS]);

impl Units {
    const NONE: Self = Units([0; WORDS]);

    fn has(&self, unit: usize) -> bool {
        self.0.get(unit / 64).is_some_and(|word| word >> (unit % 64) & 1 == 1)
    }

    fn add(&mut self, unit: usize) {
        if let Some(word) = self.0.get_mut(unit / 64) {
            *word |= 1 << (unit % 64);
        }
    }
}

struct Slot {
    key: Option<Key>,
    state: State,
    created: Instant,
    port: PortId,
    /// Whether every worker receives the fragments stored so far.
    shared: bool,
    /// Length of Ethernet and IP headers; 0 until the first fragment was received.
    headers_len: usize,
    /// Payload length of the whole datagram, known from the last fragment.
    end: Option<usize>,
    /// End of the fragment with the highest offset.
    reach: usize,
    received: usize,
    fragments: u64,
    first_ecn: Ecn,
    /// ECN fields seen, one bit for each codepoint.
    ecn: u8,
    filled: Units,
    starts: Units,
}

impl Slot {
    const EMPTY: Self = Slot {
        key: None,
        state: State::Collecting,
        created: Instant::ZERO,
        port: PortId(0),
        shared: true,
        headers_len: 0,
        end: None,
        reach: 0,
        received: 0,
        fragments: 0,
        first_ecn: Ecn::NotEct,
        ecn: 0,
        filled: Units::NONE,
        starts: Units::NONE,
    };

    /// Compares a valid fragment with those received.
    fn fit(&self, piece: &Piece<'_>, stored: &[u8]) -> Fit {
        let end = piece.end();
        let contradicts = match (self.end, piece.more) {
            (Some(known), true) => end >= known,
            (Some(known), false) => end != known,
            (None, true) => false,
            (None, false) => end < self.reach,
        };
        let (first, after) = (piece.offset / UNIT, end.div_ceil(UNIT));
        let filled = (first..after).filter(|unit| self.filled.has(*unit)).count();
        if contradicts || (filled > 0 && filled < after - first) {
            return Fit::Overlap;
        }
        if filled == 0 {
            return Fit::New;
        }
        let begins = self.starts.has(first) && !(first + 1..after).any(|unit| self.starts.has(unit));
        let ends = !piece.more || self.starts.has(after) || !self.filled.has(after);
        if begins && ends && stored == piece.payload { Fit::Duplicate } else { Fit::Overlap }
    }

    fn is_complete(&self) -> bool {
        self.end == Some(self.received) && self.headers_len > 0
    }

    /// Returns the ECN field of the datagram; `None` if its fragments' fields contradict each other.
    fn ecn(&self) -> Option<Ecn> {
        // RFC 3168 §5.3: CE if any fragment has it; a datagram with CE and not-ECT fragments is discarded. So
        // are other mixtures with not-ECT.
        const NOT_ECT: u8 = 1 << Ecn::NotEct.bits();
        const CE: u8 = 1 << Ecn::Ce.bits();
        match self.ecn {
            NOT_ECT => Some(Ecn::NotEct),
            mixed if mixed & NOT_ECT != 0 => None,
            marked if marked & CE != 0 => Some(Ecn::Ce),
            _ => Some(self.first_ecn),
        }
    }
}

enum Fit {
    New,
    Duplicate,
    Overlap,
}

/// The incomplete datagrams of a worker.
pub(super) struct Reassembly {
    /// [`Key::tag`] of each slot, 0 if the slot is free.
    tags: Box<[u32]>,
    slots: Box<[Slot]>,
    /// The memory of the slots; empty while the owner processes a datagram in it.
    pub(super) memory: Box<[u8]>,
    used: usize,
    /// A lower bound of the next expiry.
    due: Option<Instant>,
}

impl Reassembly {
    pub(super) fn new() -> Self {
        Reassembly {
            tags: vec![0; DATAGRAMS_MAX].into(),
            slots: (0..DATAGRAMS_MAX).map(|_| Slot::EMPTY).collect(),
            memory: vec![0; DATAGRAMS_MAX * STRIDE].into(),
            used: 0,
            due: None,
        }
    }

    /// Returns whether a datagram is being processed that came in fragments.
    pub(super) fn is_delivering(&self) -> bool {
        self.memory.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.used
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.due
    }

    /// Adds a fragment. Returns the datagram if it is now complete; its slot is then free, and its frame
    /// unchanged until the next call.
    pub(super) fn add(&mut self, now: Instant, piece: &Piece<'_>, counters: &mut Counters) -> Option<Whole> {
        if !piece.is_valid() {
            counters.drop_fragment += 1;
            return None;
        }
        let at = match self.find(now, &piece.key, counters) {
            Some(at) => at,
            None => self.open(now, piece, counters)?,
        };
        let slot = self.slots.get_mut(at)?;
        let memory = self.memory.get_mut(at * STRIDE..(at + 1) * STRIDE);
        let Some((headers, payload)) = memory.map(|memory| memory.split_at_mut(HEADERS_LEN_MAX)) else {
            counters.drop_fragment += 1;
            return None;
        };
        let place = payload.get_mut(piece.offset..piece.end())?;
        match (slot.state, slot.fit(piece, place)) {
            (State::Collecting, Fit::New) => store(slot, piece, headers, place),
            (State::Collecting, Fit::Duplicate) => {
                counters.drop_fragment_duplicate += 1;
                return None;
            }
            (State::Refused, _) | (_, Fit::Overlap) => {
                counters.drop_fragment_overlap += core::mem::take(&mut slot.fragments) + 1;
                slot.state = State::Refused;
                return None;
            }
        }
        slot.is_complete().then(|| self.close(at, counters)).flatten()
    }

    /// Returns the slot of a datagram that has not expired.
    fn find(&mut self, now: Instant, key: &Key, counters: &mut Counters) -> Option<usize> {
        let tag = key.tag();
        let is_it = |at: &usize| self.tags[*at] == tag && self.slots[*at].key == Some(*key);
        let at = (0..self.tags.len()).find(is_it)?;
        if self.slots[at].created + REASSEMBLY_TIMEOUT <= now {
            counters.drop_fragment_timeout += self.slots[at].fragments;
            self.free(at);
            return None;
        }
        Some(at)
    }

    /// Allocates a slot for a new datagram: a free one, or that of an evicted datagram.
    fn open(&mut self, now: Instant, piece: &Piece<'_>, counters: &mut Counters) -> Option<usize> {
        let source = piece.key.source;
        let of_source = |slot: &Slot| slot.key.is_some_and(|key| key.is_of_source(source));
        let oldest = |slots: &[Slot], belongs: &dyn Fn(&Slot) -> bool| {
            let own = slots.iter().enumerate().filter(|(_, slot)| belongs(slot));
            own.min_by_key(|(_, slot)| slot.created).map(|(at, _)| at)
        };
        let full = self.slots.iter().filter(|slot| of_source(slot)).count() >= DATAGRAMS_OF_SOURCE_MAX;
        let at = match (full, self.tags.iter().position(|tag| *tag == 0)) {
            (true, _) => oldest(&self.slots, &of_source)?,
            (false, Some(free)) => free,
            (false, None) => oldest(&self.slots, &|_| true)?,
        };
        counters.drop_fragment_room += self.slots[at].fragments;
        self.free(at);
        let (key, port) = (Some(piece.key), piece.port);
        self.slots[at] = Slot { key, port, created: now, ..Slot::EMPTY };
        self.tags[at] = piece.key.tag();
        self.used += 1;
        self.due = self.due.or(Some(now + REASSEMBLY_TIMEOUT));
        Some(at)
    }

    fn close(&mut self, at: usize, counters: &mut Counters) -> Option<Whole> {
        let slot = self.slots.get(at)?;
        let (port, shared, ecn) = (slot.port, slot.shared, slot.ecn());
        let payload = at * STRIDE + HEADERS_LEN_MAX;
        let frame = payload - slot.headers_len..payload + slot.received;
        match ecn {
            Some(_) => counters.datagrams_reassembled += 1,
            None => counters.drop_fragment += slot.fragments,
        }
        self.free(at);
        ecn.map(|ecn| Whole { port, shared, ecn, frame })
    }

    fn free(&mut self, at: usize) {
        self.used -= usize::from(self.slots[at].key.take().is_some());
        self.slots[at].fragments = 0;
        self.tags[at] = 0;
    }

    /// Discards expired datagrams.
    pub(super) fn expire(&mut self, now: Instant, counters: &mut Counters) {
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        self.due = None;
        for at in 0..self.slots.len() {
            let slot = &self.slots[at];
            let ends = slot.created + REASSEMBLY_TIMEOUT;
            if slot.key.is_none() {
                continue;
            }
            if ends <= now {
                counters.drop_fragment_timeout += slot.fragments;
                self.free(at);
            } else {
                self.due = Some(self.due.map_or(ends, |due| due.min(ends)));
            }
        }
    }
}

/// Copies a fragment to its place, and the headers if it is the first one.
fn store(slot: &mut Slot, piece: &Piece<'_>, headers: &mut [u8], place: &mut [u8]) {
    place.copy_from_slice(piece.payload);
    let (first, after) = (piece.offset / UNIT, piece.end().div_ceil(UNIT));
    (first..after).for_each(|unit| slot.filled.add(unit));
    slot.starts.add(first);
    slot.received += piece.payload.len();
    slot.reach = slot.reach.max(piece.end());
    slot.fragments += 1;
    // RFC 8200 §4.5: the next headers of an IPv6 datagram's fragments may differ. If only worker 0 receives
    // one of them, worker 0 processes the datagram.
    slot.shared &= piece.shared;
    slot.ecn |= 1 << piece.ecn.bits();
    if !piece.more {
        slot.end = Some(piece.end());
    }
    if piece.offset == 0 {
        slot.headers_len = piece.ethernet.len() + piece.headers.len();
        (slot.port, slot.first_ecn) = (piece.port, piece.ecn);
        let room = headers.len() - slot.headers_len;
        let (ethernet, ip) = headers[room..].split_at_mut(piece.ethernet.len());
        ethernet.copy_from_slice(piece.ethernet);
        ip.copy_from_slice(piece.headers);
        if let Some((at, value)) = piece.patch
            && let Some(byte) = ip.get_mut(at)
        {
            *byte = value;
        }
    }
}
