//! The routes about packet plug-ins: what network nodes run, and operations of instances, which go to all of
//! them or to one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Extension, Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use csp_api::mgmt::Unreachable;
use csp_api::plugins::{CallAnswer, CallBody, CallView, NodeAnswer, NodePlugins, Plugins, PluginsView};
use csp_identity::Caller;
use csp_types::Role;
use serde::Deserialize;
use tokio::task::JoinSet;

use crate::fanout::{AskError, Asked, Target, parse};
use crate::server::{Refusal, refuse};
use crate::views::Cluster;

/// How long a node may take for an operation.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(10);

type Shared = State<Arc<Cluster>>;

/// The routes.
pub fn routes() -> Router<Arc<Cluster>> {
    Router::new()
        .route("/api/v1/plugins", get(plugins))
        .route("/api/v1/plugins/{instance}/{operation}", get(read).post(change))
        .route("/api/v1/captures/{instance}", post(capture))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeQuery {
    node: Option<String>,
    /// `actions` compares it.
    #[serde(rename = "if_generation")]
    _if_generation: Option<u64>,
}

async fn plugins(State(cluster): Shared) -> Json<PluginsView> {
    let targets = cluster.targets(&[Role::NetworkNode]);
    let (answers, unreachable) = cluster.fanout.ask::<Plugins>(targets, "/v1/plugins", vec![]).await;
    let node = |(target, plugins): (Target, Plugins)| NodePlugins { node: target.id, plugins };
    Json(PluginsView { nodes: answers.into_iter().map(node).collect(), unreachable })
}

/// `GET /api/v1/plugins/{instance}/{operation}`: an operation that changes nothing; `node` of the query
/// chooses one node, the rest are the operation's arguments.
async fn read(
    State(cluster): Shared,
    Path((instance, operation)): Path<(String, String)>,
    Query(mut arguments): Query<BTreeMap<String, String>>,
) -> Result<Json<CallView>, Refusal> {
    let targets = targets(&cluster, arguments.remove("node").as_deref())?;
    let asked = Asked::Read(arguments.into_iter().collect());
    Ok(Json(view(all(&cluster, targets, &instance, &operation, &asked).await)))
}

/// `POST /api/v1/plugins/{instance}/{operation}?node=`: an operation that changes something. Entries that
/// `add` makes carry the caller's identity as their origin, unless the caller names another one.
async fn change(
    State(cluster): Shared,
    Extension(caller): Extension<Caller>,
    Path((instance, operation)): Path<(String, String)>,
    Query(query): Query<NodeQuery>,
    Json(mut body): Json<CallBody>,
) -> Result<Json<CallView>, Refusal> {
    let targets = targets(&cluster, query.node.as_deref())?;
    if operation == "add"
        && !body.arguments.contains_key("from")
        && let Some(identity) = caller.identity()
    {
        body.arguments.insert("from".to_owned(), identity.to_string());
    }
    let asked = Asked::Change(serde_json::to_string(&body).unwrap_or_default());
    Ok(Json(view(all(&cluster, targets, &instance, &operation, &asked).await)))
}

/// `POST /api/v1/captures/{instance}?node=`: takes what an instance of `capture` has captured, as one pcap
/// file.
async fn capture(
    State(cluster): Shared,
    Path(instance): Path<String>,
    Query(query): Query<NodeQuery>,
) -> Result<Response, Refusal> {
    let targets = targets(&cluster, query.node.as_deref())?;
    let asked = Asked::Change("{}".to_owned());
    let mut files = Vec::new();
    for (node, answer) in all(&cluster, targets, &instance, "take", &asked).await {
        let unusable = |error: String| refuse(StatusCode::BAD_GATEWAY, format!("{node}: {error}"));
        files.push(answer.map_err(|error| unusable(error.to_string()))?);
    }
    let file = csp_plugins::pcap::merge(&files).ok_or_else(|| {
        refuse(StatusCode::BAD_GATEWAY, "a node's answer is no capture; do the releases match?")
    })?;
    Ok(([(header::CONTENT_TYPE, "application/vnd.tcpdump.pcap")], file).into_response())
}

fn targets(cluster: &Cluster, node: Option<&str>) -> Result<Vec<Target>, Refusal> {
    let mut targets = cluster.targets(&[Role::NetworkNode]);
    if let Some(node) = node {
        targets.retain(|target| target.id == node);
    }
    match (targets.is_empty(), node) {
        (false, _) => Ok(targets),
        (true, Some(node)) => {
            let text = format!("there is no network node {node}; `cspctl nodes` lists the nodes");
            Err(refuse(StatusCode::NOT_FOUND, text))
        }
        (true, None) => Err(refuse(StatusCode::NOT_FOUND, "no network node is registered")),
    }
}

/// Has all targets execute an operation. Returns their answers by node.
async fn all(
    cluster: &Cluster,
    targets: Vec<Target>,
    instance: &str,
    operation: &str,
    asked: &Asked,
) -> Vec<(String, Result<Vec<u8>, AskError>)> {
    let mut running = JoinSet::new();
    for target in targets {
        let (fanout, asked) = (cluster.fanout.clone(), asked.clone());
        let (instance, operation) = (instance.to_owned(), operation.to_owned());
        running.spawn(async move {
            let path = ["v1", "plugins", &instance, &operation];
            (target.id.clone(), fanout.call(&target, &path, asked, OPERATION_TIMEOUT).await)
        });
    }
    let mut answers = running.join_all().await;
    answers.sort_by(|a, b| a.0.cmp(&b.0));
    answers
}

fn view(answers: Vec<(String, Result<Vec<u8>, AskError>)>) -> CallView {
    let mut view = CallView::default();
    for (node, answer) in answers {
        match answer.and_then(|body| parse::<CallAnswer>("/v1/plugins", &body)) {
            Ok(answer) => view.nodes.push(NodeAnswer { node, answer }),
            Err(error) => view.refused.push(Unreachable { node, error: error.to_string() }),
        }
    }
    view
}
