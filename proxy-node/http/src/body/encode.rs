//! Framing of chunks that are sent.

/// Longest header of a chunk: 16 digits and CRLF, behind the CRLF of the chunk before it.
pub const CHUNK_HEADER_LEN_MAX: usize = 20;

/// The last chunk without trailers, behind the CRLF of the chunk before it, which the first chunk lacks:
/// `&LAST_CHUNK[2..]` ends an empty body.
pub const LAST_CHUNK: &[u8] = b"\r\n0\r\n\r\n";

/// What stands before a chunk's payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkHeader {
    bytes: [u8; CHUNK_HEADER_LEN_MAX],
    start: u8,
}

impl ChunkHeader {
    /// Creates the header of a chunk of `size` bytes, at least 1. `is_first`: no chunk precedes it, whose
    /// CRLF the header would begin with.
    pub fn new(size: u64, is_first: bool) -> Self {
        let mut bytes = *b"                  \r\n";
        let (mut at, mut left) = (CHUNK_HEADER_LEN_MAX - 2, size);
        while at > 2 {
            at -= 1;
            bytes[at] = b"0123456789abcdef"[(left % 16) as usize];
            left /= 16;
            if left == 0 {
                break;
            }
        }
        if !is_first {
            at -= 2;
            bytes[at..at + 2].copy_from_slice(b"\r\n");
        }
        ChunkHeader { bytes, start: at as u8 }
    }

    /// Returns the header's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[usize::from(self.start)..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_chunks() {
        assert_eq!(ChunkHeader::new(1, true).bytes(), b"1\r\n");
        assert_eq!(ChunkHeader::new(0x1a2b, false).bytes(), b"\r\n1a2b\r\n");
        assert_eq!(ChunkHeader::new(u64::MAX, false).bytes(), b"\r\nffffffffffffffff\r\n");
    }
}
