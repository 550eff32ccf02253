//! A response from the cache: its head, and its body as the client has room.

use csp_cache::conditions::Part;
use csp_http::forward::{self, Edits, Extra, ResponseForward};
use csp_http::head::{Framing, HeadReader};
use csp_http::limits::{FIELDS_MAX, HEAD_LEN_MAX};
use csp_proxy_core::service::upstream::{Ends, UpstreamEnd};

use csp_types::FlowLabel;

use super::cache::Looked;
use super::compressed::Coded;
use super::{Exchange, Flow, Stage};
use crate::Reason;
use crate::caching::CacheResult;
use crate::client::Downstream;
use crate::compressor::Compressor;
use crate::framer::Framer;
use crate::shared::{Cx, Shared};

/// Most bytes of a stored body that are written at once.
pub(super) const PIECE_MAX: usize = 64 << 10;
/// Fields of the whole response that 416 does not repeat.
const OF_WHOLE: [&[u8]; 4] = [b"cache-control", b"expires", b"etag", b"last-modified"];
/// Fields that 304 does not repeat (RFC 9110 §15.4.5).
const OF_CONTENT: [&[u8]; 3] = [b"content-type", b"content-encoding", b"content-language"];

impl Exchange {
    /// Begins what the cache has said: the stored response is sent, or the exchange waits for another one.
    /// Returns whether no server is asked.
    pub(super) fn begin_cached(&mut self, cx: &mut Cx<'_, impl Ends>) -> bool {
        let Some(state) = self.cache.as_deref_mut() else { return false };
        if state.object.is_some() {
            self.stage = Stage::Stored;
            return true;
        }
        if self.stage == Stage::Shared {
            let caching = &mut cx.shared.work.caching;
            if state.waits(cx.now, (cx.client, self.serial), caching) {
                return true;
            }
            self.stage = Stage::New;
        }
        false
    }

    /// Looks whether the response that the exchange waits for is there.
    pub(super) fn look_again(&mut self, cx: &mut Cx<'_, impl Ends>) -> Flow {
        let who = (cx.client, self.serial);
        let rule = self.rule.and_then(|at| self.service.rules().get(at));
        let (Some(state), Some(cache)) =
            (self.cache.as_deref_mut(), rule.and_then(|rule| rule.cache.as_ref()))
        else {
            return Flow::Wait;
        };
        let work = &mut cx.shared.work;
        match state.look(cx.now, cache, work) {
            Looked::Shared => {
                if state.waits(cx.now, who, &mut work.caching) {
                    return Flow::Wait;
                }
                self.stage = Stage::New;
            }
            Looked::Stored => {
                state.waits_no_more(who, &mut work.caching);
                self.stage = Stage::Stored;
                return Flow::Moved;
            }
            Looked::Ask | Looked::Refused => {
                state.waits_no_more(who, &mut work.caching);
                state.prepare(&mut self.head);
                self.stage = Stage::New;
            }
        }
        self.open(cx);
        Flow::Moved
    }

    /// Sends a stored response instead of that of the member, whose connection is left.
    pub(super) fn send_stored(&mut self, cx: &mut Cx<'_, impl Ends>, is_complete: bool) -> Flow {
        self.part(cx, is_complete);
        self.stage = Stage::Stored;
        self.progress = cx.now;
        Flow::Moved
    }

    /// Sends a stale response instead of an answer of the gateway. Returns whether there is one.
    pub(super) fn falls_back(
        &mut self,
        cx: &mut Cx<'_, impl Ends>,
        down: &impl Downstream,
        reason: Reason,
    ) -> bool {
        let is_failure = matches!(reason.status(), 502..=504) && reason != Reason::OnlyIfCached;
        let Some(state) = self.cache.as_deref_mut().filter(|_| is_failure && down.is_awaited()) else {
            return false;
        };
        if !state.falls_back(cx.now, &mut cx.shared.work) {
            return false;
        }
        self.failure = None;
        self.send_stored(cx, false);
        true
    }

    /// Passes payload of a member on to the client, and stores what passes.
    pub(super) fn stored_piece(
        &mut self,
        cx: &mut Cx<'_, impl Ends>,
        down: &mut impl Downstream,
        label: FlowLabel,
        readable: usize,
    ) -> Flow {
        let (Some(framer), Some(state)) = (&mut self.down_framer, self.cache.as_deref_mut()) else {
            return Flow::Wait;
        };
        let work = &mut cx.shared.work;
        let len = framer.permits(readable, down.out(), &mut work.buffers).min(state.piece());
        if !down.flush(cx.ends, &mut work.buffers) {
            return Flow::Wait;
        }
        let rule = self.rule.and_then(|at| self.service.rules().get(at));
        let cache = rule.and_then(|rule| rule.cache.as_ref());
        let before = state.mark();
        if let Some(mut end) = cx.ends.upstream(label) {
            end.peek(len).for_each(|slice| state.store(slice, cache, (cx.now, &mut *work)));
        }
        let moved = down.pass_response(cx.ends, label, len);
        state.unstore(before + moved);
        state.piece_passed(len, moved);
        self.passed_down(cx, label, moved)
    }

