//! Rules of this project as a ruleset of nftables: as a chain of rules, and as maps of concatenated
//! intervals. Used by two benches.
#![allow(dead_code, reason = "each bench uses its part")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Command, Stdio};

use csp_classify::multifield::{Direction, InstanceId, Match, PORTS_ANY, PortRange, Rule};
use csp_types::Prefix;

/// The type of a map's key: the five fields that an interval can state.
const KEY: &str = "ipv4_addr . ipv4_addr . inet_proto . inet_service . inet_service";
/// What a packet has of these.
const FIELDS: &str = "ip saddr . ip daddr . meta l4proto . th sport . th dport";

/// Reduces rules to the five fields, for what is received; the instance is the rule's place. The first of
/// equal rules stays.
pub fn five_fields(rules: &[Rule]) -> Vec<Rule> {
    let mut seen = std::collections::HashSet::new();
    let mut kept: Vec<Rule> = rules
        .iter()
        .map(|rule| Rule {
            fields: Match {
                interface: None,
                direction: Some(Direction::Ingress),
                tcp_flags: None,
                dscp: None,
                ..rule.fields
            },
            ..rule.clone()
        })
        .filter(|rule| seen.insert(rule.fields))
        .collect();
    kept.iter_mut().enumerate().for_each(|(at, rule)| rule.instance = InstanceId(at as u32));
    kept
}

/// A rule as an interval of each field: source, destination, protocol, ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cuboid {
    low: [u32; 5],
    high: [u32; 5],
}

fn interval(prefix: Option<Prefix>) -> (u32, u32) {
    match prefix.map(|prefix| (prefix.address(), prefix.length())) {
        Some((IpAddr::V4(network), length)) => {
            let low = network.to_bits();
            (low, low | u32::MAX.checked_shr(u32::from(length)).unwrap_or(0))
        }
        Some((IpAddr::V6(_), _)) => panic!("the bench has IPv4 rules"),
        None => (0, u32::MAX),
    }
}

impl Cuboid {
    pub fn of(fields: &Match) -> Self {
        let ports = |range: PortRange| (u32::from(range.low()), u32::from(range.high()));
        let protocol = fields.protocol.map_or((0, 255), |number| (number.into(), number.into()));
        let intervals = [
            interval(fields.source),
            interval(fields.destination),
            protocol,
            ports(fields.source_ports),
            ports(fields.destination_ports),
        ];
        Cuboid { low: intervals.map(|(low, _)| low), high: intervals.map(|(_, high)| high) }
    }

    fn overlaps(&self, other: &Cuboid) -> bool {
        (0..5).all(|at| self.low[at] <= other.high[at] && other.low[at] <= self.high[at])
    }

    fn contains(&self, other: &Cuboid) -> bool {
        (0..5).all(|at| self.low[at] <= other.low[at] && other.high[at] <= self.high[at])
    }

    /// The element of a map, without its verdict.
    fn element(&self, name: usize) -> String {
        let address = |at: usize| {
            let (low, high) = (Ipv4Addr::from_bits(self.low[at]), Ipv4Addr::from_bits(self.high[at]));
            if low == high { low.to_string() } else { format!("{low}-{high}") }
        };
        let number = |at: usize| {
            let (low, high) = (self.low[at], self.high[at]);
            if low == high { low.to_string() } else { format!("{low}-{high}") }
        };
        format!(
            "{} . {} . {} . {} . {} counter comment \"r{name}\"",
            address(0),
            address(1),
            number(2),
            number(3),
            number(4)
        )
    }
}

/// Earlier rules by one of their addresses, which are prefixes: two overlap only if one contains the other.
struct Index {
    field: usize,
    by_address: BTreeMap<(u32, u32), Vec<(Cuboid, usize)>>,
}

impl Index {
    fn new(field: usize) -> Self {
        Index { field, by_address: BTreeMap::new() }
    }

    fn insert(&mut self, cuboid: Cuboid, set: usize) {
        let key = (cuboid.low[self.field], cuboid.high[self.field]);
        self.by_address.entry(key).or_default().push((cuboid, set));
    }

    /// All earlier rules that overlap this, with their sets.
    fn overlapping(&self, cuboid: &Cuboid, mut each: impl FnMut(&Cuboid, usize)) {
        let (low, high) = (cuboid.low[self.field], cuboid.high[self.field]);
        let wider = (0..=32).map(|length| {
            let host = u32::MAX.checked_shr(length).unwrap_or(0);
            (low & !host, low | host)
        });
        let wider = wider
            .filter(|&(start, end)| start < low || end > high)
            .filter_map(|key| self.by_address.get(&key));
        let within = self.by_address.range((low, 0)..=(high, u32::MAX)).filter(|((_, end), _)| *end <= high);
        for (earlier, set) in wider.chain(within.map(|(_, rules)| rules)).flatten() {
            if earlier.overlaps(cuboid) {
                each(earlier, *set);
            }
        }
    }
}

