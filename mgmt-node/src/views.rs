//! The cluster-wide views, put together from membership, policy state, the poller and the nodes' admin
//! endpoints.

mod channels;
mod contexts;
mod forwarded;
mod http;
mod messages;
mod quality;
mod services;
mod topology;
mod vip_groups;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use csp_api::mgmt::{
    EtcdView, EventsEndpoint, FlowView, FlowsView, GenerationView, NodeState, NodeView, NodesView,
    OverviewView, Phase, QueuesView, RecentFlowView, RecentView, ServicesView, SocketView, SocketsView,
    TraceEventView, TraceView, Unreachable,
};
use csp_api::{RecentFlow, Text, TraceEntry, app, network, proxy};
use csp_control::{AckState, ControlStatus, MemberState, Membership, NodeAck, PolicyManager};
use csp_daemon::clock::unix_now_ms;
use csp_policy::Via;
use csp_types::{FlowLabel, Role};
use tokio::sync::{Mutex, watch};

use crate::acme::Acme;
use crate::fanout::{Fanout, Target};
use crate::leader::Leadership;
use crate::limits::{
    FLOWS_MAX, OVERVIEW_FLOWS, OVERVIEW_FLOWS_ASKED, OVERVIEW_KEPT, RECENT_MAX, RELATED_MAX, TRACE_EVENTS_MAX,
};
use crate::policy_view::{PolicyReader, PolicyState, acknowledged};
use crate::poller::{self, Poller};
use crate::proxy_labels::{ProxyTags, tag_of};
use crate::publish::{self, Publisher};
use crate::{tiers, trace_order};

pub use messages::TraceAsked;

/// Everything the API reads from.
#[derive(Debug)]
pub struct Cluster {
    /// This node.
    pub id: String,
    /// Whether this node runs etcd.
    pub private_etcd: bool,
    /// The members of the cluster.
    pub membership: watch::Receiver<Membership>,
    /// How this node's own control plane stands.
    pub status: watch::Receiver<ControlStatus>,
    /// The leading management node.
    pub leadership: watch::Receiver<Leadership>,
    /// The policy as last read from etcd.
    pub policy: Arc<PolicyReader>,
    /// Writes policy.
    pub publisher: Arc<Publisher>,
    /// Reads policy.
    pub manager: PolicyManager,
    /// How the members did when last asked.
    pub poller: Arc<Poller>,
    /// Certificates from an authority.
    pub acme: Arc<Acme>,
    /// Asks nodes.
    pub fanout: Fanout,
    /// The latest overview, shared by all open pages.
    pub overview: Mutex<Option<(Instant, Arc<OverviewView>)>>,
}

impl Cluster {
    /// `GET /api/v1/nodes`.
    pub fn nodes(&self) -> NodesView {
        let health = self.poller.health();
        let policy = self.policy.known();
        let leadership = self.leadership.borrow().clone();
        let leader = leadership.leader().cloned();
        let membership = self.membership.borrow();
        let mut members: Vec<(Role, NodeView)> = Vec::new();
        for (id, member) in &membership.nodes {
            let id = id.to_string();
            let known = health.get(&id).filter(|h| h.incarnation == member.record.incarnation);
            let (state, detail) = match (member.state, known) {
                (MemberState::LeaseExpired, Some(h)) if h.state == NodeState::Ready => {
                    (NodeState::Lapsed, "its admin endpoint answers that it is ready".to_owned())
                }
                (MemberState::LeaseExpired, h) => {
                    (NodeState::Lapsed, h.map(|h| h.detail.clone()).unwrap_or_default())
                }
                (MemberState::Live, Some(h)) => (h.state, h.detail.clone()),
                (MemberState::Live, None) => (NodeState::Unknown, String::new()),
            };
            let said = policy.followers.iter().find(|(node, _)| node.id.as_str() == id);
            let ack = said.and_then(|(_, ack)| ack.as_ref());
            let record = &member.record;
            members.push((
                record.role,
                NodeView {
                    leader: leader.as_ref().is_some_and(|l| l.id == id),
                    id,
                    role: record.role.to_string(),
                    state,
                    detail,
                    version: record.version.clone(),
                    admin: record.admin.clone(),
                    workers: record.workers,
                    san: san(record),
                    owns: record.owns.iter().map(ToString::to_string).collect(),
                    capabilities: record.capabilities.clone(),
                    events: record
                        .events
                        .clone()
                        .map(|at| EventsEndpoint { address: at.address, key: at.key }),
                    draining: record.draining,
                    started_unix_ms: record.started_unix_ms,
                    policy_generation: ack.map_or(0, |a| a.generation),
                    policy_state: ack.map(|ack| self.policy_state(ack)).unwrap_or_default(),
                    policy_active: ack.map_or(0, |ack| ack.active),
                },
            ));
        }
        members.sort_by(|a, b| (a.0, &a.1.id).cmp(&(b.0, &b.1.id)));
        NodesView { nodes: members.into_iter().map(|(_, view)| view).collect(), leader, etcd: self.etcd() }
    }

