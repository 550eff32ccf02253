//! The broker behind TCP on loopback, for programs of ZeroMQ: one thread, all connections.
#![allow(clippy::disallowed_types, reason = "the test owns the sockets and the clock, not the crate")]

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time;

use csp_proxy_core::service::local::{LocalServices as _, Step};
use csp_quality::OutputLink;
use csp_services::{ChannelSpec, MessageBroker, MessagesPolicy};
use csp_types::{CurvePublicKey, FourTuple, Instant};

use super::{CHANNEL, End, READER, SERVER, WRITER, World, broker, config, keyed_channel, public, ready};

/// Longest time that a test takes; a program that is not done is killed.
pub const TIME_MAX: time::Duration = time::Duration::from_secs(60);
/// Bytes that may wait for a socket.
const ROOM: usize = 256 * 1024;
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

/// A key, public or secret, as text.
pub fn text(key: [u8; 32]) -> String {
    CurvePublicKey(key).to_string()
}

/// The arguments of a program with the key pair of `secret` that knows the server as `server`.
pub fn keys(server: [u8; 32], secret: [u8; 32]) -> [String; 3] {
    [text(server), text(public(secret)), text(secret)]
}

/// A program that is killed with its owner.
pub struct Program {
    child: Child,
    /// What it has printed, line by line.
    lines: std::sync::mpsc::Receiver<String>,
}

impl Program {
    /// Starts `tests/peer.py` at the server's port; `keys` are those of [`keys`], or none.
    pub fn start(server: &Server, name: &str, keys: &[String], arguments: &[&str]) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peer.py");
        let mut command = Command::new(PYTHON);
        command.arg(script).arg(server.port().to_string()).arg(name).arg(keys.join(" ")).args(arguments);
        Self::run(command)
    }

    /// Starts a program that is given as text, in a folder.
    pub fn start_text(text: &str, folder: &Path) -> Self {
        let mut command = Command::new(PYTHON);
        command.arg("-uc").arg(text).current_dir(folder);
        Self::run(command)
    }

    fn run(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = std::sync::mpsc::channel();
        let out = std::io::BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            use std::io::BufRead as _;
            out.lines().map_while(Result::ok).try_for_each(|line| sender.send(line).map_err(drop))
        });
        Program { child, lines }
    }

    /// Gives the program a line, for which it waits.
    pub fn give(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Serves until the program prints its next line, which is returned.
    pub fn line(&self, server: &mut Server) -> String {
        let mut line = None;
        server.until(|_| {
            line = self.lines.try_recv().ok();
            line.is_some()
        });
        line.unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A listener, the broker and its connections.
pub struct Server {
    listener: TcpListener,
    /// Listeners of other channels, each with its number.
    others: Vec<(TcpListener, u32)>,
    pub broker: MessageBroker,
    connections: BTreeMap<u32, (TcpStream, End)>,
    start: time::Instant,
    next: u32,
}

impl Server {
    pub fn new(spec: ChannelSpec) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let (connections, start) = (BTreeMap::new(), time::Instant::now());
        let others = Vec::new();
        Server { listener, others, broker: broker(config(), spec), connections, start, next: 1 }
    }

    /// Listens for another channel; returns the address.
    pub fn listen(&mut self, number: u32) -> std::net::SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        self.others.push((listener, number));
        address
    }

    /// Puts a policy into force.
    pub fn apply(&mut self, policy: &MessagesPolicy) {
        let now = self.now();
        self.broker.apply(now, policy).unwrap();
    }

    pub fn port(&self) -> u16 {
        self.listener.local_addr().unwrap().port()
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.start.elapsed().as_nanos() as u64)
    }

    /// Serves until `done`.
    pub fn until(&mut self, mut done: impl FnMut(&MessageBroker) -> bool) {
        let start = time::Instant::now();
        while !done(&self.broker) {
            assert!(start.elapsed() < TIME_MAX, "{:?} {:?}", self.broker.zmtp(), self.broker.refusals());
            if !self.turn() {
                std::thread::sleep(time::Duration::from_millis(1));
            }
        }
    }

    /// Ends all connections, as a proxy that is started anew.
    pub fn hang_up(&mut self) {
        for n in self.connections.keys().copied().collect::<Vec<_>>() {
            self.end(n);
        }
    }

    fn end(&mut self, n: u32) {
        if self.connections.remove(&n).is_some() {
            self.broker.gone(self.now(), World::label(n));
        }
    }

    /// Moves bytes once; returns whether there were any.
    pub fn turn(&mut self) -> bool {
        let mut moved = self.accept();
        let now = self.now();
        if self.broker.next_timeout().is_some_and(|at| at <= now) {
            self.broker.on_timeout(now);
        }
        let mut buffer = [0; 65_536];
        for n in self.connections.keys().copied().collect::<Vec<_>>() {
            let Some((stream, end)) = self.connections.get_mut(&n) else { continue };
            match stream.read(&mut buffer) {
                Ok(0) => end.finished = true,
                Ok(len) => {
                    end.arrived.extend_from_slice(&buffer[..len]);
                    moved = true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => end.finished = true,
            }
            if !end.arrived.is_empty() || end.finished || !end.sent.is_empty() {
                moved |= self.serve(n);
            }
        }
        for label in ready(&mut self.broker, now) {
            moved |= self.serve(label.index() as u32);
        }
        moved
    }

    fn accept(&mut self) -> bool {
        let listeners = std::iter::once((&self.listener, CHANNEL));
        let mut all = listeners.chain(self.others.iter().map(|(listener, number)| (listener, *number)));
        let accepted = all.find_map(|(listener, number)| Some((listener.accept().ok()?, number)));
        let Some(((stream, remote), number)) = accepted else { return false };
        stream.set_nonblocking(true).unwrap();
        stream.set_nodelay(true).unwrap();
        let n = self.next;
        self.next += 1;
        let tuple = FourTuple { local: stream.local_addr().unwrap(), remote };
        if self.broker.connected(self.now(), World::label(n), number, tuple) {
            self.connections.insert(n, (stream, End::default()));
            self.serve(n);
        }
        true
    }

    fn serve(&mut self, n: u32) -> bool {
        let now = self.now();
        let Some((stream, end)) = self.connections.get_mut(&n) else { return false };
        end.room = ROOM.saturating_sub(end.sent.len());
        let step = self.broker.serve(now, World::label(n), end, &mut OutputLink::default());
        if let Ok(written) = stream.write(&end.sent) {
            end.sent.drain(..written);
        }
        if matches!(step, Step::Close | Step::Reset) {
            self.end(n);
        }
        step != Step::Idle
    }
}

