//! What becomes of heads that break a rule, and of those that do not.
#![allow(clippy::unwrap_used, reason = "an unwrap that fails is a failed test")]

mod common;

use common::Happened;
use common::raw::{DATA, END_HEADERS, END_STREAM, GET, HEADERS, Raw, block, frame, get, go_away, resets};
use csp_http::head::{Framing, HeadReader, Scratch};
use csp_http2::{Limits, Malformed, Reason};

/// What a server does with a request.
#[derive(PartialEq, Eq, Debug)]
enum Outcome {
    /// The caller gets the head.
    Accepted(String),
    /// The caller answers with the status of the fault.
    Answered(Malformed),
    /// RST_STREAM with PROTOCOL_ERROR.
    Reset,
    /// GOAWAY.
    Closed(u32),
}

fn outcome(fields: &[(&str, &str)], flags: u8) -> Outcome {
    let mut raw = Raw::new(Limits::default());
    let happened = raw.give(&frame(HEADERS, flags | END_HEADERS, 1, &block(fields)));
    let frames = raw.frames();
    if let Some(reason) = go_away(&frames) {
        return Outcome::Closed(reason);
    }
    match &happened[..] {
        [Happened::Request { head, .. }] => return Outcome::Accepted(head.clone()),
        [Happened::Refused { fault, .. }] if resets(&frames).is_empty() => return Outcome::Answered(*fault),
        [Happened::Refused { .. }] | [] => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(resets(&frames), [(1, 1)], "{fields:?}");
    Outcome::Reset
}

fn with(more: &[(&str, &str)]) -> Outcome {
    outcome(&[&GET, more].concat(), END_STREAM)
}

#[test]
fn malformed_heads_end_their_stream_alone() {
    for fields in [
        &[("connection", "close")][..],
        &[("keep-alive", "1")],
        &[("proxy-connection", "x")],
        &[("transfer-encoding", "chunked")],
        &[("upgrade", "h2c")],
        &[("te", "gzip")],
        &[("te", "trailers, gzip")],
        &[("X", "1")],
        &[("x y", "1")],
        &[("x:", "1")],
        &[("x", " 1")],
        &[("x", "1 ")],
        &[("x", "\t")],
        &[("content-length", "+5")],
        &[("content-length", "5, 5")],
        &[("content-length", "1"), ("content-length", "2")],
        &[("content-length", "5")],
        &[(":path", "/again")],
        &[(":unknown", "x")],
        &[("x", "1"), (":method", "GET")],
        &[(":status", "200")],
        &[(":protocol", "websocket")],
    ] {
        let found = with(fields);
        let is_hpack = matches!(found, Outcome::Closed(_));
        assert!(found == Outcome::Reset || is_hpack, "{fields:?}: {found:?}");
    }
    let request = |method, scheme, authority, path| {
        outcome(
            &[(":method", method), (":scheme", scheme), (":authority", authority), (":path", path)],
            END_STREAM,
        )
    };
    for path in ["", "x", "http://a/", "/a b", "/\r\nx: y", "/\0", "*"] {
        assert_eq!(request("GET", "https", "a", path), Outcome::Reset, "{path:?}");
    }
    assert_eq!(request("GET", "ftp", "a", "/"), Outcome::Reset);
    // To h2 a method that is no token is an error of HPACK.
    assert_eq!(request("G T", "https", "a", "/"), Outcome::Closed(1));
    for (missing, (name, _)) in GET.iter().enumerate() {
        let mut fields = GET.to_vec();
        fields.remove(missing);
        let expected = if missing == 2 { Outcome::Answered(Malformed::HostMissing) } else { Outcome::Reset };
        assert_eq!(outcome(&fields, END_STREAM), expected, "without {name}");
    }
}

/// A value with a line end would be two lines of the head that goes on.
#[test]
fn values_cannot_end_a_line() {
    for value in ["a\r\nx: y", "a\nb", "a\rb", "a\0b", "\x7f"] {
        let found = with(&[("x", value)]);
        assert!(matches!(found, Outcome::Reset | Outcome::Closed(_)), "{value:?}: {found:?}");
    }
}

#[test]
fn faults_that_have_a_status_are_answered() {
    let twice = [("host", "a.example"), ("host", "a.example")];
    let lengths = [("content-length", "0"), ("content-length", "0")];
    for (fields, fault) in [
        (&[("host", "b.example")][..], Malformed::HostDiffers),
        (&[("host", "a.example:8443")], Malformed::HostDiffers),
        (&[("host", "")], Malformed::Host),
        (&twice, Malformed::HostTwice),
        (&lengths, Malformed::ContentLengthTwice),
    ] {
        assert_eq!(with(fields), Outcome::Answered(fault), "{fields:?}");
    }
    assert_eq!(with(&vec![("x", "1"); 101]), Outcome::Answered(Malformed::TooManyFields));
    let connect = [(":method", "CONNECT"), (":authority", "a.example:443")];
    assert_eq!(outcome(&connect, 0), Outcome::Answered(Malformed::Connect));
    let extended = [&[(":method", "CONNECT"), (":protocol", "connect-udp")], &GET[1..]].concat();
    assert_eq!(outcome(&extended, 0), Outcome::Answered(Malformed::Protocol));
    for authority in ["user@a", "a:b", "[::1", "a:99999"] {
        let mut fields = GET;
        fields[2].1 = authority;
        let found = outcome(&fields, END_STREAM);
        assert!(
            matches!(found, Outcome::Reset | Outcome::Answered(Malformed::Host)),
            "{authority}: {found:?}"
        );
    }
}

#[test]
fn long_lists_are_answered_and_longer_ones_end_the_connection() {
    let value = "v".repeat(1_000);
    let list = |count: usize| vec![("x", value.as_str()); count];
    let mut raw = Raw::new(Limits { frame_len_max: 1 << 20, ..Limits::default() });
    assert_eq!(raw.give(&get(1, &list(25), END_STREAM)).len(), 1);
    assert_eq!(raw.give(&get(3, &list(40), END_STREAM)), []);
    let frames = raw.frames();
    assert!(frames.iter().any(|frame| frame.0 == HEADERS && frame.2 == 3), "431: {frames:?}");
    raw.give(&get(5, &list(200), END_STREAM));
    assert_eq!(go_away(&raw.frames()), Some(11), "ENHANCE_YOUR_CALM");
}

#[test]
fn what_is_accepted_has_one_form() {
    let more = [
        ("cookie", "a=1"),
        ("te", "trailers"),
        ("cookie", "b=2"),
        ("x", "y"),
        ("host", "A.example:443"),
        ("expect", "100-continue"),
    ];
    let expected = "GET / HTTP/1.1\r\nhost: a.example\r\nte: trailers\r\nx: y\r\nexpect: 100-continue\r\n\
                    cookie: a=1; b=2\r\n\r\n";
    assert_eq!(with(&more), Outcome::Accepted(expected.to_owned()));
    let options = [(":method", "OPTIONS"), (":scheme", "https"), (":authority", "a"), (":path", "*")];
    assert_eq!(
        outcome(&options, END_STREAM),
        Outcome::Accepted("OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n".to_owned())
    );
    // The crate `http` cuts fragments off.
    let mut fragment = GET;
    fragment[3].1 = "/a#b";
    let expected = "GET /a HTTP/1.1\r\nhost: a.example\r\n\r\n".to_owned();
    assert_eq!(outcome(&fragment, END_STREAM), Outcome::Accepted(expected));
    let by_host = [&GET[..2], &GET[3..], &[("host", "b:1")]].concat();
    let expected = "GET / HTTP/1.1\r\nhost: b:1\r\n\r\n".to_owned();
    assert_eq!(outcome(&by_host, END_STREAM), Outcome::Accepted(expected));
}

/// Whatever is accepted is a head for the reader of HTTP/1.1, with the framing that the stream has.
#[test]
fn the_reader_of_http_1_reads_what_is_accepted() {
    let limits = csp_http::Limits::default();
    for (more, flags, framing) in [
        (&[][..], END_STREAM, Framing::None),
        (&[], 0, Framing::Chunked),
        (&[("content-length", "7")], 0, Framing::Length(7)),
        (&[("content-length", "0")], END_STREAM, Framing::Length(0)),
    ] {
        let Outcome::Accepted(head) = outcome(&[&GET, more].concat(), flags) else { panic!("{more:?}") };
        let mut scratch = Scratch::new(&limits);
        let read = HeadReader::default().request(&[head.as_bytes()], true, &limits, &mut scratch);
        let request = read.unwrap().unwrap();
        assert_eq!((request.framing(), request.head_len()), (framing, head.len()), "{more:?}");
    }
}

/// h2 takes an empty length for 0; the reader does not.
#[test]
fn an_empty_length_is_left_to_the_reader() {
    let Outcome::Accepted(head) = with(&[("content-length", "")]) else { panic!("h2 has refused it") };
    let limits = csp_http::Limits::default();
    let mut scratch = Scratch::new(&limits);
    let read = HeadReader::default().request(&[head.as_bytes()], true, &limits, &mut scratch);
    assert_eq!(read.unwrap_err().fault, csp_http::Fault::ContentLength);
}

#[test]
fn websockets_become_upgrades() {
    let mut raw = Raw::new(Limits::default());
    let open = [
        &[(":method", "CONNECT"), (":protocol", "websocket")],
        &GET[1..],
        &[("sec-websocket-version", "13"), ("sec-websocket-key", "no"), ("origin", "https://a")],
    ]
    .concat();
    let happened = raw.give(&frame(HEADERS, END_HEADERS, 1, &block(&open)));
    let [Happened::Request { stream: 1, head, end: false, websocket: true }] = &happened[..] else {
        panic!("{happened:?}")
    };
    let start = "GET / HTTP/1.1\r\nhost: a.example\r\nsec-websocket-version: 13\r\norigin: https://a\r\n\
                 upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-key: ";
    assert!(head.starts_with(start) && head.ends_with("==\r\n\r\n"), "{head}");
    let limits = csp_http::Limits::default();
    let mut scratch = Scratch::new(&limits);
    let read = HeadReader::default().request(&[head.as_bytes()], true, &limits, &mut scratch);
    let request = read.unwrap().unwrap();
    assert!(request.is_upgrade() && request.framing() == Framing::None);

    let refusal = b"HTTP/1.1 200 OK\r\n\r\n";
    assert_eq!(raw.server.respond_text(1, refusal, false), Err(csp_http2::SendError::NotSwitched));
    let switch = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\
                   sec-websocket-accept: x\r\nsec-websocket-protocol: chat\r\n\r\n";
    raw.server.respond_text(1, switch, false).unwrap();
    assert_eq!(raw.server.send(1, b"\x81\x02hi", false), 4);
    let frames = raw.frames();
    let [(HEADERS, END_HEADERS, 1, fields), (DATA, 0, 1, data)] = &frames[..] else { panic!("{frames:?}") };
    assert_eq!(fields[0], 0x88, ":status 200");
    let text = String::from_utf8_lossy(fields);
    assert!(!text.contains("upgrade") && !text.contains("accept"));
    assert_eq!(data, b"\x81\x02hi");
    // Both directions end for themselves.
    assert_eq!(raw.give(&frame(DATA, 0, 1, b"bytes")), [Happened::Readable(1)]);
    assert_eq!(raw.server.data(1), b"bytes");
    assert_eq!(raw.server.send(1, b"", true), 0);
    assert_eq!(raw.give(&frame(DATA, END_STREAM, 1, b"")), []);
    raw.server.release(1, 5);
    assert_eq!(raw.give(&[]), [Happened::End { stream: 1, trailers: String::new() }, Happened::Done(1)]);
    assert_eq!(resets(&raw.frames()), []);
}

#[test]
fn a_websocket_that_is_refused_has_an_answer() {
    let mut raw = Raw::new(Limits::default());
    let open = [&[(":method", "CONNECT"), (":protocol", "WebSocket")], &GET[1..]].concat();
    assert_eq!(raw.give(&frame(HEADERS, END_HEADERS, 1, &block(&open))).len(), 1);
    raw.server.respond_text(1, b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n", true).unwrap();
    let frames = raw.frames();
    assert_eq!((frames[0].0, frames[0].1), (HEADERS, END_HEADERS | END_STREAM));
    raw.server.reset(1, Reason::NO_ERROR);
    assert_eq!(resets(&raw.frames()), [(1, 0)]);
    // 101 without a WebSocket.
    assert_eq!(raw.give(&get(3, &[], END_STREAM)).len(), 1);
    let switch = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n";
    assert_eq!(raw.server.respond_text(3, switch, false), Err(csp_http2::SendError::Switched));
}

#[test]
fn fields_of_connections_do_not_go_on() {
    let mut raw = Raw::new(Limits::default());
    assert_eq!(raw.give(&get(1, &[], END_STREAM)).len(), 1);
    let head =
        b"HTTP/1.1 200 OK\r\nConnection: close, X-Hop\r\nKeep-Alive: 5\r\nX-Hop: 1\r\nTransfer-Encoding: \
                 chunked\r\nServer: m\r\n\r\n";
    raw.server.respond_text(1, head, true).unwrap();
    let frames = raw.frames();
    let [(HEADERS, _, 1, fields)] = &frames[..] else { panic!("{frames:?}") };
    // :status 200, then `server` by its index with one value.
    assert_eq!(fields[0], 0x88);
    assert!(fields.len() < 8, "{fields:?}");
}
