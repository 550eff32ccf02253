//! `Cache-Control` of requests and responses (RFC 9111 §5.2).

use crate::fields::{Fields, elements, seconds};

/// Most directives of a head that are looked at.
const DIRECTIVES_MAX: usize = 64;

/// What a response's `Cache-Control` says. A directive that names fields counts for the whole response.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ResponseControl {
    /// `no-store`.
    pub no_store: bool,
    /// `no-cache`.
    pub no_cache: bool,
    /// `private`.
    pub private: bool,
    /// `public`.
    pub public: bool,
    /// `must-revalidate`, `proxy-revalidate`, or `s-maxage`, which implies it (RFC 9111 §5.2.2.10).
    pub must_revalidate: bool,
    /// `s-maxage` in seconds.
    pub s_maxage: Option<u64>,
    /// `max-age` in seconds.
    pub max_age: Option<u64>,
    /// `stale-while-revalidate` in seconds (RFC 5861).
    pub stale_while_revalidate: Option<u64>,
    /// `stale-if-error` in seconds (RFC 5861).
    pub stale_if_error: Option<u64>,
}

/// What a request's `Cache-Control` says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RequestControl {
    /// `no-store`.
    pub no_store: bool,
    /// `no-cache`.
    pub no_cache: bool,
    /// `only-if-cached`.
    pub only_if_cached: bool,
    /// `max-age` in seconds.
    pub max_age: Option<u64>,
    /// `min-fresh` in seconds.
    pub min_fresh: Option<u64>,
    /// `max-stale` in seconds; without a number any.
    pub max_stale: Option<u64>,
}

/// Returns the directives in all fields, with their values without quotation marks.
fn directives(fields: Fields<'_>) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
    let all = fields.values(b"cache-control").flat_map(elements).take(DIRECTIVES_MAX);
    all.map(|directive| match directive.iter().position(|byte| *byte == b'=') {
        Some(at) => {
            let value = directive[at + 1..].trim_ascii();
            let bare = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value);
            (directive[..at].trim_ascii(), Some(bare))
        }
        None => (directive, None),
    })
}

/// Returns whether what is said cannot be known: too many directives, or a quoted string without an end.
fn is_unclear(fields: Fields<'_>) -> bool {
    let mut all = fields.values(b"cache-control");
    all.clone().flat_map(elements).nth(DIRECTIVES_MAX).is_some() || all.any(|value| !ends_outside(value))
}

/// Returns whether all quoted strings of a value have an end.
fn ends_outside(value: &[u8]) -> bool {
    let (mut is_quoted, mut is_escaped) = (false, false);
    for byte in value {
        match (*byte, is_quoted) {
            _ if is_escaped => is_escaped = false,
            (b'\\', true) => is_escaped = true,
            (b'"', _) => is_quoted = !is_quoted,
            _ => {}
        }
    }
    !is_quoted
}

/// Sets a time: the shortest one counts, and one that cannot be read is 0 (RFC 9111 §4.2.1).
fn shorten(time: &mut Option<u64>, value: Option<&[u8]>) {
    let value = value.and_then(seconds).unwrap_or(0);
    *time = Some(time.map_or(value, |time| time.min(value)));
}

impl ResponseControl {
    /// Reads the fields of a response.
    pub fn of(fields: Fields<'_>) -> Self {
        let mut control = ResponseControl { no_store: is_unclear(fields), ..ResponseControl::default() };
        for (name, value) in directives(fields) {
            let is = |known: &[u8]| name.eq_ignore_ascii_case(known);
            match () {
                () if is(b"no-store") => control.no_store = true,
                () if is(b"no-cache") => control.no_cache = true,
                () if is(b"private") => control.private = true,
                () if is(b"public") => control.public = true,
                () if is(b"must-revalidate") || is(b"proxy-revalidate") => control.must_revalidate = true,
                () if is(b"s-maxage") => {
                    shorten(&mut control.s_maxage, value);
                    control.must_revalidate = true;
                }
                () if is(b"max-age") => shorten(&mut control.max_age, value),
                () if is(b"stale-while-revalidate") => shorten(&mut control.stale_while_revalidate, value),
                () if is(b"stale-if-error") => shorten(&mut control.stale_if_error, value),
                () => {}
            }
        }
        control
    }

    /// Returns whether the server says that a shared cache may store the response whatever the request's
    /// identity is (RFC 9111 §3.5).
    pub fn is_shared(&self) -> bool {
        self.public || self.s_maxage.is_some()
    }
}

impl RequestControl {
    /// Reads the fields of a request. `Pragma: no-cache` counts without `Cache-Control`.
    pub fn of(fields: Fields<'_>) -> Self {
        let mut control = RequestControl::default();
        for (name, value) in directives(fields) {
            let is = |known: &[u8]| name.eq_ignore_ascii_case(known);
            match () {
                () if is(b"no-store") => control.no_store = true,
                () if is(b"no-cache") => control.no_cache = true,
                () if is(b"only-if-cached") => control.only_if_cached = true,
                () if is(b"max-age") => shorten(&mut control.max_age, value),
                () if is(b"min-fresh") => control.min_fresh = value.and_then(seconds),
                () if is(b"max-stale") => {
                    control.max_stale = Some(value.map_or(u64::MAX, |text| seconds(text).unwrap_or(0)));
                }
                () => {}
            }
        }
        if !fields.has(b"cache-control") {
            control.no_cache = fields
                .values(b"pragma")
                .flat_map(elements)
                .any(|pragma| pragma.eq_ignore_ascii_case(b"no-cache"));
        }
        control
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(value: &str) -> ResponseControl {
        let head = format!("HTTP/1.1 200 OK\r\nCache-Control: {value}\r\n\r\n");
        ResponseControl::of(Fields::of_head(head.as_bytes()))
    }

    #[test]
    fn directives_of_responses() {
        let all = response("Public, max-age=60, S-MAXAGE=\"30\", stale-if-error=5, x=y");
        assert!(all.public && all.must_revalidate && all.is_shared() && !all.private);
        assert_eq!((all.max_age, all.s_maxage, all.stale_if_error), (Some(60), Some(30), Some(5)));
        assert!(response("private=\"set-cookie, x\", no-cache=\"a,b\"").private);
        assert!(!response("x=\"no-store, private\"").no_store);
        // What cannot be known is not stored.
        assert!(response("x=\"y, private, max-age=60").no_store);
        assert!(!response("x=\"\\\"\", max-age=60").no_store);
        assert!(response(&format!("{}private", "x,".repeat(64))).no_store);
        assert!(!response(&"x,".repeat(64)).no_store);
        // What cannot be read, or is there twice, is the shorter time.
        for (value, expected) in [
            ("max-age", 0),
            ("max-age=", 0),
            ("max-age=-1", 0),
            ("max-age=1.5", 0),
            ("max-age=9,max-age=4", 4),
        ] {
            assert_eq!(response(value).max_age, Some(expected), "{value}");
        }
    }

    #[test]
    fn directives_of_requests() {
        let request = |text: &str| {
            RequestControl::of(Fields::of_head(format!("GET / HTTP/1.1\r\n{text}\r\n\r\n").as_bytes()))
        };
        let all =
            request("Cache-Control: max-age=0, min-fresh=3\r\ncache-control: max-stale, only-if-cached");
        assert_eq!((all.max_age, all.min_fresh, all.max_stale), (Some(0), Some(3), Some(u64::MAX)));
        assert!(all.only_if_cached && !all.no_cache);
        assert!(request("Pragma: x, no-cache").no_cache);
        assert!(!request("Pragma: no-cache\r\nCache-Control: max-age=5").no_cache);
    }
}
