//! The proxy's own routes on the admin endpoint: flows, services, traces.

use std::collections::BTreeMap;

use axum::extract::{Query, State};
use axum::routing::get;
use axum::{Json, Router};
use csp_daemon::query::{Label, Limit, QueryError, Workers};
use csp_telemetry::TraceJson;
use serde_json::{Value, json};

use crate::core::{FlowSnapshot, RecentFlow, ServiceSnapshot};

use super::data_thread::Question;

type Asked = State<Workers<Question>>;
type Answer<T> = Result<Json<T>, QueryError>;

/// The routes.
pub fn routes(workers: Workers<Question>) -> Router {
    Router::new()
        .route("/v1/flows", get(flows))
        .route("/v1/services", get(services))
        .route("/v1/trace", get(trace))
        .route("/v1/trace/recent", get(recent))
        .with_state(workers)
}

async fn flows(State(workers): Asked, Query(limit): Query<Limit>) -> Answer<Vec<Value>> {
    let limit = limit.get();
    let answers = workers.ask(|reply| Question::Flows(limit, reply)).await?;
    Ok(Json(answers.iter().flatten().take(limit).map(flow_json).collect()))
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

async fn services(State(workers): Asked) -> Answer<Vec<Value>> {
    let mut merged: BTreeMap<String, Vec<ServiceSnapshot>> = BTreeMap::new();
    for service in workers.ask(Question::Services).await?.into_iter().flatten() {
        merged.entry(service.name.clone()).or_default().push(service);
    }
    Ok(Json(merged.values().map(|workers| service_json(workers)).collect()))
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

async fn trace(State(workers): Asked, Query(label): Query<Label>) -> Answer<Vec<TraceJson>> {
    let label = label.get()?;
    workers.trace(|reply| Question::Trace(Some(label), reply)).await
}

async fn recent(State(workers): Asked, Query(limit): Query<Limit>) -> Answer<Vec<Value>> {
    let limit = limit.get();
    let answers = workers.ask(|reply| Question::Recent(limit, reply)).await?;
    let mut all: Vec<RecentFlow> = answers.into_iter().flatten().collect();
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
    Ok(Json(all.iter().map(item).collect()))
}
