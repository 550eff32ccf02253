//! The routes about the cache of HTTP responses, which each proxy has for itself: all of them are asked.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use csp_api::cache::{CacheObject, CacheStatus, CacheView, OfProxy, PurgeBody, Purged};
use csp_api::mgmt::Unreachable;
use csp_types::Role;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

use crate::fanout::{Asked, parse};
use crate::views::Cluster;

/// How long a proxy may take to purge.
const PURGE_TIMEOUT: Duration = Duration::from_secs(10);

type Shared = State<Arc<Cluster>>;

/// The routes.
pub fn routes() -> Router<Arc<Cluster>> {
    Router::new()
        .route("/api/v1/cache", get(status))
        .route("/api/v1/cache/objects", get(objects))
        .route("/api/v1/cache/purge", post(purge))
}

async fn status(State(cluster): Shared) -> Json<CacheView<CacheStatus>> {
    Json(ask(&cluster, "/v1/cache", vec![]).await)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Listing {
    prefix: Option<String>,
    limit: Option<usize>,
}

async fn objects(State(cluster): Shared, Query(query): Query<Listing>) -> Json<CacheView<Vec<CacheObject>>> {
    let prefix = query.prefix.map(|prefix| ("prefix", prefix));
    let limit = query.limit.map(|limit| ("limit", limit.to_string()));
    Json(ask(&cluster, "/v1/cache/objects", prefix.into_iter().chain(limit).collect()).await)
}

async fn ask<T: DeserializeOwned + Send + 'static>(
    cluster: &Cluster,
    path: &'static str,
    query: Vec<(&'static str, String)>,
) -> CacheView<T> {
    let targets = cluster.targets(&[Role::ProxyNode]);
    let (answers, unreachable) = cluster.fanout.ask::<T>(targets, path, query).await;
    let nodes = answers.into_iter().map(|(target, answer)| OfProxy { node: target.id.into(), answer });
    CacheView { nodes: nodes.collect(), unreachable }
}

/// `POST /api/v1/cache/purge`: for operators. Each proxy says what it has removed.
async fn purge(State(cluster): Shared, Json(body): Json<PurgeBody>) -> Json<CacheView<Purged>> {
    let asked = Asked::Change(serde_json::to_string(&body).unwrap_or_default());
    let mut running = JoinSet::new();
    for target in cluster.targets(&[Role::ProxyNode]) {
        let (fanout, asked) = (cluster.fanout.clone(), asked.clone());
        running.spawn(async move {
            let answer = fanout.call(&target, &["v1", "cache", "purge"], asked, PURGE_TIMEOUT).await;
            (target.id, answer.and_then(|body| parse::<Purged>("/v1/cache/purge", &body)))
        });
    }
    let mut answers = running.join_all().await;
    answers.sort_by(|a, b| a.0.cmp(&b.0));
    let mut view = CacheView::default();
    for (node, answer) in answers {
        match answer {
            Ok(answer) => view.nodes.push(OfProxy { node: node.into(), answer }),
            Err(error) => view.unreachable.push(Unreachable { node, error: error.to_string() }),
        }
    }
    Json(view)
}
