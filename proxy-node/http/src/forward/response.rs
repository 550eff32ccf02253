//! Responses to clients.

use super::edits::Edits;
use super::request::upgrade_fields;
use super::writer::Writer;
use super::{Extra, TooLong};
use crate::exchange::{Connection, Plan};
use crate::head::{Framing, Response, nominated};
use crate::name::Name;

/// How a response goes on.
#[derive(Clone, Copy, Debug)]
pub struct ResponseForward<'a> {
    /// What the client's connection says of framing and connection. `None`: the response is interim or 101.
    pub plan: Option<Plan>,
    /// The date, if the member has sent none (RFC 9110 §6.6.1).
    pub date: Option<&'a [u8]>,
    /// Edits of the route.
    pub edits: &'a Edits,
    /// Further fields.
    pub extra: &'a [Extra<'a>],
}

/// Writes the head of a response to a client; returns its length.
pub fn response(
    out: &mut [u8],
    response: &Response<'_>,
    how: &ResponseForward<'_>,
) -> Result<usize, TooLong> {
    let mut out = Writer::new(out);
    out.put(b"HTTP/1.1 ");
    out.number(response.status().into());
    out.put(b" ");
    out.put(response.reason());
    out.put(b"\r\n");
    let (nominates, mut has_date) = (response.nominates(), false);
    out.fields(response.bytes(), response.places(), |field| {
        let keeps = match field.known {
            Name::Other | Name::Host => true,
            Name::ContentLength => false,
            Name::Date => {
                has_date = true;
                true
            }
            known => !known.is_hop_by_hop(),
        };
        keeps && !(nominates && nominated(response.fields(), field.name)) && !how.edits.removes(field.name)
    });
    if let Some(date) = how.date.filter(|_| !has_date && !how.edits.removes(b"Date")) {
        out.field(b"Date", date);
    }
    for (name, value) in how.edits.added().chain(how.extra.iter().copied()) {
        out.field(name, value);
    }
    if let Some(plan) = how.plan {
        framing(&mut out, plan.framing, kept_length(response, plan.framing));
        connection(&mut out, plan.connection);
    } else if response.is_upgrade() {
        upgrade_fields(&mut out, response.fields().filter(|field| field.known == Name::Upgrade));
        out.field(b"Connection", b"upgrade");
    }
    out.put(b"\r\n");
    out.finish()
}

/// The length that a response without a body may name: that of the body which GET would have got (RFC 9110
/// §8.6). 204 must not have one.
fn kept_length(response: &Response<'_>, framing: Framing) -> Option<u64> {
    response.content_length().filter(|_| framing == Framing::None && response.status() != 204)
}

/// Writes the fields of framing. `of_missing_body`: the length that a message without a body names.
pub(super) fn framing(out: &mut Writer<'_>, framing: Framing, of_missing_body: Option<u64>) {
    let length = match framing {
        Framing::Length(length) => Some(length),
        _ => of_missing_body,
    };
    if let Some(length) = length {
        out.put(b"Content-Length: ");
        out.number(length);
        out.put(b"\r\n");
    } else if framing == Framing::Chunked {
        out.field(b"Transfer-Encoding", b"chunked");
    }
}

pub(super) fn connection(out: &mut Writer<'_>, connection: Connection) {
    match connection {
        Connection::Implied => {}
        Connection::KeepAlive => out.field(b"Connection", b"keep-alive"),
        Connection::Close => out.field(b"Connection", b"close"),
    }
}
