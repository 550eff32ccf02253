//! A peer's side of ZMTP 3 with the mechanism NULL (37/ZMTP, 23/ZMTP), without any I/O: as far as a correct
//! peer needs it.

use std::collections::VecDeque;

const GREETING_LEN: usize = 64;
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// What the broker has sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Received {
    /// Its READY: the handshake is complete.
    Ready,
    /// It subscribes to a topic.
    Subscribe(Vec<u8>),
    /// A message, by frames.
    Message(Vec<Vec<u8>>),
}

/// One peer's connection.
pub(super) struct ZmtpClient {
    minor: u8,
    input: VecDeque<u8>,
    /// The broker's minor version, once its greeting has arrived.
    other: Option<u8>,
    ready: bool,
    frames: Vec<Vec<u8>>,
    output: VecDeque<u8>,
    /// How the broker violated the protocol.
    pub(super) wrong: Option<String>,
}

fn frame(flags: u8, body: &[u8], out: &mut VecDeque<u8>) {
    match u8::try_from(body.len()) {
        Ok(len) => out.extend([flags, len]),
        Err(_) => {
            out.push_back(flags | LONG);
            out.extend((body.len() as u64).to_be_bytes());
        }
    }
    out.extend(body);
}

fn command(name: &str, data: &[u8], out: &mut VecDeque<u8>) {
    frame(COMMAND, &[&[name.len() as u8], name.as_bytes(), data].concat(), out);
}

impl ZmtpClient {
    /// A peer of this socket type that speaks version 3 with this minor version, which has begun with its
    /// greeting and READY.
    pub(super) fn new(socket: &str, minor: u8) -> Self {
        let mut greeting = [0; GREETING_LEN];
        (greeting[0], greeting[8], greeting[9], greeting[10], greeting[11]) = (0xff, 1, 0x7f, 3, minor);
        greeting[12..16].copy_from_slice(b"NULL");
        let mut output: VecDeque<u8> = greeting.into_iter().collect();
        let value = [&(socket.len() as u32).to_be_bytes(), socket.as_bytes()].concat();
        command("READY", &[&b"\x0bSocket-Type"[..], &value].concat(), &mut output);
        ZmtpClient {
            minor,
            input: VecDeque::new(),
            other: None,
            ready: false,
            frames: Vec::new(),
            output,
            wrong: None,
        }
    }

    /// Adds bytes that have arrived.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.input.extend(bytes);
    }

    /// Returns what has arrived next, if it is complete.
    pub(super) fn poll(&mut self) -> Option<Received> {
        if self.other.is_none() {
            let greeting: Vec<u8> = self.input.iter().take(GREETING_LEN).copied().collect();
            if greeting.len() < GREETING_LEN {
                return None;
            }
            if (greeting[0], greeting[9], greeting[10], &greeting[12..17]) != (0xff, 0x7f, 3, b"NULL\0") {
                self.complain(format!("greeting {greeting:?}"));
            }
            self.input.drain(..GREETING_LEN);
            self.other = Some(greeting[11]);
        }
        while let Some((flags, body)) = self.next_frame() {
            let more = flags & MORE != 0;
            match flags & !(MORE | LONG) {
                COMMAND if more => self.complain("a command of several frames".to_owned()),
                COMMAND => {
                    if let Some(received) = self.on_command(&body) {
                        return Some(received);
                    }
                }
                0 if self.ready => {
                    self.frames.push(body);
                    if !more {
                        return self.on_message();
                    }
                }
                _ => self.complain(format!("a frame with the flags {flags:#04x}")),
            }
        }
        None
    }

    /// Returns the flags and the body of the next frame.
    fn next_frame(&mut self) -> Option<(u8, Vec<u8>)> {
        let flags = *self.input.front()?;
        let header_len = if flags & LONG != 0 { 9 } else { 2 };
        if self.input.len() < header_len {
            return None;
        }
        let len =
            self.input.iter().take(header_len).skip(1).fold(0_u64, |len, byte| len << 8 | u64::from(*byte));
        let end = usize::try_from(len).ok()?.checked_add(header_len)?;
        if self.input.len() < end {
            return None;
        }
        if flags & LONG != 0 && len < 256 {
            self.complain(format!("a long frame of {len} bytes")); // permitted, and wasteful
        }
        Some((flags, self.input.drain(..end).skip(header_len).collect()))
    }

    fn on_command(&mut self, body: &[u8]) -> Option<Received> {
        let (name, data) = body.split_first().and_then(|(len, rest)| rest.split_at_checked((*len).into()))?;
        match name {
            b"READY" if !self.ready => {
                self.ready = true;
                return Some(Received::Ready);
            }
            b"SUBSCRIBE" if self.ready && self.minor > 0 => return Some(Received::Subscribe(data.to_vec())),
            b"PING" => command("PONG", data.get(2..).unwrap_or_default(), &mut self.output),
            b"PONG" => {}
            _ => self.complain(format!("the command {}", String::from_utf8_lossy(body))),
        }
        None
    }

    fn on_message(&mut self) -> Option<Received> {
        let frames = std::mem::take(&mut self.frames);
        // 23/ZMTP: peers of version 3.0 subscribe by messages.
        match &frames[..] {
            [one] if self.minor == 0 && one.first() == Some(&1) => {
                Some(Received::Subscribe(one[1..].to_vec()))
            }
            _ => Some(Received::Message(frames)),
        }
    }

    /// Subscribes to a topic.
    pub(super) fn subscribe(&mut self, topic: &[u8]) {
        match self.other {
            Some(minor) if minor.min(self.minor) > 0 => command("SUBSCRIBE", topic, &mut self.output),
            _ => frame(0, &[&[1], topic].concat(), &mut self.output),
        }
    }

    /// Sends a message.
    pub(super) fn send(&mut self, frames: &[Vec<u8>]) {
        for (at, body) in frames.iter().enumerate() {
            frame(if at + 1 < frames.len() { MORE } else { 0 }, body, &mut self.output);
        }
    }

    /// Returns whether there are bytes to be written.
    pub(super) fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// Returns bytes that are to be written to the connection.
    pub(super) fn output(&mut self) -> &[u8] {
        self.output.make_contiguous()
    }

    /// Records that so many of them were.
    pub(super) fn sent(&mut self, len: usize) {
        self.output.drain(..len);
    }

    /// Returns whether no frame or message is incomplete.
    pub(super) fn is_between(&self) -> bool {
        self.input.is_empty() && self.frames.is_empty()
    }

    fn complain(&mut self, what: String) {
        self.wrong.get_or_insert(what);
    }
}
