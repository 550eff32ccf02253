//! The agent's routes on the admin endpoint: processes, proxies, sockets, flows, traces; and its metrics.
//!
//! The agent's thread owns the table of processes; requests are sent to it as closures.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use csp_api::app::{AcceptQueue, Process, Proxy, Socket};
use csp_api::{RecentFlow, TraceEntry};
use csp_app::{errno, options};
use csp_daemon::query::{Label, Limit};
use csp_telemetry::{Exposition, MetricWriter};
use csp_types::{TraceEvent, TraceKind};
use csp_wire::agent::page::{COUNTER_NAMES, Reason, SocketEntry, SocketKind};
use serde::Serialize;
use tokio::sync::{mpsc, oneshot, watch};

use crate::agent::processes::{Refusal, is_gauge};
use crate::agent::{Directory, PageCopy, ProcessInfo, Processes, ProxyEntry};

/// Largest number of queued requests.
const QUESTIONS_MAX: usize = 64;
const SNAPSHOT_INTERVAL: Duration = Duration::from_millis(500);

/// A request to the agent's thread: the closure computes the answer and sends it.
pub struct Question(Box<dyn FnOnce(&Processes) + Send>);

/// The requests that the agent's thread answers.
pub struct Questions {
    receiver: mpsc::Receiver<Question>,
    snapshot: Arc<Mutex<Snapshot>>,
}

/// The values for metrics, copied at intervals.
#[derive(Clone, Default)]
struct Snapshot {
    /// In the order of [`COUNTER_NAMES`].
    totals: Vec<u64>,
    processes: (usize, usize),
    attached: u64,
    refused: BTreeMap<Refusal, u64>,
}

#[derive(Clone)]
struct AdminState {
    node: String,
    sender: mpsc::Sender<Question>,
    directory: watch::Receiver<Directory>,
}

/// Returns the routes, and the receiver of their requests. Registers the agent's metrics.
pub fn routes(
    node: String,
    metrics: &Exposition,
    directory: watch::Receiver<Directory>,
) -> (Router, Questions) {
    let (sender, receiver) = mpsc::channel(QUESTIONS_MAX);
    let nothing = Snapshot { totals: vec![0; COUNTER_NAMES.len()], ..Snapshot::default() };
    let snapshot = Arc::new(Mutex::new(nothing));
    let shown = snapshot.clone();
    metrics.register(move |out: &mut MetricWriter| {
        expose(out, &shown.lock().unwrap_or_else(PoisonError::into_inner).clone());
    });
    let routes = Router::new()
        .route("/v1/processes", get(processes))
        .route("/v1/proxies", get(proxies))
        .route("/v1/sockets", get(sockets))
        .route("/v1/flows", get(flows))
        .route("/v1/trace", get(trace))
        .route("/v1/trace/recent", get(recent))
        .with_state(AdminState { node, sender, directory });
    (routes, Questions { receiver, snapshot })
}

/// Answers requests until the routes are dropped. Runs on the agent's thread.
pub async fn answer(mut questions: Questions, processes: Rc<RefCell<Processes>>) {
    let mut ticks = tokio::time::interval(SNAPSHOT_INTERVAL);
    loop {
        tokio::select! {
            question = questions.receiver.recv() => {
                let Some(Question(ask)) = question else { return };
                ask(&processes.borrow());
            }
            _ = ticks.tick() => {
                let table = processes.borrow();
                let snapshot = Snapshot {
                    totals: table.totals().to_vec(),
                    processes: table.occupancy(),
                    attached: table.attached_total,
                    refused: table.refused.clone(),
                };
                *questions.snapshot.lock().unwrap_or_else(PoisonError::into_inner) = snapshot;
            }
        }
    }
}

fn expose(out: &mut MetricWriter, snapshot: &Snapshot) {
    out.table("processes", snapshot.processes.0, snapshot.processes.1);
    out.counter("csp_agent_attached_total", "Processes that attached", &[], snapshot.attached);
    for reason in Refusal::ALL {
        let count = snapshot.refused.get(&reason).copied().unwrap_or(0);
        let help = "Processes that were refused, by reason";
        out.counter("csp_agent_refused_total", help, &[("reason", reason.as_str())], count);
    }
    for (name, value) in COUNTER_NAMES.iter().zip(snapshot.totals.iter().copied()) {
        let words = name.replace('_', " ");
        let help = format!("Socket filter, all processes of this host: {words}");
        if is_gauge(name) {
            let name = format!("csp_application_{}", name.trim_end_matches("_now"));
            out.gauge(&name, &help, &[], value as f64);
        } else {
            out.counter(&format!("csp_application_{name}_total"), &help, &[], value);
        }
    }
}

impl AdminState {
    async fn ask<T: Serialize + Send + 'static>(
        &self,
        ask: impl FnOnce(&Processes) -> T + Send + 'static,
    ) -> Response {
        let (reply, answer) = oneshot::channel();
        // A client that has disconnected does not receive the answer.
        let question = Question(Box::new(move |table| drop(reply.send(ask(table)))));
        if self.sender.try_send(question).is_err() {
            return (StatusCode::SERVICE_UNAVAILABLE, "too many questions at once\n").into_response();
        }
        match answer.await {
            Ok(value) => Json(value).into_response(),
            Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "the agent is stopping\n").into_response(),
        }
    }
}

