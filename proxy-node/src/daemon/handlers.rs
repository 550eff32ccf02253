//! The routes about supplied handlers: what runs, and how modules come.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Extension, Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use axum::{Json, Router};
use csp_api::handlers::{Handlers, MODULE_LEN_MAX};
use csp_api::mgmt::ErrorBody;
use csp_identity::{Access, Caller, IdentityRole};
use csp_telemetry::{Refused, require};

use super::modules::{Modules, RemoveError};
use super::specialised;

type Shared = State<Arc<Modules>>;

/// Returns the routes.
pub fn routes(modules: Arc<Modules>) -> Router {
    Router::new()
        .route("/v1/handlers", get(|State(modules): Shared| async move { Json(describe(modules).await) }))
        .route(
            "/v1/handlers/{module}",
            put(bring).get(fetch).delete(remove).layer(DefaultBodyLimit::max(MODULE_LEN_MAX)),
        )
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
    let who = match changes(&caller) {
        Ok(who) => who,
        Err(refused) => return refused.into_response(),
    };
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
            refuse(StatusCode::UNPROCESSABLE_ENTITY, error)
        }
    }
}

/// Returns the name of a caller that may bring and remove modules: an operator, or a management node, which passes on what operators ask.
fn changes(caller: &Caller) -> Result<String, Refused> {
    let is_mgmt = caller.identity().is_some_and(|identity| identity.role == IdentityRole::MgmtNode);
    if !is_mgmt {
        require(caller, Access::Operator)?;
    }
    Ok(caller.identity().map_or_else(|| "local".to_owned(), |identity| identity.to_string()))
}

/// `GET /v1/handlers/{SHA-256}`: the bytes of a module, for a management node that gives it to another proxy; 404 if it is not here.
async fn fetch(
    State(modules): Shared,
    Extension(caller): Extension<Caller>,
    Path(module): Path<String>,
) -> Response {
    if let Err(refused) = changes(&caller) {
        return refused.into_response();
    }
    match tokio::task::spawn_blocking(move || modules.bytes(&module)).await.ok().flatten() {
        Some(bytes) => ([(CONTENT_TYPE, "application/wasm")], bytes).into_response(),
        None => refuse(StatusCode::NOT_FOUND, RemoveError::Unknown.to_string()),
    }
}

/// `DELETE /v1/handlers/{SHA-256}`: 204; 404 if it is not here, 409 while the policy names it or a path runs it.
async fn remove(
    State(modules): Shared,
    Extension(caller): Extension<Caller>,
    Path(module): Path<String>,
) -> Response {
    let who = match changes(&caller) {
        Ok(who) => who,
        Err(refused) => return refused.into_response(),
    };
    let name = module.clone();
    let removed = tokio::task::spawn_blocking(move || modules.remove(&module)).await;
    match removed.unwrap_or_else(|error| Err(RemoveError::File(error.to_string()))) {
        Ok(()) => {
            tracing::info!(who, module = name, "a module was removed");
            StatusCode::NO_CONTENT.into_response()
        }
        Err(error) => {
            let status = match error {
                RemoveError::Used => StatusCode::CONFLICT,
                RemoveError::Unknown => StatusCode::NOT_FOUND,
                RemoveError::File(_) => StatusCode::INTERNAL_SERVER_ERROR,
            };
            refuse(status, error.to_string())
        }
    }
}

fn refuse(status: StatusCode, error: String) -> Response {
    (status, Json(ErrorBody { error, ..ErrorBody::default() })).into_response()
}
