//! An exchange whose member speaks HTTP/2: it uses a stream of a connection that it shares with others.

use csp_http::Fault;
use csp_http::body::Piece;
use csp_http::forward::{self, Edits, ResponseForward, TooLong};
use csp_http::head::{Framing, HeadReader, Response};
use csp_http::limits::HEAD_LEN_MAX;
use csp_http2::SendError;
use csp_proxy_core::service::upstream::{Ends, Opened};
use csp_types::{FlowLabel, Instant};

use super::cache::Heard;
use super::member::{Head, Unsent, answer_to, hear_for_cache};
use super::request::of_rule;
use super::{Exchange, Flow, Stage};
use crate::Reason;
use crate::client::Downstream;
use crate::compressor::Places;
use crate::links::{self, Pick, Reset, StreamId};
use crate::pool::PoolId;
use crate::shared::{Cx, Shared, Work};

/// Longest part of a body that is kept, so that it can be sent again, in bytes: a stream has room for as many
/// at once.
pub(super) const REPLAY_MAX: usize = csp_http2::limits::SEND_BUFFER_MAX / 2;

impl Exchange {
    /// Opens a stream, asks for a connection, or waits for either.
    pub(super) fn open_stream(&mut self, cx: &mut Cx<'_, impl Ends>) {
        self.find_stream(cx.now, cx.client, cx.shared);
        if let Stage::Stream(id) = self.stage
            && let Some((label, ..)) = cx.shared.links.server(id.link)
        {
            cx.ends.relate(cx.client, label);
        }
    }

    fn find_stream(&mut self, now: Instant, client: FlowLabel, shared: &mut Shared) {
        let Some(name) = &self.target else { return };
        let pool = shared.members.pool(name);
        let (was_waiting, before) = (self.stage == Stage::Waiting, self.pool.replace(pool));
        let spread = (self.service.member_http2.connections, !self.over_http2.is_narrow);
        let pick = shared.links.pick(pool, &self.excluded, self.over_http2.avoid, spread);
        if pick == Pick::Wait {
            if !was_waiting {
                (self.stage, self.progress) = (Stage::Waiting, now);
            }
            return shared.links.wait(pool, (client, self.serial));
        }
        if was_waiting && let Some(before) = before {
            shared.links.unwait(before, (client, self.serial), false);
        }
        match pick {
            Pick::Link(link) => {
                shared.upstreams.reused += 1;
                self.record.attempts = self.record.attempts.saturating_add(1);
                self.record.reused = true;
                self.begin_stream(now, client, link, shared);
            }
            _ => self.ask(now, client, shared),
        }
    }

    /// Uses a connection that the core has opened.
    pub(super) fn opened_link(
        &mut self,
        now: Instant,
        (client, opened, pool): (FlowLabel, Opened, PoolId),
        shared: &mut Shared,
    ) {
        shared.upstreams.opened += 1;
        let bounds = (self.service.member_http2.streams_max, self.service.timeouts.upstream_idle);
        let link = shared.links.insert(now, &opened, pool, bounds);
        self.begin_stream(now, client, link, shared);
        shared.links.opening_over(pool);
    }

    /// Sends the head on a stream of a connection.
    fn begin_stream(&mut self, now: Instant, client: FlowLabel, link: u32, shared: &mut Shared) {
        self.stage = Stage::New;
        let is_whole = matches!(self.asked.framing, Framing::None | Framing::Length(0));
        let (who, most) = ((client, self.serial), self.service.pool.requests_max);
        match shared.links.begin(link, (&self.head, is_whole), who, most) {
            Ok(id) => {
                self.stage = Stage::Stream(id);
                (self.joined, self.sent, self.progress) = (Some(now), None, now);
                (self.head_sent, self.over_http2.is_ended) = (self.head.len(), is_whole);
                self.record.member = shared.links.server(link).map(|(_, _, address)| address);
                self.record.phases.connect = now - self.record.began;
                if !self.replay.is_empty() {
                    shared.links.send(id, &self.replay, false);
                }
                if self.request_ended {
                    self.end_stream(now, shared);
                }
            }
            Err(SendError::Head) => self.failure = Some(Reason::RequestTooLong),
            Err(_) => {
                // Each time there is one connection less.
                shared.links.retire(link);
                self.find_stream(now, client, shared);
            }
        }
    }

