//! Frames by hand, for what a client of h2 does not send.

use csp_http2::{Limits, ServerConnection};
use csp_types::Instant;

use super::{Happened, owned};

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 1;
pub const ACK: u8 = 1;
pub const END_HEADERS: u8 = 4;

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_be_bytes();
    [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Fields as literals without Huffman coding and indexing (RFC 7541 §6.2.2).
pub fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in fields {
        out.push(0);
        for text in [name, value] {
            let len = text.len();
            if len < 127 {
                out.push(len as u8);
            } else {
                let rest = len - 127;
                out.extend([127, (rest % 128) as u8 | 0x80, (rest / 128) as u8]);
            }
            out.extend_from_slice(text.as_bytes());
        }
    }
    out
}

pub const GET: [(&str, &str); 4] =
    [(":method", "GET"), (":scheme", "https"), (":authority", "a.example"), (":path", "/")];

/// HEADERS of a request whose first fields are those of a GET.
pub fn get(stream: u32, more: &[(&str, &str)], flags: u8) -> Vec<u8> {
    frame(HEADERS, flags | END_HEADERS, stream, &block(&[&GET, more].concat()))
}

/// A frame that the server has sent: its kind, flags, stream and payload.
pub type Sent = (u8, u8, u32, Vec<u8>);

/// A connection that gets bytes by hand.
pub struct Raw {
    pub server: ServerConnection,
    pub now: Instant,
    output: Vec<u8>,
}

impl Raw {
    /// Creates a connection that has received the preface and SETTINGS.
    pub fn new(limits: Limits) -> Self {
        let mut raw =
            Raw { server: ServerConnection::new(&limits, 3), now: Instant::ZERO, output: Vec::new() };
        assert_eq!(raw.give(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()), []);
        raw.frames();
        raw
    }

    /// Gives bytes in as many turns as it takes, and returns what has happened.
    pub fn give(&mut self, bytes: &[u8]) -> Vec<Happened> {
        let (mut at, mut happened) = (0, Vec::new());
        loop {
            let taken = self.server.receive(self.now, &[&bytes[at..]]);
            at += taken;
            self.server.poll();
            self.events(&mut happened);
            self.read();
            self.events(&mut happened);
            if at == bytes.len() && !self.server.wants_poll() {
                return happened;
            }
            if taken == 0 && matches!(happened.last(), Some(Happened::Closed(_))) {
                return happened;
            }
        }
    }

    /// Polls and returns the frames that were sent since the last time.
    pub fn frames(&mut self) -> Vec<Sent> {
        self.server.poll();
        self.read();
        let (mut at, mut frames) = (0, Vec::new());
        while let Some(head) = self.output.get(at..at + 9) {
            let len = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            let payload = self.output[at + 9..at + 9 + len].to_vec();
            frames.push((head[3], head[4], stream, payload));
            at += 9 + len;
        }
        assert_eq!(at, self.output.len(), "a frame was sent in part");
        self.output.clear();
        frames
    }

    fn events(&mut self, happened: &mut Vec<Happened>) {
        while let Some(event) = self.server.next_event() {
            happened.push(owned(event));
        }
    }

    fn read(&mut self) {
        while !self.server.output().is_empty() {
            self.output.extend_from_slice(self.server.output());
            self.server.sent(self.server.output().len());
            self.server.poll();
        }
    }
}

/// Returns the reason of GOAWAY among frames.
pub fn go_away(frames: &[Sent]) -> Option<u32> {
    let frame = frames.iter().find(|frame| frame.0 == GOAWAY)?;
    Some(u32::from_be_bytes(frame.3[4..8].try_into().unwrap()))
}

/// Returns the streams that frames reset, with the reasons.
pub fn resets(frames: &[Sent]) -> Vec<(u32, u32)> {
    let resets = frames.iter().filter(|frame| frame.0 == RST_STREAM);
    resets.map(|frame| (frame.2, u32::from_be_bytes(frame.3[..4].try_into().unwrap()))).collect()
}
