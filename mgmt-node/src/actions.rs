//! Changes: who may make them, what they must name, and their record.
//!
//! ```text
//! request ──▶ may the caller? ──▶ names the generation? young login? ──▶ key known? ──▶ audit: asked
//!                  │401, 403           │428, 409, 403                      │422, 409, the      │
//!                  ▼                   ▼                                   ▼ answer again      ▼
//!                                                      answer ◀── audit: done ◀────────── the route
//! ```
//! A page acts for a person who looks at something that may be old by now. So a request that a page makes,
//! by a session's cookie or with `Origin`, names the generation of the policy that it was made for
//! (`if_generation`); applying a policy and rolling back need a login of the last minutes. Programs with a
//! certificate may leave the generation out.
//!
//! A change runs to its end, and is recorded, also when its caller hangs up.

mod audit;
mod keys;
mod routes;
mod what;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Extension, Query, Request, State};
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use csp_api::mgmt::{AuditRecord, ErrorBody};
use csp_daemon::clock::unix_now_ms;
use csp_identity::{Access, Caller};
use csp_telemetry::{RemoteAddress, require};
use sha2::{Digest, Sha256};

pub use audit::{Audit, AuditHook};
pub use routes::routes;

use crate::limits::{FRESH_LOGIN, POLICY_LEN_MAX};
use crate::login::SessionAge;
use crate::server::{Refusal, refuse};
use crate::views::Cluster;
use keys::{ANSWER_LEN_MAX, KEY_LEN_MAX, Kept, Keys, Known};

/// The header by which a repeated request is known.
const KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// What this node keeps of changes.
#[derive(Debug)]
pub struct Actions {
    /// The audit log.
    pub audit: Arc<Audit>,
    keys: Mutex<Keys>,
    start: Instant,
    /// Names changes apart from those of former starts of the daemon.
    run: u64,
    count: AtomicU64,
}

impl Actions {
    /// Opens the audit log in `state_dir`, which exists.
    pub fn open(state_dir: &Path) -> std::io::Result<Arc<Self>> {
        let audit = Arc::new(Audit::open(state_dir)?);
        let (keys, count) = (Mutex::default(), AtomicU64::new(0));
        Ok(Arc::new(Actions { audit, keys, start: Instant::now(), run: unix_now_ms(), count }))
    }

    fn keys(&self) -> std::sync::MutexGuard<'_, Keys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records off the runtime's threads: a disk may take its time.
    async fn record(&self, record: AuditRecord) -> Result<(), Refusal> {
        let audit = self.audit.clone();
        let done = tokio::task::spawn_blocking(move || audit.record(&record)).await;
        done.map_err(std::io::Error::other).and_then(|done| done).map_err(|error| {
            tracing::error!(%error, "the audit log cannot be written");
            let text = format!("the audit log of this node cannot be written: {error}; nothing was changed");
            refuse(StatusCode::SERVICE_UNAVAILABLE, text)
        })
    }
}

/// What [`allowed`] works with.
pub type Acting = (Arc<Cluster>, Arc<Actions>);

/// Lets viewers look and operators change. The page itself is no secret.
pub async fn allowed(
    State((cluster, actions)): State<Acting>,
    Extension(caller): Extension<Caller>,
    request: Request,
    next: Next,
) -> Response {
    let access = match (request.uri().path().starts_with("/api/"), request.method()) {
        (false, _) => return next.run(request).await,
        (true, &Method::GET | &Method::HEAD) => Access::Viewer,
        (true, _) => Access::Operator,
    };
    if let Err(refused) = require(&caller, access) {
        return refuse(refused.status, refused.error).into_response();
    }
    if access == Access::Viewer || is_dry_run(&request) {
        return next.run(request).await;
    }
    change(&cluster, &actions, &caller, request, next).await.unwrap_or_else(IntoResponse::into_response)
}

/// Whether a request only has a policy checked.
fn is_dry_run(request: &Request) -> bool {
    let asked: Vec<(String, String)> = query(request);
    request.uri().path() == "/api/v1/policy"
        && asked.iter().any(|(name, value)| name == "dry_run" && truth(value))
}

/// How a flag of a query is read.
pub(crate) fn truth(value: &str) -> bool {
    !matches!(value, "false" | "0" | "no")
}

fn query(request: &Request) -> Vec<(String, String)> {
    Query::try_from_uri(request.uri()).map(|Query(pairs)| pairs).unwrap_or_default()
}

/// A request that changes something.
struct Change {
    who: String,
    by: &'static str,
    /// Whether a page has made it.
    page: bool,
    /// Of a session: its age.
    age: Option<Duration>,
    expected: Option<u64>,
    key: Option<String>,
}

