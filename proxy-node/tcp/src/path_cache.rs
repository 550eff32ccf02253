//! Cache of path MTUs by destination, for new connections (RFC 1191 §6.3, RFC 8201 §5.2).
//!
//! A table of fixed size. Each address has a few possible places, selected by its keyed hash; a new entry
//! replaces the one that expires first. Entries are hints: nothing depends on their presence.

use core::hash::{Hash, Hasher};
use core::net::IpAddr;

use csp_types::Instant;
use siphasher::sip::SipHasher13;

/// Places per address (associativity).
const WAYS: usize = 4;

#[derive(Clone, Copy, Debug)]
struct Entry {
    ip: IpAddr,
    mtu: u16,
    until: Instant,
}

/// Path MTUs by destination.
pub(crate) struct PathCache {
    hasher: SipHasher13,
    sets: Box<[[Option<Entry>; WAYS]]>,
}

impl core::fmt::Debug for PathCache {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("PathCache").field("used", &self.len()).finish_non_exhaustive()
    }
}

impl PathCache {
    /// A table for at least `entries` destinations. The hash is keyed, so that outsiders cannot choose
    /// addresses that share their places.
    pub fn new(entries: usize, key: &[u8; 16]) -> Self {
        let sets = entries.div_ceil(WAYS).max(1).next_power_of_two();
        PathCache {
            hasher: SipHasher13::new_with_key(key),
            sets: vec![[None; WAYS]; sets].into_boxed_slice(),
        }
    }

    pub fn capacity(&self) -> usize {
        self.sets.len() * WAYS
    }

    /// Number of entries, expired ones included.
    pub fn len(&self) -> usize {
        self.sets.iter().flatten().flatten().count()
    }

    fn set_of(&self, ip: IpAddr) -> usize {
        let mut hasher = self.hasher;
        hasher.write_u8(4);
        ip.hash(&mut hasher);
        hasher.finish() as usize & (self.sets.len() - 1)
    }

    /// The MTU towards `ip`, IP header included, and when it expires.
    pub fn get(&self, now: Instant, ip: IpAddr) -> Option<(u16, Instant)> {
        let found = self.sets[self.set_of(ip)].iter().flatten().find(|entry| entry.ip == ip)?;
        (found.until > now).then_some((found.mtu, found.until))
    }

    /// Stores the MTU towards `ip`.
    pub fn set(&mut self, ip: IpAddr, mtu: u16, until: Instant) {
        let at = self.set_of(ip);
        let set = &mut self.sets[at];
        let own = set.iter().position(|place| place.is_some_and(|entry| entry.ip == ip));
        let first_over = || (0..WAYS).min_by_key(|&way| set[way].map_or(Instant::ZERO, |entry| entry.until));
        if let Some(way) = own.or_else(first_over) {
            set[way] = Some(Entry { ip, mtu, until });
        }
    }

    /// Removes the entry of `ip`: the path has no limit below that of the interface.
    pub fn remove(&mut self, ip: IpAddr) {
        let at = self.set_of(ip);
        for place in &mut self.sets[at] {
            if place.is_some_and(|entry| entry.ip == ip) {
                *place = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_gives_up_what_is_over_first_and_old_entries_do_not_count() {
        let at = Instant::from_nanos;
        let ip = |n: u8| IpAddr::from([10, 0, 0, n]);
        let mut cache = PathCache::new(4, &[1; 16]);
        for n in 0..8 {
            cache.set(ip(n), 1_000 + u16::from(n), at(100 + u64::from(n)));
        }
        assert_eq!((cache.len(), cache.capacity()), (4, 4));
        assert_eq!((cache.get(at(1), ip(3)), cache.get(at(1), ip(4))), (None, Some((1_004, at(104)))));
        assert_eq!(cache.get(at(104), ip(4)), None);
        cache.set(ip(4), 700, at(900));
        assert_eq!((cache.get(at(104), ip(4)), cache.len()), (Some((700, at(900))), 4));
        cache.remove(ip(4));
        assert_eq!((cache.get(at(1), ip(4)), cache.len()), (None, 3));
    }
}
