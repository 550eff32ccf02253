//! Why the gateway answers a request itself, or why an exchange has ended early: code and status.

use csp_http::Fault;
use csp_http2::{Malformed, Remedy};

/// Why the gateway has answered, or how an exchange has failed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Reason {
    /// The client's request is at fault. Status and code are those of the fault.
    Client(Fault),
    /// The client's request of HTTP/2 is at fault. Status and code are those of the fault; where the stream
    /// is reset instead of an answer, the status is 400.
    Malformed(Malformed),
    /// The member's response is at fault. The status is 502, the code that of the fault.
    Member(Fault),
    /// The rule redirects.
    Redirect,
    /// The rule answers.
    Answer,
    /// A filter denies the request. The status is the filter's.
    Denied,
    /// The request is beyond a rate.
    RateLimited,
    /// The client has as many requests as it may have at the same time.
    TooManyAtOnce,
    /// The gateway answers a preflight of CORS.
    Preflight,
    /// A preflight of CORS of an origin that is not allowed.
    CorsOrigin,
    /// OPTIONS with `Max-Forwards: 0` (RFC 9110 §7.6.2).
    MaxForwards,
    /// It answers a challenge of an ACME authority (RFC 8555 §8.3).
    Challenge,
    /// No rule names the request.
    NoRoute,
    /// The redirect needs a host, and the request has none.
    NoHost,
    /// The body is longer than the limit.
    BodyTooLong,
    /// The head for the member is longer than the limit.
    RequestTooLong,
    /// The head for the client is longer than the limit.
    ResponseTooLong,
    /// The head has not come in time.
    HeadTimeout,
    /// The client has not sent the rest of its request in time.
    BodyTimeout,
    /// The client has not read its response in time.
    ClientStalled,
    /// The client's connection has ended before its response.
    ClientGone,
    /// The pool has no member that accepts connections.
    NoServer,
    /// No member has accepted a connection in time.
    ConnectTimeout,
    /// The pool's backlog or a table of the proxy is full.
    NoRoom,
    /// The member has refused the connection.
    MemberRefused,
    /// The member has ended the connection before its response, and the request is not sent again.
    MemberClosed,
    /// The member has reset the stream of its response, and the request is not sent again. Of HTTP/2 only.
    MemberReset,
    /// The request is to switch to another protocol, and the members of its target speak HTTP/2.
    NoSwitch,
    /// The member has not begun its response in time.
    ResponseTimeout,
    /// The member has not read or sent the rest of a body in time.
    MemberStalled,
    /// The exchange has taken longer than its limit.
    TotalTimeout,
    /// A tunnel has had no bytes for too long.
    TunnelIdle,
    /// The client wants a stored response, and there is none.
    OnlyIfCached,
}

/// Status, code and text of a reason.
type Row = (u16, &'static str, &'static str);

impl Reason {
    /// Every reason but those of faults, in the order of the documentation.
    #[rustfmt::skip]
    pub const ALL: [Reason; 30] = [
        Reason::Redirect, Reason::Answer, Reason::Denied, Reason::RateLimited, Reason::TooManyAtOnce,
        Reason::Preflight, Reason::CorsOrigin, Reason::MaxForwards, Reason::Challenge, Reason::NoRoute,
        Reason::NoHost, Reason::BodyTooLong, Reason::RequestTooLong, Reason::ResponseTooLong,
        Reason::HeadTimeout,
        Reason::BodyTimeout, Reason::ClientStalled, Reason::ClientGone, Reason::NoServer,
        Reason::ConnectTimeout, Reason::NoRoom, Reason::MemberRefused, Reason::MemberClosed,
        Reason::MemberReset, Reason::NoSwitch, Reason::ResponseTimeout, Reason::MemberStalled,
        Reason::TotalTimeout, Reason::TunnelIdle, Reason::OnlyIfCached,
    ];

