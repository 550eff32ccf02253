//! Response heads.

use std::mem::MaybeUninit;

use httparse::{Error, ParserConfig, Status};

use super::facts::Facts;
use super::request::has_line_ends;
use super::syntax::{self, Kind};
use super::{Field, FieldText, Framing, Span, Version};
use crate::fault::{Fault, Refusal};
use crate::limits::{FIELDS_MAX, Limits};

/// What a response head says, with positions in its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    skipped: u16,
    end: u16,
    status: u16,
    reason: Span,
    version: Version,
    framing: Option<Framing>,
    is_persistent: bool,
    is_upgrade: bool,
    nominates: bool,
}

/// A response head, in the bytes in which it arrived.
#[derive(Clone, Copy, Debug)]
pub struct Response<'a> {
    bytes: &'a [u8],
    fields: &'a [Field],
    parts: Parts,
}

impl<'a> Response<'a> {
    pub(super) fn new(bytes: &'a [u8], fields: &'a [Field], parts: Parts) -> Self {
        let start = usize::from(parts.skipped);
        Response { bytes: &bytes[start..start + usize::from(parts.end)], fields, parts }
    }

    /// Returns the bytes that the head occupies at the start of the readable ones.
    pub fn head_len(&self) -> usize {
        usize::from(self.parts.skipped) + usize::from(self.parts.end)
    }

    /// Returns the head's bytes from the status line to the empty line.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the status, from 100 to 999.
    pub fn status(&self) -> u16 {
        self.parts.status
    }

    /// Returns the reason phrase.
    pub fn reason(&self) -> &'a [u8] {
        self.parts.reason.of(self.bytes)
    }

    /// Returns the version.
    pub fn version(&self) -> Version {
        self.parts.version
    }

    /// Returns how the body is framed that answers a request; `to_head`: of the method HEAD (RFC 9112 §6.3).
    pub fn framing(&self, to_head: bool) -> Framing {
        match self.parts.status {
            100..=199 | 204 | 304 => Framing::None,
            // Whatever length or coding the fields name (haproxy #2836).
            _ if to_head => Framing::None,
            _ => self.parts.framing.unwrap_or(Framing::UntilClose),
        }
    }

    /// Returns the length that the fields name, of a body that may be left out.
    pub fn content_length(&self) -> Option<u64> {
        match self.parts.framing {
            Some(Framing::Length(length)) => Some(length),
            _ => None,
        }
    }

    /// Returns whether the response is interim: 1xx but 101.
    pub fn is_interim(&self) -> bool {
        (100..200).contains(&self.parts.status) && self.parts.status != 101
    }

    /// Returns whether the member will keep the connection after this response.
    pub fn is_persistent(&self) -> bool {
        self.parts.is_persistent
    }

    /// Returns whether the response is 101 and names the protocol.
    pub fn is_upgrade(&self) -> bool {
        self.parts.status == 101 && self.parts.is_upgrade
    }

    /// Returns whether `Connection` names fields that are not hop-by-hop by themselves.
    pub(crate) fn nominates(&self) -> bool {
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

/// Parses a whole response head; `None` if it is not complete.
pub(super) fn parse(
    bytes: &[u8],
    limits: &Limits,
    fields: &mut Vec<Field>,
) -> Result<Option<Parts>, Refusal> {
    let Some(skipped) = syntax::empty_lines(bytes)? else { return Ok(None) };
    let bytes = &bytes[skipped..];
    let mut room = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let room = &mut room[..limits.fields_max.min(FIELDS_MAX)];
    let mut response = httparse::Response::new(&mut []);
    let mut config = ParserConfig::default();
    config.allow_spaces_after_header_name_in_responses(true);
    let end = match config.parse_response_with_uninit_headers(&mut response, bytes, room) {
        Ok(Status::Complete(end)) => end,
        Ok(Status::Partial) => return Ok(None),
        Err(Error::TooManyHeaders) => return Err(Refusal::whole(Fault::TooManyFields)),
        Err(_) => {
            let refusal = syntax::diagnose(bytes, Kind::Response);
            return Err(refusal.unwrap_or(Refusal::whole(Fault::StartLine)));
        }
    };
    let bytes = &bytes[..end];
    if !has_line_ends(bytes, response.headers.iter().map(|header| header.name)) {
        let refusal = syntax::diagnose(bytes, Kind::Response);
        return Err(refusal.unwrap_or(Refusal::whole(Fault::BareLf)));
    }
    let status = response.code.unwrap_or(0);
    if status < 100 {
        return Err(Refusal::at(Fault::StartLine, 1));
    }
    let version = if response.version == Some(0) { Version::Http10 } else { Version::Http11 };
    let facts = Facts::of(bytes, response.headers, limits, fields)?;
    Ok(Some(Parts {
        skipped: skipped as u16,
        end: end as u16,
        status,
        reason: reason(bytes),
        version,
        framing: facts.framing(version)?,
        is_persistent: facts.is_persistent(version),
        is_upgrade: facts.is_upgrade(version),
        nominates: facts.nominates,
    }))
}

/// The phrase behind `HTTP/1.1 200 `, up to the end of the line.
fn reason(bytes: &[u8]) -> Span {
    const START: usize = "HTTP/1.1 200 ".len();
    let end = memchr::memchr(b'\r', bytes).unwrap_or(START);
    Span::new(START.min(end), end)
}
