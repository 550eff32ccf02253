//! Heads and trailers of one version as those of the other.
//!
//! ```text
//!                 client ── HTTP/2 ──▶ proxy ── HTTP/1.1 text ──▶ csp-http: routes, edits, members
//!  request:                            request::write             to_http2::request, for members of HTTP/2
//!  response:      to_http2::response                              response::write
//!  trailers:      to_http2::trailers   section::write
//! ```
//! What is written as text is read again by the strict reader of `csp-http`, so that one set of checks stands
//! before rules and members. What that reader could not see is checked here.

pub(crate) mod request;
pub(crate) mod response;
pub(crate) mod section;
pub(crate) mod to_http2;

use csp_http::head::Scratch;
use csp_http::limits::{FIELDS_MAX, HEAD_LEN_MAX};
use csp_http::name::is_value_byte;
use http::HeaderValue;

use crate::malformed::Malformed;

/// The widest limits of a head: one that comes from this side was checked before.
pub(crate) const WIDEST: csp_http::Limits = csp_http::Limits {
    head_len_max: HEAD_LEN_MAX,
    line_len_max: HEAD_LEN_MAX,
    fields_max: FIELDS_MAX,
    target_len_max: HEAD_LEN_MAX,
    trailer_len_max: HEAD_LEN_MAX,
    drain_len_max: 0,
    linger_len_max: 0,
};

/// Creates memory for the fields of a head that lies in one slice: nothing is gathered.
pub(crate) fn scratch() -> Box<Scratch> {
    Box::new(Scratch::new(&csp_http::Limits { head_len_max: 0, ..WIDEST }))
}

/// Writes a line `NAME: VALUE`.
fn line(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Checks a value (RFC 9113 §8.2.1): HTTP/1.1 would remove whitespace at its ends. Control characters are
/// none of its type's.
fn checked(value: &HeaderValue) -> Result<&[u8], Malformed> {
    let value = value.as_bytes();
    debug_assert!(value.iter().all(|byte| is_value_byte(*byte)));
    let is_space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    match is_space(value.first()) || is_space(value.last()) {
        true => Err(Malformed::Value),
        false => Ok(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `http` and `csp-http` hold for a byte of a value is the same, or a value could end its line.
    #[test]
    fn values_have_the_same_bytes() {
        for byte in 0..=u8::MAX {
            assert_eq!(HeaderValue::from_bytes(&[b'a', byte, b'a']).is_ok(), is_value_byte(byte), "{byte}");
        }
    }
}
