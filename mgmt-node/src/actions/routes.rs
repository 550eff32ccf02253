//! The routes by which operators act, beside those that the command line had before: roll back, switch the
//! scheme of the link; and those that say who the caller is and what was changed.

use std::sync::Arc;

use axum::extract::{Extension, Query, Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use axum::routing::{get, post, put};
use axum::{Json, Router};
use csp_api::mgmt::{AuditView, SchemeRequest, SessionView};
use csp_identity::{Access, Caller};
use csp_planner::Planned;
use csp_policy::Policy;
use csp_telemetry::require;
use csp_types::options::Scheme;
use serde::Deserialize;

use super::{Actions, by, is_fresh};
use crate::limits::AUDIT_MAX;
use crate::login::SessionAge;
use crate::server::{Refusal, publish, refuse};
use crate::views::Cluster;

type Shared = State<Arc<Cluster>>;

/// The routes.
pub fn routes(actions: Arc<Actions>) -> Router<Arc<Cluster>> {
    Router::new()
        .route("/api/v1/session", get(session))
        .route("/api/v1/audit", get(audit))
        .route("/api/v1/policy/rollback", post(rollback))
        .route("/api/v1/link/scheme", put(scheme))
        .layer(Extension(actions))
}

/// `GET /api/v1/session`: who the caller is.
async fn session(Extension(caller): Extension<Caller>, request: Request) -> Json<SessionView> {
    let age = request.extensions().get::<SessionAge>().map(|age| age.0);
    Json(SessionView {
        identity: caller.identity().map(|identity| identity.to_string()),
        role: caller.access().map_or("", Access::as_str).to_owned(),
        by: by(&caller).to_owned(),
        age_s: age.map(|age| age.as_secs()),
        fresh: is_fresh(age),
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AuditQuery {
    limit: Option<usize>,
}

/// `GET /api/v1/audit`: the newest records of this node, for operators.
async fn audit(
    State(cluster): Shared,
    Extension(caller): Extension<Caller>,
    Extension(actions): Extension<Arc<Actions>>,
    Query(query): Query<AuditQuery>,
) -> Result<Json<AuditView>, Refusal> {
    require(&caller, Access::Operator).map_err(|refused| refuse(refused.status, refused.error))?;
    let limit = query.limit.unwrap_or(100).clamp(1, AUDIT_MAX);
    let read = tokio::task::spawn_blocking(move || actions.audit.newest(limit)).await;
    let records = read.map_err(std::io::Error::other).and_then(|read| read).map_err(|error| {
        refuse(StatusCode::SERVICE_UNAVAILABLE, format!("the audit log cannot be read: {error}"))
    })?;
    Ok(Json(AuditView { node: cluster.id.clone(), records }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RollbackQuery {
    generation: u64,
    if_generation: Option<u64>,
    timeout_s: Option<u64>,
}

/// `POST /api/v1/policy/rollback?generation=N`: publishes the policy of an earlier generation as a new one.
/// Answers as `POST /api/v1/policy` does.
async fn rollback(
    State(cluster): Shared,
    uri: Uri,
    Query(query): Query<RollbackQuery>,
) -> Result<Response, Refusal> {
    let state = cluster.policy.latest().await;
    let known = state.history.iter().find(|summary| summary.generation == query.generation);
    if known.is_some_and(|summary| summary.activated_unix_ms.is_none()) {
        let text =
            format!("generation {} was never in force; `cspctl policy history` lists them", query.generation);
        return Err(refuse(StatusCode::UNPROCESSABLE_ENTITY, text));
    }
    let record = cluster.manager.generation(query.generation).await?;
    publish(&cluster, &uri, record.policy, query.timeout_s, query.if_generation).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SchemeQuery {
    if_generation: Option<u64>,
    timeout_s: Option<u64>,
}

/// `PUT /api/v1/link/scheme`: publishes the policy in force with another scheme of its link.
async fn scheme(
    State(cluster): Shared,
    uri: Uri,
    Query(query): Query<SchemeQuery>,
    Json(asked): Json<SchemeRequest>,
) -> Result<Response, Refusal> {
    let allowed: Vec<&str> = Scheme::ALL.iter().map(|scheme| scheme.abbreviation()).collect();
    let scheme = Scheme::ALL.into_iter().find(|scheme| scheme.abbreviation() == asked.scheme);
    let scheme = scheme.ok_or_else(|| {
        let text = format!("scheme {:?}: allowed are {}", asked.scheme, allowed.join(", "));
        refuse(StatusCode::UNPROCESSABLE_ENTITY, text)
    })?;
    let active = cluster.policy.latest().await.active;
    let record = active.ok_or_else(|| refuse(StatusCode::NOT_FOUND, "no policy is active"))?;
    let mut policy: Policy = record.policy.clone();
    let Some(link) = &mut policy.link else {
        return Err(refuse(StatusCode::NOT_FOUND, "the active policy has no `link`"));
    };
    link.scheme = scheme;
    let file = "the changed policy";
    policy.validate(file)?;
    let policy = Planned::new(Arc::new(policy), file)?.into_policy();
    // The change is one of the generation that was read here.
    let expected = query.if_generation.or(Some(record.generation));
    publish(&cluster, &uri, policy, query.timeout_s, expected).await
}
