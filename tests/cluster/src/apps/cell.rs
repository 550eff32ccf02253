//! The result of one load of a crowd: wrk's counts through CSP and on kernel TCP, and what the proxy counted
//! meanwhile.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Value, json};

use crate::cluster::San;

/// The number of connections at once, and whether each carries one request or all.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Connections at once.
    pub connections: u32,
    /// Kept alive; otherwise each request has a connection of its own.
    pub kept: bool,
}

impl Load {
    /// Returns a load of this number of connections.
    pub const fn of(connections: u32, kept: bool) -> Load {
        Load { connections, kept }
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.connections, if self.kept { "kept" } else { "anew" })
    }
}

/// Factor by which the share of failed requests on kernel TCP differs between two runs.
const SPREAD: f64 = 1.5;

/// wrk's counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Answered requests.
    pub requests: u64,
    /// Answered requests per second.
    pub per_second: f64,
    /// Connections that failed: on connect, read, write, and by timeout.
    pub sockets: [u64; 4],
    /// Responses with a status other than 200.
    pub statuses: u64,
}

impl Tally {
    /// Parses wrk's report; `None` if it is malformed.
    pub fn read(report: &str) -> Option<Tally> {
        let after =
            |what: &str| report.lines().find_map(|line| line.trim().strip_prefix(what)).map(str::trim);
        let requests =
            report.lines().find_map(|line| line.trim().split_once(" requests in")?.0.parse().ok())?;
        let mut sockets = [0; 4];
        let errors = after("Socket errors:").unwrap_or_default().split([' ', ',']);
        for (sum, count) in sockets.iter_mut().zip(errors.filter_map(|word| word.parse().ok())) {
            *sum = count;
        }
        let statuses = after("Non-2xx or 3xx responses:").map_or(Some(0), |count| count.parse().ok())?;
        Some(Tally { requests, per_second: after("Requests/sec:")?.parse().ok()?, sockets, statuses })
    }

    /// Returns the number of all failures.
    pub fn failures(&self) -> u64 {
        self.sockets.iter().sum::<u64>() + self.statuses
    }

    /// Returns the share of failures in everything that was tried.
    fn share(&self) -> f64 {
        let failed = self.failures() as f64;
        failed / (failed + self.requests as f64).max(1.0)
    }

    fn json(&self) -> Value {
        let [connect, read, write, timeout] = self.sockets;
        json!({
            "requests": self.requests,
            "requests_per_s": self.per_second,
            "failures": self.failures(),
            "connect": connect,
            "read": read,
            "write": write,
            "timeout": timeout,
            "statuses": self.statuses,
        })
    }
}

/// The proxy's counters of connections that it offers to processes.
#[derive(Clone, Debug, Default)]
pub struct Offers {
    /// Connections established by clients.
    pub connections: u64,
    /// Offers that a process refused.
    pub refused: u64,
    /// Offers that the proxy withdrew.
    pub withdrawn: u64,
    /// Dropped connections and segments, by reason.
    pub drops: BTreeMap<String, u64>,
}

impl Offers {
    /// Parses a proxy's metrics, summed over its workers.
    pub fn read(page: &str) -> Offers {
        let mut offers = Offers::default();
        for (series, value) in page.lines().filter_map(|line| line.rsplit_once(' ')) {
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let value = value.parse::<f64>().unwrap_or_default() as u64;
            match name {
                "csp_connections_passive_total" => offers.connections += value,
                "csp_opens_refused_total" => offers.refused += value,
                "csp_offers_withdrawn_total" => offers.withdrawn += value,
                "csp_drops_total" => {
                    let reason = labels.split_once("reason=\"").and_then(|(_, rest)| rest.split('"').next());
                    *offers.drops.entry(reason.unwrap_or(labels).to_owned()).or_default() += value;
                }
                _ => {}
            }
        }
        offers
    }

    /// Returns the counts since `before`.
    pub fn since(&self, before: &Offers) -> Offers {
        let drops = self.drops.iter().map(|(reason, count)| {
            (reason.clone(), count.saturating_sub(before.drops.get(reason).copied().unwrap_or_default()))
        });
        Offers {
            connections: self.connections.saturating_sub(before.connections),
            refused: self.refused.saturating_sub(before.refused),
            withdrawn: self.withdrawn.saturating_sub(before.withdrawn),
            drops: drops.filter(|(_, count)| *count > 0).collect(),
        }
    }

    /// Returns the offers that came back, per connection.
    pub fn bounced(&self) -> f64 {
        (self.refused + self.withdrawn) as f64 / self.connections.max(1) as f64
    }

    fn dropped(&self) -> String {
        let all: Vec<String> = self.drops.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        if all.is_empty() { "none".to_owned() } else { all.join(", ") }
    }
}

