//! The proxy's own routes on the admin endpoint: flows, services, channels, traces.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::IpAddr;

use axum::extract::{Query, State};
use axum::routing::get;
use axum::{Json, Router};
use csp_api::contexts::Contexts;
use csp_api::proxy::{Channel, Flow, PoolMember, Service, ServiceFigures};
use csp_api::quality::Quality;
use csp_api::{Text, TraceEntry};
use csp_daemon::query::{Label, Limit, QueryError, Workers};

use crate::core::{
    FlowSnapshot, MemberSnapshot, PlainState, RecentFlow, ServerHost, ServiceCounters, ServiceSnapshot,
    reason,
};

use super::data_thread::Question;
use super::{http_trace, messages};

type Asked = State<Workers<Question>>;
type Answer<T> = Result<Json<T>, QueryError>;

/// Returns the routes.
pub fn routes(workers: Workers<Question>) -> Router {
    Router::new()
        .route("/v1/flows", get(flows))
        .route("/v1/services", get(services))
        .route("/v1/channels", get(channels))
        .route("/v1/contexts", get(contexts))
        .route("/v1/quality", get(quality))
        .merge(messages::routes())
        .merge(http_trace::routes())
        .route("/v1/trace", get(trace))
        .route("/v1/trace/recent", get(recent))
        .with_state(workers)
}

async fn flows(State(workers): Asked, Query(limit): Query<Limit>) -> Answer<Vec<Flow>> {
    let limit = limit.get();
    let answers = workers.ask(|reply| Question::Flows(limit, reply)).await?;
    Ok(Json(answers.iter().flatten().take(limit).map(describe).collect()))
}

fn describe(flow: &FlowSnapshot) -> Flow {
    let (member, process) = match (&flow.process, flow.plain) {
        (Some((node, process)), _) => (node.as_str().into(), process.as_str()),
        (None, Some(server)) => (Text::from(server.to_string()), ""),
        (None, None) => (Text::default(), ""),
    };
    Flow {
        label: flow.label,
        client: flow.tuple.remote,
        server: flow.tuple.local,
        service: (&flow.service).into(),
        member,
        process: process.into(),
        state: (&flow.state).into(),
        bytes_in: flow.bytes.0,
        bytes_out: flow.bytes.1,
        age_ms: (flow.age_s * 1e3) as u64,
        srtt_us: flow.srtt_us,
        congestion: match flow.congestion {
            csp_tcp::CongestionControl::NewReno => "newreno".into(),
            csp_tcp::CongestionControl::Cubic => "cubic".into(),
        },
        cwnd_bytes: flow.cwnd.into(),
        ssthresh_bytes: flow.ssthresh.into(),
        ecn: flow.ecn,
        pacing_bytes_per_s: flow.rates.0,
        delivery_bytes_per_s: flow.rates.1,
        retransmits: flow.retransmits.into(),
        queued_in: flow.queued.0 as u64,
        queued_out: flow.queued.1 as u64,
        credit_in: flow.credit.0.into(),
        credit_out: flow.credit.1.into(),
    }
}

async fn services(State(workers): Asked) -> Answer<Vec<Service>> {
    let mut merged: BTreeMap<String, Service> = BTreeMap::new();
    for service in workers.ask(Question::Services).await?.into_iter().flatten() {
        match merged.entry(service.name.clone()) {
            Entry::Vacant(entry) => drop(entry.insert(of_worker(&service))),
            Entry::Occupied(mut entry) => add(entry.get_mut(), of_worker(&service)),
        }
    }
    for service in merged.values_mut() {
        service.members.sort_by(|a, b| (&a.node, a.address, a.port).cmp(&(&b.node, b.address, b.port)));
    }
    Ok(Json(merged.into_values().collect()))
}

/// Converts a worker's service.
fn of_worker(service: &ServiceSnapshot) -> Service {
    let member = |m: &MemberSnapshot| PoolMember {
        node: node_of(m.host),
        address: address_of(m.host),
        down: m.plain.and_then(down),
        port: m.port,
        listeners: m.listeners as u64,
        open: m.open.into(),
        accept_credit: m.accept_credit,
        connections_total: m.accepted,
    };
    Service {
        name: (&service.name).into(),
        address: service.address,
        pending: service.pending as u64,
        members: service.members.iter().map(member).collect(),
        figures: service.counters.as_ref().map(figures),
    }
}

