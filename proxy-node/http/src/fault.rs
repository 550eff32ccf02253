//! What can be wrong with a message: the reason, the status that a client receives, and the line.

use std::fmt;

/// Why a message is refused. In a request the client is at fault and receives [`status`](Fault::status); in a
/// response the member is at fault and the client receives 502.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Fault {
    /// The first line is not a request line or a status line.
    StartLine,
    /// The version is not HTTP/1.0 or HTTP/1.1.
    Version,
    /// The bytes are the connection preface of HTTP/2 (RFC 9113 §3.4).
    Http2Preface,
    /// The request target has a form or a byte that is not permitted.
    Target,
    /// The request target is longer than the limit.
    TargetTooLong,
    /// The path climbs above its root by dot segments.
    PathAboveRoot,
    /// The path falls under another rule, or climbs above its root, as some members read it.
    PathAmbiguous,
    /// The head is longer than the limit.
    HeadTooLong,
    /// The head has more fields than the limit.
    TooManyFields,
    /// A field line is longer than the limit.
    FieldTooLong,
    /// A field has no colon, or a name that is no token.
    FieldName,
    /// Whitespace stands in a field's name or before its colon.
    SpaceInName,
    /// A field line begins with whitespace (obs-fold).
    Fold,
    /// A NUL.
    Nul,
    /// A carriage return without a line feed.
    BareCr,
    /// A line feed without a carriage return.
    BareLf,
    /// Another control character.
    Control,
    /// `Content-Length` is not one decimal number.
    ContentLength,
    /// `Content-Length` occurs twice.
    ContentLengthTwice,
    /// `Content-Length` beside `Transfer-Encoding`.
    TwoLengths,
    /// `Transfer-Encoding` does not consist of `chunked` alone, once.
    TransferEncoding,
    /// `Transfer-Encoding` names a coding other than `chunked`.
    TransferCoding,
    /// `Transfer-Encoding` in a message of HTTP/1.0.
    TransferEncodingIn10,
    /// A request of HTTP/1.1 without `Host`.
    HostMissing,
    /// `Host` occurs twice.
    HostTwice,
    /// The host is empty or has a character that is not permitted.
    Host,
    /// `Host` differs from the host of the request target.
    HostDiffers,
    /// `CONNECT`: the proxy is no tunnel to arbitrary hosts.
    Connect,
    /// `TRACE`: the answer would show fields that scripts cannot read.
    Trace,
    /// `Expect` has a value other than `100-continue`.
    Expectation,
    /// `Connection` has more options than the limit, or one that is no token.
    ConnectionOptions,
    /// A chunk's size is not a hexadecimal number within the limit.
    ChunkSize,
    /// A chunk's extensions are malformed or too long.
    ChunkExtension,
    /// A chunk's payload is not followed by CRLF.
    ChunkEnd,
    /// The trailer section is malformed.
    Trailer,
    /// The trailer section is longer than the limit.
    TrailerTooLong,
    /// The stream ended within a head.
    TruncatedHead,
    /// The stream ended within a body.
    TruncatedBody,
    /// 101 without a request to upgrade.
    UnexpectedSwitch,
    /// More interim responses than the limit.
    TooManyInterim,
    /// A response without a request.
    Unasked,
}

/// Status, code and text of a fault.
type Row = (u16, &'static str, &'static str);

impl Fault {
    /// Every fault, in the order of the documentation.
    #[rustfmt::skip]
    pub const ALL: [Fault; 41] = [
        Fault::StartLine, Fault::Version, Fault::Http2Preface, Fault::Target, Fault::TargetTooLong,
        Fault::PathAboveRoot, Fault::PathAmbiguous, Fault::HeadTooLong, Fault::TooManyFields, Fault::FieldTooLong, Fault::FieldName,
        Fault::SpaceInName, Fault::Fold, Fault::Nul, Fault::BareCr, Fault::BareLf, Fault::Control,
        Fault::ContentLength, Fault::ContentLengthTwice, Fault::TwoLengths, Fault::TransferEncoding,
        Fault::TransferCoding, Fault::TransferEncodingIn10, Fault::HostMissing, Fault::HostTwice, Fault::Host,
        Fault::HostDiffers, Fault::Connect, Fault::Trace, Fault::Expectation, Fault::ConnectionOptions,
        Fault::ChunkSize, Fault::ChunkExtension, Fault::ChunkEnd, Fault::Trailer, Fault::TrailerTooLong,
        Fault::TruncatedHead, Fault::TruncatedBody, Fault::UnexpectedSwitch, Fault::TooManyInterim,
        Fault::Unasked,
    ];

