//! CURVE as its server (25/ZMTP-CURVE, 26/CURVEZMQ), as libzmq speaks it.
//!
//! ```text
//!  HELLO     | 05 "HELLO" | 1 0 | 72 zeros | C' | nonce, 8 | Box [64 zeros](C'->S)              |
//!  WELCOME   | 07 "WELCOME" | nonce, 16 | Box [S' + cookie](S->C')                               |
//!  INITIATE  | 08 "INITIATE" | cookie, 96 | nonce, 8 | Box [C + vouch + metadata](C'->S')        |
//!            |                                  vouch: | nonce, 16 | Box [C' + S](C->S') |
//!  READY     | 05 "READY" | nonce, 8 | Box [metadata](S'->C')                                    |
//!  MESSAGE   | 07 "MESSAGE" | nonce, 8 | Box [flags + body](S'->C') or (C'->S')                  |
//! ```
//! C, S are the long-term keys of client and server, C', S' those of the connection. A box is 16 bytes of
//! authenticator and the encrypted bytes.
//!
//! The server keeps its transient key with the connection, as libzmq does, since a TCP connection has state
//! anyway. The cookie is therefore nothing but random bytes, which the client has to repeat; no secret leaves
//! the server in it.

use std::sync::Arc;

use crypto_box::aead::AeadInPlace as _;
use crypto_box::{PublicKey, SalsaBox, SecretKey};
use curve25519_dalek::{MontgomeryPoint, Scalar};

use crate::error::{EncodeError, ZmtpError};
use crate::frame::{COMMAND, FrameHeader};

/// Length of a key in bytes.
pub const KEY_LEN: usize = 32;
/// Random bytes that a CURVE connection needs: transient secret key, long nonce of WELCOME, cookie.
pub const ENTROPY_LEN: usize = KEY_LEN + LONG_NONCE_LEN + COOKIE_LEN;

/// Inside of a MESSAGE's box: the body is a command. 26/CURVEZMQ defines MORE alone; libzmq has COMMAND in
/// bit 1 there, not in bit 2 as in a frame's flags.
pub(crate) const SEALED_COMMAND: u8 = 2;

const LONG_NONCE_LEN: usize = 16;
const COOKIE_LEN: usize = 96;
const TAG_LEN: usize = 16;
const NONCE_LEN: usize = 8;
/// Name, short nonce and authenticator of a MESSAGE.
pub(crate) const MESSAGE_PREFIX_LEN: usize = 8 + NONCE_LEN + TAG_LEN;
const MESSAGE_NAME: &[u8; 8] = b"\x07MESSAGE";

/// The server's long-term keys.
pub struct CurveKeys {
    secret: SecretKey,
    public: [u8; KEY_LEN],
}

impl CurveKeys {
    /// Derives the public key of a secret key.
    pub fn new(secret: [u8; KEY_LEN]) -> Self {
        let secret = SecretKey::from(secret);
        let public = *secret.public_key().as_bytes();
        CurveKeys { secret, public }
    }

    /// Returns the public key, which clients need.
    pub fn public(&self) -> [u8; KEY_LEN] {
        self.public
    }
}

impl core::fmt::Debug for CurveKeys {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.debug_struct("CurveKeys").field("public", &self.public).finish_non_exhaustive()
    }
}

/// A nonce of 24 bytes from its constant and its variable part.
fn nonce<const PREFIX: usize, const REST: usize>(prefix: &[u8; PREFIX], rest: &[u8; REST]) -> [u8; 24] {
    const { assert!(PREFIX + REST == 24) };
    let mut out = [0; 24];
    out[..PREFIX].copy_from_slice(prefix);
    out[PREFIX..].copy_from_slice(rest);
    out
}

/// Encrypts `bytes` in place; returns the authenticator. It fails only beyond 256 GiB.
fn seal(cipher: &SalsaBox, nonce: [u8; 24], bytes: &mut [u8]) -> Option<[u8; TAG_LEN]> {
    cipher.encrypt_in_place_detached(&nonce.into(), &[], bytes).ok().map(Into::into)
}

/// Decrypts `bytes` in place.
fn open(cipher: &SalsaBox, nonce: [u8; 24], tag: [u8; TAG_LEN], bytes: &mut [u8]) -> Option<()> {
    cipher.decrypt_in_place_detached(&nonce.into(), &[], bytes, &tag.into()).ok()
}

