//! What is wrong with a head or a trailer section that h2 has accepted, or cannot be sent.

/// Why a request is refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, thiserror::Error)]
pub enum Malformed {
    /// CONNECT without `:protocol`.
    #[error("CONNECT is not permitted")]
    Connect,
    /// Extended CONNECT of a protocol other than `websocket`.
    #[error(":protocol: only websocket is implemented")]
    Protocol,
    /// `:scheme` is not `http` or `https`.
    #[error(":scheme: expected http or https")]
    Scheme,
    /// `:path` is empty or has no leading slash.
    #[error(":path: expected /PATH or, with OPTIONS, *")]
    Path,
    /// Neither `:authority` nor `host`.
    #[error("neither :authority nor host")]
    HostMissing,
    /// `host` occurs twice.
    #[error("host occurs twice")]
    HostTwice,
    /// `:authority` or `host` is not a host.
    #[error("expected a name of letters, digits, - . _ ~, or an address, and perhaps a port")]
    Host,
    /// `host` differs from `:authority`.
    #[error("host differs from :authority")]
    HostDiffers,
    /// `content-length` occurs twice.
    #[error("content-length occurs twice")]
    ContentLengthTwice,
    /// A field that belongs to one connection of HTTP/1.1 (RFC 9113 §8.2.2).
    #[error(
        "connection, keep-alive, proxy-connection, transfer-encoding, upgrade do not belong into HTTP/2, te only with trailers"
    )]
    ConnectionField,
    /// A field's value has a control character, or whitespace at an end (RFC 9113 §8.2.1).
    #[error("a value has a control character, or whitespace at an end")]
    Value,
    /// The head has more fields than the limit.
    #[error("the head has too many fields")]
    TooManyFields,
    /// The head or the trailer section is longer than the limit.
    #[error("the head or the trailer section is too long")]
    TooLong,
}

/// What becomes of a stream with a malformed request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Remedy {
    /// It has been reset with PROTOCOL_ERROR (RFC 9113 §8.1.1).
    Reset,
    /// The caller answers with this status.
    Answer(u16),
}

impl Malformed {
    /// Every variant, in the order of the documentation.
    pub const ALL: [Malformed; 13] = [
        Malformed::Connect,
        Malformed::Protocol,
        Malformed::Scheme,
        Malformed::Path,
        Malformed::HostMissing,
        Malformed::HostTwice,
        Malformed::Host,
        Malformed::HostDiffers,
        Malformed::ContentLengthTwice,
        Malformed::ConnectionField,
        Malformed::Value,
        Malformed::TooManyFields,
        Malformed::TooLong,
    ];

    /// Returns the reason code: lower-case words joined by hyphens. The same faults have the same codes as in
    /// HTTP/1.1.
    pub const fn code(self) -> &'static str {
        match self {
            Malformed::Connect => "connect",
            Malformed::Protocol => "protocol",
            Malformed::Scheme => "scheme",
            Malformed::Path => "target",
            Malformed::HostMissing => "host-missing",
            Malformed::HostTwice => "host-twice",
            Malformed::Host => "host",
            Malformed::HostDiffers => "host-differs",
            Malformed::ContentLengthTwice => "content-length-twice",
            Malformed::ConnectionField => "connection-field",
            Malformed::Value => "control",
            Malformed::TooManyFields => "too-many-fields",
            Malformed::TooLong => "head-too-long",
        }
    }

    /// Returns what becomes of the stream.
    pub const fn remedy(self) -> Remedy {
        match self {
            Malformed::Connect => Remedy::Answer(405),
            Malformed::Protocol => Remedy::Answer(501),
            Malformed::TooManyFields | Malformed::TooLong => Remedy::Answer(431),
            Malformed::HostMissing
            | Malformed::HostTwice
            | Malformed::Host
            | Malformed::HostDiffers
            | Malformed::ContentLengthTwice => Remedy::Answer(400),
            Malformed::Scheme | Malformed::Path | Malformed::ConnectionField | Malformed::Value => {
                Remedy::Reset
            }
        }
    }
}
