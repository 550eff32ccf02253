//! Flows, sockets and traces of the whole cluster.

use std::net::SocketAddr;

use csp_types::FlowLabel;
use serde::{Deserialize, Serialize};

use super::cluster::Unreachable;
use crate::app::AcceptQueue;
use crate::{Text, Tier, TraceEntry, flag_bits, proxy};

/// One connection as its proxy reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowView {
    /// Node that reported it.
    pub node: Text,
    /// Role of that node.
    pub role: Text,
    /// Label.
    #[serde(with = "crate::label")]
    pub label: FlowLabel,
    /// Client's address.
    pub client: SocketAddr,
    /// Virtual address and port.
    pub server: SocketAddr,
    /// Service; see [`proxy::Flow::service`].
    pub service: Text,
    /// App node that the connection was given to; empty before.
    pub member: Text,
    /// State; see [`proxy::Flow::state`].
    pub state: Text,
    /// Payload bytes from the client.
    pub bytes_in: u64,
    /// Payload bytes to the client.
    pub bytes_out: u64,
    /// Milliseconds in this stage.
    pub age_ms: u64,
}

impl FlowView {
    /// `flow` as node `node` of role `role` reported it.
    pub fn new(node: &str, role: &str, flow: proxy::Flow) -> Self {
        let proxy::Flow {
            label, client, server, service, member, state, bytes_in, bytes_out, age_ms, ..
        } = flow;
        let (node, role) = (node.into(), role.into());
        FlowView { node, role, label, client, server, service, member, state, bytes_in, bytes_out, age_ms }
    }

    /// Payload bytes both ways.
    pub fn bytes(&self) -> u64 {
        self.bytes_in.saturating_add(self.bytes_out)
    }
}

/// What waits on a connection at its proxy, and how much more may be sent, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuesView {
    /// Waits for the program.
    pub queued_in: u64,
    /// Waits until the client acknowledges it.
    pub queued_out: u64,
    /// The program lets come.
    pub credit_in: u64,
    /// The program may still send.
    pub credit_out: u64,
}

impl From<&proxy::Flow> for QueuesView {
    fn from(flow: &proxy::Flow) -> Self {
        let proxy::Flow { queued_in, queued_out, credit_in, credit_out, .. } = *flow;
        QueuesView { queued_in, queued_out, credit_in, credit_out }
    }
}

/// One socket of one process, with its connection as the proxy reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketView {
    /// App node.
    pub node: Text,
    /// Id of the process in the cluster.
    pub process: Text,
    /// Process id on that node.
    pub pid: u32,
    /// Program.
    pub program: Text,
    /// Descriptor when the socket was made; 0 when that is no longer known.
    pub fd: u32,
    /// `listener` or `connection`; `kernel-` in front where the kernel carries it.
    pub kind: Text,
    /// `accelerated`, or why the kernel carries the socket.
    pub reason: Text,
    /// Label; empty for listeners and for sockets that the kernel carries.
    #[serde(with = "crate::label::or_empty")]
    pub label: Option<FlowLabel>,
    /// The cluster's end.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
    /// Last error of the connection, such as `ECONNRESET`; empty where it had none.
    pub error: Text,
    /// Accept queue of an accelerated listener.
    pub queue: Option<AcceptQueue>,
    /// The connection at its proxy; `null` where no proxy that answered has it.
    pub flow: Option<FlowView>,
    /// Its queues there.
    pub queues: Option<QueuesView>,
}

impl SocketView {
    /// `socket` as app node `node` reported it; its connection is filled in later.
    pub fn new(node: &str, socket: crate::app::Socket) -> Self {
        SocketView {
            node: node.into(),
            process: socket.process,
            pid: socket.pid,
            program: socket.program,
            fd: socket.fd,
            kind: socket.kind,
            reason: socket.reason,
            label: socket.label,
            local: socket.local,
            remote: socket.remote,
            error: socket.error.unwrap_or_default(),
            queue: socket.queue,
            flow: None,
            queues: None,
        }
    }
}