    /// Returns the `Cache-Status` of a response that a member has sent, if clients get it.
    pub(super) fn report(&self) -> Option<Extra<'static>> {
        let state = self.cache.as_deref().filter(|state| state.result.is_some())?;
        let cache = self.rule().and_then(|rule| rule.cache.as_ref())?;
        cache.config.reports.then(|| (&b"Cache-Status"[..], state.report()))
    }

    /// Writes the next part of a stored response.
    pub(super) fn pass_stored(&mut self, cx: &mut Cx<'_, impl Ends>, down: &mut impl Downstream) -> Flow {
        if !down.flush(cx.ends, &mut cx.shared.work.buffers) {
            return Flow::Wait;
        }
        let Some(state) = self.cache.as_deref_mut() else { return Flow::Wait };
        if !state.is_begun {
            return self.begin_stored(cx, down);
        }
        if self.compressor.is_some() {
            return self.pass_stored_compressed(cx, down);
        }
        let body = state.object.as_deref().map_or(&b""[..], |object| object.body());
        let piece = body.get(state.left.clone()).unwrap_or_default();
        let written = down.write(cx.ends, &piece[..piece.len().min(PIECE_MAX)]);
        state.left.start += written;
        let is_over = state.left.is_empty();
        if let Some(framer) = &mut self.down_framer {
            framer.passed(written);
        }
        if written > 0 {
            self.progress = cx.now;
        }
        match (is_over, written) {
            (true, _) => self.end_stored(down),
            (false, 0) => Flow::Wait,
            (false, _) => Flow::Moved,
        }
    }

    fn pass_stored_compressed(&mut self, cx: &mut Cx<'_, impl Ends>, down: &mut impl Downstream) -> Flow {
        let Some(state) = self.cache.as_deref() else { return Flow::Wait };
        let (object, left) = (state.object.clone(), state.left.clone());
        let body = object.as_deref().map_or(&b""[..], |object| object.body());
        let piece = body.get(left).unwrap_or_default();
        let taken = self.compressed_stored(cx, down, piece);
        if let Some(state) = self.cache.as_deref_mut() {
            state.left.start += taken;
        }
        match taken < piece.len() {
            true if taken > 0 => Flow::Moved,
            true => Flow::Wait,
            false if !self.finish_compressed(cx, down) => Flow::Wait,
            false => {
                if let Some(framer) = &mut self.down_framer {
                    framer.end(down.out(), &mut cx.shared.work.buffers);
                }
                down.flush(cx.ends, &mut cx.shared.work.buffers);
                self.end_stored(down)
            }
        }
    }

    fn end_stored(&mut self, down: &mut impl Downstream) -> Flow {
        down.end();
        self.stage = Stage::New;
        Flow::Over
    }

    fn begin_stored(&mut self, cx: &mut Cx<'_, impl Ends>, down: &mut impl Downstream) -> Flow {
        let closes = self.closes(cx.shared);
        let Shared { scratch, work, places, .. } = &mut *cx.shared;
        let unix = work.clock.unix_ms(cx.now) / 1_000;
        let rule = self.rule.and_then(|at| self.service.rules().get(at));
        let reports = rule.and_then(|rule| rule.cache.as_ref()).is_some_and(|cache| cache.config.reports);
        let edits = rule.map_or(Edits::NONE, |rule| &rule.response_edits);
        let Some(state) = self.cache.as_deref() else { return Flow::Wait };
        let Some(object) = state.object.clone() else { return Flow::Wait };
        let (part, all) = (state.part(&object, unix), object.body().len());
        let (status, left, framing) = shape(&part, object.status(), all);
        let coded = match part {
            Part::Whole | Part::NotModified => self.coded_object(&object, framing, (scratch, places)),
            _ => Coded::No,
        };
        let framing = coded.source(framing);
        let Some(plan) = down.respond(framing, closes) else {
            down.cut();
            return Flow::Over;
        };
        let range = content_range(&part, all);
        let (mut digits, mut told) = ([0; 20], [0; 64]);
        let age = decimal(object.times().age(unix), &mut digits);
        let report =
            if reports { report(state.result, object.times().fresh_for(unix), &mut told) } else { b"" };
        let extra: [Extra<'_>; 3] = match part {
            Part::Range(_) | Part::Unsatisfiable => {
                [(b"Age", age), (b"Content-Range", range.as_bytes()), (b"Cache-Status", report)]
            }
            _ => [(b"Age", age), (b"Cache-Status", report), (b"", b"")],
        };
        let count = extra.iter().position(|(_, value)| value.is_empty()).unwrap_or(extra.len());
        let mut text = std::mem::take(&mut work.room);
        let head = match part {
            Part::Whole => object.head(),
            _ => {
                of_part(&mut text, status, &object);
                &text[..]
            }
        };
        // It was within the limits of the service when it came, which may be others now.
        let (head_len_max, fields_max) = (HEAD_LEN_MAX, FIELDS_MAX);
        let limits = csp_http::Limits { head_len_max, fields_max, ..self.service.limits };
        let response = HeadReader::default().response(&[head], true, &limits, scratch);
        let how = ResponseForward { plan: Some(plan), date: None, edits, extra: &extra[..count] };
        let written = match &response {
            Ok(Some(response)) => forward::response(&mut work.head, response, &how).ok(),
            _ => None, // no head that was accepted before
        };
        let written = written.and_then(|written| coded.head(&mut work.head, written, &mut text));
        let is_bodyless = left.is_empty() || self.asked.is_head;
        if let Some(state) = self.cache.as_deref_mut() {
            (state.left, state.is_begun) = (left, true);
        }
        work.room = text;
        let Some(written) = written else {
            down.cut();
            return Flow::Over;
        };
        self.record.status = status;
        self.down_framer = Some(Framer::new(framing, plan.framing));
        self.compressor = coded.coding().map(|coding| Box::new(Compressor::new(coding, places)));
        let is_sent = down.head(cx.ends, &work.head[..written], is_bodyless, &mut work.buffers);
        if !is_sent {
            down.cut();
            return Flow::Over;
        }
        if is_bodyless { self.end_stored(down) } else { Flow::Moved }
    }
}