    /// What has become of the generation that a node acknowledged last: it stays staged at a node when
    /// another one has refused it.
    fn policy_state(&self, ack: &NodeAck) -> String {
        let failed = self.publisher.failure(ack.generation).filter(|_| ack.state == AckState::Staged);
        failed.map_or(acknowledged(ack.state).as_str(), |(phase, _)| phase.as_str()).to_owned()
    }

    /// Whether etcd answers.
    pub fn etcd(&self) -> EtcdView {
        let policy = self.policy.known();
        let silent = policy.answered.map_or(u64::MAX, |answered| answered.elapsed().as_millis() as u64);
        let connected = policy.problem.is_none() && policy.answered.is_some();
        EtcdView { connected, private: self.private_etcd, silent_ms: if connected { 0 } else { silent } }
    }

    /// `GET /api/v1/policy/history`.
    pub fn history(&self, policy: &PolicyState) -> Vec<GenerationView> {
        let current = self.publisher.current();
        let of = |summary: &csp_control::GenerationSummary| {
            if let Some(view) =
                current.as_ref().filter(|v| v.generation == summary.generation && !v.phase.is_final())
            {
                return view.clone();
            }
            let (phase, reason) = match self.publisher.failure(summary.generation) {
                _ if summary.active => (Phase::Active, None),
                Some((phase, reason)) => (phase, Some(reason)),
                None if summary.activated_unix_ms.is_some() => (Phase::Superseded, None),
                None => (Phase::Abandoned, None),
            };
            GenerationView {
                generation: summary.generation,
                created_unix_ms: summary.created_unix_ms,
                hash: summary.hash.clone(),
                phase,
                reason,
                acks: if summary.active {
                    publish::acks(&policy.followers, summary.generation)
                } else {
                    Vec::new()
                },
                revision: 0,
            }
        };
        policy.history.iter().map(of).collect()
    }

    pub(crate) fn targets(&self, roles: &[Role]) -> Vec<Target> {
        let membership = self.membership.borrow();
        roles.iter().flat_map(|role| membership.of_role(*role)).map(|m| poller::target(&m.record)).collect()
    }

    /// `GET /api/v1/services`.
    pub async fn services(&self) -> ServicesView {
        let targets = self.targets(&[Role::ProxyNode]);
        let active = self.policy.known().active;
        let policy = active.as_ref().map(|record| &record.policy);
        let (proxies, network) = tokio::join!(
            self.fanout.ask::<Vec<proxy::Service>>(targets, "/v1/services", vec![]),
            self.forwarded(policy),
        );
        let (answers, mut unreachable) = proxies;
        unreachable.extend(network.unreachable.iter().cloned());
        let of_policy = policy.into_iter().flat_map(|policy| &policy.services);
        let channels = policy.into_iter().flat_map(|policy| &policy.channels);
        let of_channels = channels.flat_map(csp_policy::Channel::pool_services);
        let reported = services::Reported::new(&answers);
        let view = |service: &csp_policy::Service| match service.via {
            Via::Proxy => services::live(service, &reported),
            Via::Network => network.view(service),
        };
        let of_channels = of_channels.map(|service| services::live(&service, &reported));
        let services: Vec<_> = of_policy.map(view).chain(of_channels).collect();
        ServicesView {
            generation: active.as_ref().map_or(0, |record| record.generation),
            total: services.len(),
            troubled: services.iter().filter(|service| service.is_troubled()).count(),
            services,
            unreachable,
        }
    }