impl Change {
    fn of(caller: &Caller, request: &Request) -> Result<Self, Refusal> {
        let by = by(caller);
        let (headers, query) = (request.headers(), query(request));
        let expected = query.iter().find(|(name, _)| name == "if_generation").map(|(_, value)| {
            value.parse().map_err(|_| {
                let text = format!("if_generation={value}: a generation is a number, such as 7");
                refuse(StatusCode::UNPROCESSABLE_ENTITY, text)
            })
        });
        Ok(Change {
            who: caller.identity().map_or_else(|| "local".to_owned(), |identity| identity.to_string()),
            by,
            page: by == "session" || headers.contains_key(header::ORIGIN),
            age: request.extensions().get::<SessionAge>().map(|age| age.0),
            expected: expected.transpose()?,
            key: key(headers)?,
        })
    }

    /// Refuses what a page must not do. `active` is the generation in force.
    fn check(&self, path: &str, active: u64) -> Result<(), Refusal> {
        if self.page && self.expected.is_none() {
            let text =
                "a page must name the generation of the policy that the change was made for: if_generation=N";
            return Err(refuse(StatusCode::PRECONDITION_REQUIRED, text).code("expected-missing"));
        }
        let applies = matches!(path, "/api/v1/policy" | "/api/v1/policy/rollback");
        if applies && !is_fresh(self.age) {
            let text = format!(
                "the login is older than {} minutes, which is too old for this; log in again: cspctl login --role operator",
                FRESH_LOGIN.as_secs() / 60
            );
            return Err(refuse(StatusCode::FORBIDDEN, text).code("fresh-login"));
        }
        match self.expected {
            Some(expected) if expected != active => {
                let text = format!(
                    "generation {active} is in force, but this was asked for generation {expected}; read it again"
                );
                Err(refuse(StatusCode::CONFLICT, text).code("changed").generation(active))
            }
            _ => Ok(()),
        }
    }
}

/// How the caller is known.
fn by(caller: &Caller) -> &'static str {
    match caller {
        Caller::Local | Caller::Anonymous => "local",
        Caller::Peer(_) => "certificate",
        Caller::Session { .. } => "session",
    }
}

/// Whether a session of this age may apply a policy; callers without a session may.
fn is_fresh(age: Option<Duration>) -> bool {
    age.is_none_or(|age| age < FRESH_LOGIN)
}

/// The key of a request.
fn key(headers: &HeaderMap) -> Result<Option<String>, Refusal> {
    let Some(value) = headers.get(KEY) else { return Ok(None) };
    let text = value.to_str().ok().filter(|text| !text.is_empty() && text.len() <= KEY_LEN_MAX);
    text.map(|text| Some(text.to_owned())).ok_or_else(|| {
        let text = format!("Idempotency-Key: allowed are 1 to {KEY_LEN_MAX} visible characters of ASCII");
        refuse(StatusCode::UNPROCESSABLE_ENTITY, text)
    })
}

async fn change(
    cluster: &Cluster,
    actions: &Arc<Actions>,
    caller: &Caller,
    request: Request,
    next: Next,
) -> Result<Response, Refusal> {
    let change = Change::of(caller, &request)?;
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, POLICY_LEN_MAX).await.map_err(|_| {
        let text = format!("the body is longer than {} MiB, or ended early", POLICY_LEN_MAX >> 20);
        refuse(StatusCode::PAYLOAD_TOO_LARGE, text)
    })?;
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
    let digest = Sha256::new().chain_update(parts.method.as_str()).chain_update([0]).chain_update(target);
    let digest = digest.chain_update([0]).chain_update(&body).finalize().into();
    let active = match &change.expected {
        // What was last read may be half a second old.
        Some(_) => cluster.policy.latest().await.active.map_or(0, |record| record.generation),
        None => cluster.policy.known().active.map_or(0, |record| record.generation),
    };
    // From here on nothing waits before the task that ends the key: a caller that hangs up leaves none
    // behind.
    if let Some(again) = begin(actions, &change, digest)? {
        return Ok(again);
    }
    let from = parts.extensions.get::<RemoteAddress>().map(|from| from.0.to_string()).unwrap_or_default();
    let record = AuditRecord {
        time_ms: unix_now_ms(),
        id: format!("{:x}-{}", actions.run, actions.count.fetch_add(1, Ordering::Relaxed)),
        stage: "asked".to_owned(),
        who: change.who.clone(),
        by: change.by.to_owned(),
        from,
        method: parts.method.to_string(),
        path: what::bounded(parts.uri.path()),
        what: what::of(&parts.method, &parts.uri, &body),
        generation: active,
        key: change.key.clone(),
        ..AuditRecord::default()
    };
    let checked = change.check(parts.uri.path(), active);
    let request = Request::from_parts(parts, Body::from(body));
    // A task of its own: a caller that hangs up does not leave a change without its record.
    let actions = actions.clone();
    let running =
        tokio::spawn(async move { carry_out(&actions, &change, record, checked, request, next).await });
    running.await.map_err(|error| {
        let text = format!("the change has failed: {error}");
        refuse(StatusCode::INTERNAL_SERVER_ERROR, text)
    })
}

