//! The flow table: maps 4-tuples to flows; fixed capacity, with expiry.
//!
//! Entries are in a slab, and an open-addressing index with a keyed hash finds them. Each entry is in one of
//! three lists, one for each state, whose head expires first. Nothing allocates after construction.

use std::hash::Hasher;
use std::net::{IpAddr, SocketAddr};

use csp_types::{Duration, FlowLabel, FourTuple, INDEX_BITS, Instant, MacAddr};
use siphasher::sip::SipHasher13;

use super::api::{PortId, ProxyId};
use super::peer_location::Sent;
use super::search::Search;

const NIL: u32 = u32::MAX;
/// Largest number of entries that the index can address.
const FLOWS_LIMIT: usize = 1 << INDEX_BITS;

/// Identifies an entry. Valid until the entry is removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FlowIndex(pub(super) u32);

/// State of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FlowState {
    /// Opened from the LAN, without a label so far.
    Pending = 0,
    /// Has a label.
    Bound = 1,
    /// Its label has ended, or it never had one: kept for late segments.
    Lingering = 2,
}

/// One flow.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    pub(super) tuple: FourTuple,
    pub(super) hash: u64,
    pub(super) state: FlowState,
    pub(super) label: FlowLabel,
    pub(super) proxy: ProxyId,
    pub(super) worker: u8,
    /// How far the search is, while it is not known which proxy worker has the connection.
    pub(super) search: Option<Search>,
    pub(super) port: PortId,
    pub(super) peer_mac: Option<MacAddr>,
    /// Segments sent to the peer recently; used to verify that a segment from another Ethernet address is the
    /// peer's.
    pub(super) sent: Sent,
    pub(super) created: Instant,
    pub(super) last_used: Instant,
    pub(super) segments_in: u64,
    pub(super) segments_out: u64,
    deadline: Instant,
    previous: u32,
    next: u32,
}

/// Initial values of an entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewFlow {
    pub(super) tuple: FourTuple,
    pub(super) hash: u64,
    pub(super) state: FlowState,
    pub(super) proxy: ProxyId,
    pub(super) worker: u8,
    pub(super) search: Option<Search>,
    pub(super) port: PortId,
    pub(super) peer_mac: Option<MacAddr>,
}

/// How long entries stay in each state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lifetimes {
    pub(super) pending: Duration,
    pub(super) idle: Duration,
    pub(super) linger: Duration,
}

#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
    len: usize,
}

pub(super) struct FlowTable {
    flows: Vec<Option<Flow>>,
    free: Vec<u32>,
    /// Slots of `flows` by hash, linear probing, at most half full.
    buckets: Box<[u32]>,
    key: (u64, u64),
    lifetimes: Lifetimes,
    lists: [List; 3],
}

impl FlowTable {
    pub(super) fn new(capacity: usize, key: (u64, u64), lifetimes: Lifetimes) -> Self {
        let capacity = capacity.clamp(1, FLOWS_LIMIT);
        FlowTable {
            flows: (0..capacity).map(|_| None).collect(),
            free: (0..capacity as u32).rev().collect(),
            buckets: vec![NIL; (capacity * 2).next_power_of_two()].into_boxed_slice(),
            key,
            lifetimes,
            lists: [List { head: NIL, tail: NIL, len: 0 }; 3],
        }
    }

    pub(super) fn hash(&self, tuple: &FourTuple) -> u64 {
        tuple_hash(tuple, self.key)
    }

    pub(super) fn len(&self) -> usize {
        self.flows.len() - self.free.len()
    }

    pub(super) fn count(&self, state: FlowState) -> usize {
        self.lists[state as usize].len
    }

    pub(super) fn find(&self, hash: u64, tuple: &FourTuple) -> Option<FlowIndex> {
        let mask = self.buckets.len() - 1;
        let mut at = hash as usize & mask;
        while self.buckets[at] != NIL {
            let index = self.buckets[at];
            if self.flow(FlowIndex(index)).is_some_and(|f| f.hash == hash && f.tuple == *tuple) {
                return Some(FlowIndex(index));
            }
            at = (at + 1) & mask;
        }
        None
    }

