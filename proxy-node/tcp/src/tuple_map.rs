//! Lookup of table slots by addresses: a hash table of fixed capacity, for segments without a label.
//!
//! The table stores hashes and slot numbers only; the caller, which has the addresses, compares them.

/// An open-addressing table with linear probing; at most half full.
#[derive(Debug)]
pub(crate) struct TupleMap {
    /// (hash, slot + 1); 0 is an empty place.
    places: Vec<(u32, u32)>,
    mask: usize,
}

impl TupleMap {
    /// A table for `entries` entries.
    pub fn new(entries: usize) -> Self {
        let places = (entries * 2).next_power_of_two().max(8);
        TupleMap { places: vec![(0, 0); places], mask: places - 1 }
    }

    /// The slot stored under `hash` for which `matches` returns true.
    pub fn find(&self, hash: u32, mut matches: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut at = hash as usize & self.mask;
        loop {
            match self.places[at] {
                (_, 0) => return None,
                (h, slot) if h == hash && matches(slot - 1) => return Some(slot - 1),
                _ => at = (at + 1) & self.mask,
            }
        }
    }

    /// Adds `slot`. The caller must not add more slots than the table was created for.
    pub fn insert(&mut self, hash: u32, slot: u32) {
        let mut at = hash as usize & self.mask;
        while self.places[at].1 != 0 {
            at = (at + 1) & self.mask;
        }
        self.places[at] = (hash, slot + 1);
    }

    /// Removes `slot`; does nothing if it is not in the table.
    pub fn remove(&mut self, hash: u32, slot: u32) {
        let mut at = hash as usize & self.mask;
        while self.places[at] != (hash, slot + 1) {
            if self.places[at].1 == 0 {
                return;
            }
            at = (at + 1) & self.mask;
        }
        // Closes the gap by moving up later entries that may be stored there.
        let mut gap = at;
        loop {
            at = (at + 1) & self.mask;
            let (hash, slot) = self.places[at];
            if slot == 0 {
                break;
            }
            let home = hash as usize & self.mask;
            if at.wrapping_sub(home) & self.mask >= at.wrapping_sub(gap) & self.mask {
                self.places[gap] = (hash, slot);
                gap = at;
            }
        }
        self.places[gap] = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_agrees_with_a_list() {
        let mut map = TupleMap::new(64);
        let mut model: Vec<(u32, u32)> = Vec::new();
        let mut state = 3u64;
        for slot in 0..20_000u32 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Few different hashes, so that places collide and wrap around.
            let hash = (state >> 40) as u32 % 40 + 100;
            if model.len() < 64 && state >> 63 == 0 {
                map.insert(hash, slot);
                model.push((hash, slot));
            } else if let Some((hash, slot)) =
                (!model.is_empty()).then(|| model.swap_remove(state as usize % model.len()))
            {
                map.remove(hash, slot);
                map.remove(hash, slot);
            }
            for &(hash, slot) in &model {
                assert_eq!(map.find(hash, |s| s == slot), Some(slot));
            }
            assert_eq!(map.places.iter().filter(|p| p.1 != 0).count(), model.len());
            assert_eq!(map.find(hash, |s| s == u32::MAX - 1), None);
        }
    }
}
