//! The management node's HTTP API: every JSON body it gives, shared with `cspctl`.
//!
//! Owns shapes only. What comes from other nodes' admin endpoints is read leniently (unknown fields are kept or
//! ignored, see [`crate::admin`]); what the management node itself gives has exactly these fields.

use serde::{Deserialize, Serialize};

pub use crate::admin::{FlowView, QueuesView, RecentFlow, SocketView, TraceEventView};

/// Who leads, as followers and errors name it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaderView {
    /// Node id of the leading management node.
    pub id: String,
    /// Base URL of its API, for example `http://10.77.0.4:9104`.
    pub url: String,
}

/// One thing wrong in a policy file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldError {
    /// File name as the client gave it.
    pub file: String,
    /// Line, from 1; 0 when the place is not known.
    pub line: u64,
    /// Column, from 1; 0 when the place is not known.
    pub column: u64,
    /// Path of the field, for example `services[0].pool[1].port`; empty when it concerns the whole file.
    pub field: String,
    /// What is wrong.
    pub message: String,
    /// What would be right; empty when the message says it all.
    pub allowed: String,
}

impl std::fmt::Display for FieldError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column.max(1))?;
        }
        if !self.field.is_empty() {
            write!(f, ": field `{}`", self.field)?;
        }
        write!(f, ": {}", self.message)?;
        if !self.allowed.is_empty() {
            write!(f, "; allowed: {}", self.allowed)?;
        }
        Ok(())
    }
}

/// The body of every answer that is not a success.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ErrorBody {
    /// What was wrong, for people.
    pub error: String,
    /// The leader, where the request must go there (status 307).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<LeaderView>,
    /// What is wrong in the policy (status 400).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
}

/// Where a policy generation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Written; nodes check it.
    Staging,
    /// Every live node has checked it, `active` points to it; nodes switch over.
    Activating,
    /// Every live node serves on it.
    Active,
    /// It was active; a later one is now.
    Superseded,
    /// A node refused it; the policy before it is in force.
    Refused,
    /// Not every live node answered in time; it was never active.
    TimedOut,
    /// It was never active, and this management node does not know why: another one published it, or this one was
    /// started anew.
    Abandoned,
}

impl Phase {
    /// The name used in JSON and in tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Phase::Staging => "staging",
            Phase::Activating => "activating",
            Phase::Active => "active",
            Phase::Superseded => "superseded",
            Phase::Refused => "refused",
            Phase::TimedOut => "timed-out",
            Phase::Abandoned => "abandoned",
        }
    }

    /// Whether nothing further will happen to a generation being published.
    pub const fn is_final(self) -> bool {
        !matches!(self, Phase::Staging | Phase::Activating)
    }
}

/// What one node says about one generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AckView {
    /// Node id.
    pub node: String,
    /// Its role.
    pub role: String,
    /// `waiting`, `staged`, `active` or `refused`.
    pub state: String,
    /// Why it refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// One policy generation: answer to `POST /api/v1/policy` (202) and `GET /api/v1/policy/generations/N`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GenerationView {
    /// Its number, from 1.
    pub generation: u64,
    /// When it was written, Unix time in ms.
    pub created_unix_ms: u64,
    /// SHA-256 of its canonical form, hex.
    pub hash: String,
    /// Where it stands.
    pub phase: Phase,
    /// Why it was not activated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The nodes that must agree, sorted by id. Empty for generations of the past.
    pub acks: Vec<AckView>,
    /// Grows by one with each change; hand it back as `?since=` to wait for the next.
    pub revision: u64,
}

/// A policy with its generation: `GET /api/v1/policy` and `.../generations/N/policy`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PolicyView {
    /// Generation, from 1.
    pub generation: u64,
    /// When it was written, Unix time in ms.
    pub created_unix_ms: u64,
    /// SHA-256 of its canonical form, hex.
    pub hash: String,
    /// The policy as YAML, in canonical order with defaults filled in.
    pub yaml: String,
    /// The same as JSON.
    pub policy: serde_json::Value,
}

/// Answer to `POST /api/v1/policy?dry_run`: the policy is right and nothing was changed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DryRunView {
    /// Always true; a wrong policy gives status 400.
    pub valid: bool,
    /// Services in it.
    pub services: usize,
    /// SHA-256 of its canonical form, hex.
    pub hash: String,
    /// The policy as YAML, in canonical order with defaults filled in.
    pub yaml: String,
}

/// How a node is doing, as the management node sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeState {
    /// Registered, and its `/readyz` says yes.
    Ready,
    /// Registered and answering, but not ready.
    NotReady,
    /// Registered, but its admin endpoint does not answer.
    Unreachable,
    /// Its lease has lapsed. It may still carry traffic: a lapsed lease is not death.
    Lapsed,
    /// Registered just now and not asked yet.
    Unknown,
}

impl NodeState {
    /// The name used in JSON and in tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            NodeState::Ready => "ready",
            NodeState::NotReady => "not-ready",
            NodeState::Unreachable => "unreachable",
            NodeState::Lapsed => "lapsed",
            NodeState::Unknown => "unknown",
        }
    }
}