    pub(super) fn flow(&self, index: FlowIndex) -> Option<&Flow> {
        self.flows.get(index.0 as usize).and_then(Option::as_ref)
    }

    pub(super) fn flow_mut(&mut self, index: FlowIndex) -> Option<&mut Flow> {
        self.flows.get_mut(index.0 as usize).and_then(Option::as_mut)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (FlowIndex, &Flow)> {
        self.flows.iter().enumerate().filter_map(|(at, f)| f.as_ref().map(|f| (FlowIndex(at as u32), f)))
    }

    pub(super) fn capacity(&self) -> usize {
        self.flows.len()
    }

    /// Returns the entry to evict before another one in `state` is inserted: `None` while there is room, or
    /// if no entry may be evicted. Pending entries evict their own oldest entry as soon as they fill half of
    /// the table, and so do lingering ones: neither a flood of SYNs nor one of other segments can occupy all
    /// of it. In a full table the oldest lingering entry is evicted, or else the oldest pending one; never a
    /// bound one.
    pub(super) fn victim(&self, state: FlowState) -> Option<FlowIndex> {
        let list = &self.lists[state as usize];
        if state != FlowState::Bound && list.len >= self.flows.len().div_ceil(2) {
            return Some(FlowIndex(list.head));
        }
        if !self.free.is_empty() {
            return None;
        }
        let heads = [FlowState::Lingering, FlowState::Pending].map(|s| self.lists[s as usize].head);
        heads.into_iter().find(|head| *head != NIL).map(FlowIndex)
    }

    /// Adds an entry, whose tuple must not be in the table; `None` if the table is full.
    pub(super) fn insert(&mut self, now: Instant, new: NewFlow) -> Option<FlowIndex> {
        let index = self.free.pop()?;
        let mask = self.buckets.len() - 1;
        let mut at = new.hash as usize & mask;
        while self.buckets[at] != NIL {
            at = (at + 1) & mask;
        }
        self.buckets[at] = index;
        self.flows[index as usize] = Some(Flow {
            tuple: new.tuple,
            hash: new.hash,
            state: new.state,
            label: FlowLabel::NONE,
            proxy: new.proxy,
            worker: new.worker,
            search: new.search,
            port: new.port,
            peer_mac: new.peer_mac,
            sent: Sent::default(),
            created: now,
            last_used: now,
            segments_in: 0,
            segments_out: 0,
            deadline: now + self.lifetime(new.state),
            previous: NIL,
            next: NIL,
        });
        self.link(FlowIndex(index));
        Some(FlowIndex(index))
    }

    /// Changes the state of an entry and restarts its timeout.
    pub(super) fn set_state(&mut self, now: Instant, index: FlowIndex, state: FlowState) {
        let deadline = now + self.lifetime(state);
        self.unlink(index);
        if let Some(flow) = self.flow_mut(index) {
            flow.state = state;
            flow.deadline = deadline;
            flow.last_used = now;
        }
        self.link(index);
    }

    pub(super) fn remove(&mut self, index: FlowIndex) -> Option<Flow> {
        self.unlink(index);
        let flow = self.flows.get_mut(index.0 as usize)?.take()?;
        self.remove_bucket(index, flow.hash);
        self.free.push(index.0);
        Some(flow)
    }

    /// Returns the next entry that has expired. Bound entries that were used in the meantime are moved to the
    /// end of their list. That list is in order of binding, so a silent flow expires after one to two times
    /// the idle timeout.
    pub(super) fn expired(&mut self, now: Instant) -> Option<FlowIndex> {
        for state in [FlowState::Lingering, FlowState::Pending] {
            let head = FlowIndex(self.lists[state as usize].head);
            if self.flow(head).is_some_and(|f| f.deadline <= now) {
                return Some(head);
            }
        }
        for _ in 0..self.lists[FlowState::Bound as usize].len {
            let head = FlowIndex(self.lists[FlowState::Bound as usize].head);
            let due = self.flow(head).filter(|f| f.deadline <= now)?;
            let last_used = due.last_used;
            if last_used + self.lifetimes.idle <= now {
                return Some(head);
            }
            self.set_state(now, head, FlowState::Bound);
            if let Some(flow) = self.flow_mut(head) {
                flow.last_used = last_used;
            }
        }
        None
    }

    /// Returns the earliest time at which an entry may expire.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.lists.iter().filter_map(|l| self.flow(FlowIndex(l.head))).map(|f| f.deadline).min()
    }

