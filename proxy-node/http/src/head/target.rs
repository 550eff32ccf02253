//! Request targets (RFC 9112 §3.2): which form, and where its parts lie.

use super::{Method, Span};
use crate::fault::Fault;

/// The form of a request target. The authority form belongs to CONNECT, which is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TargetForm {
    /// `/PATH?QUERY`.
    Origin,
    /// `http://HOST/PATH?QUERY`.
    Absolute(Scheme),
    /// `*`.
    Asterisk,
}

/// A scheme of absolute targets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scheme {
    /// `http`.
    Http,
    /// `https`.
    Https,
}

impl Scheme {
    /// Returns the port that is meant where none is named.
    pub const fn default_port(self) -> u16 {
        match self {
            Scheme::Http => 80,
            Scheme::Https => 443,
        }
    }

    /// Returns the scheme's name.
    pub const fn name(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }
}

/// The parts of a target, as positions in the head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Target {
    pub(super) form: TargetForm,
    pub(super) authority: Option<Span>,
    /// Empty if an absolute target has none: then `/` is meant, or `*` with OPTIONS.
    pub(super) path: Span,
    pub(super) query: Option<Span>,
}

/// Divides `target`, which begins at position `start` of the head.
pub(super) fn parse(method: Method, target: &[u8], start: usize) -> Result<Target, Fault> {
    // RFC 9112 §3.2 leaves no place for a fragment. A `#` that one program cuts off and the next one keeps
    // led past rules of paths (CVE-2023-45539).
    if target.iter().any(|byte| !byte.is_ascii() || *byte == b'#') {
        return Err(Fault::Target);
    }
    let end = start + target.len();
    let (form, authority, path) = match target {
        [b'/', ..] => (TargetForm::Origin, None, start),
        [b'*'] if method == Method::Options => (TargetForm::Asterisk, None, start),
        _ => {
            let (scheme, rest) = scheme(target).ok_or(Fault::Target)?;
            let authority = start + target.len() - rest.len();
            let is_end = |byte: &u8| matches!(byte, b'/' | b'?');
            let path = authority + rest.iter().position(is_end).unwrap_or(rest.len());
            (TargetForm::Absolute(scheme), Some(Span::new(authority, path)), path)
        }
    };
    let question = memchr::memchr(b'?', &target[path - start..]).map(|at| path + at);
    let path = Span::new(path, question.unwrap_or(end));
    // A backslash is a separator for some members, and for browsers.
    let offset = path.start as usize - start;
    if memchr::memchr(b'\\', &target[offset..path.end as usize - start]).is_some() {
        return Err(Fault::Target);
    }
    Ok(Target { form, authority, path, query: question.map(|at| Span::new(at + 1, end)) })
}

fn scheme(target: &[u8]) -> Option<(Scheme, &[u8])> {
    [(Scheme::Https, &b"https://"[..]), (Scheme::Http, b"http://")].into_iter().find_map(
        |(scheme, prefix)| {
            let (start, rest) = target.split_at_checked(prefix.len())?;
            start.eq_ignore_ascii_case(prefix).then_some((scheme, rest))
        },
    )
}
