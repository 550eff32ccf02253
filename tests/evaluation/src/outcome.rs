//! What a run measured.

use serde::Serialize;

use crate::{MICROSECOND, Picoseconds, SECOND};

/// What a run measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// Transactions that were started.
    pub started: u64,
    /// Transactions that were completed.
    pub completed: u64,
    /// Transactions that were on their way at the end.
    pub in_flight: u64,
    /// Completed transactions a second, without those of the warm-up.
    pub transactions_per_second: f64,
    /// Virtual seconds of the whole run.
    pub seconds: f64,
    /// Latency of the measured transactions: from the client's first packet to the last of the response.
    pub latency: Latency,
    /// Mean number of transactions on their way.
    pub mean_in_flight: f64,
    /// Mean latency of all completed transactions, microseconds.
    pub mean_latency_us: f64,
    /// Use of processors and links.
    pub use_of: Use,
    /// What was counted at each place.
    pub counted: Counted,
    /// Events that the run took.
    pub events: u64,
}

/// Latency in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 90 of 100 took no longer.
    pub p90_us: f64,
    /// 99 of 100 took no longer.
    pub p99_us: f64,
}

/// Share of time that processors and links are in use; more than 1 is a queue that grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Use {
    /// Processors of network nodes, on average.
    pub network: f64,
    /// Processors of proxy nodes.
    pub proxy: f64,
    /// Processors of application nodes.
    pub application: f64,
    /// Links from the clients.
    pub lan_in: f64,
    /// Links to the clients.
    pub lan_out: f64,
    /// The SAN link that is used most.
    pub busiest_san_link: f64,
}

/// Numbers that have to agree with each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counted {
    /// Bytes of responses, heads included, of all transactions started.
    pub bytes_requested: u64,
    /// Bytes that application nodes sent.
    pub bytes_sent: u64,
    /// Bytes that proxy nodes relayed.
    pub bytes_relayed: u64,
    /// Bytes that clients received.
    pub bytes_received: u64,
    /// Packets that clients sent.
    pub packets_from_clients: u64,
    /// Packets that proxies received from network nodes.
    pub packets_at_proxies: u64,
    /// Packets that proxies sent.
    pub packets_from_proxies: u64,
    /// Packets that clients received.
    pub packets_at_clients: u64,
    /// Messages that proxies and application nodes sent each other.
    pub messages_sent: u64,
    /// Messages that they received.
    pub messages_received: u64,
    /// Packets of the SAN, of all links to the switch.
    pub san_packets: u64,
    /// Bytes of time on all links to the clients.
    pub lan_out_wire_bytes: u64,
    /// Bytes of time on all links from the clients.
    pub lan_in_wire_bytes: u64,
    /// Processor time of the network nodes, picoseconds.
    pub network_busy: u64,
    /// Processor time of the proxy nodes, picoseconds.
    pub proxy_busy: u64,
    /// Processor time of the application nodes, picoseconds.
    pub application_busy: u64,
    /// Time on the SAN links of network nodes, towards the switch and from it, picoseconds.
    pub san_network_busy: [u64; 2],
    /// The same of proxy nodes.
    pub san_proxy_busy: [u64; 2],
    /// The same of application nodes.
    pub san_application_busy: [u64; 2],
}

impl Latency {
    /// Summarises latencies in picoseconds.
    pub fn of(mut all: Vec<Picoseconds>) -> Self {
        all.sort_unstable();
        let Some(last) = all.len().checked_sub(1) else { return Latency::default() };
        let at = |share: f64| all[(last as f64 * share).round() as usize] as f64 / MICROSECOND;
        let mean = all.iter().map(|time| *time as f64).sum::<f64>() / all.len() as f64 / MICROSECOND;
        Latency { mean_us: mean, p50_us: at(0.5), p90_us: at(0.9), p99_us: at(0.99) }
    }
}

/// Completions during a run.
#[derive(Debug, Default)]
pub(crate) struct Completions {
    latencies: Vec<Picoseconds>,
    completed: u64,
    warm_up: u64,
    since: Picoseconds,
    until: Picoseconds,
    all_latency: f64,
    in_flight: u64,
    changed: Picoseconds,
    area: f64,
}

impl Completions {
    pub(crate) fn new(warm_up: u32) -> Self {
        Completions { warm_up: u64::from(warm_up), ..Completions::default() }
    }

    pub(crate) fn started(&mut self, now: Picoseconds) {
        self.count(now);
        self.in_flight += 1;
    }

    pub(crate) fn completed(&mut self, started: Picoseconds, now: Picoseconds) {
        self.count(now);
        self.in_flight -= 1;
        self.completed += 1;
        self.all_latency += (now - started) as f64;
        self.until = now;
        match self.completed <= self.warm_up {
            true => self.since = now,
            false => self.latencies.push(now - started),
        }
    }

    fn count(&mut self, now: Picoseconds) {
        self.area += self.in_flight as f64 * (now - self.changed) as f64;
        self.changed = now;
    }

    pub(crate) fn number(&self) -> u64 {
        self.completed
    }

    /// Fills in the parts of an outcome that are about completions.
    pub(crate) fn outcome(
        self,
        seed: u64,
        started: u64,
        counted: Counted,
        use_of: Use,
        events: u64,
    ) -> Outcome {
        let measured = self.latencies.len() as f64;
        let time = (self.until - self.since).max(1) as f64;
        Outcome {
            seed,
            started,
            completed: self.completed,
            in_flight: self.in_flight,
            transactions_per_second: measured / (time / SECOND),
            seconds: self.until as f64 / SECOND,
            latency: Latency::of(self.latencies),
            mean_in_flight: self.area / self.changed.max(1) as f64,
            mean_latency_us: self.all_latency / (self.completed.max(1) as f64) / MICROSECOND,
            use_of,
            counted,
            events,
        }
    }
}
