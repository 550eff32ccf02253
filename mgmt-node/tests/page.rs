//! The operations page's script reads only fields that the overview and the list of peers have.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;

use csp_api::messages::{Peer, PeerName};
use csp_api::mgmt::{
    AckView, Acknowledged, ChannelView, ChannelsView, DropView, EtcdView, Figure, FlowView, FlowsView,
    GenerationView, LeaderView, NodeState, NodeView, NodesView, OverviewView, PeerView, Phase,
    PoolMemberView, ServiceView, ServicesView, SubscriptionsView, TierView, Unreachable,
};
use csp_types::FlowLabel;
use serde_json::Value;

/// Properties of JavaScript's, the browser's and the script's own objects that the script uses.
const OTHERS: [&str; 59] = [
    "abs",
    "activeElement",
    "append",
    "at",
    "channel",
    "dataset",
    "focus",
    "min",
    "querySelectorAll",
    "rate",
    "reduce",
    "total",
    "body",
    "createElement",
    "createElementNS",
    "className",
    "concat",
    "document",
    "entries",
    "error",
    "filter",
    "find",
    "flat",
    "flatMap",
    "floor",
    "forEach",
    "get",
    "getElementById",
    "hidden",
    "includes",
    "isInteger",
    "join",
    "json",
    "length",
    "log",
    "map",
    "max",
    "ok",
    "push",
    "replace",
    "replaceAll",
    "replaceChildren",
    "round",
    "set",
    "setAttribute",
    "shift",
    "slice",
    "some",
    "status",
    "style",
    "test",
    "textContent",
    "timeout",
    "title",
    "toFixed",
    "toLocaleTimeString",
    "what",
    "width",
    "addEventListener",
];

fn generation(phase: Phase) -> GenerationView {
    let ack = AckView {
        node: "pn-1".into(),
        role: "proxy-node".into(),
        state: Acknowledged::Refused,
        error: Some("no room".into()),
    };
    GenerationView {
        generation: 1,
        created_unix_ms: 1,
        hash: "00".into(),
        phase,
        reason: Some("refused".into()),
        acks: vec![ack],
        revision: 1,
    }
}

fn cluster() -> NodesView {
    let node = NodeView {
        id: "nn-1".into(),
        role: "network-node".into(),
        state: NodeState::NotReady,
        detail: "no tunnel".into(),
        version: "0.1.0".into(),
        admin: "http://10.77.0.1:9101".into(),
        workers: 1,
        san: vec!["shm:/run/csp/nn-1".into()],
        owns: Vec::new(),
        capabilities: Vec::new(),
        events: None,
        draining: false,
        started_unix_ms: 1,
        policy_generation: 1,
        policy_state: "staged".into(),
        policy_active: 0,
        leader: false,
    };
    NodesView {
        nodes: vec![node],
        leader: Some(LeaderView { id: "mgmt-1".into(), url: "http://10.77.0.4:9104".into() }),
        etcd: EtcdView { connected: false, private: true, silent_ms: 1 },
    }
}

fn flow() -> FlowView {
    FlowView {
        node: "pn-1".into(),
        role: "proxy-node".into(),
        label: FlowLabel::new(1, 1),
        client: ([10, 76, 0, 1], 41_822).into(),
        server: ([10, 76, 0, 100], 80).into(),
        service: "web".into(),
        member: "an-1".into(),
        state: "Established/open".into(),
        bytes_in: 1,
        bytes_out: 1,
        age_ms: 1,
    }
}

fn channel() -> ChannelView {
    ChannelView {
        name: "ticks".into(),
        vip: "10.76.0.100".into(),
        port: 5556,
        pattern: "publish".into(),
        owners: vec!["pn-1/0".into()],
        senders: 1,
        receivers: 1,
        subscriptions: 1,
        requested: None,
        figures: csp_api::proxy::ChannelFigures::default(),
    }
}

/// The peers of a channel.
fn subscriptions() -> SubscriptionsView {
    let name = PeerName {
        address: Some(([10, 76, 0, 1], 40_312).into()),
        node: "an-1".into(),
        process: "python3.7.1".into(),
        socket: "SUB".into(),
    };
    let peer = Peer {
        channel: "ticks".into(),
        worker: 0,
        name,
        role: "subscriber".into(),
        age_ms: 1,
        messages_in: 0,
        messages_out: 1,
        waiting: 1,
        waiting_bytes: 1,
        dropped: 1,
        subscriptions: 1,
        prefixes: vec!["ACME".into()],
    };
    let peers = vec![PeerView { proxy: "pn-1".into(), peer }];
    SubscriptionsView { peers, more: 1, unreachable: Vec::new() }
}

