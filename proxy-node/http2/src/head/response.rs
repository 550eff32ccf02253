//! Responses of members as heads of HTTP/1.1.

use http::StatusCode;
use http::header::CONTENT_LENGTH;
use http::response::Parts;

use super::{checked, line};
use crate::limits::Limits;
use crate::malformed::Malformed;

/// Writes the head of a response. `ended`: nothing follows it; `to_head`: the request was HEAD.
pub(crate) fn write(
    out: &mut Vec<u8>,
    response: &Parts,
    ended: bool,
    to_head: bool,
    limits: &Limits,
) -> Result<(), Malformed> {
    out.clear();
    let (status, fields) = (response.status, &response.headers);
    if fields.len() > limits.fields_max {
        return Err(Malformed::TooManyFields);
    }
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(status.as_str().as_bytes());
    out.extend_from_slice(b" ");
    out.extend_from_slice(status.canonical_reason().unwrap_or_default().as_bytes());
    out.extend_from_slice(b"\r\n");
    for (name, value) in fields {
        line(out, name.as_str().as_bytes(), checked(value)?);
    }
    let has_no_body = to_head
        || status.is_informational()
        || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    if !has_no_body && !fields.contains_key(CONTENT_LENGTH) {
        match ended {
            true => line(out, b"content-length", b"0"),
            false => line(out, b"transfer-encoding", b"chunked"),
        }
    }
    out.extend_from_slice(b"\r\n");
    if out.len() > csp_http::limits::HEAD_LEN_MAX { Err(Malformed::TooLong) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(response: http::response::Builder, ended: bool, to_head: bool) -> String {
        let (parts, ()) = response.body(()).unwrap().into_parts();
        let mut out = Vec::new();
        write(&mut out, &parts, ended, to_head, &Limits::default()).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn framing_follows_from_what_is_known() {
        let ok = || http::Response::builder().header("a", "b");
        assert_eq!(text(ok(), false, false), "HTTP/1.1 200 OK\r\na: b\r\ntransfer-encoding: chunked\r\n\r\n");
        assert_eq!(text(ok(), true, false), "HTTP/1.1 200 OK\r\na: b\r\ncontent-length: 0\r\n\r\n");
        assert_eq!(text(ok(), true, true), "HTTP/1.1 200 OK\r\na: b\r\n\r\n");
        assert_eq!(text(ok().status(204), true, false), "HTTP/1.1 204 No Content\r\na: b\r\n\r\n");
        let known = text(ok().header("content-length", "4"), false, false);
        assert_eq!(known, "HTTP/1.1 200 OK\r\na: b\r\ncontent-length: 4\r\n\r\n");
        assert_eq!(text(http::Response::builder().status(599), true, true), "HTTP/1.1 599 \r\n\r\n");
    }
}