/// One event of one flow on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceEventView {
    /// Time in nanoseconds of the node's CLOCK_MONOTONIC.
    pub t_ns: u64,
    /// Node id.
    pub node: Text,
    /// Tier.
    pub tier: Tier,
    /// Worker; for an application its process id.
    pub worker: u32,
    /// What happened, such as `segment-in`: [`TraceEntry::kind`] with `-` for `_`.
    pub kind: Text,
    /// Label.
    #[serde(with = "crate::label")]
    pub label: FlowLabel,
    /// TCP flags as a number (RFC 9293 §3.1, low 8 bits).
    pub flags: u8,
    /// Sequence number of a segment.
    pub seq: u32,
    /// Acknowledgement number of a segment.
    pub ack: u32,
    /// Payload length in bytes.
    pub len: u32,
    /// The event in words.
    pub detail: Text,
    /// Label of another flow of the same proxy that belongs to this one: the other end of a hairpin, or the
    /// connection from or to which a service of the proxy passes requests. Absent in other events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub related: Option<Text>,
}

impl From<TraceEntry> for TraceEventView {
    fn from(entry: TraceEntry) -> Self {
        let relates = matches!(entry.kind.as_str(), "open_sent" | "related");
        let related = FlowLabel::from_wire(entry.aux).filter(|label| relates && !label.is_none());
        TraceEventView {
            related: related.map(|label| label.to_string().into()),
            t_ns: entry.t_ns,
            node: entry.node,
            tier: entry.tier,
            worker: entry.worker,
            kind: entry.kind.replace('_', "-").into(),
            label: entry.label,
            flags: flag_bits(&entry.flags),
            seq: entry.seq,
            ack: entry.ack,
            len: entry.len,
            detail: entry.detail,
        }
    }
}

/// A flow that was seen or ended lately.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecentFlowView {
    /// Label.
    #[serde(with = "crate::label")]
    pub label: FlowLabel,
    /// Node id of the proxy that assigned it; empty where no node knows it.
    #[serde(default)]
    pub proxy: Text,
    /// Client's address; empty where no node knows it.
    pub client: Text,
    /// Service; empty where no node knows it.
    pub service: Text,
    /// Time of its latest event, in nanoseconds of the reporting node's CLOCK_MONOTONIC; 0 where only a flow
    /// table has it.
    pub t_ns: u64,
    /// Whether it ended.
    pub ended: bool,
    /// Nodes that know it.
    pub nodes: Vec<Text>,
}

/// `GET /api/v1/flows`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FlowsView {
    /// Flows, most bytes first.
    pub flows: Vec<FlowView>,
    /// Whether a bound cut the list.
    pub truncated: bool,
    /// Nodes that did not answer.
    pub unreachable: Vec<Unreachable>,
}

/// `GET /api/v1/sockets`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SocketsView {
    /// Sockets by node, process and descriptor.
    pub sockets: Vec<SocketView>,
    /// Whether a bound cut the list.
    pub truncated: bool,
    /// Nodes that did not answer.
    pub unreachable: Vec<Unreachable>,
}

/// `GET /api/v1/trace?label=`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TraceView {
    /// Label.
    #[serde(with = "crate::label")]
    pub label: FlowLabel,
    /// Node id of the proxy that assigned it; empty where no node knows it.
    #[serde(default)]
    pub proxy: Text,
    /// Other proxies that have flows of the same label.
    #[serde(default)]
    pub other_proxies: Vec<Text>,
    /// Events of all tiers, oldest first.
    pub events: Vec<TraceEventView>,
    /// Different hosts (kernels) among the nodes that answered.
    pub hosts: usize,
    /// Clocks of hosts other than the proxy's, whose events were moved to the proxy's clock.
    #[serde(default)]
    pub clocks: Vec<ClockView>,
    /// Whether a bound cut the list.
    pub truncated: bool,
    /// Nodes that did not answer.
    pub unreachable: Vec<Unreachable>,
    /// Traces of flows that belong to this one ([`TraceEventView::related`]), without those that belong to
    /// them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub related: Vec<TraceView>,
}

/// The clock of another host, beside that of the proxy's host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockView {
    /// The host's nodes.
    pub nodes: Vec<Text>,
    /// How far its clock is ahead, in ns; subtracted from its events' times.
    pub offset_ns: i64,
    /// Bound of the offset's error in ns; absent where the trace does not bound it on both sides.
    pub uncertainty_ns: Option<u64>,
}

/// `GET /api/v1/trace/recent`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RecentView {
    /// Flows, newest first.
    pub recent: Vec<RecentFlowView>,
    /// Nodes that did not answer.
    pub unreachable: Vec<Unreachable>,
}