    /// `GET /api/v1/flows`: what the proxies hold open. They list in table order, so that the busiest can
    /// only be found among all that are asked for: at most `asked` of each proxy.
    pub async fn flows(&self, service: Option<&str>, limit: usize, asked: usize) -> FlowsView {
        let (limit, asked) = (limit.clamp(1, FLOWS_MAX), asked.clamp(1, FLOWS_MAX));
        let (answers, unreachable) = self.proxy_flows(asked).await;
        let cut = answers.iter().any(|(_, listed)| listed.len() >= asked);
        let view = |target: Target, listed: Vec<proxy::Flow>| {
            listed.into_iter().map(move |flow| FlowView::new(&target.id, &target.role, flow))
        };
        let mut flows: Vec<FlowView> =
            answers.into_iter().flat_map(|(target, listed)| view(target, listed)).collect();
        flows.retain(|flow| service.is_none_or(|name| flow.service == *name));
        flows.sort_by(|a, b| b.bytes().cmp(&a.bytes()).then_with(|| a.label.cmp(&b.label)));
        let truncated = cut || flows.len() > limit;
        flows.truncate(limit);
        FlowsView { flows, truncated, unreachable }
    }

    /// At most `asked` flows of each proxy, and the proxies that did not answer.
    async fn proxy_flows(&self, asked: usize) -> (Vec<(Target, Vec<proxy::Flow>)>, Vec<Unreachable>) {
        let targets = self.targets(&[Role::ProxyNode]);
        let (mut answers, unreachable) =
            self.fanout.ask::<Vec<proxy::Flow>>(targets, "/v1/flows", limited(asked)).await;
        answers.iter_mut().for_each(|(_, flows)| flows.truncate(asked));
        (answers, unreachable)
    }

    /// `GET /api/v1/sockets`: what the app nodes' processes have, each connection with what its proxy reports
    /// of it.
    pub async fn sockets(&self, process: Option<&str>, limit: usize) -> SocketsView {
        let limit = limit.clamp(1, FLOWS_MAX);
        let (listed, proxies) = tokio::join!(
            self.fanout.ask::<Vec<app::Socket>>(
                self.targets(&[Role::AppNode]),
                "/v1/sockets",
                limited(FLOWS_MAX)
            ),
            self.proxy_flows(FLOWS_MAX),
        );
        let mut flows = BTreeMap::new();
        for (target, listed) in proxies.0 {
            for flow in listed {
                let queues = QueuesView::from(&flow);
                let flow = FlowView::new(&target.id, &target.role, flow);
                flows.insert((flow.label, flow.client), (flow, queues));
            }
        }
        let (mut sockets, mut cut) = (Vec::new(), false);
        for (target, all) in listed.0 {
            cut |= all.len() >= FLOWS_MAX;
            for mut socket in all.into_iter().map(|socket| SocketView::new(&target.id, socket)) {
                let of = |name: &str| {
                    socket.process == *name || socket.program == *name || socket.pid.to_string() == name
                };
                if !process.is_none_or(of) {
                    continue;
                }
                // A label is one proxy's own: the client's address tells whose.
                let found = socket.label.and_then(|label| flows.get(&(label, socket.remote)).cloned());
                (socket.flow, socket.queues) = found.unzip();
                sockets.push(socket);
            }
        }
        sockets.sort_by(|a, b| {
            (&a.node, &a.process, a.fd, &a.label).cmp(&(&b.node, &b.process, b.fd, &b.label))
        });
        let truncated = cut || sockets.len() > limit;
        sockets.truncate(limit);
        SocketsView { sockets, truncated, unreachable: [listed.1, proxies.1].concat() }
    }

