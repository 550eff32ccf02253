//! Source addresses and ports for connections that applications open (active opens).

use std::net::{IpAddr, SocketAddr};

use csp_types::{FourTuple, Prefix, longest_match};

use super::ServiceTcp;
use super::shares::Shares;

/// First and last ephemeral port (RFC 6335 §6).
const PORTS: std::ops::RangeInclusive<u16> = csp_types::limits::EGRESS_PORT_FIRST..=65_535;
const PORT_COUNT: u32 = 16_384;

/// One rule of the policy: connections to `destinations` have the source `address`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EgressRule {
    /// The source address, for which network nodes answer on the LAN.
    pub address: IpAddr,
    /// The destinations it is used for.
    pub destinations: Vec<Prefix>,
    /// The destinations of these that are excluded.
    pub except: Vec<Prefix>,
    /// TCP options of these connections.
    pub tcp: ServiceTcp,
}

/// Chooses the source of active opens. Each proxy worker uses ports of its own class (port modulo `workers`),
/// so that two workers never open the same 4-tuple.
#[derive(Debug)]
pub struct Egress {
    rules: Vec<EgressRule>,
    cursor: u32,
    class: u32,
    classes: u32,
    /// What each user's active opens hold.
    pub(crate) shares: Shares,
}

impl Egress {
    /// Creates the chooser of worker `class` of `classes`. Proxies that share an address start at different
    /// ports, determined by `seed`.
    pub fn new(class: u32, classes: u32, seed: u32) -> Self {
        let classes = classes.max(1);
        let cursor = seed % (PORT_COUNT / classes).max(1);
        Egress { rules: Vec::new(), cursor, class: class % classes, classes, shares: Shares::default() }
    }

    /// Replaces the rules by those of a new policy generation.
    pub fn set_rules(&mut self, rules: Vec<EgressRule>) {
        self.rules = rules;
    }

    /// Returns the source address and the TCP options of connections to `remote`. `None` if no rule matches
    /// it ([`longest_match`]).
    pub fn source(&self, remote: IpAddr) -> Option<(IpAddr, ServiceTcp)> {
        let entries = self.rules.iter().flat_map(|rule| {
            let exceptions = rule.except.iter().map(move |prefix| (*prefix, true, rule));
            rule.destinations.iter().map(move |prefix| (*prefix, false, rule)).chain(exceptions)
        });
        longest_match(entries, remote).map(|rule| (rule.address, rule.tcp))
    }

    /// Returns the TCP options of a connection to `remote` and the candidates for its 4-tuple: each port of
    /// this worker's class once, starting after the last one used. `None` if no rule matches `remote`.
    pub fn candidates(
        &mut self,
        remote: SocketAddr,
    ) -> Option<(ServiceTcp, impl Iterator<Item = FourTuple>)> {
        let (address, tcp) = self.source(remote.ip())?;
        let per_class = PORT_COUNT / self.classes;
        let (start, class, classes) = (self.cursor, self.class, self.classes);
        self.cursor = (self.cursor + 1) % per_class.max(1);
        let tuples = (0..per_class).map(move |step| {
            let offset = (start + step) % per_class * classes + class;
            let port = PORTS.start() + offset as u16;
            FourTuple { local: SocketAddr::new(address, port), remote }
        });
        Some((tcp, tuples))
    }

    /// Has the next candidates begin after this port, which was tried.
    pub(super) fn tried(&mut self, port: u16) {
        let step = u32::from(port.saturating_sub(*PORTS.start())) / self.classes;
        self.cursor = (step + 1) % (PORT_COUNT / self.classes).max(1);
    }
}

/// Returns the first source port, different for each start of each proxy. A one-way function, so that a port
/// reveals nothing about the secret.
pub(crate) fn first_port_seed(secret: &[u8; 16]) -> u32 {
    let fnv = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    (secret.iter().fold(0xcbf2_9ce4_8422_2325, fnv) >> 40) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule() -> EgressRule {
        let destinations = vec!["10.76.0.0/24".parse().unwrap()];
        EgressRule {
            address: "10.76.0.101".parse().unwrap(),
            destinations,
            except: Vec::new(),
            tcp: ServiceTcp::default(),
        }
    }

    #[test]
    fn two_workers_never_choose_the_same_port() {
        let remote = "10.76.0.1:80".parse().unwrap();
        let mut ports = Vec::new();
        for class in 0..3 {
            let mut egress = Egress::new(class, 3, 7);
            egress.set_rules(vec![rule()]);
            ports.extend(egress.candidates(remote).unwrap().1.map(|t| t.local.port()));
        }
        let count = ports.len();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), count);
        assert!(ports.iter().all(|p| PORTS.contains(p)));
    }

    #[test]
    fn the_longest_prefix_says_where_connections_come_from() {
        let mut egress = Egress::new(0, 1, 0);
        let wide = "10.0.0.0/8".parse().unwrap();
        let other =
            EgressRule { address: "10.76.0.102".parse().unwrap(), destinations: vec![wide], ..rule() };
        let half = "10.76.0.128/25".parse().unwrap();
        let narrow = EgressRule { except: vec![half], ..rule() };
        for rules in [vec![narrow.clone(), other.clone()], vec![other, narrow]] {
            egress.set_rules(rules);
            assert!(egress.candidates("10.76.0.200:80".parse().unwrap()).is_none(), "an exception");
            for (remote, address) in [("10.76.0.1:80", "10.76.0.101"), ("10.75.0.1:80", "10.76.0.102")] {
                let first = egress.candidates(remote.parse().unwrap()).unwrap().1.next().unwrap();
                assert_eq!(first.local.ip().to_string(), address);
            }
        }
    }

    #[test]
    fn an_uncovered_destination_has_no_source() {
        let mut egress = Egress::new(0, 1, 0);
        egress.set_rules(vec![rule()]);
        assert!(egress.candidates("192.0.2.1:80".parse().unwrap()).is_none());
    }
}
