//! What goes to the member: the head, then the body as the client sends it.

use csp_http::body::Piece;
use csp_http::forward::{self, Edits};
use csp_http::head::Framing;
use csp_proxy_core::service::local::Step;
use csp_proxy_core::service::upstream::{Ends, UpstreamEnd};
use csp_types::FlowLabel;

use super::stream::REPLAY_MAX;
use super::{Exchange, Flow, Stage};
use crate::Reason;
use crate::client::Downstream;
use crate::shared::{Cx, Shared};
use crate::spec::HttpService;

impl Exchange {
    /// Writes what waits for the member. Returns whether something was written.
    pub(super) fn write_up(&mut self, cx: &mut Cx<'_, impl Ends>) -> bool {
        let Stage::Joined(label) = self.stage else { return false };
        let written = if self.is_written() { 0 } else { self.write_parts(cx, label) };
        if written > 0 {
            self.progress = cx.now;
        }
        if self.request_ended && self.sent.is_none() && self.takes_request() {
            self.sent = Some(cx.now);
            if let Some(member) = cx.shared.members.table.get_mut(label) {
                member.side.request_end();
            }
        }
        written > 0
    }

    /// Returns whether nothing waits for the member that the exchange itself keeps.
    pub(super) fn is_written(&self) -> bool {
        self.head_sent == self.head.len() && self.replay_left() == 0 && self.up.is_empty()
    }

    /// Returns how many bytes that are kept of the body wait for the member.
    fn replay_left(&self) -> usize {
        self.replay.len() - usize::from(self.replay_sent)
    }

    /// Returns whether what the member gets of the body is kept, so that it can be sent again: all of a short
    /// one whose length is known.
    pub(super) fn keeps_body(&self) -> bool {
        let is_short = matches!(self.asked.framing, Framing::Length(len) if len <= REPLAY_MAX as u64);
        is_short && !self.body_touched && self.down_framer.is_none()
    }

    fn write_parts(&mut self, cx: &mut Cx<'_, impl Ends>, label: FlowLabel) -> usize {
        let Some(mut end) = cx.ends.upstream(label) else { return 0 };
        // A body that is kept has no frame of the gateway's.
        let (head, replay) = (&self.head[self.head_sent..], &self.replay[self.replay_sent.into()..]);
        let written = end.write(&[head, replay, self.up.waiting()]);
        drop(end);
        let of_head = written.min(head.len());
        let of_replay = (written - of_head).min(replay.len());
        self.head_sent += of_head;
        self.replay_sent += of_replay as u16; // of at most REPLAY_MAX
        self.up.written(written - of_head - of_replay, &mut cx.shared.work.buffers);
        if let Some(member) = cx.shared.members.table.get_mut(label) {
            member.side.sent(written);
        }
        written
    }

    /// Passes on a part of the request's body. Called while the exchange
    /// [takes the request](Self::takes_request).
    pub(crate) fn request_piece(
        &mut self,
        cx: &mut Cx<'_, impl Ends>,
        down: &mut impl Downstream,
        piece: Piece,
    ) -> Flow {
        if let Stage::Stream(id) = self.stage {
            return self.stream_piece(cx, down, id, piece);
        }
        let Stage::Joined(label) = self.stage else { return Flow::Wait };
        match piece {
            Piece::Framing { len, chunk } => {
                down.consume(cx.ends, len);
                self.touch(cx);
                if let Some(size) = chunk {
                    if size.saturating_add(self.up_framer.passed) > self.service.body_len_max {
                        return self.fail(cx, down, Reason::BodyTooLong);
                    }
                    self.up_framer.chunk(size, &mut self.up, &mut cx.shared.work.buffers);
                }
            }
            Piece::Payload(readable) => {
                // Only a client of HTTP/2 can send a body of which no length was known before.
                if self.up_framer.passed.saturating_add(readable as u64) > self.service.body_len_max {
                    return self.fail(cx, down, Reason::BodyTooLong);
                }
                let buffers = &mut cx.shared.work.buffers;
                let len = self.up_framer.permits(readable, &mut self.up, buffers);
                if !self.up.is_empty() {
                    self.touch(cx);
                    self.write_up(cx);
                    if !self.up.is_empty() {
                        return Flow::Wait;
                    }
                }
                let moved = match self.keeps_body() {
                    true => self.keep(cx, down, len),
                    false => self.pass(cx, down, label, len),
                };
                if moved == 0 {
                    return Flow::Wait;
                }
                down.moved(moved);
                self.up_framer.passed(moved);
            }
            Piece::Trailers(len) => {
                self.touch(cx);
                let work = &mut cx.shared.work;
                let edits = of_rule(&self.service, self.rule);
                if self.up_framer.trailers(&mut self.up, &mut work.buffers) {
                    work.room.clear();
                    down.copy(cx.ends, len, &mut work.room);
                    // A section becomes at most as much longer as its fields lack a space each.
                    if let Ok(written) = forward::trailers(&mut work.head, &work.room, edits) {
                        self.up.push(&work.head[..written], &mut work.buffers);
                    }
                }
                down.consume(cx.ends, len);
                down.moved(len);
            }
            Piece::More | Piece::End => return Flow::Wait,
        }
        self.write_up(cx);
        Flow::Moved
    }

