//! A connection in memory, and what its items look like when they are kept.
#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(clippy::unwrap_used, reason = "an unwrap that fails is a failed test")]

pub mod client;
pub mod tcp;

use std::sync::Arc;

use csp_types::Instant;
use csp_zmtp::{
    CONTROL_LEN_MAX, Config, Connection, Counters, Cursor, Item, LocalType, SocketType, ZmtpError, part,
};

/// An item with its contents.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Got {
    Authorise([u8; 32]),
    Ready(SocketType),
    Subscribe(Vec<u8>),
    Cancel(Vec<u8>),
    Message(Vec<Vec<u8>>),
}

impl Got {
    pub fn message(frames: &[&[u8]]) -> Self {
        Got::Message(frames.iter().map(|frame| frame.to_vec()).collect())
    }
}

/// Keeps an item; the bodies of a NULL peer are gathered from `slices`, whose first byte is byte `base` of
/// the stream.
pub fn keep(item: &Item<'_>, base: u64, slices: &[&[u8]]) -> Got {
    match item {
        Item::Authorise(peer) => Got::Authorise(peer.key.unwrap()),
        Item::Ready(peer) => Got::Ready(peer.socket_type),
        Item::Subscribe(topic) => Got::Subscribe(topic.to_vec()),
        Item::Cancel(topic) => Got::Cancel(topic.to_vec()),
        Item::Message(message) => {
            let body = |frame: &csp_zmtp::Frame| match message.decrypted(frame) {
                Some(body) => body.to_vec(),
                None => {
                    let bytes: Vec<u8> =
                        part(slices.iter().copied(), frame.at - base, frame.len).flatten().copied().collect();
                    assert_eq!(bytes.len(), frame.len);
                    bytes
                }
            };
            assert_eq!(message.body_len(), message.frames().iter().map(|frame| frame.len).sum());
            Got::Message(message.frames().iter().map(body).collect())
        }
    }
}

/// The proxy's end of a connection, its unconsumed bytes and its time.
pub struct Server {
    pub connection: Connection,
    pub counters: Counters,
    pub now: Instant,
    /// Whether keys are allowed; `None`: no decision is taken.
    pub allow: Option<bool>,
    base: u64,
    chunks: Vec<Vec<u8>>,
}

impl Server {
    pub fn new(connection: Connection) -> Self {
        Server {
            connection,
            counters: Counters::default(),
            now: Instant::ZERO,
            allow: Some(true),
            base: 0,
            chunks: Vec::new(),
        }
    }

    pub fn null(config: Config) -> Self {
        Self::new(Connection::null(Arc::new(config), Instant::ZERO))
    }

    /// A NULL connection of this type with the default bounds.
    pub fn of(local: LocalType) -> Self {
        Self::null(Config::new(local))
    }

    /// The same after the handshake with a peer that announces `socket` and this minor version.
    pub fn ready(config: Config, socket: &str, minor: u8) -> Self {
        let mut server = Self::null(config);
        let got = server.feed(&client::null_handshake(socket, minor)).unwrap();
        assert_eq!(got, [Got::Ready(SocketType::from_name(socket.as_bytes()).unwrap())]);
        server.output();
        server
    }

    /// Feeds one more chunk, which is a slice of its own; consumes what is released.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Vec<Got>, ZmtpError> {
        let (got, outcome) = self.feed_all(bytes);
        outcome.map(|()| got)
    }

    /// The same; returns also the items before an error.
    pub fn feed_all(&mut self, bytes: &[u8]) -> (Vec<Got>, Result<(), ZmtpError>) {
        self.chunks.push(bytes.to_vec());
        let slices: Vec<&[u8]> = self.chunks.iter().map(Vec::as_slice).collect();
        let mut got = Vec::new();
        let outcome = loop {
            // A cursor for each item: the bytes before it are passed over again.
            let mut input = Cursor::new(self.base, slices.iter().copied());
            match self.connection.next(self.now, &mut input, &mut self.counters) {
                Ok(Some(item)) => got.push(keep(&item, self.base, &slices)),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
            if let Some(Got::Authorise(_)) = got.last() {
                match self.allow {
                    Some(true) => self.connection.allow(),
                    Some(false) => self.connection.deny(&mut self.counters),
                    None => {}
                }
            }
        };
        let released = self.connection.released();
        assert!(self.base <= released && released <= self.connection.examined());
        let mut drop = (released - self.base) as usize;
        self.base = released;
        while drop > 0 {
            let first = &mut self.chunks[0];
            let now = drop.min(first.len());
            first.drain(..now);
            drop -= now;
            if first.is_empty() {
                self.chunks.remove(0);
            }
        }
        (got, outcome)
    }

    /// Everything that the connection has to send itself.
    pub fn output(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut buffer = [0; CONTROL_LEN_MAX];
        loop {
            let len = self.connection.transmit(self.now, &mut buffer, &mut self.counters).unwrap();
            if len == 0 {
                return out;
            }
            out.extend_from_slice(&buffer[..len]);
        }
    }
}

/// Decodes hexadecimal digits; white space is ignored.
pub fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}
