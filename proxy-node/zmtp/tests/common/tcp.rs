//! A TCP server around connections, for programs of ZeroMQ on loopback: one thread, one connection at a time.
#![allow(clippy::disallowed_types, reason = "the test owns the sockets and the clock, not the crate")]

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time;

use csp_types::{Duration, Instant};
use csp_zmtp::{
    CONTROL_LEN_MAX, Config, Connection, Counters, Cursor, CurveKeys, ENTROPY_LEN, FrameHeader, Mechanism,
    ZmtpError, sealed_len,
};

use super::{Got, keep};

/// Longest time that a test takes; a program that is not done is killed.
const TIME_MAX: time::Duration = time::Duration::from_secs(30);
/// How often the server looks at its deadlines.
const TICK: time::Duration = time::Duration::from_millis(5);
/// Debian's interpreter, for which python3-zmq is installed.
const PYTHON: &str = "/usr/bin/python3";

/// Whether pyzmq is installed; skips the calling test otherwise.
pub fn has_pyzmq() -> bool {
    let found = Command::new(PYTHON).args(["-c", "import zmq"]).stderr(Stdio::null()).status();
    let found = found.is_ok_and(|status| status.success());
    if !found {
        csp_support::skip("pyzmq is not installed for /usr/bin/python3 (Debian package python3-zmq)");
    }
    found
}

/// A program that is killed with its owner.
pub struct Program(Child);

impl Program {
    /// Starts `tests/peer.py` with the name of a peer and the server's port.
    pub fn start(server: &Tcp, arguments: &[&str]) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peer.py");
        let mut command = Command::new(PYTHON);
        command.arg(script).arg(server.port().to_string()).args(arguments);
        Program(command.stdout(Stdio::piped()).spawn().unwrap())
    }

    /// Waits for the end of the program; returns the lines that it printed.
    pub fn finish(mut self) -> Vec<String> {
        let start = time::Instant::now();
        while self.0.try_wait().unwrap().is_none() {
            assert!(start.elapsed() < TIME_MAX, "the program does not end");
            std::thread::sleep(TICK);
        }
        let mut text = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(self.0.wait().unwrap().success(), "{text}");
        text.lines().map(str::to_owned).collect()
    }

    /// Sends a signal.
    pub fn signal(&self, name: &str) {
        let pid = self.0.id().to_string();
        assert!(Command::new("/bin/kill").args(["-s", name, &pid]).status().unwrap().success());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A listener and what its connections have counted.
pub struct Tcp {
    listener: TcpListener,
    config: Arc<Config>,
    keys: Option<Arc<CurveKeys>>,
    start: time::Instant,
    pub counters: Counters,
}

/// A connection that was accepted.
pub struct Session<'a> {
    server: &'a mut Tcp,
    stream: TcpStream,
    pub connection: Connection,
    received: Vec<u8>,
    base: u64,
    /// Items that were received and not asked for.
    items: std::collections::VecDeque<Got>,
    /// Whether keys are allowed.
    pub allow: bool,
}

/// How a connection ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    Closed,
    Failed(ZmtpError),
}

impl Tcp {
    pub fn new(config: Config, secret: Option<[u8; 32]>) -> Self {
        let keys = secret.map(|secret| Arc::new(CurveKeys::new(secret)));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let (config, start) = (Arc::new(config), time::Instant::now());
        Tcp { listener, config, keys, start, counters: Counters::default() }
    }

    fn port(&self) -> u16 {
        self.listener.local_addr().unwrap().port()
    }

    /// Connects to the server: for a peer that is played by bytes.
    pub fn connect(&self) -> TcpStream {
        TcpStream::connect(self.listener.local_addr().unwrap()).unwrap()
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.start.elapsed().as_nanos() as u64)
    }

    /// Accepts the next connection.
    pub fn accept(&mut self) -> Session<'_> {
        let start = time::Instant::now();
        let stream = loop {
            match self.listener.accept() {
                Ok((stream, _)) => break stream,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            assert!(start.elapsed() < TIME_MAX, "no connection");
            std::thread::sleep(TICK);
        };
        stream.set_nonblocking(false).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(TICK)).unwrap();
        let (config, now) = (Arc::clone(&self.config), self.now());
        let connection = match &self.keys {
            None => Connection::null(config, now),
            Some(keys) => Connection::curve(config, Arc::clone(keys), &entropy(), now),
        };
        let items = std::collections::VecDeque::new();
        Session { server: self, stream, connection, received: Vec::new(), base: 0, items, allow: true }
    }
}

