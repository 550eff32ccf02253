//! Contents of the streams: bytes that show their position.

use std::sync::OnceLock;

use crate::random::Random;

/// Longest stream, in bytes.
pub const STREAM_MAX: usize = 1 << 20;
/// Keys are below this.
const KEYS: usize = 1 << 16;

fn noise() -> &'static [u8] {
    static NOISE: OnceLock<Vec<u8>> = OnceLock::new();
    NOISE.get_or_init(|| {
        let mut random = Random(0x0c59);
        (0..(STREAM_MAX + KEYS) / 8).flat_map(|_| random.next().to_le_bytes()).collect()
    })
}

/// One direction of one connection: byte `n` of its stream is byte `key + n` of a table of noise, so that a
/// wrong position and bytes of another stream are both detected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stream {
    key: usize,
}

impl Stream {
    /// An empty stream.
    pub const NONE: Stream = Stream { key: 0 };

    pub fn draw(random: &mut Random) -> Stream {
        Stream { key: random.below(KEYS as u64) as usize }
    }

    /// The `len` bytes at position `at`.
    pub fn bytes(self, at: u64, len: usize) -> &'static [u8] {
        let start = self.key + at as usize;
        &noise()[start..start + len]
    }

    /// Where `found` differs from the stream at `at`, if it does.
    pub fn difference(self, at: u64, found: &[u8]) -> Option<u64> {
        let expected = self.bytes(at, found.len());
        if expected == found {
            return None;
        }
        expected.iter().zip(found).position(|(a, b)| a != b).map(|n| at + n as u64)
    }
}