    /// There is no room for another connection: those that exist are used.
    pub(super) fn narrow(&mut self, now: Instant, client: FlowLabel, shared: &mut Shared) {
        self.opening_over(shared);
        self.stage = Stage::New;
        self.over_http2.is_narrow = true;
        self.find_stream(now, client, shared);
    }

    /// The request for a connection was answered or withdrawn.
    pub(super) fn opening_over(&self, shared: &mut Shared) {
        if self.over_http2.is_spoken
            && let Some(pool) = self.pool
        {
            shared.links.opening_over(pool);
        }
    }

    /// Leaves the stream, or the queue for one.
    pub(super) fn leave_stream(&self, stage: Stage, now: Instant, client: FlowLabel, shared: &mut Shared) {
        match (stage, self.pool) {
            (Stage::Stream(id), _) => shared.links.leave(now, id),
            (_, Some(pool)) => shared.links.unwait(pool, (client, self.serial), true),
            _ => {}
        }
    }

    /// Passes on a part of the request's body.
    pub(super) fn stream_piece(
        &mut self,
        cx: &mut Cx<'_, impl Ends>,
        down: &mut impl Downstream,
        id: StreamId,
        piece: Piece,
    ) -> Flow {
        let most = self.service.body_len_max;
        match piece {
            Piece::Framing { len, chunk } => {
                down.consume(cx.ends, len);
                self.progress = cx.now;
                if chunk.is_some_and(|size| size.saturating_add(self.up_framer.passed) > most) {
                    return self.fail(cx, down, Reason::BodyTooLong);
                }
            }
            Piece::Payload(readable) => {
                if self.up_framer.passed.saturating_add(readable as u64) > most {
                    return self.fail(cx, down, Reason::BodyTooLong);
                }
                let moved = self.stream_up(cx, down, id, readable);
                if moved == 0 {
                    return Flow::Wait;
                }
                self.progress = cx.now;
                down.moved(moved);
                self.up_framer.passed(moved);
            }
            Piece::Trailers(len) => {
                self.touch(cx);
                let mut section = std::mem::take(&mut cx.shared.work.room);
                section.clear();
                down.copy(cx.ends, len, &mut section);
                self.stream_trailers(cx, id, &section);
                cx.shared.work.room = section;
                down.consume(cx.ends, len);
                down.moved(len);
            }
            Piece::More | Piece::End => return Flow::Wait,
        }
        Flow::Moved
    }

    /// Ends the request with its trailers but for those that the rule removes.
    pub(super) fn stream_trailers(&mut self, cx: &mut Cx<'_, impl Ends>, id: StreamId, section: &[u8]) {
        let Shared { links, work, .. } = &mut *cx.shared;
        let edits = of_rule(&self.service, self.rule);
        let written = forward::trailers(&mut work.head, section, edits).unwrap_or(0);
        // The section of a chunked body begins behind its last chunk.
        let section = work.head.get(..written).and_then(|all| all.strip_prefix(b"0\r\n"));
        links.trailers(id, section.unwrap_or_default());
        self.over_http2.is_ended = true;
    }

    /// Sends payload of the request, and keeps it while all of it is kept. Returns the number of bytes sent.
    fn stream_up(
        &mut self,
        cx: &mut Cx<'_, impl Ends>,
        down: &mut impl Downstream,
        id: StreamId,
        len: usize,
    ) -> usize {
        let Shared { links, work, .. } = &mut *cx.shared;
        let is_kept = !self.body_touched && self.down_framer.is_none();
        if is_kept && self.replay.capacity() == 0 {
            self.replay = work.buffers.take();
        }
        let replay = &mut self.replay;
        let moved = down.take_request(cx.ends, len, &mut |bytes| {
            let taken = links.send(id, bytes, false);
            if is_kept {
                replay.extend_from_slice(&bytes[..taken]);
            }
            taken
        });
        if moved > 0 && (!is_kept || self.replay.len() > REPLAY_MAX) {
            self.body_touched = true;
            work.buffers.give(std::mem::take(&mut self.replay));
        }
        moved
    }

