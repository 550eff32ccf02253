//! A connection of the crate beside a client of h2, in one thread: each turn moves bytes in both directions
//! until nothing moves any more.
#![allow(clippy::unwrap_used, dead_code, reason = "each test uses a part of it")]

pub mod raw;

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use csp_http2::{Cause, Event, Limits, Malformed, Reason, ServerConnection};
use csp_support::Random;
use csp_types::Instant;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Both directions between the two ends, from the view of h2's.
#[derive(Clone, Default)]
pub struct Wire(pub Arc<Mutex<Ends>>);

#[derive(Default)]
pub struct Ends {
    pub input: VecDeque<u8>,
    pub ended: bool,
    pub output: Vec<u8>,
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut ends = self.0.lock().unwrap();
        if ends.input.is_empty() && !ends.ended {
            return Poll::Pending;
        }
        let len = ends.input.len().min(into.remaining());
        let bytes: Vec<u8> = ends.input.drain(..len).collect();
        into.put_slice(&bytes);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.lock().unwrap().output.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// An event with its own memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Happened {
    Request { stream: u32, head: String, end: bool, websocket: bool },
    Refused { stream: u32, fault: Malformed },
    Readable(u32),
    End { stream: u32, trailers: String },
    Room(u32),
    Reset { stream: u32, reason: Reason, by_peer: bool },
    Done(u32),
    Closed(Cause),
}

pub fn owned(event: Event<'_>) -> Happened {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match event {
        Event::Request { stream, head, end, websocket } => {
            Happened::Request { stream, head: text(head), end, websocket }
        }
        Event::Refused { stream, fault } => Happened::Refused { stream, fault },
        Event::Readable { stream } => Happened::Readable(stream),
        Event::End { stream, trailers } => Happened::End { stream, trailers: text(trailers) },
        Event::Room { stream } => Happened::Room(stream),
        Event::Reset { stream, reason, by_peer } => Happened::Reset { stream, reason, by_peer },
        Event::Done { stream } => Happened::Done(stream),
        Event::Closed { cause } => Happened::Closed(cause),
    }
}

/// Polls once.
pub fn poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    match Pin::new(future).poll(&mut context()) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

pub fn context() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

/// A client of h2 and a connection of ours.
pub struct Pair {
    pub server: ServerConnection,
    pub client: h2::client::SendRequest<Bytes>,
    pub connection: h2::client::Connection<Wire, Bytes>,
    pub wire: Wire,
    /// What the client's connection has ended with.
    pub ended: Option<Result<(), h2::Error>>,
    /// Whether bytes are cut at random.
    pub rng: Option<Random>,
    pub now: Instant,
    /// Whether the server's output is read.
    pub reads: bool,
    in_flight: VecDeque<u8>,
}

impl Pair {
    pub fn new(limits: Limits) -> Self {
        Pair::with(limits, h2::client::Builder::new().initial_max_send_streams(1_000))
    }

    pub fn with(limits: Limits, builder: &h2::client::Builder) -> Self {
        let wire = Wire::default();
        let mut handshake = Box::pin(builder.handshake(wire.clone()));
        let (client, connection) = poll(&mut handshake).unwrap().unwrap();
        Pair {
            server: ServerConnection::new(&limits, 7),
            client,
            connection,
            wire,
            ended: None,
            rng: None,
            now: Instant::ZERO,
            reads: true,
            in_flight: VecDeque::new(),
        }
    }

    pub fn seeded(mut self, seed: u64) -> Self {
        self.rng = Some(Random::new(seed));
        self
    }

    /// Moves bytes until nothing moves. Returns what has happened at the server.
    pub fn turn(&mut self) -> Vec<Happened> {
        let mut happened = Vec::new();
        for _ in 0..100_000 {
            let mut moved = false;
            if self.ended.is_none() {
                self.ended = poll(&mut self.connection);
            }
            self.in_flight.extend(self.wire.0.lock().unwrap().output.drain(..));
            let bytes = self.in_flight.make_contiguous();
            let most = match &mut self.rng {
                Some(rng) => rng.below(bytes.len().min(3_000) as u64 + 1) as usize,
                None => bytes.len(),
            };
            let (first, second) = bytes[..most].split_at(most / 2);
            let taken = self.server.receive(self.now, &[first, second]);
            self.in_flight.drain(..taken);
            self.server.poll();
            while let Some(event) = self.server.next_event() {
                happened.push(owned(event));
                moved = true;
            }
            if self.reads {
                let len = match &mut self.rng {
                    Some(rng) => rng.below(self.server.output().len() as u64 + 1) as usize,
                    None => self.server.output().len(),
                };
                self.wire.0.lock().unwrap().input.extend(&self.server.output()[..len]);
                self.server.sent(len);
                moved |= len > 0 || !self.server.output().is_empty();
            }
            moved |= taken > 0 || (self.reads && !self.in_flight.is_empty()) || self.server.wants_poll();
            if !moved {
                return happened;
            }
        }
        panic!("the connection does not come to rest");
    }

    /// Sends a request without a body and returns its stream's number beside its response.
    pub fn get(&mut self, path: &str) -> h2::client::ResponseFuture {
        let uri = format!("http://a.example{path}");
        let request = http::Request::get(uri).body(()).unwrap();
        self.client.send_request(request, true).unwrap().0
    }
}

/// Returns the numbers of streams that requests have come on.
pub fn requests(happened: &[Happened]) -> Vec<u32> {
    let number = |event: &Happened| match event {
        Happened::Request { stream, .. } => Some(*stream),
        _ => None,
    };
    happened.iter().filter_map(number).collect()
}

pub const OK: &[u8] = b"HTTP/1.1 200 OK\r\nserver: member\r\n\r\n";

/// Runs a test with seeds from 0 on, or with that of `CSP_SEED`. A failing seed prints itself.
pub fn each_seed(count: u64, test: impl Fn(u64)) {
    struct Named(u64);
    impl Drop for Named {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("CSP_SEED={}", self.0);
            }
        }
    }
    let seeds = match std::env::var("CSP_SEED") {
        Ok(seed) => vec![seed.parse().expect("CSP_SEED is a number")],
        Err(_) => (0..count).collect(),
    };
    for seed in seeds {
        let _named = Named(seed);
        test(seed);
    }
}

/// Reads what has come of a body; returns it and whether it has ended.
pub fn body(stream: &mut h2::RecvStream) -> (Vec<u8>, bool) {
    let mut bytes = Vec::new();
    loop {
        match stream.poll_data(&mut context()) {
            Poll::Ready(Some(Ok(data))) => {
                stream.flow_control().release_capacity(data.len()).unwrap();
                bytes.extend_from_slice(&data);
            }
            Poll::Ready(Some(Err(error))) => panic!("{error}"),
            Poll::Ready(None) => return (bytes, true),
            Poll::Pending => return (bytes, false),
        }
    }
}
