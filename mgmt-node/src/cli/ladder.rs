//! Draws one flow's events as a ladder (sequence diagram), after the figure in the CSP paper that shows what
//! of a transaction reaches the application.
//!
//! ```text
//!        µs   client               network-node          proxy-node            application
//!       0.0   │──────── SYN ──────▶│                     │                     │
//!      41.3   │                    │════════ SYN ═══════▶│                     │
//! ```
//! A pure function of the events: no clock, no terminal.

use std::fmt::Write as _;

use csp_api::mgmt::{TraceEventView, TraceView};
use csp_api::{Text, Tier};

use super::paint::{Colour, Paint};

/// How to draw.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Columns to fill at most.
    pub width: usize,
    /// Only ASCII characters.
    pub ascii: bool,
    /// Colours.
    pub paint: Paint,
}

const LANES: [&str; 4] = ["client", "network-node", "proxy-node", "application"];
const CLIENT: usize = 0;
const NETWORK: usize = 1;
const PROXY: usize = 2;
const APPLICATION: usize = 3;

/// Width of the time column with its margin.
const TIME_WIDTH: usize = 13;
/// Room right of the last lane for its marks.
const TAIL_WIDTH: usize = 18;
const SPACING_MIN: usize = 19;
const SPACING_MAX: usize = 26;

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;

/// What an event looks like.
enum Shape {
    Arrow { from: usize, to: usize },
    Mark(usize),
}

/// The drawing with header and summary, ending in a newline.
pub fn draw(trace: &TraceView, style: Style) -> String {
    let mut out = String::new();
    if trace.events.is_empty() {
        let _ = writeln!(out, "No tier holds events of flow {}.", trace.label);
        notes(&mut out, trace, style);
        return out;
    }
    let canvas = Canvas::new(style);
    canvas.header(&mut out, trace);
    let first = trace.events.iter().map(|e| e.t_ns).min().unwrap_or(0);
    for event in &trace.events {
        canvas.row(&mut out, event, first);
    }
    out.push('\n');
    summary(&mut out, trace, style);
    notes(&mut out, trace, style);
    for related in &trace.related {
        let _ = writeln!(out, "\nFlow {} belongs to it:\n", related.label);
        out.push_str(&draw(related, style));
    }
    out
}

/// Which way an event points and what is written on it.
fn shape(event: &TraceEventView) -> (Shape, String) {
    let arrow = |from, to| Shape::Arrow { from, to };
    let data = || format!("DATA {}", event.len);
    match event.kind.as_str() {
        "lan-in" => (arrow(CLIENT, NETWORK), segment(event)),
        "lan-out" => (arrow(NETWORK, CLIENT), segment(event)),
        "segment-in" => (arrow(NETWORK, PROXY), segment(event)),
        "segment-out" => (arrow(PROXY, NETWORK), segment(event)),
        "open-sent" => (arrow(PROXY, APPLICATION), "OPEN".into()),
        "data-sent" => (arrow(PROXY, APPLICATION), data()),
        "shutdown-sent" => (arrow(PROXY, APPLICATION), "SHUTDOWN".into()),
        "accepted-received" => (arrow(APPLICATION, PROXY), "ACCEPTED".into()),
        "data-received" => (arrow(APPLICATION, PROXY), data()),
        "close-received" => (arrow(APPLICATION, PROXY), "CLOSE".into()),
        "label-bound" => (Shape::Mark(NETWORK), "label bound".into()),
        "label-ended" => (Shape::Mark(NETWORK), "label ended".into()),
        "ended" => (Shape::Mark(PROXY), "ended".into()),
        "related" => {
            let other = event.related.as_ref().map_or("another flow", Text::as_str);
            (Shape::Mark(PROXY), format!("with {other}"))
        }
        "app-open" => (Shape::Mark(APPLICATION), "OPEN".into()),
        "app-data-in" => (Shape::Mark(APPLICATION), format!("DATA {} in", event.len)),
        "app-data-out" => (Shape::Mark(APPLICATION), format!("DATA {} out", event.len)),
        "app-close" => (Shape::Mark(APPLICATION), "CLOSE".into()),
        "app-reset" => (Shape::Mark(APPLICATION), "RESET".into()),
        other => (Shape::Mark(lane_of(event.tier)), other.to_owned()),
    }
}

const fn lane_of(tier: Tier) -> usize {
    match tier {
        Tier::NetworkNode => NETWORK,
        Tier::ProxyNode => PROXY,
        Tier::Application => APPLICATION,
    }
}

/// A segment in a word or two: its flags (RFC 9293 §3.1) and payload; ACK is only named when it is all there
/// is.
fn segment(event: &TraceEventView) -> String {
    let mut words: Vec<String> = Vec::with_capacity(2);
    let ack = event.flags & 0x10 != 0;
    if event.flags & SYN != 0 {
        words.push(if ack { "SYN/ACK" } else { "SYN" }.into());
    }
    if event.flags & RST != 0 {
        words.push("RST".into());
    }
    if event.len > 0 {
        words.push(format!("DATA {}", event.len));
    }
    if event.flags & FIN != 0 {
        words.push("FIN".into());
    }
    if words.is_empty() {
        words.push(if ack { "ACK" } else { "no flags" }.into());
    }
    words.join(" ")
}

