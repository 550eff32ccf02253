//! What REQ and DEALER peers ask a channel, and the answers.
//!
//! ```text
//!  REQ     | (empty) | {"get": "channel"} |                 ─▶
//!          | (empty) | {"channel": "ticks", …} |            ◀─
//!  DEALER  | any frames, the last of them empty | request | ─▶  the same frames come back before the answer
//! ```
//! Requests and answers are JSON (RFC 8259). A peer's next request is read when it has been sent the answer to the one before.
//!
//! | request | answered by |
//! |---|---|
//! | `{"get": "channel"}`, `{"get": "formats"}` | this module |
//! | `{"get": "queries"}`, `{"query": …}`, `{"translate": …}`, `{"format": …}`, `{"release": …}` | `requested` |

use csp_messages::{ChannelKind, ChannelStatus};
use csp_types::{FlowLabel, Instant};
use csp_zmtp::{Connection, FrameHeader, Message, SocketType, sealed_len};
use serde_json::{Value, json};

use super::formats::{ChannelFormats, FormatText};
use super::framing::Speech;
use super::keys::Rights;
use super::peer::Peer;
use super::requested::Asker;
use super::{Bound, MessageBroker};

/// What a request that is not understood is answered.
const FORM: &str = "a request is an object such as {\"get\": \"channel\"}, {\"query\": \"SELECT …\"} or {\"release\": \"…\"}";

/// Longest request in bytes, all frames together.
pub const REQUEST_LEN_MAX: usize = 16 * 1024;

/// A request that was not answered yet.
#[derive(Debug, Default)]
pub(super) struct Request {
    /// Frames that come back before the answer.
    envelope: Vec<Vec<u8>>,
    text: Vec<u8>,
    too_long: bool,
}

/// The requests of a peer.
#[derive(Debug, Default)]
pub(super) struct Requests {
    waiting: Option<Request>,
}

/// Returns whether a peer of this type makes requests.
pub(super) fn makes_requests(socket: SocketType) -> bool {
    matches!(socket, SocketType::Req | SocketType::Dealer)
}

impl Requests {
    /// Keeps a request: the bodies of `message`, which `body` copies.
    pub(super) fn keep(&mut self, message: &Message<'_>, mut body: impl FnMut(usize) -> Vec<u8>) {
        let len: usize = message.frames().iter().map(|frame| frame.len).sum();
        if len > REQUEST_LEN_MAX {
            self.waiting = Some(Request { too_long: true, ..Request::default() });
            return;
        }
        let mut frames: Vec<Vec<u8>> = (0..message.frames().len()).map(&mut body).collect();
        let text = frames.pop().unwrap_or_default();
        frames.truncate(message.envelope_len().unwrap_or(0));
        self.waiting = Some(Request { envelope: frames, text, too_long: false });
    }
}

impl Requests {
    /// Returns whether a request waits for its answer.
    pub(super) fn has_one(&self) -> bool {
        self.waiting.is_some()
    }
}

impl Peer {
    /// Sends the answer to a request; `false` if it cannot be sent.
    fn reply(&mut self, request: &Request, answer: &Value) -> bool {
        let answer = answer.to_string();
        let Speech::Zmtp(connection) = &mut self.connection else { return false };
        let frames = request.envelope.iter().map(|frame| (&frame[..], true));
        frames
            .chain([(answer.as_bytes(), false)])
            .all(|(body, more)| write(connection, body, more, &mut self.own))
    }
}

impl MessageBroker {
    /// Answers the request of a peer that waits, if there is one.
    pub(super) fn answer_request(&mut self, now: Instant, label: FlowLabel) {
        let Some(peer) = self.connections.get_mut(&label) else { return };
        let Some(request) = peer.requests.as_mut().and_then(|requests| requests.waiting.take()) else {
            return;
        };
        let known = peer.connection.zmtp().and_then(Connection::peer);
        let keys = self.channels.get(&peer.number).and_then(|bound| bound.spec.keys.as_ref());
        let rights = keys.map(|keys| known.map_or_else(Rights::default, |known| keys.rights(known)));
        let asker = Asker::new(peer, rights);
        let number = peer.number;
        let answer = match request.too_long {
            true => refusal(&format!("a request has at most {REQUEST_LEN_MAX} bytes")),
            false => self.answer_to(now, number, asker, &request.text),
        };
        let Some(peer) = self.connections.get_mut(&label) else { return };
        if !peer.reply(&request, &answer) {
            peer.ended = true;
        }
    }

    fn answer_to(&mut self, now: Instant, number: u32, asker: Asker, text: &[u8]) -> Value {
        let request: Value = match serde_json::from_slice(text) {
            Ok(request) => request,
            Err(error) => return refusal(&format!("not JSON: {error}")),
        };
        let Value::Object(request) = &request else { return refusal(FORM) };
        if request.contains_key("format") {
            return self.answer_format(now, asker, request);
        }
        if request.contains_key("query") || request.contains_key("translate") {
            return self.answer_query(now, asker, request);
        }
        if let Some(name) = request.get("release") {
            return self.answer_release(now, asker, name);
        }
        match request.get("get").and_then(Value::as_str) {
            Some("channel") => self.describe_channel(number),
            Some("queries") => self.answer_queries(now, asker),
            Some("formats") => self.describe_formats(number),
            Some(other) => refusal(&format!(
                "`{other}` is not known; `get` may be \"channel\", \"formats\" or \"queries\""
            )),
            None => refusal(FORM),
        }
    }

    /// The formats of a channel's messages: those of the policy, then those that publishers have brought. Those that its path makes are not among them.
    fn describe_formats(&self, number: u32) -> Value {
        let formats = self.channels.get(&number).and_then(|bound| bound.spec.formats.as_ref());
        let of = |format: &FormatText| json!({"format": format.name, "message": format.message, "schema": format.schema});
        let formats = formats.map_or(&[][..], ChannelFormats::texts).iter().map(of);
        let formats: Vec<Value> = formats.chain(self.describe_brought(number)).collect();
        json!({"formats": formats})
    }

    fn describe_channel(&self, number: u32) -> Value {
        let bound = self.channels.get(&number);
        let described = bound.and_then(|bound| {
            let status = self.plane.as_ref()?.channel_status(bound.id)?;
            Some(describe(bound, &status))
        });
        described.unwrap_or_else(|| refusal("the channel was removed"))
    }
}

/// Adds a frame to what a connection has to send of its own.
fn write(connection: &mut Connection, body: &[u8], more: bool, own: &mut Vec<u8>) -> bool {
    if connection.mechanism() == csp_zmtp::Mechanism::Null {
        own.extend_from_slice(FrameHeader::message(body.len(), more).as_bytes());
        own.extend_from_slice(body);
        return true;
    }
    let at = own.len();
    own.resize(at + sealed_len(body.len()), 0);
    connection.encrypt(&[body], more, &mut own[at..]).is_ok()
}

pub(super) fn refusal(why: &str) -> Value {
    json!({"error": why})
}

fn describe(bound: &Bound, status: &ChannelStatus) -> Value {
    let channel = &bound.spec.channel;
    let (pattern, last_values) = match channel.kind {
        ChannelKind::PublishSubscribe { cache, .. } => ("publish", cache.is_some()),
        ChannelKind::PushPull { .. } => ("push", false),
    };
    json!({
        "channel": channel.name,
        "pattern": pattern,
        "message_bytes_max": channel.message_len_max,
        "sequence": channel.sequence,
        "last_values": last_values,
        "messages": status.counters.published,
        "bytes": status.counters.bytes_published,
        "subscriptions": status.subscriptions.entries,
    })
}