    fn lifetime(&self, state: FlowState) -> Duration {
        match state {
            FlowState::Pending => self.lifetimes.pending,
            FlowState::Bound => self.lifetimes.idle,
            FlowState::Lingering => self.lifetimes.linger,
        }
    }

    /// Removes the entry from the index and moves later entries of its chain up (Knuth, vol. 3, §6.4,
    /// algorithm R).
    fn remove_bucket(&mut self, index: FlowIndex, hash: u64) {
        let mask = self.buckets.len() - 1;
        let mut hole = hash as usize & mask;
        while self.buckets[hole] != index.0 {
            if self.buckets[hole] == NIL {
                return;
            }
            hole = (hole + 1) & mask;
        }
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let candidate = self.buckets[at];
            if candidate == NIL {
                break;
            }
            let home = self.flow(FlowIndex(candidate)).map_or(at, |f| f.hash as usize & mask);
            // It may move into the hole unless its home bucket lies between the hole and its present bucket.
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                self.buckets[hole] = candidate;
                hole = at;
            }
        }
        self.buckets[hole] = NIL;
    }

    fn link(&mut self, index: FlowIndex) {
        let Some(state) = self.flow(index).map(|f| f.state as usize) else { return };
        let tail = self.lists[state].tail;
        if let Some(flow) = self.flow_mut(index) {
            (flow.previous, flow.next) = (tail, NIL);
        }
        match self.flow_mut(FlowIndex(tail)) {
            Some(last) => last.next = index.0,
            None => self.lists[state].head = index.0,
        }
        self.lists[state].tail = index.0;
        self.lists[state].len += 1;
    }

    fn unlink(&mut self, index: FlowIndex) {
        let Some((state, previous, next)) = self.flow(index).map(|f| (f.state as usize, f.previous, f.next))
        else {
            return;
        };
        match self.flow_mut(FlowIndex(previous)) {
            Some(flow) => flow.next = next,
            None => self.lists[state].head = next,
        }
        match self.flow_mut(FlowIndex(next)) {
            Some(flow) => flow.previous = previous,
            None => self.lists[state].tail = previous,
        }
        self.lists[state].len -= 1;
    }
}

/// Returns a keyed hash of a 4-tuple.
pub(super) fn tuple_hash(tuple: &FourTuple, key: (u64, u64)) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(key.0, key.1);
    let mut bytes = [0; 36];
    let mut len = put_end(&mut bytes, 0, &tuple.local);
    len = put_end(&mut bytes, len, &tuple.remote);
    hasher.write(&bytes[..len]);
    hasher.finish()
}

