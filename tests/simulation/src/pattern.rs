//! Bytes that can be checked at any offset without keeping them.

/// Returns the byte at `offset` of the stream `key`.
pub(crate) fn byte(key: u32, offset: u64) -> u8 {
    // A multiplicative hash: neighbouring offsets differ, and so do streams.
    let mixed = (offset ^ u64::from(key) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8
}

/// Fills `into` with the stream from `offset` on.
pub(crate) fn fill(key: u32, offset: u64, into: &mut [u8]) {
    for (i, b) in into.iter_mut().enumerate() {
        *b = byte(key, offset + i as u64);
    }
}

/// Returns where `bytes` first differ from the stream at `offset`.
pub(crate) fn mismatch(key: u32, offset: u64, bytes: &[u8]) -> Option<u64> {
    bytes
        .iter()
        .enumerate()
        .find(|(i, b)| **b != byte(key, offset + *i as u64))
        .map(|(i, _)| offset + i as u64)
}

/// How the serving side ends a connection early: it responds right after the request, without reading the
/// upload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// It ends its direction before it closes.
    pub shuts: bool,
    /// It closes with SO_LINGER 0.
    pub resets: bool,
}

/// A request: the bytes in front of all others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Request {
    /// Bytes that the requesting side sends after the request.
    pub upload: u32,
    /// Bytes of the response.
    pub download: u32,
    /// Identifies both streams.
    pub key: u32,
    /// The requesting side ends its direction after the upload, and the response waits for that.
    pub half_close: bool,
    /// The response does not wait for the end of the upload.
    pub duplex: bool,
    /// The response refuses the upload.
    pub refusal: Option<Refusal>,
}

impl Request {
    pub(crate) const LEN: usize = 20;
    const MAGIC: u32 = 0x4353_5031;

    pub(crate) fn emit(self) -> [u8; Self::LEN] {
        let refusal = self.refusal.map_or(0, |r| 1 + u32::from(r.shuts) + 2 * u32::from(r.resets));
        let flags = u32::from(self.half_close) | u32::from(self.duplex) << 1 | refusal << 2;
        let mut out = [0; Self::LEN];
        for (at, field) in [Self::MAGIC, self.upload, self.download, self.key, flags].into_iter().enumerate()
        {
            out[at * 4..at * 4 + 4].copy_from_slice(&field.to_le_bytes());
        }
        out
    }

    pub(crate) fn parse(bytes: &[u8; Self::LEN]) -> Option<Self> {
        let field = |n: usize| {
            u32::from_le_bytes([bytes[n * 4], bytes[n * 4 + 1], bytes[n * 4 + 2], bytes[n * 4 + 3]])
        };
        let refusal = (field(4) >> 2)
            .checked_sub(1)
            .map(|bits| Refusal { shuts: bits & 1 != 0, resets: bits & 2 != 0 });
        (field(0) == Self::MAGIC && field(4) < 20).then(|| Request {
            upload: field(1),
            download: field(2),
            key: field(3),
            half_close: field(4) & 1 != 0,
            duplex: field(4) & 2 != 0,
            refusal,
        })
    }
}
