//! The network node's own routes on the admin endpoint: flows, tunnels, traces.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use csp_telemetry::{MailboxError, MailboxSender, trace_json};
use csp_types::{FlowLabel, TraceEvent, TraceKind};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::core::FlowInfo;
use crate::links::TunnelInfo;

use super::data_thread::{self, Question};

const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
const LIMIT_DEFAULT: usize = 100;
const LIMIT_MAX: usize = 10_000;

/// Who answers.
#[derive(Clone)]
pub struct Workers {
    /// This node's id.
    pub node: String,
    /// The LAN ports' interfaces.
    pub interfaces: Vec<String>,
    /// The workers' mailboxes, by worker number.
    pub mailboxes: Vec<MailboxSender<Question>>,
}

/// The routes.
pub fn routes(workers: Workers) -> Router {
    Router::new()
        .route("/v1/flows", get(flows))
        .route("/v1/tunnels", get(tunnels))
        .route("/v1/trace", get(trace))
        .route("/v1/trace/recent", get(recent))
        .with_state(workers)
}

#[derive(Deserialize)]
struct Limit {
    limit: Option<usize>,
}

impl Limit {
    fn get(&self) -> usize {
        self.limit.unwrap_or(LIMIT_DEFAULT).min(LIMIT_MAX)
    }
}

#[derive(Deserialize)]
struct Label {
    label: String,
}

fn unanswered(error: &MailboxError) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, format!("a data worker: {error}\n")).into_response()
}

async fn flows(State(workers): State<Workers>, Query(query): Query<Limit>) -> Response {
    let (limit, now) = (query.get(), data_thread::now());
    let mut all = Vec::new();
    for (worker, mailbox) in workers.mailboxes.iter().enumerate() {
        match mailbox.ask(ANSWER_TIMEOUT, |reply| Question::Flows(limit, reply)).await {
            Ok(flows) => all.extend(flows.iter().map(|(flow, proxy)| {
                let interface = workers.interfaces.get(usize::from(flow.port.0));
                flow_json(flow, proxy, worker, interface, now)
            })),
            Err(error) => return unanswered(&error),
        }
    }
    all.truncate(limit);
    Json(all).into_response()
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

async fn tunnels(State(workers): State<Workers>) -> Response {
    let mut all = Vec::new();
    for (worker, mailbox) in workers.mailboxes.iter().enumerate() {
        match mailbox.ask(ANSWER_TIMEOUT, Question::Tunnels).await {
            Ok(tunnels) => all.extend(tunnels.iter().map(|t| tunnel_json(t, worker))),
            Err(error) => return unanswered(&error),
        }
    }
    Json(all).into_response()
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

async fn events(workers: &Workers, label: Option<FlowLabel>) -> Result<Vec<(u32, TraceEvent)>, Response> {
    let mut all = Vec::new();
    for (worker, mailbox) in workers.mailboxes.iter().enumerate() {
        match mailbox.ask(ANSWER_TIMEOUT, |reply| Question::Trace(label, reply)).await {
            Ok(events) => all.extend(events.into_iter().map(|e| (worker as u32, e))),
            Err(error) => return Err(unanswered(&error)),
        }
    }
    Ok(all)
}

async fn trace(State(workers): State<Workers>, Query(query): Query<Label>) -> Response {
    let label = u32::from_str_radix(&query.label, 16).ok().and_then(FlowLabel::from_wire);
    let Some(label) = label.filter(|l| !l.is_none()) else {
        let text = format!("label {:?}: eight hex digits are wanted, such as 00000001\n", query.label);
        return (StatusCode::BAD_REQUEST, text).into_response();
    };
    match events(&workers, Some(label)).await {
        Ok(events) => {
            let all: Vec<_> = events.iter().map(|(w, e)| trace_json(e, &workers.node, *w)).collect();
            Json(all).into_response()
        }
        Err(response) => response,
    }
}

async fn recent(State(workers): State<Workers>, Query(query): Query<Limit>) -> Response {
    let events = match events(&workers, None).await {
        Ok(events) => events,
        Err(response) => return response,
    };
    let mut last: BTreeMap<FlowLabel, (u64, bool)> = BTreeMap::new();
    for (_, event) in events.iter().filter(|(_, e)| !e.label.is_none()) {
        last.insert(event.label, (event.at.as_nanos(), event.kind == TraceKind::LabelEnded));
    }
    let mut newest: Vec<_> = last.into_iter().collect();
    newest.sort_by_key(|(_, (at, _))| std::cmp::Reverse(*at));
    newest.truncate(query.get());
    let item = |(label, (at, ended)): (FlowLabel, (u64, bool))| json!({ "label": label.to_string(), "t_ns": at, "ended": ended });
    Json(newest.into_iter().map(item).collect::<Vec<_>>()).into_response()
}
