//! A part of the store, behind one lock: objects by key, requests to servers that fill it, and which
//! object goes first when memory is short.
//!
//! ```text
//!  new ──▶ small queue (a tenth) ── used since ──▶ main queue ─┬─ used since: again to its end
//!              │ not used                                      └─ not used ──▶ evicted
//!              ▼
//!          evicted; its hash stays a while, so that it comes into the main queue next time
//! ```
//! That is S3-FIFO (Yang et al., SOSP 2023): a hit writes nothing that others wait for.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::BuildHasher;
use std::sync::Arc;

use crate::hash::Secret;
use crate::object::Object;
use crate::store::VARIANTS_MAX;

/// Hashes of evicted objects that are remembered.
const GHOSTS_MAX: usize = 1_024;
/// Keys of a shard that are remembered as not storable.
const PASSES_MAX: usize = 128;
/// Most objects that have another turn before one is evicted.
const TURNS_MAX: usize = 256;
/// Invalidations that are remembered, for fills that began before.
const INVALIDATIONS_MAX: usize = 2_048;

/// What is known of a key.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    /// Stored responses, the newest first.
    pub(crate) variants: Vec<Arc<Object>>,
    /// The request to the server for which others wait: its number, and when it began in milliseconds.
    pub(crate) fill: Option<(u64, u64)>,
}

impl Entry {
    fn is_empty(&self) -> bool {
        self.variants.is_empty() && self.fill.is_none()
    }
}

/// A part of the store.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) entries: HashMap<Arc<[u8]>, Entry, Secret>,
    /// Objects by number, and whether they are in the main queue.
    pub(crate) objects: BTreeMap<u64, (Arc<Object>, bool)>,
    small: VecDeque<u64>,
    main: VecDeque<u64>,
    bytes: [usize; 2],
    ghosts: VecDeque<u64>,
    ghost_set: HashSet<u64>,
    /// Hashes of keys whose responses were not stored, and until when, in milliseconds, requests for them do
    /// not wait for each other; the same in the order of time.
    pass_until: HashMap<u64, u64>,
    passes: VecDeque<(u64, u64)>,
    /// Hashes of keys that were invalidated last, and how many there were.
    invalidated: (VecDeque<u64>, u64),
}

impl Shard {
    pub(crate) fn new(secret: Secret) -> Self {
        Shard {
            entries: HashMap::with_hasher(secret),
            objects: BTreeMap::new(),
            small: VecDeque::new(),
            main: VecDeque::new(),
            bytes: [0; 2],
            ghosts: VecDeque::new(),
            ghost_set: HashSet::new(),
            pass_until: HashMap::new(),
            passes: VecDeque::new(),
            invalidated: Default::default(),
        }
    }