    /// Keeps no more of the body: it is not sent again.
    pub(super) fn forget_body(&mut self, shared: &mut Shared) {
        if self.replay_left() == 0 && self.replay_sent > 0 {
            shared.work.buffers.give(std::mem::take(&mut self.replay));
            (self.replay_sent, self.body_touched) = (0, true);
        }
    }

    /// Takes payload of a body that is kept; the member gets it from there. Returns the number of bytes.
    fn keep(&mut self, cx: &mut Cx<'_, impl Ends>, down: &mut impl Downstream, len: usize) -> usize {
        if self.replay.capacity() == 0 {
            self.replay = cx.shared.work.buffers.take();
        }
        self.progress = cx.now;
        let replay = &mut self.replay;
        down.take_request(cx.ends, len, &mut |bytes| {
            replay.extend_from_slice(bytes);
            bytes.len()
        })
    }

    /// Passes payload on, which cannot be sent again then. Returns the number of bytes.
    fn pass(
        &mut self,
        cx: &mut Cx<'_, impl Ends>,
        down: &mut impl Downstream,
        label: FlowLabel,
        len: usize,
    ) -> usize {
        let moved = down.pass_request(cx.ends, label, len);
        if moved > 0 {
            self.touch(cx);
        }
        if let Some(member) = cx.shared.members.table.get_mut(label) {
            member.side.sent(moved);
        }
        moved
    }

    /// Passes on a trailer section of a client whose protocol frames the body by itself.
    pub(crate) fn request_trailers(&mut self, cx: &mut Cx<'_, impl Ends>, section: &[u8]) {
        if let Stage::Stream(id) = self.stage {
            self.touch(cx);
            return self.stream_trailers(cx, id, section);
        }
        let work = &mut cx.shared.work;
        let edits = of_rule(&self.service, self.rule);
        if self.up_framer.trailers(&mut self.up, &mut work.buffers)
            && let Ok(written) = forward::trailers(&mut work.head, section, edits)
        {
            self.up.push(&work.head[..written], &mut work.buffers);
        }
        self.touch_framing(cx);
    }

    /// The request is complete.
    pub(crate) fn request_end(&mut self, cx: &mut Cx<'_, impl Ends>) {
        self.up_framer.end(&mut self.up, &mut cx.shared.work.buffers);
        self.touch_framing(cx);
        self.request_ended = true;
        self.end_stream(cx.now, cx.shared);
        self.write_up(cx);
    }

    /// Passes on bytes of the client after an upgrade.
    pub(crate) fn tunnel_up(
        &mut self,
        cx: &mut Cx<'_, impl Ends>,
        down: &mut impl Downstream,
        len: usize,
    ) -> Flow {
        let Stage::Tunnel(label) = self.stage else { return Flow::Wait };
        let moved = down.pass_request(cx.ends, label, len);
        self.up_framer.passed(moved);
        if moved == 0 {
            return Flow::Wait;
        }
        self.progress = cx.now;
        Flow::Moved
    }

    /// The client has ended its direction of the tunnel.
    pub(crate) fn tunnel_up_end(&mut self, cx: &mut Cx<'_, impl Ends>) -> Flow {
        let Stage::Tunnel(label) = self.stage else { return Flow::Wait };
        if !std::mem::replace(&mut self.tunnel_ended.0, true) {
            cx.ends.end(label, Step::Finish);
        }
        self.tunnel_over(cx)
    }

    /// Returns whether the tunnel is over, after one of its directions has ended.
    pub(super) fn tunnel_over(&mut self, cx: &mut Cx<'_, impl Ends>) -> Flow {
        match self.tunnel_ended {
            (true, true) => {
                self.part(cx, false);
                Flow::Over
            }
            _ => Flow::Moved,
        }
    }

    /// What the gateway has framed itself is dropped with its connection: the request is not sent again.
    fn touch_framing(&mut self, cx: &Cx<'_, impl Ends>) {
        if !self.up.is_empty() {
            self.touch(cx);
        }
    }

    /// Bytes of the body were consumed.
    pub(super) fn touch(&mut self, cx: &Cx<'_, impl Ends>) {
        (self.body_touched, self.progress) = (true, cx.now);
    }
}

/// Returns the edits of requests under a rule: by parts, since others of the exchange are changed meanwhile.
pub(super) fn of_rule(service: &HttpService, rule: Option<usize>) -> &Edits {
    rule.and_then(|at| service.rules().get(at)).map_or(Edits::NONE, |rule| &rule.request_edits)
}
