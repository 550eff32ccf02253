//! The programs at both ends of a stream of flights: plain TCP with the length of each message before it, in
//! 4 bytes.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant as Clock};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::work::{Chain, Job, LENGTHS, end, is_end, mark_end};
use crate::evaluation::Flights;

/// Bytes that are written, or read, at once.
const BUFFER: usize = 256 << 10;
const HEADER: usize = 4;
/// How long a program waits for the other end.
const PATIENCE: Duration = Duration::from_secs(30);

fn append(buffer: &mut Vec<u8>, message: &[u8]) {
    buffer.extend_from_slice(&(message.len() as u32).to_be_bytes());
    buffer.extend_from_slice(message);
}

/// What is sent.
enum Messages {
    Flights(Flights),
    /// Zeros.
    Plain(Vec<u8>),
}

impl Messages {
    fn next(&mut self) -> &[u8] {
        match self {
            Messages::Flights(flights) => flights.next(),
            Messages::Plain(message) => message,
        }
    }

    fn end(&mut self) -> Vec<u8> {
        match self {
            Messages::Flights(flights) => end(flights),
            Messages::Plain(message) => mark_end(message.clone()),
        }
    }
}

/// Sends flights, or messages of `len` bytes, for some seconds, `rate` a second or as fast as the receiver
/// takes them (0), and the end. Returns how many, and in which time.
///
/// # Errors
/// If the connection fails.
pub fn send(address: &str, seconds: f64, rate: f64, len: Option<usize>) -> Result<Value> {
    let mut stream = TcpStream::connect(address).with_context(|| address.to_owned())?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut messages = match len {
        None => Messages::Flights(Flights::new(1, LENGTHS)),
        Some(len) => Messages::Plain(vec![0; len]),
    };
    let mut buffer = Vec::with_capacity(BUFFER + HEADER + len.unwrap_or(LENGTHS.most));
    let (begin, mut sent) = (Clock::now(), 0u64);
    while begin.elapsed().as_secs_f64() < seconds {
        let due = match rate {
            0.0 => u64::MAX,
            rate => (begin.elapsed().as_secs_f64() * rate) as u64 + 1,
        };
        while sent < due && buffer.len() < BUFFER {
            append(&mut buffer, messages.next());
            sent += 1;
        }
        stream.write_all(&buffer)?;
        buffer.clear();
        if rate > 0.0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    append(&mut buffer, &messages.end());
    stream.write_all(&buffer)?;
    let took = begin.elapsed().as_secs_f64();
    stream.shutdown(std::net::Shutdown::Write)?;
    // The other end closes the connection when it has taken everything.
    let _ = stream.read(&mut [0; 1])?;
    Ok(json!({"sent": sent, "seconds": took}))
}

/// Returns the processor time of the calling process's first thread in nanoseconds.
fn cpu_ns() -> Result<u64> {
    let text = fs::read_to_string("/proc/self/schedstat")?;
    text.split(' ').next().and_then(|ns| ns.parse().ok()).with_context(|| format!("schedstat: {text:?}"))
}

/// What a receiver has made of its messages: an application reads each row.
#[derive(Default)]
struct Rows {
    count: u64,
    bytes: u64,
    sum: u64,
    ended: bool,
}

impl Rows {
    fn take(&mut self, row: &[u8]) {
        if is_end(row) {
            self.ended = true;
            return;
        }
        self.count += 1;
        self.bytes += row.len() as u64;
        let words = row.chunks_exact(8).filter_map(|word| word.try_into().ok()).map(u64::from_le_bytes);
        self.sum = words.fold(self.sum, u64::wrapping_add);
    }
}

/// Receives flights until their end, and does a job itself if there is one. Returns what it got, and its
/// processor time from the first message on.
///
/// # Errors
/// If the connection fails or ends before.
pub fn receive(address: &str, job: Option<Job>) -> Result<Value> {
    let mut chain = job.map(Chain::new).transpose()?;
    let mut stream = TcpStream::connect(address).with_context(|| address.to_owned())?;
    let mut buffer = vec![0; BUFFER];
    let (mut from, mut to) = (0, 0);
    let (mut rows, mut messages, mut bytes, mut begin) = (Rows::default(), 0u64, 0u64, None);
    while !rows.ended {
        let read = stream.read(&mut buffer[to..])?;
        if read == 0 {
            bail!("the stream has ended after {messages} messages");
        }
        if begin.is_none() {
            begin = Some((Clock::now(), cpu_ns()?));
        }
        (to, bytes) = (to + read, bytes + read as u64);
        while let Some((header, rest)) = buffer[from..to].split_first_chunk::<HEADER>() {
            let Some(message) = rest.get(..u32::from_be_bytes(*header) as usize) else { break };
            match &mut chain {
                Some(chain) => chain.process(message, &mut |row| rows.take(row)),
                None => rows.take(message),
            }
            messages += 1;
            from += HEADER + message.len();
        }
        buffer.copy_within(from..to, 0);
        (from, to) = (0, to - from);
    }
    let (began, cpu) = begin.context("there was no message")?;
    let (took, cpu) = (began.elapsed().as_secs_f64(), cpu_ns()? - cpu);
    Ok(
        json!({"messages": messages - 1, "bytes": bytes, "rows": rows.count, "row_bytes": rows.bytes, "sum": rows.sum, "seconds": took, "cpu_ns": cpu}),
    )
}
