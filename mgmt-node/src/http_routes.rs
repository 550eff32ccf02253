//! The route about requests of HTTP on their way.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Extension, Query, State};
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use csp_api::http::{HTTP_TRACE_COUNT_MAX, HTTP_TRACE_TIMEOUT_S_MAX, HttpTraceQuery};
use csp_api::mgmt::HttpTraceView;
use csp_identity::{Access, Caller};
use csp_telemetry::require;
use csp_types::Prefix;

use crate::server::{Refusal, refuse};
use crate::views::Cluster;

/// The route.
pub fn routes() -> Router<Arc<Cluster>> {
    Router::new().route("/api/v1/http/trace", get(trace))
}

/// `GET /api/v1/http/trace`: for operators, since paths and queries may hold secrets of clients.
async fn trace(
    State(cluster): State<Arc<Cluster>>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<HttpTraceQuery>,
) -> Result<Json<HttpTraceView>, Refusal> {
    require(&caller, Access::Operator).map_err(|refused| refuse(refused.status, refused.error))?;
    if let Some(service) = query.service.as_ref().filter(|service| !cluster.has_http(service)) {
        let text =
            format!("the active policy has no service {service:?} with `http`; `cspctl routes` lists them");
        return Err(refuse(StatusCode::NOT_FOUND, text));
    }
    match wrong(&query) {
        Some(text) => Err(refuse(StatusCode::UNPROCESSABLE_ENTITY, text)),
        None => Ok(Json(cluster.trace_http(query).await)),
    }
}

/// Returns what is wrong with a query.
fn wrong(query: &HttpTraceQuery) -> Option<String> {
    let (count, seconds) = (query.count.unwrap_or(1), query.timeout_s.unwrap_or(10));
    if !(1..=HTTP_TRACE_COUNT_MAX).contains(&count) {
        return Some(format!("count={count}: allowed is 1 to {HTTP_TRACE_COUNT_MAX}"));
    }
    if !(1..=HTTP_TRACE_TIMEOUT_S_MAX).contains(&seconds) {
        return Some(format!("timeout_s={seconds}: allowed is 1 to {HTTP_TRACE_TIMEOUT_S_MAX}"));
    }
    let source = query.source.as_deref()?;
    let is_known = source.parse::<IpAddr>().is_ok() || source.parse::<Prefix>().is_ok();
    (!is_known).then(|| format!("source={source:?}: allowed is an address or a network"))
}
