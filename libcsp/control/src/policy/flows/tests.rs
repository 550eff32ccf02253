use crate::Policy;
use crate::policy::{FlowFull, LinkScheme, MonitorMode};

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
flows:
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
    assert_eq!((link.scheme, link.monitor.mode), (LinkScheme::Rr, MonitorMode::Flows));
    assert_eq!(link.mbps_of(&csp_types::NodeId::parse(b"proxy-2").unwrap()), 100);
    assert_eq!(link.mbps_of(&csp_types::NodeId::parse(b"proxy-1").unwrap()), 200);
    assert_eq!((policy.flows[1].queue.full, policy.flows[2].queue.messages), (FlowFull::Hold, 256));
    assert_eq!(Policy::from_json(&policy.to_json(), "p.json").unwrap(), policy);
}

#[test]
fn a_policy_without_flows_stays_as_it_was_and_differences_are_shown() {
    let policy = Policy::parse_yaml(FLOWS, "p.yaml").unwrap();
    let (before, _) = FLOWS.split_once("flows:").unwrap();
    let plain = Policy::parse_yaml(before, "p.yaml").unwrap();
    assert!(!plain.to_json().contains("flows") && !plain.to_json().contains("link"));
    let diff = plain.diff(&policy).join("\n");
    assert!(diff.contains("+ flow gates source 10.0.0.0/8") && diff.contains("+ link 200 Mb/s"), "{diff}");
    let mut other = policy.clone();
    other.flows[0].priority = 8;
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
            "flows[0].match.channel: \"gate\" is no channel or query of the policy",
        ),
        (
            "port: 5556}",
            "port: 5556, format: sbe}",
            "flows[0].match.format: \"sbe\" is not among the `formats` of \"gates\"",
        ),
        (
            "destination: 10.76.0.0/16",
            "destination: fd00::/8",
            "flows[0].match.destination: fd00::/8 is not of the family of 10.0.0.0/8",
        ),
        (
            "full: hold",
            "full: drop-oldest",
            "flows[1].queue.full: nothing of \"jobs\", a channel with `pattern: push`, is dropped; write hold",
        ),
        (
            "sample-10,",
            "sample-0,",
            "flows[2].before[0]: \"sample-0\" is no filter; allowed are drop, drop-when-full, sample-N",
        ),
        (
            "name: jobs\n    match",
            "name: gates\n    match",
            "flows[1].name: \"gates\" is the name of flows[0] already",
        ),
        (
            "  contexts: {worker_percent: 60}\n",
            "",
            "flows[1].reserve.contexts: contexts process messages of channels with a `path` in the proxy, if there are `link.contexts`",
        ),
        (
            "reserve: {contexts: 2}\n    cost_us: 40\n",
            "reserve: {contexts: 65}\n",
            "flows[1].reserve.contexts: 65 is not a number of contexts (0: none)",
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
    assert!(error.to_string().contains("flows: flows share an output link; say what it carries"), "{error}");
}

const FIELDS: &str = r#"apiVersion: csp/v1
formats:
  - name: flight
    message: Flight
    schema: &schema |
      <messageSchema id="40" version="1"><types><composite name="messageHeader"><type name="blockLength" primitiveType="uint16"/>
      <type name="templateId" primitiveType="uint16"/><type name="schemaId" primitiveType="uint16"/><type name="version" primitiveType="uint16"/></composite>
      <type name="airport" primitiveType="char" length="3"/></types>
      <message name="Flight" id="1"><field name="origin" id="1" type="airport"/><field name="delay" id="2" type="int16"/><field name="gate" id="3" type="int16"/></message>
      <message name="Weather" id="2"><field name="origin" id="1" type="airport"/><field name="wind" id="2" type="double"/><field name="gate" id="3" type="double"/></message>
      </messageSchema>
  - {name: weather, message: Weather, schema: *schema}
channels:
  - {name: airport, vip: 10.76.0.100, port: 5556, formats: [weather, flight]}
  - {name: bulk, vip: 10.76.0.100, port: 5557}
flows:
  - {name: late, match: {channel: airport, where: delay > 60 AND origin = 'EWR'}, priority: 9}
  - {name: storm, match: {channel: airport, format: weather, where: wind >= 20.5}}
  - {name: newark, match: {channel: airport, where: origin = 'EWR'}}
