//! The server's side of the test protocol, without I/O; the engine's host and the kernel's use the same.
//!
//! A client sends a request of [`REQUEST_LEN`] bytes: GET requests a number of bytes of a pattern, PUT
//! announces them. A pattern is a part of a fixed table of random bytes whose length is prime, so that
//! missing, duplicated and misplaced bytes are detected.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use csp_support::Random;

/// Length of a request in bytes.
pub const REQUEST_LEN: usize = 100;
const MAGIC: [u8; 4] = *b"CSPI";
/// A prime, which no segment size and no block size divides.
const PERIOD: usize = 65_521;
/// Longest slice that [`pattern`] returns, in bytes.
const STRETCH_LEN: usize = PERIOD;

static TABLE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut random = Random::new(0x00c5_9000);
    let period: Vec<u8> = (0..PERIOD).map(|_| random.number() as u8).collect();
    [&period[..], &period[..]].concat()
});

/// Returns the pattern `key` from byte `offset`, at most `max` bytes.
pub fn pattern(key: u64, offset: u64, max: u64) -> &'static [u8] {
    let start = (key.wrapping_mul(7_919).wrapping_add(offset) % PERIOD as u64) as usize;
    &TABLE[start..][..max.min(STRETCH_LEN as u64) as usize]
}

/// Returns whether `bytes` are those of the pattern `key` from `offset`.
pub fn is_pattern(key: u64, mut offset: u64, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        let expected = pattern(key, offset, bytes.len() as u64);
        let (head, rest) = bytes.split_at(expected.len());
        if head != expected {
            return false;
        }
        offset += expected.len() as u64;
        bytes = rest;
    }
    true
}

/// Direction of the bytes of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// To the client.
    Get,
    /// From the client.
    Put,
}

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The direction.
    pub method: Method,
    /// Whether the server closes the connection afterwards.
    pub close: bool,
    /// Identifies the pattern.
    pub key: u64,
    /// Number of bytes; `u64::MAX` for no end.
    pub len: u64,
}

impl Request {
    /// Encodes the request.
    pub fn encode(&self) -> [u8; REQUEST_LEN] {
        let mut bytes = [0x2e; REQUEST_LEN];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = match self.method {
            Method::Get => b'G',
            Method::Put => b'P',
        };
        bytes[5] = u8::from(self.close);
        bytes[6..14].copy_from_slice(&self.key.to_be_bytes());
        bytes[14..22].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }

    fn decode(bytes: &[u8; REQUEST_LEN]) -> Option<Request> {
        let number = |at: usize| bytes[at..at + 8].iter().fold(0, |n, b| n << 8 | u64::from(*b));
        let method = match bytes[4] {
            b'G' => Method::Get,
            b'P' => Method::Put,
            _ => return None,
        };
        let fits = bytes[..4] == MAGIC && bytes[22..].iter().all(|b| *b == 0x2e);
        fits.then(|| Request { method, close: bytes[5] == 1, key: number(6), len: number(14) })
    }
}

/// Counters of a host's sessions, shared with the client.
#[derive(Debug, Default)]
pub struct Tally {
    /// Correct bytes received of PUT requests.
    pub received: AtomicU64,
    /// Sessions that ended because of wrong bytes.
    pub corrupt: AtomicU64,
}

enum Phase {
    Reading { request: [u8; REQUEST_LEN], have: usize },
    Sending { request: Request, sent: u64 },
    Receiving { request: Request, received: u64 },
    Finished,
}

/// The next action of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Want {
    /// Read bytes from the client.
    Read,
    /// Send bytes.
    Write,
    /// Close the connection.
    Close,
}

/// The server's state of one connection.
pub struct Session {
    phase: Phase,
}

impl Default for Session {
    fn default() -> Self {
        Session { phase: Phase::Reading { request: [0; REQUEST_LEN], have: 0 } }
    }
}

