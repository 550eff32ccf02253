//! Eviction of idle clients: when the table of connections is nearly full, or all memory for windows is
//! granted, the connection of an idle client is reset for each new client.
//!
//! Otherwise a single client that opens connections and sends nothing could exclude all others, since its
//! connections stay as long as it wants. Nothing is examined while there is room. A search examines
//! [`SAMPLE`] connections, spread evenly over the table, and counts the idle ones by source network. The
//! share of a network in the sample approximates its share of the table. The network with the most idle
//! connections loses one, so that its clients can exclude only each other.

use csp_tcp::Stack;
use csp_types::{Duration, FlowLabel, Instant};
use std::net::IpAddr;

use super::client::{self, Activity};
use super::connection_log::End;
use super::context::Turn;
use super::events::NO_SERVICE;
use super::flow::{Flow, FlowTable};
use super::service::local::LocalServices;
use super::{ProxyOutput, reason};

/// Number of connections that a search examines.
const SAMPLE: usize = 64;
/// A network is a candidate if it has at least this fraction of the sample: one in 16.
const PART_MIN: usize = 16;
/// A client that has sent data is idle after this time without a segment. Connections of a candidate network
/// must be at least this old to be reset; those of a network with half of the sample are reset at any age.
const IDLE_MIN: Duration = Duration::from_secs(1);
/// Without a candidate network, a client that has sent nothing for this long loses its connection.
const SILENT_MIN: Duration = Duration::from_secs(10);
/// Pause after a search without result, which bounds the cost of searches.
const PAUSE: Duration = Duration::from_millis(10);
/// The table is nearly full when fewer than one connection in this many is free.
const RESERVE: usize = 16;
/// Largest number of connections reset for one new client. More than one, so that the reserve is restored.
const GIVE_WAY_MAX: usize = 2;

/// The network of a client's address: /24 of IPv4, /64 of IPv6.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Network(bool, u64);

impl Network {
    fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => Network(false, u64::from(v4.to_bits() >> 8)),
            IpAddr::V6(v6) => Network(true, (v6.to_bits() >> 64) as u64),
        }
    }
}

/// An idle connection of the sample.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    label: FlowLabel,
    network: Network,
    /// Whether the client has sent data, or its FIN.
    spoke: bool,
    /// When its last segment arrived; when it connected, if it has sent nothing.
    since: Instant,
}

impl Candidate {
    fn of(flow: &Flow, tcp: &Stack, now: Instant) -> Option<Self> {
        // Connections that applications open are limited by the shares of their users.
        if flow.service == NO_SERVICE {
            return None;
        }
        let Activity { last, spoke } = client::activity(tcp, flow.label)?;
        let since = if spoke { last } else { flow.began };
        let idle = !spoke || now.saturating_since(since) >= IDLE_MIN;
        let network = Network::of(flow.tuple.remote.ip());
        idle.then_some(Candidate { label: flow.label, network, spoke, since })
    }
}

/// The search for idle clients.
#[derive(Debug)]
pub(crate) struct IdleClients {
    /// Number of connections of the engine, which are the first slots of the flow table.
    connections: usize,
    /// The slot at which the next search begins, and the distance between examined slots.
    cursor: usize,
    stride: usize,
    /// When the next search may begin.
    next: Instant,
    sample: Vec<Candidate>,
}

impl IdleClients {
    /// Creates the search for a table of this many connections.
    pub(crate) fn new(connections: usize) -> Self {
        IdleClients {
            connections,
            cursor: 0,
            stride: stride(connections),
            next: Instant::ZERO,
            sample: Vec::with_capacity(SAMPLE),
        }
    }

    /// Returns the connection to reset, if there is an idle one.
    fn find(&mut self, now: Instant, flows: &FlowTable, tcp: &Stack) -> Option<FlowLabel> {
        if now < self.next {
            return None;
        }
        let examined = SAMPLE.min(self.connections);
        self.sample.clear();
        for _ in 0..examined {
            let flow = flows.part(self.cursor, 1).next();
            self.cursor = (self.cursor + self.stride) % self.connections;
            self.sample.extend(flow.and_then(|flow| Candidate::of(flow, tcp, now)));
        }
        let found = choose(&self.sample, examined, now);
        if found.is_none() {
            self.next = now + PAUSE;
        }
        found
    }
}

/// Returns a step through `connections` slots that reaches each of them, and spreads a small number of steps
/// over all (the golden ratio).
fn stride(connections: usize) -> usize {
    let common = |mut a: usize, mut b: usize| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let first = (connections as f64 * 0.618) as usize;
    (first.max(1)..).find(|step| common(connections, *step) == 1).unwrap_or(1)
}

