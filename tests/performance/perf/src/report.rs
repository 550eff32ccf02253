//! The results, as text and as JSON.

use std::fmt::Write;

use hdrhistogram::Histogram;
use serde::Serialize;

/// One measured point.
pub struct Point {
    /// Bytes of each request (or message of a stream).
    pub request: u32,
    /// Bytes of each reply; `None`: a stream.
    pub reply: Option<u32>,
    /// How both ends waited.
    pub waiting: &'static str,
    /// Transactions, or messages.
    pub messages: u64,
    /// How long all of them took.
    pub nanos: u64,
    /// Processor time of the client for each, in nanoseconds.
    pub client_cpu_ns: f64,
    /// Processor time of the server for each, in nanoseconds.
    pub server_cpu_ns: f64,
    /// Times of transactions in nanoseconds; `None`: a stream.
    pub histogram: Option<Histogram<u64>>,
}

/// Percentiles that are reported.
const PERCENTILES: [f64; 5] = [10.0, 50.0, 90.0, 99.0, 99.9];

/// Largest number of lines of a drawn histogram, and the width of its longest bar.
const LINES: usize = 20;
const BAR_LEN: u64 = 50;

/// A point as JSON. Times in nanoseconds.
#[derive(Serialize)]
struct Record<'a> {
    transport: &'a str,
    test: &'static str,
    waiting: &'static str,
    request_bytes: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    reply_bytes: Option<u32>,
    messages: u64,
    seconds: f64,
    messages_per_second: f64,
    bytes_per_second: f64,
    client_cpu_ns: f64,
    server_cpu_ns: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    transaction_ns: Option<Times>,
    /// `transaction_ns.p50` / 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    half_round_trip_ns: Option<f64>,
    /// `[upper bound in ns, count]`, without empty buckets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    histogram: Vec<(u64, u64)>,
}

#[derive(Serialize)]
struct Times {
    min: u64,
    p10: u64,
    p50: u64,
    p90: u64,
    p99: u64,
    p999: u64,
    max: u64,
}

impl Point {
    fn seconds(&self) -> f64 {
        self.nanos as f64 / 1e9
    }

    fn bytes_per_second(&self) -> f64 {
        let each = u64::from(self.request) + u64::from(self.reply.unwrap_or(0));
        self.messages as f64 * each as f64 / self.seconds()
    }

    /// Returns the median transaction in nanoseconds; for a stream the mean time of a message.
    pub fn time(&self) -> f64 {
        match &self.histogram {
            Some(histogram) => histogram.value_at_quantile(0.5) as f64,
            None => self.nanos as f64 / self.messages as f64,
        }
    }

    /// Returns the processor time of both ends per transaction or message, in nanoseconds.
    pub fn cpu(&self) -> f64 {
        self.client_cpu_ns + self.server_cpu_ns
    }