    /// The request is complete: sends its end, if the exchange has a stream.
    pub(super) fn end_stream(&mut self, now: Instant, shared: &mut Shared) {
        let Stage::Stream(id) = self.stage else { return };
        if !std::mem::replace(&mut self.over_http2.is_ended, true) {
            shared.links.send(id, &[], true);
        }
        self.sent.get_or_insert(now);
    }

    /// Passes on what the member has said next.
    pub(super) fn hear_stream(
        &mut self,
        cx: &mut Cx<'_, impl Ends>,
        down: &mut impl Downstream,
        id: StreamId,
    ) -> Flow {
        let Some(stream) = cx.shared.links.stream(id) else { return self.lost_stream(cx, down, id, None) };
        if let Some(head) = stream.heads.pop_front() {
            return self.stream_head(cx, down, &head);
        }
        let reset = stream.reset;
        if self.down_framer.is_some() {
            if !cx.shared.links.data(id).is_empty() {
                if self.compressor.is_some() {
                    return self.compressed_stream(cx, down, id);
                }
                return self.stream_payload(cx, down, id);
            }
            let trailers = cx.shared.links.stream(id).and_then(|stream| stream.trailers.take());
            if let Some(trailers) = trailers {
                return self.stream_end(cx, down, &trailers);
            }
        }
        match reset {
            Some(reset) => self.lost_stream(cx, down, id, Some(reset)),
            None => self.flush_compressed(cx, down),
        }
    }

    fn stream_head(
        &mut self,
        cx: &mut Cx<'_, impl Ends>,
        down: &mut impl Downstream,
        head: &links::Head,
    ) -> Flow {
        let closes = self.closes(cx.shared);
        let limits = csp_http::Limits { head_len_max: HEAD_LEN_MAX, ..self.service.limits };
        let Shared { scratch, work, places, .. } = &mut *cx.shared;
        let response = match HeadReader::default().response(&[&head.text], true, &limits, scratch) {
            Ok(Some(response)) => response,
            Ok(None) => return self.fail(cx, down, Reason::Member(Fault::TruncatedHead)),
            Err(refusal) => return self.fail(cx, down, Reason::Member(refusal.fault)),
        };
        if response.is_interim() {
            self.over_http2.is_begun = true;
            let how = ResponseForward { plan: None, date: None, edits: Edits::NONE, extra: &[] };
            let len = match down.interim(response.status()) {
                true => forward::response(&mut work.head, &response, &how).unwrap_or(0),
                false => 0,
            };
            return if len > 0 { self.interim(cx, down, len) } else { Flow::Moved };
        }
        if response.status() == 101 {
            return self.fail(cx, down, Reason::Member(Fault::UnexpectedSwitch)); // RFC 9113 §8.6
        }
        work.buffers.give(std::mem::take(&mut self.replay));
        let (of, source) = ((&*self.service, self.rule), source_of(&response, self.asked.is_head));
        if hear_for_cache(&mut self.cache, of, (&response, source, true), (cx.now, work)) != Heard::Pass {
            return self.send_stored(cx, true);
        }
        let head = self.stream_answer(down, &response, closes, (cx.now, work, places));
        self.response(cx, down, head)
    }

