//! Paths that divide: a path for each of two formats, and outputs that lead to channels of their own,
//! replaced while messages pass. With pyzmq programs outside and under `csp-run`.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

use std::fs;
use std::time::Duration;

use csp_cluster::schemas::sbe_schema;
use csp_cluster::{Cluster, Process, Tier, VIP, testing, wait_until};
use serde_json::{Value, json};

const DEADLINE: Duration = Duration::from_secs(90);
/// Flights; they take some seconds, in which the policy changes.
const COUNT: i64 = 300;
const WINDS: i64 = 100;
/// Winds below pass the path of their format.
const CALM: i64 = 50;

fn airport() -> String {
    sbe_schema(
        r#"package="airport" id="40" version="1""#,
        r#"<type name="airport" primitiveType="char" length="3"/>"#,
        r#"<sbe:message name="Flight" id="1">
          <field name="origin" id="1" type="airport"/>
          <field name="delay" id="2" type="int16"/>
          <field name="at" id="3" type="int64"/>
        </sbe:message>
        <sbe:message name="Weather" id="2">
          <field name="origin" id="1" type="airport"/>
          <field name="wind" id="2" type="int16"/>
          <field name="at" id="3" type="int64"/>
        </sbe:message>"#,
    )
}

/// A policy whose channel divides flights in a context, with further outputs.
fn policy(context: &str, further: &str) -> String {
    format!(
        "apiVersion: csp/v1\nformats:\n  - name: flight\n    schema: &airport |{}    message: Flight\n\
         \x20 - {{name: weather, schema: *airport, message: Weather}}\nchannels:\n\
         \x20 - name: flights\n    vip: {VIP}\n    port: 5601\n    formats: [flight, weather]\n    paths:\n\
         \x20     - format: flight\n        path:\n          - handler: split\n            context: {context}\n            outputs:\n\
         \x20             - {{emit: whole WHERE delay >= 100, path: [{{handler: to-json}}], channel: late}}\n\
         \x20             - {{emit: \"origin, delay\", path: [{{handler: to-json, context: c2}}], channel: board}}\n\
         \x20             - {{path: [{{handler: to-json}}]}}\n{further}\
         \x20     - format: weather\n        path: [{{handler: select, parameters: \"wind < {CALM}\"}}, {{handler: to-json}}]\n\
         \x20 - {{name: late, vip: {VIP}, port: 5602}}\n  - {{name: board, vip: {VIP}, port: 5603}}\n\
         \x20 - {{name: raw, vip: {VIP}, port: 5604}}\n\
         egress:\n  - {{address: 10.76.0.101, destinations: [\"10.76.0.0/24\"]}}\n",
        airport()
    )
}

fn apply(cluster: &Cluster, text: &str) {
    let file = cluster.scratch().join("branches.yaml");
    fs::write(&file, text).unwrap();
    cluster.cspctl(&["policy", "apply", &file.to_string_lossy()]).unwrap();
}

fn outside(cluster: &Cluster, name: &str, arguments: &[&str]) -> Process {
    let mut command = cluster.client.command("/usr/bin/python3");
    command.arg(cluster.scratch().join("zmq_records.py")).args(arguments);
    Process::spawn(name, command, &cluster.scratch().join("log").join(format!("{name}.log"))).unwrap()
}

/// The messages that a subscriber has printed, in their order.
fn received(cluster: &Cluster, process: &mut Process) -> Vec<Value> {
    let name = process.name().to_owned();
    let ended = wait_until(&name, DEADLINE, || process.exited());
    let status =
        ended.unwrap_or_else(|error| panic!("{error}: {}\n{}", process.log_tail(20), cluster.all_logs()));
    assert!(status.success(), "{}", process.log_tail(20));
    serde_json::from_str(fs::read_to_string(process.log()).unwrap().trim()).unwrap()
}

/// A figure of a channel.
fn figure(cluster: &Cluster, channel: &str, figure: &str) -> i64 {
    let view: Value = serde_json::from_str(&cluster.cspctl(&["channels", "-o", "json"]).unwrap()).unwrap();
    let channels = view["channels"].as_array().unwrap();
    channels
        .iter()
        .find(|known| known["name"] == channel)
        .and_then(|known| known[figure].as_i64())
        .unwrap_or(0)
}