/// Random bytes of the system.
fn entropy() -> [u8; ENTROPY_LEN] {
    let mut bytes = [0; ENTROPY_LEN];
    std::fs::File::open("/dev/urandom").unwrap().read_exact(&mut bytes).unwrap();
    bytes
}

impl Session<'_> {
    pub fn counters(&self) -> &Counters {
        &self.server.counters
    }

    /// Lets time and bytes pass once; returns how the connection ended, if it did.
    pub fn turn(&mut self) -> Option<End> {
        let now = self.server.now();
        let timed_out = self.connection.on_timeout(now, &mut self.server.counters).err();
        self.send_control();
        let mut buffer = [0; 65536];
        match self.stream.read(&mut buffer) {
            Ok(0) => return Some(End::Closed),
            Ok(len) => self.received.extend_from_slice(&buffer[..len]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => return Some(End::Closed),
        }
        let failed = timed_out.or_else(|| self.receive().err());
        self.send_control();
        failed.map(End::Failed)
    }

    fn receive(&mut self) -> Result<(), ZmtpError> {
        let now = self.server.now();
        // Short slices, as a stream is made of segments.
        let slices: Vec<&[u8]> = self.received.chunks(1448).collect();
        let mut input = Cursor::new(self.base, slices.iter().copied());
        while let Some(item) = self.connection.next(now, &mut input, &mut self.server.counters)? {
            let got = keep(&item, self.base, &slices);
            if let Got::Authorise(_) = got {
                if self.allow {
                    self.connection.allow();
                } else {
                    self.connection.deny(&mut self.server.counters);
                }
            }
            self.items.push_back(got);
            if let Some(error) = self.connection.failure() {
                return Err(error);
            }
        }
        let released = self.connection.released();
        self.received.drain(..(released - self.base) as usize);
        self.base = released;
        Ok(())
    }

    fn send_control(&mut self) {
        let now = self.server.now();
        let mut buffer = [0; CONTROL_LEN_MAX];
        loop {
            let len = self.connection.transmit(now, &mut buffer, &mut self.server.counters).unwrap();
            if len == 0 {
                return;
            }
            // A peer that has closed is noticed when reading.
            let _ = self.stream.write_all(&buffer[..len]);
        }
    }

    /// Sends a message.
    pub fn send(&mut self, frames: &[&[u8]]) {
        self.send_control();
        for (at, body) in frames.iter().enumerate() {
            let more = at + 1 < frames.len();
            if self.connection.mechanism() == Mechanism::Null {
                self.stream.write_all(FrameHeader::message(body.len(), more).as_bytes()).unwrap();
                self.stream.write_all(body).unwrap();
                continue;
            }
            let mut out = vec![0; sealed_len(body.len())];
            let len = self.connection.encrypt(&[body], more, &mut out).unwrap();
            self.stream.write_all(&out[..len]).unwrap();
        }
    }

    /// Sends a subscription.
    pub fn subscribe(&mut self, topic: &[u8], subscribe: bool) {
        self.send_control();
        let mut out = vec![0; topic.len() + CONTROL_LEN_MAX];
        let len = self.connection.subscribe(topic, subscribe, &mut out).unwrap();
        self.stream.write_all(&out[..len]).unwrap();
    }

    /// Waits for the next item.
    pub fn next(&mut self) -> Got {
        let start = time::Instant::now();
        loop {
            if let Some(got) = self.items.pop_front() {
                return got;
            }
            let end = self.turn();
            assert!(end.is_none() || !self.items.is_empty(), "{end:?}");
            assert!(start.elapsed() < TIME_MAX, "no item");
        }
    }

    /// Waits until the connection ends; items are dropped.
    pub fn end(&mut self) -> End {
        let start = time::Instant::now();
        loop {
            if let Some(end) = self.turn() {
                return end;
            }
            assert!(start.elapsed() < TIME_MAX, "no end");
        }
    }

    /// Lets time pass until `done`.
    pub fn until(&mut self, done: impl Fn(&Counters) -> bool) {
        let start = time::Instant::now();
        while !done(self.counters()) {
            assert_eq!(self.turn(), None);
            assert!(start.elapsed() < TIME_MAX, "{:?}", self.counters());
        }
    }
}

/// A heartbeat configuration.
pub fn heartbeat(interval_ms: u64, timeout_ms: u64) -> Option<csp_zmtp::Heartbeat> {
    let (interval, timeout) = (Duration::from_millis(interval_ms), Duration::from_millis(timeout_ms));
    Some(csp_zmtp::Heartbeat { interval, timeout, ttl: Duration::from_secs(10) })
}
