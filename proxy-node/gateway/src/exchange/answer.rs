//! Answers of the gateway itself.

use std::borrow::Cow;

use csp_http::forward::{self, Answer, Extra};
use csp_http::head::Framing;
use csp_proxy_core::service::upstream::Ends;

use super::{Exchange, Flow};
use crate::Reason;
use crate::client::Downstream;
use crate::grpc;
use crate::shared::Cx;
use crate::spec::{Action, Rule};

/// Seconds after which a client may try again, in `Retry-After`.
const RETRY_AFTER: &[u8] = b"1";

/// What an answer says.
struct Page<'a> {
    status: u16,
    body: Cow<'a, [u8]>,
    content_type: &'a [u8],
    /// The head says all, by fields of gRPC.
    is_grpc: bool,
}

impl<'a> Page<'a> {
    /// Returns the answer of the rule, or the gateway's own one. `is_call`: of gRPC.
    fn of(reason: Reason, rule: Option<&'a Rule>, is_call: bool) -> Self {
        let of_rule = |status, body: &'a [u8], content_type| Page {
            status,
            body: Cow::Borrowed(body),
            content_type,
            is_grpc: false,
        };
        match (reason, rule.map(|rule| &rule.action)) {
            (Reason::Answer, Some(Action::Answer { status, body, content_type })) => {
                of_rule(*status, body, content_type.as_bytes())
            }
            (Reason::Redirect, Some(Action::Redirect(redirect))) => of_rule(redirect.status, b"", b""),
            (Reason::MaxForwards, _) => of_rule(204, b"", b""),
            _ if is_call => Page { is_grpc: true, ..of_rule(200, b"", b"application/grpc") },
            _ => {
                let text = format!("{}: {}\n", reason.code(), reason.text());
                let body = Cow::Owned(text.into_bytes());
                Page { body, ..of_rule(reason.status(), b"", b"text/plain; charset=utf-8") }
            }
        }
    }
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
        self.part(cx, false);
        self.record.reason = Some(reason);
        let service = std::sync::Arc::clone(&self.service);
        let rule = self.rule.and_then(|at| service.rules().get(at));
        let Page { status, body, content_type, is_grpc } = Page::of(reason, rule, self.asked.is_grpc);
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
        let all: [Extra<'_>; 6] = [
            (b"Content-Type", content_type),
            (b"Location", location),
            (b"Retry-After", if reason.is_temporary() { RETRY_AFTER } else { b"" }),
            (b"grpc-status", if is_grpc { grpc::status(reason).as_bytes() } else { b"" }),
            (b"grpc-message", grpc_message.as_bytes()),
            (b"Allow", if reason == Reason::MaxForwards { b"OPTIONS" } else { b"" }),
        ];
        let mut fields = all;
        let mut count = 0;
        for field in all.into_iter().filter(|(_, value)| !value.is_empty()) {
            fields[count] = field;
            count += 1;
        }
        let work = &mut cx.shared.work;
        let missing_body = (self.asked.is_head && length != Framing::None).then_some(body.len() as u64);
        let date = work.clock.date(cx.now);
        let edits = self.response_edits();
        let answer = Answer { status, plan, missing_body, date, fields: &fields[..count], edits };
        // The buffer is longer than any such head.
        let len = forward::answer(&mut work.head, &answer).unwrap_or(0);
        self.record.status = if is_grpc { reason.status() } else { status };
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
