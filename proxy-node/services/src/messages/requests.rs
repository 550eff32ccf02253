//! Requests of REQ and DEALER peers to a channel, and the answers.
//!
//! ```text
//!  REQ     | (empty) | {"get": "channel"} |                 ─▶
//!          | (empty) | {"channel": "ticks", …} |            ◀─
//!  DEALER  | any frames, the last of them empty | request | ─▶  the same frames come back before the answer
//! ```
//! Requests and answers are JSON (RFC 8259); the bytes of a module are a frame behind the request. A peer's
//! next request is read after the answer to the previous one was sent.
//!
//! | request | answered by |
//! |---|---|
//! | `{"get": "channel"}`, `{"get": "formats"}` | this module |
//! | `{"get": "queries"}`, `{"get": "handlers"}`, `{"release": …}` | `requested` |
//! | `{"query": …}`, `{"translate": …}`, `{"format": …}`, `{"handler": …}` | `requested`, when it was planned, or the handler made |

use csp_formats::SCHEMA_LEN_MAX;
use csp_messages::{ChannelKind, ChannelStatus};
use csp_types::{FlowLabel, Instant};
use csp_zmtp::{Connection, FrameHeader, Message, SocketType, sealed_len};
use serde_json::{Value, json};

use super::channels::{Bound, Channels};
use super::connections::Visit;
use super::formats::{ChannelFormats, FormatText};
use super::framing::Speech;
use super::keys::Rights;
use super::peer::Peer;
use super::requested::{Asked, AskedError, Asker, FormatAsked, Requested};
use super::served::Served;
use super::unread::Unread;

/// Longest request in bytes, without the schema that it may bring.
pub const REQUEST_LEN_MAX: usize = 16 * 1024;
/// Longest request with a schema. The schema is somewhat longer as a JSON string.
pub const SCHEMA_REQUEST_LEN_MAX: usize = REQUEST_LEN_MAX + SCHEMA_LEN_MAX / 2 * 3;
/// Largest number of bytes of frames that come back before an answer.
const ENVELOPE_LEN_MAX: usize = REQUEST_LEN_MAX;

/// The longest parts of a request to a channel, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestBounds {
    pub text: usize,
    pub module: usize,
}

/// The frame behind a request.
#[derive(Debug, Default)]
enum Behind {
    #[default]
    Nothing,
    /// The bytes of a module.
    Module(Vec<u8>),
    /// A frame that was not kept, and why it is not one of a module.
    Refused(String),
}

/// A request that was not answered yet.
#[derive(Debug, Default)]
pub(super) struct Request {
    /// Frames that come back before the answer.
    envelope: Vec<Vec<u8>>,
    text: Vec<u8>,
    behind: Behind,
    /// Why the request is refused, if it was not kept.
    fault: Option<String>,
}

/// The requests of a peer.
#[derive(Debug, Default)]
pub(super) struct Requests {
    waiting: Option<Request>,
    /// A request whose handler is being made, with the ticket of that job.
    pending: Option<(u64, Request)>,
}

/// Returns whether a peer of this type makes requests.
pub(super) fn makes_requests(socket: SocketType) -> bool {
    matches!(socket, SocketType::Req | SocketType::Dealer)
}

impl Requests {
    /// Keeps a request: copies the frames of `message` within bounds, by `body`. Returns `false` for an empty
    /// message: a peer sends it to announce itself (`ZMQ_PROBE_ROUTER`), and it has no answer.
    pub(super) fn keep(
        &mut self,
        message: &Message<'_>,
        bounds: RequestBounds,
        mut body: impl FnMut(usize) -> Vec<u8>,
    ) -> bool {
        let frames = message.frames();
        if let [frame] = frames
            && frame.len == 0
        {
            return false;
        }
        let at = message.envelope_len().unwrap_or(0);
        let (before, rest) = frames.split_at(at);
        let text_len = rest.first().map_or(0, |frame| frame.len);
        let is_long = before.iter().map(|frame| frame.len).sum::<usize>() > ENVELOPE_LEN_MAX;
        let fault = if is_long {
            Some(format!("the frames before a request have at most {ENVELOPE_LEN_MAX} bytes"))
        } else if text_len > bounds.text {
            Some(too_long(bounds.text))
        } else if rest.len() > 2 {
            Some(format!("behind a request there may be one frame more, the bytes of a module; {ENVELOPE}"))
        } else {
            None
        };
        // A REQ recognises its answer by the empty frame before it.
        let envelope = (if is_long { at - 1 } else { 0 }..at).map(&mut body).collect();
        let mut request = Request { envelope, fault, ..Request::default() };
        if request.fault.is_none() {
            request.text = body(at);
            request.behind = match rest.get(1).map(|frame| frame.len) {
                None => Behind::Nothing,
                Some(_) if bounds.module == 0 => Behind::Refused(
                    "nobody brings handlers to the channel: its `requests` in the policy have no `handlers`"
                        .to_owned(),
                ),
                Some(len) if len > bounds.module => Behind::Refused(format!(
                    "the frame behind the request, a module, has {len} bytes, and may have {} on this channel",
                    bounds.module
                )),
                Some(_) => Behind::Module(body(at + 1)),
            };
        }
        self.waiting = Some(request);
        true
    }
}

/// The error for frames that are not understood.
pub(super) const ENVELOPE: &str = "frames that are to come back with the answer end with an empty one";

