//! What other nodes' admin endpoints say, read leniently.
//!
//! A node of another release may leave fields out, add some, or write a number as text: nothing of that may hide the
//! rest. So these bodies are read field by field out of JSON values; what is absent is empty or zero.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Longest text taken from a node's answer, in bytes; the rest is cut off.
const TEXT_LEN_MAX: usize = 256;

/// One flow as one node sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FlowView {
    /// Node that reported it.
    pub node: String,
    /// Role of that node.
    pub role: String,
    /// Label, 8 hex digits; `00000000` before it has one.
    pub label: String,
    /// Client address.
    pub client: String,
    /// Virtual address.
    pub server: String,
    /// Service; empty where the node does not know it.
    pub service: String,
    /// Pool member it was given to; empty where the node does not know it.
    pub member: String,
    /// State of the connection, in the node's words.
    pub state: String,
    /// Payload bytes from the client.
    pub bytes_in: u64,
    /// Payload bytes to the client.
    pub bytes_out: u64,
    /// Age in ms.
    pub age_ms: u64,
}

/// What waits on a connection, and how much more may be sent, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct QueuesView {
    /// At the proxy, for the program.
    pub queued_in: u64,
    /// At the proxy, until the client acknowledges it.
    pub queued_out: u64,
    /// That the program lets come.
    pub credit_in: u64,
    /// That the program may still send.
    pub credit_out: u64,
}

impl QueuesView {
    /// Reads them from one element of a proxy's `/v1/flows`.
    pub fn read(value: &Value) -> Self {
        let number = |name: &str| number(value, &[name]);
        QueuesView {
            queued_in: number("queued_in"),
            queued_out: number("queued_out"),
            credit_in: number("credit_in"),
            credit_out: number("credit_out"),
        }
    }
}

/// One socket of one process, with its connection as the proxy sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SocketView {
    /// App node.
    pub node: String,
    /// Process, as the cluster knows it.
    pub process: String,
    /// Its number on that node.
    pub pid: u64,
    /// Program.
    pub program: String,
    /// Descriptor when the socket was made; 0 where it is not known any more.
    pub fd: u64,
    /// Listener or connection; `kernel-` in front where the kernel has it.
    pub kind: String,
    /// Why it is carried as it is.
    pub reason: String,
    /// Label; empty for listeners and sockets of the kernel.
    pub label: String,
    /// The cluster's end.
    pub local: String,
    /// The other end.
    pub remote: String,
    /// The connection's last error, such as `ECONNRESET`; empty where it had none.
    pub error: String,
    /// Of an accelerated listener: connections that wait to be accepted, and how many may.
    pub queue: Option<AcceptQueueView>,
    /// The connection at its proxy; none where no proxy that answered has it.
    pub flow: Option<FlowView>,
    /// Its queues there.
    pub queues: Option<QueuesView>,
}

/// The queue of a listener.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AcceptQueueView {
    /// Connections that wait to be accepted.
    pub waiting: u64,
    /// How many may: what the program gave to listen().
    pub backlog: u64,
}

impl SocketView {
    /// Reads one element of an app node's `/v1/sockets`.
    pub fn read(node: &str, value: &Value) -> Self {
        SocketView {
            node: node.to_owned(),
            process: text(value, &["process"]),
            pid: number(value, &["pid"]),
            program: text(value, &["program"]),
            fd: number(value, &["fd"]),
            kind: text(value, &["kind"]),
            reason: text(value, &["reason"]),
            label: label(value),
            local: text(value, &["local"]),
            remote: text(value, &["remote"]),
            error: text(value, &["error"]),
            queue: value.get("queue").and_then(|queue| AcceptQueueView::deserialize(queue).ok()),
            flow: None,
            queues: None,
        }
    }
}

/// One event of one flow on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TraceEventView {
    /// The node's CLOCK_MONOTONIC, in ns.
    pub t_ns: u64,
    /// Node id.
    pub node: String,
    /// Tier: the role's name, or `application`.
    pub tier: String,
    /// Worker.
    pub worker: u64,
    /// What happened, `kebab-case` (see `csp_types::TraceKind`).
    pub kind: String,
    /// Label, 8 hex digits.
    pub label: String,
    /// TCP flags (RFC 9293 §3.1, low 8 bits).
    pub flags: u8,
    /// Sequence number of a segment.
    pub seq: u32,
    /// Acknowledgement number of a segment.
    pub ack: u32,
    /// Payload length in bytes.
    pub len: u64,
    /// More, in the node's words.
    pub detail: String,
}

