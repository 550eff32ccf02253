//! Which version a client speaks that was not asked by ALPN (RFC 9113 §3.3, prior knowledge).

/// The connection preface of a client (RFC 9113 §3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What the first bytes of a connection are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Speaks {
    /// The preface: HTTP/2.
    Http2,
    /// Something else.
    Other,
    /// A part of the preface: more bytes are needed.
    Undecided,
}

/// Returns what the readable bytes of a connection are, from its first byte on. They stay unread.
pub fn speaks(slices: &[&[u8]]) -> Speaks {
    let mut left = PREFACE;
    for slice in slices {
        let len = slice.len().min(left.len());
        if slice[..len] != left[..len] {
            return Speaks::Other;
        }
        left = &left[len..];
    }
    if left.is_empty() { Speaks::Http2 } else { Speaks::Undecided }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_preface_is_found_in_any_slices() {
        let bytes = [PREFACE, b"more"].concat();
        for cut in 0..bytes.len() {
            let (first, second) = bytes.split_at(cut);
            let expected = if cut < PREFACE.len() { Speaks::Undecided } else { Speaks::Http2 };
            assert_eq!(speaks(&[first]), expected, "cut at {cut}");
            assert_eq!(speaks(&[first, second]), Speaks::Http2, "cut at {cut}");
        }
        assert_eq!(speaks(&[b"P", b"OST / HTTP/1.1\r\n"]), Speaks::Other);
        assert_eq!(speaks(&[b"PRI * HTTP/1.1\r\n"]), Speaks::Other);
        assert_eq!(speaks(&[]), Speaks::Undecided);
    }
}
