//! Orders the events of several hosts.
//!
//! Nodes record events by their host's CLOCK_MONOTONIC; the clocks of two hosts are unrelated. The trace
//! itself bounds the offset between them: a segment leaves the network node before it reaches the proxy, and
//! bytes are sent before they are received.
//!
//! ```text
//!  host H      cause h1 ──────────▶ effect r1     offset (H − reference) ≥ h1 − r1
//!  reference   cause r2 ──────────▶ effect h2     offset (H − reference) ≤ h2 − r2
//! ```
//! Every offset between the two bounds places each cause before its effect. The estimate is their middle; its
//! uncertainty is half their distance. Offsets only serve the display of traces: no node uses them.

use std::collections::BTreeMap;

use csp_api::mgmt::{ClockView, TraceEventView};
use csp_api::{Text, Tier};

/// Pairs of kinds, cause and effect, that occur once for each segment.
const SEGMENTS: [(&str, &str); 2] = [("lan-in", "segment-in"), ("segment-out", "lan-out")];
/// Pairs of kinds, cause and effect, that occur once in a connection.
const ONCE: [(&str, &str); 2] = [("open-sent", "app-open"), ("app-close", "close-received")];
/// Pairs of kinds, cause and effect, that carry the same byte stream.
const BYTES: [(&str, &str); 2] = [("data-sent", "app-data-in"), ("app-data-out", "data-received")];
/// Kinds that show that a connection changed hands: each of its processes has recorded a part of the bytes.
const HANDED: [&str; 3] = ["handed-over", "taken-over", "app-handed-over"];

/// Bounds of a clock's offset, as far as known.
#[derive(Clone, Copy, Default)]
struct Bounds {
    least: Option<i128>,
    most: Option<i128>,
}

impl Bounds {
    fn at_least(&mut self, bound: i128) {
        self.least = Some(self.least.map_or(bound, |least| least.max(bound)));
    }

    fn at_most(&mut self, bound: i128) {
        self.most = Some(self.most.map_or(bound, |most| most.min(bound)));
    }

    /// The estimated offset, and its uncertainty if both bounds are known. Without bounds the offset is 0.
    fn choice(self) -> (i128, Option<i128>) {
        match (self.least, self.most) {
            // Rounded down, so that the estimate lies between the bounds.
            (Some(least), Some(most)) => {
                ((least + most).div_euclid(2), Some(((most - least).abs() + 1).div_euclid(2)))
            }
            (Some(one), None) | (None, Some(one)) => (one, None),
            (None, None) => (0, None),
        }
    }
}

/// Converts the times of `events` to the clock of the first proxy's host, and sorts them. Returns the
/// estimated offsets of the other hosts' clocks; none if all events are from one host.
pub fn align(events: &mut [TraceEventView], host_of: impl Fn(&str) -> String) -> Vec<ClockView> {
    let hosts: Vec<String> = events.iter().map(|event| host_of(&event.node)).collect();
    let first = events.iter().position(|event| event.tier == Tier::ProxyNode).unwrap_or(0);
    let Some(reference) = hosts.get(first).cloned() else { return Vec::new() };
    let mut bounds: BTreeMap<&str, Bounds> = BTreeMap::new();
    for host in hosts.iter().filter(|host| **host != reference) {
        bounds.entry(host).or_default();
    }
    if !bounds.is_empty() {
        for (cause, effect) in pairs(events) {
            let (before, after) = (i128::from(events[cause].t_ns), i128::from(events[effect].t_ns));
            match (hosts[cause] == reference, hosts[effect] == reference) {
                (false, true) => bounds.entry(&hosts[cause]).or_default().at_least(before - after),
                (true, false) => bounds.entry(&hosts[effect]).or_default().at_most(after - before),
                _ => {}
            }
        }
    }
    let offsets: BTreeMap<&str, _> = bounds.iter().map(|(host, bounds)| (*host, bounds.choice())).collect();
    for (event, host) in events.iter_mut().zip(&hosts) {
        if let Some((offset, _)) = offsets.get(host.as_str()) {
            event.t_ns = u64::try_from(i128::from(event.t_ns) - offset).unwrap_or(0);
        }
    }
    let view = |(host, (offset, uncertainty)): (&&str, &(i128, Option<i128>))| ClockView {
        nodes: nodes_of(events, &hosts, host),
        offset_ns: i64::try_from(*offset).unwrap_or(i64::MAX),
        uncertainty_ns: uncertainty.and_then(|ns| u64::try_from(ns).ok()),
    };
    let clocks = offsets.iter().map(view).collect();
    // The sort is stable: events of one node with equal times keep the order of its ring.
    events.sort_by_key(|event| event.t_ns);
    clocks
}