fn figures(counters: &ServiceCounters) -> ServiceFigures {
    ServiceFigures {
        connections_total: counters.opened,
        ended_total: counters.ended.iter().sum(),
        errors_total: counters.errors(),
        answered_total: counters.first_byte.iter().sum(),
        first_byte_us_total: counters.first_byte_ns / 1_000,
        bytes_in_total: counters.received_bytes,
        bytes_out_total: counters.sent_bytes,
    }
}

fn node_of(host: ServerHost) -> Text {
    match host {
        ServerHost::Node(node) => node.as_str().into(),
        ServerHost::Address(_) => Text::default(),
    }
}

fn address_of(host: ServerHost) -> Option<IpAddr> {
    match host {
        ServerHost::Node(_) => None,
        ServerHost::Address(address) => Some(address),
    }
}

/// Returns why a plain server gets no connections.
fn down(state: PlainState) -> Option<Text> {
    match state {
        PlainState::Up => None,
        PlainState::Down { code, .. } => Some(reason::text(code).into()),
    }
}

/// Adds another worker's figures. Connections are summed; every process listens at every worker, so listeners
/// are not.
fn add(service: &mut Service, other: Service) {
    service.pending += other.pending;
    if let (Some(figures), Some(theirs)) = (&mut service.figures, &other.figures) {
        figures.add(theirs);
    }
    for theirs in other.members {
        let same =
            |m: &&mut PoolMember| (&m.node, m.address, m.port) == (&theirs.node, theirs.address, theirs.port);
        match service.members.iter_mut().find(same) {
            Some(member) => {
                member.listeners = member.listeners.max(theirs.listeners);
                member.open += theirs.open;
                member.accept_credit += theirs.accept_credit;
                member.connections_total += theirs.connections_total;
                // A worker that has not tried the server since knows nothing of it.
                member.down = member.down.take().or(theirs.down);
            }
            None => service.members.push(theirs),
        }
    }
}

async fn channels(State(workers): Asked) -> Answer<Vec<Channel>> {
    let mut merged: BTreeMap<String, Channel> = BTreeMap::new();
    for (name, of_worker) in workers.ask(Question::Channels).await?.into_iter().flatten() {
        match merged.entry(name) {
            Entry::Vacant(entry) => drop(entry.insert(of_worker)),
            Entry::Occupied(mut entry) => {
                let channel = entry.get_mut();
                if channel.owner.is_empty() {
                    channel.owner = of_worker.owner;
                }
                channel.senders += of_worker.senders;
                channel.receivers += of_worker.receivers;
                channel.subscriptions += of_worker.subscriptions;
                channel.requested = channel.requested.take().or(of_worker.requested);
                channel.figures.add(&of_worker.figures);
            }
        }
    }
    Ok(Json(merged.into_values().collect()))
}

async fn contexts(State(workers): Asked) -> Answer<Contexts> {
    Ok(Json(super::contexts::join(workers.ask(Question::Contexts).await?.into_iter())))
}

async fn quality(State(workers): Asked) -> Answer<Quality> {
    Ok(Json(super::quality::join(workers.ask(Question::Quality).await?.into_iter())))
}

async fn trace(State(workers): Asked, Query(label): Query<Label>) -> Answer<Vec<TraceEntry>> {
    let label = label.get()?;
    workers.trace(|reply| Question::Trace(Some(label), reply)).await
}

async fn recent(State(workers): Asked, Query(limit): Query<Limit>) -> Answer<Vec<csp_api::RecentFlow>> {
    let limit = limit.get();
    let answers = workers.ask(|reply| Question::Recent(limit, reply)).await?;
    let mut all: Vec<RecentFlow> = answers.into_iter().flatten().collect();
    all.sort_by_key(|flow| std::cmp::Reverse(flow.at));
    all.truncate(limit);
    let item = |flow: RecentFlow| csp_api::RecentFlow {
        label: flow.label,
        proxy: 0,
        client: Some(flow.tuple.remote),
        server: Some(flow.tuple.local),
        service: Some(flow.service.into()),
        t_ns: flow.at.as_nanos(),
        ended: flow.ended,
    };
    Ok(Json(all.into_iter().map(item).collect()))
}
