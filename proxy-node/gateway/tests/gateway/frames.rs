//! Clients of HTTP/2 by hand: WebSocket (RFC 8441), and requests that are malformed.

use csp_gateway::spec::ServiceConfig;
use csp_http2::Limits;
use csp_wire::channel::MessageKind;

use crate::http::{Http, service};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_be_bytes();
    [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Fields as literals without indexing (RFC 7541 §6.2.2).
fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let text = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
    fields.iter().flat_map(|(name, value)| [vec![0], text(name), text(value)].concat()).collect()
}

type Fields<'a> = &'a [(&'a str, &'a str)];

/// The frames that a client has received on streams: kind, flags, stream, payload.
fn frames(h: &Http, port: u16) -> Vec<(u8, u8, u32, Vec<u8>)> {
    let (mut rest, mut frames) = (&h.w.clients[&port].received[..], Vec::new());
    while let [a, b, c, kind, flags, s @ ..] = rest {
        let len = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        let stream = u32::from_be_bytes(s[..4].try_into().unwrap());
        frames.push((*kind, *flags, stream, s[4..4 + len].to_vec()));
        rest = &s[4 + len..];
    }
    frames.retain(|(.., stream, _)| *stream > 0);
    frames
}

fn connect(h: &mut Http, port: u16) {
    h.w.connect(port);
    h.send(port, [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &frame(SETTINGS, 0, 0, &[])[..]].concat());
}

fn http() -> Http {
    let mut config = ServiceConfig { http2: Some(Limits::default()), ..service() };
    config.rules[0].upgrade = true;
    Http::new(config)
}

const OPEN: [(&str, &str); 6] = [
    (":method", "CONNECT"),
    (":protocol", "websocket"),
    (":scheme", "https"),
    (":authority", "a"),
    (":path", "/chat"),
    ("sec-websocket-version", "13"),
];
const SWITCH: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n";

#[test]
fn a_websocket_is_a_stream() {
    let mut h = http();
    connect(&mut h, 1_000);
    h.send(1_000, frame(HEADERS, END_HEADERS, 1, &block(&OPEN)));
    let member = h.accept();
    let head = h.hears(member).to_ascii_lowercase();
    assert!(
        head.starts_with("get /chat http/1.1\r\n") && head.contains("\r\nupgrade: websocket\r\n"),
        "{head}"
    );
    h.says(member, format!("{SWITCH}first"));
    h.send(1_000, frame(DATA, 0, 1, b"hello"));
    assert_eq!(h.hears(member), "hello");
    h.says(member, "bye");
    h.send(1_000, frame(DATA, END_STREAM, 1, b"!"));
    assert_eq!(h.hears(member), "!");
    assert!(h.w.served[&member.to_wire()].finished);
    h.w.says(member, MessageKind::Shutdown, 0, &[]);
    let got = frames(&h, 1_000);
    let bytes: Vec<u8> =
        got.iter().filter(|frame| frame.0 == DATA).flat_map(|frame| frame.3.clone()).collect();
    assert_eq!((got[0].0, &bytes[..]), (HEADERS, &b"firstbye"[..]));
    assert!(
        got.last().unwrap().1 & END_STREAM > 0 && got.iter().all(|frame| frame.0 != RST_STREAM),
        "{got:?}"
    );
    let record = &h.records()[0];
    assert_eq!((record.status, record.code(), record.received, record.sent), (101, "ok", 6, 8));
    // The connection goes on; one that the member loses is reset.
    h.send(1_000, frame(HEADERS, END_HEADERS, 3, &block(&OPEN)));
    let member = h.accept();
    h.says(member, SWITCH);
    h.resets(member);
    assert!(frames(&h, 1_000).iter().any(|frame| (frame.0, frame.2) == (RST_STREAM, 3)));
    h.assert_no_leak();
}

#[test]
fn a_websocket_that_the_member_refuses_has_its_answer() {
    let mut h = http();
    connect(&mut h, 1_000);
    h.send(1_000, frame(HEADERS, END_HEADERS, 1, &block(&OPEN)));
    let member = h.accept();
    h.says(member, "HTTP/1.1 403 No\r\nContent-Length: 2\r\n\r\nno");
    let got = frames(&h, 1_000);
    assert_eq!((got[0].0, got[1].0, &got[1].3[..]), (HEADERS, DATA, &b"no"[..]));
    // A success that does not switch would be taken as accepted.
    h.send(1_000, frame(HEADERS, END_HEADERS, 3, &block(&OPEN)));
    let member = match h.w.offers.is_empty() {
        true => member,
        false => h.accept(),
    };
    h.says(member, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    assert!(frames(&h, 1_000).iter().any(|frame| (frame.0, frame.2) == (RST_STREAM, 3)));
    assert_eq!(h.codes(), [(403, "ok"), (200, "unexpected-switch")]);
    h.assert_no_leak();
}

#[test]
fn malformed_requests_are_answered_or_reset() {
    let get = [(":method", "GET"), (":scheme", "https"), (":authority", "a"), (":path", "/")];
    let cases: [(Fields, u16, &str); 4] = [
        (&[("host", "b")], 400, "host-differs"),
        (&[("content-length", "1"), ("content-length", "1")], 400, "content-length-twice"),
        (&[("content-length", "+1")], 400, "content-length"),
        (&[("connection", "x")], 400, "connection-field"),
    ];
    let mut h = http();
    connect(&mut h, 1_000);
    for (stream, (fields, status, code)) in (1..).step_by(2).zip(cases) {
        let fields = [&get[..], fields].concat();
        h.send(1_000, frame(HEADERS, END_HEADERS | END_STREAM, stream, &block(&fields)));
        assert!(h.w.offers.is_empty(), "{code}");
        let codes = h.codes();
        if !codes.is_empty() {
            assert_eq!(codes, [(status, code)]);
        }
        let got = frames(&h, 1_000);
        assert!(got.iter().any(|frame| frame.2 == stream), "{code}");
    }
    // The connection still serves.
    h.send(1_000, frame(HEADERS, END_HEADERS | END_STREAM, 99, &block(&get)));
    let member = h.accept();
    h.says(member, "HTTP/1.1 204 No Content\r\n\r\n");
    assert_eq!(h.codes(), [(204, "ok")]);
    assert!(h.records().iter().all(|record| record.is_http2));
    h.assert_no_leak();
}
