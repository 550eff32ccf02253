//! A client with many connections at once that checks every response; in Rust, so that a test can specify a
//! number of requests instead of a time.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::RwLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::host::Host;

/// Timeout for a connection, a response or the end of a connection.
const PATIENCE: Duration = Duration::from_secs(60);
/// Stack size of a connection's thread.
const STACK: usize = 128 << 10;
/// Largest number of lines in a response's head.
const HEAD_LINES_MAX: usize = 64;

/// The requests.
#[derive(Clone, Debug)]
pub struct Crowd<'a> {
    /// The server.
    pub server: SocketAddr,
    /// The file's path, with its slash.
    pub path: &'a str,
    /// Its content.
    pub wanted: &'a [u8],
    /// Connections at once.
    pub connections: usize,
    /// Total number of requests.
    pub requests: usize,
    /// Whether a connection carries its share of all requests, or one request.
    pub kept: bool,
}

/// The result.
#[derive(Clone, Default, Debug)]
pub struct Outcome {
    /// Correct responses.
    pub answers: usize,
    /// Connections started.
    pub connections: usize,
    /// Failed connections, by stage and error.
    pub failures: BTreeMap<String, usize>,
}

impl Outcome {
    fn add(&mut self, other: Outcome) {
        self.answers += other.answers;
        self.connections += other.connections;
        for (what, count) in other.failures {
            *self.failures.entry(what).or_default() += count;
        }
    }
}

impl Crowd<'_> {
    /// Sends the requests from `client`, with a thread for each connection. All connect at the same moment.
    ///
    /// # Errors
    /// If the namespace cannot be entered or a thread cannot be started. Failed connections are part of the
    /// outcome.
    pub fn ask(&self, client: &Host) -> Result<Outcome> {
        let path = format!("/run/netns/{}", client.namespace());
        let namespace = File::open(&path).context(path)?;
        thread::scope(|scope| {
            let asking = scope.spawn(|| {
                // Only this thread enters the namespace; threads that it starts inherit it.
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
                self.ask_here()
            });
            asking.join().map_err(|_| anyhow!("the crowd's thread panicked"))?
        })
    }

    fn ask_here(&self) -> Result<Outcome> {
        let (left, gate) = (AtomicUsize::new(self.requests), RwLock::new(()));
        thread::scope(|scope| {
            let closed = gate.write();
            let mut all = Vec::new();
            for _ in 0..self.connections {
                let one = || {
                    drop(gate.read());
                    self.one(&left)
                };
                all.push(thread::Builder::new().stack_size(STACK).spawn_scoped(scope, one)?);
            }
            drop(closed);
            let mut outcome = Outcome::default();
            for thread in all {
                outcome.add(thread.join().map_err(|_| anyhow!("a connection's thread panicked"))?);
            }
            Ok(outcome)
        })
    }

    /// One thread: opens connections until all requests have been sent, or sends its share of the requests on
    /// one connection.
    fn one(&self, left: &AtomicUsize) -> Outcome {
        let take = || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok();
        let mut outcome = Outcome::default();
        let mut share = self.requests / self.connections;
        while if self.kept { share > 0 } else { take() } {
            let count = if self.kept { share } else { 1 };
            let mut answered = 0;
            outcome.connections += 1;
            if let Err((stage, error)) = self.connection(count, &mut answered) {
                *outcome.failures.entry(format!("{stage}: {error}")).or_default() += 1;
                // The rest of the share is sent on another connection; the failed request is not repeated.
                share = share.saturating_sub(1);
            }
            outcome.answers += answered;
            share = share.saturating_sub(answered);
        }
        outcome
    }

    fn connection(&self, count: usize, answered: &mut usize) -> Result<(), (&'static str, io::Error)> {
        let connect = || -> io::Result<BufReader<TcpStream>> {
            let stream = TcpStream::connect_timeout(&self.server, PATIENCE)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            stream.set_nodelay(true)?;
            Ok(BufReader::new(stream))
        };
        let mut stream = connect().map_err(|error| ("connect", error))?;
        let last = if self.kept { "" } else { "Connection: close\r\n" };
        let request = format!("GET {} HTTP/1.1\r\nHost: {}\r\n{last}\r\n", self.path, self.server);
        for _ in 0..count {
            stream.get_mut().write_all(request.as_bytes()).map_err(|error| ("request", error))?;
            self.answer(&mut stream).map_err(|error| ("answer", error))?;
            *answered += 1;
        }
        if !self.kept {
            match stream.read(&mut [0]) {
                Ok(0) => {}
                Ok(_) => return Err(("end", wrong("bytes behind the answer".to_owned()))),
                Err(error) => return Err(("end", error)),
            }
        }
        Ok(())
    }

    fn answer(&self, stream: &mut BufReader<TcpStream>) -> io::Result<()> {
        let mut length = None;
        for at in 0..HEAD_LINES_MAX {
            let mut line = String::new();
            if stream.read_line(&mut line)? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let line = line.trim_end();
            if at == 0 && !line.starts_with("HTTP/1.1 200 ") {
                return Err(wrong(format!("status {line:?}")));
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("Content-Length")
            {
                length = value.trim().parse::<usize>().ok();
            }
            if line.is_empty() {
                break;
            }
        }
        if length != Some(self.wanted.len()) {
            return Err(wrong(format!("a length of {length:?}, not {}", self.wanted.len())));
        }
        let mut body = vec![0; self.wanted.len()];
        stream.read_exact(&mut body)?;
        if body == self.wanted { Ok(()) } else { Err(wrong("other bytes than the file's".to_owned())) }
    }
}

fn wrong(what: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}
