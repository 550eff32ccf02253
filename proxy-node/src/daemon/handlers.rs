//! The routes about supplied handlers: what runs, and how modules come.

use std::sync::Arc;

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use csp_api::handlers::Handlers;
use csp_modules::RemoveError;
use csp_modules::routes::{self as module_routes, ModuleStore};

use super::modules::Modules;
use super::specialised;

type Shared = State<Arc<Modules>>;

/// Returns the routes.
pub fn routes(modules: Arc<Modules>) -> Router {
    Router::new()
        .route("/v1/handlers", get(|State(modules): Shared| async move { Json(describe(modules).await) }))
        .with_state(modules.clone())
        .merge(module_routes::routes("/v1/handlers", modules))
}

/// Reads the folder on a thread that may wait for the disk.
async fn describe(modules: Arc<Modules>) -> Handlers {
    let handlers = tokio::task::spawn_blocking(move || modules.describe()).await.unwrap_or_default();
    Handlers { operators: specialised::describe(), ..handlers }
}

impl ModuleStore for Modules {
    fn put(&self, hash: &str, bytes: &[u8]) -> Result<(), String> {
        Modules::put(self, hash, bytes)
    }

    fn bytes(&self, hash: &str) -> Option<Vec<u8>> {
        Modules::bytes(self, hash)
    }

    fn remove(&self, hash: &str) -> Result<(), RemoveError> {
        Modules::remove(self, hash)
    }
}