/// An overview with everything in it that may be in one.
fn overview() -> OverviewView {
    let unreachable = vec![Unreachable { node: "pn-2".into(), error: "Connection refused".into() }];
    let member = PoolMemberView {
        node: "an-1".into(),
        address: Some([10, 76, 0, 20].into()),
        names: vec!["web.example".into()],
        down_at: vec!["pn-1: connection refused".into()],
        port: 80,
        processes: Some(1),
        open_connections: Some(1),
        connections_total: Some(1),
        accept_credit: Some(1),
        packets_total: Some(1),
    };
    let service = ServiceView {
        name: "web".into(),
        vip: "10.76.0.100".into(),
        port: 80,
        protocol: "tcp".into(),
        via: "proxy".into(),
        pending: 1,
        leads_to: vec!["app".into()],
        pool: vec![member],
        figures: None,
    };
    let figure = Figure { name: "flows".into(), value: 1.0, per_second: Some(1.0) };
    let drop = DropView { node: "nn-1".into(), reason: "no_service".into(), total: 1, recent: 1 };
    OverviewView {
        node: "mgmt-1".into(),
        version: "0.1.0".into(),
        now_unix_ms: 1,
        cluster: cluster(),
        tiers: vec![TierView { role: "network-node".into(), nodes: 1, ready: 0, figures: vec![figure] }],
        active: Some(generation(Phase::Active)),
        latest: Some(generation(Phase::Refused)),
        services: ServicesView {
            generation: 1,
            services: vec![service],
            total: 1,
            troubled: 0,
            unreachable: unreachable.clone(),
        },
        channels: ChannelsView { generation: 1, channels: vec![channel()], unreachable: unreachable.clone() },
        flows: FlowsView { flows: vec![flow()], truncated: true, unreachable },
        drops: vec![drop],
    }
}

/// The names of all fields in `value`.
fn fields(value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(name, value)| {
            into.insert(name.clone());
            fields(value, into);
        }),
        Value::Array(items) => items.iter().for_each(|item| fields(item, into)),
        _ => {}
    }
}

/// The names behind a dot, and those that are destructured (`const { a, b } = …`), outside comments and plain
/// strings.
fn read_by(script: &str) -> BTreeSet<String> {
    let word = |text: &str| -> String {
        text.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()
    };
    let mut names = BTreeSet::new();
    let comment_or_url =
        |line: &&str| line.trim_start().starts_with("//") || line.contains("http://www.w3.org/");
    for line in script.lines().filter(|line| !comment_or_url(line)) {
        for (at, _) in line.match_indices('.') {
            let before = line[..at].chars().next_back();
            let owner =
                before.is_some_and(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | ')' | ']' | '}'));
            let name = word(&line[at + 1..]);
            if owner && name.starts_with(|c: char| c.is_ascii_lowercase()) {
                names.insert(name);
            }
        }
        if let Some((_, rest)) = line.split_once("const { ")
            && let Some((inside, after)) = rest.split_once(" }")
            && after.starts_with(" = view")
        {
            names.extend(inside.split(", ").map(str::to_owned));
        }
    }
    names
}

/// Fails if a script reads a field that none of its answers has.
fn check(script: &str, known: &BTreeSet<String>, others: &[&str], expected: &[&str]) {
    let read = read_by(script);
    for expected in expected {
        assert!(read.contains(*expected), "the walk over the script misses {expected}: {read:?}");
    }
    let of_others = |name: &str| OTHERS.contains(&name) || others.contains(&name);
    let unknown: Vec<&String> =
        read.iter().filter(|name| !known.contains(*name) && !of_others(name)).collect();
    assert!(unknown.is_empty(), "no answer has such fields: {unknown:?}");
}

/// The fields of bodies as they are declared.
fn declared(bodies: &[&str]) -> BTreeSet<String> {
    let lines = bodies.iter().flat_map(|body| body.lines());
    lines.filter_map(|line| Some(line.trim().strip_prefix("pub ")?.split_once(':')?.0.to_owned())).collect()
}