fn nodes_of(events: &[TraceEventView], hosts: &[String], host: &str) -> Vec<Text> {
    let of_host = events.iter().zip(hosts).filter(|(_, of)| *of == host);
    let mut nodes: Vec<Text> = of_host.map(|(event, _)| event.node.clone()).collect();
    nodes.sort();
    nodes.dedup();
    nodes
}

/// Pairs of cause and effect, as indices of `events`.
fn pairs(events: &[TraceEventView]) -> Vec<(usize, usize)> {
    let of_kind =
        |kind: &str| -> Vec<usize> { (0..events.len()).filter(|at| events[*at].kind == kind).collect() };
    let mut pairs = Vec::new();
    for (cause, effect) in SEGMENTS {
        pairs.extend(same_segments(events, &of_kind(cause), &of_kind(effect)));
    }
    if events.iter().any(|event| HANDED.contains(&event.kind.as_str())) {
        return pairs;
    }
    for (cause, effect) in ONCE {
        if let ([cause], [effect]) = (&of_kind(cause)[..], &of_kind(effect)[..]) {
            pairs.push((*cause, *effect));
        }
    }
    // Bytes are counted from the stream's beginning, so both records must contain it.
    if let ([_], [_]) = (&of_kind("open-sent")[..], &of_kind("app-open")[..]) {
        for (cause, effect) in BYTES {
            pairs.extend(same_bytes(events, &of_kind(cause), &of_kind(effect)));
        }
    }
    pairs
}

/// Pairs equal segments in order of time. Segments that one side recorded more often than the other (because
/// of loss, or of a ring that was overwritten) give no pair.
fn same_segments(events: &[TraceEventView], causes: &[usize], effects: &[usize]) -> Vec<(usize, usize)> {
    let key = |at: usize| {
        let event = &events[at];
        (event.flags, event.seq, event.ack, event.len)
    };
    let mut by_key: BTreeMap<_, (Vec<usize>, Vec<usize>)> = BTreeMap::new();
    causes.iter().for_each(|at| by_key.entry(key(*at)).or_default().0.push(*at));
    effects.iter().for_each(|at| by_key.entry(key(*at)).or_default().1.push(*at));
    let equal = by_key.into_values().filter(|(causes, effects)| causes.len() == effects.len());
    equal.flat_map(|(causes, effects)| causes.into_iter().zip(effects)).collect()
}

