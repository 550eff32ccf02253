//! Request heads.

use std::mem::MaybeUninit;

use httparse::{Error, ParserConfig, Status};

use super::facts::Facts;
use super::syntax::{self, Kind};
use super::target::{self, Target, TargetForm};
use super::{Field, FieldText, Framing, Host, Span, Version};
use crate::fault::{Fault, Refusal};
use crate::limits::{FIELDS_MAX, Limits};
use crate::name::Name;

/// A request's method (RFC 9110 §9, RFC 5789).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// GET.
    Get,
    /// HEAD.
    Head,
    /// POST.
    Post,
    /// PUT.
    Put,
    /// DELETE.
    Delete,
    /// OPTIONS.
    Options,
    /// PATCH.
    Patch,
    /// Any other token. CONNECT and TRACE are refused.
    Other,
}

impl Method {
    /// Returns the method of this name. Names are case-sensitive.
    pub fn of(name: &[u8]) -> Method {
        match name {
            b"GET" => Method::Get,
            b"HEAD" => Method::Head,
            b"POST" => Method::Post,
            b"PUT" => Method::Put,
            b"DELETE" => Method::Delete,
            b"OPTIONS" => Method::Options,
            b"PATCH" => Method::Patch,
            _ => Method::Other,
        }
    }

    /// Returns whether a request may be sent again after a failure of which nobody knows how far it was
    /// processed (RFC 9110 §9.2.2).
    pub const fn is_idempotent(self) -> bool {
        matches!(self, Method::Get | Method::Head | Method::Put | Method::Delete | Method::Options)
    }
}

/// What a request head says, with positions in its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    skipped: u16,
    /// End of the head from the first line on.
    end: u16,
    method: Method,
    method_name: Span,
    whole_target: Span,
    target: Target,
    host: Option<Span>,
    version: Version,
    framing: Framing,
    is_persistent: bool,
    expects_continue: bool,
    is_upgrade: bool,
    accepts_trailers: bool,
    nominates: bool,
}

/// A request head, in the bytes in which it arrived.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    bytes: &'a [u8],
    fields: &'a [Field],
    parts: Parts,
}

impl<'a> Request<'a> {
    pub(super) fn new(bytes: &'a [u8], fields: &'a [Field], parts: Parts) -> Self {
        let start = usize::from(parts.skipped);
        Request { bytes: &bytes[start..start + usize::from(parts.end)], fields, parts }
    }

    /// Returns the bytes that the head occupies at the start of the readable ones, with empty lines before
    /// it.
    pub fn head_len(&self) -> usize {
        usize::from(self.parts.skipped) + usize::from(self.parts.end)
    }

    /// Returns the head's bytes from the request line to the empty line.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the method.
    pub fn method(&self) -> Method {
        self.parts.method
    }

    /// Returns the method's name.
    pub fn method_name(&self) -> &'a [u8] {
        self.parts.method_name.of(self.bytes)
    }

    /// Returns the version.
    pub fn version(&self) -> Version {
        self.parts.version
    }

    /// Returns the target's form.
    pub fn form(&self) -> TargetForm {
        self.parts.target.form
    }

    /// Returns the whole target.
    pub fn target(&self) -> &'a [u8] {
        self.parts.whole_target.of(self.bytes)
    }

    /// Returns the path as the client wrote it: from `/` on, or `*`.
    pub fn path(&self) -> &'a [u8] {
        match self.parts.target.path.of(self.bytes) {
            b"" if self.parts.method == Method::Options && self.query().is_none() => b"*",
            b"" => b"/",
            path => path,
        }
    }

    /// Returns the query without its question mark; `None` if there is no question mark.
    pub fn query(&self) -> Option<&'a [u8]> {
        self.parts.target.query.map(|query| query.of(self.bytes))
    }

    /// Returns the host that is meant: that of an absolute target, otherwise that of the `Host` field. `None`
    /// for a request of HTTP/1.0 without one.
    pub fn host(&self) -> Option<Host<'a>> {
        Host::parse(self.host_text()?)
    }

    /// Returns the text of [`host`](Self::host).
    pub(crate) fn host_text(&self) -> Option<&'a [u8]> {
        self.parts.host.map(|host| host.of(self.bytes))
    }

    /// Returns how the body is framed. Never [`Framing::UntilClose`].
    pub fn framing(&self) -> Framing {
        self.parts.framing
    }

    /// Returns whether the client permits that the connection is kept after this request.
    pub fn is_persistent(&self) -> bool {
        self.parts.is_persistent
    }

    /// Returns whether the client waits for 100 before it sends the body (RFC 9110 §10.1.1).
    pub fn expects_continue(&self) -> bool {
        self.parts.expects_continue
    }

    /// Returns whether the client asks to upgrade the connection to another protocol.
    pub fn is_upgrade(&self) -> bool {
        self.parts.is_upgrade
    }

    /// Returns whether the client accepts trailers (RFC 9110 §10.1.4).
    pub fn accepts_trailers(&self) -> bool {
        self.parts.accepts_trailers
    }

    /// Returns how often an OPTIONS request may still be forwarded (RFC 9110 §7.6.2). At 0 the caller answers
    /// it itself. `None`: any number of times, or another method.
    pub fn max_forwards(&self) -> Option<u32> {
        let field = self.fields().find(|field| field.known == Name::MaxForwards)?;
        let text = std::str::from_utf8(field.value).ok()?;
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        (self.parts.method == Method::Options && is_number).then_some(text.parse().ok())?
    }

    /// Returns whether `Connection` names fields that are not hop-by-hop by themselves.
    pub fn nominates(&self) -> bool {
        self.parts.nominates
    }

    /// Returns the fields in order.
    pub fn fields(&self) -> impl Iterator<Item = FieldText<'a>> + Clone + use<'a> {
        let bytes = self.bytes;
        self.fields.iter().map(move |field| field.text(bytes))
    }

    pub(crate) fn places(&self) -> &'a [Field] {
        self.fields
    }
}

