//! The first words of a TLS handshake, for checks of servers: a ClientHello of TLS 1.2 and 1.3, and what the
//! first bytes of an answer are (RFC 8446 §4.1.2, §5.1; RFC 5246 §7.4.1.2). Nothing is negotiated: neither
//! certificate nor keys are looked at.

/// Longest server name, in bytes (RFC 1035 §2.3.4).
pub const NAME_LEN_MAX: usize = 253;
/// Room for the longest ClientHello.
pub const HELLO_LEN_MAX: usize = 256 + NAME_LEN_MAX;
/// Bytes by which an answer is known.
pub const ANSWER_LEN: usize = 7;

const HANDSHAKE: u8 = 22;
const ALERT: u8 = 21;
const CLIENT_HELLO: u8 = 1;
const SERVER_HELLO: u8 = 2;
const TLS_1_2: u16 = 0x0303;
/// Length of a record's header, and of a handshake message's.
const RECORD_LEN: usize = 5;
const MESSAGE_LEN: usize = 4;
/// Known to be no secret: no key is derived.
const RANDOM: [u8; 32] = *b"a check which ends at the answer";
/// What servers of ten years have: TLS 1.3's, then ECDHE and RSA with AES or ChaCha20.
const CIPHER_SUITES: [u16; 14] = [
    0x1301, 0x1302, 0x1303, 0xc02b, 0xc02f, 0xc02c, 0xc030, 0xcca9, 0xcca8, 0xc013, 0xc014, 0x009c, 0x009d,
    0x002f,
];
/// Extensions that do not depend on the name: type, length, body.
const EXTENSIONS: &[u8] = &[
    0, 10, 0, 8, 0, 6, 0, 29, 0, 23, 0, 24, // supported_groups: x25519, secp256r1, secp384r1
    0, 11, 0, 2, 1, 0, // ec_point_formats: uncompressed
    0, 13, 0, 20, 0, 18, 4, 3, 8, 4, 4, 1, 5, 3, 8, 5, 5, 1, 8, 6, 6, 1, 2, 1, // signature_algorithms
    0, 43, 0, 5, 4, 3, 4, 3, 3, // supported_versions: 1.3, 1.2
    0, 51, 0, 38, 0, 36, 0, 29, 0, 32, // key_share: x25519, the base point
    9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];

/// What the first bytes of an answer are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Too few bytes.
    More,
    /// A ServerHello: the server speaks TLS, and has found a version and a cipher suite.
    Hello,
    /// An alert with this description (RFC 8446 §6).
    Alert(u8),
    /// Not TLS.
    Other,
}

/// Reads the first bytes of an answer.
pub fn answer(bytes: &[u8]) -> Answer {
    match *bytes {
        [HANDSHAKE, 3, _, _, _, SERVER_HELLO, ..] => Answer::Hello,
        [ALERT, 3, _, 0, 2, _, description, ..] => Answer::Alert(description),
        [] | [HANDSHAKE | ALERT] | [HANDSHAKE | ALERT, 3, ..] if bytes.len() < ANSWER_LEN => Answer::More,
        _ => Answer::Other,
    }
}

/// Writes a ClientHello in a record of its own; with `name` as the server's (RFC 6066 §3), which is ASCII of
/// at most [`NAME_LEN_MAX`] bytes. Returns its length; `None` if it does not fit `out`, or the name is too
/// long.
pub fn client_hello(name: Option<&str>, out: &mut [u8]) -> Option<usize> {
    let name = name.unwrap_or_default().as_bytes();
    if name.len() > NAME_LEN_MAX {
        return None;
    }
    let name_len = if name.is_empty() { 0 } else { 9 + name.len() };
    let extensions_len = name_len + EXTENSIONS.len();
    let message_len = 2 + RANDOM.len() + 1 + 2 + 2 * CIPHER_SUITES.len() + 2 + 2 + extensions_len;
    let len = RECORD_LEN + MESSAGE_LEN + message_len;
    let mut room = out.get_mut(..len)?;
    let mut put = |bytes: &[u8]| {
        let (part, rest) = core::mem::take(&mut room).split_at_mut(bytes.len());
        part.copy_from_slice(bytes);
        room = rest;
    };
    let two = |value: usize| (value as u16).to_be_bytes();
    put(&[HANDSHAKE, 3, 1]);
    put(&two(MESSAGE_LEN + message_len));
    put(&[CLIENT_HELLO, 0]);
    put(&two(message_len));
    put(&TLS_1_2.to_be_bytes());
    put(&RANDOM);
    put(&[0]); // no session
    put(&two(2 * CIPHER_SUITES.len()));
    CIPHER_SUITES.iter().for_each(|suite| put(&suite.to_be_bytes()));
    put(&[1, 0]); // no compression
    put(&two(extensions_len));
    if !name.is_empty() {
        put(&[0, 0]);
        put(&two(5 + name.len()));
        put(&two(3 + name.len()));
        put(&[0]);
        put(&two(name.len()));
        put(name);
    }
    put(EXTENSIONS);
    Some(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_agree_with_what_follows() {
        let longest = "x".repeat(NAME_LEN_MAX);
        for name in [None, Some("www.example"), Some(longest.as_str())] {
            let mut bytes = [0xaa; HELLO_LEN_MAX];
            let len = client_hello(name, &mut bytes).unwrap();
            assert_eq!(bytes[..3], [22, 3, 1]);
            let two = |at: usize| usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
            assert_eq!((two(3) + 5, two(7) + 9, bytes[6]), (len, len, 0));
            let extensions = 5 + 4 + 2 + 32 + 1 + 2 + two(44) + 2;
            assert_eq!(extensions + 2 + two(extensions), len);
            let mut at = extensions + 2;
            let mut types = Vec::new();
            while at < len {
                types.push(two(at));
                at += 4 + two(at + 2);
            }
            let expected: &[usize] =
                if name.is_some() { &[0, 10, 11, 13, 43, 51] } else { &[10, 11, 13, 43, 51] };
            assert_eq!((at, &types[..]), (len, expected));
            assert!(client_hello(name, &mut bytes[..len - 1]).is_none());
        }
        assert!(client_hello(Some(&"x".repeat(NAME_LEN_MAX + 1)), &mut [0; 1024]).is_none());
    }

    #[test]
    fn answers_are_told_apart() {
        for (bytes, expected) in [
            (&b""[..], Answer::More),
            (b"\x16\x03\x03\0\x5a", Answer::More),
            (b"\x16\x03\x03\0\x5a\x02", Answer::Hello),
            (b"\x15\x03\x03\0\x02\x02", Answer::More),
            (b"\x15\x03\x03\0\x02\x02\x28", Answer::Alert(40)),
            (b"\x16\x03\x03\0\x5a\x0e\0", Answer::Other),
            (b"H", Answer::Other),
            (b"HTTP/1.1 400", Answer::Other),
            (b"\x16\x02", Answer::Other),
        ] {
            assert_eq!(answer(bytes), expected, "{bytes:02x?}");
        }
    }
}
