//! The connections of the admin endpoint: accepted within bounds, each served in a task of its own.

use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::Limits;

/// Time between two attempts to accept after one failed, as with too many open files.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// How long a connection that is too old may take to end.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// Connections by the address they came from.
#[derive(Clone, Default)]
struct Open(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// A connection's place among those that are open.
struct Place(Open, IpAddr);

impl Open {
    fn table(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a connection from `address`; `None` where it has all it may have, or all are taken.
    fn enter(&self, address: IpAddr, limits: &Limits) -> Option<Place> {
        let mut table = self.table();
        let (all, own) = (table.values().sum::<usize>(), table.get(&address).copied().unwrap_or(0));
        if all >= limits.connections || own >= limits.connections_of_address {
            return None;
        }
        table.insert(address, own + 1);
        Some(Place(self.clone(), address))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut table = self.0.table();
        match table.get_mut(&self.1) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(table.remove(&self.1)),
        }
    }
}

/// Serves until `ended`, then waits for the requests under way.
pub(super) async fn serve(
    listener: TcpListener,
    service: Router,
    limits: Limits,
    ended: impl Future<Output = ()>,
) {
    let (open, mut tasks) = (Open::default(), JoinSet::new());
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
                if let Some(place) = open.enter(from.ip(), &limits) {
                    tasks.spawn(converse(stream, place, service.clone(), limits, stopped.clone()));
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

/// Serves one connection until its peer, its age or the endpoint ends it.
async fn converse(
    stream: TcpStream,
    _place: Place,
    service: Router,
    limits: Limits,
    mut stopped: watch::Receiver<bool>,
) {
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    let mut served = pin!(served);
    tokio::select! {
        // A peer that breaks off or does not speak HTTP is no event for the log.
        _ = served.as_mut() => return,
        () = tokio::time::sleep(limits.connection) => {}
        _ = stopped.wait_for(|stop| *stop) => {}
    }
    served.as_mut().graceful_shutdown();
    let _ = tokio::time::timeout(LAST_WORDS, served).await; // cut off then
}
