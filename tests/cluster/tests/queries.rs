//! Queries of the policy, with pyzmq programs outside and under `csp-run`: rows are compared with what the
//! records say.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

use std::fs;
use std::time::Duration;

use csp_cluster::schemas::sbe_schema;
use csp_cluster::{Cluster, Process, Tier, VIP, testing, wait_until};
use serde_json::{Value, json};

const DEADLINE: Duration = Duration::from_secs(90);
/// Records of each publisher: fewer than what waits for a query, so that a busy machine causes no loss.
const COUNT: i64 = 300;

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

/// What a reader knows of flights: a field that they have, wider, and one that they do not have.
fn board() -> String {
    sbe_schema(
        r#"package="board" id="41" version="0""#,
        r#"<type name="stand" primitiveType="int32" presence="optional"/>"#,
        r#"<sbe:message name="Board" id="1">
          <field name="delay" id="1" type="int64"/>
          <field name="stand" id="2" type="stand"/>
        </sbe:message>"#,
    )
}

fn policy() -> String {
    format!(
        "apiVersion: csp/v1\nformats:\n  - name: flight\n    schema: &airport |{}    message: Flight\n\
         \x20 - {{name: weather, schema: *airport, message: Weather}}\nchannels:\n\
         \x20 - {{name: flights, vip: {VIP}, port: 5601, formats: [flight], time: {{field: at, unit: s}}, requests: {{port: 5620, queries: 2}}}}\n\
         \x20 - {{name: winds, vip: {VIP}, port: 5602, formats: [weather], time: {{field: at, unit: s}}}}\nqueries:\n\
         \x20 - {{name: late, vip: {VIP}, port: 5611, output: json, sql: \"SELECT origin, delay FROM flights WHERE delay >= 100\"}}\n\
         \x20 - {{name: windy, vip: {VIP}, port: 5612, output: json, sql: \"SELECT f.origin, delay, wind FROM flights AS f JOIN \
         winds AS w ON f.origin = w.origin WITHIN 90 SECONDS\"}}\n\
         egress:\n  - {{address: 10.76.0.101, destinations: [\"10.76.0.0/24\"]}}\n",
        airport()
    )
}

fn outside(cluster: &Cluster, name: &str, arguments: &[&str]) -> Process {
    let mut command = cluster.client.command("/usr/bin/python3");
    command.arg(cluster.scratch().join("zmq_records.py")).args(arguments);
    Process::spawn(name, command, &cluster.scratch().join("log").join(format!("{name}.log"))).unwrap()
}

/// The rows that a subscriber has printed, in the order of their delays.
fn rows(cluster: &Cluster, process: &mut Process) -> Vec<Value> {
    let name = process.name().to_owned();
    let ended = wait_until(&name, DEADLINE, || process.exited());
    let status =
        ended.unwrap_or_else(|error| panic!("{error}: {}\n{}", process.log_tail(20), cluster.all_logs()));
    assert!(status.success(), "{}", process.log_tail(20));
    let mut rows: Vec<Value> =
        serde_json::from_str(fs::read_to_string(process.log()).unwrap().trim()).unwrap();
    rows.sort_by_key(|row| row["delay"].as_i64());
    rows
}

#[test]
fn rows_of_a_selection_and_a_join_reach_subscribers() {
    let Some(mut cluster) = testing::lay_out("queries") else { return };
    cluster.start_daemons().unwrap();
    let file = cluster.scratch().join("queries.yaml");
    fs::write(&file, policy()).unwrap();
    cluster.cspctl(&["policy", "apply", &file.to_string_lossy()]).unwrap();
    Tier::ALL.iter().for_each(|tier| cluster.wait_ready(*tier).unwrap());
    fs::write(cluster.scratch().join("zmq_records.py"), include_str!("../apps/zmq_records.py")).unwrap();
    let at = |port: u16| format!("tcp://{VIP}:{port}");
    let mut late = outside(&cluster, "late", &["rows", &at(5611), &(COUNT - 100).to_string()]);
    let mut windy = outside(&cluster, "windy", &["rows", &at(5612), &COUNT.to_string()]);
    // The network nodes know the places before anything is asked.
    let early = json!({"query": "SELECT origin, delay FROM flights WHERE delay < 100", "output": "json"});
    let mut early = outside(&cluster, "early", &["asked", &at(5601), "100", &early.to_string()]);
    let board = json!({"translate": {"schema": board()}, "output": "json"}).to_string();
    let mut board = outside(&cluster, "board", &["asked", &at(5601), &COUNT.to_string(), &board]);
    let subscribed = |name: &str| {
        let view: Value =
            serde_json::from_str(&cluster.cspctl(&["channels", "-o", "json"]).unwrap()).unwrap();
        view["channels"].as_array().unwrap().iter().any(|c| c["name"] == name && c["subscriptions"] == 1)
    };
    wait_until("subscribers", DEADLINE, || {
        ["late", "windy", "flights.1", "flights.2"].into_iter().all(subscribed).then_some(())
    })
    .unwrap_or_else(|error| panic!("{error}: {}", cluster.all_logs()));
    let script = cluster.scratch().join("zmq_records.py").to_string_lossy().into_owned();
    let (count, flights) = (COUNT.to_string(), at(5601));
    cluster.run_accelerated("flights", "/usr/bin/python3", &[&script, "flights", &flights, &count]).unwrap();
    let mut winds = outside(&cluster, "winds", &["winds", &at(5602), &count]);
    let origin = |n: i64| ["EWR", "JFK", "LGA"][(n % 3) as usize];
    let selected: Vec<Value> =
        (100..COUNT).map(|n| json!({"$message": "Row", "origin": origin(n), "delay": n})).collect();
    assert_eq!(rows(&cluster, &mut late), selected);
    let selected: Vec<Value> =
        (0..100).map(|n| json!({"$message": "Row", "origin": origin(n), "delay": n})).collect();
    assert_eq!(rows(&cluster, &mut early), selected, "asked for");
    let translated: Vec<Value> =
        (0..COUNT).map(|n| json!({"$message": "Board", "delay": n, "stand": null})).collect();
    assert_eq!(rows(&cluster, &mut board), translated, "in the reader's format");
    // Records of one origin are 180 s apart, so that each flight meets the wind of its own time alone.
    let joined: Vec<Value> =
        (0..COUNT).map(|n| json!({"$message": "Row", "origin": origin(n), "delay": n, "wind": n})).collect();
    assert_eq!(rows(&cluster, &mut windy), joined);
    let explained: Value =
        serde_json::from_str(&cluster.cspctl(&["query", "explain", "windy", "-o", "json"]).unwrap()).unwrap();
    assert_eq!(
        explained["placement"]["with"],
        json!(["flights", "flights.1", "flights.2", "late", "winds", "windy"])
    );
    let cost = &explained["cost"][0];
    assert_eq!(
        (&cost["handler"], &cost["messages_total"]),
        (&json!("query"), &json!(2 * COUNT)),
        "{explained}"
    );
    winds.kill();
    cluster.remove_program("flights");
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}
