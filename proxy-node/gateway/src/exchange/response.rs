//! What goes to the client: heads, then the body as the member sends it.

use csp_http::Fault;
use csp_http::body::Piece;
use csp_http::forward;
use csp_http::head::Framing;
use csp_proxy_core::service::upstream::{Ends, UpstreamEnd};
use csp_types::FlowLabel;

use super::cache::Heard;
use super::member::{Head, Said, Unsent};
use super::{Exchange, Flow, Stage};
use crate::Reason;
use crate::client::Downstream;
use crate::framer::Framer;
use crate::shared::{Cx, Slices};

/// Bytes of a response after which the member's window is widened.
const WIDEN_AFTER: u64 = 96 << 10;
/// The wider window of a member in bytes.
const WIDE_WINDOW: u32 = 256 << 10;

impl Exchange {
    /// Takes one step: what waits for the member, then what the member says.
    pub(crate) fn advance(&mut self, cx: &mut Cx<'_, impl Ends>, down: &mut impl Downstream) -> Flow {
        if let Some(reason) = self.failure.take() {
            return self.fail(cx, down, reason);
        }
        match self.stage {
            Stage::Stored => return self.pass_stored(cx, down),
            Stage::Shared => return self.look_again(cx),
            _ => {}
        }
        if self.stage == Stage::Waiting {
            self.open(cx);
            return if self.stage == Stage::Waiting { Flow::Wait } else { Flow::Moved };
        }
        let wrote = self.write_up(cx);
        let (stage, is_flushed) = (self.stage, down.flush(cx.ends, &mut cx.shared.work.buffers));
        let moved = match stage {
            _ if !is_flushed || self.tunnel_ended.1 => Flow::Wait,
            _ if self.is_ending() => self.response_end(cx, down),
            Stage::Joined(label) | Stage::Tunnel(label) => self.hear(cx, down, label),
            Stage::Stream(id) => self.hear_stream(cx, down, id),
            Stage::New | Stage::Opening | Stage::Waiting | Stage::Shared | Stage::Stored => Flow::Wait,
        };
        match moved {
            Flow::Wait if wrote => Flow::Moved,
            Flow::Moved => {
                self.progress = cx.now;
                Flow::Moved
            }
            other => other,
        }
    }

    fn hear(&mut self, cx: &mut Cx<'_, impl Ends>, down: &mut impl Downstream, label: FlowLabel) -> Flow {
        let said = match self.listen(cx, down, label) {
            Ok(said) => said,
            Err(refusal) => return self.fail(cx, down, Reason::Member(refusal.fault)),
        };
        match said {
            Said::More => self.flush_compressed(cx, down),
            Said::Interim(0) => Flow::Moved,
            Said::Interim(len) => self.interim(cx, down, len),
            Said::Response(head) => self.response(cx, down, head),
            Said::Instead(Heard::Instead) => self.send_stored(cx, false),
            Said::Instead(_) => {
                if let Some(state) = self.cache.as_deref_mut() {
                    state.is_pending = true;
                }
                Flow::Moved
            }
            Said::Body(piece) => self.response_piece(cx, down, label, piece),
            Said::End => self.response_end(cx, down),
            Said::Tunnel(len) => {
                let moved = down.pass_response(cx.ends, label, len);
                if let Some(framer) = &mut self.down_framer {
                    framer.passed(moved);
                }
                if moved > 0 { Flow::Moved } else { Flow::Wait }
            }
            Said::TunnelEnd(is_over) => {
                down.end();
                self.tunnel_ended = (self.tunnel_ended.0 || is_over, true);
                self.tunnel_over(cx)
            }
            Said::TunnelLost => {
                self.record.reason = Some(Reason::MemberClosed);
                down.cut();
                self.part(cx, false);
                Flow::Over
            }
            Said::Unanswered => self.lost(cx, down),
        }
    }

    /// Passes on an interim response, whose head of this length is in the worker's buffer.
    pub(super) fn interim(
        &mut self,
        cx: &mut Cx<'_, impl Ends>,
        down: &mut impl Downstream,
        len: usize,
    ) -> Flow {
        let work = &mut cx.shared.work;
        down.head(cx.ends, &work.head[..len], false, &mut work.buffers);
        Flow::Moved
    }

    /// The response is complete.
    pub(super) fn response_end(&mut self, cx: &mut Cx<'_, impl Ends>, down: &mut impl Downstream) -> Flow {
        if self.compressor.is_some() && !self.finish_compressed(cx, down) {
            return Flow::Wait;
        }
        if let Some(state) = self.cache.as_deref_mut() {
            if std::mem::take(&mut state.is_pending) {
                return self.send_stored(cx, true);
            }
            state.complete(cx.now, &mut cx.shared.work);
        }
        if let Some(framer) = &mut self.down_framer {
            framer.end(down.out(), &mut cx.shared.work.buffers);
        }
        down.flush(cx.ends, &mut cx.shared.work.buffers);
        down.end();
        self.part(cx, true);
        Flow::Over
    }

