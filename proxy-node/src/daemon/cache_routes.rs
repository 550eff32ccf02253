//! The routes about the cache of HTTP responses.

use std::sync::Arc;

use axum::extract::{Extension, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use axum::{Json, Router};
use csp_api::cache::{CacheObject, CacheStatus, OBJECTS_MAX, PURGE_LEN_MAX, PurgeBody, Purged};
use csp_api::mgmt::ErrorBody;
use csp_cache::{Purge, Store};
use csp_daemon::clock::unix_now_ms;
use csp_identity::{Access, Caller, IdentityRole};
use csp_telemetry::require;
use serde::Deserialize;

type Cache = State<Option<Arc<Store>>>;

/// Returns the routes.
pub fn routes(cache: Option<Arc<Store>>) -> Router {
    Router::new()
        .route("/v1/cache", get(status))
        .route("/v1/cache/objects", get(objects))
        .route("/v1/cache/purge", put(purge))
        .with_state(cache)
}

async fn status(State(cache): Cache) -> Json<CacheStatus> {
    let status = cache.as_ref().map(|store| store.status()).unwrap_or_default();
    Json(CacheStatus {
        enabled: cache.is_some(),
        objects: status.objects as u64,
        bytes: status.bytes as u64,
        bytes_max: status.bytes_max as u64,
        stored_total: status.stored,
        evicted_total: status.evicted,
        purged_total: status.purged,
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Listing {
    prefix: Option<String>,
    limit: Option<usize>,
}

async fn objects(State(cache): Cache, Query(query): Query<Listing>) -> Json<Vec<CacheObject>> {
    let (prefix, most) = (query.prefix.unwrap_or_default(), query.limit.unwrap_or(100).clamp(1, OBJECTS_MAX));
    let listed = cache.map(|store| store.list(&prefix, most, unix_now_ms())).unwrap_or_default();
    let object = |listed: csp_cache::Listed| CacheObject {
        host: listed.host.into(),
        path: listed.path,
        status: listed.status,
        age_s: listed.age,
        fresh_s: listed.fresh_for,
        bytes: listed.bytes as u64,
    };
    Json(listed.into_iter().map(object).collect())
}

/// `PUT`: for operators, and for management nodes, which forward operators' requests.
async fn purge(
    State(cache): Cache,
    Extension(caller): Extension<Caller>,
    Json(body): Json<PurgeBody>,
) -> Response {
    let is_mgmt = caller.identity().is_some_and(|identity| identity.role == IdentityRole::MgmtNode);
    if !is_mgmt && let Err(refused) = require(&caller, Access::Operator) {
        return refused.into_response();
    }
    let (what, len) = match &body {
        PurgeBody::Path(path) => (Purge::Path(path), path.len()),
        PurgeBody::Prefix(prefix) => (Purge::Prefix(prefix), prefix.len()),
        PurgeBody::Tag(tag) => (Purge::Tag(tag), tag.len()),
        PurgeBody::All(_) => (Purge::All, 1),
    };
    if !(1..=PURGE_LEN_MAX).contains(&len) {
        let error = format!("{len} bytes of text: allowed are 1 to {PURGE_LEN_MAX}");
        let body = ErrorBody { error, ..ErrorBody::default() };
        return (StatusCode::UNPROCESSABLE_ENTITY, Json(body)).into_response();
    }
    let who = caller.identity().map_or_else(|| "local".to_owned(), |identity| identity.to_string());
    let (objects, bytes) = cache.map_or((0, 0), |store| store.purge(&what));
    tracing::info!(who, ?body, objects, "the HTTP cache was purged");
    Json(Purged { objects: objects as u64, bytes: bytes as u64 }).into_response()
}
