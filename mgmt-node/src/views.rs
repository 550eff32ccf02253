//! The cluster-wide views, put together from membership, policy state, the poller and the nodes' admin endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use csp_control::{ControlStatus, MemberState, Membership, PolicyManager};
use csp_types::Role;
use tokio::sync::{Mutex, watch};

use crate::admin::{self, FlowView, ProxyService, QueuesView, RecentFlow, SocketView, TraceEventView};
use crate::api::{
    EtcdView, FlowsView, GenerationView, NodeState, NodeView, NodesView, OverviewView, Phase, PoolMemberView,
    RecentView, ServiceView, ServicesView, SocketsView, TraceView, Unreachable,
};
use crate::fanout::{Fanout, Target};
use crate::leader::Leadership;
use crate::limits::{
    FLOWS_MAX, OVERVIEW_FLOWS, OVERVIEW_FLOWS_ASKED, OVERVIEW_KEPT, RECENT_MAX, TRACE_EVENTS_MAX,
};
use crate::policy_view::{PolicyReader, PolicyState, ack_text};
use crate::poller::{self, Poller};
use crate::publish::{self, Publisher, now_unix_ms};
use crate::{tiers, trace_order};

/// Everything the API reads from.
#[derive(Debug)]
pub struct Cluster {
    /// This node.
    pub id: String,
    /// Whether this node runs etcd.
    pub private_etcd: bool,
    /// Who is there.
    pub membership: watch::Receiver<Membership>,
    /// How this node's own control plane stands.
    pub status: watch::Receiver<ControlStatus>,
    /// Who leads.
    pub leadership: watch::Receiver<Leadership>,
    /// The policy as etcd last told.
    pub policy: Arc<PolicyReader>,
    /// Writes policy.
    pub publisher: Arc<Publisher>,
    /// Reads policy.
    pub manager: PolicyManager,
    /// How the members did when last asked.
    pub poller: Arc<Poller>,
    /// Asks nodes.
    pub fanout: Fanout,
    /// The latest overview, shared by all open pages.
    pub overview: Mutex<Option<(Instant, OverviewView)>>,
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
                    (NodeState::Lapsed, "answers and says it is ready".to_owned())
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
                    started_unix_ms: record.started_unix_ms,
                    policy_generation: ack.map_or(0, |a| a.generation),
                    policy_state: ack.map(|a| ack_text(a.state).to_owned()).unwrap_or_default(),
                },
            ));
        }
        members.sort_by(|a, b| (a.0, &a.1.id).cmp(&(b.0, &b.1.id)));
        NodesView { nodes: members.into_iter().map(|(_, view)| view).collect(), leader, etcd: self.etcd() }
    }

    /// Whether etcd is heard.
    pub fn etcd(&self) -> EtcdView {
        let policy = self.policy.known();
        let silent = policy.heard.map_or(u64::MAX, |heard| heard.elapsed().as_millis() as u64);
        let connected = policy.problem.is_none() && policy.heard.is_some();
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

    fn targets(&self, roles: &[Role]) -> Vec<Target> {
        let membership = self.membership.borrow();
        roles.iter().flat_map(|role| membership.of_role(*role)).map(|m| poller::target(&m.record)).collect()
    }

    /// `GET /api/v1/services`.
    pub async fn services(&self) -> ServicesView {
        let (answers, unreachable) =
            self.fanout.ask(self.targets(&[Role::ProxyNode]), "/v1/services", vec![]).await;
        let seen: Vec<Vec<ProxyService>> = answers
            .iter()
            .map(|(_, body)| admin::list(body, "services").iter().map(ProxyService::read).collect())
            .collect();
        let active = self.policy.known().active;
        let services = active.iter().flat_map(|record| &record.policy.services);
        ServicesView {
            generation: active.as_ref().map_or(0, |record| record.generation),
            services: services.map(|service| live(service, &seen)).collect(),
            unreachable,
        }
    }

    /// `GET /api/v1/flows`: what the proxies hold open. They list in table order, so that the busiest can only be
    /// found among all that are asked for: at most `asked` of each proxy.
    pub async fn flows(&self, service: Option<&str>, limit: usize, asked: usize) -> FlowsView {
        let (limit, asked) = (limit.clamp(1, FLOWS_MAX), asked.clamp(1, FLOWS_MAX));
        let (mut flows, cut, unreachable) = self.all_flows(&[Role::ProxyNode], asked).await;
        flows.retain(|flow| service.is_none_or(|name| flow.service == name));
        flows.sort_by(|a, b| b.bytes().cmp(&a.bytes()).then_with(|| a.label.cmp(&b.label)));
        let truncated = cut || flows.len() > limit;
        flows.truncate(limit);
        FlowsView { flows, truncated, unreachable }
    }

    /// At most `asked` flows of each node of these roles, whether that cut any list, and who did not answer.
    async fn all_flows(&self, roles: &[Role], asked: usize) -> (Vec<FlowView>, bool, Vec<Unreachable>) {
        let query = vec![("limit", asked.to_string())];
        let (answers, unreachable) = self.fanout.ask(self.targets(roles), "/v1/flows", query).await;
        let (mut flows, mut cut) = (Vec::new(), false);
        for (target, body) in &answers {
            let read = |value| FlowView::read(&target.id, &target.role, value);
            let listed = admin::list(body, "flows");
            cut |= listed.len() >= asked;
            flows.extend(listed.iter().take(asked).map(read));
        }
        (flows, cut, unreachable)
    }

    /// `GET /api/v1/sockets`: what the app nodes' processes have, each connection with what its proxy says of it.
    pub async fn sockets(&self, process: Option<&str>, limit: usize) -> SocketsView {
        let limit = limit.clamp(1, FLOWS_MAX);
        let query = || vec![("limit", FLOWS_MAX.to_string())];
        let (listed, proxies) = tokio::join!(
            self.fanout.ask(self.targets(&[Role::AppNode]), "/v1/sockets", query()),
            self.fanout.ask(self.targets(&[Role::ProxyNode]), "/v1/flows", query()),
        );
        let mut flows = BTreeMap::new();
        for (target, body) in &proxies.0 {
            for value in admin::list(body, "flows") {
                let flow = FlowView::read(&target.id, &target.role, value);
                flows.insert((flow.label.clone(), flow.client.clone()), (flow, QueuesView::read(value)));
            }
        }
        let (mut sockets, mut cut) = (Vec::new(), false);
        for (target, body) in &listed.0 {
            let all = admin::list(body, "sockets");
            cut |= all.len() >= FLOWS_MAX;
            for mut socket in all.iter().map(|value| SocketView::read(&target.id, value)) {
                let of = |name: &str| {
                    socket.process == name || socket.program == name || socket.pid.to_string() == name
                };
                if !process.is_none_or(of) {
                    continue;
                }
                // A label is one proxy's own: the client's address tells whose.
                let found = flows.get(&(socket.label.clone(), socket.remote.clone())).cloned();
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

    /// `GET /api/v1/trace?label=`.
    pub async fn trace(&self, label: u32) -> TraceView {
        let label = format!("{label:08x}");
        let targets = self.targets(&[Role::NetworkNode, Role::ProxyNode, Role::AppNode]);
        let query = vec![("label", label.clone())];
        let (answers, unreachable) = self.fanout.ask(targets, "/v1/trace", query).await;
        let mut hosts = BTreeSet::new();
        let mut events: Vec<TraceEventView> = Vec::new();
        for (target, body) in &answers {
            let before = events.len();
            let read = |value| TraceEventView::read(&target.id, &target.role, value);
            events.extend(admin::list(body, "events").iter().take(TRACE_EVENTS_MAX).map(read));
            if events.len() > before {
                hosts.insert(self.host(&target.id));
            }
        }
        let clocks = trace_order::align(&mut events, |node| self.host(node));
        let truncated = events.len() > TRACE_EVENTS_MAX;
        events.truncate(TRACE_EVENTS_MAX);
        TraceView { label, events, hosts: hosts.len(), clocks, truncated, unreachable }
    }

    fn host(&self, id: &str) -> String {
        let membership = self.membership.borrow();
        let found = membership.nodes.values().find(|member| member.record.id.as_str() == id);
        found.map(|member| member.record.host.clone()).unwrap_or_default()
    }

    /// `GET /api/v1/trace/recent`: of `client`, where one is given.
    pub async fn recent(&self, client: Option<&str>, limit: usize) -> RecentView {
        let limit = limit.clamp(1, RECENT_MAX);
        let targets = self.targets(&[Role::ProxyNode, Role::NetworkNode]);
        let query = vec![("limit", if client.is_some() { RECENT_MAX } else { limit }.to_string())];
        let (answers, unreachable) = self.fanout.ask(targets, "/v1/trace/recent", query).await;
        let mut by_label: BTreeMap<String, (usize, RecentFlow)> = BTreeMap::new();
        for (target, body) in &answers {
            for (at, value) in admin::list(body, "recent").iter().take(RECENT_MAX).enumerate() {
                let Some(flow) = RecentFlow::read(&target.id, value) else { continue };
                match by_label.get_mut(&flow.label) {
                    Some((rank, known)) => {
                        *rank = (*rank).min(at);
                        merge(known, flow);
                    }
                    None => drop(by_label.insert(flow.label.clone(), (at, flow))),
                }
            }
        }
        if client.is_some() {
            self.add_clients(&mut by_label).await;
        }
        let mut recent: Vec<(usize, RecentFlow)> = by_label.into_values().collect();
        recent.retain(|(_, flow)| client.is_none_or(|client| flow.client == client));
        // Newest first; nodes that give no time at least give an order.
        recent.sort_by(|(a_at, a), (b_at, b)| b.t_ns.cmp(&a.t_ns).then(a_at.cmp(b_at)));
        let recent = recent.into_iter().take(limit).map(|(_, flow)| flow).collect();
        RecentView { recent, unreachable }
    }

    /// Fills in the clients of recent flows from the flow tables; open flows without recent events are added.
    async fn add_clients(&self, by_label: &mut BTreeMap<String, (usize, RecentFlow)>) {
        let (flows, ..) = self.all_flows(&[Role::ProxyNode, Role::NetworkNode], FLOWS_MAX).await;
        for flow in flows.into_iter().filter(|flow| admin::parse_label(&flow.label).is_some_and(|l| l != 0)) {
            let FlowView { label, client, service, node, .. } = flow;
            let known = RecentFlow { label, client, service, nodes: vec![node], ..RecentFlow::default() };
            match by_label.get_mut(&known.label) {
                Some((_, recent)) => merge(recent, known),
                None => drop(by_label.insert(known.label.clone(), (usize::MAX, known))),
            }
        }
    }

    /// `GET /api/v1/overview`, at most [`OVERVIEW_KEPT`] old.
    pub async fn overview(&self) -> OverviewView {
        let mut kept = self.overview.lock().await;
        if let Some((at, view)) = &*kept
            && at.elapsed() < OVERVIEW_KEPT
        {
            return view.clone();
        }
        let (services, flows) =
            tokio::join!(self.services(), self.flows(None, OVERVIEW_FLOWS, OVERVIEW_FLOWS_ASKED));
        let cluster = self.nodes();
        let history = self.history(&self.policy.known());
        let active = history.iter().find(|g| matches!(g.phase, Phase::Active)).cloned();
        let newest = history.first().filter(|g| Some(g.generation) != active.as_ref().map(|a| a.generation));
        let view = OverviewView {
            node: self.id.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            now_unix_ms: now_unix_ms(),
            tiers: tiers::tiers(&cluster.nodes, &self.poller.health()),
            latest: newest.filter(|g| active.as_ref().is_none_or(|a| a.generation < g.generation)).cloned(),
            cluster,
            active,
            services,
            flows,
            drops: self.poller.drops(),
        };
        *kept = Some((Instant::now(), view.clone()));
        view
    }
}

fn merge(known: &mut RecentFlow, other: RecentFlow) {
    known.t_ns = known.t_ns.max(other.t_ns);
    known.ended |= other.ended;
    for node in other.nodes {
        if !known.nodes.contains(&node) {
            known.nodes.push(node);
        }
    }
    for (mine, theirs) in [(&mut known.client, other.client), (&mut known.service, other.service)] {
        if mine.is_empty() {
            *mine = theirs;
        }
    }
}

/// A service of the policy with what the proxies said of it.
fn live(service: &csp_control::Service, seen: &[Vec<ProxyService>]) -> ServiceView {
    let views: Vec<&ProxyService> =
        seen.iter().filter_map(|proxy| proxy.iter().find(|s| s.name == service.name)).collect();
    let pool = service.pool.iter().map(|member| {
        let node = member.node.to_string();
        let found: Vec<_> = views
            .iter()
            .filter_map(|s| s.pool.iter().find(|m| m.node == node && m.port == member.port))
            .collect();
        let known = !found.is_empty();
        PoolMemberView {
            node,
            port: member.port,
            // Every process listens at every proxy: the maximum is the number of processes, the sum would not be.
            processes: found.iter().map(|m| m.processes).max(),
            open_connections: known.then(|| found.iter().map(|m| m.open_connections).sum()),
            connections_total: found.iter().filter_map(|m| m.connections_total).reduce(|a, b| a + b),
        }
    });
    ServiceView {
        name: service.name.clone(),
        vip: service.vip.to_string(),
        port: service.port,
        pending: views.iter().map(|s| s.pending).sum(),
        pool: pool.collect(),
    }
}

fn san(record: &csp_control::NodeRecord) -> Vec<String> {
    let mut out = Vec::new();
    for address in &record.san {
        out.extend(address.shm.iter().map(|path| format!("shm:{path}")));
        out.extend(address.verbs.iter().map(|at| format!("verbs:{at}")));
        out.extend(address.ucx.iter().map(|at| format!("ucx:{at}")));
        out.extend(address.channel_verbs.iter().map(|at| format!("channel-verbs:{at}")));
        out.extend(address.channel_ucx.iter().map(|at| format!("channel-ucx:{at}")));
    }
    out
}
