//! What a request must look like before it reaches the API: protection of operators whose browser shows a
//! stranger's page.
//!
//! A browser may have an operator's session, its cookie or a certificate, and a page of another origin in
//! that browser reaches the API too. Browsers let such a page send simple requests without asking first
//! (Fetch §3.2), so:
//!
//! - `Host` is an IP address, `localhost` or a configured name: a name that a stranger's DNS server points
//!   here (rebinding) is none of them;
//! - `Origin`, where a browser sends it, is this server's own, with its scheme: a page of the same host that
//!   came by http, where this server speaks https, may be anybody's on the way;
//! - a body is `application/yaml`, `application/json` or `application/wasm`, which a page of another origin
//!   cannot send without a preflight request, and preflights are not granted.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use csp_api::mgmt::ErrorBody;

/// What requests are compared with.
#[derive(Clone, Debug)]
pub struct Guarded {
    /// The names by which this node may be addressed, beside its addresses.
    pub names: Arc<[String]>,
    /// `https` if this node has an identity, else `http`.
    pub scheme: &'static str,
}

/// Passes a request on if it is none that a stranger's page has made.
pub async fn guard(State(guarded): State<Guarded>, request: Request, next: Next) -> Response {
    match check(&guarded, request.method(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err((status, error)) => (status, Json(ErrorBody { error, ..ErrorBody::default() })).into_response(),
    }
}

fn check(guarded: &Guarded, method: &Method, headers: &HeaderMap) -> Result<(), (StatusCode, String)> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("(not text)"));
    let host = text(header::HOST).unwrap_or_default();
    if !is_known(&guarded.names, host) {
        let error = format!(
            "Host {host:?} is not known; allowed are addresses, localhost and `names` of the configuration"
        );
        return Err((StatusCode::MISDIRECTED_REQUEST, error));
    }
    if let Some(origin) = text(header::ORIGIN)
        && origin.split_once("://") != Some((guarded.scheme, host))
    {
        return Err((StatusCode::FORBIDDEN, format!("a page of {origin} may not use this API")));
    }
    let kind = text(header::CONTENT_TYPE).and_then(|kind| kind.split(';').next()).unwrap_or_default().trim();
    if method == Method::POST && !matches!(kind, "application/yaml" | "application/json" | "application/wasm")
    {
        let error = format!(
            "Content-Type {kind:?}; allowed are application/yaml, application/json and application/wasm"
        );
        return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, error));
    }
    Ok(())
}

/// Returns whether `host`, with or without a port, names this server.
fn is_known(names: &[String], host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    let known = || names.iter().map(String::as_str).chain(["localhost"]);
    name.parse::<IpAddr>().is_ok() || known().any(|known| known.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the status with which a request is refused; 200 if it is not.
    fn status(method: &Method, headers: &[(header::HeaderName, &str)]) -> u16 {
        status_of("http", method, headers)
    }

    fn status_of(scheme: &'static str, method: &Method, headers: &[(header::HeaderName, &str)]) -> u16 {
        let guarded = Guarded { names: ["csp.example.org".to_owned()].into(), scheme };
        let headers = headers.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect();
        check(&guarded, method, &headers).map_or_else(|(status, _)| status.as_u16(), |()| 200)
    }

    #[test]
    fn only_the_nodes_own_names_are_served() {
        for (host, expected) in [
            ("10.77.0.4:9104", 200),
            ("[2001:db8::4]:9104", 200),
            ("[2001:db8::4]", 200),
            ("localhost:9104", 200),
            ("CSP.example.org", 200),
            ("csp.example.org:9104", 200),
            ("rebound.example.net:9104", 421),
            ("csp.example.org.example.net", 421),
            ("", 421),
        ] {
            assert_eq!(status(&Method::GET, &[(header::HOST, host)]), expected, "{host}");
        }
        assert_eq!(status(&Method::GET, &[]), 421);
    }

    #[test]
    fn a_strangers_page_is_refused() {
        let host = (header::HOST, "10.77.0.4:9104");
        let yaml = (header::CONTENT_TYPE, "application/yaml; charset=utf-8");
        let origin = |of| (header::ORIGIN, of);
        for (method, headers, expected) in [
            // cspctl.
            (Method::POST, vec![host.clone(), yaml.clone()], 200),
            (Method::POST, vec![host.clone(), (header::CONTENT_TYPE, "application/wasm")], 200),
            (Method::DELETE, vec![host.clone()], 200),
            // The node's own page.
            (Method::GET, vec![host.clone(), origin("http://10.77.0.4:9104")], 200),
            // What a page may send without asking: a form, plain text.
            (Method::POST, vec![host.clone(), (header::CONTENT_TYPE, "text/plain")], 415),
            (
                Method::POST,
                vec![host.clone(), (header::CONTENT_TYPE, "multipart/form-data; boundary=x")],
                415,
            ),
            (Method::POST, vec![host.clone()], 415),
            (Method::POST, vec![host.clone(), yaml, origin("http://example.net")], 403),
            (Method::PUT, vec![host.clone(), origin("http://10.77.0.4")], 403),
            (Method::GET, vec![host, origin("null")], 403),
        ] {
            assert_eq!(status(&method, &headers), expected, "{method} {headers:?}");
        }
    }

    #[test]
    fn a_page_that_came_by_another_scheme_is_refused() {
        let host = "10.77.0.4:9104";
        for (scheme, origin, expected) in [
            ("https", "https://10.77.0.4:9104", 200),
            ("https", "http://10.77.0.4:9104", 403),
            ("http", "https://10.77.0.4:9104", 403),
            ("http", "ftp://10.77.0.4:9104", 403),
            ("https", "10.77.0.4:9104", 403),
        ] {
            let headers = [(header::HOST, host), (header::ORIGIN, origin)];
            assert_eq!(status_of(scheme, &Method::PUT, &headers), expected, "{scheme} {origin}");
        }
    }
}