/// A flow that lately was seen or ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RecentFlow {
    /// Label, 8 hex digits.
    pub label: String,
    /// Client address; empty where no node knows it.
    pub client: String,
    /// Service; empty where no node knows it.
    pub service: String,
    /// When it was last seen, the reporting node's CLOCK_MONOTONIC, in ns.
    pub t_ns: u64,
    /// Whether it ended.
    pub ended: bool,
    /// Nodes that know it.
    pub nodes: Vec<String>,
}

/// One pool member as one proxy sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyMember {
    /// App node.
    pub node: String,
    /// Port.
    pub port: u16,
    /// Processes listening.
    pub processes: u64,
    /// Open connections.
    pub open_connections: u64,
    /// Connections given to it so far; none where the proxy does not count them.
    pub connections_total: Option<u64>,
}

/// One service as one proxy sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyService {
    /// Name.
    pub name: String,
    /// Established connections waiting for a process.
    pub pending: u64,
    /// Pool.
    pub pool: Vec<ProxyMember>,
}

/// A label as `cspctl` and the API take it: 1 to 8 hex digits, `0x` allowed.
pub fn parse_label(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u32::from_str_radix(digits, 16).ok()
}

/// The elements of an answer that is an array, or an object with the array under `key`.
pub fn list<'a>(body: &'a Value, key: &str) -> &'a [Value] {
    body.as_array().or_else(|| body.get(key).and_then(Value::as_array)).map_or(&[], Vec::as_slice)
}

impl FlowView {
    /// Reads one element of `/v1/flows`.
    pub fn read(node: &str, role: &str, value: &Value) -> Self {
        FlowView {
            node: node.to_owned(),
            role: role.to_owned(),
            label: label(value),
            client: text(value, &["client", "remote", "peer", "src"]),
            server: text(value, &["server", "vip", "local", "dst"]),
            service: text(value, &["service"]),
            member: text(value, &["member", "app", "app_node", "pool_member"]),
            state: text(value, &["state"]),
            bytes_in: number(value, &["bytes_in", "bytes_from_client", "in_bytes", "bytes_received"]),
            bytes_out: number(value, &["bytes_out", "bytes_to_client", "out_bytes", "bytes_sent"]),
            age_ms: number(value, &["age_ms"]),
        }
    }

    /// Payload bytes both ways.
    pub fn bytes(&self) -> u64 {
        self.bytes_in.saturating_add(self.bytes_out)
    }
}

impl TraceEventView {
    /// Reads one element of `/v1/trace`. The node that answered is the node of the event unless it says otherwise.
    pub fn read(node: &str, role: &str, value: &Value) -> Self {
        let or = |given: String, otherwise: &str| if given.is_empty() { otherwise.to_owned() } else { given };
        TraceEventView {
            t_ns: number(value, &["t_ns"]),
            node: or(text(value, &["node"]), node),
            tier: or(text(value, &["tier"]), role),
            worker: number(value, &["worker"]),
            kind: kebab(&text(value, &["kind"])),
            label: label(value),
            flags: flags(value.get("flags")),
            seq: number(value, &["seq"]) as u32,
            ack: number(value, &["ack"]) as u32,
            len: number(value, &["len"]),
            detail: text(value, &["detail"]),
        }
    }
}

impl RecentFlow {
    /// Reads one element of `/v1/trace/recent`: an object, or just a label.
    pub fn read(node: &str, value: &Value) -> Option<Self> {
        let label = match value {
            Value::String(_) | Value::Number(_) => label_text(value),
            _ => label(value),
        };
        if label.is_empty() || label == "00000000" {
            return None;
        }
        Some(RecentFlow {
            label,
            client: text(value, &["client", "remote", "peer"]),
            service: text(value, &["service"]),
            t_ns: number(value, &["last_t_ns", "t_ns", "last_ns"]),
            ended: value.get("ended").and_then(Value::as_bool).unwrap_or(false),
            nodes: vec![node.to_owned()],
        })
    }
}

impl ProxyService {
    /// Reads one element of a proxy's `/v1/services`.
    pub fn read(value: &Value) -> Self {
        let member = |m: &Value| ProxyMember {
            node: text(m, &["node"]),
            port: number(m, &["port"]) as u16,
            processes: number(m, &["processes", "processes_listening", "listening", "listeners"]),
            open_connections: number(m, &["open_connections", "open", "connections"]),
            connections_total: m.get("connections_total").and_then(Value::as_u64),
        };
        ProxyService {
            name: text(value, &["name", "service"]),
            pending: number(value, &["pending"]),
            pool: list(value.get("pool").or_else(|| value.get("members")).unwrap_or(&Value::Null), "members")
                .iter()
                .map(member)
                .collect(),
        }
    }
}

