//! The network node's own routes on the admin endpoint: flows, tunnels, traces.

use std::collections::BTreeMap;

use axum::extract::{Query, State};
use axum::routing::get;
use axum::{Json, Router};
use csp_daemon::clock;
use csp_daemon::query::{Label, Limit, QueryError, Workers};
use csp_telemetry::TraceJson;
use csp_types::{FlowLabel, TraceKind};
use serde_json::{Value, json};

use crate::core::FlowInfo;
use crate::links::TunnelInfo;

use super::data_thread::Question;

type Answer<T> = Result<Json<T>, QueryError>;

/// Who answers.
#[derive(Clone)]
pub struct Asked {
    /// The LAN ports' interfaces.
    pub interfaces: Vec<String>,
    /// The data workers.
    pub workers: Workers<Question>,
}

/// The routes.
pub fn routes(asked: Asked) -> Router {
    Router::new()
        .route("/v1/flows", get(flows))
        .route("/v1/tunnels", get(tunnels))
        .route("/v1/trace", get(trace))
        .route("/v1/trace/recent", get(recent))
        .with_state(asked)
}

async fn flows(State(asked): State<Asked>, Query(limit): Query<Limit>) -> Answer<Vec<Value>> {
    let (limit, now) = (limit.get(), clock::now());
    let answers = asked.workers.ask(|reply| Question::Flows(limit, reply)).await?;
    let of_all = answers.iter().enumerate().flat_map(|(worker, flows)| {
        let interface = |flow: &FlowInfo| asked.interfaces.get(usize::from(flow.port.0));
        flows.iter().map(move |(flow, proxy)| flow_json(flow, proxy, worker, interface(flow), now))
    });
    Ok(Json(of_all.take(limit).collect()))
}

fn flow_json(
    flow: &FlowInfo,
    proxy: &str,
    worker: usize,
    interface: Option<&String>,
    now: csp_types::Instant,
) -> Value {
    let state = if flow.label.is_none() { "unlabelled" } else { "bound" };
    json!({
        "label": flow.label.to_string(),
        "client": flow.tuple.remote.to_string(),
        "server": flow.tuple.local.to_string(),
        "proxy": proxy,
        "proxy_worker": flow.worker,
        "state": state,
        "interface": interface,
        "peer_mac": flow.peer_mac.map(|mac| mac.to_string()),
        "segments_in": flow.segments_in,
        "segments_out": flow.segments_out,
        "age_ms": now.saturating_since(flow.created).as_millis() as u64,
        "idle_ms": now.saturating_since(flow.last_used).as_millis() as u64,
        "worker": worker,
    })
}

async fn tunnels(State(asked): State<Asked>) -> Answer<Vec<Value>> {
    let answers = asked.workers.ask(Question::Tunnels).await?;
    let of_all = answers
        .iter()
        .enumerate()
        .flat_map(|(worker, tunnels)| tunnels.iter().map(move |tunnel| tunnel_json(tunnel, worker)));
    Ok(Json(of_all.collect()))
}

fn tunnel_json(tunnel: &TunnelInfo, worker: usize) -> Value {
    json!({
        "proxy": tunnel.node.to_string(),
        "proxy_worker": tunnel.worker,
        "provider": tunnel.provider,
        "address": tunnel.address,
        "state": if tunnel.up { "up" } else { "down" },
        "worker": worker,
    })
}

async fn trace(State(asked): State<Asked>, Query(label): Query<Label>) -> Answer<Vec<TraceJson>> {
    let label = label.get()?;
    asked.workers.trace(|reply| Question::Trace(Some(label), reply)).await
}

async fn recent(State(asked): State<Asked>, Query(limit): Query<Limit>) -> Answer<Vec<Value>> {
    let events = asked.workers.ask(|reply| Question::Trace(None, reply)).await?;
    let mut last: BTreeMap<FlowLabel, (u64, bool)> = BTreeMap::new();
    for event in events.iter().flatten().filter(|e| !e.label.is_none()) {
        last.insert(event.label, (event.at.as_nanos(), event.kind == TraceKind::LabelEnded));
    }
    let mut newest: Vec<_> = last.into_iter().collect();
    newest.sort_by_key(|(_, (at, _))| std::cmp::Reverse(*at));
    newest.truncate(limit.get());
    let item = |(label, (at, ended)): (FlowLabel, (u64, bool))| json!({ "label": label.to_string(), "t_ns": at, "ended": ended });
    Ok(Json(newest.into_iter().map(item).collect()))
}
