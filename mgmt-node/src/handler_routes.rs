//! The routes about supplied handlers: modules go to all proxies, and what runs is read of them.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::routing::get;
use axum::{Json, Router};
use csp_api::handlers::{Handlers, HandlersView, MODULE_LEN_MAX, NodeHandlers, PutView};
use csp_api::mgmt::Unreachable;
use csp_types::Role;
use sha2::{Digest, Sha256};
use tokio::task::JoinSet;

use crate::views::Cluster;

/// How long a proxy may take to compile a module.
const COMPILE_TIMEOUT: Duration = Duration::from_secs(30);

type Shared = State<Arc<Cluster>>;

/// The routes.
pub fn routes() -> Router<Arc<Cluster>> {
    let limit = DefaultBodyLimit::max(MODULE_LEN_MAX);
    Router::new().route("/api/v1/handlers", get(handlers).post(bring).layer(limit))
}

async fn handlers(State(cluster): Shared) -> Json<HandlersView> {
    let targets = cluster.targets(&[Role::ProxyNode]);
    let (answers, unreachable) = cluster.fanout.ask::<Handlers>(targets, "/v1/handlers", vec![]).await;
    let node =
        |(target, handlers): (crate::fanout::Target, Handlers)| NodeHandlers { node: target.id, handlers };
    Json(HandlersView { nodes: answers.into_iter().map(node).collect(), unreachable })
}

/// `POST /api/v1/handlers`: gives a module to all proxies. 200 with what each says of it.
async fn bring(State(cluster): Shared, body: Bytes) -> Json<PutView> {
    let module: String = Sha256::digest(&body).iter().map(|byte| format!("{byte:02x}")).collect();
    let mut asked = JoinSet::new();
    for target in cluster.targets(&[Role::ProxyNode]) {
        let (fanout, path, bytes) = (cluster.fanout.clone(), format!("/v1/handlers/{module}"), body.to_vec());
        asked.spawn(async move { (fanout.put(&target, &path, bytes, COMPILE_TIMEOUT).await, target.id) });
    }
    let mut view = PutView { module, ..PutView::default() };
    for (done, node) in asked.join_all().await {
        match done {
            Ok(()) => view.stored.push(node),
            Err(error) => view.refused.push(Unreachable { node, error: error.to_string() }),
        }
    }
    view.stored.sort();
    view.refused.sort_by(|a, b| a.node.cmp(&b.node));
    Json(view)
}
