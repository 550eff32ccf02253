//! Nodes, services and the overview.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::Text;
use crate::proxy::{ChannelFigures, RequestedQuery, ServiceFigures};

use super::flows::FlowsView;
use super::policy::{GenerationView, LeaderView};

/// How a node is doing, as the management node sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeState {
    /// Registered, and ready according to its `/readyz`.
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

/// Where a management node publishes events over ZeroMQ.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EventsEndpoint {
    /// ADDRESS:PORT.
    pub address: String,
    /// Its public CURVE key in Z85; absent: it asks for none, and is reached from its host only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
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
    /// Of a network node: the networks whose VIPs and egress addresses it answers for; empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owns: Vec<String>,
    /// Features of its software that it has registered, such as `tunnel` or `relay`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
    /// Management nodes only: where they publish events over ZeroMQ; absent: they do not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<EventsEndpoint>,
    /// Whether it gets no new connections (`cspctl drain`).
    #[serde(default)]
    pub draining: bool,
    /// When the daemon started, Unix time in ms.
    pub started_unix_ms: u64,
    /// Generation that it acknowledged last; 0 before the first.
    pub policy_generation: u64,
    /// What has become of it: `staged`, `active`, `refused`, `timed-out`, or empty.
    #[serde(default)]
    pub policy_state: String,
    /// Generation that it works by; 0: none.
    #[serde(default)]
    pub policy_active: u64,
    /// Whether this is the leading management node.
    #[serde(default)]
    pub leader: bool,
}

/// State of etcd as the management node finds it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct EtcdView {
    /// Whether etcd answers; while it does not, the state last known is shown.
    pub connected: bool,
    /// Whether this management node runs it.
    pub private: bool,
    /// Milliseconds since its last answer; 0 while connected.
    pub silent_ms: u64,
}

/// `GET /api/v1/nodes`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodesView {
    /// Nodes, sorted by role in path order, then id.
    pub nodes: Vec<NodeView>,
    /// The leading management node; `null` during an election and while etcd is away.
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
    /// App node; empty for a plain server.
    pub node: String,
    /// Address of a plain server, which proxies reach over TCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// Names of the pool that may stand for the address: those with its port. Without an address, a name for
    /// which no proxy has one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// Nodes at which a plain server is down, with the reason: how a proxy's last connection to it, or a
    /// network node's checks have failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub down_at: Vec<String>,
    /// Port its processes listen on.
    pub port: u16,
    /// Processes that listen: the highest number that a proxy reports; `null` when no proxy answered, and for
    /// a plain server.
    pub processes: Option<u64>,
    /// Open connections over all proxies; `null` when no proxy answered.
    pub open_connections: Option<u64>,
    /// Connections that its processes accepted, over all proxies since they know it; of a server that packets
    /// are forwarded to, the flows that it was given. `null` when no node answered.
    pub connections_total: Option<u64>,
    /// Connections that its processes have room for, over all proxies; `null` where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accept_credit: Option<u64>,
    /// Packets that network nodes forwarded to it; `null` unless the service has `via: network`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets_total: Option<u64>,
}

impl PoolMemberView {
    /// Whether it gets no connections: it is down somewhere, has no address, or no process listens.
    pub fn is_down(&self) -> bool {
        let nowhere = self.address.is_none() && self.node.is_empty();
        nowhere || !self.down_at.is_empty() || self.processes == Some(0)
    }
}

/// One service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceView {
    /// Name.
    pub name: String,
    /// Virtual address; empty: no client reaches it.
    pub vip: String,
    /// Port.
    pub port: u16,
    /// `tcp` or `udp`.
    #[serde(default = "tcp")]
    pub protocol: String,
    /// `proxy`, or `network` if network nodes forward the packets to the servers.
    #[serde(default = "proxy")]
    pub via: String,
    /// Established connections that wait for a process, over all proxies.
    pub pending: u64,
    /// Pool.
    pub pool: Vec<PoolMemberView>,
    /// The services to which routes of its HTTP lead, each once; a service without `vip` is reached by such
    /// routes only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leads_to: Vec<String>,
    /// What the proxies have counted of it, for the figures of the last hour; not part of the answer.
    #[serde(skip)]
    pub figures: Option<ServiceFigures>,
}

/// A service of a management node that knows no others.
fn tcp() -> String {
    "tcp".to_owned()
}

fn proxy() -> String {
    "proxy".to_owned()
}

/// `GET /api/v1/services`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServicesView {
    /// Generation of the policy that names them; 0 when there is none.
    pub generation: u64,
    /// Services in the policy's order; where fewer are asked for than there are, those with troubles first.
    pub services: Vec<ServiceView>,
    /// Services that there are, with those that are not in the answer.
    #[serde(default)]
    pub total: usize,
    /// Of them, those with a member that gets no connections, or with connections that wait.
    #[serde(default)]
    pub troubled: usize,
    /// Proxies that did not answer; with services that network nodes forward, these as well.
    pub unreachable: Vec<Unreachable>,
}

impl ServiceView {
    /// Whether a member gets no connections, or connections wait for a process.
    pub fn is_troubled(&self) -> bool {
        self.pending > 0 || self.pool.iter().any(PoolMemberView::is_down)
    }
}

/// A channel of the active policy, over all proxies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChannelView {
    /// Name.
    pub name: String,
    /// Address that peers connect to.
    pub vip: String,
    /// Port that they connect to.
    pub port: u16,
    /// `publish` or `push`.
    pub pattern: String,
    /// Proxy and worker at which it lives, such as `pn-1/0`; several while it moves, and none before proxies
    /// know.
    #[serde(default)]
    pub owners: Vec<Text>,
    /// Connected peers that publish or push.
    pub senders: u64,
    /// Connected peers that subscribe or pull.
    pub receivers: u64,
    /// Pairs of a receiver and a topic.
    pub subscriptions: u64,
    /// The query that a program has asked for, if it is one of these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested: Option<RequestedQuery>,
    /// Figures of its messages.
    #[serde(flatten)]
    pub figures: ChannelFigures,
}

/// `GET /api/v1/channels`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ChannelsView {
    /// Generation of the policy that names them; 0 when there is none.
    pub generation: u64,
    /// Channels in the policy's order.
    pub channels: Vec<ChannelView>,
    /// Proxies that did not answer.
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
    /// Channels of messages.
    #[serde(default)]
    pub channels: ChannelsView,
    /// Busiest flows.
    pub flows: FlowsView,
    /// Drops by reason, most recent first.
    pub drops: Vec<DropView>,
}

/// `/api/v1/vip-groups`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VipGroupsView {
    /// The policy generation that they are of; 0 if none is active.
    pub generation: u64,
    /// The groups, in the policy's order.
    pub groups: Vec<VipGroupView>,
    /// Network nodes that did not answer.
    #[serde(default)]
    pub unreachable: Vec<Unreachable>,
}

/// A VIP group of the policy, and who holds it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VipGroupView {
    /// Its name.
    pub name: String,
    /// Its addresses and networks.
    pub addresses: Vec<String>,
    /// The network node that answers for them, as it says or as the others know by the votes; `null` if none
    /// does.
    pub holder: Option<String>,
    /// Further ones that say so: a fault of the network, and over within seconds.
    #[serde(default)]
    pub others: Vec<String>,
    /// For how long it has, in milliseconds.
    pub held_ms: Option<u64>,
    /// The epoch: it is higher for each next holder.
    pub epoch: u64,
    /// Proxies that vote for the holder.
    pub votes: u32,
    /// Proxies whose votes count.
    pub voters: u32,
    /// The network nodes that take part in its election.
    pub nodes: Vec<String>,
}
