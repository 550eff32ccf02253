//! Rule sets and packets as ClassBench makes them (Taylor, Turner, INFOCOM 2005), from a seed: access lists
//! (ACL), firewalls (FW) and chains of packet filters (IPC). Used by tests and benches.
#![allow(dead_code, reason = "each test uses its part")]
#![allow(clippy::unwrap_used, reason = "rules are made to be valid")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use csp_classify::multifield::{
    Direction, Fields, InstanceId, Match, PORTS_ANY, PortRange, Rule, TcpFlags, has_ports,
};
use csp_support::Random;
use csp_types::Prefix;

/// What kind of rule set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Access list of a provider: specific destinations, exact destination ports, few wildcards.
    Acl,
    /// Firewall: many wildcard addresses, ports on both sides.
    Fw,
    /// Packet filters of one host (ipchains): between the two.
    Ipc,
}

pub const KINDS: [Kind; 3] = [Kind::Acl, Kind::Fw, Kind::Ipc];

/// Picks one of `(weight, value)`.
fn pick<T: Copy>(random: &mut Random, choices: &[(u64, T)]) -> T {
    let sum: u64 = choices.iter().map(|(weight, _)| weight).sum();
    let mut at = random.below(sum);
    for (weight, value) in choices {
        if at < *weight {
            return *value;
        }
        at -= weight;
    }
    choices[0].1
}

/// Networks nested in one another: few short prefixes, many long ones below them, as in routing tables.
struct Sites {
    v4: Vec<u32>,
    v6: Vec<u128>,
}

impl Sites {
    fn new(random: &mut Random, count: usize) -> Self {
        let mut v4: Vec<u32> = (0..16).map(|_| random.number() as u32 & 0xff00_0000).collect();
        let mut v6: Vec<u128> =
            (0..16).map(|_| 0x2001 << 112 | u128::from(random.number() as u16) << 96).collect();
        for _ in 0..count {
            // A child of some site: skewed, since early ones have more descendants.
            let parent = v4[random.below(v4.len() as u64) as usize];
            let shift = pick(random, &[(2, 16), (3, 12), (5, 8)]);
            v4.push(parent ^ (random.number() as u32 & 0x3f) << shift);
            let parent = v6[random.below(v6.len() as u64) as usize];
            let shift = pick(random, &[(2, 80), (3, 72), (5, 64)]);
            v6.push(parent ^ u128::from(random.number() & 0x3f) << shift);
        }
        Sites { v4, v6 }
    }

    fn prefix(&self, random: &mut Random, v6: bool, length: u8) -> Option<Prefix> {
        if length == 0 {
            return None;
        }
        let at = random.below(self.v4.len() as u64) as usize;
        Some(if v6 {
            let length = length * 4;
            let address = self.v6[at] | u128::from(random.number() & 0xff) << (128 - u32::from(length));
            let masked = address & (u128::MAX << (128 - u32::from(length)));
            Prefix::new(IpAddr::V6(Ipv6Addr::from(masked)), length).unwrap()
        } else {
            let address = self.v4[at] | (random.number() as u32 & 0xff) << (32 - u32::from(length));
            let masked = address & (u32::MAX << (32 - u32::from(length)));
            Prefix::new(IpAddr::V4(Ipv4Addr::from(masked)), length).unwrap()
        })
    }
}

fn ports(random: &mut Random, exact: u64, any: u64, range: u64) -> PortRange {
    const KNOWN: [u16; 24] = [
        20, 21, 22, 23, 25, 53, 69, 80, 110, 123, 135, 137, 139, 143, 161, 389, 443, 445, 993, 1433, 1521,
        3306, 3389, 8080,
    ];
    const RANGES: [(u16, u16); 8] = [
        (1024, 65535),
        (0, 1023),
        (6000, 6063),
        (137, 139),
        (20, 21),
        (33434, 33523),
        (2300, 2400),
        (5900, 5910),
    ];
    match pick(random, &[(exact, 0), (any, 1), (range, 2)]) {
        0 if random.below(4) == 0 => PortRange::one(random.number() as u16),
        0 => PortRange::one(KNOWN[random.below(KNOWN.len() as u64) as usize]),
        1 => PORTS_ANY,
        _ => {
            let (low, high) = RANGES[random.below(RANGES.len() as u64) as usize];
            PortRange::new(low, high).unwrap()
        }
    }
}

