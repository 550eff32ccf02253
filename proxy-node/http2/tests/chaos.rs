//! A client and a server of the crate, with random requests, pieces, pauses and resets, over a connection
//! that carries a random part of the bytes at a time. Whatever is not reset arrives whole, and nothing hangs.
#![allow(clippy::unwrap_used, reason = "an unwrap that fails is a failed test")]

mod common;

use std::cell::Cell;
use std::collections::BTreeMap;

use common::each_seed;
use csp_http::head::Scheme;
use csp_http2::{Cause, ClientConnection, ClientEvent, Event, Limits, Reason, ServerConnection};
use csp_support::Random;
use csp_types::Instant;

/// The bytes that one end sends on a stream.
fn byte(stream: u32, at: usize) -> u8 {
    (at as u32).wrapping_mul(stream.wrapping_mul(0x9e37_79b9) | 1).to_be_bytes()[0]
}

/// What one end does on a stream.
#[derive(Debug, Default)]
struct Side {
    sent: usize,
    len: usize,
    is_sent: bool,
    received: usize,
    has_ended: bool,
    has_trailers: bool,
}

impl Side {
    fn piece(&self, stream: u32, random: &mut Random) -> (Vec<u8>, bool) {
        let len = (random.below(40_000) as usize).min(self.len - self.sent);
        let bytes = (self.sent..self.sent + len).map(|at| byte(stream, at)).collect();
        (bytes, self.sent + len == self.len)
    }

    fn check(&mut self, stream: u32, data: &[u8]) {
        for (at, found) in data.iter().enumerate() {
            assert_eq!(
                *found,
                byte(stream, self.received + at),
                "stream {stream}, byte {}",
                self.received + at
            );
        }
        self.received += data.len();
    }
}

