//! A hash table of fixed capacity that stores slot numbers. The caller, which has the keys, computes keyed
//! hashes and compares.

/// Secret numbers that make the places of keys unpredictable to peers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HashKey(
    /// Any two numbers; random in a daemon, fixed in a test.
    pub [u64; 2],
);

impl HashKey {
    /// Hashes two numbers.
    pub(crate) fn pair(self, a: u32, b: u32) -> u32 {
        let folded = fold((u64::from(a) << 32 | u64::from(b)) ^ self.0[0], self.0[1] | 1);
        (fold(folded, 0x9e37_79b9_7f4a_7c15) >> 16) as u32
    }
}

/// Returns the halves of the 128-bit product, combined.
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}

/// Open addressing with linear probing, at most half full.
#[derive(Debug)]
pub(crate) struct Table {
    /// (hash, slot + 1); 0 is an empty place.
    places: Vec<(u32, u32)>,
    mask: usize,
}

impl Table {
    /// A table for `entries` entries. The memory is touched only where entries are.
    pub fn new(entries: usize) -> Self {
        let places = (entries * 2).next_power_of_two().max(8);
        Table { places: vec![(0, 0); places], mask: places - 1 }
    }

    /// Returns the slot that is stored under `hash` and for which `is_it` returns true.
    pub fn find(&self, hash: u32, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut at = hash as usize & self.mask;
        loop {
            match *self.places.get(at)? {
                (_, 0) => return None,
                (stored, slot) if stored == hash && is_it(slot - 1) => return Some(slot - 1),
                _ => at = (at + 1) & self.mask,
            }
        }
    }

    /// Stores `slot`. The caller stores no more slots than the table was created for.
    pub fn insert(&mut self, hash: u32, slot: u32) {
        let mut at = hash as usize & self.mask;
        while self.places[at].1 != 0 {
            at = (at + 1) & self.mask;
        }
        self.places[at] = (hash, slot + 1);
    }

    /// Removes `slot`, which was stored under `hash`; does nothing if it was not.
    pub fn remove(&mut self, hash: u32, slot: u32) {
        let mut gap = hash as usize & self.mask;
        while self.places[gap] != (hash, slot + 1) {
            if self.places[gap].1 == 0 {
                return;
            }
            gap = (gap + 1) & self.mask;
        }
        // An entry further on moves into the gap if its own place is not between the gap and it.
        let mut at = gap;
        loop {
            at = (at + 1) & self.mask;
            let (stored, other) = self.places[at];
            if other == 0 {
                break;
            }
            let distance_home = at.wrapping_sub(stored as usize) & self.mask;
            if distance_home >= at.wrapping_sub(gap) & self.mask {
                self.places[gap] = (stored, other);
                gap = at;
            }
        }
        self.places[gap] = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use csp_support::Random;

    #[test]
    fn the_table_has_what_a_list_has() {
        for seed in 0..20 {
            let (mut table, mut list) = (Table::new(32), Vec::new());
            let mut random = Random::new(seed);
            for slot in 0..5_000 {
                let hash = random.below(24) as u32;
                if list.len() < 32 && random.below(2) == 0 {
                    table.insert(hash, slot);
                    list.push((hash, slot));
                } else if !list.is_empty() {
                    let (hash, slot) = list.swap_remove(random.below(list.len() as u64) as usize);
                    table.remove(hash, slot);
                    assert_eq!(table.find(hash, |found| found == slot), None, "seed {seed}");
                }
                for (hash, slot) in &list {
                    assert_eq!(table.find(*hash, |found| found == *slot), Some(*slot), "seed {seed}");
                }
            }
        }
    }

    #[test]
    fn hashes_of_neighbours_are_spread() {
        let key = HashKey([7, 0x1234_5678_9abc_def1]);
        let places: std::collections::HashSet<u32> =
            (0..256).flat_map(|a| (0..256).map(move |b| key.pair(a, b) & 0x1f_ffff)).collect();
        assert!(places.len() > 62_000, "{} of 65,536 pairs have a place of their own", places.len());
    }
}
