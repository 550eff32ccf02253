//! A table of values with ids that are never reused.

/// Bits of an id that hold the slot index. The other bits hold the slot's generation.
const INDEX_BITS: u32 = 12;

/// Largest capacity of a table.
pub(crate) const SLOTS_MAX: usize = 1 << INDEX_BITS;

/// Bits of an id. Two are left to its users: epoll tokens say there what the id names. A slot that is used
/// again a million times a second wears out after 35 years.
pub(crate) const ID_BITS: u32 = 62;

const GENERATION_MAX: u64 = (1 << (ID_BITS - INDEX_BITS)) - 1;

/// The lower 31 bits of an id: enough for the short time between the sending of a packet or work request that
/// names it and the answer, where there is no room for all of it.
pub(crate) fn short(id: u64) -> u32 {
    id as u32 & (u32::MAX >> 1)
}

struct Slot<T> {
    generation: u64,
    value: Option<T>,
}

/// At most `capacity` values, each found by its id in constant time. A slot whose generations are exhausted
/// is retired, so that no id is issued twice.
pub(crate) struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    /// Number of values.
    used: usize,
    capacity: usize,
}

impl<T> Slots<T> {
    pub(crate) fn new(capacity: usize) -> Self {
        let capacity = capacity.min(SLOTS_MAX);
        Slots { slots: Vec::with_capacity(capacity), free: Vec::with_capacity(capacity), used: 0, capacity }
    }

    /// Inserts `value` and returns its id, or `None` if the table is full.
    pub(crate) fn insert(&mut self, value: T) -> Option<u64> {
        if let Some(index) = self.free.pop() {
            let slot = self.slots.get_mut(index as usize)?;
            slot.value = Some(value);
            self.used += 1;
            return Some(slot.generation << INDEX_BITS | u64::from(index));
        }
        if self.slots.len() >= self.capacity {
            return None;
        }
        self.slots.push(Slot { generation: 0, value: Some(value) });
        self.used += 1;
        Some(self.slots.len() as u64 - 1)
    }

    /// Returns whether the table has no value.
    pub(crate) fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Returns whether the table has no free slot.
    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty() && self.slots.len() >= self.capacity
    }

    pub(crate) fn get(&self, id: u64) -> Option<&T> {
        let slot = self.slots.get(id as usize & (SLOTS_MAX - 1))?;
        if slot.generation == id >> INDEX_BITS { slot.value.as_ref() } else { None }
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut T> {
        let slot = self.slots.get_mut(id as usize & (SLOTS_MAX - 1))?;
        if slot.generation == id >> INDEX_BITS { slot.value.as_mut() } else { None }
    }

    /// The id in use whose [`short`] form is `short`.
    pub(crate) fn whole(&self, short_id: u32) -> Option<u64> {
        let index = short_id as usize & (SLOTS_MAX - 1);
        let slot = self.slots.get(index).filter(|slot| slot.value.is_some())?;
        let id = slot.generation << INDEX_BITS | index as u64;
        (short(id) == short_id).then_some(id)
    }

    pub(crate) fn remove(&mut self, id: u64) -> Option<T> {
        let index = id as u32 & (SLOTS_MAX as u32 - 1);
        let slot = self.slots.get_mut(index as usize)?;
        if slot.generation != id >> INDEX_BITS {
            return None;
        }
        let value = slot.value.take()?;
        self.used -= 1;
        if slot.generation < GENERATION_MAX {
            slot.generation += 1;
            self.free.push(index);
        }
        Some(value)
    }

    /// Iterates over all values with their ids, in slot order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| {
            slot.value.as_ref().map(|value| (slot.generation << INDEX_BITS | index as u64, value))
        })
    }

    /// Returns the number of slots used so far, free ones included: the exclusive bound of the index of
    /// [`at_mut`](Slots::at_mut).
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns the value in slot `index` with its id.
    pub(crate) fn at_mut(&mut self, index: usize) -> Option<(u64, &mut T)> {
        let slot = self.slots.get_mut(index)?;
        let id = slot.generation << INDEX_BITS | index as u64;
        slot.value.as_mut().map(|value| (id, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_never_reused() {
        let mut slots = Slots::new(2);
        let first = slots.insert('a').unwrap();
        assert_eq!(slots.remove(first), Some('a'));
        let second = slots.insert('b').unwrap();
        assert_ne!(first, second);
        assert_eq!(slots.get(first), None);
        assert_eq!(slots.remove(first), None);
        assert_eq!(slots.get(second), Some(&'b'));
    }

    #[test]
    fn a_slot_outlives_67_million_uses() {
        let mut slots = Slots::new(1);
        slots.insert(());
        // Once 20 bits counted the uses: then 64 silent connections at a time could use up a listener.
        slots.slots[0].generation = (1 << 20) - 1;
        for _ in 0..3 {
            let id = slots.iter().next().unwrap().0;
            assert_eq!(slots.remove(id), Some(()));
            assert!(slots.get(id).is_none() && slots.insert(()).is_some());
        }
    }

    #[test]
    fn a_full_table_refuses() {
        let mut slots = Slots::new(1);
        assert!(!slots.is_full());
        let id = slots.insert(1).unwrap();
        assert!(slots.is_full());
        assert_eq!(slots.insert(2), None);
        slots.remove(id);
        assert!(!slots.is_full());
        assert!(slots.insert(3).is_some());
    }
}