/// `LanIn`, `lan_in` and `lan-in` are all `lan-in`.
fn kebab(name: &str) -> String {
    let mut out = String::with_capacity(name.len() + 4);
    for (at, c) in name.chars().enumerate() {
        if c.is_ascii_uppercase() {
            if at > 0 {
                out.push('-');
            }
            out.push(c.to_ascii_lowercase());
        } else {
            out.push(if c == '_' { '-' } else { c });
        }
    }
    out
}

fn text(value: &Value, names: &[&str]) -> String {
    match names.iter().find_map(|name| value.get(*name)) {
        Some(Value::String(s)) => clean(s),
        Some(Value::Number(n)) => n.to_string(),
        _ => String::new(),
    }
}

/// Cuts a text to size and takes control characters out: it may end up on a terminal.
fn clean(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if out.len() + c.len_utf8() > TEXT_LEN_MAX {
            break;
        }
        out.push(if c.is_control() { ' ' } else { c });
    }
    out
}

fn number(value: &Value, names: &[&str]) -> u64 {
    match names.iter().find_map(|name| value.get(*name)) {
        Some(Value::Number(n)) => n.as_u64().unwrap_or_else(|| n.as_f64().map_or(0, |f| f.max(0.0) as u64)),
        Some(Value::String(s)) => s.parse().unwrap_or(0),
        _ => 0,
    }
}

fn label(value: &Value) -> String {
    value.get("label").map(label_text).unwrap_or_default()
}

fn label_text(value: &Value) -> String {
    match value {
        Value::String(s) => parse_label(s).map(|l| format!("{l:08x}")).unwrap_or_default(),
        Value::Number(n) => n.as_u64().map(|l| format!("{:08x}", l as u32)).unwrap_or_default(),
        _ => String::new(),
    }
}

/// Flags as a number, as first letters (`SA`), or as names in any punctuation (`SYN|ACK`).
fn flags(value: Option<&Value>) -> u8 {
    const NAMES: [(&str, u8); 8] =
        [("FIN", 1), ("SYN", 2), ("RST", 4), ("PSH", 8), ("ACK", 16), ("URG", 32), ("ECE", 64), ("CWR", 128)];
    let letter = |c: char| {
        NAMES.iter().find(|(name, _)| name.starts_with(c.to_ascii_uppercase())).map_or(0, |(_, bit)| *bit)
    };
    let word = |word: &str| match NAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(word)) {
        Some((_, bit)) => *bit,
        None => word.chars().map(letter).fold(0, |bits, bit| bits | bit),
    };
    match value {
        Some(Value::Number(n)) => n.as_u64().unwrap_or(0) as u8,
        Some(Value::String(s)) => {
            s.split(|c: char| !c.is_ascii_alphanumeric()).map(word).fold(0, |bits, bit| bits | bit)
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_event_is_read_whichever_way_a_node_writes_it() {
        let a = TraceEventView::read(
            "nn-1",
            "network-node",
            &json!({"t_ns": 7, "kind": "LanIn", "label": "1A", "flags": "SYN|ACK", "len": 3}),
        );
        let b = TraceEventView::read(
            "nn-1",
            "network-node",
            &json!({"t_ns": "7", "kind": "lan_in", "label": 26, "flags": 18, "len": 3, "surprise": [1]}),
        );
        assert_eq!(a, b);
        for (letters, bits) in [("SA", 18), ("FA", 17), ("R", 4), ("-", 0), ("", 0), ("EC", 192)] {
            assert_eq!(flags(Some(&json!(letters))), bits, "{letters}");
        }
        assert_eq!((a.kind.as_str(), a.label.as_str(), a.flags), ("lan-in", "0000001a", 18));
    }

    #[test]
    fn hostile_values_become_empty_not_a_panic() {
        for value in [json!(null), json!([]), json!({"label": -1, "flags": 1e300, "len": -5, "t_ns": {}})] {
            let event = TraceEventView::read("n", "r", &value);
            assert_eq!((event.len, event.t_ns), (0, 0));
        }
        assert_eq!(RecentFlow::read("n", &json!("zzz")), None);
        let flow = FlowView::read("n", "r", &json!({"client": "\u{1b}[2J".repeat(500)}));
        assert!(flow.client.len() <= TEXT_LEN_MAX && !flow.client.contains('\u{1b}'));
    }

    #[test]
    fn labels_are_one_to_eight_hex_digits() {
        assert_eq!(parse_label("0x0000001f"), Some(31));
        assert_eq!(parse_label("1f"), Some(31));
        for wrong in ["", "0x", "123456789", "+1", "xyz"] {
            assert_eq!(parse_label(wrong), None, "{wrong}");
        }
    }
}