/// Opens a box that starts with its authenticator; returns the decrypted bytes.
fn open_box<'a>(cipher: &SalsaBox, nonce: [u8; 24], bytes: &'a mut [u8]) -> Option<&'a mut [u8]> {
    let (tag, text) = bytes.split_first_chunk_mut::<TAG_LEN>()?;
    open(cipher, nonce, *tag, text).map(|()| text)
}

/// Whether a public key has small order: multiplied by the cofactor it is the neutral element.
fn is_weak(key: [u8; KEY_LEN]) -> bool {
    (MontgomeryPoint(key) * Scalar::from(8u8)).to_bytes() == [0; KEY_LEN]
}

/// Splits an array from the front of `bytes`.
fn take<'a, const LEN: usize>(bytes: &mut &'a [u8]) -> Option<&'a [u8; LEN]> {
    let (head, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(head)
}

/// The handshake of a connection.
pub(crate) struct Handshake {
    keys: Arc<CurveKeys>,
    transient: SecretKey,
    welcome_nonce: [u8; LONG_NONCE_LEN],
    cookie: [u8; COOKIE_LEN],
    client: Option<Client>,
}

/// What HELLO brought.
struct Client {
    transient: [u8; KEY_LEN],
    nonce: u64,
    /// For boxes between C' and S.
    cipher: SalsaBox,
}

impl Handshake {
    pub fn new(keys: Arc<CurveKeys>, entropy: &[u8; ENTROPY_LEN]) -> Self {
        let (mut transient, mut welcome_nonce, mut cookie) =
            ([0; KEY_LEN], [0; LONG_NONCE_LEN], [0; COOKIE_LEN]);
        transient.copy_from_slice(&entropy[..KEY_LEN]);
        welcome_nonce.copy_from_slice(&entropy[KEY_LEN..KEY_LEN + LONG_NONCE_LEN]);
        cookie.copy_from_slice(&entropy[KEY_LEN + LONG_NONCE_LEN..]);
        Handshake { keys, transient: SecretKey::from(transient), welcome_nonce, cookie, client: None }
    }

    /// Processes HELLO without its name, which ends at position `at`.
    pub fn hello(&mut self, body: &[u8], at: u64) -> Result<(), ZmtpError> {
        let malformed = ZmtpError::Malformed { what: "HELLO", at };
        let mut rest = body;
        let (Some(version), Some(padding)) = (take::<2>(&mut rest), take::<72>(&mut rest)) else {
            return Err(malformed);
        };
        let (Some(transient), Some(short)) = (take::<KEY_LEN>(&mut rest), take::<NONCE_LEN>(&mut rest))
        else {
            return Err(malformed);
        };
        let mut signature: [u8; TAG_LEN + 64] = rest.try_into().map_err(|_| malformed)?;
        if *version != [1, 0] || *padding != [0; 72] {
            return Err(malformed);
        }
        if is_weak(*transient) {
            return Err(ZmtpError::WeakKey { what: "transient key of HELLO", at });
        }
        let cipher = SalsaBox::new(&PublicKey::from(*transient), &self.keys.secret);
        let text = open_box(&cipher, nonce(b"CurveZMQHELLO---", short), &mut signature)
            .ok_or(ZmtpError::Sealed { what: "HELLO", at })?;
        if text.iter().any(|byte| *byte != 0) {
            return Err(malformed);
        }
        let nonce = u64::from_be_bytes(*short);
        self.client = Some(Client { transient: *transient, nonce, cipher });
        Ok(())
    }

    /// Writes WELCOME with its frame header; `None` before HELLO.
    pub fn welcome(&self, out: &mut [u8]) -> Option<usize> {
        const BODY_LEN: usize = 8 + LONG_NONCE_LEN + TAG_LEN + KEY_LEN + COOKIE_LEN;
        let client = self.client.as_ref()?;
        let mut text = [0; KEY_LEN + COOKIE_LEN];
        text[..KEY_LEN].copy_from_slice(self.transient.public_key().as_bytes());
        text[KEY_LEN..].copy_from_slice(&self.cookie);
        let tag = seal(&client.cipher, nonce(b"WELCOME-", &self.welcome_nonce), &mut text)?;
        let header = FrameHeader::with_flags(BODY_LEN, COMMAND);
        write(out, &[header.as_bytes(), b"\x07WELCOME", &self.welcome_nonce, &tag, &text])
    }

