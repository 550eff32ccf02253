//! The proxy's own routes on the admin endpoint: flows, services, traces.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use csp_telemetry::{MailboxSender, trace_json};
use csp_types::{FlowLabel, TraceEvent};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::core::{FlowSnapshot, RecentFlow, ServiceSnapshot};

use super::data_thread::Question;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
const LIMIT_DEFAULT: usize = 100;
const LIMIT_MAX: usize = 10_000;

/// Who answers.
#[derive(Clone)]
pub struct Workers {
    /// This node's id.
    pub node: String,
    /// The workers' mailboxes, by worker number.
    pub mailboxes: Vec<MailboxSender<Question>>,
}

/// The routes.
pub fn routes(workers: Workers) -> Router {
    Router::new()
        .route("/v1/flows", get(flows))
        .route("/v1/services", get(services))
        .route("/v1/trace", get(trace))
        .route("/v1/trace/recent", get(recent))
        .with_state(workers)
}

#[derive(Deserialize)]
struct Limit {
    limit: Option<usize>,
}

#[derive(Deserialize)]
struct Label {
    label: String,
}

fn unanswered(error: &csp_telemetry::MailboxError) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, format!("a data worker: {error}\n")).into_response()
}

async fn flows(State(workers): State<Workers>, Query(query): Query<Limit>) -> Response {
    let limit = query.limit.unwrap_or(LIMIT_DEFAULT).min(LIMIT_MAX);
    let mut all = Vec::new();
    for mailbox in &workers.mailboxes {
        match mailbox.ask(ANSWER_TIMEOUT, |reply| Question::Flows(limit, reply)).await {
            Ok(flows) => all.extend(flows.iter().map(flow_json)),
            Err(error) => return unanswered(&error),
        }
    }
    all.truncate(limit);
    Json(all).into_response()
}

fn flow_json(flow: &FlowSnapshot) -> Value {
    let (member, process) =
        flow.process.as_ref().map_or((String::new(), ""), |(n, p)| (n.to_string(), p.as_str()));
    json!({
        "label": flow.label.to_string(),
        "client": flow.tuple.remote.to_string(),
        "server": flow.tuple.local.to_string(),
        "service": flow.service,
        "member": member,
        "process": process,
        "state": flow.state,
        "bytes_in": flow.bytes.0,
        "bytes_out": flow.bytes.1,
        "age_ms": (flow.age_s * 1e3) as u64,
        "srtt_us": flow.srtt_us,
        "congestion": match flow.congestion {
            csp_tcp::CongestionControl::NewReno => "newreno",
            csp_tcp::CongestionControl::Cubic => "cubic",
        },
        "cwnd_bytes": flow.cwnd,
        "ssthresh_bytes": flow.ssthresh,
        "ecn": flow.ecn,
        "pacing_bytes_per_s": flow.rates.0,
        "delivery_bytes_per_s": flow.rates.1,
        "retransmits": flow.retransmits,
        "queued_in": flow.queued.0,
        "queued_out": flow.queued.1,
        "credit_in": flow.credit.0,
        "credit_out": flow.credit.1,
    })
}

async fn services(State(workers): State<Workers>) -> Response {
    let mut merged: BTreeMap<String, Vec<ServiceSnapshot>> = BTreeMap::new();
    for mailbox in &workers.mailboxes {
        match mailbox.ask(ANSWER_TIMEOUT, Question::Services).await {
            Ok(services) => {
                services.into_iter().for_each(|s| merged.entry(s.name.clone()).or_default().push(s))
            }
            Err(error) => return unanswered(&error),
        }
    }
    Json(merged.values().map(|workers| service_json(workers)).collect::<Vec<_>>()).into_response()
}

/// One service over all workers: connections add up; every worker has a listener of every process, so those do not.
fn service_json(workers: &[ServiceSnapshot]) -> Value {
    let mut members: BTreeMap<(String, u16), (usize, u32, u64)> = BTreeMap::new();
    for (node, port, listeners, open, credit) in workers.iter().flat_map(|w| &w.members) {
        let entry = members.entry((node.to_string(), *port)).or_default();
        *entry = (entry.0.max(*listeners), entry.1 + open, entry.2 + credit);
    }
    let member = |((node, port), (listeners, open, credit)): (&(String, u16), &(usize, u32, u64))| json!({"node": node, "port": port, "listeners": listeners, "open": open, "accept_credit": credit});
    json!({
        "name": workers[0].name,
        "address": workers[0].address.to_string(),
        "pending": workers.iter().map(|w| w.pending).sum::<usize>(),
        "members": members.iter().map(member).collect::<Vec<_>>(),
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
        Ok(events) => Json(events.iter().map(|(w, e)| trace_json(e, &workers.node, *w)).collect::<Vec<_>>())
            .into_response(),
        Err(response) => response,
    }
}

async fn recent(State(workers): State<Workers>, Query(query): Query<Limit>) -> Response {
    let limit = query.limit.unwrap_or(LIMIT_DEFAULT).min(LIMIT_MAX);
    let mut all = Vec::new();
    for mailbox in &workers.mailboxes {
        match mailbox.ask(ANSWER_TIMEOUT, |reply| Question::Recent(limit, reply)).await {
            Ok(flows) => all.extend(flows),
            Err(error) => return unanswered(&error),
        }
    }
    all.sort_by_key(|flow| std::cmp::Reverse(flow.at));
    all.truncate(limit);
    let item = |flow: &RecentFlow| {
        json!({
            "label": flow.label.to_string(),
            "client": flow.tuple.remote.to_string(),
            "server": flow.tuple.local.to_string(),
            "service": flow.service,
            "t_ns": flow.at.as_nanos(),
            "ended": flow.ended,
        })
    };
    Json(all.iter().map(item).collect::<Vec<_>>()).into_response()
}