async fn processes(State(state): State<AdminState>) -> Response {
    state.ask(|table| table.pages().iter().map(of_process).collect::<Vec<Process>>()).await
}

/// Returns the proxy workers that processes of this host can reach, and what carries their channels.
async fn proxies(State(state): State<AdminState>) -> Json<Vec<Proxy>> {
    let entry = |proxy: &ProxyEntry| Proxy {
        proxy: proxy.node.as_str().into(),
        worker: proxy.worker.into(),
        socket: (&proxy.path).into(),
        provider: proxy.provider.into(),
        address: (&proxy.address).into(),
        direct: proxy.direct,
    };
    Json(state.directory.borrow().proxies.iter().map(entry).collect())
}

fn of_process((info, page): &(ProcessInfo, PageCopy)) -> Process {
    Process {
        process: (&info.id).into(),
        pid: info.pid,
        uid: info.uid,
        program: info.program.to_string().into(),
        attached_unix_ms: info.attached_unix_ms,
        exited_unix_ms: info.exited_unix_ms,
        counters: COUNTER_NAMES.iter().map(|name| (*name).into()).zip(page.counters()).collect(),
    }
}

fn of_socket(info: &ProcessInfo, socket: &SocketEntry) -> Socket {
    let error_name = |error: u16| match errno::name(error.into()) {
        Some(name) => name.into(),
        None => error.to_string().into(),
    };
    Socket {
        process: (&info.id).into(),
        pid: info.pid,
        program: info.program.to_string().into(),
        kind: socket.kind.as_str().into(),
        reason: reason_of(socket).into(),
        fd: socket.fd,
        label: (!socket.label.is_none()).then_some(socket.label),
        local: socket.local,
        remote: socket.remote,
        error: (socket.error != 0).then(|| error_name(socket.error)),
        queue: (socket.kind == SocketKind::Listener).then(|| AcceptQueue {
            waiting: socket.queue.waiting.into(),
            backlog: socket.queue.backlog.into(),
        }),
    }
}

/// Returns the reason for the kind of a socket. An option that accelerated sockets lack is named.
fn reason_of(socket: &SocketEntry) -> String {
    match (socket.reason, socket.option.map(|(level, number)| (i32::from(level), i32::from(number)))) {
        (Reason::Lacking, Some((level, number))) => match options::of(level, number) {
            Some(option) => format!("asked for {}", option.name),
            None => format!("asked for option {number} of level {level}"),
        },
        (Reason::Lacking, None) => "asked for SIGIO".to_owned(),
        (reason, _) => reason.as_str().to_owned(),
    }
}

/// Returns the sockets of attached processes that `wanted` selects.
fn pick(table: &Processes, limit: usize, wanted: impl Fn(&SocketEntry) -> bool) -> Vec<Socket> {
    let mut found = Vec::new();
    for (info, page) in table.pages().iter().filter(|(info, _)| info.exited_unix_ms.is_none()) {
        let sockets = page.sockets();
        found.extend(sockets.iter().filter(|s| wanted(s)).map(|s| of_socket(info, s)));
        if found.len() >= limit {
            break;
        }
    }
    found.truncate(limit);
    found
}

async fn sockets(State(state): State<AdminState>, Query(query): Query<Limit>) -> Response {
    let limit = query.get();
    state.ask(move |table| pick(table, limit, |_| true)).await
}

async fn flows(State(state): State<AdminState>, Query(query): Query<Limit>) -> Response {
    let limit = query.get();
    state.ask(move |table| pick(table, limit, |s| s.kind == SocketKind::Connection)).await
}

async fn trace(State(state): State<AdminState>, Query(query): Query<Label>) -> Response {
    let label = match query.get() {
        Ok(label) => label,
        Err(error) => return error.into_response(),
    };
    let node = state.node.clone();
    state
        .ask(move |table| {
            let mut found: Vec<TraceEntry> = Vec::new();
            for (info, page) in table.pages() {
                let events = page.trace().into_iter().filter(|e| e.label == label);
                found.extend(events.map(|event| TraceEntry::new(&event, &node, info.pid)));
            }
            found.sort_by_key(|event| event.t_ns);
            found
        })
        .await
}

async fn recent(State(state): State<AdminState>, Query(query): Query<Limit>) -> Response {
    let limit = query.get();
    let item = |event: &TraceEvent| RecentFlow {
        proxy: event.proxy,
        ..RecentFlow::new(
            event.label,
            event.at.as_nanos(),
            matches!(event.kind, TraceKind::AppClose | TraceKind::AppReset),
        )
    };
    state.ask(move |table| table.recent_events(limit).iter().map(item).collect::<Vec<RecentFlow>>()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_operations_page_shows_is_exposed() {
        let metrics = Exposition::new();
        let (_directory, receiver) = watch::channel(Directory::default());
        let (_routes, _questions) = routes("an-1".to_owned(), &metrics, receiver);
        let page = metrics.render();
        for name in csp_api::metrics::APP_NODE {
            assert!(page.lines().any(|line| line.starts_with(name)), "{name} is missing:\n{page}");
        }
    }
}
