//! Metered connections send for the first time what they were allowed to, and nothing is lost or stuck for
//! it.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use std::time::Duration;

use common::{Net, client_tuple, seeds, small_config, stream_byte};
use csp_tcp::Event;
use csp_types::FlowLabel;

/// A bulk writer whose connection is allowed `piece` bytes at most at once, `rate` bytes a second.
struct Metered {
    net: Net,
    label: FlowLabel,
    piece: u32,
    rate: u64,
    /// Bytes allowed so far, and when the next may be.
    allowed: u64,
    next: csp_types::Instant,
    /// What was asked for and not yet allowed.
    wanted: Option<u32>,
    written: u64,
    read: u64,
    finished: bool,
}

impl Metered {
    fn new(seed: u64, loss: f64, piece: u32, rate: u64) -> Self {
        let mut net = Net::new(seed, small_config(1), small_config(2)).with_rtt(Duration::from_millis(4));
        net.faults[0].loss = loss;
        net.faults[1].loss = loss;
        let label = net.hosts[0].stack.connect(net.now, client_tuple(1000), 7, 1).unwrap();
        assert!(net.hosts[0].stack.set_metered(net.now, label, true));
        let next = net.now;
        Metered {
            net,
            label,
            piece,
            rate,
            allowed: 0,
            next,
            wanted: None,
            written: 0,
            read: 0,
            finished: false,
        }
    }

    /// Runs until `bytes` and FIN have arrived, or for so long that no retransmission timer can be the
    /// reason.
    fn run(&mut self, bytes: u64) {
        let (end, mut server) = (self.net.now + Duration::from_secs(3600), None);
        while self.net.now < end && !(self.finished && self.read == bytes) {
            while self.net.hosts[0].stack.poll_event().is_some() {}
            while self.written < bytes {
                let len = (bytes - self.written).min(1 << 14);
                let chunk: Vec<u8> = (0..len).map(|i| stream_byte(9, self.written + i)).collect();
                let taken = self.net.hosts[0].stack.write(self.net.now, self.label, &chunk) as u64;
                self.written += taken;
                if self.written == bytes {
                    self.net.hosts[0].stack.shutdown(self.net.now, self.label);
                }
                if taken < len {
                    break;
                }
            }
            while {
                self.net.flush();
                self.meter()
            } {}
            while let Some((label, event)) = self.net.hosts[1].stack.poll_event() {
                server = server.or(matches!(event, Event::Established { .. }).then_some(label));
                self.finished |= event == Event::PeerFinished;
            }
            if let Some(server) = server {
                let read = &mut self.read;
                self.net.hosts[1].stack.read_with(self.net.now, server, usize::MAX, |slice| {
                    for byte in slice {
                        assert_eq!(*byte, stream_byte(9, *read));
                        *read += 1;
                    }
                    slice.len()
                });
            }
            while {
                self.net.flush();
                self.meter()
            } {}
            let limit = if self.wanted.is_some() { self.next.min(end) } else { end };
            self.net.step(limit);
        }
    }

    /// Asks what the connection wants, and allows it at the rate. Returns whether it was allowed anything.
    fn meter(&mut self) -> bool {
        let (now, stack) = (self.net.now, &mut self.net.hosts[0].stack);
        if let Some((label, tuple, bytes)) = stack.next_wanting() {
            assert!(label == self.label && tuple.remote.port() > 0 && self.wanted.is_none());
            self.wanted = Some(bytes);
        }
        let allowed = self.allowed;
        if let Some(bytes) = self.wanted.filter(|_| now >= self.next) {
            let bytes = bytes.min(self.piece);
            assert!(stack.allow(now, self.label, bytes));
            self.allowed += u64::from(bytes);
            self.next = now + Duration::from_nanos(u64::from(bytes) * 1_000_000_000 / self.rate);
            self.wanted = None;
        }
        let counters = self.net.hosts[0].stack.counters();
        let first = counters.bytes_sent - counters.bytes_retransmitted;
        assert!(first <= self.allowed, "{first} bytes were sent, {} were allowed", self.allowed);
        self.allowed > allowed
    }
}

#[test]
fn nothing_is_sent_before_it_was_allowed_and_all_of_it_arrives() {
    for seed in seeds(300) {
        let (loss, piece) = ([0.0, 0.01, 0.1][seed as usize % 3], [700, 1460, 16_384][seed as usize / 3 % 3]);
        let mut metered = Metered::new(seed, loss, piece, 4_000_000);
        metered.run(100_000);
        assert!(metered.finished && metered.read == 100_000, "seed {seed}: {} bytes", metered.read);
    }
}

#[test]
fn the_rate_is_that_at_which_it_is_allowed() {
    let mut metered = Metered::new(1, 0.0, 16_384, 1_000_000);
    let start = metered.net.now;
    metered.run(1_000_000);
    let took = (metered.net.now - start).as_secs_f64();
    assert!(metered.finished && (0.95..1.1).contains(&took), "{took} s");
}

#[test]
fn metering_that_ends_lets_go_what_waits() {
    let mut metered = Metered::new(2, 0.0, 1, 1);
    let now = metered.net.now;
    // One byte a second: hardly anything passes.
    let stop = now + Duration::from_secs(5);
    metered.next = stop;
    let stack = &mut metered.net.hosts[0].stack;
    assert!(stack.set_metered(now, metered.label, false));
    assert!(!stack.set_metered(now, FlowLabel::NONE, true), "a stale label");
    metered.allowed = u64::MAX;
    metered.run(200_000);
    assert!(metered.finished && metered.net.now < stop, "it was not held back");
}
