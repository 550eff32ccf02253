//! The HTTP endpoint of every daemon: `/metrics`, `/healthz`, `/readyz`, `/in-service`, `/v1/node` and the
//! daemon's own routes.
//!
//! Anyone who reaches the address may connect. Therefore the number of connections, the duration of a request
//! and the length of its body are bounded ([`Limits`]); a connection that exceeds a bound is closed. A daemon
//! with an identity serves over mutual TLS: liveness, readiness and service are public, the rest requires the
//! viewer role. Every request carries its [`Caller`] and [`RemoteAddress`] as extensions.

mod access;
mod connections;
mod tls;

use std::net::SocketAddr;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Extension, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use csp_identity::{Access, Caller, Credentials};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::metrics::Exposition;
use crate::readiness::Readiness;

/// Media type by which a client asks for OpenMetrics.
const OPEN_METRICS: &str = "application/openmetrics-text";

/// Why the admin endpoint cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The address cannot be bound.
    #[error("admin.listen: cannot listen on {address}: {source}")]
    Bind {
        /// The configured address.
        address: SocketAddr,
        /// The system's reason.
        source: std::io::Error,
    },
}

/// Address of the client of a request: an extension of every request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteAddress(pub SocketAddr);

/// Bounds on what clients of the admin endpoint may use.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Concurrent connections.
    connections: usize,
    /// Concurrent connections from one address.
    connections_of_address: usize,
    /// Timeout for the head of a request, also for the next one on a persistent connection.
    head: Duration,
    /// Timeout for the answer to a request, including its body. It is longer than any wait that a client can
    /// request.
    request: Duration,
    /// Age at which a connection is closed after the request in progress, so that a client that does not read
    /// its answer cannot keep it open.
    connection: Duration,
    /// Largest body of a request, in bytes.
    body_len: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 256,
            connections_of_address: 128,
            head: Duration::from_secs(10),
            request: Duration::from_secs(90),
            connection: Duration::from_secs(300),
            body_len: 64 * 1024,
        }
    }
}

/// What an admin endpoint serves.
#[derive(Clone, Debug, Default)]
pub struct AdminOptions {
    /// Metrics, served at `/metrics`.
    pub metrics: Exposition,
    /// Conditions, served at `/readyz`; whether the node is in service, at `/in-service`.
    pub readiness: Readiness,
    /// The node's registration (`csp_control::NodeRecord`), served at `/v1/node`.
    pub node: Value,
    /// The daemon's own routes. They require the viewer role.
    pub routes: Router,
    /// Routes that check the [`Caller`]'s access themselves.
    pub guarded: Router,
    /// This daemon's identity. Without one the endpoint serves plain HTTP and authorises every client for
    /// everything.
    pub credentials: Option<Credentials>,
}

/// A running admin endpoint.
#[derive(Debug)]
pub struct AdminServer {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl AdminServer {
    /// Listens on `listen` and serves in the background until [`AdminServer::shutdown`]. Requires a tokio
    /// runtime.
    pub fn start(
        listen: SocketAddr,
        options: AdminOptions,
    ) -> BoxFuture<'static, Result<AdminServer, AdminError>> {
        Self::start_limited(listen, options, Limits::default()).boxed()
    }

    async fn start_limited(
        listen: SocketAddr,
        options: AdminOptions,
        limits: Limits,
    ) -> Result<AdminServer, AdminError> {
        let bound = TcpListener::bind(listen).await;
        let listener = bound.map_err(|source| AdminError::Bind { address: listen, source })?;
        let address = listener.local_addr().map_err(|source| AdminError::Bind { address: listen, source })?;
        let (stop, mut stopped) = watch::channel(false);
        let acceptor = tls::Acceptor::new(options.credentials.clone(), limits.head);
        let service = router(options, limits);
        let task = tokio::spawn(async move {
            let ended = async move { drop(stopped.wait_for(|stop| *stop).await) };
            connections::serve(listener, service, acceptor, limits, ended).await;
        });
        Ok(AdminServer { address, stop, task })
    }

    /// Returns the address that the server listens on, with the actual port if port 0 was configured.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops accepting connections, waits at most two seconds for requests in progress, then aborts them.
    pub async fn shutdown(self) {
        let _ = self.stop.send(true);
        let abort = self.task.abort_handle();
        if tokio::time::timeout(Duration::from_secs(2), self.task).await.is_err() {
            abort.abort();
        }
    }
}

fn router(options: AdminOptions, limits: Limits) -> Router {
    let AdminOptions { metrics, readiness, node, routes, guarded, .. } = options;
    let asked = readiness.clone();
    let in_service = move || async move {
        match asked.in_service() {
            true => (StatusCode::OK, "yes\n"),
            false => (StatusCode::SERVICE_UNAVAILABLE, "no\n"),
        }
    };
    let for_viewers = Router::new()
        .route("/metrics", get(render_metrics).with_state(metrics))
        .route("/v1/node", get(|| async move { Json(node) }))
        .merge(routes)
        .layer(axum::middleware::from_fn(access::viewers));
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(render_readiness).with_state(readiness))
        .route("/in-service", get(in_service))
        .merge(for_viewers)
        .merge(guarded)
        // A route that accepts larger bodies sets its own limit.
        .layer(DefaultBodyLimit::max(limits.body_len))
        .layer(axum::middleware::from_fn(move |request, next: axum::middleware::Next| async move {
            let answered = tokio::time::timeout(limits.request, next.run(request)).await;
            answered.unwrap_or_else(|_| StatusCode::REQUEST_TIMEOUT.into_response())
        }))
}

/// Serves `/metrics`: OpenMetrics where the client accepts it, as Prometheus does; else the text format.
async fn render_metrics(State(metrics): State<Exposition>, headers: HeaderMap) -> Response {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|accept| accept.to_str().ok());
    let (kind, text) = match accepted.into_iter().any(|accept| accept.contains(OPEN_METRICS)) {
        true => (Exposition::CONTENT_TYPE, metrics.render()),
        false => (Exposition::TEXT_CONTENT_TYPE, metrics.render_text()),
    };
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

/// Serves `/readyz`: everyone learns whether the daemon is ready, viewers also the reasons.
async fn render_readiness(
    State(readiness): State<Readiness>,
    Extension(caller): Extension<Caller>,
) -> Response {
    let mut body = readiness.body();
    let status = if body.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    if !caller.may(Access::Viewer) {
        body.conditions.clear();
    }
    (status, Json(body)).into_response()
}

pub use access::{Refused, require};

#[cfg(test)]
mod tests;
