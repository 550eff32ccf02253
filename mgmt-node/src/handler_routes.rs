//! The routes about supplied modules: those of handlers go to all proxies, those of packet plug-ins to all
//! network nodes; what runs is read of them.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::StatusCode;
use axum::routing::{delete, get};
use axum::{Json, Router};
use csp_api::handlers::{Handlers, HandlersView, MODULE_LEN_MAX, NodeHandlers, PutView, RemovedView};
use csp_api::mgmt::{Phase, Unreachable};
use csp_api::plugins::{ModulesView, NodeModules, StoredModules};
use csp_policy::Policy;
use csp_types::Role;
use tokio::task::JoinSet;

use crate::server::{Refusal, refuse};
use crate::views::Cluster;

/// How long a proxy may take to compile a module.
pub(crate) const COMPILE_TIMEOUT: Duration = Duration::from_secs(30);

type Shared = State<Arc<Cluster>>;

/// A kind of modules, and the nodes that store them.
pub(crate) struct Kind {
    pub role: Role,
    /// Where the nodes have them.
    pub path: &'static str,
    what: &'static str,
    unknown: &'static str,
    /// Names of what runs modules in a policy, each with its module.
    pub named: fn(&Policy) -> Vec<(&str, &str)>,
}

/// Modules of message handlers.
pub(crate) const HANDLERS: Kind = Kind {
    role: Role::ProxyNode,
    path: "/v1/handlers",
    what: "handler",
    unknown: "no proxy has this module; `cspctl handler list` lists them",
    named: |policy| {
        policy.handlers.iter().map(|handler| (handler.name.as_str(), handler.module.as_str())).collect()
    },
};

/// Modules of packet plug-ins.
pub(crate) const PLUGINS: Kind = Kind {
    role: Role::NetworkNode,
    path: "/v1/plugin-modules",
    what: "plug-in",
    unknown: "no network node has this module; `cspctl plugin modules` lists them",
    named: |policy| {
        let supplied = policy.plugins.iter().filter(|plugin| csp_plugins::is_supplied(&plugin.module));
        supplied.map(|plugin| (plugin.name.as_str(), plugin.module.as_str())).collect()
    },
};

/// The routes.
pub fn routes() -> Router<Arc<Cluster>> {
    let limit = DefaultBodyLimit::max(MODULE_LEN_MAX);
    Router::new()
        .route("/api/v1/handlers", get(handlers).post(bring).layer(limit))
        .route("/api/v1/handlers/{module}", delete(remove))
        .route("/api/v1/plugin-modules", get(plugin_modules).post(bring_plugin).layer(limit))
        .route("/api/v1/plugin-modules/{module}", delete(remove_plugin))
}

async fn plugin_modules(State(cluster): Shared) -> Json<ModulesView> {
    let targets = cluster.targets(&[PLUGINS.role]);
    let (answers, unreachable) = cluster.fanout.ask::<StoredModules>(targets, PLUGINS.path, vec![]).await;
    let node =
        |(target, stored): (crate::fanout::Target, StoredModules)| NodeModules { node: target.id, stored };
    Json(ModulesView { nodes: answers.into_iter().map(node).collect(), unreachable })
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
    bring_to(&cluster, &HANDLERS, &body).await
}

/// `POST /api/v1/plugin-modules`: gives a module to all network nodes.
async fn bring_plugin(State(cluster): Shared, body: Bytes) -> Json<PutView> {
    bring_to(&cluster, &PLUGINS, &body).await
}

async fn bring_to(cluster: &Cluster, kind: &Kind, body: &[u8]) -> Json<PutView> {
    let module = csp_policy::sha256(body);
    let mut asked = JoinSet::new();
    for target in cluster.targets(&[kind.role]) {
        let path = format!("{}/{module}", kind.path);
        let (fanout, bytes) = (cluster.fanout.clone(), body.to_vec());
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

/// `DELETE /api/v1/handlers/{SHA-256}`: removes a module from all proxies. 200 with what each says of it; 409
/// while the policy in force names it or one is being published, 404 if no proxy has it.
async fn remove(State(cluster): Shared, Path(module): Path<String>) -> Result<Json<RemovedView>, Refusal> {
    remove_from(&cluster, &HANDLERS, module).await
}

/// `DELETE /api/v1/plugin-modules/{SHA-256}`: the same of a module of packet plug-ins.
async fn remove_plugin(
    State(cluster): Shared,
    Path(module): Path<String>,
) -> Result<Json<RemovedView>, Refusal> {
    remove_from(&cluster, &PLUGINS, module).await
}

async fn remove_from(cluster: &Cluster, kind: &Kind, module: String) -> Result<Json<RemovedView>, Refusal> {
    if let Some(active) = cluster.policy.latest().await.active {
        let named = (kind.named)(&active.policy).into_iter().filter(|(_, named)| *named == module);
        let names: Vec<&str> = named.map(|(name, _)| name).collect();
        if !names.is_empty() {
            let (generation, names) = (active.generation, names.join(", "));
            let text = format!(
                "policy generation {generation} has the module as {} {names}; apply one without it first",
                kind.what
            );
            return Err(refuse(StatusCode::CONFLICT, text));
        }
    }
    let publishing = cluster.publisher.current();
    if publishing.is_some_and(|view| matches!(view.phase, Phase::Staging | Phase::Activating)) {
        let text = "a policy is being published, which may name the module; try again when it is in force";
        return Err(refuse(StatusCode::CONFLICT, text));
    }
    let mut asked = JoinSet::new();
    for target in cluster.targets(&[kind.role]) {
        let (fanout, path) = (cluster.fanout.clone(), format!("{}/{module}", kind.path));
        asked.spawn(async move { (fanout.delete(&target, &path).await, target.id) });
    }
    let mut view = RemovedView { module, ..RemovedView::default() };
    for (done, node) in asked.join_all().await {
        match done {
            Ok(true) => view.removed.push(node),
            Ok(false) => {}
            Err(error) => view.refused.push(Unreachable { node, error: error.to_string() }),
        }
    }
    view.removed.sort();
    view.refused.sort_by(|a, b| a.node.cmp(&b.node));
    match view.removed.is_empty() && view.refused.is_empty() {
        false => Ok(Json(view)),
        true => Err(refuse(StatusCode::NOT_FOUND, kind.unknown)),
    }
}
