//! The routes about supplied handlers: what runs, and how modules come.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Extension, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use axum::{Json, Router};
use csp_api::handlers::{Handlers, MODULE_LEN_MAX};
use csp_api::mgmt::ErrorBody;
use csp_identity::{Access, Caller, IdentityRole};
use csp_telemetry::require;

use super::modules::Modules;
use super::specialised;

type Shared = State<Arc<Modules>>;

/// Returns the routes.
pub fn routes(modules: Arc<Modules>) -> Router {
    Router::new()
        .route("/v1/handlers", get(|State(modules): Shared| async move { Json(describe(modules).await) }))
        .route("/v1/handlers/{module}", put(bring).layer(DefaultBodyLimit::max(MODULE_LEN_MAX)))
        .with_state(modules)
}

/// Reads the folder on a thread that may wait for the disk.
async fn describe(modules: Arc<Modules>) -> Handlers {
    let handlers = tokio::task::spawn_blocking(move || modules.describe()).await.unwrap_or_default();
    Handlers { operators: specialised::describe(), ..handlers }
}

/// `PUT /v1/handlers/{SHA-256}`: 204 once the module was checked, compiled and stored; 422 with what is wrong with it. For operators, and
/// for management nodes, which pass on what operators give them.
async fn bring(
    State(modules): Shared,
    Extension(caller): Extension<Caller>,
    Path(module): Path<String>,
    body: Bytes,
) -> Response {
    let is_mgmt = caller.identity().is_some_and(|identity| identity.role == IdentityRole::MgmtNode);
    if !is_mgmt && let Err(refused) = require(&caller, Access::Operator) {
        return refused.into_response();
    }
    let who = caller.identity().map_or_else(|| "local".to_owned(), |identity| identity.to_string());
    let name = module.clone();
    // Compiling takes up to seconds: other requests, and the worker threads, go on meanwhile.
    let stored = tokio::task::spawn_blocking(move || modules.put(&module, &body)).await;
    match stored.unwrap_or_else(|error| Err(format!("the compiler ended: {error}"))) {
        Ok(()) => {
            tracing::info!(who, module = name, "a module was stored");
            StatusCode::NO_CONTENT.into_response()
        }
        Err(error) => {
            tracing::warn!(who, module = name, error, "a module was refused");
            let body = ErrorBody { error, ..ErrorBody::default() };
            (StatusCode::UNPROCESSABLE_ENTITY, Json(body)).into_response()
        }
    }
}
