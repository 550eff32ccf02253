//! The client: thousands of connections in one thread.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use serde::{Deserialize, Serialize};
use slab::Slab;
use socket2::{Domain, Protocol, Socket, Type};

use crate::REQUEST_LEN;

const EVENTS_MAX: usize = 1024;
/// Largest number of new connections in progress.
const UNDER_WAY_MAX: usize = 4096;
/// Largest number of exchanges in progress on kept connections: few enough that no queue on the path
/// overflows, as all at once would cause (a veth's receiver queues 1,000 packets).
const EXCHANGES_MAX: usize = 64;
/// Time without any event after which a phase ends; what is missing counts as failed.
const STALLED: Duration = Duration::from_secs(20);
/// Source ports; chosen here, because the kernel's search for a free one becomes slow when most are in use.
const PORTS: std::ops::Range<u16> = 1024..65_000;

/// The result of a phase.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Number of connections or exchanges requested.
    pub wanted: usize,
    /// Number completed.
    pub done: usize,
    /// Number failed, by error text.
    pub errors: BTreeMap<String, usize>,
    /// From the first to the last, in seconds.
    pub seconds: f64,
    /// From start to response, in microseconds: median, 99th percentile and maximum.
    pub latency_us: [u32; 3],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Connecting,
    Waiting,
    Idle,
}

struct Connection {
    stream: TcpStream,
    stage: Stage,
    /// Whether the connection is closed after its first response.
    brief: bool,
    started: Instant,
    received: usize,
}

/// The connections of one client process.
pub struct Load {
    target: SocketAddr,
    sources: Vec<IpAddr>,
    opened: usize,
    poll: Poll,
    events: Events,
    connections: Slab<Connection>,
    under_way: usize,
    outcome: Outcome,
    latencies: Vec<u32>,
}

impl Load {
    /// Creates a client of `target`. No other process may connect from the addresses `sources` of this host.
    ///
    /// # Errors
    /// If the kernel returns no epoll descriptor.
    pub fn new(target: SocketAddr, sources: Vec<IpAddr>) -> io::Result<Self> {
        Ok(Load {
            target,
            sources,
            opened: 0,
            poll: Poll::new()?,
            events: Events::with_capacity(EVENTS_MAX),
            connections: Slab::new(),
            under_way: 0,
            outcome: Outcome::default(),
            latencies: Vec::new(),
        })
    }

    /// Opens `count` connections, at most `rate` per second, and exchanges a request and its response on
    /// each.
    ///
    /// # Errors
    /// If waiting for sockets fails; errors of connections are reported in the [`Outcome`].
    pub fn open(&mut self, count: usize, rate: usize) -> io::Result<Outcome> {
        self.start_many(count, rate, false)
    }