fn put_end(bytes: &mut [u8; 36], mut at: usize, end: &SocketAddr) -> usize {
    let mut put = |part: &[u8]| {
        bytes[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    };
    match end.ip() {
        IpAddr::V4(v4) => put(&v4.octets()),
        IpAddr::V6(v6) => put(&v6.octets()),
    }
    put(&end.port().to_be_bytes());
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFETIMES: Lifetimes = Lifetimes {
        pending: Duration::from_secs(60),
        idle: Duration::from_secs(3600),
        linger: Duration::from_secs(5),
    };

    fn tuple(n: u32) -> FourTuple {
        let remote = SocketAddr::new(IpAddr::from((0x0a00_0000 + n).to_be_bytes()), 1000);
        FourTuple { local: SocketAddr::new(IpAddr::from([10, 1, 1, 1]), 80), remote }
    }

    fn insert(table: &mut FlowTable, now: Instant, n: u32, state: FlowState) -> Option<FlowIndex> {
        let (tuple, hash) = (tuple(n), table.hash(&tuple(n)));
        let (proxy, port, peer_mac) = (ProxyId(0), PortId(0), None);
        table.insert(now, NewFlow { tuple, hash, state, proxy, worker: 0, search: None, port, peer_mac })
    }

    fn find(table: &FlowTable, n: u32) -> Option<FlowIndex> {
        table.find(table.hash(&tuple(n)), &tuple(n))
    }

    #[test]
    fn what_was_inserted_is_found_until_removed() {
        // Removing in another order than inserting moves chains; the table is filled to its capacity.
        let mut table = FlowTable::new(1000, (1, 2), LIFETIMES);
        for n in 0..1000 {
            assert!(insert(&mut table, Instant::ZERO, n, FlowState::Bound).is_some());
        }
        assert_eq!(insert(&mut table, Instant::ZERO, 1000, FlowState::Bound), None);
        for round in 0..1000u32 {
            let gone = round * 389 % 1000;
            let index = find(&table, gone).unwrap();
            assert_eq!(table.remove(index).unwrap().tuple, tuple(gone));
            assert_eq!(find(&table, gone), None);
            let other = (round + 1) * 389 % 1000;
            assert_eq!(find(&table, other).is_some(), round < 999);
        }
        assert_eq!((table.len(), table.count(FlowState::Bound)), (0, 0));
    }

    #[test]
    fn a_full_table_gives_up_lingering_then_pending_flows_oldest_first() {
        let mut table = FlowTable::new(4, (1, 2), LIFETIMES);
        for (n, state) in [FlowState::Bound, FlowState::Pending, FlowState::Lingering, FlowState::Lingering]
            .into_iter()
            .enumerate()
        {
            assert_eq!(table.victim(FlowState::Bound), None);
            insert(&mut table, Instant::ZERO, n as u32, state).unwrap();
        }
        for expected in [2, 3, 1] {
            let victim = table.victim(FlowState::Bound).unwrap();
            assert_eq!(table.remove(victim).unwrap().tuple, tuple(expected));
            insert(&mut table, Instant::ZERO, 10 + expected, FlowState::Bound).unwrap();
        }
        assert_eq!(table.victim(FlowState::Bound), None);
    }

    #[test]
    fn strangers_push_out_each_other_at_half_of_the_table() {
        let mut table = FlowTable::new(8, (1, 2), LIFETIMES);
        insert(&mut table, Instant::ZERO, 0, FlowState::Lingering).unwrap();
        for n in 1..5 {
            assert_eq!(table.victim(FlowState::Pending), None);
            insert(&mut table, Instant::ZERO, n, FlowState::Pending).unwrap();
        }
        assert_eq!(table.victim(FlowState::Pending), find(&table, 1), "though there is room");
        assert_eq!((table.victim(FlowState::Lingering), table.victim(FlowState::Bound)), (None, None));
    }

    #[test]
    fn entries_expire_by_their_state_and_use_delays_it() {
        let at = |seconds: u64| Instant::from_nanos(seconds * 1_000_000_000);
        let mut table = FlowTable::new(8, (1, 2), LIFETIMES);
        let bound = insert(&mut table, at(0), 1, FlowState::Bound).unwrap();
        let pending = insert(&mut table, at(0), 2, FlowState::Pending).unwrap();
        let lingering = insert(&mut table, at(1), 3, FlowState::Lingering).unwrap();
        assert_eq!(table.next_deadline(), Some(at(6)));
        assert_eq!(table.expired(at(5)), None);
        assert_eq!(table.expired(at(6)), Some(lingering));
        table.remove(lingering);
        assert_eq!(table.expired(at(60)), Some(pending));
        table.remove(pending);
        table.flow_mut(bound).unwrap().last_used = at(3000);
        assert_eq!(table.expired(at(3600)), None);
        assert_eq!(table.next_deadline(), Some(at(7200)));
        assert_eq!(table.expired(at(7200)), Some(bound));
    }
}