    /// `GET /api/v1/trace?label=&proxy=`: of the flow of `proxy`, since labels are unique only within one
    /// proxy, and of at most [`RELATED_MAX`] flows that belong to it.
    pub async fn trace(&self, label: FlowLabel, proxy: Option<&str>) -> TraceView {
        let mut view = self.trace_of(label, proxy).await;
        let related: BTreeSet<Text> = view.events.iter().filter_map(|event| event.related.clone()).collect();
        let labels = related.iter().filter_map(|text| csp_api::label::parse(text.as_str()));
        for label in labels.take(RELATED_MAX) {
            let trace = self.trace_of(label, Some(view.proxy.as_str())).await;
            view.related.extend((!trace.events.is_empty()).then_some(trace));
        }
        view
    }

    async fn trace_of(&self, label: FlowLabel, proxy: Option<&str>) -> TraceView {
        let targets = self.targets(&[Role::NetworkNode, Role::ProxyNode, Role::AppNode]);
        let query = vec![("label", label.to_string())];
        let (answers, unreachable) = self.fanout.ask::<Vec<TraceEntry>>(targets, "/v1/trace", query).await;
        let entries = answers.into_iter().flat_map(|(_, entries)| entries.into_iter().take(TRACE_EVENTS_MAX));
        let flow = self.proxy_tags().select(entries.collect(), proxy);
        let hosts: BTreeSet<String> = flow.entries.iter().map(|e| self.host(e.node.as_str())).collect();
        let mut events: Vec<TraceEventView> = flow.entries.into_iter().map(TraceEventView::from).collect();
        let clocks = trace_order::align(&mut events, |node| self.host(node));
        let truncated = events.len() > TRACE_EVENTS_MAX;
        events.truncate(TRACE_EVENTS_MAX);
        let (proxy, other_proxies, hosts) = (flow.proxy, flow.others, hosts.len());
        let related = Vec::new();
        TraceView { label, proxy, other_proxies, events, hosts, clocks, truncated, unreachable, related }
    }

    fn proxy_tags(&self) -> ProxyTags {
        let membership = self.membership.borrow();
        let proxies = membership.nodes.values().filter(|member| member.record.role == Role::ProxyNode);
        proxies.map(|member| member.record.id).collect()
    }

    fn host(&self, id: &str) -> String {
        let membership = self.membership.borrow();
        let found = membership.nodes.values().find(|member| member.record.id.as_str() == id);
        found.map(|member| member.record.host.clone()).unwrap_or_default()
    }

    /// `GET /api/v1/trace/recent`: of `client`, where one is given.
    pub async fn recent(&self, client: Option<SocketAddr>, limit: usize) -> RecentView {
        let limit = limit.clamp(1, RECENT_MAX);
        let targets = self.targets(&[Role::ProxyNode, Role::NetworkNode]);
        let asked = if client.is_some() { RECENT_MAX } else { limit };
        let (answers, unreachable) =
            self.fanout.ask::<Vec<RecentFlow>>(targets, "/v1/trace/recent", limited(asked)).await;
        let mut by_label: ByLabel = BTreeMap::new();
        for (target, flows) in answers {
            let labelled = flows.into_iter().take(RECENT_MAX).filter(|flow| !flow.label.is_none());
            for flow in labelled {
                let proxy =
                    if target.role == Role::ProxyNode.as_str() { tag_of(&target.id) } else { flow.proxy };
                merge(&mut by_label, &target.id, RecentFlow { proxy, ..flow });
            }
        }
        if client.is_some() {
            self.add_clients(&mut by_label).await;
        }
        let tags = self.proxy_tags();
        let mut recent: Vec<((FlowLabel, u16), Recent)> = by_label.into_iter().collect();
        recent.retain(|(_, flow)| client.is_none_or(|client| flow.client == Some(client)));
        recent.sort_by_key(|(_, flow)| std::cmp::Reverse(flow.t_ns));
        let recent =
            recent.into_iter().take(limit).map(|((label, tag), flow)| flow.view(label, tags.name(tag)));
        let recent = recent.collect();
        RecentView { recent, unreachable }
    }

