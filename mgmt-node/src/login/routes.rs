//! The routes of logins, and the cookie of sessions.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Extension, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use csp_api::events::What;
use csp_api::mgmt::{LinkRequest, LinkView, LoginRequest, LoginView, RedeemRequest};
use csp_identity::{Access, Caller};
use csp_telemetry::require;
use serde::de::DeserializeOwned;

use super::{LINK_LIFE, LoginError, Logins, SESSION_LIFE};
use crate::events::Hub;
use crate::page_routes::page;
use crate::server::{Refusal, refuse};

/// The session's cookie. Browsers take this prefix only from a secure origin, for the whole host and without
/// a domain.
const COOKIE: &str = "__Host-csp-session";
/// Longest body of a request, in bytes: nobody is asked for a certificate before it is read.
const BODY_LEN_MAX: usize = 1024;

/// Age of the caller's session: an extension of requests that come with one.
#[derive(Clone, Copy, Debug)]
pub struct SessionAge(pub Duration);

/// The page and the API of logins. They decide by themselves who may use them.
pub fn routes(logins: Arc<Logins>) -> Router {
    Router::new()
        .route(
            "/login",
            get(|| async { page("text/html; charset=utf-8", include_str!("../../web/login.html")) }),
        )
        .route(
            "/login.js",
            get(|| async { page("text/javascript; charset=utf-8", include_str!("../../web/login.js")) }),
        )
        .route("/api/v1/login", post(login).delete(logout))
        .route("/api/v1/login/link", post(look))
        .route("/api/v1/login/redeem", post(redeem))
        .layer(DefaultBodyLimit::max(BODY_LEN_MAX))
        .with_state(logins)
}

/// Puts the session's holder in place of a caller without a certificate.
pub async fn sessions(State(logins): State<Arc<Logins>>, mut request: Request, next: Next) -> Response {
    let anonymous = matches!(request.extensions().get(), Some(Caller::Anonymous));
    let secret = anonymous.then(|| cookie(request.headers())).flatten();
    if let Some((caller, age)) = secret.and_then(|secret| logins.session(secret)) {
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        // Browsers always state it; the guard has compared it with this server's own.
        if !reads && !request.headers().contains_key(header::ORIGIN) {
            return refuse(
                StatusCode::FORBIDDEN,
                "a session's change must come from a page: Origin is missing",
            )
            .into_response();
        }
        request.extensions_mut().insert(caller);
        request.extensions_mut().insert(SessionAge(age));
    }
    next.run(request).await
}

/// `POST /api/v1/login`: the secret of a link, for the holder of a certificate.
async fn login(
    State(logins): State<Arc<Logins>>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Result<Response, Refusal> {
    let asked: LoginRequest = parse(&body)?;
    let access = match asked.role.as_str() {
        "viewer" => Access::Viewer,
        "operator" => Access::Operator,
        other => {
            let text = format!("role {other:?}: a session's role is viewer or operator");
            return Err(refuse(StatusCode::UNPROCESSABLE_ENTITY, text));
        }
    };
    require(&caller, access).map_err(|refused| refuse(refused.status, refused.error))?;
    let secret = logins.link(&caller, access).map_err(|error| {
        let status = match error {
            LoginError::NotNeeded => StatusCode::CONFLICT,
            LoginError::Session | LoginError::NoPerson(_) => StatusCode::FORBIDDEN,
            LoginError::Full => StatusCode::SERVICE_UNAVAILABLE,
        };
        refuse(status, error.to_string())
    })?;
    let view = LoginView {
        path: format!("/login#{secret}"),
        role: access.as_str().to_owned(),
        expires_in_s: LINK_LIFE.as_secs(),
    };
    Ok(([(header::CACHE_CONTROL, "no-store")], Json(view)).into_response())
}

/// What is said of a link that opens no session.
fn no_link() -> Refusal {
    let text = "the link was used already, is older than a minute, or its owner's certificate has ended; run `cspctl login` again";
    refuse(StatusCode::UNAUTHORIZED, text)
}

/// `POST /api/v1/login/link`: whose link it is. The link stays as it is.
async fn look(State(logins): State<Arc<Logins>>, body: Bytes) -> Result<Response, Refusal> {
    let asked: LinkRequest = parse(&body)?;
    let grant = logins.look(&asked.token).ok_or_else(no_link)?;
    let (identity, role) = (grant.issuer.identity.to_string(), grant.access.as_str().to_owned());
    Ok(([(header::CACHE_CONTROL, "no-store")], Json(LinkView { identity, role })).into_response())
}

/// `POST /api/v1/login/redeem`: the link's secret for a session's cookie. 204.
async fn redeem(
    State(logins): State<Arc<Logins>>,
    Extension(hub): Extension<Arc<Hub>>,
    body: Bytes,
) -> Result<Response, Refusal> {
    let asked: RedeemRequest = parse(&body)?;
    let (secret, grant) = logins.redeem(&asked.token, &asked.identity).ok_or_else(no_link)?;
    let (who, access) = (grant.issuer.identity.to_string().into(), grant.access.as_str().into());
    hub.record(&What::LoggedIn { who, access });
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, set_cookie(&secret, SESSION_LIFE.as_secs()))])
        .into_response())
}

/// `DELETE /api/v1/login`: ends the session of the caller. 204, also when there is none.
async fn logout(State(logins): State<Arc<Logins>>, headers: HeaderMap) -> Response {
    if let Some(secret) = cookie(&headers) {
        logins.end(secret);
    }
    (StatusCode::NO_CONTENT, [(header::SET_COOKIE, set_cookie("", 0))]).into_response()
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body)
        .map_err(|error| refuse(StatusCode::BAD_REQUEST, format!("the body: {error}")))
}

fn set_cookie(value: &str, age_s: u64) -> String {
    format!("{COOKIE}={value}; Path=/; Max-Age={age_s}; HttpOnly; Secure; SameSite=Strict")
}

/// Returns the session's secret of a request (RFC 6265 §5.4).
fn cookie(headers: &HeaderMap) -> Option<&str> {
    let lines = headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
    let pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.into_iter().find_map(|(name, value)| (name == COOKIE).then_some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cookie_is_found_among_others() {
        for (lines, expected) in [
            (vec!["__Host-csp-session=ab"], Some("ab")),
            (vec!["theme=dark; __Host-csp-session=ab; x=y"], Some("ab")),
            (vec!["theme=dark", "__Host-csp-session=ab"], Some("ab")),
            (vec!["x__Host-csp-session=ab; csp-session=ab; __Host-csp-session"], None),
            (vec![""], None),
        ] {
            let headers = lines.iter().map(|line| (header::COOKIE, line.parse().unwrap())).collect();
            assert_eq!(cookie(&headers), expected, "{lines:?}");
        }
    }
}
