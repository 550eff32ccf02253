//! The route that shows the next requests that meet a filter, and what a worker answers.
//!
//! A worker copies the records of such requests, whatever the log takes of them (`csp_gateway`'s watches).
//! The route asks again until there are enough, or its time is over.

use std::net::IpAddr;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use csp_api::http::{HTTP_TRACE_COUNT_MAX, HTTP_TRACE_TIMEOUT_S_MAX, HttpTrace, HttpTraceQuery};
use csp_daemon::query::Workers;
use csp_gateway::{Record, WATCHES_MAX, WatchFilter, WatchId};
use csp_policy::LogAddresses;
use csp_telemetry::{MailboxError, MailboxSender, Reply};
use csp_types::{Instant, Prefix};

use super::data_thread::Question;
use super::record_log::http_record;
use crate::ProxyWorker;

/// How often the workers are asked.
const INTERVAL: Duration = Duration::from_millis(50);
/// How much longer than its reader waits a watch lasts.
const MARGIN: Duration = Duration::from_secs(2);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Records of one worker.
type Taken = (u8, LogAddresses, Vec<Record>);

/// A question to a worker.
pub enum HttpTraced {
    /// Begin a watch; `None`: there are too many.
    Watch(Asked, Reply<Option<WatchId>>),
    /// How many records it has.
    Progress(WatchId, Reply<usize>),
    /// Its records, with the worker's number and how much of clients' addresses they may have; it ends.
    Take(WatchId, Reply<Taken>),
    /// It ends.
    End(WatchId),
}

/// What is to be watched.
#[derive(Clone)]
pub struct Asked {
    filter: WatchFilter,
    count: usize,
    timeout: Duration,
}

/// Answers a question in the worker's thread.
pub fn answer(worker: &mut ProxyWorker, now: Instant, question: HttpTraced) {
    match question {
        HttpTraced::Watch(Asked { filter, count, timeout }, reply) => {
            let until = now + timeout + MARGIN;
            reply.send(worker.gateway_mut().watch(now, filter, count, until));
        }
        HttpTraced::Progress(id, reply) => reply.send(worker.gateway().watched(id).unwrap_or_default()),
        HttpTraced::Take(id, reply) => {
            let (number, addresses) = (worker.number(), worker.http_addresses());
            reply.send((number, addresses, worker.gateway_mut().end_watch(id)));
        }
        HttpTraced::End(id) => drop(worker.gateway_mut().end_watch(id)),
    }
}

/// The route.
pub fn routes() -> Router<Workers<Question>> {
    Router::new().route("/v1/http/trace", get(trace))
}

/// Why nothing is traced.
#[derive(Debug, thiserror::Error)]
pub enum TraceRefused {
    /// No network.
    #[error("source {0:?} is neither an address nor a network")]
    Source(String),
    /// Too many readers.
    #[error("there are {WATCHES_MAX} traces of requests at a time; try again when one has ended")]
    TooMany,
    /// A worker has not answered.
    #[error("a data worker: {0}")]
    Unanswered(#[from] MailboxError),
}

impl IntoResponse for TraceRefused {
    fn into_response(self) -> Response {
        let status = match self {
            TraceRefused::Source(_) => StatusCode::BAD_REQUEST,
            TraceRefused::TooMany => StatusCode::TOO_MANY_REQUESTS,
            TraceRefused::Unanswered(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        (status, format!("{self}\n")).into_response()
    }
}

fn asked(query: HttpTraceQuery) -> Result<Asked, TraceRefused> {
    let network = |text: String| {
        match text.parse() {
            Ok(address) => host(address),
            Err(_) => text.parse().ok(),
        }
        .ok_or(TraceRefused::Source(text))
    };
    let filter = WatchFilter {
        service: query.service,
        rule: query.route,
        host: query.host,
        path: query.path,
        method: query.method,
        source: query.source.map(network).transpose()?,
        failed: query.failed.unwrap_or(false),
    };
    let count = query.count.unwrap_or(1).clamp(1, HTTP_TRACE_COUNT_MAX);
    let seconds = query.timeout_s.unwrap_or(10).clamp(1, HTTP_TRACE_TIMEOUT_S_MAX);
    Ok(Asked { filter, count, timeout: Duration::from_secs(seconds) })
}

/// Returns the network of one address.
fn host(address: IpAddr) -> Option<Prefix> {
    let address = address.to_canonical();
    Prefix::new(address, if address.is_ipv4() { 32 } else { 128 }).ok()
}

/// A watch at one worker, which ends when this is dropped: also when the client closes its connection.
struct Watch {
    mailbox: MailboxSender<Question>,
    id: WatchId,
}

impl Drop for Watch {
    fn drop(&mut self) {
        // A watch whose worker does not receive this expires.
        let _ = self.mailbox.send(Question::HttpTraced(HttpTraced::End(self.id)));
    }
}

async fn trace(
    State(workers): State<Workers<Question>>,
    Query(query): Query<HttpTraceQuery>,
) -> Result<Json<HttpTrace>, TraceRefused> {
    let asked = asked(query)?;
    let mut watches = Vec::new();
    for mailbox in &workers.mailboxes {
        let question = |reply| Question::HttpTraced(HttpTraced::Watch(asked.clone(), reply));
        let id = mailbox.ask(ANSWER_TIMEOUT, question).await?.ok_or(TraceRefused::TooMany)?;
        watches.push(Watch { mailbox: mailbox.clone(), id });
    }
    let end = tokio::time::Instant::now() + asked.timeout;
    while found(&watches).await? < asked.count && tokio::time::Instant::now() < end {
        tokio::time::sleep(INTERVAL).await;
    }
    let mut all = Vec::new();
    for watch in &watches {
        let question = |reply| Question::HttpTraced(HttpTraced::Take(watch.id, reply));
        let (worker, addresses, records) = watch.mailbox.ask(ANSWER_TIMEOUT, question).await?;
        let described =
            records.iter().map(|of| (of.ended(), http_record(&workers.node, worker, addresses, of)));
        all.extend(described);
    }
    all.sort_by_key(|(ended, _)| *ended);
    all.truncate(asked.count);
    Ok(Json(HttpTrace { requests: all.into_iter().map(|(_, request)| request).collect() }))
}

/// Returns how many records there are.
async fn found(watches: &[Watch]) -> Result<usize, TraceRefused> {
    let mut sum = 0;
    for watch in watches {
        let question = |reply| Question::HttpTraced(HttpTraced::Progress(watch.id, reply));
        sum += watch.mailbox.ask(ANSWER_TIMEOUT, question).await?;
    }
    Ok(sum)
}
