//! Answers that several pages share. A page that asks with `Cache-Control: max-age=N` (RFC 9111 §5.2.1.1)
//! gets an answer that is at most so old; whoever asks without gets a new one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::sync::Mutex;

/// What is shared: answers that are the same for all who may look, and cost questions to many nodes.
const SHARED: [&str; 7] = [
    "/api/v1/nodes",
    "/api/v1/vip-groups",
    "/api/v1/quality",
    "/api/v1/contexts",
    "/api/v1/handlers",
    "/api/v1/plugins",
    "/api/v1/topology",
];
/// Longest answer that is shared, in bytes.
const LEN_MAX: usize = 8 << 20;
/// Oldest answer that is given, whatever the page allows.
const AGE_MAX: Duration = Duration::from_secs(10);

/// The answers, by path.
#[derive(Clone, Debug)]
pub struct Answers(Arc<BTreeMap<&'static str, Mutex<Option<Kept>>>>);

#[derive(Clone, Debug)]
struct Kept {
    /// When its nodes were asked, and when they had answered.
    at: Instant,
    done: Instant,
    kind: HeaderValue,
    body: Bytes,
}

impl Default for Answers {
    fn default() -> Self {
        Answers(Arc::new(SHARED.into_iter().map(|path| (path, Mutex::default())).collect()))
    }
}

/// Gives a kept answer, or keeps the new one. Requests that come meanwhile wait for it.
pub async fn shared(State(answers): State<Answers>, request: Request, next: Next) -> Response {
    let place = match (request.method(), request.uri().query()) {
        (&Method::GET, None) => answers.0.get(request.uri().path()),
        _ => None,
    };
    let (Some(place), Some(age)) = (place, max_age(request.headers())) else {
        return next.run(request).await;
    };
    let asked = Instant::now();
    let mut place = place.lock().await;
    // What others were given while this one waited is new enough, however long a node took that is dead.
    let is_new = |kept: &&Kept| kept.done >= asked || kept.at.elapsed() < age.min(AGE_MAX);
    if let Some(kept) = place.as_ref().filter(is_new) {
        return ([(header::CONTENT_TYPE, kept.kind.clone())], kept.body.clone()).into_response();
    }
    let (at, response) = (Instant::now(), next.run(request).await);
    let kind = response.headers().get(header::CONTENT_TYPE).cloned();
    let (StatusCode::OK, Some(kind)) = (response.status(), kind) else { return response };
    let (parts, body) = response.into_parts();
    match axum::body::to_bytes(body, LEN_MAX).await {
        Ok(body) => {
            *place = Some(Kept { at, done: Instant::now(), kind, body: body.clone() });
            Response::from_parts(parts, Body::from(body))
        }
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn max_age(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(header::CACHE_CONTROL)?.to_str().ok()?;
    let seconds = text.split(',').find_map(|part| part.trim().strip_prefix("max-age="))?;
    seconds.parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_read_from_the_header() {
        for (text, expected) in [
            ("max-age=1", Some(Duration::from_secs(1))),
            ("no-transform, max-age=20", Some(Duration::from_secs(20))),
            ("no-cache", None),
            ("max-age=x", None),
        ] {
            let headers = HeaderMap::from_iter([(header::CACHE_CONTROL, HeaderValue::from_static(text))]);
            assert_eq!(max_age(&headers), expected, "{text}");
        }
    }
}