    #[rustfmt::skip]
    const fn row(self) -> Row {
        match self {
            Reason::Client(fault) => (fault.status(), fault.code(), fault.text()),
            Reason::Malformed(fault) => {
                let status = match fault.remedy() {
                    Remedy::Answer(status) => status,
                    Remedy::Reset => 400,
                };
                (status, fault.code(), "the request of HTTP/2 is malformed")
            }
            Reason::Member(fault) => (502, fault.code(), fault.text()),
            Reason::Redirect => (302, "redirect", "the rule redirects"),
            Reason::Answer => (200, "answer", "the rule answers"),
            Reason::Denied => (403, "denied", "a rule of the proxy denies the request"),
            Reason::RateLimited => (429, "rate-limited", "too many requests: try again later"),
            Reason::TooManyAtOnce => (429, "too-many-at-once", "too many requests at the same time"),
            Reason::Preflight => (204, "preflight", "the proxy answers for CORS"),
            Reason::CorsOrigin => (403, "cors-origin", "pages of this origin may not read responses"),
            Reason::MaxForwards => (204, "max-forwards", "Max-Forwards is 0: the proxy answers"),
            Reason::Challenge => (200, "acme-challenge", "the proxy answers an ACME authority"),
            Reason::NoRoute => (404, "no-route", "no rule names this host and path"),
            Reason::NoHost => (400, "no-host", "expected Host, to which the redirect leads"),
            Reason::BodyTooLong => (413, "body-too-long", "the body of the request is too long"),
            Reason::RequestTooLong => (431, "request-too-long", "the head of the request is too long to be forwarded"),
            Reason::ResponseTooLong => (502, "response-too-long", "the head of the response is too long to be forwarded"),
            Reason::HeadTimeout => (408, "head-timeout", "the head of the request has not come in time"),
            Reason::BodyTimeout => (408, "body-timeout", "the body of the request has not come in time"),
            Reason::ClientStalled => (499, "client-stalled", "the client has not read its response in time"),
            Reason::ClientGone => (499, "client-gone", "the client has ended the connection before its response"),
            Reason::NoServer => (503, "no-server", "no server accepts requests at present"),
            Reason::ConnectTimeout => (503, "connect-timeout", "no server has accepted the request in time"),
            Reason::NoRoom => (503, "no-room", "too many requests wait for a server"),
            Reason::MemberRefused => (502, "member-refused", "the server has refused the connection"),
            Reason::MemberClosed => (502, "member-closed", "the server has ended the connection before its response"),
            Reason::MemberReset => (502, "member-reset", "the server has reset its response"),
            Reason::NoSwitch => (501, "no-switch", "the servers speak HTTP/2, where no other protocol is switched to"),
            Reason::ResponseTimeout => (504, "response-timeout", "the server has not responded in time"),
            Reason::MemberStalled => (504, "member-stalled", "the server has stopped in the middle of a message"),
            Reason::TotalTimeout => (504, "total-timeout", "the request has taken too long"),
            Reason::TunnelIdle => (504, "tunnel-idle", "no bytes have passed for too long"),
            Reason::OnlyIfCached => (504, "only-if-cached", "the client wants a stored response, and there is none"),
        }
    }

    /// Returns the status of the answer, if there is one: a redirect and an answer of a rule have their own.
    /// 499: the client is gone, or receives no more; the status is in logs and metrics alone.
    pub const fn status(self) -> u16 {
        self.row().0
    }

    /// Returns the code in logs and metrics: lower-case words joined by hyphens.
    pub const fn code(self) -> &'static str {
        self.row().1
    }

    /// Returns what is wrong, or what would be right.
    pub const fn text(self) -> &'static str {
        self.row().2
    }

    /// Returns whether it depends on the client, so that no cache may give the answer to others.
    pub(crate) const fn is_refusal(self) -> bool {
        matches!(self, Reason::Denied | Reason::RateLimited | Reason::TooManyAtOnce | Reason::CorsOrigin)
    }

    /// Returns whether a later request may succeed, so that the answer has `Retry-After`.
    pub const fn is_temporary(self) -> bool {
        self.status() == 503
    }

    /// Returns whether the client's request is at fault in a way after which its connection ends: what
    /// follows in it cannot be read, or should not be.
    pub(crate) const fn ends_connection(self) -> bool {
        matches!(
            self,
            Reason::Client(_)
                | Reason::Malformed(_)
                | Reason::BodyTooLong
                | Reason::HeadTimeout
                | Reason::BodyTimeout
        )
    }
}