    pub(super) fn response(
        &mut self,
        cx: &mut Cx<'_, impl Ends>,
        down: &mut impl Downstream,
        head: Head,
    ) -> Flow {
        let (plan, len) = match head.sent {
            Ok(sent) => sent,
            Err(Unsent::Fault(refusal)) => return self.fail(cx, down, Reason::Member(refusal.fault)),
            Err(Unsent::TooLong) => return self.fail(cx, down, Reason::ResponseTooLong),
            Err(Unsent::Begun) => return self.fail(cx, down, Reason::MemberClosed),
        };
        if plan.is_none() && self.sent.is_none() {
            // What follows would stand between the parts of the request.
            return self.fail(cx, down, Reason::Member(Fault::UnexpectedSwitch));
        }
        self.record.status = head.status;
        if let Some(joined) = self.joined {
            self.record.phases.first_byte = Some(cx.now - joined);
        }
        let to = plan.map_or(Framing::UntilClose, |plan| plan.framing);
        self.down_framer = Some(Framer::new(head.source, to));
        self.forget_body(cx.shared);
        self.compress_by(head.coding, cx.shared);
        let (work, is_bodyless) = (&mut cx.shared.work, matches!(to, Framing::None | Framing::Length(0)));
        if !down.head(cx.ends, &work.head[..len], is_bodyless, &mut work.buffers) {
            return self.fail(cx, down, Reason::Member(Fault::UnexpectedSwitch));
        }
        if plan.is_none()
            && let Stage::Joined(label) = self.stage
        {
            self.down_framer = Some(Framer::new(Framing::UntilClose, Framing::UntilClose));
            self.stage = Stage::Tunnel(label);
        }
        Flow::Moved
    }

    /// Writes the first `len` bytes of the worker's buffer to the client.
    pub(super) fn write_down(&mut self, cx: &mut Cx<'_, impl Ends>, down: &mut impl Downstream, len: usize) {
        let work = &mut cx.shared.work;
        down.out().push(&work.head[..len], &mut work.buffers);
        down.flush(cx.ends, &mut work.buffers);
    }

    fn response_piece(
        &mut self,
        cx: &mut Cx<'_, impl Ends>,
        down: &mut impl Downstream,
        label: FlowLabel,
        piece: Piece,
    ) -> Flow {
        if self.compressor.is_some() {
            return self.compressed_piece(cx, down, label, piece);
        }
        if let Piece::Payload(readable) = piece
            && self.cache.as_ref().is_some_and(|state| state.is_storing())
        {
            return self.stored_piece(cx, down, label, readable);
        }
        let Some(framer) = &mut self.down_framer else { return Flow::Wait };
        let work = &mut cx.shared.work;
        match piece {
            Piece::Framing { len, chunk } => {
                if let Some(mut end) = cx.ends.upstream(label) {
                    end.consume(len);
                }
                if let Some(size) = chunk {
                    framer.chunk(size, down.out(), &mut work.buffers);
                    down.flush(cx.ends, &mut work.buffers);
                }
                return Flow::Moved;
            }
            Piece::Payload(readable) => {
                let len = framer.permits(readable, down.out(), &mut work.buffers);
                if !down.flush(cx.ends, &mut work.buffers) {
                    return Flow::Wait;
                }
                let moved = down.pass_response(cx.ends, label, len);
                return self.passed_down(cx, label, moved);
            }
            Piece::Trailers(len) => {
                let wanted = framer.trailers(down.out(), &mut work.buffers);
                if let Some(mut end) = cx.ends.upstream(label) {
                    work.room.clear();
                    for slice in Slices::of(end.peek(len)).get() {
                        work.room.extend_from_slice(slice);
                    }
                    end.consume(len);
                }
                if let Some(member) = cx.shared.members.table.get_mut(label) {
                    member.side.moved(len);
                }
                let section = std::mem::take(&mut work.room);
                self.trailers_down(cx, down, wanted, &section);
                cx.shared.work.room = section;
                return Flow::Moved;
            }
            Piece::More | Piece::End => {}
        }
        Flow::Wait
    }

    /// Records that payload of a member has passed to the client.
    pub(super) fn passed_down(&mut self, cx: &mut Cx<'_, impl Ends>, label: FlowLabel, moved: usize) -> Flow {
        let Some(framer) = &mut self.down_framer else { return Flow::Wait };
        framer.passed(moved);
        if let Some(member) = cx.shared.members.table.get_mut(label) {
            member.side.moved(moved);
        }
        if moved == 0 {
            return Flow::Wait;
        }
        if framer.passed > WIDEN_AFTER && framer.passed - (moved as u64) <= WIDEN_AFTER {
            cx.ends.upstream(label).map(|mut end| end.widen(WIDE_WINDOW));
        }
        Flow::Moved
    }

    /// Sends a trailer section to the client, but what edits remove: behind the last chunk (`framed`), or
    /// apart from the payload.
    pub(super) fn trailers_down(
        &mut self,
        cx: &mut Cx<'_, impl Ends>,
        down: &mut impl Downstream,
        framed: bool,
        section: &[u8],
    ) {
        let work = &mut cx.shared.work;
        let Ok(written) = forward::trailers(&mut work.head, section, self.response_edits()) else { return };
        match framed {
            true => self.write_down(cx, down, written),
            false => down.trailers(work.head[..written].strip_prefix(b"0\r\n").unwrap_or_default()),
        }
    }
}
