//! Debian's Prometheus on a running cluster: it finds the nodes by the management node's discovery, and each
//! query of each dashboard, rule and alert returns data, or its metrics are there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use csp_cluster::configs::CLIENT_ADDRESS;
use csp_cluster::identities;
use csp_cluster::{Cluster, Far, Process, San, Tier, VIP, testing, wait_until};
use csp_identity::IdentityRole;
use serde_json::Value;

const DEADLINE: Duration = Duration::from_secs(90);
const ADDRESS: &str = "127.0.0.1:9090";
/// A service whose server is an address, and one whose packets are forwarded.
const PLAIN: u16 = 8090;
const FORWARDED: &str = "10.76.0.102";
/// A service whose HTTP is read.
const FRONT: u16 = 8091;
/// A channel that a query reads, the query, and a channel of information flows.
const FLIGHTS: u16 = 5601;
const LATE: u16 = 5611;
const GATES: u16 = 5561;

/// Metrics that this cluster has no values of, with the reason.
pub const ABSENT: [(&str, &str); 7] = [
    ("csp_handler_stops_total", "no supplied handler was stopped"),
    ("csp_plugin_stops_total", "no supplied plug-in was stopped"),
    ("csp_plugin_fuel_total", "the policy has no supplied plug-in"),
    ("csp_plugin_not_run_total", "the policy has no supplied plug-in"),
    ("csp_information_flow_trigger_changes_total", "the policy has no triggers"),
    ("csp_events_outlet_failing", "the management node has no outlets"),
    ("csp_plugin_moves_total", "the policy leaves the place of no plug-in to the node"),
];

