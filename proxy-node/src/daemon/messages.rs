//! The routes about single peers of channels and single messages, and what a worker answers.
//!
//! A question to a worker is bounded, so that it holds up the worker's connections for microseconds: a walk
//! over many peers, and waiting for messages, is done here by asking again.

use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use csp_api::messages::{
    CopyState, MessageTrace, PEERS_DEFAULT, PEERS_MAX, PREFIXES_DEFAULT, PREFIXES_MAX, Peer, PeerName, Stage,
    Subscriptions, TRACE_COUNT_MAX, TRACE_TIMEOUT_S_MAX, TracedCopy, TracedMessage,
};
use csp_api::topic;
use csp_daemon::clock;
use csp_daemon::query::{QueryError, Workers};
use csp_messages::{Role, TRACE_TOPIC_LEN_MAX, TraceError, TraceId, TraceRequest};
use csp_services::{PeerSnapshot, PeersPage, PeersQuery, TracedSnapshot};
use csp_telemetry::{MailboxError, MailboxSender, Reply};
use csp_types::{FlowLabel, Instant, NodeId};
use serde::Deserialize;

use super::data_thread::Question;
use crate::ProxyWorker;

/// Places of peers that a worker looks at for one question if it describes peers, and if it only counts them.
const PLACES_PER_QUESTION: u32 = 256;
/// See [`PLACES_PER_QUESTION`].
const PLACES_COUNTED: u32 = 2_048;
/// Prefixes that a worker looks at for one question.
const PREFIXES_PER_QUESTION: u32 = 2_048;
/// Bytes of prefixes in an answer.
const PREFIX_BYTES_MAX: usize = 1 << 20;
/// How often a trace is looked at.
const TRACE_INTERVAL: Duration = Duration::from_millis(20);
/// How long a trace that has all messages waits for those copies that are still in queues.
const COPIES_TIMEOUT: Duration = Duration::from_secs(1);
/// How much longer than its reader waits a trace is armed.
const TRACE_MARGIN: Duration = Duration::from_secs(2);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// The process at the other end of a connection without TCP: its node and its name.
type Process = Option<(NodeId, String)>;

/// Messages that a trace has recorded, and the processes at connections without TCP.
type Traced = (Vec<TracedSnapshot>, Vec<(FlowLabel, Process)>);

/// A question to a worker.
pub enum Messages {
    /// Some of the peers of a channel, or of all.
    Peers(PeersAsked, Reply<(PeersPage, Vec<Process>)>),
    /// Arm a trace.
    Arm(TraceAsked, Reply<Result<TraceId, TraceError>>),
    /// How many messages a trace has, and whether nothing more becomes of any.
    Progress(TraceId, Reply<Option<(usize, bool)>>),
    /// What a trace has recorded.
    Traced(TraceId, Reply<Option<Traced>>),
    /// End a trace.
    End(TraceId),
}

/// Which peers are asked for.
#[derive(Clone)]
pub struct PeersAsked {
    channel: Option<String>,
    cursor: u32,
    places: u32,
    peers: usize,
    prefixes: u32,
    prefix_bytes: usize,
}

/// What is to be traced.
#[derive(Clone)]
pub struct TraceAsked {
    channel: String,
    count: usize,
    topic: Vec<u8>,
    timeout: Duration,
}

