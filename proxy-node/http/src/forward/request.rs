//! Requests to members.

use super::edits::Edits;
use super::origin::Origin;
use super::trace::{TraceContext, TraceIds};
use super::writer::Writer;
use super::{Extra, TooLong};
use crate::head::{Framing, Request, nominated};
use crate::name::{Name, elements};

/// Longest request id of a client that is kept, in bytes.
const REQUEST_ID_LEN_MAX: usize = 128;

/// How a request goes on.
#[derive(Clone, Copy, Debug)]
pub struct RequestForward<'a> {
    /// The path: [normalised](crate::head::normalised), and rewritten if a route says so.
    pub path: &'a [u8],
    /// The host, if it is another one than the client's. The policy has checked it by
    /// [`Host::parse`](crate::head::Host::parse).
    pub host: Option<&'a [u8]>,
    /// The host of a request of HTTP/1.0 without one, such as the service's address: HTTP/1.1 needs one.
    pub default_host: &'a [u8],
    /// Where the request comes from.
    pub origin: Origin<'a>,
    /// Ids for `traceparent`, with which the trace of a trusted peer continues, or a new one begins; `None`:
    /// the fields of a trusted peer are passed on.
    pub trace: Option<&'a TraceIds>,
    /// An id for `X-Request-Id`, unless a trusted peer has sent one; `None`: only that one is passed on.
    pub request_id: Option<[u8; 16]>,
    /// Whether the request's `Upgrade` goes on. Only if the policy permits the protocol: the member may speak
    /// it past all rules afterwards.
    pub upgrade: bool,
    /// Whether the member is asked for 100. If not, the caller answers it itself.
    pub expect: bool,
    /// Edits of the route.
    pub edits: &'a Edits,
    /// Further fields, but for those that edits remove.
    pub extra: &'a [Extra<'a>],
}

/// A head that was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written {
    /// Its length in bytes.
    pub len: usize,
    /// The trace that it belongs to.
    pub trace: Option<TraceContext>,
}

/// Writes the head of a request to a member, of HTTP/1.1 whatever the client's version is.
pub fn request(out: &mut [u8], request: &Request<'_>, how: &RequestForward<'_>) -> Result<Written, TooLong> {
    let mut out = Writer::new(out);
    request_line(&mut out, request, how);
    // RFC 9110 §7.2: first, for the sake of recipients that look there.
    out.field(b"Host", how.host.or(request.host_text()).unwrap_or(how.default_host));
    let is_trusted = how.origin.is_trusted;
    let received = received_trace(request).filter(|_| is_trusted);
    let keeps_request_id = is_trusted && has_request_id(request);
    let (nominates, max_forwards) = (request.nominates(), request.max_forwards());
    out.fields(request.bytes(), request.places(), |field| {
        let keeps = match field.known {
            Name::Other => how.origin.keeps_other(field.name),
            Name::Cookie | Name::Via | Name::Date | Name::Server => true,
            Name::Host | Name::ContentLength | Name::Lookalike => false,
            Name::Expect => how.expect && request.expects_continue(),
            Name::MaxForwards => max_forwards.is_none(),
            Name::Traceparent => is_trusted && how.trace.is_none(),
            Name::Tracestate => is_trusted && (how.trace.is_none() || received.is_some()),
            Name::XRequestId => is_trusted && (how.request_id.is_none() || keeps_request_id),
            known => !known.is_hop_by_hop() && how.origin.keeps(known),
        };
        keeps && !(nominates && nominated(request.fields(), field.name)) && !how.edits.removes(field.name)
    });
    if let Some(most) = max_forwards.filter(|_| !how.edits.removes(b"Max-Forwards")) {
        out.put(b"Max-Forwards: ");
        out.number(most.saturating_sub(1).into());
        out.put(b"\r\n");
    }
    how.origin.write(&mut out, request, how.edits);
    let trace =
        how.trace.filter(|_| !how.edits.removes(b"traceparent")).map(|ids| TraceContext::next(received, ids));
    if let Some(trace) = &trace {
        traceparent(&mut out, trace);
    }
    if let Some(id) = how.request_id.filter(|_| !keeps_request_id && !how.edits.removes(b"X-Request-Id")) {
        out.put(b"X-Request-Id: ");
        out.hex(&id);
        out.put(b"\r\n");
    }
    for (name, value) in how.edits.added() {
        out.field(name, value);
    }
    if !how.extra.is_empty() {
        further(&mut out, how);
    }
    framing(&mut out, request);
    connection(&mut out, request, how.upgrade && request.is_upgrade());
    out.put(b"\r\n");
    Ok(Written { len: out.finish()?, trace })
}