link: {mbps: 200}
"#;

#[test]
fn flows_name_fields_of_their_channel_s_formats() {
    let policy = Policy::parse_yaml(FIELDS, "p.yaml").unwrap();
    assert_eq!(Policy::from_json(&policy.to_json(), "p.json").unwrap(), policy);
    let catalogue = policy.catalogue();
    assert_eq!(policy.flow_fields(&catalogue, "airport"), ["delay", "origin", "wind"]);
    assert!(policy.flow_fields(&catalogue, "bulk").is_empty());
    let formats = policy.flows.iter().map(|flow| policy.flow_condition(&catalogue, flow).unwrap().format);
    // What only one format has is of this format; what all have alike is of all.
    assert_eq!(formats.collect::<Vec<_>>(), [Some(1), Some(0), None]);
    let readers = policy.flow_readers(&catalogue, "airport");
    let numbers = |at: usize| readers[at].1.fields.iter().map(|field| field.0).collect::<Vec<_>>();
    assert_eq!((readers[0].0, numbers(0), readers[1].0, numbers(1)), (1, vec![1, 2], 2, vec![0, 1]));
    let mut other = policy.clone();
    other.flows[0].predicate.condition = Some("delay > 61".to_owned());
    let diff = policy.diff(&other).join("\n");
    assert!(diff.contains("+ flow late channel airport where delay > 61 "), "{diff}");
}

#[test]
fn what_is_wrong_with_fields_is_named() {
    let nine = (0..9)
        .map(|at| format!("    <field name=\"f{at}\" id=\"{}\" type=\"int16\"/>", at + 9))
        .collect::<String>();
    let of_nine = (0..9)
        .map(|at| format!("  - {{name: f{at}, match: {{channel: airport, where: f{at} = 1}}}}\n"))
        .collect::<String>();
    for (from, to, expected) in [
        (
            "delay > 60 AND",
            "dely > 60 AND",
            "flows[0].match.where: format weather: line 1, column 1: there is no column \"dely\"",
        ),
        (
            "delay > 60 AND",
            "delay > 60 OR",
            "flows[0].match.where: format weather: line 1, column 1: there is no column \"delay\"",
        ),
        (
            "wind >= 20.5",
            "wind >= 20.5 OR wind < 1",
            "flows[1].match.where: format weather: only comparisons of a field with a constant can stand here",
        ),
        (
            "wind >= 20.5",
            "delay > 1",
            "flows[1].match.where: format weather: line 1, column 1: there is no column \"delay\"",
        ),
        (
            "where: origin = 'EWR'",
            "where: gate = 7",
            "flows[2].match.where: it fits weather and flight, and not all formats with the same meaning; name one in `format`",
        ),
        (
            "channel: airport, where: origin",
            "channel: bulk, where: origin",
            "flows[2].match.where: fields are of messages of a channel with `formats`; name it with `channel`",
        ),
        (
            "channel: airport, where: origin",
            "port: 7, where: origin",
            "flows[2].match.where: fields are of messages of a channel with `formats`; name it with `channel`",
        ),
        (
            "where: delay > 60 AND origin = 'EWR'",
            "source_port: 1-2, port: 3-4, format: flight, where: delay > 60 AND gate > 1 AND origin < 'Z'",
            "flows[0].match.where: 5 conditions are ranges, ports included; at most 4 can be",
        ),
    ] {
        let text = FIELDS.replacen(from, to, 1);
        assert_ne!(text, FIELDS, "{from}");
        let error = Policy::parse_yaml(&text, "p.yaml").unwrap_err();
        assert!(error.to_string().contains(expected), "{error}\nexpected {expected}");
    }
    let text = FIELDS.replacen("</message>", &format!("{nine}</message>"), 1).replacen(
        "link:",
        &format!("{of_nine}link:"),
        1,
    );
    let error = Policy::parse_yaml(&text, "p.yaml").unwrap_err().to_string();
    assert!(
        error.contains("flows: flows read 12 fields of messages of \"airport\" (delay, origin, wind, f0"),
        "{error}"
    );
}