impl fmt::Display for Offers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Offers { connections, refused, withdrawn, .. } = self;
        write!(f, "{connections} connections, {:.4} offers bounced each ", self.bounced())?;
        write!(f, "({refused} refused, {withdrawn} withdrawn), drops: {}", self.dropped())
    }
}

/// One load over one SAN, and the same on kernel TCP.
#[derive(Clone, Debug)]
pub struct Cell {
    /// What carried the SAN.
    pub san: San,
    /// The load.
    pub load: Load,
    /// Through the whole path.
    pub csp: Tally,
    /// On kernel TCP.
    pub kernel: Tally,
    /// The proxy's counts.
    pub offers: Offers,
}

/// Returns the name of a SAN in the table.
pub const fn word(san: San) -> &'static str {
    match san {
        San::Shm => "shm",
        San::BetweenNodes(far) => far.name(),
        San::ToProcesses(_) => "relay to processes",
        San::Apart(_) => "relay",
    }
}

impl Cell {
    /// Returns whether more requests failed through the whole path than on kernel TCP. If requests fail there
    /// too, their number differs from run to run.
    pub fn worse(&self) -> bool {
        self.csp.failures() > self.kernel.failures() && self.csp.share() > SPREAD * self.kernel.share()
    }

    /// Returns the ratio of requests through the whole path to those on kernel TCP.
    pub fn ratio(&self) -> f64 {
        self.csp.per_second / self.kernel.per_second
    }

    /// Returns the cell as a JSON object.
    pub fn json(&self) -> Value {
        json!({
            "san": word(self.san),
            "connections": self.load.connections,
            "kept": self.load.kept,
            "csp": self.csp.json(),
            "kernel": self.kernel.json(),
            "ratio": self.ratio(),
            "worse": self.worse(),
            "accepted": self.offers.connections,
            "refused": self.offers.refused,
            "withdrawn": self.offers.withdrawn,
            "bounced_per_connection": self.offers.bounced(),
            "drops": self.offers.drops,
        })
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} failed beside {}", self.load, self.csp.failures(), self.kernel.failures())
    }
}

/// Returns the cells of each program as a Markdown table; an empty string if there are none.
pub fn table<'a>(programs: impl Iterator<Item = (&'a str, &'a [Cell])>) -> String {
    let mut text = String::new();
    for (program, cells) in programs {
        for cell in cells {
            let mark = if cell.worse() { " !" } else { "" };
            text += &format!(
                "| {program} | {} | {} | {:.0} | {}{mark} | {:.0} | {} | {:.2} | {:.4} | {} |\n",
                word(cell.san),
                cell.load,
                cell.csp.per_second,
                cell.csp.failures(),
                cell.kernel.per_second,
                cell.kernel.failures(),
                cell.ratio(),
                cell.offers.bounced(),
                cell.offers.dropped(),
            );
        }
    }
    if text.is_empty() {
        return text;
    }
    "\n| program | SAN | connections | CSP, requests/s | failed | kernel, requests/s | failed | ratio | offers bounced a connection \
     | proxy's drops |\n|---|---|---|---|---|---|---|---|---|---|\n"
        .to_owned()
        + &text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_every_kind_are_read_from_wrk() {
        let report = "Running 3s test @ http://10.76.0.100:80/1KiB\n  1 threads and 64 connections\n  \
                      120 requests in 3.00s, 0.96MB read\n  Socket errors: connect 1, read 20, write 3, timeout 4\n  \
                      Non-2xx or 3xx responses: 5\nRequests/sec:     40.00\nTransfer/sec:    326.53KB\n";
        let tally = Tally::read(report).unwrap();
        assert_eq!((tally.requests, tally.sockets, tally.statuses), (120, [1, 20, 3, 4], 5));
        assert_eq!((tally.failures(), tally.per_second), (33, 40.0));
        assert!(Tally::read("unable to connect to 10.76.0.100:80 Connection refused").is_none());
    }

    #[test]
    fn offers_are_summed_over_workers_and_counted_since() {
        let page = |passive: u64| {
            format!(
                "# TYPE csp_drops counter\ncsp_drops_total{{reason=\"no_server\",worker=\"0\"}} 3\n\
                 csp_drops_total{{worker=\"1\",reason=\"no_server\"}} 4\n\
                 csp_connections_passive_total{{worker=\"0\"}} {passive}\ncsp_opens_refused_total{{worker=\"0\"}} 6\n\
                 csp_offers_withdrawn_total{{worker=\"0\"}} 2\n"
            )
        };
        let offers = Offers::read(&page(16));
        assert_eq!((offers.drops["no_server"], offers.bounced()), (7, 0.5));
        let since = Offers::read(&page(20)).since(&offers);
        assert_eq!((since.connections, since.refused, since.drops.len()), (4, 0, 0));
    }
}
