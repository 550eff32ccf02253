//! Which responses are compressed, and how (RFC 9110 §8.4, §12.5.3).

use csp_http::head::Response;

use crate::error::{FilterError, Mistake, Part};

/// Most types of one list.
pub const TYPES_MAX: usize = 64;
/// Most codings of `Accept-Encoding` that are looked at.
const ACCEPTED_MAX: usize = 32;
/// What is compressed unless the policy says it: text, and what is text but for its name.
pub const TYPES: [&str; 14] = [
    "text/*",
    "application/javascript",
    "application/json",
    "application/ld+json",
    "application/manifest+json",
    "application/rss+xml",
    "application/atom+xml",
    "application/xhtml+xml",
    "application/xml",
    "application/wasm",
    "application/problem+json",
    "font/otf",
    "font/ttf",
    "image/svg+xml",
];

/// A content coding that the proxy can apply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Coding {
    /// RFC 7932.
    Br,
    /// RFC 1952.
    Gzip,
}

impl Coding {
    /// Returns its name in fields.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Coding::Br => "br",
            Coding::Gzip => "gzip",
        }
    }
}

/// What a policy says of compression.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CompressSpec {
    /// Whether anything is compressed; `false`: of a route whose service compresses.
    pub is_on: bool,
    /// Codings with their levels, the preferred one first: br 0 to 11, gzip 1 to 9.
    pub codings: Vec<(Coding, u8)>,
    /// Media types, in lower case; `text/*` is all of text. Empty: [`TYPES`].
    pub types: Vec<String>,
    /// Shorter bodies are left alone, in bytes. Those of unknown length are not short.
    pub least: u64,
}

/// Compression that was checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Compress {
    spec: CompressSpec,
}

impl Compress {
    pub(crate) fn new(mut spec: CompressSpec) -> Result<Compress, FilterError> {
        let wrong = |what| Err(FilterError { part: Part::Compress, what });
        if spec.codings.is_empty() {
            return wrong(Mistake::NoCoding);
        }
        for (at, (coding, level)) in spec.codings.iter().enumerate() {
            let (least, most) = match coding {
                Coding::Br => (0, 11),
                Coding::Gzip => (1, 9),
            };
            if !(least..=most).contains(level) {
                return wrong(Mistake::Level(coding.name(), *level));
            }
            if spec.codings[..at].iter().any(|(other, _)| other == coding) {
                return wrong(Mistake::CodingTwice(coding.name()));
            }
        }
        if spec.types.len() > TYPES_MAX {
            return wrong(Mistake::Types(spec.types.len()));
        }
        if let Some(name) = spec.types.iter().find(|name| !is_type(name)) {
            return wrong(Mistake::Type(name.clone()));
        }
        if spec.types.is_empty() {
            spec.types = TYPES.map(str::to_owned).to_vec();
        }
        Ok(Compress { spec })
    }

    /// Returns the coding that a client prefers by the values of its `Accept-Encoding`, with its level;
    /// `None`: it wants none of these, or says nothing.
    pub fn choose<'a>(&self, accepted: impl Iterator<Item = &'a [u8]>) -> Option<(Coding, u8)> {
        // Of each coding, of `identity` and of what is not named: how much it is wanted, in thousandths.
        // The least of several counts.
        let least = |one: Option<u16>, other: u16| Some(one.map_or(other, |one| one.min(other)));
        let (mut br, mut gzip, mut identity, mut others) = (None, None, None, None);
        let elements = accepted.flat_map(|value| value.split(|byte| *byte == b','));
        for element in elements.take(ACCEPTED_MAX) {
            let mut parts = element.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
            let name = parts.next().unwrap_or_default();
            let Some(weight) = parts.next().map_or(Some(1_000), weight) else { continue };
            let is = |known: &[u8]| name.eq_ignore_ascii_case(known);
            match () {
                () if is(b"br") => br = least(br, weight),
                () if is(b"gzip") || is(b"x-gzip") => gzip = least(gzip, weight),
                () if is(b"identity") => identity = Some(weight),
                () if is(b"*") => others = Some(weight),
                () => {}
            }
        }
        let wanted = |coding: Coding| match coding {
            Coding::Br => br.or(others).unwrap_or(0),
            Coding::Gzip => gzip.or(others).unwrap_or(0),
        };
        let mut best: Option<(Coding, u8)> = None;
        for (coding, level) in self.spec.codings.iter().copied() {
            let weight = wanted(coding);
            let is_better = best.is_none_or(|(other, _)| weight > wanted(other));
            if weight > 0 && weight >= identity.unwrap_or(0) && is_better {
                best = Some((coding, level));
            }
        }
        best
    }

    /// Returns whether a response to a request of a method other than HEAD can be compressed. `len`: that of
    /// its body, if it is known.
    #[must_use]
    pub fn fits(&self, response: &Response<'_>, len: Option<u64>) -> bool {
        let status = response.status();
        if !self.spec.is_on
            || status < 200
            || matches!(status, 204..=206 | 304)
            || len.is_some_and(|len| len < self.spec.least)
        {
            return false;
        }
        let mut is_type = false;
        for field in response.fields() {
            let is = |name: &[u8]| field.name.eq_ignore_ascii_case(name);
            if is(b"content-type") {
                is_type = self.has_type(field.value);
            } else if is(b"content-encoding") && !field.value.eq_ignore_ascii_case(b"identity")
                || is(b"content-range")
                || is(b"cache-control") && names(field.value, b"no-transform")
            {
                return false;
            }
        }
        is_type
    }

    /// Returns whether the service or the route compresses anything.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.spec.is_on
    }

    fn has_type(&self, value: &[u8]) -> bool {
        let of = value.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        self.spec.types.iter().any(|name| match name.strip_suffix('*') {
            Some(start) => of.get(..start.len()).is_some_and(|of| of.eq_ignore_ascii_case(start.as_bytes())),
            None => of.eq_ignore_ascii_case(name.as_bytes()),
        })
    }
}

