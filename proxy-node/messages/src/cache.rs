//! The last message of each key of a channel, for subscribers that join later.
//!
//! The cache holds one reference to each of its messages, within a bound of entries and one of memory. The
//! key that was updated longest ago is evicted first. A message that does not fit the empty cache evicts no
//! other key. Its own key then has no message, because the stored one is no longer the last.
//!
//! A *stamp* orders messages and subscriptions: both take the next one from the same count, so that what was
//! stored before a subscription is distinguished from what came after it.

use std::hash::Hasher as _;

use siphasher::sip::SipHasher13;

use crate::list::{Links, List, NIL};
use crate::pool::{MessageHandle, MessagePool};
use crate::table::{HashKey, Table};

pub use csp_types::options::LastValueKey;

/// Bounds of a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheConfig {
    /// Selects the key of a message.
    pub key: LastValueKey,
    /// Largest number of keys, at least 1. A new subscription examines all of them.
    pub entries: u32,
    /// Memory of all messages in bytes, counted in whole blocks; part of the channel's budget.
    pub bytes: u64,
}

/// Messages kept and not kept since the cache was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheCounters {
    /// Messages stored, whether or not they replaced another.
    pub stored: u64,
    /// Keys evicted for others.
    pub evicted: u64,
    /// Messages not stored because they are longer than the whole cache.
    pub too_long: u64,
}

/// A place among the messages in the order of their stamps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    slot: u32,
    stamp: u64,
}

impl Place {
    /// Before all messages.
    pub const START: Place = Place { slot: NIL, stamp: 0 };
}

/// A message of the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Kept {
    pub handle: MessageHandle,
    pub stamp: u64,
    pub place: Place,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    handle: MessageHandle,
    key_len: u16,
    hash: u32,
    blocks: u32,
    /// Stamp of the message; 0: the slot is free.
    stamp: u64,
}

#[derive(Debug)]
pub(crate) struct LastValues {
    config: CacheConfig,
    slots: Vec<Slot>,
    free: Vec<u32>,
    table: Table,
    key: HashKey,
    /// Slots in the order of their updates.
    order: List,
    links: Links,
    blocks: u64,
    blocks_max: u64,
    /// The last stamp that was issued.
    stamp: u64,
    pub counters: CacheCounters,
}

