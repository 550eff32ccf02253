//! Answers of the gateway itself.

use std::borrow::Cow;

use csp_http::forward::{self, Answer, Extra};
use csp_http::head::Framing;
use csp_proxy_core::service::upstream::Ends;

use super::filter::Filtered;
use super::{Exchange, Flow};
use crate::Reason;
use crate::client::Downstream;
use crate::grpc;
use crate::shared::Cx;
use crate::spec::{Action, HttpService, Rule};

/// What an answer says.
struct Page<'a> {
    status: u16,
    body: Cow<'a, [u8]>,
    content_type: &'a [u8],
    /// `Accept` has chosen among pages.
    is_chosen: bool,
    /// The head says all, by fields of gRPC.
    is_grpc: bool,
}

impl<'a> Page<'a> {
    /// Returns the answer of the rule, or the gateway's own one. `is_call`: of gRPC. `head`: of a challenge.
    fn of(
        reason: Reason,
        rule: Option<&'a Rule>,
        filtered: &Filtered,
        (is_call, head): (bool, &[u8]),
    ) -> Self {
        let of_rule = |status, body: &'a [u8], content_type| Page {
            status,
            body: Cow::Borrowed(body),
            content_type,
            is_chosen: false,
            is_grpc: false,
        };
        match (reason, rule.map(|rule| &rule.action)) {
            (Reason::Answer, Some(Action::Answer { status, body, content_type })) => {
                of_rule(*status, body, content_type.as_bytes())
            }
            (Reason::Redirect, _) if filtered.status != 0 => of_rule(filtered.status, b"", b""),
            (Reason::Redirect, Some(Action::Redirect(redirect))) => of_rule(redirect.status, b"", b""),
            (Reason::Challenge, _) => {
                let body = Cow::Owned(head.to_vec());
                Page { body, ..of_rule(200, b"", b"application/octet-stream") }
            }
            (Reason::MaxForwards | Reason::Preflight, _) => of_rule(204, b"", b""),
            _ if is_call => Page { is_grpc: true, ..of_rule(200, b"", b"application/grpc") },
            _ => {
                let status = filtered.status_of(reason);
                let text = format!("{}: {}\n", reason.code(), reason.text());
                let body = Cow::Owned(text.into_bytes());
                Page { body, ..of_rule(status, b"", b"text/plain; charset=utf-8") }
            }
        }
    }
}

impl<'a> Page<'a> {
    /// Returns the policy's page for this answer, if there is one. Answers of rules stay as they say.
    fn replaced(self, reason: Reason, of: (&'a HttpService, Option<&'a Rule>), filtered: &Filtered) -> Self {
        if self.status < 400 || self.is_grpc || matches!(reason, Reason::Answer | Reason::Redirect) {
            return self;
        }
        let of_rule = of.1.map(|rule| &rule.filters.pages).into_iter();
        let mut all = of_rule.chain([&of.0.filters.pages]).filter(|pages| !pages.is_empty());
        match all.find_map(|pages| pages.find(self.status, reason.code(), filtered.wants)) {
            Some(page) => Page {
                body: Cow::Borrowed(page.body),
                content_type: page.content_type.as_bytes(),
                is_chosen: page.is_choice,
                ..self
            },
            None => self,
        }
    }
}

/// Moves the fields that have a value to the front, and returns their number.
fn present<const N: usize>(all: [Extra<'_>; N]) -> ([Extra<'_>; N], usize) {
    let (mut fields, mut count) = (all, 0);
    for field in all.into_iter().filter(|(_, value)| !value.is_empty()) {
        fields[count] = field;
        count += 1;
    }
    (fields, count)
}

impl Exchange {
    /// Ends the exchange: the member's connection is reset, and the client gets an answer, or its response is
    /// cut.
    pub(crate) fn fail(
        &mut self,
        cx: &mut Cx<'_, impl Ends>,
        down: &mut impl Downstream,
        reason: Reason,
    ) -> Flow {
        if self.falls_back(cx, down, reason) {
            return Flow::Moved;
        }
        self.part(cx, false);
        self.record.reason = Some(reason);
        let service = std::sync::Arc::clone(&self.service);
        let rule = self.rule.and_then(|at| service.rules().get(at));
        let filtered = std::mem::take(&mut self.filtered);
        let page = Page::of(reason, rule, &filtered, (self.asked.is_grpc, &self.head));
        let page = page.replaced(reason, (&service, rule), &filtered);
        let Page { status, body, content_type, is_chosen, is_grpc } = page;
        let length = match status {
            204 | 304 => Framing::None,
            _ => Framing::Length(body.len() as u64),
        };
        // Before its request was accepted a connection cannot go on behind the answer.
        let plan = match reason.ends_connection() || self.record.method().is_empty() {
            true => down.refuse(length),
            false => down.respond(length, self.closes(cx.shared)),
        };
        let Some(plan) = plan else {
            down.cut();
            return Flow::Over;
        };
        let location = if reason == Reason::Redirect { &self.head[..] } else { b"" };
        let grpc_message = match is_grpc {
            true => grpc::message(&format!("{}: {}", reason.code(), reason.text())),
            false => String::new(),
        };
        let (retry_after, status_of) = (filtered.retry_after(reason), filtered.status_of(reason));
        let (fields, count) = present([
            (b"Content-Type", content_type),
            (b"Location", location),
            (b"Retry-After", retry_after.as_bytes()),
            (b"grpc-status", if is_grpc { grpc::status(reason, status_of).as_bytes() } else { b"" }),
            (b"grpc-message", grpc_message.as_bytes()),
            (b"Allow", if reason == Reason::MaxForwards { b"OPTIONS" } else { b"" }),
            (b"Cache-Control", if reason.is_refusal() { b"no-store" } else { b"" }),
            (b"Vary", if is_chosen { b"Accept" } else { b"" }),
        ]);
        let work = &mut cx.shared.work;
        let missing_body = (self.asked.is_head && length != Framing::None).then_some(body.len() as u64);
        let date = work.clock.date(cx.now);
        let edits = self.response_edits();
        let (own, owned) = filtered.fields(reason, rule);
        let own = &own[..owned];
        let answer = Answer { status, plan, missing_body, date, fields: &fields[..count], own, edits };
        // The buffer is longer than any such head.
        let len = forward::answer(&mut work.head, &answer).unwrap_or(0);
        self.record.status = if is_grpc { status_of } else { status };
        let is_bodyless = self.asked.is_head || body.is_empty();
        if !down.head(cx.ends, &work.head[..len], is_bodyless, &mut work.buffers) {
            down.cut();
            return Flow::Over;
        }
        if !is_bodyless {
            down.out().push(&body, &mut work.buffers);
            down.flush(cx.ends, &mut work.buffers);
            self.answered = body.len() as u64;
        }
        down.end();
        Flow::Over
    }
}
