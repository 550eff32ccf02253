//! Memory in which a message is made before it is sent.

use std::marker::PhantomData;

/// The place of a message: bytes that can be written, by this process or by a system call, and that the peer
/// may read and change at the same time.
#[derive(Debug)]
pub struct Place<'a> {
    start: *mut u8,
    len: usize,
    life: PhantomData<&'a ()>,
}

impl Place<'_> {
    /// # Safety
    /// `len` bytes from `start` on stay mapped and writable for the lifetime of the value; no Rust reference
    /// to them exists meanwhile.
    pub(crate) unsafe fn new(start: *mut u8, len: usize) -> Self {
        Place { start, len, life: PhantomData }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address of the `len` bytes at `offset`, or `None` if they are not entirely within the
    /// place. It is valid while the place is.
    pub fn at(&self, offset: usize, len: usize) -> Option<*mut u8> {
        let end = offset.checked_add(len)?;
        // SAFETY: `offset + len` is at most the length, so the result lies within the place or at its end.
        (end <= self.len).then(|| unsafe { self.start.add(offset) })
    }

    /// Copies `from` to `offset`. Returns `false`, and copies nothing, if it does not fit.
    pub fn write(&self, offset: usize, from: &[u8]) -> bool {
        let Some(to) = self.at(offset, from.len()) else { return false };
        // SAFETY: `to` points to `from.len()` bytes that are mapped and writable by the contract of `new`;
        // `from` is a Rust reference, hence no part of them.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
        true
    }

    /// Returns the `len` bytes at `offset`, as far as they are within the place.
    pub fn part(&self, offset: usize, len: usize) -> Place<'_> {
        let offset = offset.min(self.len);
        let len = len.min(self.len - offset);
        // SAFETY: the result lies within this place, which outlives it.
        unsafe { Place::new(self.start.add(offset), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_beyond_a_place_is_touched() {
        let mut bytes = [0u8; 8];
        // SAFETY: the place is used before the array is looked at again.
        let place = unsafe { Place::new(bytes.as_mut_ptr(), 6) };
        assert!(place.write(1, b"ab") && !place.write(5, b"cd") && !place.write(usize::MAX, b"x"));
        let rest = place.part(4, usize::MAX);
        assert_eq!((rest.len(), place.part(9, 1).len(), place.part(1, 3).len()), (2, 0, 3));
        assert!(rest.write(0, b"ef") && !rest.write(1, b"gh"));
        assert!(rest.at(2, 0).is_some() && rest.at(2, 1).is_none() && place.part(6, 1).is_empty());
        assert_eq!(&bytes, b"\0ab\0ef\0\0");
    }
}
