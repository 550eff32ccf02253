//! Flow labels: the 32 bits that name a client connection on every tier (CSP §4.2).
//!
//! ```text
//!  31 30 29            22 21                                  0
//! +-----+----------------+-------------------------------------+
//! |spare|   generation   |                index                |
//! +-----+----------------+-------------------------------------+
//! ```

use core::fmt;

/// Bits of a label that index a table.
pub const INDEX_BITS: u32 = 22;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;
const GENERATION_SHIFT: u32 = INDEX_BITS;

/// A flow's label, unique per proxy while the flow lives. The value 0 means "no label yet".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct FlowLabel(u32);

impl FlowLabel {
    /// No label was given out yet: the first segments of a connection.
    pub const NONE: FlowLabel = FlowLabel(0);

    /// The label of `generation` in table slot `index`. Slot 0 stays unused so that no label equals [`FlowLabel::NONE`].
    ///
    /// `index` must be below 2²²; higher bits are cut off.
    pub const fn new(index: u32, generation: u8) -> Self {
        FlowLabel((index & INDEX_MASK) | ((generation as u32) << GENERATION_SHIFT))
    }

    /// The label as it came from the wire; spare bits that are set make it no label.
    pub const fn from_wire(raw: u32) -> Option<Self> {
        if raw >> 30 == 0 { Some(FlowLabel(raw)) } else { None }
    }

    /// The 32 bits for the wire.
    pub const fn to_wire(self) -> u32 {
        self.0
    }

    /// Where tables keep this flow.
    pub const fn index(self) -> usize {
        (self.0 & INDEX_MASK) as usize
    }

    /// Which use of the slot this is, modulo 256.
    pub const fn generation(self) -> u8 {
        (self.0 >> GENERATION_SHIFT) as u8
    }

    /// Whether this is [`FlowLabel::NONE`].
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for FlowLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

impl fmt::Debug for FlowLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FlowLabel({}/g{})", self.index(), self.generation())
    }
}

/// Gives out labels from a share of the index space and takes them back, oldest first, so that a slot's generation
/// moves on as slowly as possible.
///
/// Both storages are handed in by the owner at start-up; the allocator itself never allocates.
#[derive(Debug)]
pub struct LabelAllocator<S> {
    first_index: u32,
    generations: S,
    free_ring: S,
    head: usize,
    len: usize,
}

impl<S: AsRef<[u32]> + AsMut<[u32]>> LabelAllocator<S> {
    /// An allocator of the indices `first_index .. first_index + n`, where `n` is the length of both storages (which
    /// must be equal; the shorter counts). `first_index` 0 is moved up to 1.
    pub fn new(first_index: u32, mut generations: S, mut free_ring: S) -> Self {
        let first_index = first_index.max(1);
        let n = generations.as_ref().len().min(free_ring.as_ref().len());
        generations.as_mut().fill(0);
        for (i, slot) in free_ring.as_mut()[..n].iter_mut().enumerate() {
            *slot = i as u32;
        }
        LabelAllocator { first_index, generations, free_ring, head: 0, len: n }
    }

    /// A label that no live flow has; `None` when the table is full.
    pub fn allocate(&mut self) -> Option<FlowLabel> {
        if self.len == 0 {
            return None;
        }
        let ring = self.free_ring.as_ref();
        let slot = ring[self.head];
        self.head = (self.head + 1) % ring.len();
        self.len -= 1;
        let generation = self.generations.as_ref()[slot as usize] as u8;
        Some(FlowLabel::new(self.first_index + slot, generation))
    }

    /// Takes a label back and moves its slot to the next generation. A label that is not live here is ignored, and
    /// `false` says so.
    pub fn release(&mut self, label: FlowLabel) -> bool {
        let Some(slot) = label.index().checked_sub(self.first_index as usize) else { return false };
        let generations = self.generations.as_mut();
        if slot >= generations.len() || generations[slot] as u8 != label.generation() {
            return false;
        }
        generations[slot] = (generations[slot] + 1) & 0xff;
        let ring = self.free_ring.as_mut();
        let tail = (self.head + self.len) % ring.len();
        ring[tail] = slot as u32;
        self.len += 1;
        true
    }

    /// How many labels are free.
    pub fn available(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_splits_into_index_and_generation() {
        let label = FlowLabel::new(0x3f_ffff, 0xa5);
        assert_eq!((label.index(), label.generation()), (0x3f_ffff, 0xa5));
        assert_eq!(FlowLabel::from_wire(label.to_wire()), Some(label));
        assert_eq!(FlowLabel::from_wire(1 << 30), None);
    }

    #[test]
    fn a_released_label_comes_back_in_another_generation() {
        let mut labels = LabelAllocator::new(0, [0; 2], [0; 2]);
        let (a, b) = (labels.allocate().unwrap(), labels.allocate().unwrap());
        assert_eq!(labels.allocate(), None);
        assert!(labels.release(a));
        assert!(!labels.release(a), "a stale label is not released twice");
        let again = labels.allocate().unwrap();
        assert_eq!(again.index(), a.index());
        assert_ne!(again, a);
        assert_ne!(again, b);
    }
}