/// Divides rules, in the order of their priority, among maps in which no two overlap, such that a rule's map
/// stands behind those of all earlier rules that it overlaps: the first map that has a packet has its first
/// rule. The number of maps is the least that there is, the longest chain of rules of which each overlaps the
/// next. `None`: an earlier rule contains this one, which is never the first.
///
/// The kernel accepts elements that overlap as long as neither the lowest nor the highest key of the later
/// one is in an earlier one, but which of them it finds depends on their places: with AVX2, Linux 6.18 finds
/// the one that was inserted first among 256 neighbours only.
pub fn divide(rules: &[Rule]) -> (Vec<Option<usize>>, usize) {
    let mut indices = [Index::new(0), Index::new(1)];
    let mut maps = 0;
    let places = rules.iter().map(|rule| {
        let cuboid = Cuboid::of(&rule.fields);
        let length = |prefix: Option<Prefix>| prefix.map_or(0, |prefix| prefix.length());
        let by_destination = length(rule.fields.destination) >= length(rule.fields.source);
        let (mut at, mut hidden) = (0, false);
        indices[usize::from(by_destination)].overlapping(&cuboid, |earlier, map| {
            hidden |= earlier.contains(&cuboid);
            at = at.max(map + 1);
        });
        if hidden {
            return None;
        }
        indices.iter_mut().for_each(|index| index.insert(cuboid, at));
        maps = maps.max(at + 1);
        Some(at)
    });
    let places = places.collect();
    (places, maps)
}

/// Maps `s0`, `s1` …, whose elements lead to `verdict` and have counters, and the lines of a chain that asks
/// one after the other; how many there are.
pub fn maps(rules: &[Rule], verdict: &str) -> (String, String, usize) {
    let (places, sets) = divide(rules);
    let mut elements = vec![String::new(); sets];
    for (at, (rule, place)) in rules.iter().zip(&places).enumerate() {
        if let Some(place) = *place {
            let _ = writeln!(elements[place], "{} : {verdict},", Cuboid::of(&rule.fields).element(at));
        }
    }
    let (mut declared, mut lines) = (String::new(), String::new());
    for (set, elements) in elements.iter().enumerate() {
        let _ = writeln!(
            declared,
            "map s{set} {{\ntype {KEY} : verdict\nflags interval\ncounter\nelements = {{\n{elements}}}\n}}"
        );
        let _ = writeln!(lines, "{FIELDS} vmap @s{set}");
    }
    (declared, lines, sets)
}

/// The rules as those of a chain, first match first.
pub fn chain(rules: &[Rule], verdict: &str) -> String {
    let mut lines = String::new();
    for (at, rule) in rules.iter().enumerate() {
        let fields = &rule.fields;
        for (word, network) in [("saddr", fields.source), ("daddr", fields.destination)] {
            if let Some(network) = network {
                let _ = write!(lines, "ip {word} {network} ");
            }
        }
        if let Some(protocol) = fields.protocol {
            let _ = write!(lines, "meta l4proto {protocol} ");
        }
        for (word, ports) in [("sport", fields.source_ports), ("dport", fields.destination_ports)] {
            match (ports.low(), ports.high()) {
                _ if ports == PORTS_ANY => {}
                (low, high) if low == high => drop(write!(lines, "th {word} {low} ")),
                (low, high) => drop(write!(lines, "th {word} {low}-{high} ")),
            }
        }
        let _ = writeln!(lines, "counter {verdict} comment \"r{at}\"");
    }
    lines
}

/// A table that takes the place of the former one in one transaction. `hook` is the chain's declaration
/// without braces.
pub fn table(family: &str, declared: &str, hook: &str, lines: &str) -> String {
    format!(
        "table {family} csp\ndelete table {family} csp\ntable {family} csp {{\n{declared}chain c {{\n{hook}\n{lines}}}\n}}\n"
    )
}

/// Executes a ruleset; the error is what nft printed.
pub fn nft(text: &str) -> Result<(), String> {
    let mut child = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("nft of the package nftables: {error}"))?;
    let written = child.stdin.take().map(|mut input| input.write_all(text.as_bytes()));
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    match output.status.success() && matches!(written, Some(Ok(()))) {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).chars().take(300).collect()),
    }
}

/// Packets by rule, as the counters of the table `csp` in this family have them.
pub fn counted(family: &str, rules: usize) -> Vec<u64> {
    let output = Command::new("nft").args(["list", "table", family, "csp"]).output().expect("nft ran before");
    let text = String::from_utf8_lossy(&output.stdout);
    let mut counts = vec![0; rules];
    for entry in text.split("counter packets ").skip(1) {
        let packets = entry.split(' ').next().and_then(|number| number.parse().ok());
        let rule = entry.split("comment \"r").nth(1).and_then(|rest| rest.split('"').next());
        if let (Some(packets), Some(rule)) = (packets, rule.and_then(|rule| rule.parse::<usize>().ok())) {
            counts[rule] = packets;
        }
    }
    counts
}
