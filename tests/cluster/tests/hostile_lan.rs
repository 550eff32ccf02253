//! Frames that no correct host sends, from the client's LAN: dropped, counted by reason, and without effect
//! on others.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

use std::fs;
use std::time::Duration;

use csp_cluster::{Cluster, Fetch, Tier, VIP, testing, wait_until};

/// Seed of the frames, to replay them.
const SEED: &str = "20261121";

/// Not a drop: segments to ports without a service are answered.
const RESETS: &str = "csp_resets_sent_total";
/// Not a drop: beyond the limit of half-open connections SYNs are answered without storing state.
const COOKIES: &str = "csp_tcp_syn_cookies_sent_total";

/// A drop reason, or a metric's whole name.
type Counter = (Tier, &'static str);

/// Kind of attack (a method of `hostile.py`), number of frames, and the counters of which at least one must
/// increase.
const ATTACKS: [(&str, u32, &[Counter]); 15] = [
    ("garbage", 2000, &[]),
    ("garbage_ip", 2000, &[(Tier::NetworkNode, "malformed")]),
    ("truncated", 2000, &[(Tier::NetworkNode, "malformed")]),
    ("lengths", 1000, &[(Tier::NetworkNode, "malformed")]),
    ("offset", 500, &[(Tier::NetworkNode, "malformed")]),
    ("bad_ip_checksum", 500, &[(Tier::NetworkNode, "bad_checksum")]),
    ("bad_tcp_checksum", 500, &[(Tier::NetworkNode, "bad_checksum")]),
    ("fragment", 500, &[(Tier::NetworkNode, "fragment")]),
    ("closed_port", 500, &[(Tier::NetworkNode, RESETS)]),
    ("other_protocol", 500, &[(Tier::NetworkNode, "protocol")]),
    ("not_ours", 500, &[(Tier::NetworkNode, "not_ours")]),
    ("unknown_flow", 2000, &[(Tier::ProxyNode, "tcp_no_connection"), (Tier::NetworkNode, "no_flow")]),
    ("odd_flags", 500, &[(Tier::ProxyNode, "tcp_bad_flags"), (Tier::NetworkNode, "malformed")]),
    ("syn_flood", 6000, &[(Tier::ProxyNode, COOKIES)]),
    ("mutated", 6000, &[(Tier::NetworkNode, "bad_checksum")]),
];

fn counted(cluster: &Cluster, counters: &[Counter]) -> f64 {
    let one = |(tier, reason): &Counter| match *reason {
        name if name.starts_with("csp_") => cluster.metric(*tier, name, "").unwrap(),
        reason => cluster.metric(*tier, "csp_drops_total", &format!("reason=\"{reason}\"")).unwrap(),
    };
    counters.iter().map(one).sum()
}

/// Returns every non-zero drop counter, for error messages.
fn drop_counters(cluster: &Cluster) -> String {
    let mut text = String::new();
    for tier in [Tier::NetworkNode, Tier::ProxyNode] {
        let metrics = cluster.ask(tier, "/metrics").unwrap_or_default();
        let counted = |l: &&str| {
            ["csp_drops_total", "csp_half", "csp_flows"].iter().any(|n| l.starts_with(n))
                && !l.ends_with(" 0")
        };
        metrics.lines().filter(counted).for_each(|l| text += &format!("{} {l}\n", tier.daemon()));
    }
    text
}

/// Returns the network node's Ethernet address as resolved by the client.
fn ethernet(cluster: &Cluster) -> String {
    let text = cluster.client.run("ip", &["neighbour", "show", VIP]).unwrap();
    text.split_whitespace().skip_while(|word| *word != "lladdr").nth(1).expect(&text).to_owned()
}

fn attack(cluster: &Cluster, script: &str, kind: &str, count: u32, counters: &[Counter]) {
    let before = counted(cluster, counters);
    let count_text = count.to_string();
    let arguments = [script, "lan0", &ethernet(cluster), VIP, kind, &count_text, SEED];
    cluster.client.run("/usr/bin/python3", &arguments).unwrap();
    if !counters.is_empty() {
        let what = format!("a drop counted among {counters:?} after {count} frames of {kind}");
        wait_until(&what, Duration::from_secs(30), || (counted(cluster, counters) > before).then_some(()))
            .map_err(|error| error.context(drop_counters(cluster)))
            .unwrap();
    }
    cluster.wait_answer("1KiB").map_err(|error| error.context(format!("after {kind}"))).unwrap();
}

#[test]
fn hostile_frames_are_dropped_and_counted_and_the_service_goes_on() {
    let Some(mut cluster) = testing::lay_out("lan") else { return };
    cluster.serve().unwrap();
    let script = cluster.scratch().join("hostile.py");
    fs::write(&script, include_str!("../apps/hostile.py")).unwrap();
    let script = script.to_string_lossy().into_owned();
    println!("seed {SEED}");
    for (kind, count, counters) in ATTACKS {
        attack(&cluster, &script, kind, count, counters);
    }
    fs::write(cluster.scratch().join("www/4MiB"), testing::pattern(4 << 20)).unwrap();
    Fetch(&cluster).file("4MiB").unwrap();
    for tier in Tier::ALL {
        cluster.wait_ready(tier).unwrap();
    }
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}
