use crate::Policy;

const BRANCHES: &str = include_str!("../../fixtures/branches.yaml");

#[test]
fn paths_divide_and_lead_to_channels_that_live_with_their_source() {
    let policy = Policy::parse_yaml(BRANCHES, "p.yaml").unwrap();
    let flights = &policy.channels[0];
    assert_eq!(flights.outlets(), ["late", "board"]);
    let handlers: Vec<&str> = flights.stages().iter().map(|stage| stage.handler.as_str()).collect();
    assert_eq!(handlers, ["select", "split", "to-json", "sample"]);
    assert_eq!(policy.source_of("late").map(|source| source.name.as_str()), Some("flights"));
    assert!(policy.source_of("flights").is_none());
    let keys = policy.placements();
    assert!(keys["late"] == keys["flights"] && keys["board"] == keys["flights"]);
    assert_eq!(Policy::from_json(&policy.to_json(), "p.json").unwrap(), policy);
    let without = Policy::parse_yaml(
        &BRANCHES.replace("sample, parameters: \"2\"", "sample, parameters: \"3\""),
        "p.yaml",
    );
    let diff = policy.diff(&without.unwrap()).join(" ");
    let expected = "path of flight select number > 0 on c0, split on c1 [whole WHERE delay > 60 to channel late] \
                    [number, delay, to-json  on c0 to channel board]";
    assert!(diff.contains(&expected.replace("to-json  on", "to-json on")), "{diff}");
    assert!(diff.contains("path of weather sample 3 on c0"), "{diff}");
}

/// Asserts what is said of a policy whose text `from` is replaced by `to`, for each case.
fn are_refused(cases: &[(&str, &str, &str)]) {
    for (from, to, expected) in cases {
        let text = BRANCHES.replacen(from, to, 1);
        let error = Policy::parse_yaml(&text, "p.yaml").unwrap_err().to_string();
        assert!(error.contains(expected), "{error}\n{expected}");
    }
}

#[test]
fn what_is_wrong_with_branches_is_named() {
    are_refused(&[
        (
            "format: weather",
            "format: wether",
            "paths[1].format: \"wether\" is none of the channel's `formats`; the nearest is",
        ),
        ("format: weather", "format: flight", "channels[0].paths[1].format: \"flight\" has a path already"),
        (
            "    paths:",
            "    path: [{handler: forward}]\n    paths:",
            "channels[0].paths: a channel has a `path` for all",
        ),
        (
            "channel: late",
            "channel: lat",
            "outputs[0].channel: there is no channel \"lat\"; the nearest is \"late\"",
        ),
        ("channel: late", "channel: flights", "outputs[0].channel: leave `channel` out"),
        (
            "context: c1\n",
            "context: c1\n            parameters: x\n",
            "path[1].parameters: each output says in `emit` what it gets",
        ),
        (
            "context: c1\n",
            "context: g0\n",
            "path[1].context: a handler with `outputs` runs in a context of the proxy worker",
        ),
        (
            "- {handler: select, parameters: \"number > 0\"}\n",
            "- {handler: multicast, outputs: [{}]}\n",
            "channels[0].paths[0].path[0].outputs: what follows a handler with `outputs` stands in the `path`",
        ),
        (
            "- {handler: select, parameters: \"number > 0\"}\n",
            "- {handler: forward}\n          - {handler: forward}\n          - {handler: forward}\n          - {handler: forward}\n          - {handler: forward}\n          - {handler: forward}\n          - {handler: forward}\n",
            "channels[0].paths[0].path: 9 handlers are too many; allowed are 8",
        ),
    ]);
}

#[test]
fn what_is_wrong_with_channels_behind_outputs_is_named() {
    are_refused(&[
        (
            "port: 5602",
            "port: 5602, formats: [flight]",
            "channels[1].formats: its messages are what outputs of flights emit",
        ),
        (
            "port: 5602",
            "port: 5602, pattern: push",
            "channels[1].pattern: its messages are what outputs of flights emit: it holds back nobody",
        ),
        (
            "port: 5602",
            "port: 5602, queue: {full: block}",
            "channels[1].queue.full: its messages are what outputs of flights",
        ),
        (
            "port: 5602",
            "port: 5602, framing: sofh, clients: both",
            "channels[1].clients: its messages are what outputs of flights emit: nobody publishes here",
        ),
        (
            "port: 5602",
            "port: 5602, listen: [{port: 5612, framing: sofh, clients: both}]",
            "channels[1].listen: its messages are what outputs of flights emit: nobody publishes here",
        ),
        (
            "port: 5602",
            "port: 5602, message_kib: 8",
            "channels[1].message_kib: flights has messages of up to 1024 KiB",
        ),
        (
            "port: 5603",
            "port: 5603, path: [{handler: multicast, outputs: [{channel: late}]}]",
            "outputs of flights lead to late already",
        ),
    ]);
}
