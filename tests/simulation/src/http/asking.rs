//! The client's end of a connection: requests one after the other, each when the response to the one before
//! is complete.

use std::collections::VecDeque;

use super::framing::{Body, LAST_CHUNK, put_chunk, take_head};
use super::{dice, is_post};
use crate::conversation::{Conversation, Ended};
use crate::pattern::Request;

/// Most payload of a chunk in bytes.
const CHUNK_MAX: u32 = 9_000;

/// A request that is to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ask {
    pub(crate) request: Request,
    /// Bytes in both directions after which the client aborts the connection.
    pub(crate) abort_after: Option<u64>,
    /// If nothing follows, the client ends its direction after the request.
    pub(crate) half_close: bool,
}

/// The request that is under way.
#[derive(Debug)]
struct Current {
    ask: Ask,
    talk: Conversation,
    /// The end of the request was written.
    written: bool,
    /// Bytes of the connection that were sent for it.
    given: u64,
    /// A byte of the response has come.
    responded: bool,
    /// The first line of the response and its body, after the head.
    response: Option<(String, Body)>,
    /// The response is complete.
    complete: Option<Ended>,
}

/// The client's end of a connection.
#[derive(Debug, Default)]
pub(crate) struct Asking {
    waiting: VecDeque<Ask>,
    current: Option<Current>,
    /// Other requests may follow those that wait.
    more: bool,
    /// Requests that have begun.
    begun: u32,
    /// Bytes that the connection has not taken.
    out: Vec<u8>,
    head: Vec<u8>,
    /// The connection serves no request after the present one.
    closing: bool,
    peer_finished: bool,
    sending_ended: bool,
    done: Vec<(u32, Ended)>,
    /// A description of wrong data received.
    pub(crate) wrong: Option<String>,
}

impl Asking {
    /// Creates a connection for these requests, which others may follow.
    pub(crate) fn new(asks: impl IntoIterator<Item = Ask>, more: bool) -> Self {
        Asking { waiting: asks.into_iter().collect(), more, ..Asking::default() }
    }

    pub(crate) fn takes_more(&self) -> bool {
        self.more && !self.closing && !self.peer_finished && !self.sending_ended
    }

    pub(crate) fn add(&mut self, ask: Ask, more: bool) {
        self.waiting.push_back(ask);
        self.more = more;
    }

    pub(crate) fn key(&self) -> u32 {
        self.current.as_ref().map_or(0, |current| current.ask.request.key)
    }

    pub(crate) fn given(&self) -> u64 {
        self.current.as_ref().map_or(0, |current| current.given)
    }

    pub(crate) fn aborts(&self) -> bool {
        self.current.as_ref().is_some_and(|current| current.talk.aborts())
    }

    pub(crate) fn is_over(&self) -> bool {
        let is_idle = self.current.is_none() && self.out.is_empty();
        self.peer_finished || is_idle && (self.closing || self.waiting.is_empty() && !self.more)
    }

    /// The client's end of the connection has nothing more to send.
    pub(crate) fn ends_sending(&mut self) -> bool {
        let last = !self.more && self.waiting.is_empty() && self.out.is_empty() && !self.sending_ended;
        let ends = last && self.current.as_ref().is_some_and(|it| it.ask.half_close && it.written);
        self.sending_ended |= ends;
        ends
    }

    /// Writes the next bytes.
    pub(crate) fn next(&mut self, into: &mut [u8]) -> usize {
        let may_begin = !self.closing && !self.peer_finished && self.current.is_none();
        if may_begin && let Some(ask) = self.waiting.pop_front() {
            self.begin(ask);
        }
        while self.out.len() < into.len() && self.write_body() {}
        let len = self.out.len().min(into.len());
        into[..len].copy_from_slice(&self.out[..len]);
        len
    }

    pub(crate) fn sent(&mut self, len: usize) {
        self.out.drain(..len);
        self.current.iter_mut().for_each(|current| current.given += len as u64);
        self.finish();
    }

    fn begin(&mut self, ask: Ask) {
        let Request { key, upload, .. } = ask.request;
        let mut talk = Conversation::asking(ask.request, ask.abort_after);
        let mut named = [0; Request::LEN];
        let len = talk.next(&mut named);
        talk.sent(len);
        let path: String = named.iter().map(|byte| format!("{byte:02x}")).collect();
        let method = if is_post(key, upload) { "POST" } else { "GET" };
        let framing = match is_chunked(&ask.request) {
            true => "Transfer-Encoding: chunked\r\n".to_owned(),
            false if method == "GET" => String::new(),
            false => format!("Content-Length: {upload}\r\n"),
        };
        let head = format!("{method} /{path} HTTP/1.1\r\nHost: www.csp.test\r\n{framing}\r\n");
        self.out.extend(head.into_bytes());
        self.begun += 1;
        let written = upload == 0 && !is_chunked(&ask.request);
        let (responded, response, complete) = (false, None, None);
        self.current = Some(Current { ask, talk, written, given: 0, responded, response, complete });
    }

