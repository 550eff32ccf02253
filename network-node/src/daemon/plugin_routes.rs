//! Routes for packet plug-ins: the running instances, and their operations.

use std::collections::BTreeMap;

use axum::extract::{Extension, Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use csp_api::mgmt::ErrorBody;
use csp_api::plugins::{self as api, CallBody};
use csp_daemon::query::QueryError;
use csp_identity::{Access, Caller, IdentityRole};
use csp_telemetry::require;

use super::plugins::{CallFailure, CallResult, Plugins};

/// Read-only operations, which viewers may call.
const READING: [&str; 3] = ["read", "list", "find"];

/// Returns the routes.
pub fn routes(plugins: Plugins) -> Router {
    Router::new()
        .route("/v1/plugins", get(describe))
        .route("/v1/plugins/{instance}/{operation}", get(read).put(change))
        .with_state(plugins)
}

async fn describe(State(plugins): State<Plugins>) -> Result<Json<api::Plugins>, QueryError> {
    Ok(Json(plugins.lock().await.describe().await?))
}

/// `GET`: the arguments are in the query.
async fn read(
    State(plugins): State<Plugins>,
    Path((instance, operation)): Path<(String, String)>,
    Query(arguments): Query<BTreeMap<String, String>>,
) -> Response {
    if !READING.contains(&operation.as_str()) {
        let error = format!("{operation} changes something: it is called by PUT");
        return refuse(StatusCode::METHOD_NOT_ALLOWED, error);
    }
    answer(plugins.lock().await.call(&instance, &operation, &arguments).await)
}

/// `PUT`: for operators, and for management nodes, which forward operators' requests.
async fn change(
    State(plugins): State<Plugins>,
    Extension(caller): Extension<Caller>,
    Path((instance, operation)): Path<(String, String)>,
    Json(body): Json<CallBody>,
) -> Response {
    let is_mgmt = caller.identity().is_some_and(|identity| identity.role == IdentityRole::MgmtNode);
    if !is_mgmt && let Err(refused) = require(&caller, Access::Operator) {
        return refused.into_response();
    }
    let who = caller.identity().map_or_else(|| "local".to_owned(), |identity| identity.to_string());
    tracing::info!(who, instance, operation, "an operation of a plug-in was called");
    answer(plugins.lock().await.call(&instance, &operation, &body.arguments).await)
}

fn answer(result: Result<CallResult, CallFailure>) -> Response {
    match result {
        Ok(CallResult::Rows(answer)) => Json(answer).into_response(),
        Ok(CallResult::Bytes(file)) => {
            ([(header::CONTENT_TYPE, "application/vnd.tcpdump.pcap")], file).into_response()
        }
        Err(error @ CallFailure::Refused(_)) => refuse(StatusCode::UNPROCESSABLE_ENTITY, error.to_string()),
        Err(error) => refuse(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
    }
}

fn refuse(status: StatusCode, error: String) -> Response {
    (status, Json(ErrorBody { error, ..ErrorBody::default() })).into_response()
}