    fn record<'a>(&self, transport: &'a str) -> Record<'a> {
        let times = self.histogram.as_ref().map(|h| {
            let [p10, p50, p90, p99, p999] = PERCENTILES.map(|p| h.value_at_percentile(p));
            Times { min: h.min(), p10, p50, p90, p99, p999, max: h.max() }
        });
        let buckets = self.histogram.iter().flat_map(|h| h.iter_log(100, 1.25));
        Record {
            transport,
            test: if self.reply.is_some() { "transactions" } else { "stream" },
            waiting: self.waiting,
            request_bytes: self.request,
            reply_bytes: self.reply,
            messages: self.messages,
            seconds: self.seconds(),
            messages_per_second: self.messages as f64 / self.seconds(),
            bytes_per_second: self.bytes_per_second(),
            client_cpu_ns: self.client_cpu_ns,
            server_cpu_ns: self.server_cpu_ns,
            half_round_trip_ns: times.as_ref().map(|times| times.p50 as f64 / 2.0),
            transaction_ns: times,
            histogram: buckets
                .map(|bucket| (bucket.value_iterated_to(), bucket.count_since_last_iteration()))
                .filter(|(_, count)| *count > 0)
                .collect(),
        }
    }

    /// Returns the point as one JSON value.
    pub fn json(&self, transport: &str) -> serde_json::Result<serde_json::Value> {
        serde_json::to_value(self.record(transport))
    }

    /// Returns the point as a line of the table that [`header`] starts. `first`: the same point of the first
    /// transport.
    pub fn line(&self, transport: &str, first: Option<&Point>) -> String {
        let ratio = |of: fn(&Point) -> f64| match first {
            Some(first) => format!("{:>8.2}", of(self) / of(first)),
            None => format!("{:>8}", ""),
        };
        let size = match self.reply {
            Some(reply) => format!("{} / {reply}", self.request),
            None => self.request.to_string(),
        };
        let mut line = format!("{transport:<6} {:<5} {size:>15}", self.waiting);
        match &self.histogram {
            Some(h) => {
                let us = |p| h.value_at_percentile(p) as f64 / 1e3;
                let _ = write!(
                    line,
                    " {:>9.3} {:>9.2} {:>9.2} {:>9.2}",
                    us(50.0) / 2.0,
                    us(50.0),
                    us(99.0),
                    us(99.9)
                );
            }
            None => {
                let _ = write!(line, " {:>9} {:>9.3} {:>9} {:>9}", "", self.time() / 1e3, "", "");
            }
        }
        let _ = write!(line, " {:>9.1} {:>9.2}", self.bytes_per_second() / 1e6, self.cpu() / 1e3);
        line + &ratio(Point::time) + &ratio(Point::cpu)
    }

    /// Returns the distribution of transaction times as bars.
    pub fn bars(&self) -> String {
        let Some(histogram) = &self.histogram else { return String::new() };
        let low = histogram.value_at_quantile(0.001).max(1);
        let high = histogram.value_at_quantile(0.999).max(low + 1);
        // As many steps as fit, each slightly wider than the one before.
        let ratio = (high as f64 / low as f64).powf(1.0 / LINES as f64).max(1.02);
        let buckets: Vec<(u64, u64)> = histogram
            .iter_log(low, ratio)
            .map(|b| (b.value_iterated_to(), b.count_since_last_iteration()))
            .take(LINES + 2)
            .collect();
        let most = buckets.iter().map(|(_, count)| *count).max().unwrap_or(1).max(1);
        let mut out = String::new();
        for (until, count) in buckets {
            let bar = "#".repeat((count * BAR_LEN).div_ceil(most) as usize);
            let share = 100.0 * count as f64 / histogram.len() as f64;
            let _ = writeln!(out, "  <= {:>11.3} us {share:>6.2} % {bar}", until as f64 / 1e3);
        }
        out
    }
}

/// Returns the head of the table.
pub fn header(several: bool) -> String {
    let mut head = format!(
        "{:<6} {:<5} {:>15} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "over", "wait", "bytes", "half us", "p50 us", "p99 us", "p99.9 us", "MB/s", "CPU us"
    );
    if several {
        let _ = write!(head, "{:>8}{:>8}", "x time", "x CPU");
    }
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point() -> Point {
        let mut histogram = Histogram::new_with_bounds(1, 1_000_000, 3).unwrap();
        (1..=1000u64).for_each(|n| histogram.record(n * 10).unwrap());
        Point {
            request: 256,
            reply: Some(744),
            waiting: "poll",
            messages: 1000,
            nanos: 5_000_000,
            client_cpu_ns: 100.0,
            server_cpu_ns: 50.0,
            histogram: Some(histogram),
        }
    }

    #[test]
    fn a_transaction_is_reported_with_its_percentiles_rate_and_processor_time() {
        let json = point().json("shm").unwrap();
        let near =
            |value: &serde_json::Value, wanted: f64| (value.as_f64().unwrap() / wanted - 1.0).abs() < 0.01;
        assert!(near(&json["transaction_ns"]["p50"], 5000.0) && near(&json["half_round_trip_ns"], 2500.0));
        assert!(near(&json["transaction_ns"]["p99"], 9900.0) && near(&json["bytes_per_second"], 2e8));
        let all: u64 = json["histogram"].as_array().unwrap().iter().map(|b| b[1].as_u64().unwrap()).sum();
        assert_eq!(all, 1000);
        let line = point().line("shm", Some(&Point { nanos: 1, ..point() }));
        assert!(line.contains("256 / 744") && line.ends_with("    1.00    1.00"), "{line}");
        assert!(point().bars().lines().count() > 5);
    }
}
