//! The connections of the admin endpoint: accepted within bounds, each served in a task of its own.

use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::time::Duration;

use axum::{Extension, Router};
use csp_identity::Caller;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::Limits;
use super::RemoteAddress;
use super::tls::{Accepted, Acceptor};
use crate::shares::{Place, Shares};

/// Delay before accepting again after accept(2) failed, for instance with EMFILE.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// Time that a connection beyond its age limit has to finish.
const END_MAX: Duration = Duration::from_secs(10);

/// Serves connections until `ended` resolves, then waits for the requests in progress.
pub(super) async fn serve(
    listener: TcpListener,
    service: Router,
    acceptor: Acceptor,
    limits: Limits,
    ended: impl Future<Output = ()>,
) {
    let places = Shares::new(limits.connections_of_address, limits.connections);
    let mut tasks = JoinSet::new();
    let (stop, stopped) = watch::channel(false);
    let mut ended = pin!(ended);
    loop {
        let accepted = tokio::select! {
            () = &mut ended => break,
            accepted = listener.accept() => accepted,
            Some(_) = tasks.join_next() => continue,
        };
        match accepted {
            Ok((stream, from)) => {
                if let Some(place) = places.enter(from.ip()) {
                    tasks.spawn(serve_one(
                        (stream, from),
                        place,
                        service.clone(),
                        acceptor.clone(),
                        limits,
                        stopped.clone(),
                    ));
                }
            }
            Err(error) => {
                tracing::warn!(%error, "the admin endpoint could not accept a connection");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
    drop(listener);
    let _ = stop.send(true); // without connections nobody receives it
    while tasks.join_next().await.is_some() {}
}

/// Serves one connection until the client closes it, its age limit passes or the endpoint stops.
async fn serve_one(
    (stream, from): (TcpStream, SocketAddr),
    _place: Place<IpAddr>,
    service: Router,
    acceptor: Acceptor,
    limits: Limits,
    mut stopped: watch::Receiver<bool>,
) {
    let entered = tokio::select! {
        entered = acceptor.accept(stream) => entered,
        _ = stopped.wait_for(|stop| *stop) => None,
    };
    let Some(Accepted { stream, caller }) = entered else { return };
    // A client without a certificate gets a shorter age limit: few routes are open to it.
    let age = if matches!(caller, Caller::Anonymous) { limits.head } else { limits.connection };
    let service = service.layer(Extension(caller.clone())).layer(Extension(RemoteAddress(from)));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    let mut served = pin!(served);
    tokio::select! {
        // A client that disconnects or does not speak HTTP is not logged.
        _ = served.as_mut() => return,
        // The certificate is no longer valid: the connection is closed at once, also during a request.
        () = acceptor.revoked(&caller) => return,
        () = tokio::time::sleep(age) => {}
        _ = stopped.wait_for(|stop| *stop) => {}
    }
    served.as_mut().graceful_shutdown();
    let _ = tokio::time::timeout(END_MAX, served).await; // cut off then
}
