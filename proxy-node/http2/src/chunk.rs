//! Payload on its way out, counted until h2 has written it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Buf, Bytes};

/// Bytes of a stream that h2 holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unsent(Arc<AtomicUsize>);

impl Unsent {
    pub(crate) fn len(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    fn remove(&self, len: usize) {
        // Every byte was added once by `Chunk::new`, and is removed once: by `advance` or by `drop`.
        self.0.fetch_sub(len, Ordering::Relaxed);
    }
}

/// A piece of a body. It is counted as unsent until it was copied to the output or dropped.
#[derive(Debug)]
pub(crate) struct Chunk {
    bytes: Bytes,
    unsent: Unsent,
}

impl Chunk {
    /// Copies `bytes`.
    pub(crate) fn new(bytes: &[u8], unsent: &Unsent) -> Self {
        unsent.0.fetch_add(bytes.len(), Ordering::Relaxed);
        Chunk { bytes: Bytes::copy_from_slice(bytes), unsent: unsent.clone() }
    }
}

impl Buf for Chunk {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, len: usize) {
        self.bytes.advance(len);
        self.unsent.remove(len);
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.unsent.remove(self.bytes.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_count_until_they_are_written_or_dropped() {
        let unsent = Unsent::default();
        let mut chunk = Chunk::new(b"hello", &unsent);
        let other = Chunk::new(b"you", &unsent);
        assert_eq!(unsent.len(), 8);
        chunk.advance(4);
        assert_eq!((unsent.len(), chunk.chunk()), (4, &b"o"[..]));
        drop(other);
        drop(chunk);
        assert_eq!(unsent.len(), 0);
    }
}