/// A policy with something of each kind.
fn policy() -> String {
    let schema = csp_cluster::schemas::sbe_schema(
        r#"package="airport" id="40" version="1""#,
        r#"<type name="airport" primitiveType="char" length="3"/>"#,
        r#"<sbe:message name="Flight" id="1">
          <field name="origin" id="1" type="airport"/>
          <field name="delay" id="2" type="int16"/>
          <field name="at" id="3" type="int64"/>
        </sbe:message>"#,
    );
    format!(
        "apiVersion: csp/v1
services:
  - {{name: web, vip: {VIP}, port: 80, pool: [{{node: an-1, port: 80}}]}}
  - {{name: upload, vip: {VIP}, port: 8080, pool: [{{node: an-1, port: 8080}}]}}
  - {{name: plain, vip: {VIP}, port: {PLAIN}, pool: [{{address: {CLIENT_ADDRESS}, port: 18081}}]}}
  - name: front
    vip: {VIP}
    port: {FRONT}
    http:
      routes:
      - {{name: no, path: {{exact: /no}}, respond: {{status: 403}}}}
      - {{name: files, to: [{{service: web}}], cache: {{}}}}
  - name: forwarded
    vip: {FORWARDED}
    port: 9
    via: network
    pool: [{{address: {CLIENT_ADDRESS}, port: 9}}]
vip_groups:
  - {{name: all, addresses: [{VIP}/30]}}
formats:
  - name: flight
    schema: |{schema}    message: Flight
channels:
  - {{name: flights, vip: {VIP}, port: {FLIGHTS}, formats: [flight]}}
  - {{name: gates, vip: {VIP}, port: {GATES}, path: [{{handler: forward}}]}}
queries:
  - {{name: late, vip: {VIP}, port: {LATE}, output: json, sql: \"SELECT origin, delay FROM flights WHERE delay >= 10\"}}
information_flows:
  - {{name: gates, match: {{channel: gates}}, priority: 9, message_bytes: 1500}}
link: {{mbps: 100, scheme: PA, contexts: {{count: 2}}}}
plugins:
  - {{name: seen, module: counter}}
rules:
  - {{name: web, match: proto tcp dport 80 ingress, plugin: seen, fallback: pass}}
egress:
  - {{address: 10.76.0.101, destinations: [10.76.0.0/24]}}
http_log: {{}}
"
    )
}

/// The configuration of docs/operations/prometheus.md, for this cluster.
fn configuration(cluster: &Cluster) -> String {
    let folder = identities::folder(cluster.scratch(), IdentityRole::Admin, identities::ADMIN);
    let folder = folder.display();
    let rules = repository().join("packaging/prometheus/rules.yml");
    let tls = format!(
        "{{ca_file: {folder}/ca.pem, cert_file: {folder}/certificate.pem, key_file: {folder}/key.pem}}"
    );
    format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{}]
scrape_configs:
  - job_name: csp
    scheme: https
    tls_config: {tls}
    http_sd_configs:
      - {{url: \"https://{}/api/v1/discovery\", refresh_interval: 1s, tls_config: {tls}}}
  - job_name: csp-etcd
    scheme: https
    tls_config: {tls}
    static_configs: [{{targets: [\"10.77.0.4:2379\"]}}]
",
        rules.display(),
        Tier::MgmtNode.admin()
    )
}

pub fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Starts daemons and programs whose traffic goes on until the cluster is dropped.
fn serve(cluster: &mut Cluster) {
    fs::write(cluster.scratch().join("www/1KiB"), testing::pattern(1 << 10)).unwrap();
    cluster.start_daemons().unwrap();
    cluster.start_nginx().unwrap();
    cluster.start_upload().unwrap();
    let file = cluster.scratch().join("operations.yaml");
    fs::write(&file, policy()).unwrap();
    cluster.cspctl(&["policy", "apply", &file.to_string_lossy()]).unwrap();
    cluster.wait_served().unwrap();
    for script in ["zmq_records.py", "zmq_flows.py"] {
        let from = repository().join("tests/cluster/apps").join(script);
        fs::copy(from, cluster.scratch().join(script)).unwrap();
    }
    let at = |port: u16| format!("tcp://{VIP}:{port}");
    let python = |cluster: &mut Cluster, name: &str, arguments: &[&str]| {
        let mut command = cluster.client.command("/usr/bin/python3");
        command.arg(cluster.scratch().join(arguments[0])).args(&arguments[1..]);
        cluster.spawn(name, command).unwrap();
    };
    python(cluster, "late", &["zmq_records.py", "rows", &at(LATE), "1000000"]);
    python(cluster, "flights", &["zmq_records.py", "flights", &at(FLIGHTS), "30000", "0.01"]);
    python(cluster, "sink", &["zmq_flows.py", "receive", &at(GATES), "600"]);
    python(cluster, "gates", &["zmq_flows.py", "publish", &at(GATES), "600", "1:600"]);
    let url = format!("http://{VIP}/1KiB");
    let mut wrk = cluster.client.command("wrk");
    wrk.args(["-t1", "-c4", "-d600", &url]);
    cluster.spawn("wrk", wrk).unwrap();
    // New connections, some of them to a plain server that is not there.
    let urls = format!(
        "{url} http://{VIP}:8080/ http://{VIP}:{PLAIN}/ http://{FORWARDED}:9/ http://{VIP}:{FRONT}/1KiB http://{VIP}:{FRONT}/no"
    );
    let mut curl = cluster.client.command("sh");
    curl.args(["-c", &format!("while sleep 0.2; do curl -s -m 0.5 -o /dev/null {urls}; done")]);
    cluster.spawn("curl", curl).unwrap();
}

/// A Prometheus on the management host.
pub struct Prometheus {
    _process: Process,
}

impl Prometheus {
    pub fn start(cluster: &Cluster) -> Self {
        let folder = cluster.scratch().join("prometheus");
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("prometheus.yml");
        fs::write(&file, configuration(cluster)).unwrap();
        let host = cluster.host(Tier::MgmtNode);
        host.run("promtool", &["check", "config", &file.to_string_lossy()]).unwrap();
        let mut command = host.command("prometheus");
        command.arg(format!("--config.file={}", file.display()));
        command.arg(format!("--storage.tsdb.path={}", folder.join("data").display()));
        command.arg(format!("--web.listen-address={ADDRESS}"));
        let process = Process::spawn("prometheus", command, &folder.join("log")).unwrap();
        Prometheus { _process: process }
    }

    /// The data of an answer of its API; an error is text.
    pub fn get(cluster: &Cluster, path: &str, query: Option<&str>) -> Result<Value, String> {
        let url = format!("http://{ADDRESS}/api/v1/{path}");
        let query = query.map(|query| format!("query={query}"));
        let mut arguments = vec!["-sS", "-m", "20", "-G", &url];
        if let Some(query) = &query {
            arguments.extend(["--data-urlencode", query]);
        }
        let text = cluster.host(Tier::MgmtNode).run("curl", &arguments).map_err(|e| e.to_string())?;
        let mut answer: Value = serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
        match answer["status"] == "success" {
            true => Ok(answer["data"].take()),
            false => Err(answer["error"].as_str().unwrap_or(&text).to_owned()),
        }
    }

    /// Whether an expression returns something.
    pub fn has(cluster: &Cluster, expression: &str) -> bool {
        let data = Self::get(cluster, "query", Some(expression));
        let data = data.unwrap_or_else(|error| panic!("{expression}: {error}"));
        data["result"].as_array().is_some_and(|found| !found.is_empty())
    }
}

/// The names of metrics and recorded series in an expression: words that are no label, function or keyword.
fn metrics_in(expression: &str) -> BTreeSet<String> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let is_metric = |word: &&str| {
        let prefixed = ["csp_", "process_", "scrape_"].iter().any(|prefix| word.starts_with(prefix));
        prefixed || *word == "up" || word.contains(":csp_") || word.starts_with("csp:")
    };
    // What is quoted is a value.
    let unquoted: String = expression.split('"').step_by(2).collect::<Vec<_>>().join(" ");
    unquoted.split(|c| !is_word(c)).filter(is_metric).map(str::to_owned).collect()
}

/// The queries of a dashboard, with its variables put in.
fn queries(file: &Path) -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let title = dashboard["title"].as_str().unwrap();
    let mut found = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap().iter().filter(|panel| panel["type"] != "row") {
        let name = format!("{title}: {}", panel["title"].as_str().unwrap());
        let unit = panel["fieldConfig"]["defaults"]["unit"].as_str().unwrap_or_default();
        assert!(!unit.is_empty() && panel["description"].as_str().unwrap().ends_with('.'), "{name}");
        for target in panel["targets"].as_array().unwrap() {
            let query = target["expr"].as_str().unwrap().replace("$__rate_interval", "10s");
            let query = ["$node", "$service", "$http_service", "$route", "$channel", "$flow"]
                .iter()
                .fold(query, |q, v| q.replace(v, ".*"));
            assert!(!query.contains('$'), "{name}: {query}");
            found.push((name.clone(), query));
        }
    }
    found
}

/// Everything that is asked: where it stands, and the expression. An alert rightly returns nothing: its
/// metrics are asked for, and whether they have the labels that its texts name.
fn asked(cluster: &Cluster) -> Vec<(String, String)> {
    let folder = repository().join("packaging/grafana");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|kind| kind == "json"));
    assert!(files.len() >= 8, "{files:?}");
    let mut all: Vec<(String, String)> = files.iter().flat_map(|file| queries(file)).collect();
    let rules = Prometheus::get(cluster, "rules", None).unwrap();
    for rule in
        rules["groups"].as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap())
    {
        let [name, query] = ["name", "query"].map(|field| rule[field].as_str().unwrap().to_owned());
        assert_ne!(rule["health"], "err", "{name}: {}", rule["lastError"]);
        if rule["type"] == "alerting" {
            all.extend(of_alert(&name, &query, &rule["annotations"].to_string()));
        } else {
            all.push((name, query));
        }
    }
    all.retain(|(_, query)| !metrics_in(query).iter().any(|metric| absent(metric)));
    all
}

fn of_alert(name: &str, query: &str, texts: &str) -> Vec<(String, String)> {
    let metrics: Vec<String> = metrics_in(query).into_iter().filter(|metric| !absent(metric)).collect();
    let is_label = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let labels = texts.split("$labels.").skip(1).filter_map(|text| text.split(|c| !is_label(c)).next());
    let with_label = labels.filter(|_| !metrics.is_empty()).map(|label| {
        let each = metrics.iter().map(|metric| format!("{metric}{{{label}!=\"\"}}"));
        (format!("{name}, label {label}"), each.collect::<Vec<_>>().join(" or "))
    });
    metrics.iter().map(|metric| (name.to_owned(), metric.clone())).chain(with_label).collect()
}

fn absent(metric: &str) -> bool {
    ABSENT.iter().any(|(name, _)| *name == metric)
}

/// Asks until each expression has had data; those that never had any.
fn unanswered(cluster: &Cluster, mut left: Vec<(String, String)>) -> Vec<(String, String)> {
    let all = wait_until("data for every query", DEADLINE, || {
        left.retain(|(_, query)| !Prometheus::has(cluster, query));
        left.is_empty().then_some(())
    });
    drop(all);
    left
}

#[test]
#[ignore = "depends on time: make test-operations"]
fn every_query_of_dashboards_rules_and_alerts_returns_data() {
    if !csp_support::installed("prometheus", "prometheus") {
        return;
    }
    let Some(mut cluster) = testing::lay_out_over("prom", San::Apart(Far::Tcp)) else { return };
    serve(&mut cluster);
    let _prometheus = Prometheus::start(&cluster);
    let targets = wait_until("all targets are up", DEADLINE, || {
        let targets = Prometheus::get(&cluster, "targets?state=active", None).ok()?;
        let targets = targets["activeTargets"].as_array()?.clone();
        (targets.len() == 5 && targets.iter().all(|target| target["health"] == "up")).then_some(targets)
    });
    let targets = targets.unwrap_or_else(|e| panic!("{e}: {:?}", Prometheus::get(&cluster, "targets", None)));
    let labels: BTreeMap<String, String> = targets
        .iter()
        .filter(|target| target["labels"]["job"] == "csp")
        .map(|target| ["node", "tier"].map(|label| target["labels"][label].as_str().unwrap().to_owned()))
        .map(|[node, tier]| (node, tier))
        .collect();
    let expected =
        [("an-1", "app-node"), ("mn-1", "mgmt-node"), ("nn-1", "network-node"), ("pn-1", "proxy-node")];
    assert_eq!(labels, expected.map(|(node, tier)| (node.to_owned(), tier.to_owned())).into());
    wait_until("rules are evaluated", DEADLINE, || {
        Prometheus::has(&cluster, "csp:connections:rate5m").then_some(())
    })
    .unwrap();

    let all = asked(&cluster);
    println!("{} queries and metrics of alerts", all.len());
    let left = unanswered(&cluster, all);
    assert!(left.is_empty(), "no data for {left:#?}\n{}", cluster.casualties());
    for (metric, reason) in ABSENT {
        assert!(!Prometheus::has(&cluster, metric), "{metric} has data, though {reason}: list it no more");
    }
    // Certificates of tests live two days, and the plain server is not there.
    let wrong = alerts(&cluster).into_iter().filter(|alert| match alert.name.as_str() {
        "CspCertificateExpires" => false,
        "CspServiceWithoutServers" | "CspServiceMemberDown" | "CspServiceErrorsBurnFast" => {
            !alert.summary.contains("service plain ")
        }
        _ => alert.fires,
    });
    assert_eq!(wrong.map(|alert| alert.summary).collect::<Vec<_>>(), [""; 0]);
    crate::metrics::check(&cluster);
    assert_eq!(cluster.casualties(), "");
    what_dies_is_seen(&mut cluster);
}

/// A server that ends is seen by its service's alert, a proxy that is killed by that of nodes: it stays a
/// target when its lease has expired.
fn what_dies_is_seen(cluster: &mut Cluster) {
    let seen = |cluster: &Cluster, wanted: &[&str]| {
        let alerts = alerts(cluster);
        let is_there = |summary: &&str| alerts.iter().any(|alert| alert.summary == **summary);
        wanted.iter().all(is_there).then_some(())
    };
    cluster.program("nginx").unwrap().stop().unwrap();
    let begin = Instant::now();
    let wanted = ["No server of service web is up", "Member an-1:80 of service web is down"];
    wait_until("the alerts of a service", DEADLINE, || seen(cluster, &wanted)).unwrap();
    println!("a server's end is an alert after {:?}", begin.elapsed());
    cluster.daemon(Tier::ProxyNode).unwrap().kill();
    let wanted = ["proxy-node pn-1 does not answer", "Worker 0 of network node nn-1 reaches no proxy"];
    wait_until("the alerts of a proxy", DEADLINE, || seen(cluster, &wanted)).unwrap();
    let lapsed = "csp_members{role=\"proxy-node\", state=\"lapsed\"}";
    wait_until("its lease expires", DEADLINE, || Prometheus::has(cluster, lapsed).then_some(())).unwrap();
    let discovered = cluster.ask(Tier::MgmtNode, "/api/v1/discovery").unwrap();
    assert!(discovered.contains("\"pn-1\""), "{discovered}");
    assert!(seen(cluster, &wanted[..1]).is_some());
}

/// An alert as Prometheus has it.
pub struct Alert {
    pub name: String,
    pub summary: String,
    /// Whether it fires; otherwise it is about to.
    pub fires: bool,
}

pub fn alerts(cluster: &Cluster) -> Vec<Alert> {
    let alerts = Prometheus::get(cluster, "alerts", None).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let alert = |alert: &Value| Alert {
        name: text(&alert["labels"]["alertname"]),
        summary: text(&alert["annotations"]["summary"]),
        fires: alert["state"] == "firing",
    };
    alerts["alerts"].as_array().unwrap().iter().map(alert).collect()
}

#[test]
fn dashboards_are_what_their_source_writes() {
    let script = repository().join("packaging/grafana/dashboards.py");
    let output = std::process::Command::new("python3").arg(script).arg("--check").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
