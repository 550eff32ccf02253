//! An open loop: requests at a fixed rate on kept connections, whether or not earlier ones were answered.
//!
//! A request's latency is counted from when it was due, not from when a connection was free for it: a server
//! that stands still for a moment has that moment in its percentiles (wrk, which waits, has not).

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use serde::{Deserialize, Serialize};

use super::report::Sample;

/// Time after the last request in which answers may come.
const PATIENCE: Duration = Duration::from_secs(10);
const EVENTS_MAX: usize = 256;
/// Longest head of an answer in bytes.
const HEAD_LEN_MAX: usize = 8192;

/// What is offered.
#[derive(Clone, Debug)]
pub struct Offer {
    /// The server.
    pub server: SocketAddr,
    /// The path of the request.
    pub path: String,
    /// Requests a second.
    pub rate: u32,
    /// For how long.
    pub time: Duration,
    /// Connections.
    pub connections: usize,
}

/// What became of it.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Offered {
    /// Requests that were due.
    pub due: u64,
    /// Requests that were answered with 200.
    pub answered: u64,
    /// What went wrong first.
    pub wrong: Option<String>,
    /// Answers a second.
    pub rate: f64,
    /// Latency from when a request was due, in microseconds: 50, 90, 99 % and the longest.
    pub latency_us: [f64; 4],
}

impl From<Offered> for Sample {
    fn from(offered: Offered) -> Self {
        let [p50, p90, p99, _] = offered.latency_us;
        Sample {
            requests_per_second: offered.rate,
            latency_us: [p50, p90, p99],
            wrong: offered.wrong,
            ..Sample::default()
        }
    }
}

/// A connection, which has at most one request under way.
struct Connection {
    stream: TcpStream,
    /// When the request under way was due.
    due: Option<Instant>,
    /// The answer so far, up to the end of its head.
    head: Vec<u8>,
    /// Bytes of the body that are missing, once the head is complete.
    missing: Option<usize>,
}

/// Offers requests and waits for their answers.
///
/// # Errors
/// The server cannot be reached at all. What goes wrong later is part of what is returned.
pub fn run(offer: &Offer) -> Result<Offered> {
    let mut poll = Poll::new()?;
    let mut all = Vec::with_capacity(offer.connections);
    for at in 0..offer.connections {
        // Connected before the time begins.
        let stream = std::net::TcpStream::connect(offer.server).context("cannot connect")?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let mut stream = TcpStream::from_std(stream);
        poll.registry().register(&mut stream, Token(at), Interest::READABLE)?;
        all.push(Connection { stream, due: None, head: Vec::new(), missing: None });
    }
    let request = format!("GET {} HTTP/1.1\r\nHost: {}\r\n\r\n", offer.path, offer.server).into_bytes();
    let mut result = Offered::default();
    let mut latencies = Vec::with_capacity((f64::from(offer.rate) * offer.time.as_secs_f64()) as usize);
    let (mut events, mut free) = (Events::with_capacity(EVENTS_MAX), (0..all.len()).collect::<VecDeque<_>>());
    let mut waiting = VecDeque::new();
    let (begin, gap) = (Instant::now(), Duration::from_secs(1) / offer.rate.max(1));
    let wanted = (offer.time.as_nanos() / gap.as_nanos().max(1)) as u64;
    while result.answered < wanted {
        let now = Instant::now();
        if now > begin + offer.time + PATIENCE {
            result.wrong.get_or_insert(format!("{} of {wanted} were answered", result.answered));
            break;
        }
        while result.due < wanted && begin + gap * result.due as u32 <= now {
            waiting.push_back(begin + gap * result.due as u32);
            result.due += 1;
        }
        while let (Some(at), false) = (free.front().copied(), waiting.is_empty()) {
            free.pop_front();
            let connection = &mut all[at];
            connection.due = waiting.pop_front();
            connection.stream.write_all(&request).context("a request was not taken")?;
        }
        let next = begin + gap * result.due as u32;
        let wait = if result.due < wanted { next.saturating_duration_since(now) } else { PATIENCE };
        poll.poll(&mut events, Some(wait))?;
        for event in &events {
            let at = event.token().0;
            if let Some(due) = all[at].answered()? {
                latencies.push(due.elapsed().as_secs_f64() * 1e6);
                result.answered += 1;
                free.push_back(at);
            }
        }
    }
    result.rate = result.answered as f64 / begin.elapsed().as_secs_f64();
    latencies.sort_by(f64::total_cmp);
    let at = |share: f64| latencies.get((latencies.len() as f64 * share) as usize).or(latencies.last());
    result.latency_us = [0.5, 0.9, 0.99, 1.0].map(|share| at(share).copied().unwrap_or(f64::NAN));
    Ok(result)
}

