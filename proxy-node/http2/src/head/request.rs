//! Requests of clients as heads of HTTP/1.1 (RFC 9113 §8.3.1, RFC 8441).

use csp_http::head::{Host, Scheme};
use csp_http::name::Name;
use h2::ext::Protocol;
use http::header::{CONTENT_LENGTH, COOKIE, HOST};
use http::request::Parts;
use http::{HeaderMap, Method};

use super::{checked, line};
use crate::limits::Limits;
use crate::malformed::Malformed;

/// Value of `Sec-WebSocket-Key`: 16 bytes in base 64.
pub(crate) type Key = [u8; 24];

/// Writes the head of a request; returns whether it opens a WebSocket. `ended`: the request has no body.
/// `key`: for the member's handshake, if it opens a WebSocket (RFC 8441 has none).
pub(crate) fn write(
    out: &mut Vec<u8>,
    request: &Parts,
    ended: bool,
    key: Key,
    limits: &Limits,
) -> Result<bool, Malformed> {
    out.clear();
    let fields = &request.headers;
    let websocket = is_websocket(request)?;
    let host = host(request)?;
    check_count(fields, limits)?;
    out.extend_from_slice(if websocket { b"GET" } else { request.method.as_str().as_bytes() });
    out.extend_from_slice(b" ");
    out.extend_from_slice(target(request)?);
    out.extend_from_slice(b" HTTP/1.1\r\n");
    line(out, b"host", host);
    write_fields(out, fields, websocket)?;
    if websocket {
        out.extend_from_slice(b"upgrade: websocket\r\nconnection: upgrade\r\n");
        line(out, b"sec-websocket-key", &key);
    } else if !ended && !fields.contains_key(CONTENT_LENGTH) {
        line(out, b"transfer-encoding", b"chunked");
    }
    out.extend_from_slice(b"\r\n");
    if out.len() > csp_http::limits::HEAD_LEN_MAX { Err(Malformed::TooLong) } else { Ok(websocket) }
}

/// RFC 8441 §4.
fn is_websocket(request: &Parts) -> Result<bool, Malformed> {
    if request.method != Method::CONNECT {
        return Ok(false);
    }
    match request.extensions.get::<Protocol>().map(Protocol::as_str) {
        Some(protocol) if protocol.eq_ignore_ascii_case("websocket") => Ok(true),
        Some(_) => Err(Malformed::Protocol),
        None => Err(Malformed::Connect),
    }
}

fn target(request: &Parts) -> Result<&[u8], Malformed> {
    let target = request.uri.path_and_query().map_or("", |target| target.as_str()).as_bytes();
    // Nothing that would end the target or the line. Other bytes are left to the reader.
    let is_right = target.iter().all(|byte| *byte > b' ' && *byte != 0x7f);
    match target {
        [b'/', ..] if is_right => Ok(target),
        b"*" if request.method == Method::OPTIONS => Ok(target),
        _ => Err(Malformed::Path),
    }
}

/// Returns the host: `:authority`, or `host` without one. RFC 9113 §8.3.1 lets a recipient prefer the former
/// where they differ; members that look at the latter made a hole of it (haproxy #2592).
fn host(request: &Parts) -> Result<&[u8], Malformed> {
    let scheme = match request.uri.scheme_str() {
        Some(name) if name.eq_ignore_ascii_case("https") => Scheme::Https,
        Some(name) if name.eq_ignore_ascii_case("http") => Scheme::Http,
        Some(_) => return Err(Malformed::Scheme),
        None => Scheme::Https,
    };
    let mut fields = request.headers.get_all(HOST).iter();
    let (field, second) = (fields.next().map(|field| field.as_bytes()), fields.next());
    if second.is_some() {
        return Err(Malformed::HostTwice);
    }
    let authority = request.uri.authority().map(|authority| authority.as_str().as_bytes());
    let text = authority.or(field).ok_or(Malformed::HostMissing)?;
    let host = Host::parse(text).ok_or(Malformed::Host)?;
    if let (Some(_), Some(field)) = (authority, field) {
        let other = Host::parse(field).ok_or(Malformed::Host)?;
        if !host.is_same(&other, scheme.default_port()) {
            return Err(Malformed::HostDiffers);
        }
    }
    Ok(text)
}

fn check_count(fields: &HeaderMap, limits: &Limits) -> Result<(), Malformed> {
    let cookies = fields.get_all(COOKIE).iter().count();
    if fields.len() - cookies.saturating_sub(1) > limits.fields_max {
        return Err(Malformed::TooManyFields);
    }
    match fields.get_all(CONTENT_LENGTH).iter().count() {
        0 | 1 => Ok(()),
        _ => Err(Malformed::ContentLengthTwice),
    }
}

fn write_fields(out: &mut Vec<u8>, fields: &HeaderMap, websocket: bool) -> Result<(), Malformed> {
    for (name, value) in fields {
        let (name, value) = (name.as_str().as_bytes(), checked(value)?);
        match Name::of(name) {
            Name::Host | Name::Cookie => {}
            // RFC 9113 §8.2.2. h2 refuses them, too.
            Name::Te if value.eq_ignore_ascii_case(b"trailers") => line(out, name, value),
            Name::Connection
            | Name::KeepAlive
            | Name::ProxyConnection
            | Name::Te
            | Name::TransferEncoding
            | Name::Upgrade => return Err(Malformed::ConnectionField),
            // The bytes behind the head belong to the WebSocket.
            Name::ContentLength if websocket => {}
            _ if websocket && name == b"sec-websocket-key" => {}
            _ => line(out, name, value),
        }
    }
    // RFC 9113 §8.2.3: one field in HTTP/1.1.
    for (at, cookie) in fields.get_all(COOKIE).iter().enumerate() {
        out.extend_from_slice(if at == 0 { b"cookie: " } else { b"; " });
        out.extend_from_slice(checked(cookie)?);
    }
    if fields.contains_key(COOKIE) {
        out.extend_from_slice(b"\r\n");
    }
    Ok(())
}