    /// Processes INITIATE, which ends at position `at`; decrypts it in place. Returns the session, the
    /// client's long-term key and its metadata.
    pub fn initiate<'a>(
        &self,
        body: &'a mut [u8],
        at: u64,
    ) -> Result<(Session, [u8; KEY_LEN], &'a [u8]), ZmtpError> {
        let malformed = ZmtpError::Malformed { what: "INITIATE", at };
        let client = self.client.as_ref().ok_or(ZmtpError::Unexpected { what: "INITIATE", at })?;
        let (_name, rest) = body.split_first_chunk_mut::<9>().ok_or(malformed)?;
        let (cookie, rest) = rest.split_first_chunk_mut::<COOKIE_LEN>().ok_or(malformed)?;
        let (short, sealed) = rest.split_first_chunk_mut::<NONCE_LEN>().ok_or(malformed)?;
        if *cookie != self.cookie {
            return Err(ZmtpError::Sealed { what: "cookie of INITIATE", at });
        }
        let found = u64::from_be_bytes(*short);
        if found <= client.nonce {
            return Err(ZmtpError::Nonce { at, found, last: client.nonce });
        }
        let cipher = SalsaBox::new(&PublicKey::from(client.transient), &self.transient);
        let text = open_box(&cipher, nonce(b"CurveZMQINITIATE", short), sealed)
            .ok_or(ZmtpError::Sealed { what: "INITIATE", at })?;
        let mut rest = &*text;
        let (Some(key), Some(long)) = (take::<KEY_LEN>(&mut rest), take::<LONG_NONCE_LEN>(&mut rest)) else {
            return Err(malformed);
        };
        let vouch = take::<{ TAG_LEN + 2 * KEY_LEN }>(&mut rest).ok_or(malformed)?;
        self.check_vouch(client, *key, long, *vouch, at)?;
        Ok((Session { cipher, sent: 0, received: found }, *key, rest))
    }

    /// Checks that the owner of the long-term key `key` vouches for the transient key, to this server.
    fn check_vouch(
        &self,
        client: &Client,
        key: [u8; KEY_LEN],
        long: &[u8; LONG_NONCE_LEN],
        mut vouch: [u8; TAG_LEN + 2 * KEY_LEN],
        at: u64,
    ) -> Result<(), ZmtpError> {
        if is_weak(key) {
            return Err(ZmtpError::WeakKey { what: "long-term key of INITIATE", at });
        }
        let sealed = ZmtpError::Sealed { what: "vouch of INITIATE", at };
        let cipher = SalsaBox::new(&PublicKey::from(key), &self.transient);
        let text = open_box(&cipher, nonce(b"VOUCH---", long), &mut vouch).ok_or(sealed)?;
        let expected = [client.transient, self.keys.public].concat();
        if *text == *expected { Ok(()) } else { Err(sealed) }
    }
}

/// A sealed command of the server.
struct Kind {
    frame_flags: u8,
    name: &'static [u8],
    /// Constant part of its nonces.
    prefix: &'static [u8; 16],
}

const READY: Kind = Kind { frame_flags: COMMAND, name: b"\x05READY", prefix: b"CurveZMQREADY---" };
/// 25/ZMTP-CURVE calls MESSAGE a command; libzmq sends and expects it without the flag outside of the box.
const MESSAGE: Kind = Kind { frame_flags: 0, name: MESSAGE_NAME, prefix: b"CurveZMQMESSAGES" };

/// Encryption of a connection after its handshake.
pub(crate) struct Session {
    cipher: SalsaBox,
    /// Short nonce of the command that was sent last; the first is 1.
    sent: u64,
    /// Largest short nonce received.
    received: u64,
}

impl Session {
    /// Writes READY with its frame header.
    pub fn ready(&mut self, metadata: &[u8], out: &mut [u8]) -> Result<usize, EncodeError> {
        self.emit(&READY, &[], metadata.len(), [metadata].into_iter(), out)
    }

    /// Writes a MESSAGE with its frame header: the octet `flags` and the bytes of `parts`.
    pub fn seal(&mut self, flags: u8, parts: &[&[u8]], out: &mut [u8]) -> Result<usize, EncodeError> {
        let len = parts.iter().map(|part| part.len()).sum();
        self.seal_parts(flags, len, parts.iter().copied(), out)
    }

