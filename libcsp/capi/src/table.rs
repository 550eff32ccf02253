//! A bounded table whose keys carry a generation, so that the key of a removed value is invalid.

use crate::handle::{GENERATION_MASK, INDEX_BITS, Key};

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// At most `capacity` values; memory grows with use.
#[derive(Debug)]
pub struct Table<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    capacity: usize,
}

impl<T> Table<T> {
    /// An empty table.
    pub fn new(capacity: usize) -> Self {
        Table { slots: Vec::new(), free: Vec::new(), capacity: capacity.min(1 << INDEX_BITS) }
    }

    /// Whether another value fits.
    pub fn has_room(&self) -> bool {
        !self.free.is_empty() || self.slots.len() < self.capacity
    }

    /// Adds a value; `None` when the table is full.
    pub fn insert(&mut self, value: T) -> Option<Key> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() < self.capacity => {
                self.slots.push(Slot { generation: 1, value: None });
                (self.slots.len() - 1) as u32
            }
            None => return None,
        };
        let slot = self.slots.get_mut(index as usize)?;
        slot.value = Some(value);
        Some(Key { index, generation: slot.generation })
    }

    /// The value of a key.
    pub fn get(&self, key: Key) -> Option<&T> {
        let slot = self.slots.get(key.index as usize)?;
        if slot.generation == key.generation { slot.value.as_ref() } else { None }
    }

    /// The value of a key, mutable.
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation == key.generation { slot.value.as_mut() } else { None }
    }

    /// Removes a value; its key is invalid from then on.
    pub fn remove(&mut self, key: Key) -> Option<T> {
        let slot = self.slots.get_mut(key.index as usize).filter(|s| s.generation == key.generation)?;
        let value = slot.value.take()?;
        slot.generation = (slot.generation + 1) & GENERATION_MASK;
        self.free.push(key.index);
        Some(value)
    }

    /// The keys in use.
    pub fn keys(&self) -> impl Iterator<Item = Key> + '_ {
        let used = self.slots.iter().enumerate().filter(|(_, slot)| slot.value.is_some());
        used.map(|(index, slot)| Key { index: index as u32, generation: slot.generation })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_removed_value_is_invalid() {
        let mut table = Table::new(2);
        let first = table.insert('a').unwrap();
        let second = table.insert('b').unwrap();
        assert_eq!((table.insert('c'), table.has_room()), (None, false));
        assert_eq!((table.remove(first), table.remove(first)), (Some('a'), None));
        let again = table.insert('d').unwrap();
        assert_eq!((again.index, table.get(first), table.get(again)), (first.index, None, Some(&'d')));
        assert_eq!(table.keys().collect::<Vec<_>>(), [again, second]);
    }
}