fn one(random: &mut Random, kind: Kind, sites: &Sites, v6: bool) -> Match {
    let lengths: [&[(u64, u8)]; 2] = match kind {
        Kind::Acl => [
            &[(10, 0), (6, 8), (8, 16), (8, 20), (22, 24), (6, 28), (40, 32)],
            &[(1, 0), (4, 16), (5, 21), (25, 24), (10, 27), (55, 32)],
        ],
        Kind::Fw => [
            &[(45, 0), (3, 8), (7, 16), (15, 24), (5, 28), (25, 32)],
            &[(25, 0), (5, 16), (20, 24), (10, 29), (40, 32)],
        ],
        Kind::Ipc => [
            &[(20, 0), (5, 12), (10, 16), (25, 24), (40, 32)],
            &[(15, 0), (5, 16), (10, 20), (25, 24), (45, 32)],
        ],
    };
    let source = pick(random, lengths[0]);
    let mut destination = pick(random, lengths[1]);
    if source == 0 && destination < 16 {
        // One rule in 500 names no network, as in real sets.
        destination = if random.below(500) == 0 { 0 } else { 24 };
    }
    let protocol = pick(random, &[(70, Some(6)), (18, Some(17)), (4, Some(1)), (8, None)]);
    let (source_ports, destination_ports) = match kind {
        _ if protocol.is_some_and(|p| !has_ports(p)) || protocol.is_none() => (PORTS_ANY, PORTS_ANY),
        Kind::Acl => (ports(random, 1, 98, 1), ports(random, 60, 28, 12)),
        Kind::Fw => (ports(random, 15, 70, 15), ports(random, 45, 35, 20)),
        Kind::Ipc => (ports(random, 10, 80, 10), ports(random, 50, 35, 15)),
    };
    let flags = if protocol == Some(6) && random.below(20) == 0 {
        Some(pick(
            random,
            &[(2, TcpFlags { value: 0x02, mask: 0x12 }), (1, TcpFlags { value: 0x10, mask: 0x10 })],
        ))
    } else {
        None
    };
    Match {
        source: sites.prefix(random, v6, source),
        destination: sites.prefix(random, v6, destination),
        source_ports,
        destination_ports,
        protocol,
        interface: (random.below(50) == 0).then(|| random.below(4) as u16),
        direction: (random.below(50) == 0).then_some(Direction::Ingress),
        tcp_flags: flags,
        dscp: (random.below(100) == 0).then(|| random.below(64) as u8),
    }
}

/// Returns `count` rules. Every rule has a priority of its own but for ties (one in ten), in the sequence of
/// the list.
pub fn rules(kind: Kind, count: usize, seed: u64, v6_percent: u64) -> Vec<Rule> {
    let mut random = Random::new(seed ^ (kind as u64) << 56);
    let sites = Sites::new(&mut random, count / 4 + 4);
    let mut seen = std::collections::HashSet::new();
    let mut rules = Vec::with_capacity(count);
    let mut priority = 0;
    while rules.len() < count {
        let v6 = random.below(100) < v6_percent;
        let fields = one(&mut random, kind, &sites, v6);
        // Filter sets have no rule twice; a set of the widest rules only would have few.
        if !seen.insert(fields) {
            continue;
        }
        priority += u32::from(random.below(10) != 0);
        let at = rules.len();
        rules.push(Rule {
            name: format!("r{at}").into(),
            priority,
            fields,
            instance: InstanceId((at % 64) as u32),
        });
    }
    // Specific rules come first in filter sets, roughly: an early rule for all networks would hide most
    // others.
    let mut fields: Vec<(u64, Match)> =
        rules.iter().map(|rule| (width(&rule.fields) + random.below(64), rule.fields)).collect();
    fields.sort_by_key(|(width, _)| *width);
    for (rule, (_, fields)) in rules.iter_mut().zip(fields) {
        rule.fields = fields;
    }
    rules
}