/// Answers a question in the worker's thread.
pub fn answer(worker: &mut ProxyWorker, now: Instant, question: Messages) {
    match question {
        Messages::Peers(asked, reply) => {
            let query = PeersQuery {
                channel: asked.channel.as_deref(),
                cursor: asked.cursor,
                slots_max: asked.places,
                peers_max: asked.peers,
                prefixes_max: asked.prefixes,
                prefix_bytes_max: asked.prefix_bytes,
            };
            let page = worker.broker().peers(query);
            let of = |peer: &PeerSnapshot| worker.core().client_process(peer.name.label);
            let processes = page.peers.iter().map(of).collect();
            reply.send((page, processes));
        }
        Messages::Arm(TraceAsked { channel, count, topic, timeout }, reply) => {
            let until = now + timeout + TRACE_MARGIN;
            let request = TraceRequest { messages: count, topic: &topic, until, clock: clock::now };
            reply.send(worker.broker_mut().arm_trace(now, &channel, request));
        }
        Messages::Progress(id, reply) => reply.send(worker.broker().trace_progress(id)),
        Messages::Traced(id, reply) => {
            let traced = worker.broker().traced(id);
            reply.send(traced.map(|traced| {
                let names = traced.iter().flat_map(|m| m.receivers.iter().chain([&m.publisher]));
                let labels = names.flatten().map(|name| name.label);
                let processes = labels.map(|label| (label, worker.core().client_process(label))).collect();
                (traced, processes)
            }));
        }
        Messages::End(id) => worker.broker_mut().end_trace(id),
    }
}

/// The routes.
pub fn routes() -> Router<Workers<Question>> {
    Router::new().route("/v1/subscriptions", get(subscriptions)).route("/v1/messages/trace", get(trace))
}

#[derive(Deserialize)]
struct SubscriptionsParameters {
    channel: Option<String>,
    peers: Option<usize>,
    prefixes: Option<u32>,
}

async fn subscriptions(
    State(workers): State<Workers<Question>>,
    Query(asked): Query<SubscriptionsParameters>,
) -> Result<Json<Subscriptions>, QueryError> {
    let peers_max = asked.peers.unwrap_or(PEERS_DEFAULT).min(PEERS_MAX);
    let prefixes = asked.prefixes.unwrap_or(PREFIXES_DEFAULT).min(PREFIXES_MAX);
    let (mut all, mut prefix_bytes) = (Subscriptions::default(), PREFIX_BYTES_MAX);
    for (worker, mailbox) in workers.mailboxes.iter().enumerate() {
        let mut cursor = Some(0);
        while let Some(from) = cursor {
            let peers = peers_max - all.peers.len();
            let places = match peers {
                0 => PLACES_COUNTED,
                _ => (PREFIXES_PER_QUESTION / prefixes.max(1)).clamp(1, PLACES_PER_QUESTION),
            };
            let channel = asked.channel.clone();
            let asked = PeersAsked { channel, cursor: from, places, peers, prefixes, prefix_bytes };
            let question = |reply| Question::Messages(Messages::Peers(asked, reply));
            let (page, processes) = mailbox.ask(ANSWER_TIMEOUT, question).await?;
            prefix_bytes -= page.peers.iter().flat_map(|peer| &peer.prefixes).map(Vec::len).sum::<usize>();
            let now = clock::now();
            let described = page.peers.into_iter().zip(processes);
            all.peers.extend(described.map(|(peer, process)| describe(peer, process, worker as u32, now)));
            all.more += page.more;
            cursor = page.cursor;
        }
    }
    Ok(Json(all))
}

fn describe(peer: PeerSnapshot, process: Process, worker: u32, now: Instant) -> Peer {
    let status = peer.status;
    let role = match status.role {
        Role::Publisher => "publisher",
        Role::Subscriber => "subscriber",
        Role::Both => "both",
        Role::Pusher => "pusher",
        Role::Puller => "puller",
    };
    Peer {
        channel: peer.channel.into(),
        worker,
        name: name(Some(peer.name), process),
        role: role.into(),
        age_ms: now.saturating_since(peer.since).as_millis() as u64,
        messages_in: status.published,
        messages_out: status.counters.taken,
        waiting: status.waiting as u64,
        waiting_bytes: status.bytes_waiting,
        dropped: status.counters.dropped(),
        subscriptions: status.subscriptions.into(),
        prefixes: peer.prefixes.iter().map(|prefix| topic::escape(prefix)).collect(),
    }
}