    #[rustfmt::skip]
    const fn row(self) -> Row {
        match self {
            Fault::StartLine => (400, "start-line", "expected METHOD SP TARGET SP HTTP/1.1, or HTTP/1.1 SP STATUS SP REASON"),
            Fault::Version => (505, "version", "expected HTTP/1.0 or HTTP/1.1"),
            Fault::Http2Preface => (505, "http2-preface", "HTTP/2 by prior knowledge is not enabled here"),
            Fault::Target => (400, "target", "expected /PATH, http://HOST/PATH or, with OPTIONS, *; of visible ASCII without # and, in the path, \\"),
            Fault::TargetTooLong => (414, "target-too-long", "the request target is too long"),
            Fault::PathAboveRoot => (400, "path-above-root", "the path has more /.. than segments before them"),
            Fault::PathAmbiguous => (400, "path-ambiguous", "the path falls under another rule if // is /, %2F is / or ;PARAMETER is ignored"),
            Fault::HeadTooLong => (431, "head-too-long", "the head is too long"),
            Fault::TooManyFields => (431, "too-many-fields", "the head has too many fields"),
            Fault::FieldTooLong => (431, "field-too-long", "a field is too long"),
            Fault::FieldName => (400, "field-name", "expected NAME: VALUE, with a token as the name"),
            Fault::SpaceInName => (400, "space-in-name", "whitespace stands before the colon of a field"),
            Fault::Fold => (400, "fold", "a field continues on the next line"),
            Fault::Nul => (400, "nul", "a NUL"),
            Fault::BareCr => (400, "bare-cr", "a CR without LF"),
            Fault::BareLf => (400, "bare-lf", "a LF without CR"),
            Fault::Control => (400, "control", "a control character"),
            Fault::ContentLength => (400, "content-length", "Content-Length: expected one number of decimal digits"),
            Fault::ContentLengthTwice => (400, "content-length-twice", "Content-Length occurs twice"),
            Fault::TwoLengths => (400, "two-lengths", "Content-Length beside Transfer-Encoding"),
            Fault::TransferEncoding => (400, "transfer-encoding", "Transfer-Encoding: expected chunked, once"),
            Fault::TransferCoding => (501, "transfer-coding", "Transfer-Encoding: only chunked is implemented"),
            Fault::TransferEncodingIn10 => (400, "transfer-encoding-1.0", "Transfer-Encoding in HTTP/1.0"),
            Fault::HostMissing => (400, "host-missing", "HTTP/1.1 without Host"),
            Fault::HostTwice => (400, "host-twice", "Host occurs twice"),
            Fault::Host => (400, "host", "expected a name of letters, digits, - . _ ~, or an address, and perhaps a port"),
            Fault::HostDiffers => (400, "host-differs", "Host differs from the host of the target"),
            Fault::Connect => (405, "connect", "CONNECT is not permitted"),
            Fault::Trace => (405, "trace", "TRACE is not permitted"),
            Fault::Expectation => (417, "expectation", "Expect: only 100-continue is known"),
            Fault::ConnectionOptions => (400, "connection-options", "Connection: expected at most 16 tokens"),
            Fault::ChunkSize => (400, "chunk-size", "expected a hexadecimal number below 2^63 and CRLF"),
            Fault::ChunkExtension => (400, "chunk-extension", "chunk extensions are malformed or too long"),
            Fault::ChunkEnd => (400, "chunk-end", "a chunk is not followed by CRLF"),
            Fault::Trailer => (400, "trailer", "expected fields and an empty line behind the last chunk"),
            Fault::TrailerTooLong => (431, "trailer-too-long", "the trailer section is too long"),
            Fault::TruncatedHead => (400, "truncated-head", "the connection ended within a head"),
            Fault::TruncatedBody => (400, "truncated-body", "the connection ended within a body"),
            Fault::UnexpectedSwitch => (502, "unexpected-switch", "101 for a request without Upgrade"),
            Fault::TooManyInterim => (502, "too-many-interim", "too many 1xx responses"),
            Fault::Unasked => (502, "unasked", "a response without a request"),
        }
    }

    /// Returns the status of the answer to a client that is at fault. A fault of a member is answered by 502.
    pub const fn status(self) -> u16 {
        self.row().0
    }

    /// Returns the reason code: lower-case words joined by hyphens.
    pub const fn code(self) -> &'static str {
        self.row().1
    }

    /// Returns what is wrong, or what would be right.
    pub const fn text(self) -> &'static str {
        self.row().2
    }
}

/// A fault and its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// What is wrong.
    pub fault: Fault,
    /// The line of the head, from 1 on; 0 if the fault has no line, or lies in a body.
    pub line: u16,
}

impl Refusal {
    /// Creates a refusal without a line.
    pub(crate) const fn whole(fault: Fault) -> Self {
        Refusal { fault, line: 0 }
    }

    /// Creates a refusal at line `line`, which counts from 1.
    pub(crate) fn at(fault: Fault, line: usize) -> Self {
        Refusal { fault, line: u16::try_from(line).unwrap_or(u16::MAX) }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.fault.code(), self.fault.text()),
            line => write!(f, "{}: line {line}: {}", self.fault.code(), self.fault.text()),
        }
    }
}

impl std::error::Error for Refusal {}
