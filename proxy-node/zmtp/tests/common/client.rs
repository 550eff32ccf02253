//! A peer's side of ZMTP, byte by byte: as far as tests need it.

use crypto_box::aead::AeadInPlace as _;
use crypto_box::{PublicKey, SalsaBox, SecretKey};

/// The greeting of a peer.
pub fn greeting(minor: u8, mechanism: &str) -> Vec<u8> {
    let mut out = vec![0; 64];
    (out[0], out[8], out[9], out[10], out[11]) = (0xff, 1, 0x7f, 3, minor);
    out[12..12 + mechanism.len()].copy_from_slice(mechanism.as_bytes());
    out
}

/// A frame with these flags; LONG is set if the body needs it.
pub fn frame(flags: u8, body: &[u8]) -> Vec<u8> {
    let mut out = match u8::try_from(body.len()) {
        Ok(len) => vec![flags, len],
        Err(_) => [&[flags | 2][..], &(body.len() as u64).to_be_bytes()].concat(),
    };
    out.extend_from_slice(body);
    out
}

/// A command frame.
pub fn command(name: &str, data: &[u8]) -> Vec<u8> {
    frame(4, &command_body(name, data))
}

/// The body of a command.
pub fn command_body(name: &str, data: &[u8]) -> Vec<u8> {
    [&[name.len() as u8], name.as_bytes(), data].concat()
}

/// A message of these frames.
pub fn message(frames: &[&[u8]]) -> Vec<u8> {
    let last = frames.len() - 1;
    frames.iter().enumerate().flat_map(|(at, body)| frame((at < last).into(), body)).collect()
}

/// One property of metadata.
pub fn property(name: &str, value: &[u8]) -> Vec<u8> {
    let len = (value.len() as u32).to_be_bytes();
    [&[name.len() as u8], name.as_bytes(), &len, value].concat()
}

/// Greeting and READY of a NULL peer.
pub fn null_handshake(socket: &str, minor: u8) -> Vec<u8> {
    let ready = command("READY", &property("Socket-Type", socket.as_bytes()));
    [greeting(minor, "NULL"), ready].concat()
}

/// A CURVE client with fixed keys.
pub struct CurveClient {
    pub server: [u8; 32],
    pub long: SecretKey,
    pub transient: SecretKey,
    /// The last short nonce used.
    pub nonce: u64,
    /// The server's transient key, from WELCOME.
    server_transient: Option<[u8; 32]>,
    received: u64,
}

fn nonce(prefix: &[u8], rest: &[u8]) -> [u8; 24] {
    [prefix, rest].concat().try_into().unwrap()
}

fn seal(key: &[u8; 32], secret: &SecretKey, nonce: [u8; 24], text: &[u8]) -> Vec<u8> {
    let mut text = text.to_vec();
    let cipher = SalsaBox::new(&PublicKey::from(*key), secret);
    let tag = cipher.encrypt_in_place_detached(&nonce.into(), &[], &mut text).unwrap();
    [tag.as_slice(), &text].concat()
}

fn open(key: &[u8; 32], secret: &SecretKey, nonce: [u8; 24], sealed: &[u8]) -> Option<Vec<u8>> {
    let (tag, text) = sealed.split_at_checked(16)?;
    let mut text = text.to_vec();
    let cipher = SalsaBox::new(&PublicKey::from(*key), secret);
    let tag: [u8; 16] = tag.try_into().unwrap();
    cipher.decrypt_in_place_detached(&nonce.into(), &[], &mut text, &tag.into()).ok()?;
    Some(text)
}

impl CurveClient {
    pub fn new(server: [u8; 32], long: [u8; 32], transient: [u8; 32]) -> Self {
        CurveClient {
            server,
            long: long.into(),
            transient: transient.into(),
            nonce: 0,
            server_transient: None,
            received: 0,
        }
    }

    fn next_nonce(&mut self) -> [u8; 8] {
        self.nonce += 1;
        self.nonce.to_be_bytes()
    }

    pub fn hello(&mut self) -> Vec<u8> {
        let short = self.next_nonce();
        let signature = seal(&self.server, &self.transient, nonce(b"CurveZMQHELLO---", &short), &[0; 64]);
        let public = *self.transient.public_key().as_bytes();
        command("HELLO", &[&[1, 0][..], &[0; 72], &public, &short, &signature].concat())
    }

    /// INITIATE in answer to a WELCOME with its frame header.
    pub fn initiate(&mut self, welcome: &[u8], metadata: &[u8]) -> Vec<u8> {
        assert_eq!(&welcome[..10], b"\x04\xa8\x07WELCOME");
        let text = open(&self.server, &self.transient, nonce(b"WELCOME-", &welcome[10..26]), &welcome[26..])
            .unwrap();
        let transient: [u8; 32] = text[..32].try_into().unwrap();
        self.server_transient = Some(transient);
        let own = *self.transient.public_key().as_bytes();
        let vouch_nonce = [9; 16];
        let vouched = [own, self.server].concat();
        let vouch = seal(&transient, &self.long, nonce(b"VOUCH---", &vouch_nonce), &vouched);
        let public = *self.long.public_key().as_bytes();
        let text_out = [&public[..], &vouch_nonce, &vouch, metadata].concat();
        let short = self.next_nonce();
        let sealed = seal(&transient, &self.transient, nonce(b"CurveZMQINITIATE", &short), &text_out);
        command("INITIATE", &[&text[32..], &short, &sealed].concat())
    }

    /// The metadata of a READY with its frame header.
    pub fn open_ready(&mut self, ready: &[u8]) -> Option<Vec<u8>> {
        assert_eq!(&ready[2..8], b"\x05READY");
        self.received = u64::from_be_bytes(ready[8..16].try_into().unwrap());
        let key = self.server_transient?;
        open(&key, &self.transient, nonce(b"CurveZMQREADY---", &ready[8..16]), &ready[16..])
    }

    /// A sealed frame: `flags` inside of the box, `outer` outside.
    pub fn sealed(&mut self, outer: u8, flags: u8, body: &[u8]) -> Vec<u8> {
        let short = self.next_nonce();
        let text = [&[flags][..], body].concat();
        let key = self.server_transient.unwrap();
        let sealed = seal(&key, &self.transient, nonce(b"CurveZMQMESSAGEC", &short), &text);
        frame(outer, &command_body("MESSAGE", &[&short[..], &sealed].concat()))
    }

    /// Opens a sealed frame of the server with its header: flags and body.
    pub fn open(&mut self, sealed: &[u8]) -> Option<(u8, Vec<u8>)> {
        let header_len = if sealed[0] & 2 != 0 { 9 } else { 2 };
        let body = &sealed[header_len..];
        assert_eq!(&body[..8], b"\x07MESSAGE");
        let short = u64::from_be_bytes(body[8..16].try_into().unwrap());
        assert!(short > self.received);
        self.received = short;
        let key = self.server_transient?;
        let text = open(&key, &self.transient, nonce(b"CurveZMQMESSAGES", &body[8..16]), &body[16..])?;
        Some((text[0], text[1..].to_vec()))
    }
}
