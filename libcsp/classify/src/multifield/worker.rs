//! A worker's side: the table in use, a cache of flows, and hit counters. All memory is allocated at
//! start-up.

use core::ops::Add;

use super::fields::{Fields, InstanceId};
use super::owner::Published;
use super::table::{Hit, RuleHandle};
use super::words::{AnyKey, Key, NONE, V6, hash, key_of};

/// Packets and bytes that matched a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HitCount {
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Add for HitCount {
    type Output = HitCount;
    fn add(self, rhs: HitCount) -> HitCount {
        HitCount { packets: self.packets + rhs.packets, bytes: self.bytes + rhs.bytes }
    }
}

/// Hit counters of all rules at one worker, by slot.
#[derive(Clone, Debug)]
pub struct Counters {
    counts: Vec<(u16, HitCount)>,
}

impl Counters {
    fn new(capacity: usize) -> Self {
        Counters { counts: vec![(0, HitCount::default()); capacity] }
    }

    /// Returns the hits of a rule. Counts of a former rule of its slot are not included.
    pub fn of(&self, handle: RuleHandle) -> HitCount {
        let counted = self.counts.get(handle.slot as usize);
        counted
            .filter(|(generation, _)| *generation == handle.generation)
            .map_or(HitCount::default(), |c| c.1)
    }

    #[inline]
    fn count(&mut self, handle: RuleHandle, bytes: u64) {
        let Some((generation, count)) = self.counts.get_mut(handle.slot as usize) else { return };
        if *generation != handle.generation {
            (*generation, *count) = (handle.generation, HitCount::default());
        }
        count.packets += 1;
        count.bytes += bytes;
    }
}

/// The fields that a flow's packets share, and the result of their look-up: one cache line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(align(64))]
struct Flow {
    words: [u64; V6],
    /// TCP flags, whether the packets have ports, and the address family.
    kind: u32,
    /// The generation of the table in which it was found, modulo 2³².
    table: u32,
    slot: u32,
    instance: u32,
    generation: u16,
    used: bool,
}

const _: () = assert!(size_of::<Flow>() == 64);

/// Flows per set of the cache: the one that is reused, and the newest.
const WAYS: usize = 2;

const UNUSED: Flow =
    Flow { words: [0; V6], kind: 0, table: 0, slot: NONE, instance: 0, generation: 0, used: false };

const KIND_NO_PORTS: u32 = 1 << 16;
const KIND_V6: u32 = 1 << 17;

/// Number of look-ups after which the cache is evaluated.
const TRIAL: u32 = 1024;
/// Number of cache hits in a trial from which on the cache is worth using. A hit saves a look-up in the
/// table; a miss costs up to half of one.
const HITS_MIN: u32 = TRIAL / 4;
/// Number of look-ups without the cache after a failed trial.
const BYPASS: u32 = 15 * TRIAL;

/// Decides whether the cache is used. With more concurrent flows than it holds, each look-up evicts an entry
/// that another flow needs, and the cache only costs time.
#[derive(Clone, Copy, Debug, Default)]
struct Trial {
    asked: u32,
    answered: u32,
    /// Number of further look-ups without the cache.
    bypassed: u32,
}

impl Trial {
    /// Returns whether to use the cache for this look-up.
    #[inline]
    fn asks(&mut self) -> bool {
        if self.bypassed > 0 {
            self.bypassed -= 1;
            return false;
        }
        if self.asked == TRIAL {
            let bypassed = if self.answered < HITS_MIN { BYPASS } else { 0 };
            *self = Trial { bypassed, ..Trial::default() };
        }
        self.asked += 1;
        true
    }
}

/// A worker's classifier.
#[derive(Clone, Debug)]
pub struct Worker {
    published: Published,
    /// A power of two of sets, or none.
    sets: Vec<[Flow; WAYS]>,
    trial: Trial,
    counters: Counters,
    cache_hits: u64,
    lookups: u64,
}

