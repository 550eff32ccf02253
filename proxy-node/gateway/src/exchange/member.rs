//! What a member says: the readable bytes of its connection, examined by the machine of HTTP/1.1.

use csp_filters::compress::Coding;
use csp_http::Refusal;
use csp_http::body::Piece;
use csp_http::exchange::{FromMember, Plan, StreamEnd};
use csp_http::forward::{self, ResponseForward, TooLong};
use csp_http::head::{Framing, Response};
use csp_http::limits::HEAD_LEN_MAX;
use csp_proxy_core::service::upstream::{Ends, UpstreamEnd};
use csp_types::{FlowLabel, Instant};

use super::Exchange;
use super::cache::{Heard, State};
use crate::client::Downstream;
use crate::pool::{ended, stream_end};
use crate::shared::{Cx, Shared, Slices, Work};
use crate::spec::HttpService;

/// What the member says next, without its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Said {
    More,
    /// An interim response, which was consumed. Its head for the client, of this length, is in the worker's
    /// buffer; 0: the client does not get it.
    Interim(usize),
    /// The final response or 101, which was consumed.
    Response(Head),
    /// The head of a response in whose place the client gets a stored one. It was consumed.
    Instead(Heard),
    Body(Piece),
    End,
    Tunnel(usize),
    /// The member has ended its direction of the tunnel; `true`: the whole connection.
    TunnelEnd(bool),
    /// The tunnel's bytes may be incomplete.
    TunnelLost,
    /// The connection has ended before any byte of a response.
    Unanswered,
}

/// A response's head.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub(super) status: u16,
    pub(super) source: Framing,
    /// By which coding it is compressed, and the level.
    pub(super) coding: Option<(Coding, u8)>,
    /// What the client gets of it; `None`: it can get no response any more, or the switch was not asked for.
    pub(super) sent: Result<(Option<Plan>, usize), Unsent>,
}

/// Why a response's head does not go to the client.
#[derive(Clone, Copy, Debug)]
pub(super) enum Unsent {
    /// The member is at fault.
    Fault(Refusal),
    /// A response has begun before.
    Begun,
    TooLong,
}

impl Exchange {
    /// Examines the readable bytes of the member, and consumes a head.
    pub(super) fn listen(
        &mut self,
        cx: &mut Cx<'_, impl Ends>,
        down: &mut impl Downstream,
        label: FlowLabel,
    ) -> Result<Said, Refusal> {
        let closes = self.closes(cx.shared);
        let Shared { members, scratch, work, places, .. } = &mut *cx.shared;
        let Some(member) = members.table.get_mut(label) else { return Ok(Said::Unanswered) };
        let limits = &self.service.limits;
        let mut end = cx.ends.upstream(label).filter(|_| member.gone.is_none());
        let (stream, readable) = match &end {
            Some(end) => (stream_end(end), end.readable()),
            None => (member.gone.map_or(StreamEnd::Lost, ended), 0),
        };
        let is_over = end.as_ref().is_none_or(|end| end.ended().is_some());
        let slices = Slices::of(end.iter_mut().flat_map(|end| end.peek(HEAD_LEN_MAX)));
        let stream = if slices.bytes < readable { StreamEnd::Open } else { stream };
        let (said, len) = match member.side.read(slices.get(), stream, limits, scratch)? {
            FromMember::More => (Said::More, 0),
            FromMember::Interim(response) => {
                let edits = self.response_edits();
                let how = ResponseForward { plan: None, date: None, edits, extra: &[] };
                let len = match down.interim(response.status()) {
                    true => forward::response(&mut work.head, &response, &how).unwrap_or(0),
                    false => 0,
                };
                member.side.accept(&response);
                (Said::Interim(len), response.head_len())
            }
            FromMember::Response(response) => {
                let source = response.framing(member.side.is_to_head());
                let of = (&*self.service, self.rule);
                let heard = hear_for_cache(&mut self.cache, of, (&response, source, false), (cx.now, work));
                if heard != Heard::Pass {
                    member.side.accept(&response);
                    let len = response.head_len();
                    drop(slices);
                    end.iter_mut().for_each(|end| end.consume(len));
                    return Ok(Said::Instead(heard));
                }
                let date = work.clock.date(cx.now);
                let (edits, report) = (self.response_edits(), self.report());
                let coded = self.coded(&response, source, places);
                let (source, coding) = (coded.source(source), coded.coding());
                let sent = answer_to(down, &response, source, closes).and_then(|plan| {
                    let extra = self.filtered.cors().or(report);
                    let how = ResponseForward { plan, date, edits, extra: extra.as_slice() };
                    let written = forward::response(&mut work.head, &response, &how);
                    let written = written.map_err(|TooLong(_)| Unsent::TooLong)?;
                    Ok((plan, coded.head(&mut work.head, written, &mut work.room).ok_or(Unsent::TooLong)?))
                });
                member.side.accept(&response);
                let head = Head { status: response.status(), source, coding, sent };
                (Said::Response(head), response.head_len())
            }
            FromMember::Body(piece) => (Said::Body(piece), 0),
            FromMember::ResponseEnd => (Said::End, 0),
            FromMember::Tunnel(len) => (Said::Tunnel(len), 0),
            FromMember::TunnelEnd if stream == StreamEnd::Lost => (Said::TunnelLost, 0),
            FromMember::TunnelEnd => (Said::TunnelEnd(is_over), 0),
            FromMember::Unanswered | FromMember::Closed => (Said::Unanswered, 0),
        };
        drop(slices);
        if let Some(end) = end.as_mut().filter(|_| len > 0) {
            end.consume(len);
        }
        Ok(said)
    }

    /// Returns whether the client's connection is to end after the response.
    pub(super) fn closes(&self, shared: &Shared) -> bool {
        !shared.services.contains_key(&self.service.number)
    }
}

/// Begins the response to the client.
pub(super) fn answer_to(
    down: &mut impl Downstream,
    response: &Response<'_>,
    source: Framing,
    closes: bool,
) -> Result<Option<Plan>, Unsent> {
    match response.status() {
        101 => down.switched().map(|()| None).map_err(Unsent::Fault),
        _ => down.respond(source, closes).map(Some).ok_or(Unsent::Begun),
    }
}

/// Has the cache look at the head of a response.
pub(super) fn hear_for_cache(
    state: &mut Option<Box<State>>,
    (service, rule): (&HttpService, Option<usize>),
    response: (&Response<'_>, Framing, bool),
    at: (Instant, &mut Work),
) -> Heard {
    let Some(state) = state.as_deref_mut() else { return Heard::Pass };
    let rule = rule.and_then(|rule| service.rules().get(rule));
    state.heard(response, rule.and_then(|rule| rule.cache.as_ref()), at)
}
