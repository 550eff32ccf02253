//! The drawing of `cspctl flow trace`, compared with files under `golden/`. `BLESS=1 cargo test` rewrites
//! them.
#![forbid(unsafe_code)]

use csp_api::Tier;
use csp_api::mgmt::{ClockView, TraceEventView, TraceView, Unreachable};
use csp_mgmt_node::cli::{Paint, Style, draw};
use csp_types::FlowLabel;

const SYN: u8 = 2;
const FIN: u8 = 1;
const PSH: u8 = 8;
const ACK: u8 = 16;

fn event(t_us: f64, node: &str, kind: &str, flags: u8, len: u32) -> TraceEventView {
    let tier = match kind {
        k if k.starts_with("app-") => Tier::Application,
        k if k.starts_with("lan-") || k.starts_with("label-") => Tier::NetworkNode,
        _ => Tier::ProxyNode,
    };
    TraceEventView {
        t_ns: 5_000_000_000 + (t_us * 1000.0) as u64,
        node: node.into(),
        tier,
        worker: 0,
        kind: kind.into(),
        label: FlowLabel::new(0x1f, 1),
        flags,
        seq: 0,
        ack: 0,
        len,
        detail: "".into(),
        related: None,
    }
}

/// One HTTP/1.0 transaction.
fn transaction() -> TraceView {
    let (nn, pn, an) = ("nn-1", "pn-1", "an-1");
    TraceView {
        label: FlowLabel::new(0x1f, 1),
        proxy: "pn-1".into(),
        other_proxies: Vec::new(),
        events: vec![
            event(0.0, nn, "lan-in", SYN, 0),
            event(31.2, pn, "segment-in", SYN, 0),
            event(40.9, pn, "segment-out", SYN | ACK, 0),
            event(55.0, nn, "label-bound", 0, 0),
            event(56.1, nn, "lan-out", SYN | ACK, 0),
            event(120.0, nn, "lan-in", ACK, 0),
            event(121.0, nn, "lan-in", ACK | PSH, 81),
            event(140.5, pn, "segment-in", ACK, 0),
            event(141.0, pn, "segment-in", ACK | PSH, 81),
            event(143.3, pn, "open-sent", 0, 0),
            event(143.9, pn, "data-sent", 0, 81),
            event(160.0, an, "app-open", 0, 0),
            event(162.0, pn, "accepted-received", 0, 0),
            event(171.7, an, "app-data-in", 0, 81),
            event(260.2, an, "app-data-out", 0, 12_345),
            event(262.0, an, "app-close", 0, 0),
            event(280.0, pn, "data-received", 0, 12_345),
            event(280.4, pn, "close-received", 0, 0),
            event(284.0, pn, "segment-out", ACK | PSH | FIN, 12_345),
            event(300.0, nn, "lan-out", ACK | PSH | FIN, 12_345),
            event(390.0, nn, "lan-in", ACK | FIN, 0),
            event(1_402.5, pn, "segment-in", ACK | FIN, 0),
            event(1_410.0, pn, "segment-out", ACK, 0),
            event(1_411.0, pn, "ended", 0, 0),
            event(1_422.0, nn, "lan-out", ACK, 0),
            event(1_423.0, nn, "label-ended", 0, 0),
        ],
        hosts: 1,
        clocks: Vec::new(),
        truncated: false,
        unreachable: vec![],
        related: Vec::new(),
    }
}

fn check(name: &str, drawing: &str) {
    let path = format!("{}/tests/golden/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, drawing).expect("golden file");
    }
    let expected = std::fs::read_to_string(&path).expect("golden file");
    assert!(drawing == expected, "{name} is drawn differently:\n{drawing}\nexpected:\n{expected}");
}

#[test]
fn an_http_transaction_at_full_width() {
    check("http10", &draw(&transaction(), Style { width: 110, ascii: false, paint: Paint::off() }));
}

#[test]
fn a_narrow_ascii_drawing_keeps_every_label_inside_its_lane() {
    let drawing = draw(&transaction(), Style { width: 40, ascii: true, paint: Paint::off() });
    assert!(drawing.is_ascii());
    check("http10_ascii", &drawing);
}

#[test]
fn what_is_missing_is_said() {
    let mut trace = transaction();
    trace.events.drain(..6);
    trace.events.retain(|e| !e.kind.starts_with("app-"));
    trace.unreachable = vec![Unreachable { node: "an-1".into(), error: "Connection refused".into() }];
    trace.hosts = 2;
    let clock =
        |node: &str, uncertainty_ns| ClockView { nodes: vec![node.into()], offset_ns: 7, uncertainty_ns };
    trace.clocks = vec![clock("nn-1", Some(12_300)), clock("an-2", None)];
    trace.truncated = true;
    check("incomplete", &draw(&trace, Style { width: 100, ascii: false, paint: Paint::off() }));
}

/// A service of the proxy passes the request to a member: the trace shows both flows.
#[test]
fn a_related_flow_is_drawn_below() {
    let (client, upstream) = (FlowLabel::new(0x1f, 1), FlowLabel::new(0x2a, 0));
    let relates = |t_us, label: FlowLabel, other: FlowLabel| TraceEventView {
        label,
        related: Some(other.to_string().into()),
        ..event(t_us, "pn-1", "related", 0, 0)
    };
    let mut view = transaction();
    view.events.truncate(9);
    view.events.push(relates(142.0, client, upstream));
    let events = vec![relates(142.0, upstream, client), event(143.3, "pn-1", "open-sent", 0, 0)];
    view.related = vec![TraceView { label: upstream, events, ..transaction() }];
    let text = draw(&view, Style { width: 100, ascii: true, paint: Paint::off() });
    let Some((first, second)) = text.split_once(&format!("Flow {upstream} belongs to it:")) else {
        panic!("{text}")
    };
    assert!(first.contains(&format!("with {upstream}")), "{text}");
    assert!(second.contains(&format!("with {client}")) && second.contains("OPEN"), "{text}");
}
