//! Heads: request and status lines with their fields, read where they lie (RFC 9112 §2 to §5).
//!
//! ```text
//!  readable slices ─▶ HeadReader ─▶ httparse ─▶ line ends, limits ─▶ facts ─▶ Request or Response
//!                        │ split: gathered once      │ fault: syntax names it and its line
//!                        ▼                           ▼
//!                     Scratch                     Refusal
//! ```
//! A head that lies in one slice is not copied. A head is parsed when its first bytes come, when its end has
//! been found, when the limit is reached, and whenever the bytes have doubled: what is read is linear in the
//! bytes that a peer sends, however it divides them. The outcome does not depend on the division.

mod facts;
mod host;
mod path;
mod reader;
mod request;
mod response;
mod syntax;
mod target;

pub use host::Host;
pub use path::{normalised, other_readings};
pub use reader::{HeadReader, Scratch};
pub use request::{Method, Request};
pub use response::Response;
pub use target::{Scheme, TargetForm};

pub(crate) use facts::nominated;

use crate::name::{Name, trimmed};

/// The version of a message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    Http11,
}

/// How the end of a message's body is found (RFC 9112 §6.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Framing {
    /// There is no body.
    None,
    /// The body has this many bytes.
    Length(u64),
    /// The body is chunked.
    Chunked,
    /// The body ends with the connection. Of responses only.
    UntilClose,
}

/// A part of a head: start and end in bytes from the first line on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Span {
    pub(crate) start: u16,
    pub(crate) end: u16,
}

impl Span {
    /// Returns the part from `start` to `end`. Positions fit 16 bits, since
    /// [`HEAD_LEN_MAX`](crate::limits::HEAD_LEN_MAX) does.
    pub(crate) fn new(start: usize, end: usize) -> Self {
        Span { start: start as u16, end: end as u16 }
    }

    #[inline]
    pub(crate) fn of(self, bytes: &[u8]) -> &[u8] {
        bytes.get(usize::from(self.start)..usize::from(self.end)).unwrap_or_default()
    }
}

/// A field of a head: where its parts lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    pub(crate) name: Span,
    pub(crate) value: Span,
    /// The first byte behind the line's CRLF.
    pub(crate) line_end: u16,
    /// Which name it is.
    pub known: Name,
    /// Whether the line is written as `NAME: VALUE`, without further whitespace.
    pub(crate) is_plain: bool,
}

/// A field's name and value in the bytes of its head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FieldText<'a> {
    /// Which name it is.
    pub known: Name,
    /// The name as the peer wrote it.
    pub name: &'a [u8],
    /// The value without whitespace around it.
    pub value: &'a [u8],
}

/// Fields of a message, whatever its version: what routes look at.
pub trait Fields {
    /// Returns the fields in order.
    fn each(&self) -> impl Iterator<Item = FieldText<'_>>;
}

impl Fields for Request<'_> {
    fn each(&self) -> impl Iterator<Item = FieldText<'_>> {
        self.fields()
    }
}

/// Returns the names and values of a request's cookies (RFC 6265 §4.2.1), quotation marks included. A cookie
/// without `=` has an empty value.
pub fn cookies(request: &impl Fields) -> impl Iterator<Item = (&[u8], &[u8])> {
    let fields = request.each().filter(|field| field.known == Name::Cookie);
    let pairs = fields.flat_map(|field| field.value.split(|byte| *byte == b';'));
    pairs.map(|pair| divided(trimmed(pair)))
}

/// Divides `NAME=VALUE`; the value is empty without `=`.
pub(crate) fn divided(pair: &[u8]) -> (&[u8], &[u8]) {
    match memchr::memchr(b'=', pair) {
        Some(at) => (&pair[..at], &pair[at + 1..]),
        None => (pair, b""),
    }
}

impl Field {
    #[inline]
    pub(crate) fn text(self, bytes: &[u8]) -> FieldText<'_> {
        FieldText { known: self.known, name: self.name.of(bytes), value: self.value.of(bytes) }
    }
}