/// One member of the cluster.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeView {
    /// Node id.
    pub id: String,
    /// `network-node`, `proxy-node`, `app-node` or `mgmt-node`.
    pub role: String,
    /// State.
    pub state: NodeState,
    /// Why it is not ready; empty when it is.
    #[serde(default)]
    pub detail: String,
    /// Release of its daemon.
    pub version: String,
    /// Base URL of its admin endpoint.
    pub admin: String,
    /// Data workers.
    pub workers: u32,
    /// Its SAN addresses, one text per worker and provider.
    pub san: Vec<String>,
    /// When the daemon started, Unix time in ms.
    pub started_unix_ms: u64,
    /// Generation it last spoke of; 0 when it never did.
    pub policy_generation: u64,
    /// What it said of it: `staged`, `active`, `refused`, or empty.
    #[serde(default)]
    pub policy_state: String,
    /// Whether this is the leading management node.
    #[serde(default)]
    pub leader: bool,
}

/// Whether the management node hears etcd.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct EtcdView {
    /// False while what is shown is the state last heard.
    pub connected: bool,
    /// Whether this management node runs it.
    pub private: bool,
    /// For how long it has not been heard, in ms; 0 while connected.
    pub silent_ms: u64,
}

/// `GET /api/v1/nodes`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodesView {
    /// Nodes, sorted by role in path order, then id.
    pub nodes: Vec<NodeView>,
    /// Who leads; none while nobody does or etcd is away.
    pub leader: Option<LeaderView>,
    /// State of etcd.
    pub etcd: EtcdView,
}

/// A node that was asked and did not answer properly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unreachable {
    /// Node id.
    pub node: String,
    /// Why.
    pub error: String,
}

/// One member of a service's pool with its live state summed over the proxies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolMemberView {
    /// App node.
    pub node: String,
    /// Port its processes listen on.
    pub port: u16,
    /// Processes listening, as the proxy that sees most of them says; none when no proxy answered.
    pub processes: Option<u64>,
    /// Open connections over all proxies; none when no proxy answered.
    pub open_connections: Option<u64>,
    /// Connections given to it since the proxies started.
    pub connections_total: Option<u64>,
}

/// One service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceView {
    /// Name.
    pub name: String,
    /// Virtual address.
    pub vip: String,
    /// Port.
    pub port: u16,
    /// Established connections that wait for a process, over all proxies.
    pub pending: u64,
    /// Pool.
    pub pool: Vec<PoolMemberView>,
}

/// `GET /api/v1/services`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServicesView {
    /// Generation of the policy that names them; 0 when there is none.
    pub generation: u64,
    /// Services in the policy's order.
    pub services: Vec<ServiceView>,
    /// Proxies that did not answer.
    pub unreachable: Vec<Unreachable>,
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
    /// Label, 8 hex digits.
    pub label: String,
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
}

/// What a trace says of another host's clock, beside that of the proxy's host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockView {
    /// The host's nodes.
    pub nodes: Vec<String>,
    /// How far its clock is ahead, in ns; subtracted from its events' times.
    pub offset_ns: i64,
    /// The offset is right to within so many ns; absent: the trace does not bound it on both sides.
    pub uncertainty_ns: Option<u64>,
}

/// `GET /api/v1/trace/recent`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RecentView {
    /// Flows, newest first.
    pub recent: Vec<RecentFlow>,
    /// Nodes that did not answer.
    pub unreachable: Vec<Unreachable>,
}

/// Packets or messages dropped for one reason by one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DropView {
    /// Node id.
    pub node: String,
    /// Reason as the node's metrics name it.
    pub reason: String,
    /// Since the node started.
    pub total: u64,
    /// In the last minute (or since the management node has watched).
    pub recent: u64,
}

/// One figure of a tier.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// What it counts.
    pub name: String,
    /// Now.
    pub value: f64,
    /// Per second; none for gauges and at the first sample.
    pub per_second: Option<f64>,
}

/// One tier of the path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TierView {
    /// Role.
    pub role: String,
    /// Members.
    pub nodes: usize,
    /// Of those, ready.
    pub ready: usize,
    /// Figures summed over the members.
    pub figures: Vec<Figure>,
}

/// `GET /api/v1/overview`: all that the operations page shows, in one answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OverviewView {
    /// This management node.
    pub node: String,
    /// Its release.
    pub version: String,
    /// Unix time in ms.
    pub now_unix_ms: u64,
    /// Members.
    pub cluster: NodesView,
    /// Tiers in path order.
    pub tiers: Vec<TierView>,
    /// The active generation with its acks.
    pub active: Option<GenerationView>,
    /// The newest generation, where it is not the active one.
    pub latest: Option<GenerationView>,
    /// Services.
    pub services: ServicesView,
    /// Busiest flows.
    pub flows: FlowsView,
    /// Drops by reason, most recent first.
    pub drops: Vec<DropView>,
}