fn name(peer: Option<csp_services::PeerName>, process: Process) -> PeerName {
    let (node, process) =
        process.map_or_else(Default::default, |(node, process)| (node.as_str().into(), process.into()));
    PeerName {
        address: peer.map(|peer| peer.client),
        node,
        process,
        socket: peer.map_or("", |peer| peer.socket).into(),
    }
}

#[derive(Deserialize)]
struct TraceParameters {
    channel: String,
    count: Option<usize>,
    topic: Option<String>,
    timeout_s: Option<u64>,
}

impl TraceParameters {
    fn check(self) -> Result<TraceAsked, TraceRefused> {
        let topic = topic::unescape(self.topic.as_deref().unwrap_or("")).ok_or(TraceRefused::Escape)?;
        if topic.len() > TRACE_TOPIC_LEN_MAX {
            return Err(TraceRefused::Trace(TraceError::Topic));
        }
        Ok(TraceAsked {
            channel: self.channel,
            count: self.count.unwrap_or(1).clamp(1, TRACE_COUNT_MAX),
            topic,
            timeout: Duration::from_secs(self.timeout_s.unwrap_or(10).clamp(1, TRACE_TIMEOUT_S_MAX)),
        })
    }
}

/// Why nothing is traced.
#[derive(Debug, thiserror::Error)]
pub enum TraceRefused {
    /// The topic is not written as topics are.
    #[error("the topic has a \\ that is followed by neither \\ nor x and two hex digits")]
    Escape,
    /// The worker has refused it.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A worker has not answered.
    #[error("a data worker: {0}")]
    Unanswered(#[from] MailboxError),
}

impl IntoResponse for TraceRefused {
    fn into_response(self) -> Response {
        let status = match self {
            TraceRefused::Escape | TraceRefused::Trace(TraceError::Topic) => StatusCode::BAD_REQUEST,
            TraceRefused::Trace(TraceError::UnknownChannel) => StatusCode::NOT_FOUND,
            TraceRefused::Trace(TraceError::TooMany) => StatusCode::TOO_MANY_REQUESTS,
            TraceRefused::Unanswered(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        (status, format!("{self}\n")).into_response()
    }
}

/// A trace at one worker, which ends when this is dropped: also when the client closes its connection.
struct ArmedTrace {
    worker: u32,
    mailbox: MailboxSender<Question>,
    id: TraceId,
}

impl Drop for ArmedTrace {
    fn drop(&mut self) {
        // A trace whose worker does not receive this expires.
        let _ = self.mailbox.send(Question::Messages(Messages::End(self.id)));
    }
}

async fn trace(
    State(workers): State<Workers<Question>>,
    Query(asked): Query<TraceParameters>,
) -> Result<Json<MessageTrace>, TraceRefused> {
    let asked = asked.check()?;
    let mut armed = Vec::new();
    for (worker, mailbox) in workers.mailboxes.iter().enumerate() {
        let question = |reply| Question::Messages(Messages::Arm(asked.clone(), reply));
        match mailbox.ask(ANSWER_TIMEOUT, question).await? {
            Ok(id) => armed.push(ArmedTrace { worker: worker as u32, mailbox: mailbox.clone(), id }),
            // A worker may have no channel that others have.
            Err(TraceError::UnknownChannel) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if armed.is_empty() {
        return Err(TraceError::UnknownChannel.into());
    }
    let started = tokio::time::Instant::now();
    let mut full_since = None;
    loop {
        tokio::time::sleep(TRACE_INTERVAL).await;
        let (count, settled) = progress(&armed).await?;
        if count >= asked.count {
            full_since.get_or_insert_with(tokio::time::Instant::now);
        }
        let waited = full_since.is_some_and(|since| since.elapsed() >= COPIES_TIMEOUT);
        if (full_since.is_some() && settled) || waited || started.elapsed() >= asked.timeout {
            return Ok(Json(MessageTrace { messages: read(&armed, &asked).await? }));
        }
    }
}

/// Returns how many messages the workers have recorded, and whether nothing more becomes of any.
async fn progress(armed: &[ArmedTrace]) -> Result<(usize, bool), TraceRefused> {
    let mut sum = (0, true);
    for trace in armed {
        let question = |reply| Question::Messages(Messages::Progress(trace.id, reply));
        let (count, settled) = trace.mailbox.ask(ANSWER_TIMEOUT, question).await?.unwrap_or((0, true));
        sum = (sum.0 + count, sum.1 && settled);
    }
    Ok(sum)
}

/// Returns what the workers have recorded, in the order of arrival.
async fn read(armed: &[ArmedTrace], asked: &TraceAsked) -> Result<Vec<TracedMessage>, TraceRefused> {
    let mut found = Vec::new();
    for trace in armed {
        let question = |reply| Question::Messages(Messages::Traced(trace.id, reply));
        let Some((traced, processes)) = trace.mailbox.ask(ANSWER_TIMEOUT, question).await? else { continue };
        found.extend(traced.into_iter().map(|message| convert(message, &processes, trace.worker, asked)));
    }
    found.sort_by_key(|message| message.t_ns);
    found.truncate(asked.count);
    Ok(found)
}

fn convert(
    traced: TracedSnapshot,
    processes: &[(FlowLabel, Process)],
    worker: u32,
    asked: &TraceAsked,
) -> TracedMessage {
    let TracedSnapshot { message, publisher, receivers } = traced;
    let name = |peer: Option<csp_services::PeerName>| {
        let of = |peer: csp_services::PeerName| processes.iter().find(|(label, _)| *label == peer.label);
        name(peer, peer.and_then(of).and_then(|(_, process)| process.clone()))
    };
    let since = |at: Instant| at.saturating_since(message.arrived).as_nanos() as u64;
    let copies = message.copies.iter().zip(receivers).map(|(copy, receiver)| {
        let (state, bytes) = state(copy.state);
        TracedCopy { receiver: name(receiver), state, at_ns: since(copy.at), bytes }
    });
    let matched = if message.pushed { 1 } else { u64::from(message.matched) };
    let copies: Vec<TracedCopy> = copies.collect();
    TracedMessage {
        channel: (&asked.channel).into(),
        worker,
        sequence: message.sequence,
        topic: topic::escape(&message.topic),
        frames: message.frames().to_vec(),
        t_ns: message.arrived.as_nanos(),
        publisher: name(publisher),
        looked_up_ns: since(message.looked_up),
        receivers: message.receivers.into(),
        matched,
        contexts: message.stages.iter().map(|stage| stage_of(stage, message.arrived)).collect(),
        more: u64::from(message.matched).saturating_sub(copies.len() as u64),
        copies,
    }
}

fn stage_of(stage: &csp_messages::TracedStage, arrived: Instant) -> Stage {
    Stage {
        context: format!("c{}", stage.context).into(),
        handler: stage.handler.clone().into(),
        at_ns: stage.at.saturating_since(arrived).as_nanos() as u64,
        took_ns: stage.done.saturating_since(stage.at).as_nanos() as u64,
        bytes: stage.bytes,
    }
}

fn state(state: csp_messages::CopyState) -> (CopyState, u64) {
    use csp_messages::CopyState as Plane;
    match state {
        Plane::Waiting => (CopyState::Waiting, 0),
        Plane::InFlow => (CopyState::InFlow, 0),
        Plane::Written(bytes) => (CopyState::Written, bytes.into()),
        Plane::DroppedNewest => (CopyState::DroppedNewest, 0),
        Plane::DroppedOldest => (CopyState::DroppedOldest, 0),
        Plane::DroppedStalled => (CopyState::DroppedStalled, 0),
        Plane::DroppedMemory => (CopyState::DroppedMemory, 0),
        Plane::DroppedFlow => (CopyState::DroppedFlow, 0),
        Plane::DroppedPath => (CopyState::DroppedPath, 0),
        Plane::Unwritable => (CopyState::Unwritable, 0),
        Plane::Left => (CopyState::Left, 0),
        Plane::Consumed => (CopyState::Consumed, 0),
    }
}
