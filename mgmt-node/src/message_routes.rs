//! The routes about peers of channels and messages on their way.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use csp_api::messages::{
    PEERS_DEFAULT, PEERS_MAX, PREFIXES_DEFAULT, PREFIXES_MAX, TRACE_COUNT_MAX, TRACE_TIMEOUT_S_MAX,
};
use csp_api::mgmt::{MessageTraceView, SubscriptionsView};
use csp_api::topic;
use serde::Deserialize;

use crate::server::{Refusal, refuse};
use crate::views::{Cluster, TraceAsked};

type Shared = State<Arc<Cluster>>;

/// The routes.
pub fn routes() -> Router<Arc<Cluster>> {
    Router::new()
        .route("/api/v1/subscriptions", get(subscriptions))
        .route("/api/v1/messages/trace", get(trace))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SubscriptionsQuery {
    channel: Option<String>,
    limit: Option<usize>,
    prefixes: Option<u32>,
}

async fn subscriptions(
    State(cluster): Shared,
    Query(query): Query<SubscriptionsQuery>,
) -> Result<Json<SubscriptionsView>, Refusal> {
    if let Some(channel) = &query.channel {
        known(&cluster, channel)?;
    }
    let limit = query.limit.unwrap_or(PEERS_DEFAULT).clamp(1, PEERS_MAX);
    let prefixes = query.prefixes.unwrap_or(PREFIXES_DEFAULT).min(PREFIXES_MAX);
    Ok(Json(cluster.subscriptions(query.channel.as_deref(), limit, prefixes).await))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TraceQuery {
    channel: String,
    count: Option<usize>,
    topic: Option<String>,
    timeout_s: Option<u64>,
}

async fn trace(
    State(cluster): Shared,
    Query(query): Query<TraceQuery>,
) -> Result<Json<MessageTraceView>, Refusal> {
    known(&cluster, &query.channel)?;
    let (count, timeout_s) = (query.count.unwrap_or(1), query.timeout_s.unwrap_or(10));
    let text = match query.topic.as_deref().map_or(Some(Vec::new()), topic::unescape) {
        None => Some("topic: a \\ stands before \\ or before x and two hex digits".to_owned()),
        Some(_) if !(1..=TRACE_COUNT_MAX).contains(&count) => {
            Some(format!("count={count}: allowed is 1 to {TRACE_COUNT_MAX}"))
        }
        Some(_) if !(1..=TRACE_TIMEOUT_S_MAX).contains(&timeout_s) => {
            Some(format!("timeout_s={timeout_s}: allowed is 1 to {TRACE_TIMEOUT_S_MAX}"))
        }
        Some(_) => None,
    };
    if let Some(text) = text {
        return Err(refuse(StatusCode::UNPROCESSABLE_ENTITY, text));
    }
    let (topic, timeout) = (query.topic.unwrap_or_default(), Duration::from_secs(timeout_s));
    let asked = TraceAsked { channel: query.channel, count, topic, timeout };
    Ok(Json(cluster.trace_messages(asked).await))
}

fn known(cluster: &Cluster, channel: &str) -> Result<(), Refusal> {
    if cluster.has_channel(channel) {
        return Ok(());
    }
    let text = format!("the active policy has no channel {channel:?}; `cspctl channels` lists them");
    Err(refuse(StatusCode::NOT_FOUND, text))
}
