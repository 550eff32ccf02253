use crate::Policy;
use csp_types::options::{MonitorMode, Overflow, Scheme};

const FLOWS: &str = "\
apiVersion: csp/v1
channels:
  - name: gates
    vip: 10.76.0.100
    port: 5556
  - name: jobs
    vip: 10.76.0.100
    port: 5557
    pattern: push
    path: [{handler: forward}]
information_flows:
  - name: gates
    match: {channel: gates, source: 10.0.0.0/8, source_port: 1024-65535, destination: 10.76.0.0/16, port: 5556}
    priority: 9
    reserve: {mbps: 50, messages_per_s: 1000}
    message_bytes: 1500
  - name: jobs
    match: {channel: jobs}
    reserve: {contexts: 2}
    cost_us: 40
    queue: {messages: 100, kib: 64, full: hold}
  - name: default
    before: [sample-10, drop-when-full]
link:
  mbps: 200
  proxies:
    - {node: proxy-2, mbps: 100}
  quantum_kib: 32
  scheme: RR
  contexts: {worker_percent: 60}
  monitor: {mode: flows, every_us: 45, window_ms: 100}
  triggers:
    - name: jobs-full
      when: {flow: jobs, queue: {at: 90, back: 50}}
      hold_ms: 5
      back_ms: 200
      then: [{flow: default, install: drop}, {scheme: PAR}]
      back: [{flow: default, remove: drop}, {scheme: RR}]
    - name: gates-missed
      when: {flow: gates, missed: true}
      then: [{event: missed}, {flow: gates, priority: 20}]
  adapt: {flow: gates, surge_mbps: 60, ebb_mbps: 40}
";

#[test]
fn flows_and_link_are_read_and_written_back() {
    let policy = Policy::parse_yaml(FLOWS, "p.yaml").unwrap();
    let link = policy.link.as_ref().unwrap();
    assert_eq!((link.scheme, link.monitor.mode), (Scheme::RoundRobin, MonitorMode::Flows));
    assert_eq!(link.mbps_of(&csp_types::NodeId::parse(b"proxy-2").unwrap()), 100);
    assert_eq!(link.mbps_of(&csp_types::NodeId::parse(b"proxy-1").unwrap()), 200);
    assert_eq!(
        (policy.information_flows[1].queue.full, policy.information_flows[2].queue.messages),
        (Overflow::Hold, 256)
    );
    assert_eq!(Policy::from_json(&policy.to_json(), "p.json").unwrap(), policy);
}

#[test]
fn a_policy_without_flows_stays_as_it_was_and_differences_are_shown() {
    let policy = Policy::parse_yaml(FLOWS, "p.yaml").unwrap();
    let (before, _) = FLOWS.split_once("information_flows:").unwrap();
    let plain = Policy::parse_yaml(before, "p.yaml").unwrap();
    assert!(!plain.to_json().contains("information_flows") && !plain.to_json().contains("link"));
    let diff = plain.diff(&policy).join("\n");
    assert!(diff.contains("+ flow gates source 10.0.0.0/8") && diff.contains("+ link 200 Mb/s"), "{diff}");
    let mut other = policy.clone();
    other.information_flows[0].priority = 8;
    let diff = policy.diff(&other);
    assert_eq!(diff.len(), 2, "{diff:?}");
    other = policy.clone();
    other.link.as_mut().unwrap().triggers.pop();
    assert_eq!(policy.diff(&other).len(), 2, "a trigger is part of the link");
}

#[test]
fn what_is_wrong_is_named() {
    for (from, to, expected) in [
        (
            "channel: gates, source",
            "channel: gate, source",
            "information_flows[0].match.channel: \"gate\" is no channel or query of the policy",
        ),
        (
            "port: 5556}",
            "port: 5556, format: sbe}",
            "information_flows[0].match.format: \"sbe\" is not among the `formats` of \"gates\"",
        ),
        (
            "destination: 10.76.0.0/16",
            "destination: fd00::/8",
            "information_flows[0].match.destination: fd00::/8 is not of the family of 10.0.0.0/8",
        ),
        (
            "full: hold",
            "full: drop-oldest",
            "information_flows[1].queue.full: nothing of \"jobs\", a channel with `pattern: push`, is dropped; write hold",
        ),
        (
            "sample-10,",
            "sample-0,",
            "information_flows[2].before[0]: \"sample-0\" is no filter; allowed are drop, drop-when-full, sample-N",
        ),
        (
            "name: jobs\n    match",
            "name: gates\n    match",
            "information_flows[1].name: \"gates\" is the name of information_flows[0] already",
        ),
        (
            "  contexts: {worker_percent: 60}\n",
            "",
            "information_flows[1].reserve.contexts: contexts process messages of channels with a `path` in the proxy, if there are `link.contexts`",
        ),
        (
            "reserve: {contexts: 2}\n    cost_us: 40\n",
            "reserve: {contexts: 65}\n",
            "information_flows[1].reserve.contexts: 65 is not a number of contexts (0: none)",
        ),
        ("at: 90", "at: 50", "link.triggers[0].when.queue.at: 50 is not above `back`, 50: it would flap"),
        (
            "{flow: jobs, queue: {at: 90, back: 50}}",
            "{flow: jobs}",
            "link.triggers[0].when: a trigger watches one of queue, mbps",
        ),
        (
            "window_ms: 100",
            "window_ms: 10",
            "link.triggers[1].when.missed: promises hold in windows of 100 ms",
        ),
        ("mode: flows", "mode: queues", "link.monitor.mode: adaptation needs rates of flows; write flows"),
        (
            "scheme: RR\n  contexts",
            "scheme: PA\n  contexts",
            "link.scheme: PA is not what adaptation begins with; write RR",
        ),
        ("ebb_mbps: 40", "ebb_mbps: 60", "link.adapt.ebb_mbps: 60 is not below surge_mbps, 60"),
        (
            "{scheme: PAR}]",
            "{}]",
            "link.triggers[0].then[1]: an action is one of install, remove, priority, scheme, event",
        ),
        (
            "flow: jobs, queue",
            "flow: job, queue",
            "link.triggers[0].when.flow: \"job\" is no flow of the policy",
        ),
        ("link:\n  mbps: 200", "link:\n  mbps: 0", "0 is not a number of Mb/s; allowed is 1 to 1000000"),
    ] {
        let text = FLOWS.replacen(from, to, 1);
        assert_ne!(text, FLOWS, "{from}");
        let error = Policy::parse_yaml(&text, "p.yaml").unwrap_err();
        assert!(error.to_string().contains(expected), "{error}\nexpected {expected}");
    }
    let (flows, _) = FLOWS.split_once("link:").unwrap();
    let error = Policy::parse_yaml(flows, "p.yaml").unwrap_err();
    assert!(
        error.to_string().contains("information_flows: flows share an output link; say what it carries"),
        "{error}"
    );
}