#[derive(Debug)]
struct World {
    random: Random,
    client: ClientConnection,
    server: ServerConnection,
    /// Streams at the client, and at the server.
    asked: BTreeMap<u32, Side>,
    served: BTreeMap<u32, Side>,
    up: Vec<u8>,
    down: Vec<u8>,
    completed: usize,
    reset: usize,
    closed: Vec<Cause>,
    /// Once set, nobody pauses or resets.
    is_last: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let window = 1 << (10 + random.below(8));
        let limits = Limits {
            streams_max: 1 + random.below(20) as u32,
            stream_window: window,
            connection_window: window * 3,
            resets_max: 1 << 20,
            control_frames_max: 1 << 30,
            pending_resets_max: 1_000,
            faults_max: 1 << 20,
            ..Limits::default()
        };
        World {
            client: ClientConnection::new(&limits),
            server: ServerConnection::new(&limits, seed),
            random,
            asked: BTreeMap::new(),
            served: BTreeMap::new(),
            up: Vec::new(),
            down: Vec::new(),
            completed: 0,
            reset: 0,
            closed: Vec::new(),
            is_last: false,
        }
    }

    fn chance(&mut self, of: u64) -> bool {
        self.random.below(of) == 0
    }

    fn carry(&mut self) -> bool {
        let Self { random, client, server, up, down, .. } = self;
        let mut part = |len: usize| random.below(len.min(20_000) as u64 + 1) as usize;
        let len = part(client.output().len());
        up.extend_from_slice(&client.output()[..len]);
        client.sent(len);
        let most = part(up.len());
        let taken = server.receive(Instant::ZERO, &[&up[..most / 3], &up[most / 3..most]]);
        up.drain(..taken);
        let len = part(server.output().len());
        down.extend_from_slice(&server.output()[..len]);
        server.sent(len);
        let most = part(down.len());
        let taken = client.receive(Instant::ZERO, &[&down[..most]]);
        down.drain(..taken);
        !(client.output().is_empty() && server.output().is_empty() && up.is_empty() && down.is_empty())
    }

    fn serve(&mut self) {
        self.server.poll();
        let mut begun = Vec::new();
        while let Some(event) = self.server.next_event() {
            match event {
                Event::Request { stream, end, head, .. } => {
                    assert!(head.starts_with(b"POST /x HTTP/1.1\r\nhost: a\r\n"));
                    begun.push(stream);
                    self.served.insert(stream, Side { has_ended: end, ..Side::default() });
                }
                Event::Refused { .. } => panic!("{event:?}"),
                Event::End { stream, trailers } => {
                    let side = self.served.get_mut(&stream).unwrap();
                    assert!(!side.has_ended);
                    side.has_ended = true;
                    assert!(trailers.is_empty() || trailers == b"x-len: 1\r\n\r\n");
                }
                Event::Readable { .. } | Event::Room { .. } => {}
                Event::Reset { stream, .. } | Event::Done { stream } => {
                    assert!(self.served.remove(&stream).is_some(), "{event:?}");
                }
                Event::Closed { cause } => self.closed.push(cause),
            }
        }
        for stream in begun {
            let len = self.random.below(100_000) as usize;
            let head = b"HTTP/1.1 200 OK\r\nx: y\r\n\r\n";
            if self.chance(3) {
                self.server.respond_text(stream, b"HTTP/1.1 103 Early Hints\r\n\r\n", false).unwrap();
            }
            self.server.respond_text(stream, head, false).unwrap();
            self.served.get_mut(&stream).unwrap().len = len;
        }
        let streams: Vec<u32> = self.served.keys().copied().collect();
        for stream in streams {
            if !self.is_last && self.chance(3) {
                continue;
            }
            let data = self.server.data(stream).to_vec();
            let taken = self.random.below(data.len() as u64 + 1) as usize;
            let side = self.served.get_mut(&stream).unwrap();
            side.check(stream, &data[..taken]);
            let (bytes, end) = side.piece(stream, &mut self.random);
            let with_trailers = end && stream % 3 == 0 && !side.is_sent;
            // The answer ends behind the request: otherwise the rest of the request would be dropped.
            let end = end && side.has_ended;
            if !side.is_sent {
                let len = self.server.send(stream, &bytes, end && !with_trailers);
                side.sent += len;
                side.is_sent = end && len == bytes.len();
                if side.is_sent && with_trailers {
                    self.server.trailers(stream, b"x-len: 1\r\n\r\n").unwrap();
                }
            }
            self.server.release(stream, taken);
            if !self.is_last && self.chance(1_000) {
                self.server.reset(stream, Reason::INTERNAL_ERROR);
                self.served.remove(&stream);
            }
        }
    }

    fn ask(&mut self) {
        self.client.poll();
        while let Some(event) = self.client.next_event() {
            match event {
                ClientEvent::Response { head, .. } => assert!(head.starts_with(b"HTTP/1.1 ")),
                ClientEvent::End { stream, trailers } => {
                    let side = self.asked.get_mut(&stream).unwrap();
                    assert!(!side.has_ended);
                    side.has_ended = true;
                    side.has_trailers = !trailers.is_empty();
                }
                ClientEvent::Readable { .. } | ClientEvent::Room { .. } | ClientEvent::GoneAway => {}
                ClientEvent::Reset { stream, reason, .. } => {
                    assert!(self.asked.remove(&stream).is_some(), "{event:?}");
                    assert!(reason.is_some(), "{event:?}");
                    self.reset += 1;
                }
                ClientEvent::Done { stream } => {
                    let side = self.asked.remove(&stream).unwrap();
                    assert!(side.has_ended && side.is_sent, "{side:?}");
                    assert_eq!(side.has_trailers, stream % 3 == 0, "stream {stream}");
                    self.completed += 1;
                }
                ClientEvent::Closed { cause } => self.closed.push(cause),
            }
        }
        if self.client.can_open() && !self.is_last && self.chance(4) {
            let head = b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
            let len = self.random.below(100_000) as usize;
            let stream = self.client.request_text(head, Scheme::Http, len == 0).unwrap();
            self.asked.insert(stream, Side { len, is_sent: len == 0, ..Side::default() });
        }
        let streams: Vec<u32> = self.asked.keys().copied().collect();
        for stream in streams {
            if !self.is_last && self.chance(3) {
                continue;
            }
            let data = self.client.data(stream).to_vec();
            let taken = self.random.below(data.len() as u64 + 1) as usize;
            let side = self.asked.get_mut(&stream).unwrap();
            side.check(stream, &data[..taken]);
            if !side.is_sent {
                let (bytes, end) = side.piece(stream, &mut self.random);
                let len = self.client.send(stream, &bytes, end);
                side.sent += len;
                side.is_sent = end && len == bytes.len();
            }
            self.client.release(stream, taken);
            if !self.is_last && self.chance(1_000) {
                self.client.reset(stream, Reason::CANCEL);
                self.asked.remove(&stream);
            }
        }
    }
}

#[test]
fn everything_arrives() {
    let (completed, reset) = (Cell::new(0), Cell::new(0));
    each_seed(60, |seed| {
        let mut world = World::new(seed);
        for _ in 0..1_500 {
            world.carry();
            world.serve();
            world.ask();
            assert!(world.client.buffered() < 20 << 20 && world.server.buffered() < 20 << 20);
        }
        assert!(world.closed.is_empty(), "{:?}", world.closed);
        world.is_last = true;
        let mut turns = 0;
        while !world.asked.is_empty() || !world.served.is_empty() {
            world.carry();
            world.serve();
            world.ask();
            turns += 1;
            assert!(turns < 20_000, "{:?} {:?}", world.asked, world.served);
        }
        completed.set(completed.get() + world.completed);
        reset.set(reset.get() + world.reset);
        // Half of the connections are drained by the server, the others are left by the client.
        if seed % 2 == 0 {
            world.server.go_away()
        } else {
            world.client.go_away()
        }
        for _ in 0..200 {
            world.carry();
            world.serve();
            world.ask();
        }
        assert_eq!(world.closed, [Cause::Finished, Cause::Finished]);
    });
    let (completed, reset) = (completed.get(), reset.get());
    println!("{completed} streams were completed, {reset} reset by the server");
    assert!(completed > reset);
}