    /// As [`seal`](Self::seal), for parts of `len` bytes in all.
    pub fn seal_parts<'p>(
        &mut self,
        flags: u8,
        len: usize,
        parts: impl Iterator<Item = &'p [u8]>,
        out: &mut [u8],
    ) -> Result<usize, EncodeError> {
        self.emit(&MESSAGE, &[flags], len, parts, out)
    }

    /// Writes a sealed command, whose text is `flags` and the `len` bytes of `parts`; each is copied once and
    /// encrypted in place.
    fn emit<'p>(
        &mut self,
        kind: &Kind,
        flags: &[u8],
        len: usize,
        parts: impl Iterator<Item = &'p [u8]>,
        out: &mut [u8],
    ) -> Result<usize, EncodeError> {
        let text_len = flags.len() + len;
        let sealed_len = kind.name.len() + NONCE_LEN + TAG_LEN + text_len;
        let header = FrameHeader::with_flags(sealed_len, kind.frame_flags);
        let needed = header.as_bytes().len() + sealed_len;
        let no_space = EncodeError::NoSpace { needed };
        let (front, text) = out.get_mut(..needed).ok_or(no_space)?.split_at_mut(needed - text_len);
        let short = self.sent.checked_add(1).ok_or(EncodeError::Exhausted)?;
        self.sent = short;
        let short = short.to_be_bytes();
        let (first, rest) = text.split_at_mut(flags.len());
        first.copy_from_slice(flags);
        let mut left = &mut rest[..];
        for part in parts {
            let (to, after) = left.split_at_mut_checked(part.len()).ok_or(no_space)?;
            to.copy_from_slice(part);
            left = after;
        }
        if !left.is_empty() {
            return Err(no_space); // shorter than the caller said: what the buffer held before is not sent
        }
        let tag = seal(&self.cipher, nonce(kind.prefix, &short), text).ok_or(EncodeError::Exhausted)?;
        write(front, &[header.as_bytes(), kind.name, &short, &tag]).ok_or(no_space)?;
        Ok(needed)
    }

    /// Checks name and nonce of a MESSAGE, whose prefix ends at position `at`.
    pub fn begin(&mut self, prefix: &[u8; MESSAGE_PREFIX_LEN], at: u64) -> Result<(), ZmtpError> {
        let (name, rest) = prefix.split_at(MESSAGE_NAME.len());
        if name != MESSAGE_NAME {
            return Err(ZmtpError::Unexpected { what: "command other than MESSAGE", at });
        }
        let found = rest.first_chunk().map_or(0, |short| u64::from_be_bytes(*short));
        if found <= self.received {
            return Err(ZmtpError::Nonce { at, found, last: self.received });
        }
        self.received = found;
        Ok(())
    }

    /// Decrypts the text of the MESSAGE that [`begin`](Self::begin) was called for in place; it ends at
    /// position `at`.
    pub fn open(&self, prefix: &[u8; MESSAGE_PREFIX_LEN], text: &mut [u8], at: u64) -> Result<(), ZmtpError> {
        let mut tag = [0; TAG_LEN];
        tag.copy_from_slice(&prefix[MESSAGE_PREFIX_LEN - TAG_LEN..]);
        let short = self.received.to_be_bytes();
        open(&self.cipher, nonce(b"CurveZMQMESSAGEC", &short), tag, text)
            .ok_or(ZmtpError::Sealed { what: "MESSAGE", at })
    }
}

/// Returns the length in bytes of a MESSAGE with its frame header for a body of `body_len` bytes: what
/// [`Connection::encrypt`](crate::Connection::encrypt) writes.
pub fn sealed_len(body_len: usize) -> usize {
    let sealed = MESSAGE_PREFIX_LEN + 1 + body_len;
    FrameHeader::with_flags(sealed, 0).as_bytes().len() + sealed
}

/// Copies `parts` one after the other to `out`; returns their length, `None` if they do not fit.
pub(crate) fn write(out: &mut [u8], parts: &[&[u8]]) -> Option<usize> {
    let mut done = 0;
    for part in parts {
        out.get_mut(done..done + part.len())?.copy_from_slice(part);
        done += part.len();
    }
    Some(done)
}