/// Returns the status, the bytes and the framing of what is sent of a stored response of this status.
fn shape(part: &Part, status: u16, all: usize) -> (u16, std::ops::Range<usize>, Framing) {
    let (status, left) = match part {
        Part::Whole => (status, 0..all),
        Part::NotModified => (304, 0..0),
        Part::Range(range) => (206, range.clone()),
        Part::Unsatisfiable => (416, 0..0),
    };
    let framing = match status {
        204 | 304 => Framing::None,
        _ => Framing::Length(left.len() as u64),
    };
    (status, left, framing)
}

/// Returns the value of `Content-Range` (RFC 9110 §14.4); empty: there is none.
fn content_range(part: &Part, all: usize) -> String {
    match part {
        Part::Range(range) => format!("bytes {}-{}/{all}", range.start, range.end - 1),
        Part::Unsatisfiable => format!("bytes */{all}"),
        Part::Whole | Part::NotModified => String::new(),
    }
}

/// Writes the head of a part of a stored response: of another status, without what a part must not say.
fn of_part(text: &mut Vec<u8>, status: u16, object: &csp_cache::Object) {
    text.clear();
    text.extend_from_slice(match status {
        206 => b"HTTP/1.1 206 Partial Content\r\n",
        304 => b"HTTP/1.1 304 Not Modified\r\n",
        _ => b"HTTP/1.1 416 Range Not Satisfiable\r\n",
    });
    let is_content = |name: &[u8]| OF_CONTENT.iter().any(|known| name.eq_ignore_ascii_case(known));
    let fields = object.fields().filter(|(name, _)| !name.eq_ignore_ascii_case(b"content-length"));
    let is_whole = |name: &[u8]| OF_WHOLE.iter().any(|known| name.eq_ignore_ascii_case(known));
    let drops = |name: &[u8]| status != 206 && is_content(name) || status == 416 && is_whole(name);
    for (name, value) in fields.filter(|(name, _)| !drops(name)) {
        [name, b": ", value, b"\r\n"].iter().for_each(|part| text.extend_from_slice(part));
    }
    text.extend_from_slice(b"\r\n");
}

/// Writes what `Cache-Status` says of a stored response.
fn report(result: Option<CacheResult>, fresh_for: Option<u64>, room: &mut [u8; 64]) -> &[u8] {
    let start: &[u8] = match result {
        Some(CacheResult::Revalidated) => b"csp; fwd=stale; fwd-status=304",
        _ => b"csp; hit; ttl=",
    };
    room[..start.len()].copy_from_slice(start);
    let mut len = start.len();
    if result != Some(CacheResult::Revalidated) {
        let mut digits = [0; 20];
        let ttl = decimal(fresh_for.unwrap_or(0), &mut digits);
        room[len..len + ttl.len()].copy_from_slice(ttl);
        len += ttl.len();
    }
    &room[..len]
}

/// Writes a number.
fn decimal(mut number: u64, room: &mut [u8; 20]) -> &[u8] {
    let mut at = room.len();
    loop {
        at -= 1;
        room[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &room[at..];
        }
    }
}
