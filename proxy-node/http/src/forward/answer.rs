//! Responses of the proxy itself, and trailers.

use super::edits::Edits;
use super::response::{connection, framing};
use super::writer::Writer;
use super::{Extra, TooLong};
use crate::body::trailer_fields;
use crate::exchange::Plan;

/// A response of the proxy.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    /// The status.
    pub status: u16,
    /// What the client's connection says of framing and connection.
    pub plan: Plan,
    /// The length of the body that is left out, since the request was HEAD.
    pub missing_body: Option<u64>,
    /// The date.
    pub date: Option<&'a [u8]>,
    /// Further fields, such as `Content-Type`, `Location`, `Retry-After`.
    pub fields: &'a [Extra<'a>],
    /// Fields that edits do not remove.
    pub own: &'a [Extra<'a>],
    /// Edits of the route, of `fields` too.
    pub edits: &'a Edits,
}

/// Writes the head of a response of the proxy; returns its length.
pub fn answer(out: &mut [u8], answer: &Answer<'_>) -> Result<usize, TooLong> {
    let mut out = Writer::new(out);
    out.put(b"HTTP/1.1 ");
    out.number(answer.status.into());
    out.put(b" ");
    out.put(reason_phrase(answer.status).as_bytes());
    out.put(b"\r\n");
    if let Some(date) = answer.date.filter(|_| !answer.edits.removes(b"Date")) {
        out.field(b"Date", date);
    }
    let kept = answer.fields.iter().copied().filter(|(name, _)| !answer.edits.removes(name));
    let own = answer.own.iter().copied();
    kept.chain(answer.edits.added()).chain(own).for_each(|(name, value)| out.field(name, value));
    // RFC 9110 §15.5.6.
    if answer.status == 405 && !answer.fields.iter().any(|(name, _)| name.eq_ignore_ascii_case(b"Allow")) {
        out.field(b"Allow", b"GET, HEAD, POST, PUT, DELETE, OPTIONS, PATCH");
    }
    framing(&mut out, answer.plan.framing, answer.missing_body);
    connection(&mut out, answer.plan.connection);
    out.put(b"\r\n");
    out.finish()
}

/// Writes the last chunk with those fields of a received trailer section that may be forwarded, and that
/// edits of the head do not remove; returns its length. A CRLF of the chunk before it is not written.
pub fn trailers(out: &mut [u8], section: &[u8], edits: &Edits) -> Result<usize, TooLong> {
    let mut out = Writer::new(out);
    out.put(b"0\r\n");
    for field in trailer_fields(section).filter(|field| !edits.removes(field.name)) {
        out.field(field.name, field.value);
    }
    out.put(b"\r\n");
    out.finish()
}

/// Returns the reason phrase of a status that the proxy answers with; empty for others.
pub const fn reason_phrase(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        200 => "OK",
        204 => "No Content",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        413 => "Content Too Large",
        414 => "URI Too Long",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        425 => "Too Early",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "",
    }
}
