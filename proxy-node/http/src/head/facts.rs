//! What the fields of a head say of framing, the connection and the host: one pass over the parsed fields,
//! which also records where they lie.

use httparse::Header;

use super::{Field, FieldText, Framing, Span, Version};
use crate::fault::{Fault, Refusal};
use crate::limits::{BODY_LEN_MAX, CONNECTION_OPTIONS_MAX, Limits};
use crate::name::{Name, elements, is_token};

/// The fields of a head that concern the machine itself.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Facts {
    length: Option<u64>,
    /// Line of the first `Transfer-Encoding`.
    coded: Option<u16>,
    pub(super) host: Option<Span>,
    pub(super) host_line: u16,
    close: bool,
    keep_alive: bool,
    upgrade_option: bool,
    upgrade_field: bool,
    /// Whether `Connection` names a field that is not known to be hop-by-hop.
    pub(super) nominates: bool,
    options: usize,
    pub(super) expects_continue: bool,
    pub(super) accepts_trailers: bool,
}

impl Facts {
    /// Records the fields of the head `bytes` in `fields`, and what they say.
    pub(super) fn of(
        bytes: &[u8],
        headers: &[Header<'_>],
        limits: &Limits,
        fields: &mut Vec<Field>,
    ) -> Result<Facts, Refusal> {
        fields.clear();
        let mut facts = Facts::default();
        let start = bytes.as_ptr() as usize;
        let (mut rest, mut line) = (headers, 2);
        while let [header, others @ ..] = rest {
            rest = others;
            let (name, value) = (header.name.as_bytes(), header.value);
            let (name_start, value_start) = (place(start, name), place(start, value));
            let (name_end, value_end) = (name_start + name.len(), value_start + value.len());
            // The next name begins behind this line, or the empty line does.
            let line_end = match others {
                [next, ..] => place(start, next.name.as_bytes()),
                [] => bytes.len().saturating_sub(2),
            };
            if line_end.saturating_sub(name_start) > limits.line_len_max + 2 {
                return Err(Refusal::at(Fault::FieldTooLong, line));
            }
            let (known, place) = (Name::of(name), Span::new(value_start, value_end));
            fields.push(Field {
                name: Span::new(name_start, name_end),
                value: place,
                line_end: line_end as u16,
                known,
                is_plain: value_start == name_end + 2
                    && bytes.get(name_end + 1) == Some(&b' ')
                    && line_end == value_end + 2,
            });
            if known != Name::Other {
                facts.add(known, value, place, line).map_err(|fault| Refusal::at(fault, line))?;
            }
            line += 1;
        }
        Ok(facts)
    }

    #[inline]
    fn add(&mut self, known: Name, value: &[u8], place: Span, line: usize) -> Result<(), Fault> {
        match known {
            Name::ContentLength => {
                let length = content_length(value)?;
                if self.length.replace(length).is_some() {
                    return Err(Fault::ContentLengthTwice);
                }
            }
            Name::TransferEncoding => {
                transfer_encoding(value)?;
                if self.coded.replace(line as u16).is_some() {
                    return Err(Fault::TransferEncoding);
                }
            }
            Name::Host => {
                if self.host.replace(place).is_some() {
                    return Err(Fault::HostTwice);
                }
                self.host_line = line as u16;
            }
            Name::Connection => self.connection(value)?,
            Name::Upgrade => self.upgrade_field = true,
            Name::Te => {
                let trailers = |coding: &[u8]| coding.eq_ignore_ascii_case(b"trailers");
                self.accepts_trailers |= elements(value).any(trailers);
            }
            Name::Expect => {
                if !value.eq_ignore_ascii_case(b"100-continue") {
                    return Err(Fault::Expectation);
                }
                self.expects_continue = true;
            }
            _ => {}
        }
        // RFC 9112 §6.1: a request with both may be an attempt at smuggling.
        match (self.length, self.coded) {
            (Some(_), Some(_)) => Err(Fault::TwoLengths),
            _ => Ok(()),
        }
    }

    /// RFC 9110 §7.6.1.
    fn connection(&mut self, value: &[u8]) -> Result<(), Fault> {
        for option in elements(value) {
            self.options += 1;
            if self.options > CONNECTION_OPTIONS_MAX || !is_token(option) {
                return Err(Fault::ConnectionOptions);
            }
            if option.eq_ignore_ascii_case(b"close") {
                self.close = true;
            } else if option.eq_ignore_ascii_case(b"keep-alive") {
                self.keep_alive = true;
            } else if option.eq_ignore_ascii_case(b"upgrade") {
                self.upgrade_option = true;
            } else if !Name::of(option).is_framing() && Name::of(option) != Name::Expect {
                self.nominates = true;
            }
        }
        Ok(())
    }

    /// Returns how the body is framed, if the head says so.
    pub(super) fn framing(&self, version: Version) -> Result<Option<Framing>, Refusal> {
        match (self.coded, self.length) {
            // RFC 9112 §6.1: the framing is faulty, even if a length is given, too.
            (Some(line), _) if version == Version::Http10 => {
                Err(Refusal::at(Fault::TransferEncodingIn10, line.into()))
            }
            (Some(_), _) => Ok(Some(Framing::Chunked)),
            (None, Some(length)) => Ok(Some(Framing::Length(length))),
            (None, None) => Ok(None),
        }
    }

    /// Returns whether the peer will keep the connection (RFC 9112 §9.3).
    pub(super) fn is_persistent(&self, version: Version) -> bool {
        !self.close && (version == Version::Http11 || self.keep_alive)
    }

    /// Returns whether the message upgrades the connection, or asks for it (RFC 9110 §7.8).
    pub(super) fn is_upgrade(&self, version: Version) -> bool {
        self.upgrade_option && self.upgrade_field && version == Version::Http11
    }
}

/// Returns whether `Connection` fields of the head name a field of this name.
pub(crate) fn nominated<'a>(fields: impl Iterator<Item = FieldText<'a>>, name: &[u8]) -> bool {
    fields
        .filter(|field| field.known == Name::Connection)
        .flat_map(|field| elements(field.value))
        .any(|option| option.eq_ignore_ascii_case(name) && Name::of(name) != Name::Expect)
}

