//! A map from networks to values, of fixed capacity, with longest-prefix lookup.
//!
//! A hash table keyed by length and address. A lookup probes the lengths in use from the longest on. Nothing
//! is allocated after start-up.

use core::net::IpAddr;
use std::collections::HashMap;

use csp_types::Prefix;

use crate::hashing::HashKey;

/// A map from networks to values.
pub(super) struct PrefixMap<V> {
    entries: HashMap<Prefix, V, HashKey>,
    capacity: usize,
    /// Number of networks of each length: IPv4, then IPv6.
    lengths: [[u32; 129]; 2],
}

fn family(address: IpAddr) -> usize {
    usize::from(address.is_ipv6())
}

/// Returns the network with this prefix length that contains the address.
pub(super) fn network_of(address: IpAddr, length: u8) -> Option<Prefix> {
    let masked = match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length.min(32))).unwrap_or(0);
            IpAddr::V4((v4.to_bits() & mask).into())
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length.min(128))).unwrap_or(0);
            IpAddr::V6((v6.to_bits() & mask).into())
        }
    };
    Prefix::new(masked, length).ok()
}

impl<V> PrefixMap<V> {
    pub fn new(capacity: usize, key: HashKey) -> Self {
        PrefixMap {
            // A hash map that is at most half full reclaims removed entries in place, and never grows.
            entries: HashMap::with_capacity_and_hasher(2 * capacity, key),
            capacity,
            lengths: [[0; 129]; 2],
        }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    pub fn is_full(&self) -> bool {
        self.entries.len() >= self.capacity
    }

    pub fn get(&self, prefix: &Prefix) -> Option<&V> {
        self.entries.get(prefix)
    }

    pub fn get_mut(&mut self, prefix: &Prefix) -> Option<&mut V> {
        self.entries.get_mut(prefix)
    }

    /// Adds or replaces a value. Returns the value as the error if there is no room.
    pub fn insert(&mut self, prefix: Prefix, value: V) -> Result<(), V> {
        if let Some(present) = self.entries.get_mut(&prefix) {
            *present = value;
            return Ok(());
        }
        if self.is_full() {
            return Err(value);
        }
        self.entries.insert(prefix, value);
        self.lengths[family(prefix.address())][usize::from(prefix.length().min(128))] += 1;
        Ok(())
    }

    pub fn remove(&mut self, prefix: &Prefix) -> Option<V> {
        let value = self.entries.remove(prefix)?;
        self.lengths[family(prefix.address())][usize::from(prefix.length().min(128))] -= 1;
        Some(value)
    }

    pub fn clear(&mut self) {
        self.entries.clear();
        self.lengths = [[0; 129]; 2];
    }

    /// Returns the first value that `accept` accepts among the networks that contain the address, longest
    /// first.
    pub fn find(&self, address: IpAddr, accept: impl Fn(&V) -> bool) -> Option<(Prefix, &V)> {
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let lengths = &self.lengths[family(address)];
        (0..=longest).rev().filter(|&length| lengths[usize::from(length)] > 0).find_map(|length| {
            let prefix = network_of(address, length)?;
            let value = self.entries.get(&prefix).filter(|value| accept(value))?;
            Some((prefix, value))
        })
    }

    /// Returns all networks in arbitrary order.
    pub fn iter(&self) -> impl Iterator<Item = (Prefix, &V)> {
        self.entries.iter().map(|(prefix, value)| (*prefix, value))
    }

    /// Returns the first `limit` networks that `accept` accepts, in order. The others are not sorted.
    pub fn first(&self, limit: usize, accept: impl Fn(&V) -> bool) -> Vec<(Prefix, &V)> {
        let order = |(prefix, _): &(Prefix, &V)| (prefix.address(), prefix.length());
        let mut found: Vec<(Prefix, &V)> = self.iter().filter(|(_, value)| accept(value)).collect();
        if found.len() > limit {
            found.select_nth_unstable_by_key(limit, order);
            found.truncate(limit);
        }
        found.sort_unstable_by_key(order);
        found
    }
}
