//! The HTTP endpoint of every daemon: `/metrics`, `/healthz`, `/readyz`, `/v1/node` and what the daemon adds.
//!
//! Anybody who reaches the address may connect. So connections, the time a request takes and the length of its body are
//! bounded ([`Limits`]); what exceeds a bound is closed. A daemon with an identity serves by mutual TLS: everybody may ask
//! whether it is alive and ready, viewers see the rest. Every request has its [`Caller`] as an extension.

mod access;
mod connections;
mod tls;

use std::net::SocketAddr;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Extension, State};
use axum::http::{StatusCode, header};
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

/// Why the admin endpoint does not serve.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The address cannot be listened on.
    #[error("admin.listen: cannot listen on {address}: {source}")]
    Bind {
        /// The configured address.
        address: SocketAddr,
        /// The system's reason.
        source: std::io::Error,
    },
}

/// What a peer of the admin endpoint may take.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Connections at once.
    connections: usize,
    /// Of these, from one address.
    connections_of_address: usize,
    /// Time until a request's head is complete, also until the next one's on a connection that is kept.
    head: Duration,
    /// Time until a request is answered, its body included. Longer than any wait that a client may ask for.
    request: Duration,
    /// Age at which a connection ends after the request under way: a client that does not read its answer holds it no
    /// longer.
    connection: Duration,
    /// Bytes of a request's body.
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
    /// For `/metrics`.
    pub metrics: Exposition,
    /// For `/readyz`.
    pub readiness: Readiness,
    /// For `/v1/node`: the node's registration (`csp_control::NodeRecord`).
    pub node: Value,
    /// The daemon's own routes, for viewers.
    pub routes: Router,
    /// Routes that decide by themselves who may use them, by the [`Caller`].
    pub guarded: Router,
    /// This daemon's identity. Without one it serves plain HTTP, and everybody who reaches it may do everything.
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
    /// Listens on `listen` and serves in the background until [`AdminServer::shutdown`]. Must run inside tokio.
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
        let door = tls::Door::new(options.credentials.clone(), limits.head);
        let service = router(options, limits);
        let task = tokio::spawn(async move {
            let ended = async move { drop(stopped.wait_for(|stop| *stop).await) };
            connections::serve(listener, service, door, limits, ended).await;
        });
        Ok(AdminServer { address, stop, task })
    }

    /// The address that is listened on (with the real port where port 0 was asked for).
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops accepting, lets running requests end for at most two seconds, then cuts them off.
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
    let for_viewers = Router::new()
        .route("/metrics", get(render_metrics).with_state(metrics))
        .route("/v1/node", get(|| async move { Json(node) }))
        .merge(routes)
        .layer(axum::middleware::from_fn(access::viewers));
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(render_readiness).with_state(readiness))
        .merge(for_viewers)
        .merge(guarded)
        // A route that takes more says so with a limit of its own.
        .layer(DefaultBodyLimit::max(limits.body_len))
        .layer(axum::middleware::from_fn(move |request, next: axum::middleware::Next| async move {
            let answered = tokio::time::timeout(limits.request, next.run(request)).await;
            answered.unwrap_or_else(|_| StatusCode::REQUEST_TIMEOUT.into_response())
        }))
}

async fn render_metrics(State(metrics): State<Exposition>) -> Response {
    ([(header::CONTENT_TYPE, Exposition::CONTENT_TYPE)], metrics.render()).into_response()
}

/// Everybody may know whether the daemon is ready, viewers also why.
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
