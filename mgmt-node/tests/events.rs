//! Events from node to reader: real management nodes, a node that pushes, `cspctl events`.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_types, reason = "waits for daemons")]

mod support;

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use csp_api::events::What;
use csp_control::NodeRecord;
use csp_daemon::Events;
use csp_types::Role;
use serde_json::Value;
use support::{Mgmt, eventually};

fn record(id: &str) -> NodeRecord {
    NodeRecord::new(id.parse().expect("an id"), Role::ProxyNode, String::new())
}

async fn pushing(events: &Events, to: &[&Mgmt]) -> tokio::task::AbortHandle {
    let own = "pn-9".parse().expect("an id");
    tokio::spawn(csp_daemon::events::push(events.clone(), own, support::membership(to), None)).abort_handle()
}

async fn page(mgmt: &Mgmt, query: &str) -> Value {
    mgmt.get(&format!("/api/v1/events?{query}")).await.expect("an answer")
}

fn numbers(page: &Value) -> Vec<u64> {
    page["events"].as_array().expect("events").iter().filter_map(|e| e["sequence"].as_u64()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_management_node_has_all_events_and_a_new_one_gets_them() {
    if !csp_support::installed("etcd", "etcd-server") {
        return;
    }
    let first = Mgmt::start().await;
    let second = Mgmt::join(&first, "mgmt-2").await;
    let events = Events::of(&record("pn-9"));
    let _pushing = pushing(&events, &[&first, &second]).await;
    for generation in 1..=1500 {
        events.record(&What::PolicyStagedHere { generation });
    }
    for mgmt in [&first, &second] {
        // What this one read goes on at the other one.
        let mut read = Vec::new();
        let mut since = "1~0~0".to_owned();
        while read.len() < 1500 {
            let page =
                page(mgmt, &format!("since={since}&wait_s=10&limit=499&kind=policy_staged_here")).await;
            since = page["cursor"].as_str().expect("a cursor").to_owned();
            read.extend(numbers(&page));
        }
        assert_eq!(read, (1..=1500).collect::<Vec<_>>());
        let other = page(&second, &format!("since={since}&kind=policy_staged_here")).await;
        assert_eq!((numbers(&other).len(), &other["missed"]), (0, &0.into()));
    }
    // The leader announced both; nobody did so twice.
    let joined = eventually("both have joined", async || {
        let page = page(&second, "kind=node_joined").await;
        let objects: Vec<String> = page["events"]
            .as_array()?
            .iter()
            .map(|event| event["object"].as_str().unwrap_or_default().to_owned())
            .collect();
        (objects.len() >= 2).then_some(objects)
    })
    .await;
    assert_eq!(joined.iter().collect::<BTreeSet<_>>().len(), joined.len(), "{joined:?}");
    let third = Mgmt::join(&first, "mgmt-3").await;
    let all = pushing(&events, &[&third]).await;
    eventually("a new management node has all", async || {
        let page = page(&third, "kind=policy_staged_here&limit=1").await;
        (numbers(&page) == [1500]).then_some(())
    })
    .await;
    all.abort();
    let ran = first.cspctl(&["events", "--kind", "policy_staged_here", "--limit", "2"]).await;
    assert!(ran.out.contains("info     pn-9      policy/1500  can use generation 1500"), "{}", ran.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_sees_an_event_at_once_while_another_one_does_not_read() {
    if !csp_support::installed("etcd", "etcd-server") {
        return;
    }
    let mgmt = Mgmt::start().await;
    let events = Events::of(&record("pn-9"));
    let _pushing = pushing(&events, &[&mgmt]).await;
    let mut since = page(&mgmt, "limit=1").await["cursor"].as_str().expect("a cursor").to_owned();
    let stopped = since.clone();
    for generation in 1..=20 {
        let query = format!("since={since}&wait_s=10&object=policy/");
        let waits = page(&mgmt, &query);
        let (page, began) = tokio::join!(waits, async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            events.record(&What::PolicyActiveHere { generation });
            Instant::now()
        });
        assert_eq!(numbers(&page), [generation], "{page}");
        assert!(began.elapsed() < Duration::from_secs(2));
        since = page["cursor"].as_str().expect("a cursor").to_owned();
    }
    let all = page(&mgmt, &format!("since={stopped}&object=policy/&limit=500")).await;
    assert_eq!(numbers(&all), (1..=20).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn publications_and_changes_by_people_are_events() {
    if !csp_support::installed("etcd", "etcd-server") {
        return;
    }
    let mgmt = Mgmt::start().await;
    let policy = mgmt.scratch.file("policy.yaml", "apiVersion: csp/v1\n");
    let path = policy.to_str().expect("a path");
    let ran = mgmt.cspctl(&["policy", "apply", path]).await;
    assert_eq!(ran.code, 0, "{}", ran.err);
    let page = page(&mgmt, "kind=policy_published,policy_active,change_requested").await;
    let kinds: Vec<&str> =
        page["events"].as_array().expect("events").iter().filter_map(|e| e["kind"].as_str()).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind != "change_requested").count(), 2, "{kinds:?}");
    let change = page["events"].as_array().expect("events").iter().find(|e| e["kind"] == "change_requested");
    let fields = &change.expect("a change")["fields"];
    assert_eq!((&fields["who"], &fields["status"]), (&"local".into(), &202.into()), "{fields}");
    // Of several management nodes the first that answers is asked; a change goes to it, too.
    let servers = format!("http://{},{}", support::free_address(), mgmt.url());
    for arguments in [["events", "--limit=1"].as_slice(), &["policy", "apply", path]] {
        let output = support::cspctl().args(["--server", &servers]).args(arguments).output();
        let ran = support::Ran::of(output.expect("cspctl runs"));
        assert_eq!(ran.code, 0, "{arguments:?}: {}", ran.err);
    }
    let mixed = format!("{},https://127.0.0.1:1", mgmt.url());
    let output = support::cspctl().args(["--server", &mixed, "nodes"]).output().expect("cspctl runs");
    assert_eq!(support::Ran::of(output).code, 64);
    for (query, words) in
        [("severity=bad", "severity=bad: allowed are info, warning and error"), ("since=x", "is no cursor")]
    {
        let refused = mgmt.get(&format!("/api/v1/events?{query}")).await.expect("an answer");
        assert!(refused["error"].as_str().is_some_and(|error| error.contains(words)), "{refused}");
    }
}

/// Whether each event of a page fits the schema, by a validator of others: standard input has both.
const VALIDATE: &str = "import json, sys
from jsonschema import Draft202012Validator as Validator
schema, page = json.load(sys.stdin)
Validator.check_schema(schema)
one = Validator(schema)
for event in page['events']:
    one.validate(event)
    wrong = dict(event, fields={name: [] for name in event['fields']})
    assert not one.is_valid(wrong), wrong
print(len(page['events']))";

#[tokio::test(flavor = "multi_thread")]
async fn events_fit_the_schema_that_is_served_and_printed() {
    if !csp_support::installed("etcd", "etcd-server") {
        return;
    }
    let mgmt = Mgmt::start().await;
    let served = mgmt.get("/api/v1/events/schema").await.expect("a schema");
    let printed = support::cspctl().args(["events", "--schema"]).output().expect("cspctl runs");
    assert_eq!(support::Ran::of(printed).exited(0).json(), served);
    let policy = mgmt.scratch.file("policy.yaml", "apiVersion: csp/v1\n");
    mgmt.cspctl(&["policy", "apply", policy.to_str().expect("a path")]).await.exited(0);
    let page = page(&mgmt, "limit=500").await;
    let mut python = std::process::Command::new("python3");
    python.args(["-c", VALIDATE]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // The unit tests of the schema need no validator; this one is used where it is installed.
    let Ok(mut child) = python.spawn() else { return println!("there is no python3") };
    let both = serde_json::to_string(&(served, &page)).expect("JSON");
    child.stdin.take().expect("its input").write_all(both.as_bytes()).expect("it reads");
    let ran = support::Ran::of(child.wait_with_output().expect("it ends"));
    if ran.err.contains("No module named") {
        return println!("jsonschema is not installed for python3");
    }
    let ran = ran.exited(0);
    assert_eq!(ran.out.trim(), page["events"].as_array().expect("events").len().to_string());
    assert!(page["events"].as_array().is_some_and(|events| events.len() >= 4), "{page}");
}