pub(super) fn too_long(most: usize) -> String {
    format!("a request has at most {most} bytes, beside the module that may follow it")
}

impl Requests {
    /// Returns whether a request waits for its answer.
    pub(super) fn has_one(&self) -> bool {
        self.waiting.is_some()
    }

    /// Returns whether a request's answer comes later.
    pub(super) fn is_pending(&self) -> bool {
        self.pending.is_some()
    }
}

impl Peer {
    /// Sends the answer to a request; `false` if it cannot be sent. A long answer needs room among the unread
    /// answers.
    fn reply(&mut self, request: &Request, answer: &Value, unread: &mut Unread) -> bool {
        let mut answer = answer.to_string();
        if let Err(why) = unread.charge(self, answer.len()) {
            answer = refusal(&why).to_string();
        }
        let Speech::Zmtp(connection) = &mut self.connection else { return false };
        let frames = request.envelope.iter().map(|frame| (&frame[..], true));
        frames
            .chain([(answer.as_bytes(), false)])
            .all(|(body, more)| write(connection, body, more, &mut self.own))
    }

    /// Sends the answer to a request whose answer was delayed. Returns whether there was such a request.
    pub(super) fn answer_later(&mut self, ticket: u64, answer: &Value, unread: &mut Unread) -> bool {
        let waiting = self.requests.as_mut().map(|requests| &mut requests.pending);
        let request = waiting.and_then(|waiting| waiting.take_if(|(known, _)| *known == ticket));
        let Some((_, request)) = request else { return false };
        self.ended |= !self.reply(&request, answer, unread);
        true
    }
}

impl Requested {
    /// Answers the request of a peer that waits, if there is one.
    pub(super) fn answer(&mut self, now: Instant, label: FlowLabel, served: &mut Served<'_>) {
        let Some(Visit { peer, .. }) = served.connections.visit(label) else { return };
        let Some(mut request) = peer.requests.as_mut().and_then(|requests| requests.waiting.take()) else {
            return;
        };
        let known = peer.connection.zmtp().and_then(Connection::peer);
        let keys = served.channels.get(peer.number).and_then(|bound| bound.spec.keys.as_ref());
        let rights = keys.map(|keys| known.map_or_else(Rights::default, |known| keys.rights(known)));
        let asker = Asker::new(peer, rights);
        let (text, behind) = (std::mem::take(&mut request.text), std::mem::take(&mut request.behind));
        let answer = match &request.fault {
            Some(why) => Err(refusal(why)),
            None => self.answer_or_wait(now, (label, asker), (&text, behind), served),
        };
        let Some(Visit { peer, .. }) = served.connections.visit(label) else { return };
        match answer {
            Ok(ticket) => {
                if let Some(requests) = &mut peer.requests {
                    requests.pending = Some((ticket, request));
                }
            }
            Err(answer) => peer.ended |= !peer.reply(&request, &answer, served.unread),
        }
        self.plan_here(now, served);
    }

    /// Returns the immediate answer as an error; `Ok`: the ticket of the answer that comes later.
    fn answer_or_wait(
        &mut self,
        now: Instant,
        (label, asker): (FlowLabel, Asker),
        (text, behind): (&[u8], Behind),
        served: &mut Served<'_>,
    ) -> Result<u64, Value> {
        let asked = match Asked::read(text, matches!(behind, Behind::Nothing)) {
            Ok(asked) => asked,
            Err(AskedError::Form(why)) => return Err(refusal(&why)),
            Err(AskedError::Refused(refused)) => {
                self.counters.refused += 1;
                return Err(refused.into());
            }
        };
        let by = (label, asker);
        Err(match asked {
            Asked::Handler(asked) => {
                let module = match behind {
                    Behind::Nothing => None,
                    Behind::Module(bytes) => Some(bytes),
                    Behind::Refused(why) => return Err(refusal(&why)),
                };
                return self.ask_for_handler(now, by, (asked, module), served);
            }
            Asked::Format { name, xml, message } => {
                let asked = FormatAsked { name: &name, xml: &xml, message: message.as_deref() };
                return self.ask_for_format(now, by, asked, served);
            }
            Asked::Query { wanted, json } => return self.ask_for_query(now, by, (wanted, json), served),
            Asked::Release(name) => self.answer_release(now, asker, &name, served),
            Asked::Channel => describe_channel(asker.number, served),
            Asked::Formats => self.describe_formats(asker.number, served.channels),
            Asked::Queries => self.answer_queries(now, asker, served),
            Asked::Handlers => self.answer_handlers(now, asker, served),
        })
    }

    /// Describes the formats of a channel's messages: the policy's, then those that publishers have brought.
    /// Formats made by the channel's path are not included.
    fn describe_formats(&self, number: u32, channels: &Channels) -> Value {
        let formats = channels.get(number).and_then(|bound| bound.spec.formats.as_ref());
        let of = |format: &FormatText| json!({"format": format.name, "message": format.message, "schema": format.schema});
        let formats = formats.map_or(&[][..], ChannelFormats::texts).iter().map(of);
        let formats: Vec<Value> = formats.chain(self.describe_brought(number)).collect();
        json!({"formats": formats})
    }
}

fn describe_channel(number: u32, served: &Served<'_>) -> Value {
    let described = served.channels.get(number).zip(served.status(number));
    described.map_or_else(|| refusal("the channel was removed"), |(bound, status)| describe(bound, &status))
}

/// Adds a frame to the output of a connection.
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