    /// Writes the next piece of the request's body; returns whether there may be another one.
    fn write_body(&mut self) -> bool {
        let Some(current) = self.current.as_mut().filter(|current| !current.written) else { return false };
        let request = &current.ask.request;
        let mut piece = [0; CHUNK_MAX as usize];
        let size = 1 + dice(request.key, 2 + current.talk.given() as u32, CHUNK_MAX);
        let len = current.talk.next(&mut piece[..size as usize]);
        current.talk.sent(len);
        match is_chunked(request) {
            true if len > 0 => put_chunk(&mut self.out, &piece[..len]),
            true => self.out.extend_from_slice(LAST_CHUNK),
            false => self.out.extend_from_slice(&piece[..len]),
        }
        current.written = match is_chunked(request) {
            true => len == 0,
            false => current.talk.given() == Request::LEN as u64 + u64::from(request.upload),
        };
        !current.written
    }

    /// Processes bytes of responses.
    pub(crate) fn take(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.wrong.is_none() {
            let left = bytes.len();
            let Some(current) = self.current.as_mut().filter(|current| current.complete.is_none()) else {
                return self.complain(&format!("{left} bytes that answer no request"));
            };
            current.responded = true;
            if let Err(what) = Self::take_some(current, &mut self.head, &mut self.closing, &mut bytes) {
                self.complain(&what);
            }
            self.finish();
        }
    }

    /// Processes a part of `bytes`.
    fn take_some(
        current: &mut Current,
        head: &mut Vec<u8>,
        closing: &mut bool,
        bytes: &mut &[u8],
    ) -> Result<(), String> {
        let Some((line, body)) = &mut current.response else {
            let Some(head) = take_head(head, bytes)? else { return Ok(()) };
            if head.line.starts_with("HTTP/1.1 1") {
                return Ok(());
            }
            *closing |= head.closes;
            let framing = head.framing.ok_or_else(|| format!("{}: a body without framing", head.line))?;
            current.response = Some((head.line, Body::new(framing)));
            return Self::take_end(current);
        };
        if let Some(payload) = body.take(bytes)?
            && line == "HTTP/1.1 200 OK"
        {
            current.talk.take(payload);
        }
        Self::take_end(current)
    }

    /// Processes the end of the response, if it has come.
    fn take_end(current: &mut Current) -> Result<(), String> {
        let Some((line, body)) = &current.response else { return Ok(()) };
        if !body.is_complete() {
            return Ok(());
        }
        let ended = match line.as_str() {
            "HTTP/1.1 200 OK" => {
                current.talk.on_end();
                current.talk.ended(None)
            }
            line => Ended::Failed(line.to_owned()),
        };
        let is_short = matches!(ended, Ended::Short(_));
        current.complete = Some(ended);
        match is_short {
            true => Err("a complete response is too short".to_owned()),
            false => current.talk.wrong.take().map_or(Ok(()), Err),
        }
    }

    /// Ends the present request, if the response is complete and nothing of the request is left to be sent.
    fn finish(&mut self) {
        let sent = |it: &Current| it.written && self.out.is_empty() || self.closing;
        let over = |it: &mut Current| it.complete.is_some() && sent(it) && !it.talk.aborts();
        let Some(current) = self.current.take_if(over) else { return };
        if self.closing {
            self.out.clear(); // nobody reads the rest
        }
        let key = current.ask.request.key;
        self.done.extend(current.complete.map(|ended| (key, ended)));
    }

    pub(crate) fn on_end(&mut self) {
        self.peer_finished = true;
    }

    /// Returns how all requests ended that have begun, when the connection ends.
    pub(crate) fn ended(&mut self, failure: Option<String>) -> Vec<(u32, Ended)> {
        if self.begun == 0
            && let Some(ask) = self.waiting.pop_front()
        {
            // The connection was never there.
            let why = failure.clone().unwrap_or_else(|| "the connection ended".to_owned());
            self.done.push((ask.request.key, Ended::Failed(why)));
        }
        // The other side ends a connection between two requests, and the second one was under way.
        let is_stale = |it: &mut Current| self.begun > 1 && self.peer_finished && !it.responded;
        if let Some(stale) = self.current.take_if(is_stale) {
            self.waiting.push_front(stale.ask);
        }
        if let Some(mut current) = self.current.take() {
            self.wrong = self.wrong.take().or(current.talk.wrong.take());
            let cut = || match failure {
                Some(why) => Ended::Failed(why),
                None => current.talk.ended(None),
            };
            let ended = current.complete.unwrap_or_else(|| match cut() {
                // All bytes have come, but not the end of their framing.
                Ended::Complete => Ended::Short(u64::from(current.ask.request.download)),
                ended => ended,
            });
            self.done.push((current.ask.request.key, ended));
        }
        std::mem::take(&mut self.done)
    }

    /// Returns how all requests ended that have begun, when the client aborts the connection.
    pub(crate) fn aborted(&mut self) -> Vec<(u32, Ended)> {
        if let Some(mut current) = self.current.take() {
            self.wrong = self.wrong.take().or(current.talk.wrong.take());
            self.done.push((current.ask.request.key, Ended::Aborted));
        }
        std::mem::take(&mut self.done)
    }

    pub(crate) fn left(&mut self) -> (Vec<Ask>, bool) {
        (self.waiting.drain(..).collect(), self.more)
    }

    fn complain(&mut self, what: &str) {
        let key = self.key();
        self.wrong.get_or_insert_with(|| format!("response to {key:08x}: {what}"));
    }
}

fn is_chunked(request: &Request) -> bool {
    is_post(request.key, request.upload) && dice(request.key, 0, 2) == 0
}
