//! Conditions of a route beside host and path.

use csp_types::Prefix;

use super::table::Subject;
use super::text::Text;
use super::{CONDITIONS_MAX, RouteMistake, RouteSpec, TextSpec, quoted};
use crate::head::{Fields, cookies, divided};
use crate::name::{is_same, is_token};

/// A condition for a named text.
#[derive(Clone, Debug)]
struct Named {
    name: Box<[u8]>,
    text: Text,
}

/// The conditions of a route.
#[derive(Clone, Debug)]
pub(super) struct Conditions {
    methods: Box<[Box<[u8]>]>,
    headers: Box<[Named]>,
    cookies: Box<[Named]>,
    query: Box<[Named]>,
    sources: Box<[Prefix]>,
    is_guard: bool,
}

impl Conditions {
    /// `is_guard`: a request is to meet them in doubt, not to miss them.
    pub(super) fn new(spec: &RouteSpec, is_guard: bool) -> Result<Self, RouteMistake> {
        let counts = [
            (spec.hosts.len(), "hosts"),
            (spec.methods.len(), "methods"),
            (spec.headers.len(), "headers"),
            (spec.cookies.len(), "cookies"),
            (spec.query.len(), "query parameters"),
            (spec.sources.len(), "sources"),
        ];
        if let Some((_, what)) = counts.into_iter().find(|(count, _)| *count > CONDITIONS_MAX) {
            return Err(RouteMistake::TooManyConditions(what));
        }
        if let Some(wrong) = spec.methods.iter().find(|method| !is_token(method.as_bytes())) {
            return Err(RouteMistake::Method(quoted(wrong)));
        }
        Ok(Conditions {
            methods: spec.methods.iter().map(|method| method.as_bytes().into()).collect(),
            headers: named(&spec.headers, "field", is_token)?,
            cookies: named(&spec.cookies, "cookie", is_token)?,
            query: named(&spec.query, "query parameter", |name| !name.is_empty())?,
            sources: spec.sources.iter().copied().collect(),
            is_guard,
        })
    }

    /// Returns what counts in the order of routes with the same host and path; the greater comes first.
    pub(super) fn specificity(&self) -> (bool, usize, usize, usize, bool) {
        let [headers, cookies, query] = [&self.headers, &self.cookies, &self.query].map(|named| named.len());
        (!self.methods.is_empty(), headers, cookies, query, !self.sources.is_empty())
    }

    pub(super) fn are_met(&self, subject: &Subject<'_, impl Fields>) -> bool {
        let of_method = |methods: &[Box<[u8]>]| methods.iter().any(|method| **method == *subject.method);
        (self.methods.is_empty() || of_method(&self.methods))
            && (self.sources.is_empty()
                || subject.source.is_some_and(|source| self.sources.iter().any(|net| net.contains(source))))
            && self.headers.iter().all(|named| {
                // A member may take X_A for X-A: in doubt a route is missed, and a guard is met.
                let is_absence = matches!(named.text, Text::Absent);
                let of_name = subject.fields.each().filter(|field| match is_absence != self.is_guard {
                    true => is_same(field.name, &named.name),
                    false => field.name.eq_ignore_ascii_case(&named.name),
                });
                named.text.is_met(of_name.map(|field| field.value.iter().copied()))
            })
            && self.cookies.iter().all(|named| {
                let values = cookies(subject.fields).filter(|(name, _)| **name == *named.name);
                named.text.is_met(values.map(|(_, value)| value.iter().copied()))
            })
            && self.query.iter().all(|named| {
                let query = subject.query.unwrap_or_default();
                let of_name =
                    parameters(query).filter(|(name, _)| decoded(name).eq(named.name.iter().copied()));
                named.text.is_met(of_name.map(|(_, value)| decoded(value)))
            })
    }
}

fn named(
    specs: &[(String, TextSpec)],
    what: &'static str,
    is_name: fn(&[u8]) -> bool,
) -> Result<Box<[Named]>, RouteMistake> {
    let one = |(name, text): &(String, TextSpec)| {
        if !is_name(name.as_bytes()) {
            return Err(RouteMistake::Name(quoted(name), what));
        }
        Ok(Named { name: name.as_bytes().into(), text: Text::new(text)? })
    };
    specs.iter().map(one).collect()
}

/// Returns the parameters of a query, encoded.
fn parameters(query: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    query.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty()).map(divided)
}

/// Decodes `+` and percent-encoding. A percent sign without two digits stands for itself.
fn decoded(text: &[u8]) -> impl Iterator<Item = u8> {
    let digit = |byte: Option<&u8>| char::from(*byte?).to_digit(16);
    let mut at = 0;
    std::iter::from_fn(move || {
        let byte = *text.get(at)?;
        at += 1;
        Some(match (byte, digit(text.get(at)), digit(text.get(at + 1))) {
            (b'+', ..) => b' ',
            (b'%', Some(high), Some(low)) => {
                at += 2;
                (high * 16 + low) as u8
            }
            _ => byte,
        })
    })
}