/// Subscriptions of the channel.
pub fn subscriptions(broker: &MessageBroker) -> usize {
    broker.snapshots().iter().map(|channel| channel.status.subscriptions.entries as usize).sum()
}

/// Programs with so many subscribers each, under CURVE; each of these gets every message, before and after
/// all connections have ended.
pub fn crowd(programs: &[usize], messages: usize) {
    if !has_pyzmq() {
        return;
    }
    let (mut server, peers) = (Server::new(keyed_channel()), programs.iter().sum::<usize>());
    let start = |count: &usize| {
        Program::start(&server, "crowd", &keys(public(SERVER), READER), &[&count.to_string(), "2"])
    };
    let crowd: Vec<Program> = programs.iter().map(start).collect();
    let mut writer = Program::start(&server, "publish", &keys(public(SERVER), WRITER), &[]);
    for _ in 0..2 {
        assert_eq!(writer.line(&mut server), "connected");
        server.until(|b| subscriptions(b) == peers && b.snapshots()[0].senders == 1);
        for n in 0..messages {
            writer.give(&format!("message-{n}"));
        }
        writer.give("end");
        for (program, count) in crowd.iter().zip(programs) {
            assert_eq!(program.line(&mut server), format!("{count} {}", count * messages));
        }
        assert_eq!(server.broker.snapshots()[0].status.counters.dropped_newest, 0);
        server.hang_up();
        writer.give("?");
    }
}
