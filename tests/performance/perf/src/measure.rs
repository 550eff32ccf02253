//! The measurements: transactions and streams.

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;

use crate::end::{End, MESSAGE_LEN_MAX, Request, Waiting};
use crate::report::Point;
use crate::usage::{now, processor_time};

/// Transactions between two readings of the clock, if one takes less than [`SHORT_NS`]: a reading takes some
/// 25 ns.
const BATCH: u64 = 10;
const SHORT_NS: u64 = 10_000;

/// The longest transaction that the histogram distinguishes, in nanoseconds.
const LONGEST_NS: u64 = 60_000_000_000;

/// A measuring end and its buffers.
pub struct Client {
    end: Box<dyn End>,
    out: Vec<u8>,
    into: Vec<u8>,
    waiting: Waiting,
}

impl Client {
    pub fn new(end: Box<dyn End>) -> Self {
        let (out, into) = (vec![0xa5; MESSAGE_LEN_MAX], vec![0; MESSAGE_LEN_MAX]);
        Client { end, out, into, waiting: Waiting::Block }
    }

    /// Sets how both ends wait from now on.
    pub fn set_waiting(&mut self, waiting: Waiting) -> Result<()> {
        self.end.set_waiting(waiting)?;
        self.waiting = waiting;
        self.ask(Request::Wait(waiting), 0).map(drop)
    }

    fn ask(&mut self, request: Request, len: usize) -> Result<usize> {
        self.end.send(request.tag(), &self.out[..len])?;
        let answer = self.end.receive(&mut self.into)?;
        Ok(answer.context("the server went away")?.0)
    }

    /// Returns the processor time that the server has used, after it has received everything sent before.
    fn server_time(&mut self) -> Result<u64> {
        let len = self.ask(Request::Usage, 0)?;
        ensure!(len == 8, "the server's answer has {len} bytes");
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.into[..8]);
        Ok(u64::from_le_bytes(bytes))
    }

    fn transact(&mut self, request: u32, reply: u32) -> Result<()> {
        let len = self.ask(Request::Reply(reply), request as usize)?;
        ensure!(len == reply as usize, "a reply of {len} bytes instead of {reply}");
        Ok(())
    }

    /// Runs transactions of `request` and `reply` bytes, one after the other, for this time.
    pub fn transactions(&mut self, request: u32, reply: u32, seconds: f64) -> Result<Point> {
        let length = (seconds * 1e9) as u64;
        let start = now();
        let mut warm = 0u64;
        while now() - start < length / 10 || warm < 10 {
            self.transact(request, reply)?;
            warm += 1;
        }
        let batch = if (now() - start) / warm < SHORT_NS { BATCH } else { 1 };
        let mut histogram = Histogram::new_with_bounds(1, LONGEST_NS, 3)?;
        let used_there = self.server_time()?;
        let (used_here, start) = (processor_time(), now());
        let mut before = start;
        while before - start < length {
            for _ in 0..batch {
                self.transact(request, reply)?;
            }
            let after = now();
            histogram.saturating_record((after - before) / batch);
            before = after;
        }
        let count = histogram.len() * batch;
        let used_here = processor_time() - used_here;
        let used_there = self.server_time()?.saturating_sub(used_there);
        Ok(Point {
            request,
            reply: Some(reply),
            waiting: self.waiting.name(),
            messages: count,
            nanos: before - start,
            client_cpu_ns: used_here as f64 / count as f64,
            server_cpu_ns: used_there as f64 / count as f64,
            histogram: Some(histogram),
        })
    }

    /// Sends messages of `len` bytes as fast as the server receives them, for this time.
    pub fn stream(&mut self, len: u32, seconds: f64) -> Result<Point> {
        let length = (seconds * 1e9) as u64;
        let used_there = self.server_time()?;
        let (used_here, start) = (processor_time(), now());
        let mut count = 0u64;
        while now() - start < length {
            for _ in 0..BATCH {
                self.end.send(Request::Take.tag(), &self.out[..len as usize])?;
            }
            count += BATCH;
        }
        let used_there = self.server_time()?.saturating_sub(used_there);
        let (used_here, nanos) = (processor_time() - used_here, now() - start);
        Ok(Point {
            request: len,
            reply: None,
            waiting: self.waiting.name(),
            messages: count,
            nanos,
            client_cpu_ns: used_here as f64 / count as f64,
            server_cpu_ns: used_there as f64 / count as f64,
            histogram: None,
        })
    }
}
