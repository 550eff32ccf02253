//! What REQ and DEALER peers ask a channel, and the answers.
//!
//! ```text
//!  REQ     | (empty) | {"get": "channel"} |                 ─▶
//!          | (empty) | {"channel": "ticks", …} |            ◀─
//!  DEALER  | any frames, the last of them empty | request | ─▶  the same frames come back before the answer
//! ```
//! Requests and answers are JSON (RFC 8259); the bytes of a module are a frame behind the request. A peer's next request is read when it has been sent the answer to the one before.
//!
//! | request | answered by |
//! |---|---|
//! | `{"get": "channel"}`, `{"get": "formats"}` | this module |
//! | `{"get": "queries"}`, `{"query": …}`, `{"translate": …}`, `{"format": …}`, `{"release": …}` | `requested` |
//! | `{"get": "handlers"}`, `{"handler": …}` | `requested`; to the latter, when the handler was made |

use csp_messages::{ChannelKind, ChannelStatus};
use csp_types::{FlowLabel, Instant};
use csp_zmtp::{Connection, FrameHeader, Message, SocketType, sealed_len};
use serde_json::{Map, Value, json};

use super::formats::{ChannelFormats, FormatText};
use super::framing::Speech;
use super::keys::Rights;
use super::peer::Peer;
use super::requested::Asker;
use super::{Bound, MessageBroker};

/// What a request that is not understood is answered.
const FORM: &str = "a request is an object such as {\"get\": \"channel\"}, {\"query\": \"SELECT …\"} or {\"release\": \"…\"}";

/// Longest request in bytes, all frames but that of a module together.
pub const REQUEST_LEN_MAX: usize = 16 * 1024;

/// A request that was not answered yet.
#[derive(Debug, Default)]
pub(super) struct Request {
    /// Frames that come back before the answer.
    envelope: Vec<Vec<u8>>,
    text: Vec<u8>,
    /// The frame behind it: the bytes of a module.
    module: Option<Vec<u8>>,
    /// What is wrong with it, if it was not kept.
    fault: Option<String>,
}

/// The requests of a peer.
#[derive(Debug, Default)]
pub(super) struct Requests {
    waiting: Option<Request>,
    /// One whose handler is being made, by the ticket of that.
    pending: Option<(u64, Request)>,
}

/// Returns whether a peer of this type makes requests.
pub(super) fn makes_requests(socket: SocketType) -> bool {
    matches!(socket, SocketType::Req | SocketType::Dealer)
}

impl Requests {
    /// Keeps a request: the bodies of `message`, which `body` copies. A module has at most so many bytes.
    pub(super) fn keep(
        &mut self,
        message: &Message<'_>,
        module_len_max: usize,
        mut body: impl FnMut(usize) -> Vec<u8>,
    ) {
        let frames = message.frames();
        let envelope = message.envelope_len().unwrap_or(0);
        let module_len = frames.get(envelope + 1).map_or(0, |frame| frame.len);
        let len = frames.iter().map(|frame| frame.len).sum::<usize>() - module_len;
        let fault = if len > REQUEST_LEN_MAX {
            Some(format!(
                "a request has at most {REQUEST_LEN_MAX} bytes, beside the module that may follow it"
            ))
        } else if module_len > 0 && module_len_max == 0 {
            Some(
                "nobody brings handlers to the channel: its `requests` in the policy have no `handlers`"
                    .to_owned(),
            )
        } else if module_len > module_len_max {
            Some(format!(
                "the frame behind the request, a module, has {module_len} bytes, and may have {module_len_max} on this channel"
            ))
        } else if frames.len() > envelope + 2 {
            Some("behind a request there may be one frame more: the bytes of a module".to_owned())
        } else {
            None
        };
        // What is too long is not copied.
        let envelope = if len > REQUEST_LEN_MAX { 0 } else { envelope };
        let envelope: Vec<Vec<u8>> = (0..envelope).map(&mut body).collect();
        if fault.is_some() {
            self.waiting = Some(Request { envelope, fault, ..Request::default() });
            return;
        }
        let at = envelope.len();
        let text = body(at);
        let module = (at + 1 < frames.len()).then(|| body(at + 1));
        self.waiting = Some(Request { envelope, text, module, fault });
    }
}

impl Requests {
    /// Returns whether a request waits for its answer.
    pub(super) fn has_one(&self) -> bool {
        self.waiting.is_some()
    }

    /// Returns whether the answer to one comes later.
    pub(super) fn is_pending(&self) -> bool {
        self.pending.is_some()
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
        let Some(mut request) = peer.requests.as_mut().and_then(|requests| requests.waiting.take()) else {
            return;
        };
        let known = peer.connection.zmtp().and_then(Connection::peer);
        let keys = self.channels.get(&peer.number).and_then(|bound| bound.spec.keys.as_ref());
        let rights = keys.map(|keys| known.map_or_else(Rights::default, |known| keys.rights(known)));
        let asker = Asker::new(peer, rights);
        let module = request.module.take();
        let answer = match &request.fault {
            Some(why) => Err(refusal(why)),
            None => self.answer_or_wait(now, (label, asker), &request.text, module),
        };
        let Some(peer) = self.connections.get_mut(&label) else { return };
        match answer {
            Ok(ticket) => {
                if let Some(requests) = &mut peer.requests {
                    requests.pending = Some((ticket, request));
                }
            }
            Err(answer) => peer.ended |= !peer.reply(&request, &answer),
        }
    }

    /// Answers a request whose answer came later, if its peer is still there.
    pub(super) fn answer_later(&mut self, label: FlowLabel, ticket: u64, answer: &Value) {
        let Some(peer) = self.connections.get_mut(&label) else { return };
        let waiting = peer.requests.as_mut().map(|requests| &mut requests.pending);
        let request = waiting.and_then(|waiting| waiting.take_if(|(known, _)| *known == ticket));
        let Some((_, request)) = request else { return };
        peer.ended |= !peer.reply(&request, answer);
        peer.make_ready(&mut self.ready);
    }

    /// Returns the answer as an error; `Ok`: the ticket by which it comes later.
    fn answer_or_wait(
        &mut self,
        now: Instant,
        (label, asker): (FlowLabel, Asker),
        text: &[u8],
        module: Option<Vec<u8>>,
    ) -> Result<u64, Value> {
        let request: Value =
            serde_json::from_slice(text).map_err(|error| refusal(&format!("not JSON: {error}")))?;
        let Value::Object(request) = &request else { return Err(refusal(FORM)) };
        if request.contains_key("handler") {
            return self.ask_for_handler(now, (label, asker), request, module);
        }
        if module.is_some() {
            return Err(refusal("only a request for a handler is followed by a further frame"));
        }
        Err(self.answer_to(now, asker, request))
    }

    fn answer_to(&mut self, now: Instant, asker: Asker, request: &Map<String, Value>) -> Value {
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
            Some("channel") => self.describe_channel(asker.number),
            Some("queries") => self.answer_queries(now, asker),
            Some("handlers") => self.answer_handlers(now, asker),
            Some("formats") => self.describe_formats(asker.number),
            Some(other) => refusal(&format!(
                "`{other}` is not known; `get` may be \"channel\", \"formats\", \"handlers\" or \"queries\""
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
