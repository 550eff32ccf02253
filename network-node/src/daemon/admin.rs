//! The network node's own routes on the admin endpoint: flows, tunnels, traces.

use std::collections::{BTreeMap, HashMap};

use axum::extract::{Query, State};
use axum::routing::get;
use axum::{Json, Router};
use csp_api::network::{Flow, Forwarded, Group, Groups, Tunnel};
use csp_api::{RecentFlow, Text, TraceEntry};
use csp_daemon::clock;
use csp_daemon::query::{Label, Limit, QueryError, Workers};
use csp_types::{FlowLabel, TraceKind};

use crate::core::FlowInfo;
use crate::worker::HeldGroup;

use super::data_thread::Question;
use super::forwarding::Servers;

type Answer<T> = Result<Json<T>, QueryError>;

/// State that the routes use.
#[derive(Clone)]
pub struct AdminState {
    /// Names of the LAN ports' interfaces.
    pub interfaces: Vec<String>,
    /// The data workers.
    pub workers: Workers<Question>,
    /// The servers that packets are forwarded to.
    pub servers: Servers,
}

/// Returns the routes.
pub fn routes(state: AdminState) -> Router {
    Router::new()
        .route("/v1/flows", get(flows))
        .route("/v1/tunnels", get(tunnels))
        .route("/v1/groups", get(groups))
        .route("/v1/forwarded", get(forwarded))
        .route("/v1/trace", get(trace))
        .route("/v1/trace/recent", get(recent))
        .with_state(state)
}

async fn flows(State(state): State<AdminState>, Query(limit): Query<Limit>) -> Answer<Vec<Flow>> {
    let (limit, now) = (limit.get(), clock::now());
    let answers = state.workers.ask(|reply| Question::Flows(limit, reply)).await?;
    let of_all = answers.iter().enumerate().flat_map(|(worker, flows)| {
        let interface = |flow: &FlowInfo| state.interfaces.get(usize::from(flow.port.0));
        flows.iter().map(move |(flow, proxy)| describe(flow, proxy, worker, interface(flow), now))
    });
    Ok(Json(of_all.take(limit).collect()))
}

fn describe(
    flow: &FlowInfo,
    proxy: &str,
    worker: usize,
    interface: Option<&String>,
    now: csp_types::Instant,
) -> Flow {
    Flow {
        label: flow.label,
        client: flow.tuple.remote,
        server: flow.tuple.local,
        proxy: proxy.into(),
        proxy_worker: flow.worker.into(),
        state: if flow.label.is_none() { "unlabelled" } else { "bound" }.into(),
        interface: interface.map(Text::from),
        peer_mac: flow.peer_mac.map(|mac| mac.to_string().into()),
        segments_in: flow.segments_in,
        segments_out: flow.segments_out,
        age_ms: now.saturating_since(flow.created).as_millis() as u64,
        idle_ms: now.saturating_since(flow.last_used).as_millis() as u64,
        worker: worker as u32,
    }
}

async fn tunnels(State(state): State<AdminState>) -> Answer<Vec<Tunnel>> {
    let answers = state.workers.ask(Question::Tunnels).await?;
    let of_all = answers.iter().enumerate().flat_map(|(worker, tunnels)| {
        tunnels.iter().map(move |tunnel| Tunnel {
            proxy: tunnel.node.as_str().into(),
            proxy_worker: tunnel.worker.into(),
            provider: tunnel.provider.into(),
            address: (&tunnel.address).into(),
            state: if tunnel.up { "up" } else { "down" }.into(),
            worker: worker as u32,
        })
    });
    Ok(Json(of_all.collect()))
}

async fn groups(State(state): State<AdminState>) -> Answer<Groups> {
    let answers = state.workers.ask(Question::Election).await?;
    let Some(info) = answers.into_iter().next() else { return Ok(Json(Groups::default())) };
    let group = |held: HeldGroup| Group {
        name: held.name.into(),
        holder: held.state.holder.map(|node| node.as_str().into()),
        votes: held.state.votes as u32,
        epoch: held.state.epoch,
        held_ms: held.held_for.map(|time| time.as_millis() as u64),
    };
    Ok(Json(Groups {
        voters: info.voters.0 as u32,
        voters_heard: info.voters.1 as u32,
        groups: info.groups.into_iter().map(group).collect(),
    }))
}

async fn forwarded(State(state): State<AdminState>) -> Answer<Vec<Forwarded>> {
    let of_workers = state.workers.ask(Question::ForwardServers).await?;
    Ok(Json(state.servers.view(&of_workers)))
}

async fn trace(State(state): State<AdminState>, Query(label): Query<Label>) -> Answer<Vec<TraceEntry>> {
    let label = label.get()?;
    state.workers.trace(|reply| Question::Trace(Some(label), reply)).await
}

async fn recent(State(state): State<AdminState>, Query(limit): Query<Limit>) -> Answer<Vec<RecentFlow>> {
    let events = state.workers.ask(|reply| Question::Trace(None, reply)).await?;
    // The proxy of each flow, by the hash of its tuple, since events of segments do not contain it.
    let mut proxies: HashMap<u32, u16> = HashMap::new();
    let mut last: BTreeMap<(u16, FlowLabel), (u64, bool)> = BTreeMap::new();
    for event in events.iter().flatten().filter(|e| !e.label.is_none()) {
        if event.kind == TraceKind::LabelBound {
            proxies.insert(event.aux, event.proxy);
        }
        let proxy = proxies.get(&event.aux).copied().unwrap_or(event.proxy);
        last.insert((proxy, event.label), (event.at.as_nanos(), event.kind == TraceKind::LabelEnded));
    }
    let mut newest: Vec<_> = last.into_iter().collect();
    newest.sort_by_key(|(_, (at, _))| std::cmp::Reverse(*at));
    newest.truncate(limit.get());
    let item = |((proxy, label), (t_ns, ended))| RecentFlow { proxy, ..RecentFlow::new(label, t_ns, ended) };
    Ok(Json(newest.into_iter().map(item).collect()))
}
