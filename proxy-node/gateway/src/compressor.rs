//! The compressors of responses under way.

use std::io::Write;
use std::sync::Arc;

use csp_filters::compress::Coding;
use flate2::Compression;
use flate2::write::GzEncoder;

/// Responses of a worker that are compressed at the same time; further ones are sent as they are. Each takes
/// less than a megabyte.
const AT_ONCE_MAX: usize = 256;
/// The window of br in bits: what is referred to is at most 256 KiB back.
const BR_WINDOW_BITS: u32 = 18;
/// Bytes of br's output that wait in its own buffer.
const BR_BUFFER: usize = 4 << 10;

/// Counts the compressors of a worker.
#[derive(Debug, Default)]
pub(crate) struct Places(Arc<()>);

impl Places {
    /// Returns whether there is a place for another one.
    pub(crate) fn has_room(&self) -> bool {
        Arc::strong_count(&self.0) <= AT_ONCE_MAX
    }
}

enum Encoder {
    Br(Box<brotli::CompressorWriter<Vec<u8>>>),
    Gzip(GzEncoder<Vec<u8>>),
    /// Its last bytes were taken.
    Done,
}

/// A compressor of one response.
pub(crate) struct Compressor {
    encoder: Encoder,
    /// What waits for the client, of which `at` bytes were sent.
    out: Vec<u8>,
    at: usize,
    /// Something was written since the last flush.
    is_dirty: bool,
    /// The response has ended.
    pub(crate) ends: bool,
    _place: Arc<()>,
}

impl std::fmt::Debug for Compressor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compressor").field("waiting", &self.waiting().len()).finish_non_exhaustive()
    }
}

impl Compressor {
    pub(crate) fn new((coding, level): (Coding, u8), places: &Places) -> Self {
        let encoder = match coding {
            Coding::Gzip => Encoder::Gzip(GzEncoder::new(Vec::new(), Compression::new(level.into()))),
            Coding::Br => {
                let (buffer, bits) = (BR_BUFFER, BR_WINDOW_BITS);
                Encoder::Br(Box::new(brotli::CompressorWriter::new(Vec::new(), buffer, level.into(), bits)))
            }
        };
        let (out, at, _place) = (Vec::new(), 0, Arc::clone(&places.0));
        Compressor { encoder, out, at, is_dirty: false, ends: false, _place }
    }

    /// Compresses bytes of the response. Its memory takes all that comes out: it never fails.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        let _ = match &mut self.encoder {
            Encoder::Br(encoder) => encoder.write_all(bytes),
            Encoder::Gzip(encoder) => encoder.write_all(bytes),
            Encoder::Done => Ok(()),
        };
        self.is_dirty = true;
        self.take();
    }

    /// Has all that was written come out, if anything has not. Returns whether there was something.
    pub(crate) fn flush(&mut self) -> bool {
        if !std::mem::take(&mut self.is_dirty) {
            return false;
        }
        let _ = match &mut self.encoder {
            Encoder::Br(encoder) => encoder.flush(),
            Encoder::Gzip(encoder) => encoder.flush(),
            Encoder::Done => Ok(()),
        };
        self.take();
        true
    }

    /// Ends the body.
    pub(crate) fn finish(&mut self) {
        if std::mem::replace(&mut self.ends, true) {
            return;
        }
        let last = match std::mem::replace(&mut self.encoder, Encoder::Done) {
            Encoder::Br(encoder) => encoder.into_inner(),
            Encoder::Gzip(encoder) => encoder.finish().unwrap_or_default(), // memory takes everything
            Encoder::Done => Vec::new(),
        };
        self.out.extend_from_slice(&last);
    }

    /// Takes what has come out.
    fn take(&mut self) {
        let out = match &mut self.encoder {
            Encoder::Br(encoder) => encoder.get_mut(),
            Encoder::Gzip(encoder) => encoder.get_mut(),
            Encoder::Done => return,
        };
        self.out.append(out);
    }

    /// Returns what waits for the client.
    pub(crate) fn waiting(&self) -> &[u8] {
        &self.out[self.at..]
    }

    /// Records that the first `len` bytes of it were sent.
    pub(crate) fn sent(&mut self, len: usize) {
        self.at += len.min(self.waiting().len());
        if self.waiting().is_empty() {
            self.out.clear();
            self.at = 0;
        }
    }
}
