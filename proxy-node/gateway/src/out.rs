//! Bytes that the gateway writes itself, such as heads, while they wait for room.

/// Most buffers that are kept for later use.
const FREE_MAX: usize = 64;
/// Largest buffer that is kept for later use, in bytes.
const FREE_LEN_MAX: usize = 8 << 10;

/// Buffers for later use, of all connections of a worker.
#[derive(Debug, Default)]
pub(crate) struct Buffers(Vec<Vec<u8>>);

impl Buffers {
    /// Returns an empty buffer.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.0.pop().unwrap_or_default()
    }

    /// Keeps a buffer for later use.
    pub(crate) fn give(&mut self, mut buffer: Vec<u8>) {
        if self.0.len() < FREE_MAX && (1..=FREE_LEN_MAX).contains(&buffer.capacity()) {
            buffer.clear();
            self.0.push(buffer);
        }
    }
}

/// Bytes that wait for room at a connection. Without any it has no memory.
#[derive(Debug, Default)]
pub(crate) struct Out {
    bytes: Vec<u8>,
    at: usize,
}

impl Out {
    /// Returns whether nothing waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// Appends bytes.
    pub(crate) fn push(&mut self, bytes: &[u8], buffers: &mut Buffers) {
        if self.bytes.capacity() == 0 {
            self.bytes = buffers.take();
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns what waits.
    #[inline]
    pub(crate) fn waiting(&self) -> &[u8] {
        &self.bytes[self.at..]
    }

    /// Records that the first `len` bytes were written.
    pub(crate) fn written(&mut self, len: usize, buffers: &mut Buffers) {
        self.at = (self.at + len).min(self.bytes.len());
        if self.is_empty() {
            self.clear(buffers);
        }
    }

    /// Drops what waits.
    pub(crate) fn clear(&mut self, buffers: &mut Buffers) {
        self.at = 0;
        buffers.give(std::mem::take(&mut self.bytes));
    }
}