/// Pairs each effect with the cause that carried its last byte.
fn same_bytes(events: &[TraceEventView], causes: &[usize], effects: &[usize]) -> Vec<(usize, usize)> {
    let mut pairs = Vec::new();
    let (mut sent, mut received, mut causes) = (0, 0, causes.iter());
    let mut cause = None;
    for effect in effects {
        received += events[*effect].len;
        while sent < received {
            let Some(next) = causes.next() else { return pairs };
            (cause, sent) = (Some(*next), sent + events[*next].len);
        }
        pairs.extend(cause.map(|cause| (cause, *effect)));
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000_000_000;

    /// An event of a node whose clock is `ahead` of the proxy's.
    fn event(
        at: u64,
        ahead: u64,
        (node, tier): (&str, Tier),
        kind: &str,
        seq: u32,
        len: u32,
    ) -> TraceEventView {
        TraceEventView {
            t_ns: HOUR + at + ahead,
            node: node.into(),
            tier,
            worker: 0,
            kind: kind.into(),
            label: csp_types::FlowLabel::NONE,
            flags: 0,
            seq,
            ack: 0,
            len,
            detail: Text::default(),
            related: None,
        }
    }

    const NETWORK: (&str, Tier) = ("nn-1", Tier::NetworkNode);
    const PROXY: (&str, Tier) = ("pn-1", Tier::ProxyNode);
    const APP: (&str, Tier) = ("an-1", Tier::Application);

    /// A request and its answer as three hosts record it: by node, each in its own order.
    fn request(network_ahead: u64, app_ahead: u64) -> Vec<TraceEventView> {
        vec![
            event(0, network_ahead, NETWORK, "lan-in", 1, 0),
            event(70, network_ahead, NETWORK, "lan-out", 9, 0),
            event(200, network_ahead, NETWORK, "lan-in", 2, 80),
            event(700, network_ahead, NETWORK, "lan-out", 10, 500),
            event(30, 0, PROXY, "segment-in", 1, 0),
            event(40, 0, PROXY, "segment-out", 9, 0),
            event(240, 0, PROXY, "segment-in", 2, 80),
            event(250, 0, PROXY, "open-sent", 0, 0),
            event(260, 0, PROXY, "data-sent", 0, 80),
            event(600, 0, PROXY, "data-received", 0, 500),
            event(620, 0, PROXY, "segment-out", 10, 500),
            event(320, app_ahead, APP, "app-open", 0, 0),
            event(330, app_ahead, APP, "app-data-in", 0, 80),
            event(540, app_ahead, APP, "app-data-out", 0, 500),
        ]
    }

    fn check_order(mut events: Vec<TraceEventView>, hosts: usize) -> Vec<ClockView> {
        let host_of = |node: &str| if hosts == 1 { "one".to_owned() } else { node.to_owned() };
        let clocks = align(&mut events, host_of);
        let kinds: Vec<_> = events.iter().map(|event| event.kind.as_str()).collect();
        let expected = [
            "lan-in",
            "segment-in",
            "segment-out",
            "lan-out",
            "lan-in",
            "segment-in",
            "open-sent",
            "data-sent",
            "app-open",
            "app-data-in",
            "app-data-out",
            "data-received",
            "segment-out",
            "lan-out",
        ];
        assert_eq!(kinds, expected);
        clocks
    }

    #[test]
    fn events_of_hosts_whose_clocks_are_hours_apart_are_in_order() {
        for (network, app) in [(0, 0), (5 * HOUR, 700), (3, 99 * HOUR), (HOUR, HOUR)] {
            let clocks = check_order(request(network, app), 3);
            for (clock, ahead) in clocks.iter().zip([app, network]) {
                let uncertainty = clock.uncertainty_ns.expect("there are pairs in both directions");
                let error = (clock.offset_ns - ahead as i64).unsigned_abs();
                assert!(error <= uncertainty && uncertainty <= 80, "{clock:?} for {ahead}");
            }
            assert_eq!(clocks.iter().map(|c| &c.nodes[0][..]).collect::<Vec<_>>(), ["an-1", "nn-1"]);
        }
    }

    #[test]
    fn one_host_needs_no_offset() {
        assert!(check_order(request(0, 0), 1).is_empty());
    }

    #[test]
    fn a_clock_that_nothing_bounds_is_left_alone_and_said_so() {
        let mut events =
            vec![event(10, 0, PROXY, "segment-in", 1, 0), event(20, HOUR, NETWORK, "label-bound", 0, 0)];
        let clocks = align(&mut events, str::to_owned);
        assert_eq!((clocks[0].offset_ns, clocks[0].uncertainty_ns), (0, None));
        // One direction bounds it on one side.
        let mut events =
            vec![event(10, 0, PROXY, "segment-in", 1, 0), event(0, HOUR, NETWORK, "lan-in", 1, 0)];
        let clocks = align(&mut events, str::to_owned);
        assert_eq!((clocks[0].offset_ns, clocks[0].uncertainty_ns), (HOUR as i64 - 10, None));
        assert!(align(&mut [], str::to_owned).is_empty());
    }

    #[test]
    fn segments_that_one_side_saw_more_often_bound_nothing() {
        let mut events = vec![
            event(0, HOUR, NETWORK, "lan-in", 1, 0),
            event(1_000, HOUR, NETWORK, "lan-in", 1, 0),
            event(1_010, 0, PROXY, "segment-in", 1, 0),
        ];
        assert_eq!(align(&mut events, str::to_owned)[0].uncertainty_ns, None);
    }
}
