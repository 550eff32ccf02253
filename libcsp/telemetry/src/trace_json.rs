//! Flight-recorder events as JSON for `/v1/trace`.

use csp_types::{FlowLabel, TraceEvent, TraceKind};
use serde::{Deserialize, Serialize};

/// Which tier recorded an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tier {
    /// The network node.
    NetworkNode,
    /// The proxy node.
    ProxyNode,
    /// The application process.
    Application,
}

/// One event of one flow as `/v1/trace` tells it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TraceJson {
    /// When, in nanoseconds of the host's CLOCK_MONOTONIC.
    pub t_ns: u64,
    /// The recording node's id.
    pub node: String,
    /// The recording tier.
    pub tier: Tier,
    /// The recording worker; for an application its process id.
    pub worker: u32,
    /// What happened, such as `segment_in`.
    pub kind: String,
    /// The flow's label in eight hex digits.
    pub label: String,
    /// TCP flags by their first letters, such as `SA` or `FA`; empty where the event is no segment.
    pub flags: String,
    /// Sequence number of a segment.
    pub seq: u32,
    /// Acknowledgement number of a segment.
    pub ack: u32,
    /// Payload length in bytes.
    pub len: u32,
    /// Network node: hash of the 4-tuple, which ties events before the label was known to it. Else 0.
    pub aux: u32,
    /// The event in words.
    pub detail: String,
}

/// Renders `event`, recorded by worker `worker` of node `node`.
pub fn trace_json(event: &TraceEvent, node: &str, worker: u32) -> TraceJson {
    let (tier, kind, words) = describe(event.kind);
    let flags = if is_segment(event.kind) { flag_letters(event.tcp_flags) } else { String::new() };
    let detail = match () {
        () if is_segment(event.kind) => {
            let (seq, ack, len) = (event.seq, event.ack, event.len);
            format!("{words}: {flags} seq {seq} ack {ack} len {len}")
        }
        () if event.len > 0 => format!("{words}: {} bytes", event.len),
        () => words.to_owned(),
    };
    TraceJson {
        t_ns: event.at.as_nanos(),
        node: node.to_owned(),
        tier,
        worker,
        kind: kind.to_owned(),
        label: label_text(event.label),
        flags,
        seq: event.seq,
        ack: event.ack,
        len: event.len,
        aux: event.aux,
        detail,
    }
}

fn label_text(label: FlowLabel) -> String {
    format!("{:08x}", label.to_wire())
}

fn is_segment(kind: TraceKind) -> bool {
    matches!(kind, TraceKind::LanIn | TraceKind::LanOut | TraceKind::SegmentIn | TraceKind::SegmentOut)
}

/// Letters of the flags that are set, in the order people say them (SYN/ACK is `SA`); `-` when none is (RFC 9293 §3.1,
/// RFC 3168 §6.1 for E and C).
fn flag_letters(flags: u8) -> String {
    const LETTERS: [(u8, char); 8] = [
        (0x02, 'S'),
        (0x01, 'F'),
        (0x04, 'R'),
        (0x08, 'P'),
        (0x20, 'U'),
        (0x10, 'A'),
        (0x40, 'E'),
        (0x80, 'C'),
    ];
    let set: String = LETTERS.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, letter)| letter).collect();
    if set.is_empty() { "-".to_owned() } else { set }
}

fn describe(kind: TraceKind) -> (Tier, &'static str, &'static str) {
    use Tier::{Application, NetworkNode, ProxyNode};
    match kind {
        TraceKind::None => (NetworkNode, "none", "nothing"),
        TraceKind::LanIn => (NetworkNode, "lan_in", "from the LAN"),
        TraceKind::LanOut => (NetworkNode, "lan_out", "to the LAN"),
        TraceKind::LabelBound => (NetworkNode, "label_bound", "label bound to the flow"),
        TraceKind::LabelEnded => (NetworkNode, "label_ended", "flow entry removed"),
        TraceKind::SegmentIn => (ProxyNode, "segment_in", "from the tunnel"),
        TraceKind::SegmentOut => (ProxyNode, "segment_out", "into the tunnel"),
        TraceKind::OpenSent => (ProxyNode, "open_sent", "OPEN to the application"),
        TraceKind::AcceptedReceived => (ProxyNode, "accepted_received", "ACCEPTED by the application"),
        TraceKind::DataSent => (ProxyNode, "data_sent", "DATA to the application"),
        TraceKind::DataReceived => (ProxyNode, "data_received", "DATA from the application"),
        TraceKind::ShutdownSent => (ProxyNode, "shutdown_sent", "SHUTDOWN to the application"),
        TraceKind::CloseReceived => (ProxyNode, "close_received", "CLOSE from the application"),
        TraceKind::Ended => (ProxyNode, "ended", "connection ended, label given back"),
        TraceKind::HandedOver => (ProxyNode, "handed_over", "left to another process"),
        TraceKind::TakenOver => (ProxyNode, "taken_over", "taken over by another process"),
        TraceKind::AppOpen => (Application, "app_open", "connection handed to accept()"),
        TraceKind::AppDataIn => (Application, "app_data_in", "read by the program"),
        TraceKind::AppDataOut => (Application, "app_data_out", "written by the program"),
        TraceKind::AppClose => (Application, "app_close", "closed by the program"),
        TraceKind::AppReset => (Application, "app_reset", "connection reset"),
        TraceKind::AppHandedOver => (Application, "app_handed_over", "left to another process"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use csp_types::Instant;

    #[test]
    fn segments_tell_flags_and_numbers_and_messages_their_length() {
        let segment = TraceEvent {
            at: Instant::from_nanos(7),
            label: FlowLabel::new(0x1a, 2),
            kind: TraceKind::SegmentOut,
            tcp_flags: 0x12,
            len: 0,
            seq: 100,
            ack: 5,
            aux: 0,
        };
        let json = serde_json::to_value(trace_json(&segment, "pn-1", 0)).unwrap();
        assert_eq!(json["tier"], "proxy-node");
        assert_eq!(json["label"], "0080001a");
        assert_eq!(json["detail"], "into the tunnel: SA seq 100 ack 5 len 0");
        let data = TraceEvent { kind: TraceKind::AppDataIn, tcp_flags: 0, len: 64, ..segment };
        let json = trace_json(&data, "an-1", 4711);
        assert_eq!((json.tier, json.flags.as_str()), (Tier::Application, ""));
        assert_eq!(json.detail, "read by the program: 64 bytes");
    }

    #[test]
    fn flags_are_said_as_people_say_them() {
        for (flags, said) in [(0x02, "S"), (0x12, "SA"), (0x10, "A"), (0x11, "FA"), (0x04, "R"), (0, "-")] {
            assert_eq!(flag_letters(flags), said);
        }
    }
}