/// Looks at the key of a change. Returns the answer if it is known.
fn begin(actions: &Actions, change: &Change, digest: [u8; 32]) -> Result<Option<Response>, Refusal> {
    let Some(key) = &change.key else { return Ok(None) };
    let refused = |status, text: &str, code| Err(refuse(status, text).code(code));
    match actions.keys().begin(&change.who, key, digest, actions.start.elapsed()) {
        Known::First => Ok(None),
        Known::Answered(kept) => Ok(Some(again(kept))),
        Known::Other => {
            let text = "this Idempotency-Key was used for another request; each change has a key of its own";
            refused(StatusCode::UNPROCESSABLE_ENTITY, text, "key-reused")
        }
        Known::UnderWay => {
            let text = "the request with this Idempotency-Key is under way; ask again in a second";
            refused(StatusCode::CONFLICT, text, "in-progress")
        }
        Known::Full => {
            let text = "too many changes are under way; try again in a second";
            refused(StatusCode::SERVICE_UNAVAILABLE, text, "in-progress")
        }
    }
}

fn again(kept: Kept) -> Response {
    let status = StatusCode::from_u16(kept.status).unwrap_or(StatusCode::OK);
    let mut response = (status, kept.body).into_response();
    match kept.kind.parse() {
        Ok(kind) => drop(response.headers_mut().insert(header::CONTENT_TYPE, kind)),
        Err(_) => drop(response.headers_mut().remove(header::CONTENT_TYPE)),
    }
    response
}

/// Records, carries out and records a change, and keeps its answer for its key.
async fn carry_out(
    actions: &Actions,
    change: &Change,
    asked: AuditRecord,
    checked: Result<(), Refusal>,
    request: Request,
    next: Next,
) -> Response {
    let response = match actions.record(asked.clone()).await.and(checked) {
        Ok(()) => next.run(request).await,
        Err(refused) => refused.into_response(),
    };
    let response = if change.page { for_page(response) } else { response };
    let (response, body) = read(response).await;
    let status = response.status();
    let (who, method, path) = (&asked.who, &asked.method, &asked.path);
    tracing::info!(who, method, path, status = status.as_u16(), "a change was asked for");
    let result = match status.is_success() {
        true => "accepted".to_owned(),
        false => what::bounded(&body.as_deref().and_then(reason).unwrap_or_else(|| status.to_string())),
    };
    let done = AuditRecord {
        time_ms: unix_now_ms(),
        stage: "done".to_owned(),
        status: Some(status.as_u16()),
        result: Some(result),
        ..asked
    };
    // The change is made, recorded as asked for, and in the daemon's log.
    let _ = actions.record(done).await;
    if let Some(key) = &change.key {
        // What was refused has changed nothing, and is tried again.
        let lasting = status.is_success();
        let kind = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let (status, kind) = (status.as_u16(), kind.unwrap_or_default().to_owned());
        let kept = body.filter(|_| lasting).map(|body| Kept { status, kind, body: body.to_vec() });
        actions.keys().end(&change.who, key, kept);
    }
    response
}

/// A page cannot follow to another server: its cookie is not valid there.
fn for_page(mut response: Response) -> Response {
    if response.status() == StatusCode::TEMPORARY_REDIRECT {
        *response.status_mut() = StatusCode::CONFLICT;
        response.headers_mut().remove(header::LOCATION);
    }
    response
}

/// Returns the body of a short answer, too.
async fn read(response: Response) -> (Response, Option<Bytes>) {
    let len = response.body().size_hint().exact();
    if len.is_none_or(|len| len > ANSWER_LEN_MAX as u64) {
        return (response, None);
    }
    let (parts, body) = response.into_parts();
    let body = axum::body::to_bytes(body, ANSWER_LEN_MAX).await.unwrap_or_default();
    (Response::from_parts(parts, Body::from(body.clone())), Some(body))
}

/// Why a request was refused.
fn reason(body: &[u8]) -> Option<String> {
    serde_json::from_slice::<ErrorBody>(body).ok().map(|body| body.error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(age_s: u64, expected: Option<u64>) -> Change {
        let (who, age) = ("alice".to_owned(), Some(Duration::from_secs(age_s)));
        Change { who, by: "session", page: true, age, expected, key: None }
    }

    fn status(change: &Change, path: &str) -> u16 {
        change.check(path, 7).map_or_else(|refused| refused.into_response().status().as_u16(), |()| 200)
    }

    #[test]
    fn a_page_names_the_generation_and_applies_with_a_young_login_only() {
        let (drain, apply, back) = ("/api/v1/nodes/pn-1/drain", "/api/v1/policy", "/api/v1/policy/rollback");
        for (change, path, expected) in [
            (page(0, Some(7)), drain, 200),
            (page(0, None), drain, 428),
            (page(0, Some(6)), drain, 409),
            (page(599, Some(7)), apply, 200),
            (page(600, Some(7)), apply, 403),
            (page(600, Some(7)), back, 403),
            (page(600, Some(7)), drain, 200),
            (Change { page: false, age: None, ..page(0, None) }, apply, 200),
            (Change { page: false, age: None, ..page(0, Some(6)) }, back, 409),
        ] {
            assert_eq!(status(&change, path), expected, "{path} {:?} {:?}", change.age, change.expected);
        }
    }
}