impl Connection {
    /// Reads what has come. Returns when the request was due that is answered now.
    fn answered(&mut self) -> Result<Option<Instant>> {
        let mut bytes = [0; 16 << 10];
        loop {
            let len = match self.stream.read(&mut bytes) {
                Ok(0) => bail!("the server closed a connection"),
                Ok(len) => len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error).context("reading an answer"),
            };
            let mut body = len;
            if self.missing.is_none() {
                self.head.extend_from_slice(&bytes[..len]);
                let Some(end) = self.head.windows(4).position(|four| four == b"\r\n\r\n") else {
                    if self.head.len() > HEAD_LEN_MAX {
                        bail!("an answer's head has more than {HEAD_LEN_MAX} bytes");
                    }
                    continue;
                };
                body = self.head.len() - end - 4;
                self.missing = Some(body_len(&self.head[..end])?);
                self.head.clear();
            }
            let missing = self.missing.unwrap_or(0);
            let Some(missing) = missing.checked_sub(body) else {
                bail!("more bytes came than were asked for")
            };
            self.missing = Some(missing);
            if missing == 0 {
                self.missing = None;
                return self.due.take().map(Some).context("an answer came without a request");
            }
        }
    }
}

/// Returns the length of the body that a head announces.
fn body_len(head: &[u8]) -> Result<usize> {
    let head = String::from_utf8_lossy(head);
    if !head.starts_with("HTTP/1.1 200 ") {
        bail!("answered {:?}", head.lines().next().unwrap_or_default());
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    length.with_context(|| format!("an answer without its length:\n{head}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::io::{BufRead as _, BufReader};
    use std::net::TcpListener;

    use super::*;

    /// A server that answers every request on one connection, and stands still before the tenth.
    fn server(still: Duration) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let lines = BufReader::new(stream.try_clone().unwrap()).lines();
            for (at, line) in lines.map_while(Result::ok).filter(String::is_empty).enumerate() {
                if at == 10 {
                    std::thread::sleep(still);
                }
                stream
                    .write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{line}ok").as_bytes())
                    .unwrap();
            }
        });
        address
    }

    #[test]
    fn what_waits_behind_a_pause_has_the_pause_in_its_latency() {
        let still = Duration::from_millis(300);
        let offer = Offer {
            server: server(still),
            path: "/".to_owned(),
            rate: 200,
            time: Duration::from_millis(500),
            connections: 1,
        };
        let offered = run(&offer).unwrap();
        assert_eq!((offered.due, offered.answered, offered.wrong), (100, 100, None));
        // 60 of the 100 were due while it stood still: half of them waited for more than a tenth of a second.
        assert!(offered.latency_us[1] > 100_000.0, "{:?}", offered.latency_us);
    }

    #[test]
    fn a_wrong_answer_is_an_error() {
        assert!(body_len(b"HTTP/1.1 503 Busy\r\nContent-Length: 1").is_err());
        assert!(body_len(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked").is_err());
        assert_eq!(body_len(b"HTTP/1.1 200 OK\r\ncontent-length: 17").unwrap(), 17);
    }
}