/// The position of a part of the bytes that begin at `start`.
#[inline]
fn place(start: usize, part: &[u8]) -> usize {
    (part.as_ptr() as usize).wrapping_sub(start)
}

/// RFC 9110 §8.6: digits alone. A list of equal numbers is refused, too.
fn content_length(value: &[u8]) -> Result<u64, Fault> {
    if value.is_empty() || value.len() > 19 {
        return Err(Fault::ContentLength);
    }
    let digit = |length: u64, byte: &u8| match byte {
        b'0'..=b'9' => length.checked_mul(10)?.checked_add(u64::from(byte - b'0')),
        _ => None,
    };
    let length = value.iter().try_fold(0, digit).filter(|length| *length <= BODY_LEN_MAX);
    length.ok_or(Fault::ContentLength)
}

/// RFC 9112 §6.1: `chunked`, once and last. No other coding is implemented.
fn transfer_encoding(value: &[u8]) -> Result<(), Fault> {
    if value.eq_ignore_ascii_case(b"chunked") {
        return Ok(());
    }
    let codings = || elements(value);
    let is_chunked = |coding: &[u8]| coding.eq_ignore_ascii_case(b"chunked");
    let chunked = codings().filter(|coding| is_chunked(coding)).count();
    match codings().last() {
        // Other codings before the last one: valid, and not implemented.
        Some(last) if chunked == 1 && is_chunked(last) && codings().count() > 1 => Err(Fault::TransferCoding),
        Some(_) if chunked == 0 => Err(Fault::TransferCoding),
        _ => Err(Fault::TransferEncoding),
    }
}
