//! Reading a received stream in place: slices in order, and the position of the first byte.

/// The slices of a stream that have been received and not consumed, read from front to back.
///
/// Positions count bytes from the start of the connection, so that they stay valid when the caller consumes
/// bytes.
#[derive(Clone, Debug)]
pub struct Cursor<'a, I> {
    slices: I,
    rest: &'a [u8],
    position: u64,
}

impl<'a, I: Iterator<Item = &'a [u8]>> Cursor<'a, I> {
    /// Creates a cursor over `slices`, whose first byte is byte `position` of the stream: the number of bytes
    /// that the caller has consumed so far.
    pub fn new(position: u64, slices: I) -> Self {
        Cursor { slices, rest: &[], position }
    }

    /// Returns the position of the next byte.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Returns the next slice without its part that has been read; empty at the end of the received bytes.
    #[inline]
    pub(crate) fn slice(&mut self) -> &'a [u8] {
        while self.rest.is_empty() {
            match self.slices.next() {
                Some(next) => self.rest = next,
                None => break,
            }
        }
        self.rest
    }

    /// Passes over `len` bytes of the current slice.
    #[inline]
    pub(crate) fn pass(&mut self, len: usize) -> &'a [u8] {
        let (passed, rest) = self.rest.split_at(len.min(self.rest.len()));
        self.rest = rest;
        self.position += passed.len() as u64;
        passed
    }

    /// Reads a byte.
    pub(crate) fn byte(&mut self) -> Option<u8> {
        self.slice();
        self.pass(1).first().copied()
    }

    /// Passes over up to `len` bytes; returns how many were received.
    pub(crate) fn skip(&mut self, len: u64) -> u64 {
        let mut left = len;
        while left > 0 && !self.slice().is_empty() {
            left -= self.pass(usize::try_from(left).unwrap_or(usize::MAX)).len() as u64;
        }
        len - left
    }

    /// Copies received bytes to `out`; returns how many.
    pub(crate) fn copy(&mut self, out: &mut [u8]) -> usize {
        let mut done = 0;
        while done < out.len() && !self.slice().is_empty() {
            let passed = self.pass(out.len() - done);
            if let Some(room) = out.get_mut(done..done + passed.len()) {
                room.copy_from_slice(passed);
            }
            done += passed.len();
        }
        done
    }
}

/// Returns the part of `slices` that starts `skip` bytes behind their start and is `len` bytes long, slice by
/// slice: how a caller gathers the body of a frame from the memory where it was received.
pub fn part<'a>(
    slices: impl Iterator<Item = &'a [u8]>,
    skip: u64,
    len: usize,
) -> impl Iterator<Item = &'a [u8]> {
    let (mut slices, mut skip, mut left) = (slices, skip, len);
    core::iter::from_fn(move || {
        while left > 0 {
            let slice = slices.next()?;
            let from = usize::try_from(skip).unwrap_or(usize::MAX).min(slice.len());
            skip -= from as u64;
            let (part, _) = slice.get(from..)?.split_at(left.min(slice.len() - from));
            left -= part.len();
            if !part.is_empty() {
                return Some(part);
            }
        }
        None
    })
}
