//! Memory that a provider sends from and receives into without a copy of its own.

use std::fmt;
use std::sync::Arc;

/// The owner of a mapped memory range.
///
/// # Safety
/// `len` bytes starting at `start` stay mapped, readable and writable at the same address until the value is
/// dropped. They are plain bytes that other processes or a device may change at any time; no Rust reference
/// to them may exist.
pub unsafe trait Backing: Send + Sync {
    /// Returns the address of the first byte.
    fn start(&self) -> *mut u8;
    /// Returns the length in bytes.
    fn len(&self) -> usize;
    /// Returns whether the length is zero.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A memory range that stays mapped while a clone of this handle exists.
#[derive(Clone)]
pub struct Memory(Arc<dyn Backing>);

impl Memory {
    /// Wraps `backing`, which keeps the range mapped.
    pub fn new(backing: impl Backing + 'static) -> Self {
        Memory(Arc::new(backing))
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether both handles refer to the same range. Equal contents do not count.
    pub(crate) fn is_same(&self, other: &Memory) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns whether this is the only handle to the range.
    pub(crate) fn is_unshared(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// Returns the address of the `len` bytes at `offset`, or `None` if they are not entirely within the
    /// range. The address is valid while a clone of this handle exists. Other processes or a device may
    /// change the bytes at any time.
    pub fn at(&self, offset: usize, len: usize) -> Option<*mut u8> {
        let end = offset.checked_add(len)?;
        // SAFETY: `offset + len` is at most the length, so the result lies within the mapping, or one byte
        // past its end, which `Backing` keeps mapped at `start` while `self` exists.
        (end <= self.0.len()).then(|| unsafe { self.0.start().add(offset) })
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("len", &self.len()).finish()
    }
}

/// Identifies memory registered with a provider. Never reused while the provider exists.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RegionId(pub u64);

/// A range of registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Piece {
    /// The registered memory.
    pub region: RegionId,
    /// Offset of the first byte within the region, in bytes.
    pub offset: usize,
    /// Length in bytes.
    pub len: usize,
}

/// Heap memory that can be registered.
struct Heap(Box<[std::cell::UnsafeCell<u8>]>);

// SAFETY: no reference to the bytes is ever made; all access is through raw pointers, and the box itself is
// only dropped.
unsafe impl Send for Heap {}
// SAFETY: a shared reference exposes address and length only; the bytes are accessed through raw pointers,
// never by reference.
unsafe impl Sync for Heap {}

// SAFETY: the box is neither moved out of nor resized before the value is dropped, so its heap block stays at
// one address; `UnsafeCell` permits writes through pointers.
unsafe impl Backing for Heap {
    fn start(&self) -> *mut u8 {
        self.0.as_ptr().cast_mut().cast()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

impl Memory {
    /// Allocates `len` zero bytes on the heap.
    pub fn heap(len: usize) -> Self {
        Memory::new(Heap((0..len).map(|_| std::cell::UnsafeCell::new(0)).collect()))
    }

    /// Copies from `offset` until `into` is full or the range ends. Returns the number of bytes copied.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> usize {
        let len = self.len().saturating_sub(offset).min(into.len());
        if let Some(from) = self.at(offset, len) {
            // SAFETY: `from` points to `len` bytes that `self` keeps mapped; `into` has at least `len` bytes
            // and is a Rust reference, hence no part of the range.
            unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), len) };
        }
        len
    }

    /// Copies `from` to `offset` until `from` or the range ends. Returns the number of bytes copied.
    pub fn write(&self, offset: usize, from: &[u8]) -> usize {
        let len = self.len().saturating_sub(offset).min(from.len());
        if let Some(to) = self.at(offset, len) {
            // SAFETY: `to` points to `len` bytes that `self` keeps mapped; `from` has at least `len` bytes
            // and is a Rust reference, hence no part of the range.
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