/// Parses a whole request head; `None` if it is not complete.
pub(super) fn parse(
    bytes: &[u8],
    limits: &Limits,
    fields: &mut Vec<Field>,
) -> Result<Option<Parts>, Refusal> {
    let Some(skipped) = syntax::empty_lines(bytes)? else { return Ok(None) };
    let bytes = &bytes[skipped..];
    let mut room = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut []);
    let room = &mut room[..limits.fields_max.min(FIELDS_MAX)];
    let outcome = ParserConfig::default().parse_request_with_uninit_headers(&mut request, bytes, room);
    let end = match outcome {
        Ok(Status::Complete(end)) => end,
        Ok(Status::Partial) => return Ok(None),
        Err(Error::TooManyHeaders) => return Err(Refusal::whole(Fault::TooManyFields)),
        Err(_) => {
            let refusal = syntax::diagnose(bytes, Kind::Request);
            return Err(refusal.unwrap_or(Refusal::whole(Fault::StartLine)));
        }
    };
    let bytes = &bytes[..end];
    if !has_line_ends(bytes, request.headers.iter().map(|header| header.name)) {
        let refusal = syntax::diagnose(bytes, Kind::Request);
        return Err(refusal.unwrap_or(Refusal::whole(Fault::BareLf)));
    }
    let (Some(method), Some(target)) = (request.method, request.path) else { return Ok(None) };
    let version = if request.version == Some(0) { Version::Http10 } else { Version::Http11 };
    let line = Line { method: method.as_bytes(), target: target.as_bytes(), version };
    let mut parts = line.parse(limits).map_err(|fault| Refusal::at(fault, 1))?;
    (parts.skipped, parts.end) = (skipped as u16, end as u16);
    let facts = Facts::of(bytes, request.headers, limits, fields)?;
    complete(bytes, &mut parts, &facts)?;
    Ok(Some(parts))
}

/// Returns whether every line ends with CRLF: the parser accepts LF alone.
#[inline]
pub(super) fn has_line_ends<'a>(bytes: &[u8], mut names: impl Iterator<Item = &'a str>) -> bool {
    let is_behind_crlf = |name: &str| {
        let at = (name.as_ptr() as usize).saturating_sub(bytes.as_ptr() as usize);
        at >= 2 && bytes.get(at - 2..at) == Some(b"\r\n")
    };
    bytes.ends_with(b"\r\n\r\n") && names.all(is_behind_crlf)
}

/// A request line.
struct Line<'a> {
    method: &'a [u8],
    target: &'a [u8],
    version: Version,
}

impl Line<'_> {
    fn parse(&self, limits: &Limits) -> Result<Parts, Fault> {
        match self.method {
            b"CONNECT" => return Err(Fault::Connect),
            b"TRACE" => return Err(Fault::Trace),
            _ => {}
        }
        if self.target.len() > limits.target_len_max {
            return Err(Fault::TargetTooLong);
        }
        let (method, start) = (Method::of(self.method), self.method.len() + 1);
        Ok(Parts {
            skipped: 0,
            end: 0,
            method,
            method_name: Span::new(0, self.method.len()),
            whole_target: Span::new(start, start + self.target.len()),
            target: target::parse(method, self.target, start)?,
            host: None,
            version: self.version,
            framing: Framing::None,
            is_persistent: false,
            expects_continue: false,
            is_upgrade: false,
            accepts_trailers: false,
            nominates: false,
        })
    }
}

/// Adds what the fields say.
fn complete(bytes: &[u8], parts: &mut Parts, facts: &Facts) -> Result<(), Refusal> {
    let version = parts.version;
    parts.framing = facts.framing(version)?.unwrap_or(Framing::None);
    parts.is_persistent = facts.is_persistent(version);
    // RFC 9110 §10.1.1: ignored in HTTP/1.0. Without a body there is nothing to wait for.
    let has_body = !matches!(parts.framing, Framing::None | Framing::Length(0));
    parts.expects_continue = facts.expects_continue && version == Version::Http11 && has_body;
    parts.is_upgrade = facts.is_upgrade(version);
    parts.accepts_trailers = facts.accepts_trailers && version == Version::Http11;
    parts.nominates = facts.nominates;
    let field = match facts.host {
        // RFC 9112 §3.2.
        None if version == Version::Http11 => return Err(Refusal::whole(Fault::HostMissing)),
        None => None,
        Some(span) => {
            let host = Host::parse(span.of(bytes));
            Some((span, host.ok_or(Refusal::at(Fault::Host, facts.host_line.into()))?))
        }
    };
    parts.host = field.map(|(span, _)| span);
    if let (TargetForm::Absolute(scheme), Some(authority)) = (parts.target.form, parts.target.authority) {
        let meant = Host::parse(authority.of(bytes)).ok_or(Refusal::at(Fault::Target, 1))?;
        // RFC 9112 §3.2.2 lets a proxy replace the field. Of two hosts, though, a program behind this one may
        // take the other.
        if field.is_some_and(|(_, host)| !host.is_same(&meant, scheme.default_port())) {
            return Err(Refusal::at(Fault::HostDiffers, facts.host_line.into()));
        }
        parts.host = Some(authority);
    }
    Ok(())
}