fn width(fields: &Match) -> u64 {
    let open = |prefix: &Option<Prefix>| {
        prefix.map_or(128, |p| {
            if p.address().is_ipv4() { 4 * (32 - u64::from(p.length())) } else { 128 - u64::from(p.length()) }
        })
    };
    open(&fields.source) + open(&fields.destination)
}

fn address_in(random: &mut Random, prefix: Option<Prefix>, v6: bool) -> IpAddr {
    let noise = u128::from(random.number()) << 64 | u128::from(random.number());
    match prefix.map(|p| (p.address(), u32::from(p.length()))) {
        Some((IpAddr::V4(network), length)) => {
            let host = u32::MAX.checked_shr(length).unwrap_or(0);
            IpAddr::V4((network.to_bits() | noise as u32 & host).into())
        }
        Some((IpAddr::V6(network), length)) => {
            let host = u128::MAX.checked_shr(length).unwrap_or(0);
            IpAddr::V6((network.to_bits() | noise & host).into())
        }
        None if v6 => IpAddr::V6((0x2001 << 112 | noise >> 16).into()),
        None => IpAddr::V4((noise as u32).into()),
    }
}

fn port_in(random: &mut Random, range: PortRange) -> u16 {
    range.low() + random.below(u64::from(range.high() - range.low()) + 1) as u16
}

/// Returns a packet that the conditions match; another rule may precede them.
pub fn packet_of(random: &mut Random, fields: &Match) -> Fields {
    let network = fields.source.or(fields.destination);
    let v6 = network.map_or_else(|| random.below(4) == 0, |network| network.address().is_ipv6());
    let wants_ports = !(fields.source_ports.is_any() && fields.destination_ports.is_any());
    let default = if wants_ports || fields.tcp_flags.is_some() || random.below(10) > 0 { 6 } else { 47 };
    let protocol = fields.protocol.unwrap_or(default);
    let ports = has_ports(protocol)
        .then(|| (port_in(random, fields.source_ports), port_in(random, fields.destination_ports)));
    let flags = fields.tcp_flags.map_or(0x10, |flags| flags.value | 0x08 & !flags.mask);
    Fields {
        source: address_in(random, fields.source, v6),
        destination: address_in(random, fields.destination, v6),
        ports,
        protocol,
        interface: fields.interface.unwrap_or_else(|| random.below(4) as u16),
        direction: fields.direction.unwrap_or(Direction::Ingress),
        tcp_flags: (protocol == 6).then_some(flags),
        dscp: fields.dscp.unwrap_or(0),
    }
}

/// Returns packets whose rules are drawn uniformly; one in `strays` is of no rule in particular (0: none).
pub fn uniform(rules: &[Rule], count: usize, seed: u64, strays: u64) -> Vec<Fields> {
    let mut random = Random::new(seed);
    let mut packets = Vec::with_capacity(count);
    for _ in 0..count {
        let rule = &rules[random.below(rules.len() as u64) as usize];
        let fields = if strays > 0 && random.below(strays) == 0 { Match::ANY } else { rule.fields };
        packets.push(packet_of(&mut random, &fields));
    }
    packets
}

/// Returns packets of `flows`, drawn by Zipf's law with exponent 1: the flow of rank r with weight 1/r.
pub fn zipf(flows: &[Fields], count: usize, seed: u64) -> Vec<Fields> {
    let mut random = Random::new(seed);
    let mut sums = Vec::with_capacity(flows.len());
    let mut sum = 0.0;
    for rank in 1..=flows.len() {
        sum += 1.0 / rank as f64;
        sums.push(sum);
    }
    let mut draw = || {
        let at = (random.number() >> 11) as f64 / (1u64 << 53) as f64 * sum;
        flows[sums.partition_point(|&s| s < at).min(flows.len() - 1)]
    };
    (0..count).map(|_| draw()).collect()
}
