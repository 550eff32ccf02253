//! Names of fields that the machine or the forwarding knows, found once for each field of a head.

/// A field's name, as far as it matters here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Name {
    /// Any other name.
    Other,
    /// A name with `_` in place of `-` that a gateway interface such as CGI or WSGI cannot distinguish from
    /// one of the names below. It is not forwarded.
    Lookalike,
    Connection,
    ContentLength,
    Cookie,
    Date,
    Expect,
    Forwarded,
    Host,
    Http2Settings,
    KeepAlive,
    MaxForwards,
    ProxyAuthenticate,
    ProxyAuthorization,
    ProxyConnection,
    Server,
    Te,
    Traceparent,
    Tracestate,
    Trailer,
    TransferEncoding,
    Upgrade,
    Via,
    XForwardedFor,
    XForwardedHost,
    XForwardedPort,
    XForwardedProto,
    XRequestId,
}

impl Name {
    /// Returns which name this is, in any case.
    #[inline]
    pub fn of(name: &[u8]) -> Name {
        let first = name.first().map_or(0, |byte| byte | 0x20);
        let (text, known): (&[u8], Name) = match (name.len(), first) {
            (2, b't') => (b"TE", Name::Te),
            (3, b'v') => (b"Via", Name::Via),
            (4, b'h') => (b"Host", Name::Host),
            (4, b'd') => (b"Date", Name::Date),
            (6, b'c') => (b"Cookie", Name::Cookie),
            (6, b'e') => (b"Expect", Name::Expect),
            (6, b's') => (b"Server", Name::Server),
            (7, b'u') => (b"Upgrade", Name::Upgrade),
            (7, b't') => (b"Trailer", Name::Trailer),
            (9, b'f') => (b"Forwarded", Name::Forwarded),
            (10, b'c') => (b"Connection", Name::Connection),
            (10, b'k') => (b"Keep-Alive", Name::KeepAlive),
            (10, b't') => (b"tracestate", Name::Tracestate),
            (11, b't') => (b"traceparent", Name::Traceparent),
            (12, b'x') => (b"X-Request-Id", Name::XRequestId),
            (12, b'm') => (b"Max-Forwards", Name::MaxForwards),
            (14, b'c') => (b"Content-Length", Name::ContentLength),
            (14, b'h') => (b"HTTP2-Settings", Name::Http2Settings),
            (15, b'x') => (b"X-Forwarded-For", Name::XForwardedFor),
            (16, b'p') => (b"Proxy-Connection", Name::ProxyConnection),
            (16, b'x') if name[12] | 0x20 == b'p' => (b"X-Forwarded-Port", Name::XForwardedPort),
            (16, b'x') => (b"X-Forwarded-Host", Name::XForwardedHost),
            (17, b'x') => (b"X-Forwarded-Proto", Name::XForwardedProto),
            (17, b't') => (b"Transfer-Encoding", Name::TransferEncoding),
            (18, b'p') => (b"Proxy-Authenticate", Name::ProxyAuthenticate),
            (19, b'p') => (b"Proxy-Authorization", Name::ProxyAuthorization),
            _ => return Name::Other,
        };
        // Nearly all peers write names in this case, for which one comparison of memory suffices.
        if name == text || name.eq_ignore_ascii_case(text) {
            known
        } else if name.len() == text.len() && name.contains(&b'_') && is_lookalike(name, text) {
            Name::Lookalike
        } else {
            Name::Other
        }
    }

    /// Returns whether a field belongs to one connection and is not forwarded as it is (RFC 9110 §7.6.1).
    pub const fn is_hop_by_hop(self) -> bool {
        use Name::*;
        matches!(
            self,
            Connection
                | KeepAlive
                | ProxyConnection
                | ProxyAuthenticate
                | ProxyAuthorization
                | Te
                | Trailer
                | TransferEncoding
                | Upgrade
                | Http2Settings
        )
    }

    /// Returns whether the proxy writes the field of a message itself, so that no edit may.
    pub const fn is_framing(self) -> bool {
        matches!(self, Name::ContentLength | Name::Host) || self.is_hop_by_hop()
    }

