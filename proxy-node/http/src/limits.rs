//! Bounds of what a peer may send.

/// Most fields that a head can have, whatever [`Limits::fields_max`] says.
pub const FIELDS_MAX: usize = 128;
/// Longest head in bytes, whatever [`Limits::head_len_max`] says: positions in a head have 16 bits.
pub const HEAD_LEN_MAX: usize = 65_535;
/// Most empty lines before a request line that are skipped (RFC 9112 §2.2).
pub const EMPTY_LINES_MAX: usize = 2;
/// Most options in the `Connection` fields of a head. Each field of the head is compared with each of them.
pub const CONNECTION_OPTIONS_MAX: usize = 16;
/// Longest host in bytes (RFC 1035 §2.3.4, with the dots).
pub const HOST_LEN_MAX: usize = 255;
/// Longest body that a `Content-Length` or a chunk size can announce.
pub const BODY_LEN_MAX: u64 = i64::MAX as u64;
/// Bytes of chunk extensions that a body may have in advance, and at most at one time.
pub const EXTENSION_CREDIT: u32 = 4_096;
/// A body earns one byte for further chunk extensions with each of this many bytes of payload.
pub const EXTENSION_PAYLOAD: u32 = 16;
/// Most interim responses (1xx) before a final one.
pub const INTERIM_MAX: u8 = 16;

/// Bounds that a policy sets for the messages of a service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Longest head in bytes, from the request or status line to the empty line. At most [`HEAD_LEN_MAX`].
    pub head_len_max: usize,
    /// Longest field line in bytes, without its line end.
    pub line_len_max: usize,
    /// Most field lines of a head or of a trailer section. At most [`FIELDS_MAX`].
    pub fields_max: usize,
    /// Longest request target in bytes.
    pub target_len_max: usize,
    /// Longest trailer section in bytes, with its empty line.
    pub trailer_len_max: usize,
    /// Most bytes of a request body that are read and discarded after the response has ended, so that the
    /// connection can be kept.
    pub drain_len_max: u64,
    /// Most bytes that are read and discarded after the last response of a connection, so that its client
    /// receives the response instead of a reset.
    pub linger_len_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            head_len_max: 32 << 10,
            line_len_max: 16 << 10,
            fields_max: 100,
            target_len_max: 8 << 10,
            trailer_len_max: 8 << 10,
            drain_len_max: 64 << 10,
            linger_len_max: 1 << 20,
        }
    }
}

impl Limits {
    /// Returns the limits within what positions and tables of a head can hold.
    #[must_use]
    pub fn bounded(self) -> Self {
        Limits {
            head_len_max: self.head_len_max.min(HEAD_LEN_MAX),
            fields_max: self.fields_max.min(FIELDS_MAX),
            trailer_len_max: self.trailer_len_max.min(HEAD_LEN_MAX),
            ..self
        }
    }
}