impl Session {
    /// Returns the next action.
    pub fn want(&self) -> Want {
        match self.phase {
            Phase::Reading { .. } | Phase::Receiving { .. } => Want::Read,
            Phase::Sending { .. } => Want::Write,
            Phase::Finished => Want::Close,
        }
    }

    /// Processes received bytes. Returns the number processed, which is smaller when the session must send
    /// first.
    pub fn on_bytes(&mut self, bytes: &[u8], tally: &Tally) -> usize {
        match &mut self.phase {
            Phase::Reading { request, have } => {
                let n = bytes.len().min(REQUEST_LEN - *have);
                request[*have..*have + n].copy_from_slice(&bytes[..n]);
                *have += n;
                if *have == REQUEST_LEN {
                    self.phase = match Request::decode(request) {
                        Some(request) if request.method == Method::Get => Phase::Sending { request, sent: 0 },
                        Some(request) => Phase::Receiving { request, received: 0 },
                        None => corrupt(tally),
                    };
                }
                n
            }
            Phase::Receiving { request, received } => {
                let n = (bytes.len() as u64).min(request.len - *received);
                if !is_pattern(request.key, *received, &bytes[..n as usize]) {
                    self.phase = corrupt(tally);
                    return bytes.len();
                }
                tally.received.fetch_add(n, Ordering::Relaxed);
                *received += n;
                if *received == request.len {
                    self.phase = after(*request);
                }
                n as usize
            }
            Phase::Sending { .. } => 0,
            Phase::Finished => bytes.len(),
        }
    }

    /// Returns the next bytes to send; empty unless [`Want::Write`].
    pub fn to_send(&self) -> &'static [u8] {
        match &self.phase {
            Phase::Sending { request, sent } => pattern(request.key, *sent, request.len - sent),
            _ => &[],
        }
    }

    /// Records that `n` bytes were sent.
    pub fn on_sent(&mut self, n: usize) {
        if let Phase::Sending { request, sent } = &mut self.phase {
            *sent += n as u64;
            if *sent == request.len {
                self.phase = after(*request);
            }
        }
    }
}

fn after(request: Request) -> Phase {
    if request.close { Phase::Finished } else { Session::default().phase }
}

fn corrupt(tally: &Tally) -> Phase {
    tally.corrupt.fetch_add(1, Ordering::Relaxed);
    Phase::Finished
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_get_is_answered_with_the_pattern_and_a_close() {
        let (mut session, tally) = (Session::default(), Tally::default());
        let request = Request { method: Method::Get, close: true, key: 3, len: 100_000 };
        let bytes = request.encode();
        assert_eq!(session.on_bytes(&bytes[..40], &tally), 40);
        assert_eq!(session.on_bytes(&bytes[40..], &tally), 60);
        let mut got = Vec::new();
        while session.want() == Want::Write {
            let part = &session.to_send()[..session.to_send().len().min(1_000)];
            got.extend_from_slice(part);
            session.on_sent(part.len());
        }
        assert_eq!((session.want(), got.len()), (Want::Close, 100_000));
        assert!(is_pattern(3, 0, &got));
        got[70_000] ^= 1;
        assert!(!is_pattern(3, 0, &got));
    }

    #[test]
    fn a_put_is_checked_byte_by_byte() {
        let (mut session, tally) = (Session::default(), Tally::default());
        let request = Request { method: Method::Put, close: false, key: 9, len: 3_000 };
        session.on_bytes(&request.encode(), &tally);
        session.on_bytes(pattern(9, 0, 1_000), &tally);
        session.on_bytes(pattern(9, 1_000, 2_000), &tally);
        assert_eq!((tally.received.load(Ordering::Relaxed), session.want()), (3_000, Want::Read));
        session.on_bytes(&request.encode(), &tally);
        session.on_bytes(pattern(9, 1, 1_000), &tally);
        assert_eq!((tally.corrupt.load(Ordering::Relaxed), session.want()), (1, Want::Close));
    }
}
