//! Conditional requests and ranges of clients, answered from a stored response (RFC 9110 §13, §14).

use std::ops::Range;

use crate::date;
use crate::fields::{Fields, elements};

/// Longest text of conditions of a request that is evaluated, in bytes; a longer one gets the whole response.
const TEXT_LEN_MAX: usize = 4 << 10;

/// What a client gets of a stored response.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Part {
    /// All of it.
    Whole,
    /// 304: it has it already.
    NotModified,
    /// 206: these bytes.
    Range(Range<usize>),
    /// 416: there are no such bytes.
    Unsatisfiable,
}

/// Returns what a GET or HEAD request gets of a stored response of status `status`, whose body has `len`
/// bytes. `now` in seconds since 1970.
pub fn evaluate(request: Fields<'_>, (status, stored): (u16, Fields<'_>), len: usize, now: u64) -> Part {
    if status != 200 {
        return Part::Whole; // RFC 9110 §13.2.1: of other statuses conditions say nothing
    }
    let etag = stored.only(b"etag");
    let modified = stored.only(b"last-modified").and_then(|text| date::parse(text, now));
    if request.has(b"if-none-match") {
        // RFC 9110 §13.1.2: If-Modified-Since is ignored then.
        if is_named(request.values(b"if-none-match"), etag) {
            return Part::NotModified;
        }
    } else if let Some(since) = request.only(b"if-modified-since").and_then(|text| date::parse(text, now)) {
        let modified = modified.or_else(|| stored.only(b"date").and_then(|text| date::parse(text, now)));
        if modified.is_some_and(|modified| modified <= since) {
            return Part::NotModified;
        }
    }
    match request.only(b"range") {
        Some(range) if range_applies(request, etag, modified, now) => of_range(range, len),
        _ => Part::Whole,
    }
}

/// Returns whether a list names the entity tag, by weak comparison (RFC 9110 §8.8.3.2).
fn is_named<'a>(lists: impl Iterator<Item = &'a [u8]> + Clone, etag: Option<&[u8]>) -> bool {
    if lists.clone().map(<[u8]>::len).sum::<usize>() > TEXT_LEN_MAX {
        return false;
    }
    let opaque = |tag: &'a [u8]| tag.strip_prefix(b"W/").unwrap_or(tag);
    let bare = etag.map(|tag| tag.strip_prefix(b"W/").unwrap_or(tag));
    lists.flat_map(elements).any(|tag| tag == b"*" || Some(opaque(tag)) == bare)
}

/// RFC 9110 §13.1.5: with a validator that does not match strongly, the range is ignored.
fn range_applies(request: Fields<'_>, etag: Option<&[u8]>, modified: Option<u64>, now: u64) -> bool {
    if !request.has(b"if-range") {
        return true;
    }
    let Some(validator) = request.only(b"if-range") else { return false };
    if validator.starts_with(b"\"") || validator.starts_with(b"W/") {
        return !validator.starts_with(b"W/") && Some(validator) == etag;
    }
    date::parse(validator, now).is_some_and(|date| Some(date) == modified)
}

/// Returns the bytes of a single range. Others, and units but bytes, are ignored (RFC 9110 §14.2).
fn of_range(text: &[u8], len: usize) -> Part {
    let Some((unit, range)) = text.split_at_checked(6) else { return Part::Whole };
    let dash = range.iter().position(|byte| *byte == b'-');
    let (false, Some(dash)) = (!unit.eq_ignore_ascii_case(b"bytes=") || range.contains(&b','), dash) else {
        return Part::Whole;
    };
    let (first, last) = (range[..dash].trim_ascii(), range[dash + 1..].trim_ascii());
    let number = |text: &[u8]| -> Option<usize> {
        let digit = |sum: usize, byte: &u8| {
            byte.is_ascii_digit().then(|| sum.saturating_mul(10).saturating_add(usize::from(byte - b'0')))
        };
        if text.is_empty() { None } else { text.iter().try_fold(0, digit) }
    };
    let range = match (first.is_empty(), number(first), last.is_empty(), number(last)) {
        (true, _, false, Some(count)) => len.saturating_sub(count)..if count == 0 { 0 } else { len },
        (false, Some(first), true, _) => first..len,
        (false, Some(first), false, Some(last)) if first <= last => first..last.saturating_add(1).min(len),
        _ => return Part::Whole,
    };
    if range.start < range.end { Part::Range(range) } else { Part::Unsatisfiable }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORED: &str =
        "HTTP/1.1 200 OK\r\nETag: \"a\"\r\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n\r\n";

    fn part(text: &str) -> Part {
        let head = format!("GET / HTTP/1.1\r\n{text}\r\n\r\n");
        evaluate(Fields::of_head(head.as_bytes()), (200, Fields::of_head(STORED.as_bytes())), 10, 784_200_000)
    }

    #[test]
    fn conditions() {
        for text in [
            "If-None-Match: \"a\"",
            "If-None-Match: *",
            "If-None-Match: \"b\", W/\"a\"",
            "If-None-Match: \"b\"\r\nIf-None-Match: \"a\"",
            "If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT",
            "If-Modified-Since: Sun Nov  6 08:49:38 1994",
            "If-None-Match: \"a\"\r\nRange: bytes=0-1",
        ] {
            assert_eq!(part(text), Part::NotModified, "{text}");
        }
        for text in [
            "",
            "If-None-Match: \"b\"",
            "If-None-Match: a",
            "If-Modified-Since: Sun, 06 Nov 1994 08:49:36 GMT",
            "If-None-Match: \"b\"\r\nIf-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT",
            "If-Modified-Since: x",
        ] {
            assert_eq!(part(text), Part::Whole, "{text}");
        }
        let other =
            evaluate(Fields::of_head(b"GET /\r\nIf-None-Match: *\r\n"), (404, Fields::of_head(b"")), 0, 0);
        assert_eq!(other, Part::Whole);
    }

    #[test]
    fn ranges() {
        for (text, range) in
            [("0-0", 0..1), ("2-", 2..10), ("-3", 7..10), ("5-99", 5..10), ("-99", 0..10), ("9-9", 9..10)]
        {
            assert_eq!(part(&format!("Range: bytes={text}")), Part::Range(range), "{text}");
        }
        for text in ["10-", "10-12", "-0", "99999999999999999999999-"] {
            assert_eq!(part(&format!("Range: bytes={text}")), Part::Unsatisfiable, "{text}");
        }
        for text in [
            "bytes=0-1,3-4",
            "bytes=3-1",
            "bytes=-",
            "bytes=a-b",
            "lines=0-1",
            "bytes=0",
            "bytes",
            "",
            "bytes=+1-2",
        ] {
            assert_eq!(part(&format!("Range: {text}")), Part::Whole, "{text}");
        }
        for (text, applies) in [
            ("\"a\"", true),
            ("\"b\"", false),
            ("W/\"a\"", false),
            ("Sun, 06 Nov 1994 08:49:37 GMT", true),
            ("Sun, 06 Nov 1994 08:49:38 GMT", false),
            ("x", false),
        ] {
            assert_eq!(
                part(&format!("Range: bytes=0-1\r\nIf-Range: {text}")) == Part::Range(0..2),
                applies,
                "{text}"
            );
        }
    }
}
