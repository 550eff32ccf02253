//! Policies whose bounds contradict each other.

use crate::Policy;

const POLICY: &str = include_str!("../../fixtures/ticks.yaml");

fn parse(from: &str, to: &str) -> Result<Policy, String> {
    let text = POLICY.replacen(from, to, 1);
    assert!(from.is_empty() || text != POLICY, "{from}");
    Policy::parse_yaml(&text, "p.yaml").map_err(|error| error.to_string())
}

#[test]
fn bounds_that_contradict_each_other_are_refused_with_what_would_be_right() {
    assert_eq!(parse("", "").unwrap().warnings(), [""; 0], "the defaults fit each other");
    let (channel, query, flow) = ("formats: [tick]", "port: 5611", "{channel: ticks}");
    for (at, added, expected) in [
        (
            channel,
            "memory: {max_mib: 65}",
            "channels[0].memory.max_mib: 65 MiB are more than a proxy worker has for all messages: write at most 64",
        ),
        (query, "memory: {max_mib: 65}", "queries[0].memory.max_mib: 65 MiB are more"),
        (
            query,
            "memory: {max_mib: 8}",
            "queries[0].limits.waiting: 4096 messages do not fit half of memory.max_mib, 8 MiB: write at most 2048, or `memory: {max_mib: 16}`",
        ),
        (
            query,
            "limits: {waiting: 20000}",
            "queries[0].limits.waiting: 20000 messages do not fit half of memory.max_mib, 64 MiB: write at most 16384\n",
        ),
        (
            query,
            "limits: {rows: 8192, kib: 32}",
            "queries[0].limits.rows: 8192 rows of at least 8 bytes do not fit `kib`, 32: write at most 4096, or `kib: 64`",
        ),
        (
            flow,
            "queue: {kib: 65537}",
            "information_flows[0].queue.kib: 65537 KiB are more than a proxy worker has for all messages: write at most 65536",
        ),
        (
            channel,
            "memory: {guaranteed_mib: 57}",
            "channels: 10 channels, queries and places for queries have 69 MiB guaranteed together, and a proxy worker has 64 MiB",
        ),
    ] {
        let error = format!("{}\n", parse(at, &format!("{at}, {added}")).unwrap_err());
        assert!(error.contains(expected), "{added}\n{error}");
    }
    let places = "{port: 5680, queries: 20, limits: {waiting: 2048}}";
    let requested = parse("{port: 5680}", places).unwrap();
    assert_eq!(requested.channels[0].requests.as_ref().unwrap().queries, 20);
    let limits = parse("{port: 5680}", "{port: 5680, memory: {max_mib: 15}}").unwrap_err();
    assert!(
        limits.contains("channels[0].requests.limits.waiting: 4096 messages do not fit half"),
        "{limits}"
    );
}

/// More channels than a worker has numbers for are refused before, for each has memory of its own.
#[test]
fn channels_queries_and_places_fit_a_worker() {
    let more = |count: usize, options: &str| {
        let channel = |n: usize| {
            format!(
                "  - {{name: c{n}, vip: 10.77.0.1, port: {}, memory: {{guaranteed_mib: 1}}{options}}}\n",
                1_000 + n
            )
        };
        (0..count).map(channel).collect::<String>()
    };
    let with = |channels: &str| parse("queries:\n", &format!("{channels}queries:\n"));
    let small = |channels: &str| with(channels).map(drop);
    // ticks, big and eight places have 16 MiB.
    assert_eq!(small(&more(48, "")), Ok(()));
    assert!(small(&more(49, "")).unwrap_err().contains("65 MiB guaranteed together"));
    assert!(small(&more(247, "")).unwrap_err().contains("257 channels, queries and places"));
    let path = ", path: [{handler: forward}]";
    assert!(small(&more(48, path)).is_ok());
    let many = POLICY.replace("{port: 5680}", "{port: 5680, queries: 64, memory: {guaranteed_mib: 1}}");
    let error = Policy::parse_yaml(&many, "p.yaml").unwrap_err().to_string();
    assert!(
        error.contains("0 paths and derived channels, 1 queries and 64 places for queries on request"),
        "{error}"
    );
}

#[test]
fn bounds_that_are_never_reached_are_warnings() {
    for (from, to, expected) in [
        (
            "formats: [tick]",
            "formats: [tick], queue: {messages: 40000}",
            "a queue of channel ticks is never full: 40000 messages and 4096 KiB",
        ),
        (
            "formats: [tick]",
            "formats: [tick], memory: {guaranteed_mib: 1, max_mib: 2}",
            "write `queue: {messages: 1000, kib: 2048}` at most",
        ),
        (
            "formats: [tick]",
            "formats: [tick], last_value: {kib: 256}",
            "channel ticks keeps no message of more than 256 KiB as last value",
        ),
        ("port: 5611", "port: 5611, queue: {kib: 100000}", "a queue of query big is never full"),
    ] {
        let warnings = parse(from, to).unwrap().warnings();
        assert!(warnings.len() == 1 && warnings[0].contains(expected), "{expected}\n{warnings:?}");
    }
}