    /// Returns whether a field may stand in a trailer section: none that frames, routes or authenticates
    /// (RFC 9110 §6.5.1).
    pub fn may_trail(self, name: &[u8]) -> bool {
        const NEVER: [&[u8]; 9] = [
            b"authorization",
            b"cache-control",
            b"content-encoding",
            b"content-range",
            b"content-type",
            b"range",
            b"set-cookie",
            b"www-authenticate",
            b"pragma",
        ];
        let is_never = NEVER.iter().any(|never| name.eq_ignore_ascii_case(never));
        self == Name::Other && !is_never && !is_of_certificate(name)
    }
}

/// Returns whether a field says something of a client's certificate: `Client-Cert` and `Client-Cert-Chain`
/// (RFC 9440), and those whose names begin with `X-SSL-Client`. Only the proxy writes them.
pub fn is_of_certificate(name: &[u8]) -> bool {
    match name {
        [b'c' | b'C', ..] => match name.len() {
            11 => is_same(name, b"Client-Cert"),
            17 => is_same(name, b"Client-Cert-Chain"),
            _ => false,
        },
        [b'x' | b'X', _, b's' | b'S', ..] => {
            name.get(..12).is_some_and(|begin| is_same(begin, b"X-SSL-Client"))
        }
        _ => false,
    }
}

fn is_lookalike(name: &[u8], text: &[u8]) -> bool {
    let same = |(a, b): (&u8, &u8)| a.eq_ignore_ascii_case(b) || (*a == b'_' && *b == b'-');
    name.iter().zip(text).all(same)
}

/// Returns whether names are the same in any case and with `_` for `-`: CGI and WSGI do not distinguish them.
pub fn is_same(a: &[u8], b: &[u8]) -> bool {
    let fold = |byte: &u8| if *byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| fold(a) == fold(b))
}

/// Returns whether a byte may stand in a token (RFC 9110 §5.6.2).
pub const fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#'
                | b'$'
                | b'%'
                | b'&'
                | b'\''
                | b'*'
                | b'+'
                | b'-'
                | b'.'
                | b'^'
                | b'_'
                | b'`'
                | b'|'
                | b'~'
        )
}

/// Returns whether `text` is a token.
pub fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|byte| is_token_byte(*byte))
}

/// Returns whether a byte may stand in a field's value (RFC 9110 §5.5).
pub const fn is_value_byte(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

/// Returns the elements of a list without whitespace around them (RFC 9110 §5.6.1). Empty elements are left
/// out. Quoted strings are not recognised: it is for lists of tokens.
pub fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(trimmed).filter(|element| !element.is_empty())
}

/// Returns `text` without spaces and tabs at its ends.
pub fn trimmed(text: &[u8]) -> &[u8] {
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = text.iter().position(|byte| !is_space(byte)).unwrap_or(text.len());
    let end = text.iter().rposition(|byte| !is_space(byte)).map_or(start, |last| last + 1);
    &text[start..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known_in_any_case() {
        assert_eq!(Name::of(b"HOST"), Name::Host);
        assert_eq!(Name::of(b"x-forwarded-Port"), Name::XForwardedPort);
        assert_eq!(Name::of(b"X-Forwarded-Host"), Name::XForwardedHost);
        assert_eq!(Name::of(b"Content-Lengths"), Name::Other);
        assert_eq!(Name::of(b""), Name::Other);
    }

    /// CGI and WSGI turn `-` and `_` into one character, so that such a field would replace the proxy's own.
    #[test]
    fn underscores_in_place_of_hyphens_are_lookalikes() {
        assert_eq!(Name::of(b"X_Forwarded-For"), Name::Lookalike);
        assert_eq!(Name::of(b"Content_Length"), Name::Lookalike);
        assert_eq!(Name::of(b"Transfer_Encoding"), Name::Lookalike);
        assert_eq!(Name::of(b"X_Other"), Name::Other);
    }

    #[test]
    fn elements_of_a_list() {
        let found: Vec<&[u8]> = elements(b" a ,, b\t,c, ").collect();
        assert_eq!(found, [b"a", b"b", b"c"]);
        assert_eq!(elements(b"").count() + elements(b" , ").count(), 0);
    }
}