struct Canvas {
    style: Style,
    spacing: usize,
}

impl Canvas {
    fn new(style: Style) -> Self {
        let room = style.width.saturating_sub(TIME_WIDTH + TAIL_WIDTH);
        Canvas { style, spacing: (room / 3).clamp(SPACING_MIN, SPACING_MAX) }
    }

    fn x(&self, lane: usize) -> usize {
        TIME_WIDTH + lane * self.spacing
    }

    fn blank(&self) -> Vec<char> {
        let mut row = vec![' '; self.x(APPLICATION) + TAIL_WIDTH];
        for lane in 0..LANES.len() {
            row[self.x(lane)] = if self.style.ascii { '|' } else { '│' };
        }
        row
    }

    fn header(&self, out: &mut String, trace: &TraceView) {
        let mut names = vec![' '; self.x(APPLICATION) + TAIL_WIDTH];
        let mut nodes = names.clone();
        let unit = if self.style.ascii { "us" } else { "µs" };
        write_at(&mut names, TIME_WIDTH - 3 - unit.chars().count(), unit, usize::MAX);
        for (lane, name) in LANES.iter().enumerate() {
            write_at(&mut names, self.x(lane), name, self.spacing - 1);
            if lane != CLIENT {
                write_at(&mut nodes, self.x(lane), &nodes_of(trace, lane).join(" "), self.spacing - 1);
            }
        }
        for row in [names, nodes] {
            let text: String = row.into_iter().collect();
            let _ = writeln!(out, "{}", self.style.paint.bold(text.trim_end()));
        }
    }

    fn row(&self, out: &mut String, event: &TraceEventView, first_ns: u64) {
        let (shape, text) = shape(event);
        let mut row = self.blank();
        let time = micros(event.t_ns.saturating_sub(first_ns));
        write_at(&mut row, (TIME_WIDTH - 3).saturating_sub(time.chars().count()), &time, usize::MAX);
        match shape {
            Shape::Arrow { from, to } => self.arrow(&mut row, from, to, &text),
            Shape::Mark(lane) => {
                let x = self.x(lane);
                row[x] = if self.style.ascii { '*' } else { '●' };
                let room = if lane == APPLICATION { TAIL_WIDTH - 2 } else { self.spacing - 3 };
                write_at(&mut row, x + 2, &text, room);
            }
        }
        let line: String = row.into_iter().collect();
        let _ = writeln!(out, "{}", self.style.paint.paint(colour(event), line.trim_end()));
    }

    fn arrow(&self, row: &mut [char], from: usize, to: usize, text: &str) {
        let (left, right) = (self.x(from.min(to)), self.x(from.max(to)));
        // The tunnel, inside the SAN, is drawn heavier than what is on the LAN or at the application.
        let tunnel = from.min(to) == NETWORK;
        let line = match (self.style.ascii, tunnel) {
            (true, false) => '-',
            (true, true) => '=',
            (false, false) => '─',
            (false, true) => '═',
        };
        row[left + 1..right].fill(line);
        let (head_at, head) = match (from < to, self.style.ascii) {
            (true, false) => (right - 1, '▶'),
            (true, true) => (right - 1, '>'),
            (false, false) => (left + 1, '◀'),
            (false, true) => (left + 1, '<'),
        };
        row[head_at] = head;
        let room = self.spacing - 5;
        let label: String = text.chars().take(room).collect();
        let len = label.chars().count();
        let start = left + 1 + (self.spacing - 1 - (len + 2)) / 2;
        write_at(row, start, &format!(" {label} "), len + 2);
    }
}

fn write_at(row: &mut [char], at: usize, text: &str, room: usize) {
    for (slot, c) in row.iter_mut().skip(at).zip(text.chars().take(room)) {
        *slot = c;
    }
}

fn colour(event: &TraceEventView) -> Colour {
    match event.kind.as_str() {
        "app-reset" => Colour::Red,
        kind if kind.starts_with("app-") => Colour::Green,
        "lan-in" | "lan-out" | "segment-in" | "segment-out" => match event.flags {
            f if f & RST != 0 => Colour::Red,
            f if f & (SYN | FIN) != 0 => Colour::Cyan,
            _ if event.len == 0 => Colour::Dim,
            _ => Colour::Plain,
        },
        "label-bound" | "label-ended" | "ended" | "accepted-received" => Colour::Dim,
        _ => Colour::Plain,
    }
}

/// Ids of the nodes that drew in a lane, in order of appearance.
fn nodes_of(trace: &TraceView, lane: usize) -> Vec<&str> {
    let mut nodes: Vec<&str> = Vec::new();
    for event in &trace.events {
        let own = match event.kind.as_str() {
            kind if kind.starts_with("app-") => APPLICATION,
            kind if kind.starts_with("lan-") || kind.starts_with("label-") => NETWORK,
            _ => lane_of(event.tier),
        };
        if own == lane && !nodes.contains(&event.node.as_str()) {
            nodes.push(&event.node);
        }
    }
    nodes
}