impl Worker {
    /// Creates a worker that counts hits of at most `capacity` rules (the capacity of the
    /// [`Owner`](super::Owner)) and caches the results of about `flows` flows, rounded up to a power of two.
    /// 0 disables the cache.
    pub fn new(published: Published, capacity: usize, flows: usize) -> Self {
        let sets = if flows == 0 { 0 } else { flows.div_ceil(WAYS).next_power_of_two() };
        Worker {
            published,
            sets: vec![[UNUSED; WAYS]; sets],
            trial: Trial::default(),
            counters: Counters::new(capacity),
            cache_hits: 0,
            lookups: 0,
        }
    }

    /// Uses this table for look-ups from now on. Cached results of former tables are no longer used. Returns
    /// the former table, which the caller may drop on another thread, since freeing a large one takes time.
    pub fn adopt(&mut self, published: Published) -> Published {
        core::mem::replace(&mut self.published, published)
    }

    /// Returns the number of the table in use.
    pub fn generation(&self) -> u64 {
        self.published.generation
    }

    /// Returns the hits of all rules.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the number of look-ups, and the number of those that the cache answered.
    pub fn lookups(&self) -> (u64, u64) {
        (self.lookups, self.cache_hits)
    }

    /// Returns the rule that matches the packet, and counts a hit of `bytes` bytes.
    #[inline]
    pub fn classify(&mut self, packet: &Fields, bytes: u32) -> Option<Hit> {
        let hit = self.find(packet);
        if let Some(hit) = hit {
            self.count(hit, bytes);
        }
        hit
    }

    /// Counts a hit that [`find`](Self::find) has returned.
    #[inline]
    pub fn count(&mut self, hit: Hit, bytes: u32) {
        self.counters.count(hit.rule, bytes.into());
    }

    /// Returns the rule that matches the packet, without counting a hit.
    #[inline]
    pub fn find(&mut self, packet: &Fields) -> Option<Hit> {
        self.lookups += 1;
        let key = key_of(packet);
        if !self.trial.asks() {
            return self.published.table.find_key(&key);
        }
        let (words, kind) = match &key {
            AnyKey::V4(key) => ([key.words[0], 0, 0, 0, key.words[1]], self.kind(key)),
            AnyKey::V6(key) => (key.words, self.kind(key) | KIND_V6),
            AnyKey::Neither => return None,
        };
        let table = self.published.generation as u32;
        let place = hash(&words, &[u64::MAX; V6]) ^ u64::from(kind).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let at = (place ^ place >> 32) as usize & self.sets.len().wrapping_sub(1);
        let Some(set) = self.sets.get_mut(at) else { return self.published.table.find_key(&key) };
        let same = |flow: &Flow| flow.words == words && flow.kind == kind && flow.table == table && flow.used;
        if let Some(way) = set.iter().position(same) {
            self.cache_hits += 1;
            self.trial.answered += 1;
            // A reused flow moves to the front, and stays while others behind it are replaced.
            set.swap(0, way);
            let flow = &set[0];
            let rule = RuleHandle { slot: flow.slot, generation: flow.generation };
            return (flow.slot != NONE).then_some(Hit { rule, instance: InstanceId(flow.instance) });
        }
        let hit = self.published.table.find_key(&key);
        let (slot, generation) = hit.map_or((NONE, 0), |hit| (hit.rule.slot, hit.rule.generation));
        let instance = hit.map_or(0, |hit| hit.instance.0);
        // A flow of a former table may be replaced first.
        let way = if set[0].used && set[0].table == table { WAYS - 1 } else { 0 };
        set[way] = Flow { words, kind, table, slot, instance, generation, used: true };
        hit
    }

    /// Flags that no rule compares are masked out.
    fn kind<const N: usize>(&self, key: &Key<N>) -> u32 {
        let compared = 0x100 | u16::from(self.published.table.flags_compared());
        u32::from(key.tcp_flags & compared) | if key.source_port > 0xffff { KIND_NO_PORTS } else { 0 }
    }
}
