//! Requests at the same time by key.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::rate::{TRIES, places, set};

const COUNT_BITS: u32 = 32;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

/// A table of counters, of all workers of a proxy.
#[derive(Debug)]
pub struct ConcurrentTable {
    /// Each: a tag (32 bits), and the number of its requests (32 bits). A place whose number is not 0 keeps
    /// its tag.
    places: Box<[AtomicU64]>,
    most: u64,
    uncounted: AtomicU64,
}

/// The key has as many requests as it may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

impl ConcurrentTable {
    /// Creates a table of at least `entries` places, of which each has at most `most` requests.
    pub(crate) fn new(most: u32, entries: usize) -> Arc<Self> {
        Arc::new(ConcurrentTable { places: places(entries), most: most.into(), uncounted: AtomicU64::new(0) })
    }

    /// Counts a request of the key with this hash, until the permit is dropped. `Ok(None)`: there is no place
    /// for its key, so that it passes uncounted.
    pub fn enter(self: &Arc<Self>, hash: u64) -> Result<Option<Permit>, Full> {
        let (tag, first) = (hash >> COUNT_BITS, set_start(&self.places, hash));
        for _ in 0..TRIES {
            let Some((at, value)) = self.find(hash, tag) else { break };
            let count = if value >> COUNT_BITS == tag { value & COUNT_MASK } else { 0 };
            if count >= self.most {
                return Err(Full);
            }
            let (at, next) = (first + at, tag << COUNT_BITS | (count + 1));
            let Some(place) = self.places.get(at) else { break };
            if place.compare_exchange(value, next, Relaxed, Relaxed).is_ok() {
                return Ok(Some(Permit { table: Arc::clone(self), at }));
            }
        }
        self.uncounted.fetch_add(1, Relaxed);
        Ok(None)
    }

    /// Returns how many requests there was no place for.
    pub fn uncounted(&self) -> u64 {
        self.uncounted.load(Relaxed)
    }

    /// Returns the place of a key in its set with what it holds, or else a free one.
    fn find(&self, hash: u64, tag: u64) -> Option<(usize, u64)> {
        let mut free = None;
        for (at, place) in set(&self.places, hash).iter().enumerate() {
            let value = place.load(Relaxed);
            let is_free = value & COUNT_MASK == 0;
            if !is_free && value >> COUNT_BITS == tag {
                return Some((at, value));
            }
            if is_free && free.is_none() {
                free = Some((at, value));
            }
        }
        free
    }
}

fn set_start(places: &[AtomicU64], hash: u64) -> usize {
    let sets = places.len() / crate::rate::WAYS;
    (hash as usize & (sets - 1)) * crate::rate::WAYS
}

/// A request that is counted. Dropped, it is counted no more.
#[derive(Debug)]
pub struct Permit {
    table: Arc<ConcurrentTable>,
    at: usize,
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(place) = self.table.places.get(self.at) {
            place.fetch_sub(1, Relaxed); // its number is at least 1: this permit's
        }
    }
}
