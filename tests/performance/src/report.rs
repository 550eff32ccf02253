//! The results of the scale test, as text and as JSON.

use std::fmt;

use serde::Serialize;

use crate::load::Outcome;

/// The whole result.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Connections held open at once.
    pub connections: usize,
    /// Opening them, with one request and response each.
    pub opened: Outcome,
    /// One more request and response on each.
    pub exchanged: Outcome,
    /// Requested rate of additional new connections per second.
    pub churn_rate: usize,
    /// Results of these connections.
    pub churned: Outcome,
    /// One more request and response on each of the kept connections.
    pub exchanged_after: Outcome,
    /// Processor time of network node and proxy node per operation of each phase, in microseconds: opening,
    /// exchange, additional new connections, exchange afterwards.
    pub processor_us: [[f64; 2]; 4],
    /// Memory of the daemons and of one server process.
    pub memory: Vec<Memory>,
    /// Seconds from the end of the last connection until all tables were empty.
    pub emptied_seconds: f64,
    /// Why the test failed; empty if it passed.
    pub failures: Vec<String>,
}

/// Resident memory of one process, in bytes.
#[derive(Clone, Debug, Serialize)]
pub struct Memory {
    /// Name of the process.
    pub process: String,
    /// Connections that it holds.
    pub connections: usize,
    /// With tables for 16 connections.
    pub small: u64,
    /// With tables of full size, empty.
    pub empty: u64,
    /// With all connections open and idle.
    pub full: u64,
}

impl Memory {
    /// Returns the total cost of one connection: tables, and memory allocated while it exists.
    pub fn per_connection(&self) -> f64 {
        self.full.saturating_sub(self.small) as f64 / self.connections as f64
    }
}

impl Report {
    /// Returns whether every promise was kept.
    pub fn passed(&self) -> bool {
        self.failures.is_empty()
    }
}

fn phase(f: &mut fmt::Formatter<'_>, what: &str, outcome: &Outcome) -> fmt::Result {
    let rate = outcome.done as f64 / outcome.seconds.max(1e-9);
    let [median, high, most] = outcome.latency_us.map(|us| f64::from(us) / 1e3);
    writeln!(
        f,
        "  {what:<34} {:>7} of {:<7} in {:>5.1} s  {rate:>7.0}/s  50 % {median:.1} ms, 99 % {high:.1} ms, most {most:.1} ms",
        outcome.done, outcome.wanted, outcome.seconds
    )?;
    outcome.errors.iter().try_for_each(|(error, count)| writeln!(f, "      {count} × {error}"))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} connections at once", self.connections)?;
        phase(f, "opened, a request on each", &self.opened)?;
        phase(f, "a request on each", &self.exchanged)?;
        phase(f, &format!("on top, {} a second", self.churn_rate), &self.churned)?;
        phase(f, "a request on each again", &self.exchanged_after)?;
        writeln!(f, "processor time an operation    network node   proxy node")?;
        for (what, [network, proxy]) in
            ["opened", "a request", "opened, asked, closed", "a request again"].iter().zip(self.processor_us)
        {
            let rate = 1e6 / proxy;
            writeln!(
                f,
                "  {what:<26} {network:>9.1} µs {proxy:>9.1} µs   {rate:>8.0} a second of the proxy's processor time"
            )?;
        }
        writeln!(f, "  all tables empty {:.1} s after the end", self.emptied_seconds)?;
        writeln!(f, "memory                 small tables   full tables   connected   a connection")?;
        for m in &self.memory {
            let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            writeln!(
                f,
                "  {:<20} {:>8.1} MiB  {:>8.1} MiB {:>7.1} MiB  {:>9.0} B",
                m.process,
                mib(m.small),
                mib(m.empty),
                mib(m.full),
                m.per_connection()
            )?;
        }
        self.failures.iter().try_for_each(|failure| writeln!(f, "✗ {failure}"))?;
        write!(f, "{}", if self.passed() { "✓ passed" } else { "✗ FAILED" })
    }
}
