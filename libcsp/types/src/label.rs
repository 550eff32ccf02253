//! Flow labels: the 32 bits that identify a client connection on every tier (CSP §4.2).
//!
//! ```text
//!  31 30 29            22 21                                  0
//! +-----+----------------+-------------------------------------+
//! |spare|   generation   |                index                |
//! +-----+----------------+-------------------------------------+
//! ```

use core::fmt;

/// Bits of a label that hold the table index.
pub const INDEX_BITS: u32 = 22;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;
const GENERATION_SHIFT: u32 = INDEX_BITS;

/// The label of a flow, unique per proxy while the flow exists. The value 0 means "no label yet".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct FlowLabel(u32);

impl FlowLabel {
    /// No label has been assigned yet: the first segments of a connection.
    pub const NONE: FlowLabel = FlowLabel(0);

    /// Returns the label of `generation` in table slot `index`. Slot 0 stays unused, so that no label equals
    /// [`FlowLabel::NONE`].
    ///
    /// `index` must be below 2²²; higher bits are discarded.
    pub const fn new(index: u32, generation: u8) -> Self {
        FlowLabel((index & INDEX_MASK) | ((generation as u32) << GENERATION_SHIFT))
    }

    /// Parses a label from the wire. `None` if a spare bit is set.
    pub const fn from_wire(raw: u32) -> Option<Self> {
        if raw >> 30 == 0 { Some(FlowLabel(raw)) } else { None }
    }

    /// Returns the 32 bits for the wire.
    pub const fn to_wire(self) -> u32 {
        self.0
    }

    /// Returns the index of the flow's table slot.
    pub const fn index(self) -> usize {
        (self.0 & INDEX_MASK) as usize
    }

    /// Returns the number of times the slot has been reused, modulo 256.
    pub const fn generation(self) -> u8 {
        (self.0 >> GENERATION_SHIFT) as u8
    }

    /// Returns whether this is [`FlowLabel::NONE`].
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

/// Allocates labels from a range of the index space. Released slots are reused in the order of their release,
/// so that the generation of a slot advances as slowly as possible.
///
/// The owner provides both storages at start-up; the allocator itself does not allocate memory.
#[derive(Debug)]
pub struct LabelAllocator<S> {
    first_index: u32,
    generations: S,
    free_ring: S,
    head: usize,
    len: usize,
}

impl<S: AsRef<[u32]> + AsMut<[u32]>> LabelAllocator<S> {
    /// Creates an allocator of the indices `first_index .. first_index + n`, where `n` is the length of both
    /// storages (which must be equal; the shorter counts). A `first_index` of 0 is raised to 1.
    pub fn new(first_index: u32, mut generations: S, mut free_ring: S) -> Self {
        let first_index = first_index.max(1);
        let n = generations.as_ref().len().min(free_ring.as_ref().len());
        generations.as_mut().fill(0);
        for (i, slot) in free_ring.as_mut()[..n].iter_mut().enumerate() {
            *slot = i as u32;
        }
        LabelAllocator { first_index, generations, free_ring, head: 0, len: n }
    }

    /// Allocates a label that no live flow has. `None` if all are in use.
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

    /// Releases a label and advances the generation of its slot. Returns `false`, without effect, if the
    /// label is of a past generation or outside the range.
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

    /// Returns the number of free labels.
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