/// The bodies that parts of the page read.
const BODIES: [&str; 9] = [
    include_str!("../../libcsp/api/src/quality.rs"),
    include_str!("../../libcsp/api/src/contexts.rs"),
    include_str!("../../libcsp/api/src/handlers.rs"),
    include_str!("../../libcsp/api/src/plugins.rs"),
    include_str!("../../libcsp/api/src/mgmt/actions.rs"),
    include_str!("../../libcsp/api/src/mgmt/cluster.rs"),
    include_str!("../../libcsp/api/src/mgmt/flows.rs"),
    include_str!("../../libcsp/api/src/mgmt/policy.rs"),
    include_str!("../../libcsp/api/src/mgmt/series.rs"),
];

/// More that the scripts use of the browser, and keep themselves.
const MORE: &str = "assign contains findIndex points stringify unshift loaded past info day isNaN keys next size \
                    scrollLeft scrollTop toDateString valueOf";

/// The fields of an event and of their list, `GET /api/v1/events`.
const EVENT_FIELDS: [&str; 11] = [
    "events",
    "cursor",
    "missed",
    "origin",
    "incarnation",
    "sequence",
    "time_ms",
    "severity",
    "kind",
    "object",
    "text",
];

#[test]
fn the_page_reads_only_fields_that_the_answers_have() {
    let mut known = BTreeSet::new();
    fields(&serde_json::to_value(overview()).expect("JSON"), &mut known);
    fields(&serde_json::to_value(subscriptions()).expect("JSON"), &mut known);
    // What base.js keeps of the page itself.
    let others = ["session", "opened", "has", "find", "offset", "view", "refused", "of", "sort", "values"];
    let expected =
        ["connections_total", "unreachable", "per_second", "silent_ms", "prefixes", "held_total", "troubled"];
    check(include_str!("../web/app.js"), &known, &others, &expected);
}

#[test]
fn the_parts_of_the_page_read_only_fields_that_the_answers_have() {
    let names: usize = BODIES.iter().map(|body| body.matches("rename = ").count()).sum();
    assert_eq!(names, 1, "a field that has another name in JSON is not found by its declaration");
    let mut known = declared(&BODIES);
    known.extend(EVENT_FIELDS.map(str::to_owned));
    let of_page = [
        "session", "opened", "has", "find", "offset", "view", "values", "sort", "now", "then", "match",
        "trim",
    ];
    let browser = [
        "catch",
        "body",
        "toISOString",
        "toLowerCase",
        "hasChildNodes",
        "transform",
        "height",
        "getRandomValues",
        "toString",
        "padStart",
        "join",
        "returnValue",
        "showModal",
        "close",
        "search",
        "startsWith",
        "repeat",
        "split",
        "disabled",
        "value",
        "pop",
        "target",
        "closest",
        "add",
        "delete",
        "by",
        "list",
        "toLocaleString",
        "signal",
        "options",
        "endsWith",
        "querySelector",
        "all",
        "allSettled",
        "resolve",
        "id",
    ];
    // What the scripts keep themselves: changes, the text box, places of boxes, blocks, links.
    let own = [
        "expected", "query", "method", "path", "yaml", "of", "act", "base", "checked", "instance", "force",
        "x", "y", "top", "gap", "between", "place", "columns", "left", "hits", "key", "code", "leader",
        "errors", "note", "status", "cursor",
    ];
    let others: Vec<&str> = of_page.into_iter().chain(browser).chain(own).chain(MORE.split(' ')).collect();
    for (script, expected) in [
        (include_str!("../web/base.js"), &["role"][..]),
        (include_str!("../web/charts.js"), &["figures", "interval_ms", "objects"]),
        (include_str!("../web/topology.js"), &["links", "proxy", "up", "provider"]),
        (include_str!("../web/events.js"), &["events", "missed", "time_ms", "severity", "origin"]),
        (include_str!("../web/act.js"), &["revision", "phase", "generation", "allowed"]),
        (include_str!("../web/policy.js"), &["diff", "warnings", "records", "rows", "numbers"]),
        (include_str!("../web/planes.js"), &["stops_total", "released_bytes_total", "held_ms", "draining"]),
    ] {
        check(script, &known, &others, expected);
    }
}
