//! A bounded number of places, of which one user or address cannot take all.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The number of places that each key (a user, an address) holds.
#[derive(Clone, Debug)]
pub struct Shares<K: Copy + Eq + Hash> {
    taken: Arc<Mutex<HashMap<K, usize>>>,
    /// Largest number of places of a single key, and of all keys together.
    of_one: usize,
    of_all: usize,
}

/// A place. Dropping it releases it.
#[derive(Debug)]
pub struct Place<K: Copy + Eq + Hash> {
    shares: Shares<K>,
    key: K,
}

impl<K: Copy + Eq + Hash> Shares<K> {
    /// Creates `of_all` places; a single key may hold `of_one` of them.
    pub fn new(of_one: usize, of_all: usize) -> Self {
        Shares { taken: Arc::default(), of_one, of_all }
    }

    /// Takes a place. Returns `None` if the key holds its maximum, or no place is free.
    pub fn enter(&self, key: K) -> Option<Place<K>> {
        let mut taken = self.table();
        let own = taken.get(&key).copied().unwrap_or(0);
        if own >= self.of_one || taken.values().sum::<usize>() >= self.of_all {
            return None;
        }
        taken.insert(key, own + 1);
        Some(Place { shares: self.clone(), key })
    }

    fn table(&self) -> MutexGuard<'_, HashMap<K, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Copy + Eq + Hash> Drop for Place<K> {
    fn drop(&mut self) {
        let mut taken = self.shares.table();
        match taken.get_mut(&self.key) {
            Some(own) if *own > 1 => *own -= 1,
            _ => drop(taken.remove(&self.key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_that_one_key_takes_leave_room_for_another() {
        let shares = Shares::new(4, 16);
        let mut places: Vec<_> = (0..5).filter_map(|_| shares.enter(65534)).collect();
        assert_eq!(places.len(), 4);
        assert!(shares.enter(65534).is_none() && shares.enter(1000).is_some());
        places.pop();
        assert!(shares.enter(65534).is_some());
        drop(places);
        let places: Vec<_> = (0..16).filter_map(|n| shares.enter(n / 4)).collect();
        assert_eq!(places.len(), 16);
        assert!(shares.enter(65534).is_none(), "all are taken");
        drop(places);
        assert!(shares.table().is_empty());
    }
}
