//! Memory that a provider sends from and receives into where it lies.

use std::fmt;
use std::sync::Arc;

/// What keeps a run of memory mapped.
///
/// # Safety
/// `len` bytes from `start` on are mapped, readable and writable, at the same place until the value is dropped. They
/// hold plain bytes that other processes or a device may change at any time: nobody makes references to them.
pub unsafe trait Backing: Send + Sync {
    /// The first byte.
    fn start(&self) -> *mut u8;
    /// Length in bytes.
    fn len(&self) -> usize;
    /// Whether it has no byte.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A run of memory, mapped as long as anybody holds a clone.
#[derive(Clone)]
pub struct Memory(Arc<dyn Backing>);

impl Memory {
    /// The memory that `backing` keeps.
    pub fn new(backing: impl Backing + 'static) -> Self {
        Memory(Arc::new(backing))
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has no byte.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it is the same memory, not merely equal.
    pub(crate) fn is_same(&self, other: &Memory) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether nobody else holds it.
    pub(crate) fn is_last(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// Where `len` bytes from `offset` on lie; `None` where they are not all within. Good as long as a clone of this is;
    /// others may change the bytes at any time.
    pub fn at(&self, offset: usize, len: usize) -> Option<*mut u8> {
        let end = offset.checked_add(len)?;
        // SAFETY: within the mapping, by the check and the promise of `Backing`.
        (end <= self.0.len()).then(|| unsafe { self.0.start().add(offset) })
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("len", &self.len()).finish()
    }
}

/// Names memory registered with a provider. Never reused while the provider lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RegionId(pub u64);

/// A run of registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Piece {
    /// The memory.
    pub region: RegionId,
    /// Where the piece starts in it, in bytes.
    pub offset: usize,
    /// Its length in bytes.
    pub len: usize,
}

/// Bytes on the heap, as memory to register.
struct Heap(Box<[std::cell::UnsafeCell<u8>]>);

// SAFETY: the bytes are reached through raw pointers only.
unsafe impl Send for Heap {}
// SAFETY: as above.
unsafe impl Sync for Heap {}

// SAFETY: the box is neither moved out of nor resized while it lives, and cells may be written through pointers.
unsafe impl Backing for Heap {
    fn start(&self) -> *mut u8 {
        self.0.as_ptr().cast_mut().cast()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

impl Memory {
    /// So many zero bytes on the heap.
    pub fn heap(len: usize) -> Self {
        Memory::new(Heap((0..len).map(|_| std::cell::UnsafeCell::new(0)).collect()))
    }

    /// Copies from `offset` on until `into` is full or the memory ends; returns how many bytes.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> usize {
        let len = self.len().saturating_sub(offset).min(into.len());
        if let Some(from) = self.at(offset, len) {
            // SAFETY: `len` bytes are mapped there and fit `into`, which is no part of shared memory.
            unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), len) };
        }
        len
    }

    /// Copies `from` to `offset` on until it or the memory ends; returns how many bytes.
    pub fn write(&self, offset: usize, from: &[u8]) -> usize {
        let len = self.len().saturating_sub(offset).min(from.len());
        if let Some(to) = self.at(offset, len) {
            // SAFETY: as for `read`.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, len) };
        }
        len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_beyond_the_end_is_touched() {
        let memory = Memory::heap(8);
        assert_eq!(
            (memory.write(6, b"abc"), memory.write(8, b"x"), memory.write(usize::MAX, b"x")),
            (2, 0, 0)
        );
        let mut bytes = [1; 4];
        assert_eq!((memory.read(5, &mut bytes), bytes), (3, [0, b'a', b'b', 1]));
        assert!(memory.at(8, 0).is_some() && memory.at(8, 1).is_none() && memory.at(1, usize::MAX).is_none());
    }
}