#[test]
fn formats_have_paths_and_outputs_lead_to_channels_while_the_policy_changes() {
    let Some(mut cluster) = testing::lay_out("branches") else { return };
    cluster.start_daemons().unwrap();
    apply(&cluster, &policy("c1", ""));
    Tier::ALL.iter().for_each(|tier| cluster.wait_ready(*tier).unwrap());
    fs::write(cluster.scratch().join("zmq_records.py"), include_str!("../apps/zmq_records.py")).unwrap();
    let at = |port: u16| format!("tcp://{VIP}:{port}");
    let rows =
        |name: &str, port: u16, count: i64| outside(&cluster, name, &["rows", &at(port), &count.to_string()]);
    let mut subscribers = [
        ("flights", rows("all", 5601, COUNT + CALM)),
        ("late", rows("late", 5602, COUNT - 100)),
        ("board", rows("board", 5603, COUNT)),
    ];
    wait_until("subscribers", DEADLINE, || {
        let is_there = |name: &str| figure(&cluster, name, "subscriptions") == 1;
        ["flights", "late", "board"].into_iter().all(is_there).then_some(())
    })
    .unwrap_or_else(|error| panic!("{error}: {}", cluster.all_logs()));
    let script = cluster.scratch().join("zmq_records.py").to_string_lossy().into_owned();
    let (count, flights) = (COUNT.to_string(), at(5601));
    let arguments = [&script[..], "flights", &flights, &count, "0.05"];
    cluster.run_accelerated("flights", "/usr/bin/python3", &arguments).unwrap();
    let mut winds = outside(&cluster, "winds", &["winds", &flights, &WINDS.to_string(), "0.02"]);

    // Another context, and one output more, while messages pass.
    wait_until("rows", DEADLINE, || (figure(&cluster, "board", "messages_total") > 20).then_some(()))
        .unwrap_or_else(|error| panic!("{error}: {}", cluster.all_logs()));
    apply(&cluster, &policy("c3", "              - {channel: raw}\n"));
    wait_until("the new output", DEADLINE, || (figure(&cluster, "raw", "messages_total") > 0).then_some(()))
        .unwrap_or_else(|error| panic!("{error}: {}", cluster.all_logs()));
    let passed = figure(&cluster, "board", "messages_total");
    assert!(passed < COUNT, "the policy has changed while messages passed: {passed}");

    let origin = |n: i64| ["EWR", "JFK", "LGA"][(n % 3) as usize];
    let flight = |n: i64| json!({"$message": "Flight", "origin": origin(n), "delay": n, "at": 60 * n});
    let wind = |n: i64| json!({"$message": "Weather", "origin": origin(n), "wind": n, "at": 60 * n});
    let row = |n: i64| json!({"$message": "Row", "origin": origin(n), "delay": n});
    let [all, late, board] = subscribers.each_mut().map(|(_, subscriber)| received(&cluster, subscriber));
    let (of_flights, of_winds): (Vec<Value>, Vec<Value>) =
        all.into_iter().partition(|message| message["$message"] == "Flight");
    assert_eq!(of_flights, (0..COUNT).map(flight).collect::<Vec<_>>());
    assert_eq!(of_winds, (0..CALM).map(wind).collect::<Vec<_>>());
    assert_eq!(late, (100..COUNT).map(flight).collect::<Vec<_>>());
    assert_eq!(board, (0..COUNT).map(row).collect::<Vec<_>>());
    for channel in ["flights", "late", "board"] {
        assert_eq!(figure(&cluster, channel, "dropped_total"), 0, "{channel}");
    }

    let explained = cluster.cspctl(&["path", "explain", "flights", "-o", "json"]).unwrap();
    let explained: Value = serde_json::from_str(&explained).unwrap();
    let outputs = explained["paths"][0]["stages"][0]["outputs"].as_array().unwrap();
    let to: Vec<&Value> = outputs.iter().map(|output| &output["to"]).collect();
    assert_eq!(to, ["stage 1", "stage 2", "stage 3", "channel raw"], "{explained}");
    assert_eq!(explained["paths"][0]["stages"][1]["outputs"][0]["to"], "channel late");
    assert_eq!(explained["placement"]["with"], json!(["board", "flights", "late", "raw"]));
    let text = cluster.cspctl(&["path", "explain", "flights"]).unwrap();
    assert!(text.contains("path of weather") && text.contains("      to channel late\n"), "{text}");
    let source = cluster.cspctl(&["path", "explain", "late"]).unwrap();
    assert!(source.contains("outputs of flights lead here"), "{source}");
    winds.kill();
    cluster.remove_program("flights");
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}
