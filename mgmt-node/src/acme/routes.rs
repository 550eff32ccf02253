//! The routes about certificates: those of the API, and those by which management nodes give each other what
//! they have.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Extension, Path, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use csp_api::certificates::StoredCertificates;
use csp_daemon::issued;
use csp_identity::Caller;

use super::distribute::account_path;
use super::{Acme, now_s};
use crate::server::{Refusal, leading, refuse, to_leader};
use crate::views::Cluster;

type Shared = State<Arc<Cluster>>;

/// The routes of the API. The leader answers them.
pub(crate) fn routes() -> Router<Arc<Cluster>> {
    Router::new()
        .route("/api/v1/certificates", get(list))
        .route("/api/v1/certificates/{name}/renew", post(renew))
}

/// The routes for other management nodes.
pub(crate) fn node_routes(acme: &Arc<Acme>) -> Router {
    let own = Arc::clone(acme);
    let describe = move |stored: StoredCertificates| StoredCertificates {
        account: own.account.sha256().map(Into::into),
        ..stored
    };
    Router::new()
        .route(account_path(), get(account).put(store_account))
        .with_state(Arc::clone(acme))
        .merge(issued::routes(Arc::clone(&acme.issued), Arc::new(describe)))
}

async fn list(State(cluster): Shared, uri: Uri) -> Result<Response, Refusal> {
    if let Err(leader) = leading(&cluster)? {
        return Ok(to_leader(leader, &uri));
    }
    let active = cluster.policy.latest().await.active;
    let view = active.map(|active| cluster.acme.view(&active.policy, now_s())).unwrap_or_default();
    Ok(Json(view).into_response())
}

/// `POST /api/v1/certificates/{name}/renew`: 202; the certificate is ordered next.
async fn renew(State(cluster): Shared, uri: Uri, Path(name): Path<String>) -> Result<Response, Refusal> {
    if let Err(leader) = leading(&cluster)? {
        return Ok(to_leader(leader, &uri));
    }
    let active = cluster.policy.latest().await.active;
    if active.is_none_or(|active| active.policy.acme_certificate(&name).is_none()) {
        let text = format!(
            "the policy in force has no certificate {name} under acme; `cspctl certificates` lists them"
        );
        return Err(refuse(StatusCode::NOT_FOUND, text));
    }
    cluster.acme.demand(&name);
    Ok((StatusCode::ACCEPTED, Json(serde_json::json!({ "certificate": name }))).into_response())
}

async fn account(State(acme): State<Arc<Acme>>, Extension(caller): Extension<Caller>) -> Response {
    if let Err(refused) = issued::require_management(&caller) {
        return *refused;
    }
    acme.account.text().map_or_else(
        || issued::refuse(StatusCode::NOT_FOUND, "there is no account yet".to_owned()),
        IntoResponse::into_response,
    )
}

async fn store_account(
    State(acme): State<Arc<Acme>>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Response {
    if let Err(refused) = issued::require_management(&caller) {
        return *refused;
    }
    let text = String::from_utf8(body.to_vec()).map_err(|error| error.to_string());
    match text.and_then(|text| acme.account.write(&text)) {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(error) => issued::refuse(StatusCode::UNPROCESSABLE_ENTITY, error),
    }
}