    /// Returns the memory of its objects.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes[0] + self.bytes[1]
    }

    /// Returns the number of invalidations so far.
    pub(crate) fn invalidations(&self) -> u64 {
        self.invalidated.1
    }

    /// Returns whether a key was invalidated since there were `since` invalidations, or may have been.
    pub(crate) fn was_invalidated(&self, hash: u64, since: u64) -> bool {
        let (recent, count) = &self.invalidated;
        let news = usize::try_from(count - since).unwrap_or(usize::MAX);
        news > INVALIDATIONS_MAX || recent.iter().rev().take(news).any(|known| *known == hash)
    }

    /// Removes all responses of a key. Returns the memory that is free then, and how many there were.
    pub(crate) fn invalidate(&mut self, key: &[u8], hash: u64) -> (usize, usize) {
        let (recent, count) = &mut self.invalidated;
        *count += 1;
        recent.push_back(hash);
        if recent.len() > INVALIDATIONS_MAX {
            recent.pop_front();
        }
        let Some(entry) = self.entries.get_mut(key) else { return (0, 0) };
        entry.fill = None; // what is on its way is not stored, and others do not wait for it
        let ids: Vec<u64> = entry.variants.iter().map(|object| object.id).collect();
        let freed = ids.iter().map(|id| self.remove(*id)).sum();
        self.tidy(key);
        (freed, ids.len())
    }

    /// Inserts an object in front of its variants. Returns the memory that is free by what it replaces. `now`
    /// in seconds since 1970.
    pub(crate) fn insert(&mut self, object: &Arc<Object>, hash: u64, now: u64) -> usize {
        self.pass_until.remove(&hash);
        let entry = self.entries.entry(Arc::clone(&object.key)).or_default();
        let mut gone: Vec<u64> = Vec::new();
        gone.extend(entry.variants.iter().filter(|old| old.chosen == object.chosen).map(|old| old.id));
        entry.variants.retain(|old| old.chosen != object.chosen);
        entry.variants.insert(0, Arc::clone(object));
        if entry.variants.len() > VARIANTS_MAX {
            // What nobody uses goes first, so that odd requests do not push out what others use.
            let worth = |old: &&Arc<Object>| (old.times().fresh_for(now).is_some(), old.uses());
            gone.extend(entry.variants.iter().skip(1).rev().min_by_key(worth).map(|old| old.id));
        }
        let is_main = self.ghost_set.remove(&hash);
        self.objects.insert(object.id, (Arc::clone(object), is_main));
        self.bytes[usize::from(is_main)] += object.size();
        if is_main { &mut self.main } else { &mut self.small }.push_back(object.id);
        let freed = gone.into_iter().map(|id| self.remove(id)).sum();
        if self.small.len() + self.main.len() > 2 * self.objects.len() + 64 {
            let objects = &self.objects;
            self.small.retain(|id| objects.contains_key(id));
            self.main.retain(|id| objects.contains_key(id));
        }
        freed
    }

    /// Removes an object. Returns the memory that is free then.
    pub(crate) fn remove(&mut self, id: u64) -> usize {
        let Some((object, is_main)) = self.objects.remove(&id) else { return 0 };
        self.bytes[usize::from(is_main)] -= object.size();
        if let Some(entry) = self.entries.get_mut(&object.key) {
            entry.variants.retain(|known| known.id != id);
        }
        self.tidy(&object.key);
        object.size()
    }

    /// Removes the entry of a key of which nothing is known any more.
    pub(crate) fn tidy(&mut self, key: &[u8]) {
        if self.entries.get(key).is_some_and(Entry::is_empty) {
            self.entries.remove(key);
        }
    }

    /// Returns whether requests for a key do not wait for each other.
    pub(crate) fn passes(&self, hash: u64, now: u64) -> bool {
        self.pass_until.get(&hash).is_some_and(|until| *until > now)
    }

    /// Remembers that responses of a key are not stored. What is in force stays as it is.
    pub(crate) fn pass(&mut self, hash: u64, now: u64, until: u64) {
        if self.passes(hash, now) {
            return;
        }
        self.pass_until.insert(hash, until);
        self.passes.push_back((until, hash));
        while let Some((until, hash)) =
            self.passes.pop_front_if(|(until, _)| *until <= now).or_else(|| self.beyond())
        {
            // A later one of the same key may be in force.
            if self.pass_until.get(&hash) == Some(&until) {
                self.pass_until.remove(&hash);
            }
        }
    }

    fn beyond(&mut self) -> Option<(u64, u64)> {
        if self.passes.len() > PASSES_MAX { self.passes.pop_front() } else { None }
    }

    /// Removes an object that has not been used of late. Returns the memory that is free then; 0: there is no
    /// object.
    pub(crate) fn evict(&mut self, secret: Secret) -> usize {
        // An object of the main queue has its turn at most once for each of its uses.
        let mut turns = 0;
        loop {
            let from_small = self.main.is_empty() || self.bytes[0] * 10 > self.bytes[0] + self.bytes[1];
            let queue = if from_small { &mut self.small } else { &mut self.main };
            let Some(id) = queue.pop_front() else {
                if self.small.is_empty() && self.main.is_empty() {
                    return 0;
                }
                let other = if from_small { &mut self.main } else { &mut self.small };
                let Some(id) = other.pop_front() else { return 0 };
                if self.objects.contains_key(&id) {
                    return self.remove(id);
                }
                continue;
            };
            let Some((object, is_main)) = self.objects.get_mut(&id) else { continue };
            if object.uses() > 0 && turns < TURNS_MAX {
                turns += 1;
                object.decay();
                let size = object.size();
                if !std::mem::replace(is_main, true) {
                    self.bytes[0] -= size;
                    self.bytes[1] += size;
                }
                self.main.push_back(id);
                continue;
            }
            if !*is_main {
                let hash = secret.hash_one(&*object.key);
                self.remember(hash);
            }
            return self.remove(id);
        }
    }

    fn remember(&mut self, hash: u64) {
        if self.ghost_set.insert(hash) {
            self.ghosts.push_back(hash);
        }
        if self.ghosts.len() > GHOSTS_MAX
            && let Some(oldest) = self.ghosts.pop_front()
        {
            self.ghost_set.remove(&oldest);
        }
    }
}
