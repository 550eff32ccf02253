//! How long it takes until a plain server that no longer answers its checks is an event, an alert, and red on
//! the page.

use std::fs;
use std::time::{Duration, Instant};

use csp_cluster::configs::CLIENT_ADDRESS;
use csp_cluster::{Cluster, Far, San, Tier, VIP, testing, wait_until};
use serde_json::Value;

use super::browser::Browser;
use super::prometheus::{Prometheus, alerts};

const DEADLINE: Duration = Duration::from_secs(60);
const PORT: u16 = 18082;
/// Time until a check that gets no answer has failed as often as `fall` says: the interval before it, and the
/// last one's time limit.
const FALL: Duration = Duration::from_millis(2 * 500 + 400);
/// Two scrapes and evaluations of a second each.
const ALERT: Duration = Duration::from_secs(4);

fn policy() -> String {
    format!(
        "apiVersion: csp/v1
services:
  - name: plain
    vip: {VIP}
    port: 8090
    pool: [{{address: {CLIENT_ADDRESS}, port: {PORT}}}]
    servers:
      check: {{interval_ms: 500, timeout_ms: 400, rise: 1, fall: 2, http: {{path: /}}}}
egress:
  - {{address: 10.76.0.101, destinations: [10.76.0.0/24]}}
"
    )
}

/// The event of the server's end, if there is one.
fn event(cluster: &Cluster) -> Option<Value> {
    let text = cluster.ask(Tier::MgmtNode, "/api/v1/events?kind=server_down").ok()?;
    let events: Value = serde_json::from_str(&text).ok()?;
    events["events"].as_array()?.last().cloned()
}

fn alert(cluster: &Cluster) -> Option<()> {
    let is_there = |name: &str| alerts(cluster).iter().any(|alert| alert.name == name);
    ["CspServiceWithoutServers", "CspServiceMemberDown"].iter().all(|name| is_there(name)).then_some(())
}

/// The server, and whether it is up for the page: green or red.
fn state(browser: &Browser) -> Option<String> {
    let script = "return document.querySelector('.service .mark')?.classList[1]";
    browser.script(script).ok()?.as_str().map(str::to_owned)
}

#[test]
#[ignore = "depends on time, needs Chromium and Prometheus: make test-operations"]
fn a_dead_server_is_an_event_an_alert_and_red_in_time() {
    if !csp_support::installed("prometheus", "prometheus") {
        return;
    }
    let Some(mut cluster) = testing::lay_out_over("dead", San::Apart(Far::Tcp)) else { return };
    cluster.start_daemons().unwrap();
    let mut server = cluster.client.command("/usr/bin/python3");
    server.args(["-m", "http.server", &PORT.to_string(), "--bind", CLIENT_ADDRESS]);
    cluster.spawn("server", server).unwrap();
    let file = cluster.scratch().join("dead.yaml");
    fs::write(&file, policy()).unwrap();
    cluster.cspctl(&["policy", "apply", &file.to_string_lossy()]).unwrap();
    let _prometheus = Prometheus::start(&cluster);
    wait_until("Prometheus answers", DEADLINE, || Prometheus::get(&cluster, "targets", None).ok()).unwrap();
    wait_until("the server is up for Prometheus", DEADLINE, || {
        Prometheus::has(&cluster, "csp_service_member_up == 1").then_some(())
    })
    .unwrap();
    let folder = cluster.scratch().join("browser");
    let browser = Browser::start(cluster.host(Tier::MgmtNode), &folder).unwrap();
    browser.open(cluster.cspctl(&["login", "--role", "viewer"]).unwrap().trim()).unwrap();
    browser.click("#agree").unwrap();
    wait_until("a green service", DEADLINE, || (state(&browser)? == "good").then_some(())).unwrap();
    let known = event(&cluster);

    let begin = Instant::now();
    cluster.program("server").unwrap().kill();
    let [mut as_event, mut as_alert, mut as_red] = [None; 3];
    let all = wait_until("event, alert and page", DEADLINE, || {
        let seen = || begin.elapsed();
        as_event = as_event.or_else(|| (event(&cluster) != known).then(seen));
        as_red = as_red.or_else(|| (state(&browser)? == "bad").then(seen));
        as_alert = as_alert.or_else(|| alert(&cluster).map(|()| seen()));
        Some((as_event?, as_alert?, as_red?))
    });
    println!("killed: an event after {as_event:?}, alerts after {as_alert:?}, red after {as_red:?}");
    let (as_event, as_alert, as_red) = all.unwrap();
    assert!(as_event <= FALL + Duration::from_secs(1), "{as_event:?}");
    assert!(as_alert <= FALL + Duration::from_secs(1) + ALERT, "{as_alert:?}");
    assert!(as_red <= FALL + Duration::from_secs(1) + Duration::from_secs(2), "{as_red:?}");
    drop(browser);
    cluster.remove_program("server");
    assert_eq!(cluster.casualties(), "");
}
