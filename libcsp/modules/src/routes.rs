//! Routes by which supplied modules are added to a daemon, read and removed.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Extension, Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::put;
use csp_api::handlers::MODULE_LEN_MAX;
use csp_api::mgmt::ErrorBody;
use csp_identity::{Access, Caller, IdentityRole};
use csp_telemetry::{Refused, require};

use crate::RemoveError;

/// The modules of a daemon. Calls may block on the disk and compile for seconds.
pub trait ModuleStore: Send + Sync + 'static {
    /// Checks, compiles and stores a module.
    ///
    /// # Errors
    /// Why it is invalid, or why it cannot be stored.
    fn put(&self, hash: &str, bytes: &[u8]) -> Result<(), String>;
    /// Returns the bytes of a module.
    fn bytes(&self, hash: &str) -> Option<Vec<u8>>;
    /// Removes an unused module.
    ///
    /// # Errors
    /// See [`RemoveError`].
    fn remove(&self, hash: &str) -> Result<(), RemoveError>;
}

/// Returns the routes of one module, at `{path}/{SHA-256}`.
pub fn routes<S: ModuleStore>(path: &str, store: Arc<S>) -> Router {
    let limit = DefaultBodyLimit::max(MODULE_LEN_MAX);
    Router::new()
        .route(
            &format!("{path}/{{module}}"),
            put(bring::<S>).get(fetch::<S>).delete(remove::<S>).layer(limit),
        )
        .with_state(store)
}

/// `PUT`: 204 once the module is checked, compiled and stored; 422 with the reason if it is invalid. For
/// operators, and for management nodes, which forward operators' requests.
async fn bring<S: ModuleStore>(
    State(store): State<Arc<S>>,
    Extension(caller): Extension<Caller>,
    Path(module): Path<String>,
    body: Bytes,
) -> Response {
    let who = match changes(&caller) {
        Ok(who) => who,
        Err(refused) => return refused.into_response(),
    };
    let name = module.clone();
    // Compiling takes up to seconds; other requests and the worker threads continue meanwhile.
    let stored = tokio::task::spawn_blocking(move || store.put(&module, &body)).await;
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

/// Returns the name of a caller that may add and remove modules: an operator, or a management node, which
/// forwards operators' requests.
fn changes(caller: &Caller) -> Result<String, Refused> {
    let is_mgmt = caller.identity().is_some_and(|identity| identity.role == IdentityRole::MgmtNode);
    if !is_mgmt {
        require(caller, Access::Operator)?;
    }
    Ok(caller.identity().map_or_else(|| "local".to_owned(), |identity| identity.to_string()))
}

/// `GET`: the bytes of a module, for a management node that copies it to another node; 404 if it is missing.
async fn fetch<S: ModuleStore>(
    State(store): State<Arc<S>>,
    Extension(caller): Extension<Caller>,
    Path(module): Path<String>,
) -> Response {
    if let Err(refused) = changes(&caller) {
        return refused.into_response();
    }
    match tokio::task::spawn_blocking(move || store.bytes(&module)).await.ok().flatten() {
        Some(bytes) => ([(CONTENT_TYPE, "application/wasm")], bytes).into_response(),
        None => refuse(StatusCode::NOT_FOUND, RemoveError::Unknown.to_string()),
    }
}

/// `DELETE`: 204; 404 if it is missing, 409 while the policy names it or it is running.
async fn remove<S: ModuleStore>(
    State(store): State<Arc<S>>,
    Extension(caller): Extension<Caller>,
    Path(module): Path<String>,
) -> Response {
    let who = match changes(&caller) {
        Ok(who) => who,
        Err(refused) => return refused.into_response(),
    };
    let name = module.clone();
    let removed = tokio::task::spawn_blocking(move || store.remove(&module)).await;
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
    (status, axum::Json(ErrorBody { error, ..ErrorBody::default() })).into_response()
}