/// Returns the connection of a sample to reset: one of the network with the most idle connections, else any.
fn choose(sample: &[Candidate], examined: usize, now: Instant) -> Option<FlowLabel> {
    let of = |network: Network| sample.iter().filter(move |candidate| candidate.network == network);
    let aged = |candidate: &&Candidate, least: Duration| now.saturating_since(candidate.since) >= least;
    let (count, most) =
        sample.iter().map(|c| (of(c.network).count(), c.network)).max_by_key(|most| most.0)?;
    let least = if 2 * count >= examined { Duration::ZERO } else { IDLE_MIN };
    let its = of(most).filter(|c| count > 1 && PART_MIN * count >= examined && aged(c, least));
    let longest = its.min_by_key(|c| (c.spoke, c.since));
    let silent = || sample.iter().filter(|c| !c.spoke && aged(c, SILENT_MIN)).min_by_key(|c| c.since);
    longest.or_else(silent).map(|candidate| candidate.label)
}

impl<O: ProxyOutput, S: LocalServices> Turn<'_, O, S> {
    /// Resets connections of idle clients if the table is nearly full, before them those of balancers that
    /// have sent no header, and handshakes of TLS. Half-open connections do not count:
    /// they give way to cookies.
    pub(super) fn keep_reserve(&mut self) {
        for _ in 0..GIVE_WAY_MAX {
            if RESERVE * self.free().connections >= self.idle.connections {
                return;
            }
            if !self.oldest_preface_gives_way()
                && !self.oldest_handshake_gives_way()
                && !self.idle_gives_way()
            {
                return;
            }
        }
    }

    /// Resets the connection of an idle client; `false` if no client is idle.
    pub(super) fn idle_gives_way(&mut self) -> bool {
        let Some(label) = self.idle.find(self.cx.now, self.cx.flows, self.cx.tcp) else { return false };
        self.cx.recorder.counters.idle_given_up += 1;
        self.cx.flows.ends(label, End::Idle);
        self.reset_client(label);
        true
    }

    /// Resets a client's connection and reports that to its process.
    pub(super) fn reset_client(&mut self, label: FlowLabel) {
        self.cx.abort_client(label);
        self.fail(label, reason::TIMED_OUT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_nanos(100_000_000_000);

    /// `count` connections of the network 10.0.`network`.0/24 with labels from `first` on, each 1 ms younger
    /// than the one before; the first one is `age` old.
    fn some(network: u8, first: u32, count: u32, spoke: bool, age: Duration) -> Vec<Candidate> {
        let network = Network::of(IpAddr::from([10, 0, network, 7]));
        let began = Instant::from_nanos(NOW.as_nanos() - age.as_nanos() as u64);
        let since = |n: u32| began + Duration::from_millis(n.into());
        let one = |n| Candidate { label: FlowLabel::new(first + n, 0), network, spoke, since: since(n) };
        (0..count).map(one).collect()
    }

    fn chosen(sample: Vec<Vec<Candidate>>) -> Option<usize> {
        choose(&sample.concat(), SAMPLE, NOW).map(FlowLabel::index)
    }

    #[test]
    fn the_network_with_the_most_idle_connections_gives_way() {
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        let diverse = || (0..40).map(|n| some(n, 500 + u32::from(n), 1, true, s(50))).collect::<Vec<_>>();
        // A client that has sent nothing comes first, then the one that has been idle longest.
        assert_eq!(chosen(vec![some(1, 10, 9, true, s(60)), some(1, 30, 9, false, s(5))]), Some(30));
        assert_eq!(chosen(vec![some(1, 10, 9, true, s(60)), some(2, 30, 5, false, s(90))]), Some(10));
        assert_eq!(chosen(diverse()), None, "idle clients of many networks stay");
        let silent = some(99, 30, 1, false, s(11));
        assert_eq!(
            chosen([diverse(), vec![silent]].concat()),
            Some(30),
            "one that never says anything does not"
        );
        assert_eq!(chosen([diverse(), vec![some(99, 30, 1, false, s(9))]].concat()), None);
        // Fresh connections of a network stay, unless it holds half of the table.
        assert_eq!(chosen(vec![some(1, 10, 31, false, ms(500))]), None);
        assert_eq!(chosen(vec![some(1, 10, 32, false, ms(500))]), Some(10));
        assert_eq!(chosen(Vec::new()), None);
    }

    #[test]
    fn a_search_reaches_every_slot_and_spreads_over_the_table() {
        for connections in [1, 2, 16, 64, 1_000, 16_384, 99_991, 100_000] {
            let step = stride(connections);
            let mut seen = vec![false; connections];
            (0..connections).for_each(|n| seen[n * step % connections] = true);
            assert!(seen.iter().all(|seen| *seen), "{connections}");
            let eighth = connections.div_ceil(8);
            let sampled = (0..SAMPLE.min(connections)).filter(|n| n * step % connections < eighth).count();
            assert!(
                connections < 1_000 || (6..=10).contains(&sampled),
                "{connections}: {sampled} in an eighth"
            );
        }
    }
}
