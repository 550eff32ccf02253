//! The first message of a client, read without taking it: which server it asks for (RFC 6066 §3).
//!
//! ```text
//!  bytes of TCP    ┌ record ──────────────┐┌ record ─────────┐
//!                  │22 3 x len│ fragment  ││22 3 x len│ rest  │ …          HelloReader: where it ends
//!                             └─────┬─────┘           └──┬───┘
//!  message                    1 len │ version random …   │ extensions     server_name: the name in it
//! ```
//! [`HelloReader`] sees each byte once, however they arrive, and keeps no copy. Nothing is negotiated here:
//! what is read goes on as it came, to a server or to a [`Session`](crate::Session).

/// Largest number of bytes, with the headers of records, within which a ClientHello is complete. Those with
/// post-quantum keys have about 1,800.
pub const CLIENT_HELLO_LEN_MAX: usize = 16 * 1024;

/// Length of a record's header, and of a handshake message's (RFC 8446 §5.1, §4).
const RECORD_LEN: usize = 5;
const MESSAGE_LEN: usize = 4;
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
/// Largest fragment in a record (RFC 8446 §5.1).
const FRAGMENT_MAX: usize = 1 << 14;
/// The extension of the server's name, and the kind of name that it has (RFC 6066 §3).
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;
/// The extension of application protocols (RFC 7301 §3.1).
const PROTOCOLS: u16 = 16;
/// Longest name in bytes (RFC 1035 §2.3.4).
const NAME_LEN_MAX: usize = 253;

/// What the bytes so far are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hello {
    /// The beginning of a ClientHello.
    Partial,
    /// A whole ClientHello, and perhaps more.
    Whole,
    /// Records of TLS, and no ClientHello within [`CLIENT_HELLO_LEN_MAX`].
    Malformed,
    /// Not TLS.
    Other,
}

/// Finds the end of a ClientHello in the records of a stream.
#[derive(Clone, Copy, Debug, Default)]
pub struct HelloReader {
    /// Bytes of the stream that were read.
    read: usize,
    /// The header of the present record, of which `header_len` bytes were read.
    header: [u8; RECORD_LEN],
    header_len: usize,
    /// Bytes of the present record that follow.
    record_left: usize,
    /// The header of the message, and the number of the message's bytes that were read, with it.
    message: [u8; MESSAGE_LEN],
    message_read: usize,
}

impl HelloReader {
    /// Reads on. `stream` has all bytes of the stream from its beginning, those of earlier calls as well.
    pub fn read<'a>(&mut self, stream: impl Iterator<Item = &'a [u8]>) -> Hello {
        let mut known = self.read;
        for slice in stream {
            let skipped = known.min(slice.len());
            known -= skipped;
            match self.advance(&slice[skipped..], |_| ()) {
                Hello::Partial => {}
                found => return found,
            }
        }
        match self.read < CLIENT_HELLO_LEN_MAX {
            true => Hello::Partial,
            false => Hello::Malformed,
        }
    }

    /// Appends the message, without the headers of records, to `out`.
    pub fn gather<'a>(stream: impl Iterator<Item = &'a [u8]>, out: &mut Vec<u8>) -> Hello {
        let mut reader = HelloReader::default();
        for slice in stream {
            match reader.advance(slice, |part| out.extend_from_slice(part)) {
                Hello::Partial => {}
                found => return found,
            }
        }
        Hello::Partial
    }

    /// Reads the next bytes, and passes those of the message on.
    fn advance(&mut self, mut bytes: &[u8], mut sink: impl FnMut(&[u8])) -> Hello {
        while !bytes.is_empty() {
            if self.read >= CLIENT_HELLO_LEN_MAX {
                return Hello::Malformed;
            }
            if self.record_left == 0 {
                let len = bytes.len().min(RECORD_LEN - self.header_len);
                self.header[self.header_len..][..len].copy_from_slice(&bytes[..len]);
                (self.header_len, self.read, bytes) = (self.header_len + len, self.read + len, &bytes[len..]);
                match self.begin_record() {
                    Hello::Partial => continue,
                    found => return found,
                }
            }
            let len = bytes.len().min(self.record_left);
            let (part, rest) = bytes.split_at(len);
            bytes = rest;
            let in_header = MESSAGE_LEN.saturating_sub(self.message_read).min(len);
            self.message[self.message_read.min(MESSAGE_LEN)..][..in_header]
                .copy_from_slice(&part[..in_header]);
            (self.message_read, self.read) = (self.message_read + len, self.read + len);
            self.record_left -= len;
            let whole = self.message_len();
            sink(&part[..len - self.message_read.saturating_sub(whole)]);
            if self.message[0] != CLIENT_HELLO || whole > CLIENT_HELLO_LEN_MAX {
                return Hello::Malformed;
            }
            if self.message_read >= whole {
                return Hello::Whole;
            }
        }
        Hello::Partial
    }

    /// Checks as much of a record's header as there is.
    fn begin_record(&mut self) -> Hello {
        let [kind, major, _, high, low] = self.header;
        let is_first = self.read == self.header_len;
        let is_tls = self.header_len < 1 || kind == HANDSHAKE && (self.header_len < 2 || major == 3);
        if !is_tls {
            return if is_first { Hello::Other } else { Hello::Malformed };
        }
        if self.header_len < RECORD_LEN {
            return Hello::Partial;
        }
        self.header_len = 0;
        self.record_left = usize::from(u16::from_be_bytes([high, low]));
        // RFC 8446 §5.1: no empty fragments of the handshake.
        match self.record_left {
            1..=FRAGMENT_MAX => Hello::Partial,
            _ => Hello::Malformed,
        }
    }

    /// Returns the length of the message with its header, as far as that is known.
    fn message_len(&self) -> usize {
        let [_, high, middle, low] = self.message;
        match self.message_read >= MESSAGE_LEN {
            true => {
                MESSAGE_LEN + usize::from(high) * 0x1_0000 + usize::from(u16::from_be_bytes([middle, low]))
            }
            false => MESSAGE_LEN,
        }
    }
}