    /// Fills in the clients of recent flows from the flow tables; open flows without recent events are added.
    async fn add_clients(&self, by_label: &mut ByLabel) {
        let (proxies, networks) = tokio::join!(
            self.proxy_flows(FLOWS_MAX),
            self.fanout.ask::<Vec<network::Flow>>(
                self.targets(&[Role::NetworkNode]),
                "/v1/flows",
                limited(FLOWS_MAX)
            ),
        );
        let mut add = |node: &str, (proxy, label): (&str, FlowLabel), client, service| {
            if !label.is_none() {
                let (proxy, client) = (tag_of(proxy), Some(client));
                let flow = RecentFlow { proxy, client, service, ..RecentFlow::new(label, 0, false) };
                merge(by_label, node, flow);
            }
        };
        for (target, flows) in proxies.0 {
            flows.into_iter().for_each(|f| add(&target.id, (&target.id, f.label), f.client, Some(f.service)));
        }
        for (target, flows) in networks.0 {
            flows
                .iter()
                .take(FLOWS_MAX)
                .for_each(|f| add(&target.id, (f.proxy.as_str(), f.label), f.client, None));
        }
    }

    /// `GET /api/v1/overview`, at most [`OVERVIEW_KEPT`] old.
    pub async fn overview(&self) -> Arc<OverviewView> {
        let mut kept = self.overview.lock().await;
        if let Some((at, view)) = &*kept
            && at.elapsed() < OVERVIEW_KEPT
        {
            return view.clone();
        }
        let flows = self.flows(None, OVERVIEW_FLOWS, OVERVIEW_FLOWS_ASKED);
        let (services, flows, channels) = tokio::join!(self.services(), flows, self.channels());
        let cluster = self.nodes();
        let history = self.history(&self.policy.known());
        let active = history.iter().find(|g| matches!(g.phase, Phase::Active)).cloned();
        let newest = history.first().filter(|g| Some(g.generation) != active.as_ref().map(|a| a.generation));
        let view = OverviewView {
            node: self.id.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            now_unix_ms: unix_now_ms(),
            tiers: tiers::tiers(&cluster.nodes, &self.poller.health()),
            latest: newest.filter(|g| active.as_ref().is_none_or(|a| a.generation < g.generation)).cloned(),
            cluster,
            active,
            services,
            channels,
            flows,
            drops: self.poller.drops(),
        };
        let view = Arc::new(view);
        *kept = Some((Instant::now(), view.clone()));
        view
    }
}

/// Recent flows by label and tag of the proxy.
type ByLabel = BTreeMap<(FlowLabel, u16), Recent>;

/// What the nodes report of one recent flow.
#[derive(Debug, Default)]
struct Recent {
    client: Option<SocketAddr>,
    service: Option<Text>,
    t_ns: u64,
    ended: bool,
    nodes: Vec<Text>,
}

impl Recent {
    fn view(self, label: FlowLabel, proxy: Text) -> RecentFlowView {
        RecentFlowView {
            label,
            proxy,
            client: self.client.map(|client| client.to_string().into()).unwrap_or_default(),
            service: self.service.unwrap_or_default(),
            t_ns: self.t_ns,
            ended: self.ended,
            nodes: self.nodes,
        }
    }
}

/// Adds what `node` reports of a flow.
fn merge(by_label: &mut ByLabel, node: &str, flow: RecentFlow) {
    let known = by_label.entry((flow.label, flow.proxy)).or_default();
    known.t_ns = known.t_ns.max(flow.t_ns);
    known.ended |= flow.ended;
    known.client = known.client.or(flow.client);
    known.service = known.service.take().or(flow.service);
    if !known.nodes.iter().any(|known| *known == *node) {
        known.nodes.push(node.into());
    }
}

fn limited(limit: usize) -> Vec<(&'static str, String)> {
    vec![("limit", limit.to_string())]
}

fn san(record: &csp_control::NodeRecord) -> Vec<String> {
    let mut out = Vec::new();
    for address in &record.san {
        out.extend(address.shm.iter().map(|path| format!("shm:{path}")));
        out.extend(address.verbs.iter().map(|at| format!("verbs:{at}")));
        out.extend(address.tcp.iter().map(|at| format!("tcp:{at}")));
        out.extend(address.ucx.iter().map(|at| format!("ucx:{at}")));
        out.extend(address.channel_verbs.iter().map(|at| format!("channel-verbs:{at}")));
        out.extend(address.channel_tcp.iter().map(|at| format!("channel-tcp:{at}")));
        out.extend(address.channel_ucx.iter().map(|at| format!("channel-ucx:{at}")));
    }
    out
}