/// Returns whether a list of directives has this one.
fn names(list: &[u8], directive: &[u8]) -> bool {
    list.split(|byte| *byte == b',').any(|element| {
        let name = element.split(|byte| *byte == b'=').next().unwrap_or_default();
        name.trim_ascii().eq_ignore_ascii_case(directive)
    })
}

/// Reads `q=0.5` (RFC 9110 §12.4.2) in thousandths; `None` if it is none.
fn weight(parameter: &[u8]) -> Option<u16> {
    let (name, value) = parameter.split_at_checked(2)?;
    if !name.eq_ignore_ascii_case(b"q=") {
        return None;
    }
    let (whole, fraction) = value.split_first()?;
    let fraction = match fraction {
        [] => fraction,
        [b'.', digits @ ..] => digits,
        _ => return None,
    };
    if fraction.len() > 3 || !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digits = fraction.iter().chain(b"000").take(3);
    let thousandths = digits.fold(0, |sum, digit| sum * 10 + u16::from(digit - b'0'));
    match whole {
        b'0' => Some(thousandths),
        b'1' if thousandths == 0 => Some(1_000),
        _ => None,
    }
}

fn is_type(name: &str) -> bool {
    let is_token = |part: &str| {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&byte);
        !part.is_empty() && part.len() <= 64 && part.bytes().all(fits)
    };
    let is_lower = !name.bytes().any(|byte| byte.is_ascii_uppercase());
    is_lower && name.split_once('/').is_some_and(|(of, sub)| is_token(of) && (sub == "*" || is_token(sub)))
}

/// Writes a response's head as it is for a client whose body is compressed by this coding; `None`: whose body
/// is not, although another client's might be. The head is text of HTTP/1.1, from its first line to the empty
/// one.
///
/// A strong validator is of the bytes that the server has sent, and becomes a weak one (RFC 9110 §8.8.1).
pub fn rewrite(head: &[u8], coding: Option<Coding>, out: &mut Vec<u8>) {
    let mut varies = false;
    for line in head.split_inclusive(|byte| *byte == b'\n') {
        let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
        let value = line.get(name.len() + 1..).unwrap_or_default();
        let is = |known: &[u8]| name.eq_ignore_ascii_case(known);
        if line.trim_ascii().is_empty() {
            break;
        }
        if is(b"vary") {
            varies |= names(value, b"accept-encoding") || names(value, b"*");
        }
        let is_of_bytes = is(b"accept-ranges")
            || is(b"content-encoding")
            || is(b"content-md5")
            || is(b"digest")
            || is(b"repr-digest")
            || is(b"content-digest");
        if coding.is_some() && is_of_bytes {
            continue;
        }
        if coding.is_some() && is(b"etag") && value.trim_ascii_start().starts_with(b"\"") {
            out.extend_from_slice(b"ETag: W/");
            out.extend_from_slice(value.trim_ascii_start());
            continue;
        }
        out.extend_from_slice(line);
    }
    if !varies {
        out.extend_from_slice(b"Vary: Accept-Encoding\r\n");
    }
    if let Some(coding) = coding {
        out.extend_from_slice(b"Content-Encoding: ");
        out.extend_from_slice(coding.name().as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
}
