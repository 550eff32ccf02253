//! Values by the label of their connection.

use csp_types::FlowLabel;

/// A table whose places are found by a label's index. It grows with the greatest index and the number of
/// values.
#[derive(Debug)]
pub(crate) struct Table<T> {
    /// The slot of each label index, from 1 on; 0: none.
    slots: Vec<u32>,
    values: Vec<Option<(FlowLabel, T)>>,
    free: Vec<u32>,
    len: usize,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table { slots: Vec::new(), values: Vec::new(), free: Vec::new(), len: 0 }
    }
}

impl<T> Table<T> {
    /// Inserts a value; one of the same label index is returned.
    pub(crate) fn insert(&mut self, label: FlowLabel, value: T) -> Option<T> {
        let at = label.index();
        if self.slots.len() <= at {
            self.slots.resize(at + 1, 0);
        }
        if let Some(place) = self.values.get_mut((self.slots[at] as usize).wrapping_sub(1)) {
            let old = place.replace((label, value));
            self.len += usize::from(old.is_none());
            return old.map(|(_, old)| old);
        }
        self.len += 1;
        let slot = self.free.pop().unwrap_or(self.values.len() as u32);
        match self.values.get_mut(slot as usize) {
            Some(place) => *place = Some((label, value)),
            None => self.values.push(Some((label, value))),
        }
        self.slots[at] = slot + 1;
        None
    }

    /// Removes and returns the value of a label.
    pub(crate) fn remove(&mut self, label: FlowLabel) -> Option<T> {
        let slot = self.slots.get_mut(label.index())?;
        let place = self.values.get_mut((*slot as usize).wrapping_sub(1))?;
        let (_, value) = place.take_if(|(of, _)| *of == label)?;
        self.free.push(*slot - 1);
        (*slot, self.len) = (0, self.len - 1);
        Some(value)
    }

    /// Returns the value of a label.
    #[inline]
    pub(crate) fn get(&self, label: FlowLabel) -> Option<&T> {
        let slot = *self.slots.get(label.index())? as usize;
        let (of, value) = self.values.get(slot.wrapping_sub(1))?.as_ref()?;
        (*of == label).then_some(value)
    }

    /// Returns the value of a label for changes.
    #[inline]
    pub(crate) fn get_mut(&mut self, label: FlowLabel) -> Option<&mut T> {
        let slot = *self.slots.get(label.index())? as usize;
        let (of, value) = self.values.get_mut(slot.wrapping_sub(1))?.as_mut()?;
        (*of == label).then_some(value)
    }

    /// Returns all values with their labels.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (FlowLabel, &mut T)> {
        self.values.iter_mut().flatten().map(|(label, value)| (*label, value))
    }

    /// Returns the number of values.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}