/// Returns a key for stream `stream` of a connection whose `seed` was chosen at random.
pub(crate) fn key(seed: u64, stream: u32) -> Key {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let first = mixed(seed ^ u64::from(stream));
    let number = u128::from(first) << 64 | u128::from(mixed(first ^ seed.rotate_left(32)));
    let mut key = [b'='; 24];
    // 21 digits of 6 bits, one of the last 2 bits, and two of padding.
    for (at, digit) in key.iter_mut().take(22).enumerate() {
        let bits = if at < 21 { number >> (122 - 6 * at) } else { number << 4 };
        *digit = DIGITS[(bits & 63) as usize];
    }
    key
}

/// The output function of SplitMix64.
fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(request: http::request::Builder, ended: bool) -> Result<String, Malformed> {
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let mut out = Vec::new();
        write(&mut out, &parts, ended, [b'k'; 24], &Limits::default())?;
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn a_request_becomes_a_head() {
        let request = http::Request::get("https://a.example/x?y")
            .header("cookie", "a=1")
            .header("x", "1")
            .header("te", "trailers")
            .header("cookie", "b=2")
            .header("x", "2");
        let expected = "GET /x?y HTTP/1.1\r\nhost: a.example\r\nx: 1\r\nx: 2\r\nte: trailers\r\n\
                        cookie: a=1; b=2\r\n\r\n";
        assert_eq!(text(request, true).as_deref(), Ok(expected));
    }

    #[test]
    fn a_body_without_a_length_is_chunked() {
        let post = || http::Request::post("http://a/");
        let expected = "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
        assert_eq!(text(post(), false).as_deref(), Ok(expected));
        assert_eq!(text(post(), true).as_deref(), Ok("POST / HTTP/1.1\r\nhost: a\r\n\r\n"));
        let with_length = text(post().header("content-length", "3"), false);
        assert_eq!(with_length.as_deref(), Ok("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\n"));
    }

    #[test]
    fn what_is_refused() {
        let get = || http::Request::get("https://a.example/");
        assert_eq!(text(get().header("host", "a.example:443"), true).map(|_| ()), Ok(()));
        for (request, fault) in [
            (get().header("host", "b.example"), Malformed::HostDiffers),
            (get().header("host", "a.example:80"), Malformed::HostDiffers),
            (get().header("host", "a.example").header("host", "a.example"), Malformed::HostTwice),
            (get().header("host", "a.example/"), Malformed::Host),
            (http::Request::get("https://user@a.example/"), Malformed::Host),
            (http::Request::get("/"), Malformed::HostMissing),
            (http::Request::get("ftp://a/"), Malformed::Scheme),
            (http::Request::get("https://a"), Malformed::Path),
            (http::Request::get("/").header("host", ""), Malformed::Host),
            (http::Request::connect("a.example:443"), Malformed::Connect),
            (get().header("connection", "x"), Malformed::ConnectionField),
            (get().header("keep-alive", "x"), Malformed::ConnectionField),
            (get().header("proxy-connection", "x"), Malformed::ConnectionField),
            (get().header("transfer-encoding", "chunked"), Malformed::ConnectionField),
            (get().header("upgrade", "h2c"), Malformed::ConnectionField),
            (get().header("te", "gzip"), Malformed::ConnectionField),
            (get().header("x", " y"), Malformed::Value),
            (get().header("x", "y\t"), Malformed::Value),
            (get().header("cookie", "a "), Malformed::Value),
            (
                get().header("content-length", "1").header("content-length", "1"),
                Malformed::ContentLengthTwice,
            ),
        ] {
            // `http` adds the slash that a client of HTTP/2 would have to send.
            let is_path = fault == Malformed::Path;
            let outcome = text(request, true).map(|_| ());
            assert_eq!(outcome, if is_path { Ok(()) } else { Err(fault) });
        }
    }

    #[test]
    fn fields_are_counted_with_cookies_as_one() {
        let mut request = http::Request::get("https://a/");
        for at in 0..150 {
            request = request.header("cookie", format!("c{at}=1"));
        }
        for at in 0..99 {
            request = request.header(format!("x{at}"), "1");
        }
        assert!(text(http::Request::get("https://a/"), true).is_ok());
        let crowded = request.header("y", "1").header("z", "1");
        assert_eq!(text(crowded, true), Err(Malformed::TooManyFields));
    }

    #[test]
    fn keys_are_base_64_and_differ() {
        let keys: Vec<Key> = (0..4).map(|at| key(at / 2, at as u32 % 2)).collect();
        for key in &keys {
            assert_eq!(&key[22..], b"==");
            assert!(key[..22].iter().all(|byte| byte.is_ascii_alphanumeric() || b"+/".contains(byte)));
            assert!(b"AQgw".contains(&key[21]), "the last digit has two bits");
        }
        assert!((1..4).all(|at| !keys[at..].contains(&keys[at - 1])));
    }
}