/// Writes further fields, but for those that edits remove. Apart from what every request needs.
#[inline(never)]
fn further(out: &mut Writer<'_>, how: &RequestForward<'_>) {
    for (name, value) in how.extra.iter().filter(|(name, _)| !how.edits.removes(name)) {
        out.field(name, value);
    }
}

fn request_line(out: &mut Writer<'_>, request: &Request<'_>, how: &RequestForward<'_>) {
    out.put(request.method_name());
    out.put(b" ");
    out.put(how.path);
    if let Some(query) = request.query() {
        out.put(b"?");
        out.put(query);
    }
    out.put(b" HTTP/1.1\r\n");
}

/// Returns the trace of the only `traceparent`, if it is right.
fn received_trace(request: &Request<'_>) -> Option<TraceContext> {
    let mut fields = request.fields().filter(|field| field.known == Name::Traceparent);
    let context = TraceContext::parse(fields.next()?.value)?;
    fields.next().is_none().then_some(context)
}

/// Returns whether the only `X-Request-Id` is fit for logs.
fn has_request_id(request: &Request<'_>) -> bool {
    let mut fields = request.fields().filter(|field| field.known == Name::XRequestId);
    let is_right = |id: &[u8]| {
        (1..=REQUEST_ID_LEN_MAX).contains(&id.len()) && id.iter().all(|byte| byte.is_ascii_graphic())
    };
    fields.next().is_some_and(|field| is_right(field.value)) && fields.next().is_none()
}

fn traceparent(out: &mut Writer<'_>, trace: &TraceContext) {
    out.put(b"traceparent: 00-");
    out.hex(&trace.trace);
    out.put(b"-");
    out.hex(&trace.parent);
    out.put(b"-");
    out.hex(&[trace.flags]);
    out.put(b"\r\n");
}

/// The framing that was understood, whatever the client's text was.
fn framing(out: &mut Writer<'_>, request: &Request<'_>) {
    match request.framing() {
        Framing::Length(length) => {
            out.put(b"Content-Length: ");
            out.number(length);
            out.put(b"\r\n");
        }
        Framing::Chunked => out.field(b"Transfer-Encoding", b"chunked"),
        Framing::None | Framing::UntilClose => {}
    }
}

/// What the proxy and the member agree upon. Connections are kept, which HTTP/1.1 implies.
fn connection(out: &mut Writer<'_>, request: &Request<'_>, upgrade: bool) {
    // RFC 9110 §10.1.4: trailers are forwarded.
    let trailers = request.accepts_trailers();
    if trailers {
        out.field(b"TE", b"trailers");
    }
    if upgrade {
        upgrade_fields(out, request.fields().filter(|field| field.known == Name::Upgrade));
    }
    match (upgrade, trailers) {
        (true, true) => out.field(b"Connection", b"upgrade, TE"),
        (true, false) => out.field(b"Connection", b"upgrade"),
        (false, true) => out.field(b"Connection", b"TE"),
        (false, false) => {}
    }
}

/// Writes the protocols of `Upgrade` fields as one field.
pub(super) fn upgrade_fields<'a>(
    out: &mut Writer<'_>,
    fields: impl Iterator<Item = crate::head::FieldText<'a>>,
) {
    out.put(b"Upgrade: ");
    for (at, protocol) in fields.flat_map(|field| elements(field.value)).enumerate() {
        out.put(if at > 0 { b", " } else { b"" });
        out.put(protocol);
    }
    out.put(b"\r\n");
}
