//! The framing of a body that passes: as its sender frames it, or in chunks of the gateway's own.

use csp_http::body::{ChunkHeader, LAST_CHUNK};
use csp_http::head::Framing;

use crate::out::{Buffers, Out};

/// How one body passes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Framer {
    source: Framing,
    to: Framing,
    /// Payload of the gateway's own chunk that is readable and has not passed.
    chunk_left: u64,
    /// Whether a chunk was begun.
    begun: bool,
    /// Whether the last chunk was written.
    ended: bool,
    /// Payload that has passed.
    pub(crate) passed: u64,
}

impl Framer {
    /// Creates the framer of a body that comes framed by `source` and goes on framed by `to`.
    pub(crate) fn new(source: Framing, to: Framing) -> Self {
        Framer { source, to, chunk_left: 0, begun: false, ended: false, passed: 0 }
    }

    fn wraps(&self) -> bool {
        self.to == Framing::Chunked && self.source != Framing::Chunked
    }

    /// The sender has begun a chunk.
    pub(crate) fn chunk(&mut self, size: u64, out: &mut Out, buffers: &mut Buffers) {
        if self.to == Framing::Chunked {
            let is_first = !std::mem::replace(&mut self.begun, true);
            out.push(ChunkHeader::new(size, is_first).bytes(), buffers);
        }
    }

    /// Returns how much of `readable` bytes of payload may pass next. If the gateway has to frame them, it
    /// begins a chunk of all of them: they are there, so that the chunk will be complete.
    pub(crate) fn permits(&mut self, readable: usize, out: &mut Out, buffers: &mut Buffers) -> usize {
        if !self.wraps() {
            return readable;
        }
        if self.chunk_left == 0 {
            self.chunk_left = readable as u64;
            self.chunk(self.chunk_left, out, buffers);
        }
        usize::try_from(self.chunk_left).map_or(readable, |left| left.min(readable))
    }

    /// Records that payload has passed.
    pub(crate) fn passed(&mut self, len: usize) {
        self.passed += len as u64;
        if self.wraps() {
            self.chunk_left = self.chunk_left.saturating_sub(len as u64);
        }
    }

    /// Writes the last chunk without trailers, if the receiver needs one that the sender did not send.
    pub(crate) fn end(&mut self, out: &mut Out, buffers: &mut Buffers) {
        if self.wraps() && !self.ended {
            out.push(&LAST_CHUNK[if self.begun { 0 } else { 2 }..], buffers);
        }
    }

    /// Begins the trailers of a chunked body. Returns whether the receiver gets them.
    pub(crate) fn trailers(&mut self, out: &mut Out, buffers: &mut Buffers) -> bool {
        if self.to != Framing::Chunked {
            return false;
        }
        if self.begun {
            out.push(b"\r\n", buffers);
        }
        self.ended = true;
        true
    }
}