fn micros(ns: u64) -> String {
    format!("{}.{}", ns / 1000, ns % 1000 / 100)
}

fn summary(out: &mut String, trace: &TraceView, style: Style) {
    let events = &trace.events;
    let count = |kind: &str| events.iter().filter(|e| e.kind == kind).count();
    let bytes = |kind: &str| events.iter().filter(|e| e.kind == kind).map(|e| u64::from(e.len)).sum::<u64>();
    let times = || events.iter().map(|e| e.t_ns);
    let duration = times().max().unwrap_or(0).saturating_sub(times().min().unwrap_or(0));
    let unit = if style.ascii { "us" } else { "µs" };
    let _ = writeln!(
        out,
        "{}",
        style.paint.bold(&format!(
            "Flow {}: {} events in {} {unit}",
            trace.label,
            events.len(),
            micros(duration)
        ))
    );
    let _ = writeln!(
        out,
        "  LAN          {} in with {} B, {} out with {} B",
        plural(count("lan-in"), "segment"),
        bytes("lan-in"),
        plural(count("lan-out"), "segment"),
        bytes("lan-out")
    );
    let _ = writeln!(
        out,
        "  tunnel       {} to the proxy, {} back",
        plural(count("segment-in"), "segment"),
        count("segment-out")
    );
    let messages = application_messages(trace);
    let listed = match messages.len() {
        0 => "nothing recorded".to_owned(),
        1..=8 => messages.join(", "),
        _ => grouped(trace),
    };
    let _ = writeln!(out, "  application  {}: {listed}", plural(messages.len(), "message"));
}

/// What the program itself saw; where its own events are missing, what the proxy exchanged with it.
fn application_messages(trace: &TraceView) -> Vec<String> {
    let own: Vec<String> =
        trace.events.iter().filter(|e| e.kind.starts_with("app-")).map(|e| shape(e).1).collect();
    if !own.is_empty() {
        return own;
    }
    let exchanged = |e: &&TraceEventView| {
        matches!(e.kind.as_str(), "open-sent" | "data-sent" | "data-received" | "close-received")
    };
    trace.events.iter().filter(exchanged).map(|e| shape(e).1).collect()
}

fn grouped(trace: &TraceView) -> String {
    let tally = |name: &str, kind: &str| {
        let of_kind = || trace.events.iter().filter(|e| e.kind == kind);
        let (n, bytes) = (of_kind().count(), of_kind().map(|e| u64::from(e.len)).sum::<u64>());
        match (n, bytes) {
            (0, _) => None,
            (1, 0) => Some(name.to_owned()),
            (n, 0) => Some(format!("{n} × {name}")),
            (n, bytes) => Some(format!("{n} × {name} ({bytes} B)")),
        }
    };
    let own = [
        tally("OPEN", "app-open"),
        tally("DATA in", "app-data-in"),
        tally("DATA out", "app-data-out"),
        tally("CLOSE", "app-close"),
        tally("RESET", "app-reset"),
    ];
    let proxy = [
        tally("OPEN", "open-sent"),
        tally("DATA in", "data-sent"),
        tally("DATA out", "data-received"),
        tally("CLOSE", "close-received"),
    ];
    let join = |parts: &[Option<String>]| parts.iter().flatten().cloned().collect::<Vec<_>>().join(", ");
    let text = join(&own);
    if text.is_empty() { join(&proxy) } else { text }
}

fn plural(n: usize, noun: &str) -> String {
    if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") }
}

/// What the reader must know to trust the picture.
fn notes(out: &mut String, trace: &TraceView, style: Style) {
    let mut note = |text: String| {
        let _ = writeln!(out, "{}", style.paint.paint(Colour::Yellow, &format!("  note: {text}")));
    };
    for missing in &trace.unreachable {
        note(format!("{} did not answer ({}); its events are missing", missing.node, missing.error));
    }
    for other in &trace.other_proxies {
        let (label, proxy) = (trace.label, &trace.proxy);
        note(format!(
            "this is the flow of {proxy}; {other} has one of the same label (cspctl flow trace {label} --proxy {other})"
        ));
    }
    if trace.truncated {
        note("the trace was cut at the server's bound".into());
    }
    for clock in &trace.clocks {
        let nodes = clock.nodes.iter().map(csp_api::Text::as_str).collect::<Vec<_>>().join(", ");
        note(match clock.uncertainty_ns {
            Some(ns) => format!(
                "times of {nodes} were moved to the proxy's clock, right to ±{:.1} µs",
                ns as f64 / 1000.0
            ),
            None => format!("the clock of {nodes} is unknown: the order between hosts is approximate"),
        });
    }
    let lan_in = trace.events.iter().find(|e| e.kind == "lan-in");
    if lan_in.is_some_and(|e| e.flags & SYN == 0) {
        note("the beginning is missing: the network node's ring no longer holds it".into());
    }
}