/// Returns the name of the server that a ClientHello asks for, without a dot at its end; `None`: it asks for
/// none. With an encrypted ClientHello it is the outer name.
///
/// # Errors
/// The message is malformed, or has two names, so that two programs could read it in two ways.
pub fn server_name(message: &[u8]) -> Result<Option<&str>, MalformedHello> {
    let mut rest = Fields(message);
    rest.take(MESSAGE_LEN + 2 + 32)?; // legacy_version, random
    rest.by_one()?; // legacy_session_id
    rest.by_two()?; // cipher_suites
    rest.by_one()?; // legacy_compression_methods
    if rest.0.is_empty() {
        return Ok(None); // RFC 5246 §7.4.1.2: extensions may be absent
    }
    let mut extensions = Fields(rest.by_two()?);
    rest.is_empty()?;
    let mut name = None;
    while !extensions.0.is_empty() {
        let kind = extensions.two()?;
        let body = extensions.by_two()?;
        if kind == SERVER_NAME && name.replace(host_name(body)?).is_some() {
            return Err(MalformedHello);
        }
    }
    Ok(name)
}

/// Returns the application protocols that a ClientHello offers (ALPN, RFC 7301 §3.1); `None`: it is malformed
/// or offers none.
pub(crate) fn protocols(message: &[u8]) -> Option<Vec<&[u8]>> {
    let mut rest = Fields(message);
    rest.take(MESSAGE_LEN + 2 + 32).ok()?; // legacy_version, random
    rest.by_one().ok()?; // legacy_session_id
    rest.by_two().ok()?; // cipher_suites
    rest.by_one().ok()?; // legacy_compression_methods
    let mut extensions = Fields(rest.by_two().ok()?);
    while !extensions.0.is_empty() {
        let kind = extensions.two().ok()?;
        let mut body = Fields(extensions.by_two().ok()?);
        if kind == PROTOCOLS {
            let mut list = Fields(body.by_two().ok()?);
            let mut names = Vec::new();
            while !list.0.is_empty() {
                names.push(list.by_one().ok()?);
            }
            return Some(names);
        }
    }
    None
}

fn host_name(body: &[u8]) -> Result<&str, MalformedHello> {
    let mut body = Fields(body);
    let mut list = Fields(body.by_two()?);
    body.is_empty()?;
    let kind = list.take(1)?;
    let name = list.by_two()?;
    list.is_empty()?;
    let name = name.strip_suffix(b".").unwrap_or(name);
    let legal = |byte: &u8| byte.is_ascii_graphic();
    match kind == [HOST_NAME] && (1..=NAME_LEN_MAX).contains(&name.len()) && name.iter().all(legal) {
        true => core::str::from_utf8(name).map_err(|_| MalformedHello),
        false => Err(MalformedHello),
    }
}

/// A ClientHello whose lengths disagree, or with a name that is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the ClientHello is malformed")]
pub struct MalformedHello;

/// What of a message is not read yet.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], MalformedHello> {
        let (part, rest) = self.0.split_at_checked(len).ok_or(MalformedHello)?;
        self.0 = rest;
        Ok(part)
    }

    fn two(&mut self) -> Result<u16, MalformedHello> {
        let bytes = self.take(2)?;
        Ok(bytes.iter().fold(0, |sum, byte| sum << 8 | u16::from(*byte)))
    }

    /// Takes what has its length before it, in a byte.
    fn by_one(&mut self) -> Result<&'a [u8], MalformedHello> {
        let len = self.take(1)?.first().copied().unwrap_or_default();
        self.take(len.into())
    }

    /// Takes what has its length before it, in two bytes.
    fn by_two(&mut self) -> Result<&'a [u8], MalformedHello> {
        let len = self.two()?;
        self.take(len.into())
    }

    fn is_empty(&self) -> Result<(), MalformedHello> {
        if self.0.is_empty() { Ok(()) } else { Err(MalformedHello) }
    }
}