    /// As [`open`](Self::open), and closes each connection after its response.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn churn(&mut self, rate: usize, time: Duration) -> io::Result<Outcome> {
        self.start_many((rate as f64 * time.as_secs_f64()) as usize, rate, true)
    }

    fn start_many(&mut self, count: usize, rate: usize, brief: bool) -> io::Result<Outcome> {
        self.outcome.wanted = count;
        let (begin, mut started) = (Instant::now(), 0);
        self.run(|load| {
            let due = count.min((begin.elapsed().as_secs_f64() * rate as f64) as usize);
            while started < due && load.under_way < UNDER_WAY_MAX {
                started += 1;
                if let Err(error) = load.start(brief) {
                    load.failed(&error);
                }
            }
            started < count
        })
    }

    /// Exchanges one request and its response on every connection.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn exchange(&mut self) -> io::Result<Outcome> {
        let all: Vec<usize> = self.connections.iter().map(|(at, _)| at).collect();
        self.outcome.wanted = all.len();
        let mut rest = all.into_iter().peekable();
        self.run(|load| {
            while load.under_way < EXCHANGES_MAX {
                let Some(at) = rest.next() else { return false };
                load.ask_again(at);
            }
            rest.peek().is_some()
        })
    }

    /// Closes all connections.
    pub fn close(&mut self) -> Outcome {
        let count = self.connections.len();
        self.connections.clear();
        Outcome { wanted: count, done: count, ..Outcome::default() }
    }

    /// Runs until `more` has nothing to start and nothing is in progress, or nothing happens any more.
    fn run(&mut self, mut more: impl FnMut(&mut Self) -> bool) -> io::Result<Outcome> {
        let begin = Instant::now();
        let mut progress = (begin, usize::MAX);
        loop {
            let starting = more(self);
            if !starting && self.under_way == 0 {
                break;
            }
            let settled = self.outcome.done + self.outcome.errors.values().sum::<usize>() + self.under_way;
            if settled != progress.1 {
                progress = (Instant::now(), settled);
            } else if progress.0.elapsed() > STALLED {
                self.give_up();
                break;
            }
            self.turn()?;
        }
        self.latencies.sort_unstable();
        let at = |share: f64| {
            self.latencies.get((self.latencies.len() as f64 * share) as usize).copied().unwrap_or(0)
        };
        let latency_us = [at(0.5), at(0.99), self.latencies.last().copied().unwrap_or(0)];
        self.latencies.clear();
        let outcome = std::mem::take(&mut self.outcome);
        Ok(Outcome { seconds: begin.elapsed().as_secs_f64(), latency_us, ..outcome })
    }

    fn turn(&mut self) -> io::Result<()> {
        let mut events = std::mem::replace(&mut self.events, Events::with_capacity(0));
        match self.poll.poll(&mut events, Some(Duration::from_millis(1))) {
            Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        for event in &events {
            self.serve(event.token().0);
        }
        self.events = events;
        Ok(())
    }

    fn start(&mut self, brief: bool) -> io::Result<()> {
        let source = self.sources[self.opened % self.sources.len()];
        let port = PORTS.start + (self.opened / self.sources.len() % PORTS.len()) as u16;
        self.opened += 1;
        let socket = Socket::new(Domain::for_address(self.target), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        socket.set_reuse_address(true)?; // permits a port whose last connection is in TIME-WAIT
        socket.set_tcp_nodelay(true)?;
        socket.bind(&SocketAddr::new(source, port).into())?;
        match socket.connect(&self.target.into()) {
            Err(error) if error.raw_os_error() != Some(115) => return Err(error), // EINPROGRESS
            _ => {}
        }
        let mut stream = TcpStream::from_std(std::net::TcpStream::from(socket));
        let entry = self.connections.vacant_entry();
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(&mut stream, Token(entry.key()), interest)?;
        let started = Instant::now();
        entry.insert(Connection { stream, stage: Stage::Connecting, brief, started, received: 0 });
        self.under_way += 1;
        Ok(())
    }

    fn serve(&mut self, at: usize) {
        let Some(connection) = self.connections.get_mut(at) else { return };
        let was_idle = connection.stage == Stage::Idle;
        match connection.advance() {
            Ok(false) => {}
            Ok(true) => {
                self.latencies.push(connection.started.elapsed().as_micros().min(u32::MAX.into()) as u32);
                (connection.stage, connection.received) = (Stage::Idle, 0);
                self.outcome.done += 1;
                self.under_way -= 1;
                if connection.brief {
                    self.connections.remove(at);
                }
            }
            Err(error) => {
                self.connections.remove(at);
                self.under_way -= usize::from(!was_idle);
                self.failed(&error);
            }
        }
    }

    fn ask_again(&mut self, at: usize) {
        let Some(connection) = self.connections.get_mut(at) else { return };
        (connection.stage, connection.started) = (Stage::Waiting, Instant::now());
        self.under_way += 1;
        if let Err(error) = connection.ask() {
            self.connections.remove(at);
            self.under_way -= 1;
            self.failed(&error);
        }
    }

    fn failed(&mut self, error: &io::Error) {
        *self.outcome.errors.entry(error.to_string()).or_default() += 1;
    }

    fn give_up(&mut self) {
        let stuck = |(_, c): &(usize, &Connection)| c.stage != Stage::Idle;
        let stuck: Vec<usize> = self.connections.iter().filter(stuck).map(|(at, _)| at).collect();
        for at in stuck {
            let connecting = self.connections.remove(at).stage == Stage::Connecting;
            let what = if connecting { "no connection in time" } else { "no answer in time" };
            *self.outcome.errors.entry(what.to_owned()).or_default() += 1;
        }
        self.under_way = 0;
    }
}

impl Connection {
    fn ask(&mut self) -> io::Result<()> {
        self.received = 0;
        match self.stream.write(&[0x5a; REQUEST_LEN])? {
            REQUEST_LEN => Ok(()),
            n => Err(io::Error::other(format!("the kernel took {n} bytes of a request"))),
        }
    }

    /// Performs what its stage permits; returns whether the response is complete.
    fn advance(&mut self) -> io::Result<bool> {
        if self.stage == Stage::Connecting {
            if let Some(error) = self.stream.take_error()? {
                return Err(error);
            }
            match self.stream.peer_addr() {
                Err(error) if error.kind() == ErrorKind::NotConnected => return Ok(false),
                result => drop(result?),
            }
            self.stage = Stage::Waiting;
            self.ask()?;
        }
        let mut buffer = [0; 2 * REQUEST_LEN];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(io::Error::other("the server closed")),
                Ok(n) => self.received += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        match (self.stage, self.received) {
            (Stage::Waiting, REQUEST_LEN) => Ok(true),
            (Stage::Idle, 1..) | (_, REQUEST_LEN..) => Err(io::Error::other("unrequested bytes")),
            _ => Ok(false),
        }
    }
}
