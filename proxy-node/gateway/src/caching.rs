//! The cache as a worker sees it: the store of the proxy, and exchanges that wait for another one's response.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use csp_cache::Store;
use csp_types::FlowLabel;

use crate::exchange::cache::State;

/// Most exchanges of a worker that wait; further ones ask the server themselves.
const WAITING_MAX: usize = 4_096;
/// Most states whose memory is kept for later ones.
const SPARE_MAX: usize = 64;

/// Why a response came from the cache, or did not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheResult {
    /// It was stored and fresh.
    Hit,
    /// Nothing was stored for it.
    Miss,
    /// What was stored was stale, and the server has sent another response.
    Expired,
    /// It was stored and stale: another request asks the server, or the server has failed.
    Stale,
    /// It was stored, and the server has said that it is still right.
    Revalidated,
    /// The request is none that the cache serves.
    Bypass,
}

impl CacheResult {
    /// All, in the order of counters.
    pub const ALL: [CacheResult; 6] = [
        CacheResult::Hit,
        CacheResult::Miss,
        CacheResult::Expired,
        CacheResult::Stale,
        CacheResult::Revalidated,
        CacheResult::Bypass,
    ];

    /// Returns its name in logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            CacheResult::Hit => "hit",
            CacheResult::Miss => "miss",
            CacheResult::Expired => "expired",
            CacheResult::Stale => "stale",
            CacheResult::Revalidated => "revalidated",
            CacheResult::Bypass => "bypass",
        }
    }

    /// Returns whether the response's body came from the cache.
    pub(crate) const fn is_stored(self) -> bool {
        matches!(self, CacheResult::Hit | CacheResult::Stale | CacheResult::Revalidated)
    }
}

/// An exchange: its client's connection and its serial number.
type Who = (FlowLabel, u32);

/// The cache as a worker sees it.
#[derive(Debug, Default)]
pub(crate) struct Caching {
    pub(crate) store: Option<Arc<Store>>,
    /// Exchanges that wait, by key.
    waiting: HashMap<Arc<[u8]>, BTreeSet<Who>>,
    waiting_count: usize,
    /// Exchanges whose wait is over.
    woken: Vec<Who>,
    /// Memory of states, for later ones.
    #[allow(clippy::vec_box, reason = "the memory of the boxes is what is kept")]
    spare: Vec<Box<State>>,
}

impl Caching {
    /// Has an exchange woken when the request to the server that others wait for has ended, if that is one of
    /// this worker; requests of others are looked at now and then. Returns `false` if too many wait.
    pub(crate) fn wait(&mut self, key: &[u8], who: Who) -> bool {
        if self.waiting.get(key).is_some_and(|waiting| waiting.contains(&who)) {
            return true; // it has looked, and goes on
        }
        if self.waiting_count >= WAITING_MAX {
            return false;
        }
        self.waiting_count += 1;
        match self.waiting.get_mut(key) {
            Some(waiting) => drop(waiting.insert(who)),
            None => drop(self.waiting.insert(key.into(), BTreeSet::from([who]))),
        }
        true
    }

    /// Forgets that an exchange waits.
    pub(crate) fn unwait(&mut self, key: &[u8], who: Who) {
        let Some(waiting) = self.waiting.get_mut(key) else { return };
        self.waiting_count -= usize::from(waiting.remove(&who));
        if waiting.is_empty() {
            self.waiting.remove(key);
        }
    }

    /// Wakes the exchanges that wait for a key.
    pub(crate) fn wake(&mut self, key: &[u8]) {
        let Some(waiting) = self.waiting.remove(key) else { return };
        self.waiting_count -= waiting.len();
        self.woken.extend(waiting);
    }

    /// Removes and returns an exchange whose wait is over.
    pub(crate) fn next_woken(&mut self) -> Option<Who> {
        self.woken.pop()
    }

    /// Returns memory for a state.
    pub(crate) fn state(&mut self) -> Box<State> {
        self.spare.pop().unwrap_or_default()
    }

    /// Keeps the memory of a state.
    pub(crate) fn keep(&mut self, mut state: Box<State>) {
        if self.spare.len() < SPARE_MAX {
            state.clear();
            self.spare.push(state);
        }
    }
}
