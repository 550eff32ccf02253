//! The HTTP endpoint of every daemon: `/metrics`, `/healthz`, `/readyz`, `/v1/node` and what the daemon adds.

use std::net::SocketAddr;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
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

/// What an admin endpoint serves.
#[derive(Clone, Debug, Default)]
pub struct AdminOptions {
    /// For `/metrics`.
    pub metrics: Exposition,
    /// For `/readyz`.
    pub readiness: Readiness,
    /// For `/v1/node`: the node's registration (`csp_control::NodeRecord`).
    pub node: Value,
    /// The daemon's own routes.
    pub routes: Router,
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
    pub async fn start(listen: SocketAddr, options: AdminOptions) -> Result<AdminServer, AdminError> {
        let bound = TcpListener::bind(listen).await;
        let listener = bound.map_err(|source| AdminError::Bind { address: listen, source })?;
        let address = listener.local_addr().map_err(|source| AdminError::Bind { address: listen, source })?;
        let (stop, mut stopped) = watch::channel(false);
        let service = router(options);
        let task = tokio::spawn(async move {
            let ended = async move { drop(stopped.wait_for(|stop| *stop).await) };
            let served = axum::serve(listener, service).with_graceful_shutdown(ended).await;
            if let Err(error) = served {
                tracing::error!(%error, "the admin endpoint stopped");
            }
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
        if tokio::time::timeout(std::time::Duration::from_secs(2), self.task).await.is_err() {
            abort.abort();
        }
    }
}

fn router(options: AdminOptions) -> Router {
    let AdminOptions { metrics, readiness, node, routes } = options;
    Router::new()
        .route("/metrics", get(render_metrics).with_state(metrics))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(render_readiness).with_state(readiness))
        .route("/v1/node", get(|| async move { Json(node) }))
        .merge(routes)
}

async fn render_metrics(State(metrics): State<Exposition>) -> Response {
    ([(header::CONTENT_TYPE, Exposition::CONTENT_TYPE)], metrics.render()).into_response()
}

async fn render_readiness(State(readiness): State<Readiness>) -> Response {
    let body = readiness.body();
    let status = if body.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(body)).into_response()
}

#[cfg(test)]
mod tests;
