//! Routes for supplied packet plug-ins: listing, adding and removing modules.

use std::sync::Arc;

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use csp_api::handlers::Module;
use csp_api::plugins::StoredModules;
use csp_modules::RemoveError;
use csp_modules::routes::{self as module_routes, ModuleStore};
use csp_plugin_modules::PluginModules;

const PATH: &str = "/v1/plugin-modules";

struct Store(Arc<PluginModules>);

/// Returns the routes.
pub fn routes(modules: Arc<PluginModules>) -> Router {
    Router::new()
        .route(PATH, get(list))
        .with_state(modules.clone())
        .merge(module_routes::routes(PATH, Arc::new(Store(modules))))
}

/// Reads the folder on a thread that may block on the disk.
async fn list(State(modules): State<Arc<PluginModules>>) -> Json<StoredModules> {
    let stored = tokio::task::spawn_blocking(move || modules.stored()).await.unwrap_or_default();
    let module = |(module, len): (String, u64)| Module { module: module.into(), len };
    Json(StoredModules { modules: stored.into_iter().map(module).collect() })
}

impl ModuleStore for Store {
    fn put(&self, hash: &str, bytes: &[u8]) -> Result<(), String> {
        self.0.put(hash, bytes)
    }

    fn bytes(&self, hash: &str) -> Option<Vec<u8>> {
        self.0.bytes(hash)
    }

    fn remove(&self, hash: &str) -> Result<(), RemoveError> {
        self.0.remove(hash)
    }
}