impl LastValues {
    pub fn new(config: CacheConfig, block_len: u32, key: HashKey) -> Self {
        let entries = config.entries.max(1) as usize;
        LastValues {
            config,
            slots: Vec::with_capacity(entries),
            free: Vec::with_capacity(entries),
            table: Table::new(entries),
            key,
            order: List::EMPTY,
            links: Links::new(entries),
            blocks: 0,
            blocks_max: config.bytes / u64::from(block_len.max(1)),
            stamp: 0,
            counters: CacheCounters::default(),
        }
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns a stamp later than all before.
    pub fn next_stamp(&mut self) -> u64 {
        self.stamp += 1;
        self.stamp
    }

    /// Stores a message in place of the last one with its key. `topic_len` is the length of its topic in
    /// bytes.
    pub fn store(&mut self, pool: &mut MessagePool, handle: MessageHandle, topic_len: usize) {
        let key_len = match self.config.key {
            LastValueKey::Topic => topic_len,
            LastValueKey::Bytes(len) => usize::from(len),
        };
        let Some(info) = pool.info(handle) else { return };
        let blocks = pool.blocks_for(info.len);
        let key = pool.prefix(handle, key_len);
        let (hash, key_len) = (self.hash(key), key.len() as u16);
        let is_it = |slot: u32| {
            let slot = &self.slots[slot as usize];
            slot.key_len == key_len && pool.prefix(slot.handle, usize::from(key_len)) == key
        };
        if let Some(slot) = self.table.find(hash, is_it) {
            self.remove(pool, slot);
        }
        if u64::from(blocks) > self.blocks_max {
            self.counters.too_long += 1;
            return;
        }
        while let Some(oldest) = self.order.front()
            && (self.len() >= self.config.entries as usize
                || self.blocks + u64::from(blocks) > self.blocks_max)
        {
            self.remove(pool, oldest);
            self.counters.evicted += 1;
        }
        if !pool.refer(handle, 1) {
            return;
        }
        self.blocks += u64::from(blocks);
        self.counters.stored += 1;
        let stored = Slot { handle, key_len, hash, blocks, stamp: self.next_stamp() };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = stored;
                slot
            }
            None => {
                self.slots.push(stored);
                self.slots.len() as u32 - 1
            }
        };
        self.table.insert(hash, slot);
        self.order.push_back(&mut self.links, slot);
    }

    fn hash(&self, key: &[u8]) -> u32 {
        let mut hasher = SipHasher13::new_with_keys(self.key.0[0], self.key.0[1]);
        hasher.write(key);
        hasher.finish() as u32
    }

    fn remove(&mut self, pool: &mut MessagePool, slot: u32) {
        let Slot { handle, hash, blocks, .. } = self.slots[slot as usize];
        self.order.remove(&mut self.links, slot);
        self.table.remove(hash, slot);
        self.slots[slot as usize].stamp = 0;
        self.free.push(slot);
        self.blocks -= u64::from(blocks);
        pool.release(handle);
    }

    /// Returns the message after `place` in the order of publication. If the message at `place` was replaced
    /// or removed meanwhile, the search begins at the oldest message and skips those up to `place`.
    pub fn after(&self, place: Place) -> Option<Kept> {
        let is_there = self.slots.get(place.slot as usize).is_some_and(|slot| slot.stamp == place.stamp);
        let mut next = if is_there { self.order.after(&self.links, place.slot) } else { self.order.front() };
        while let Some(slot) = next {
            let Slot { handle, stamp, .. } = *self.slots.get(slot as usize)?;
            if stamp > place.stamp {
                return Some(Kept { handle, stamp, place: Place { slot, stamp } });
            }
            next = self.order.after(&self.links, slot);
        }
        None
    }

    /// Removes all messages.
    pub fn clear(&mut self, pool: &mut MessagePool) {
        while let Some(slot) = self.order.front() {
            self.remove(pool, slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::{Budget, PoolConfig};
    use csp_types::Instant;

    fn cache(key: LastValueKey, entries: u32, bytes: u64) -> (MessagePool, LastValues) {
        let mut pool = MessagePool::new(PoolConfig { block_len: 16, blocks: 64 }, 1);
        pool.set_budget(0, Some(Budget { guaranteed: 0, max: 1024 })).unwrap();
        (pool, LastValues::new(CacheConfig { key, entries, bytes }, 16, HashKey([1, 2])))
    }

    /// Publishes messages, whose topic is what stands before '='.
    fn publish(pool: &mut MessagePool, cache: &mut LastValues, messages: &[&str]) -> Vec<String> {
        for message in messages {
            let handle =
                pool.store(0, (Instant::ZERO, 0), &[message.len() as u32], [message.as_bytes()]).unwrap();
            cache.store(pool, handle, message.find('=').unwrap());
            pool.release(handle);
        }
        let text = |handle| String::from_utf8(pool.slices(handle).collect::<Vec<_>>().concat()).unwrap();
        let all = std::iter::successors(cache.after(Place::START), |kept| cache.after(kept.place));
        all.map(|kept| text(kept.handle)).collect()
    }

    #[test]
    fn the_last_message_of_each_key_is_kept_up_to_the_bounds() {
        let (mut pool, mut cache) = cache(LastValueKey::Topic, 3, 1024);
        assert_eq!(publish(&mut pool, &mut cache, &["a=1", "b=1", "a=2", "ab=1"]), ["b=1", "a=2", "ab=1"]);
        assert_eq!(publish(&mut pool, &mut cache, &["c=1"]), ["a=2", "ab=1", "c=1"]);
        assert_eq!((pool.occupancy().messages, cache.len(), cache.counters.evicted), (3, 3, 1));
        cache.clear(&mut pool);
        assert_eq!((pool.occupancy().messages, cache.len()), (0, 0));
        assert_eq!(publish(&mut pool, &mut cache, &["c=2"]), ["c=2"]);
    }

    #[test]
    fn memory_is_a_bound_too() {
        let (mut pool, mut cache) = cache(LastValueKey::Topic, 100, 64);
        let long = format!("l={}", "x".repeat(40));
        assert_eq!(publish(&mut pool, &mut cache, &["a=1", "b=1", &long]), ["b=1", &long]);
        let longer = format!("m={}", "x".repeat(80));
        assert_eq!(
            publish(&mut pool, &mut cache, &[&longer]),
            ["b=1", &long],
            "others are not evicted for it"
        );
        assert_eq!((cache.counters.too_long, cache.counters.evicted), (1, 1));
        let longer = format!("b={}", "x".repeat(80));
        assert_eq!(publish(&mut pool, &mut cache, &[&longer]), [&long[..]], "b=1 is not the last of its key");
        cache.clear(&mut pool);
        assert_eq!(pool.occupancy().blocks_used, 0);
    }

    #[test]
    fn a_place_is_found_again_after_its_message_was_replaced() {
        let (mut pool, mut cache) = cache(LastValueKey::Topic, 9, 1024);
        publish(&mut pool, &mut cache, &["a=1", "b=1", "c=1", "d=1"]);
        let b = cache.after(cache.after(Place::START).unwrap().place).unwrap();
        let text = |cache: &LastValues, pool: &MessagePool, at: Place| {
            cache.after(at).map(|kept| pool.prefix(kept.handle, 3).to_vec())
        };
        publish(&mut pool, &mut cache, &["a=2"]);
        assert_eq!(text(&cache, &pool, b.place), Some(b"c=1".to_vec()));
        publish(&mut pool, &mut cache, &["b=2", "c=2"]);
        assert_eq!(text(&cache, &pool, b.place), Some(b"d=1".to_vec()), "c is behind d now");
        cache.clear(&mut pool);
        assert_eq!(cache.after(b.place), None);
    }

    #[test]
    fn the_first_bytes_can_be_the_key() {
        let (mut pool, mut cache) = cache(LastValueKey::Bytes(2), 9, 1024);
        assert_eq!(
            publish(&mut pool, &mut cache, &["ab=1", "abc=2", "ac=3", "a=", "="]),
            ["abc=2", "ac=3", "a=", "="]
        );
    }
}
