//! The routes of events: nodes push theirs, viewers read all.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Extension, Query, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use csp_api::events::{EVENTS_MAX, Page, Push, Pushed, Severity};
use csp_events::{Cursor, Filter};
use csp_identity::{Access, Caller, IdentityRole};
use csp_telemetry::require;
use serde::Deserialize;
use serde_json::Value;

use super::{Hub, Pusher};
use crate::limits::WAIT_S_MAX;
use crate::server::{Refusal, refuse};

/// Longest push, in bytes.
const PUSH_LEN_MAX: usize = 8 << 20;
/// Events in an answer unless the request says otherwise.
const LIMIT: usize = 100;

/// `POST /v1/events`, `GET /api/v1/events` and `GET /api/v1/events/schema`.
pub fn routes(hub: Arc<Hub>) -> Router {
    Router::new()
        .route("/v1/events", post(push).layer(DefaultBodyLimit::max(PUSH_LEN_MAX)))
        .route("/api/v1/events", get(read))
        .route("/api/v1/events/schema", get(schema))
        .with_state(hub)
}

/// Takes events of the node that the caller's certificate names, and of no other one.
async fn push(
    State(hub): State<Arc<Hub>>,
    Extension(caller): Extension<Caller>,
    Json(push): Json<Push>,
) -> Result<Json<Pushed>, Refusal> {
    let by = match &caller {
        Caller::Local => Some(Pusher::Management),
        Caller::Peer(peer) => {
            let identity = peer.identity;
            let is_origin = push.origin == *identity.id.to_string().as_str();
            match identity.role {
                IdentityRole::MgmtNode => Some(Pusher::Management),
                role => role.node().map(|_| Pusher::Node),
            }
            .filter(|_| is_origin)
        }
        Caller::Anonymous | Caller::Session { .. } => None,
    };
    let Some(by) = by else {
        let text = format!("only {} itself may push its events, by its certificate", push.origin);
        return Err(refuse(StatusCode::FORBIDDEN, text));
    };
    if push.events.len() > EVENTS_MAX {
        let text = format!("{} events at once; allowed are {EVENTS_MAX}", push.events.len());
        return Err(refuse(StatusCode::UNPROCESSABLE_ENTITY, text));
    }
    Ok(Json(Pushed { known: hub.admit(push, by) }))
}

/// Query of `GET /api/v1/events`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reader {
    /// Events after this cursor; left out: the latest ones.
    pub since: Option<String>,
    /// Wait so long for the first event, at most 30 s.
    pub wait_s: Option<u64>,
    /// At most so many events, from 1 to 500.
    pub limit: Option<usize>,
    /// `info`, `warning` or `error`: at least this severity.
    pub severity: Option<String>,
    /// Objects that begin so, such as `node/` or `server/web/`.
    pub object: Option<String>,
    /// Kinds, separated by commas.
    pub kind: Option<String>,
}

impl Reader {
    fn filter(&self) -> Result<Filter, Refusal> {
        let wrong = |text: String| refuse(StatusCode::UNPROCESSABLE_ENTITY, text);
        let severity = self.severity.as_deref().map(|name| {
            Severity::named(name)
                .ok_or_else(|| wrong(format!("severity={name}: allowed are info, warning and error")))
        });
        let kinds = self.kind.iter().flat_map(|kinds| kinds.split(',')).filter(|kind| !kind.is_empty());
        Ok(Filter {
            severity: severity.transpose()?,
            objects: self.object.iter().cloned().collect(),
            kinds: kinds.map(str::to_owned).collect(),
        })
    }
}

async fn read(
    State(hub): State<Arc<Hub>>,
    Extension(caller): Extension<Caller>,
    Query(reader): Query<Reader>,
) -> Result<Json<Page>, Refusal> {
    require(&caller, Access::Viewer).map_err(|refused| refuse(refused.status, refused.error))?;
    let filter = reader.filter()?;
    let most = reader.limit.unwrap_or(LIMIT).clamp(1, EVENTS_MAX);
    let Some(since) = &reader.since else { return Ok(Json(hub.latest(&filter, most).into())) };
    let cursor: Cursor = since
        .parse()
        .map_err(|error| refuse(StatusCode::UNPROCESSABLE_ENTITY, format!("since={since:.40}: {error}")))?;
    let wait = Duration::from_secs(reader.wait_s.unwrap_or(0).min(WAIT_S_MAX));
    Ok(Json(hub.after(&cursor, &filter, most, wait).await.into()))
}

/// The JSON Schema of an event.
async fn schema(Extension(caller): Extension<Caller>) -> Result<Json<Value>, Refusal> {
    require(&caller, Access::Viewer).map_err(|refused| refuse(refused.status, refused.error))?;
    Ok(Json(super::schema()))
}