    /// Begins the response to the client, and writes its head to the worker's buffer.
    fn stream_answer(
        &self,
        down: &mut impl Downstream,
        response: &Response<'_>,
        closes: bool,
        (now, work, places): (Instant, &mut Work, &Places),
    ) -> Head {
        let source = source_of(response, self.asked.is_head);
        let coded = self.coded(response, source, places);
        let (source, coding) = (coded.source(source), coded.coding());
        let date = work.clock.date(now);
        let (edits, report) = (self.response_edits(), self.report());
        let sent = answer_to(down, response, source, closes).and_then(|plan| {
            let extra = self.filtered.cors().or(report);
            let how = ResponseForward { plan, date, edits, extra: extra.as_slice() };
            let written = forward::response(&mut work.head, response, &how);
            let written = written.map_err(|TooLong(_)| Unsent::TooLong)?;
            Ok((plan, coded.head(&mut work.head, written, &mut work.room).ok_or(Unsent::TooLong)?))
        });
        Head { status: response.status(), source, coding, sent }
    }

    fn stream_payload(
        &mut self,
        cx: &mut Cx<'_, impl Ends>,
        down: &mut impl Downstream,
        id: StreamId,
    ) -> Flow {
        let Some(framer) = &mut self.down_framer else { return Flow::Wait };
        let Shared { links, work, .. } = &mut *cx.shared;
        let len = framer.permits(links.data(id).len(), down.out(), &mut work.buffers);
        if !down.flush(cx.ends, &mut work.buffers) {
            return Flow::Wait;
        }
        let data = links.data(id);
        let moved = down.write(cx.ends, &data[..len.min(data.len())]);
        if let Some(state) = self.cache.as_deref_mut().filter(|state| state.is_storing()) {
            let rule = self.rule.and_then(|at| self.service.rules().get(at));
            state.store(&data[..moved], rule.and_then(|rule| rule.cache.as_ref()), (cx.now, work));
        }
        links.release(id, moved);
        framer.passed(moved);
        if moved > 0 { Flow::Moved } else { Flow::Wait }
    }

    fn stream_end(
        &mut self,
        cx: &mut Cx<'_, impl Ends>,
        down: &mut impl Downstream,
        trailers: &[u8],
    ) -> Flow {
        if self.compressor.is_some() {
            return self.response_end(cx, down); // without them
        }
        if let Some(framer) = self.down_framer.as_mut().filter(|_| !trailers.is_empty()) {
            let framed = framer.trailers(down.out(), &mut cx.shared.work.buffers);
            self.trailers_down(cx, down, framed, trailers);
        }
        self.response_end(cx, down)
    }

    /// The stream has ended without a complete response. The request goes to another connection, or is
    /// answered.
    fn lost_stream(
        &mut self,
        cx: &mut Cx<'_, impl Ends>,
        down: &mut impl Downstream,
        id: StreamId,
        reset: Option<Reset>,
    ) -> Flow {
        let (is_unprocessed, is_fault, is_reset) = match reset {
            Some(reset) => (reset.unprocessed, reset.is_fault, reset.is_reset),
            None => (false, false, false),
        };
        let is_answered = self.down_framer.is_some() || self.over_http2.is_begun;
        let may_repeat = !is_answered && (is_unprocessed || (self.asked.is_idempotent && !is_fault));
        let is_free = is_unprocessed || self.record.reused;
        let retries = self.service.retries;
        let has_tries = if is_free { self.over_http2.again <= retries } else { self.tried < retries };
        if !may_repeat || self.body_touched || !has_tries || !down.is_awaited() {
            let reason = if is_reset { Reason::MemberReset } else { Reason::MemberClosed };
            return self.fail(cx, down, reason);
        }
        let server = cx.shared.links.server(id.link).map(|(_, server, _)| server);
        self.part(cx, false);
        self.over_http2.avoid = Some(id.link);
        self.failed = Some(if is_reset { Reason::MemberReset } else { Reason::MemberClosed });
        if is_free {
            self.over_http2.again += 1;
        } else {
            self.tried += 1;
            server.map(|server| self.excluded.insert(server));
        }
        self.count_retry(cx.shared);
        self.open_stream(cx);
        Flow::Moved
    }
}

/// Returns the framing of a response's body: payload comes without a frame.
fn source_of(response: &Response<'_>, is_head: bool) -> Framing {
    match response.framing(is_head) {
        Framing::Chunked => Framing::UntilClose,
        framing => framing,
    }
}
