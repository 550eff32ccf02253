//! Recorded events: the bodies of `/v1/trace` and `/v1/trace/recent`.

use std::net::SocketAddr;

use csp_types::{FlowLabel, TraceEvent, TraceKind};
use serde::{Deserialize, Serialize};

use crate::Text;

/// The tier that recorded an event.
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

impl Tier {
    /// The name used in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Tier::NetworkNode => "network-node",
            Tier::ProxyNode => "proxy-node",
            Tier::Application => "application",
        }
    }
}

/// One event of one flow: an element of `/v1/trace`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TraceEntry {
    /// Time in nanoseconds of the host's CLOCK_MONOTONIC.
    pub t_ns: u64,
    /// Id of the node that recorded the event.
    pub node: Text,
    /// Its tier.
    pub tier: Tier,
    /// The worker that recorded the event; for an application its process id.
    pub worker: u32,
    /// What happened, such as `segment_in`.
    pub kind: Text,
    /// Label of the flow.
    #[serde(with = "crate::label")]
    pub label: FlowLabel,
    /// Tag of the proxy that assigned the label ([`NodeId::tag`](csp_types::NodeId::tag)); 0: not recorded,
    /// or the node is the proxy.
    #[serde(default)]
    pub proxy: u16,
    /// TCP flags by their first letters, such as `SA` or `FA`, and `-` for a segment without any; empty where
    /// the event is no segment.
    pub flags: Text,
    /// Sequence number of a segment.
    pub seq: u32,
    /// Acknowledgement number of a segment.
    pub ack: u32,
    /// Payload length in bytes.
    pub len: u32,
    /// Network node: hash of the 4-tuple, which connects events from before the label was known to it.
    /// Otherwise 0.
    pub aux: u32,
    /// The event in words.
    pub detail: Text,
}

impl TraceEntry {
    /// Describes `event`, recorded by worker `worker` of node `node`.
    pub fn new(event: &TraceEvent, node: &str, worker: u32) -> Self {
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
        TraceEntry {
            t_ns: event.at.as_nanos(),
            node: node.into(),
            tier,
            worker,
            kind: kind.into(),
            label: event.label,
            proxy: event.proxy,
            flags: flags.into(),
            seq: event.seq,
            ack: event.ack,
            len: event.len,
            aux: event.aux,
            detail: detail.into(),
        }
    }
}

/// A flow that was seen or ended lately: an element of `/v1/trace/recent`, newest first.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RecentFlow {
    /// Label.
    #[serde(with = "crate::label")]
    pub label: FlowLabel,
    /// Tag of the proxy, as in [`TraceEntry`].
    #[serde(default)]
    pub proxy: u16,
    /// Client's address; absent where the node does not know it (network node, app node).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<SocketAddr>,
    /// Virtual address and port; absent likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<SocketAddr>,
    /// Service; absent likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<Text>,
    /// Time of its latest event, in nanoseconds of the host's CLOCK_MONOTONIC.
    pub t_ns: u64,
    /// Whether the flow is over as far as this node knows.
    pub ended: bool,
}

impl RecentFlow {
    /// A flow of which a node knows no more than this.
    pub fn new(label: FlowLabel, t_ns: u64, ended: bool) -> Self {
        RecentFlow { label, proxy: 0, client: None, server: None, service: None, t_ns, ended }
    }
}

fn is_segment(kind: TraceKind) -> bool {
    matches!(kind, TraceKind::LanIn | TraceKind::LanOut | TraceKind::SegmentIn | TraceKind::SegmentOut)
}

/// Flags and their letters, in the order people name them: SYN/ACK is `SA` (RFC 9293 §3.1, RFC 3168 §6.1 for
/// E and C).
const LETTERS: [(u8, char); 8] =
    [(0x02, 'S'), (0x01, 'F'), (0x04, 'R'), (0x08, 'P'), (0x20, 'U'), (0x10, 'A'), (0x40, 'E'), (0x80, 'C')];

/// Letters of the TCP flags that are set, such as `SA`; `-` when none is.
pub fn flag_letters(flags: u8) -> String {
    let set: String = LETTERS.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, letter)| letter).collect();
    if set.is_empty() { "-".to_owned() } else { set }
}

/// The TCP flags that [`flag_letters`] wrote; other characters count as none.
pub fn flag_bits(letters: &str) -> u8 {
    let bit = |c: char| LETTERS.iter().find(|(_, letter)| *letter == c).map_or(0, |(bit, _)| *bit);
    letters.chars().fold(0, |bits, c| bits | bit(c))
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
        TraceKind::Ended => (ProxyNode, "ended", "connection ended, label released"),
        TraceKind::HandedOver => (ProxyNode, "handed_over", "left to another process"),
        TraceKind::TakenOver => (ProxyNode, "taken_over", "taken over by another process"),
        TraceKind::Related => (ProxyNode, "related", "requests pass from or to another connection"),
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
    fn segments_show_flags_and_numbers_and_messages_their_length() {
        let segment = TraceEvent {
            at: Instant::from_nanos(7),
            label: FlowLabel::new(0x1a, 2),
            kind: TraceKind::SegmentOut,
            tcp_flags: 0x12,
            len: 0,
            seq: 100,
            ack: 5,
            aux: 0,
            ..TraceEvent::default()
        };
        let entry = TraceEntry::new(&segment, "pn-1", 0);
        let json = serde_json::to_string(&entry).unwrap();
        let expected = r#"{"t_ns":7,"node":"pn-1","tier":"proxy-node","worker":0,"kind":"segment_out","label":"0080001a","proxy":0,"flags":"SA","seq":100,"ack":5,"len":0,"aux":0,"detail":"into the tunnel: SA seq 100 ack 5 len 0"}"#;
        assert_eq!(json, expected);
        assert_eq!(serde_json::from_str::<TraceEntry>(&json).unwrap(), entry);
        let data = TraceEvent { kind: TraceKind::AppDataIn, tcp_flags: 0, len: 64, ..segment };
        let entry = TraceEntry::new(&data, "an-1", 4711);
        assert_eq!((entry.tier, entry.flags.as_str()), (Tier::Application, ""));
        assert_eq!(entry.detail, "read by the program: 64 bytes");
    }

    #[test]
    fn flags_have_letters_in_the_order_people_name_them() {
        for (flags, letters) in [(0x02, "S"), (0x12, "SA"), (0x10, "A"), (0x11, "FA"), (0x04, "R"), (0, "-")]
        {
            assert_eq!(flag_letters(flags), letters);
        }
        for flags in 0..=u8::MAX {
            assert_eq!(flag_bits(&flag_letters(flags)), flags);
        }
    }
}
