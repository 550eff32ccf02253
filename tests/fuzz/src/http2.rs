//! HTTP/2: what a client sends behind the preface, and what a member sends. The first byte of an input
//! chooses the length of slices and turns.

use csp_http::head::{HeadReader, Scheme, Scratch};
use csp_http2::limits::OUTPUT_MAX;
use csp_http2::{ClientConnection, ClientEvent, Event, Limits, Remedy, ServerConnection};
use csp_types::Instant;

use crate::{Bounds, Check, Target};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nServer: m\r\n\r\n";
/// A connection holds 40 KiB before its first request. Heads are repeated by one byte each.
const BOUNDS: Bounds = Bounds { held: (1 << 20, 600), allocated: (4 << 20, 60_000) };
/// A frame of DATA may follow the last bytes for which there was room.
const OUTPUT_LEN_MAX: usize = OUTPUT_MAX + (32 << 10);

const WORDS: &[&str] = &[
    "\0\0\x08\x06\0\0\0\0\0",
    "\0\0\x08\x06\x01\0\0\0\0\x0b{|\x12\x0b\x16\x07\x03",
    "\0\0\x06\x04\0\0\0\0\0\0\x04\0\0\0\0",
    "\0\0\0\x04\x01\0\0\0\0",
    "\0\0\x04\x08\0\0\0\0\0\0\0\0\x01",
    "\0\0\x04\x08\0\0\0\0\x01\x7f\x7f\x7f\x7f",
    "\0\0\x04\x03\0\0\0\0\x01\0\0\0\x08",
    "\0\0\x04\x03\0\0\0\0\x03\0\0\0\x07",
    "\0\0\x05\x02\0\0\0\0\x01\0\0\0\x03\x05",
    "\0\0\x08\x07\0\0\0\0\0\0\0\0\x01\0\0\0\0",
    "\0\0\x03\0\0\0\0\0\x01abc",
    "\0\0\x03\0\x01\0\0\0\x01abc",
    "\0\0\0\0\x01\0\0\0\x03",
    "\0\0\x06\x09\x04\0\0\0\x01\0\x01x\x01y\0",
    "\0\x07:method\x03GET",
    "\0\x07:method\x07CONNECT",
    "\0\x09:protocol\x09websocket",
    "\0\x07:scheme\x05https",
    "\0\x0a:authority\x01a",
    "\0\x05:path\x01/",
    "\0\x07:status\x03200",
    "\0\x07:status\x03103",
    "\0\x04host\x01a",
    "\0\x06cookie\x01a",
    "\0\x02te\x08trailers",
    "\0\x0econtent-length\x013",
    "\0\x0aconnection\x01x",
    "\x40\x01x\x01y",
    "\x3f\x01",
    " ",
];

/// What a client sends behind the preface: each head that is accepted is one head of HTTP/1.1, output and
/// memory stay within bounds, slices do not matter, and the connection ends with its bytes.
pub static HTTP2_CLIENT: Target = Target {
    name: "http2_client",
    check: Check::Parser(client),
    examples: client_examples,
    words: WORDS,
    len_max: 4_096,
    bounds: BOUNDS,
};

/// What a member sends on a connection with open streams: the same, and each stream ends once.
pub static HTTP2_MEMBER: Target = Target {
    name: "http2_member",
    check: Check::Parser(member),
    examples: member_examples,
    words: WORDS,
    len_max: 4_096,
    bounds: BOUNDS,
};

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    [&[0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream], payload].concat()
}

/// `:method: GET`, `:scheme: http`, `:path: /` by their indices, and `:authority: a`.
const GET: &[u8] = &[0x82, 0x86, 0x84, 0x41, 1, b'a'];

fn client_examples() -> Vec<Vec<u8>> {
    let settings = frame(4, 0, 0, &[0, 4, 0, 0, 0x40, 0]);
    let post = [&[0x83][..], &GET[1..], b"\0\x0econtent-length\x013"].concat();
    let websocket = b"\0\x07:method\x07CONNECT\0\x09:protocol\x09websocket\x86\x84\x41\x01a";
    let flows = [
        vec![frame(1, 5, 1, GET)],
        vec![
            frame(1, 4, 1, &post),
            frame(0, 1, 1, b"abc"),
            frame(1, 5, 3, GET),
            frame(3, 0, 3, &[0, 0, 0, 8]),
        ],
        vec![
            frame(1, 4, 1, GET),
            frame(0, 0, 1, b"abc"),
            frame(1, 5, 1, b"\0\x01x\x01y"),
            frame(6, 0, 0, &[0; 8]),
        ],
        vec![frame(1, 4, 1, websocket), frame(0, 0, 1, b"abc"), frame(8, 0, 0, &[0, 0, 1, 0])],
        vec![frame(1, 1, 1, &GET[..3]), frame(9, 4, 1, &GET[3..]), frame(2, 0, 5, &[0, 0, 0, 1, 5])],
        vec![frame(1, 5, 1, GET), frame(7, 0, 0, &[0; 8]), frame(0x55, 0, 0, b"?")],
    ];
    flows.map(|flow| [&[9][..], &settings, &flow.concat()].concat()).to_vec()
}

fn member_examples() -> Vec<Vec<u8>> {
    let settings = [frame(4, 0, 0, &[0, 3, 0, 0, 0, 2]), frame(4, 1, 0, &[])].concat();
    let flows = [
        vec![frame(1, 5, 1, &[0x88]), frame(1, 4, 3, &[0x88]), frame(0, 1, 3, b"abc")],
        vec![
            frame(1, 4, 1, b"\0\x07:status\x03103"),
            frame(1, 4, 1, &[0x88]),
            frame(1, 5, 1, b"\0\x01x\x01y"),
        ],
        vec![frame(7, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]), frame(1, 5, 1, &[0x88])],
        vec![frame(3, 0, 1, &[0, 0, 0, 7]), frame(3, 0, 3, &[0, 0, 0, 0]), frame(1, 4, 5, &[0x88])],
    ];
    flows.map(|flow| [&[9][..], &settings, &flow.concat()].concat()).to_vec()
}

/// Divides an input into the length of slices and the rest.
fn cut(bytes: &[u8]) -> (usize, &[u8]) {
    let (first, rest) = bytes.split_first().unwrap_or((&0, &[]));
    (usize::from(*first % 64) + 1, rest)
}

fn client(bytes: &[u8]) -> bool {
    let (size, bytes) = cut(bytes);
    let whole = client_run(bytes, usize::MAX, usize::MAX);
    assert_eq!(client_run(bytes, usize::MAX, size), whole, "slices of {size} bytes");
    client_run(bytes, size, size);
    !whole.is_empty()
}

/// Gives the bytes in turns of `turn` bytes, divided into slices of `size`. Returns the heads that were
/// accepted, and what else has happened.
fn client_run(bytes: &[u8], turn: usize, size: usize) -> Vec<String> {
    let mut server = ServerConnection::new(&Limits::default(), 1);
    let mut happened = Vec::new();
    assert_eq!(server.receive(Instant::ZERO, &[PREFACE]), PREFACE.len());
    let mut rest = bytes;
    let mut is_open = true;
    while !rest.is_empty() && is_open {
        let slices: Vec<&[u8]> = rest[..rest.len().min(turn)].chunks(size.min(rest.len())).collect();
        let taken = server.receive(Instant::ZERO, &slices);
        rest = &rest[taken..];
        is_open = client_turn(&mut server, &mut happened);
        // All output is read: a connection that takes nothing has ended, or a flood ends it.
        assert!(taken > 0 || !is_open);
    }
    server.receive_end();
    client_turn(&mut server, &mut happened);
    assert!(happened.last().is_some_and(|last| last.starts_with("Closed")), "{happened:?}");
    assert!(server.streams() == 0 && !server.wants_poll());
    let has_request = happened.iter().any(|text| text.starts_with("Request"));
    if has_request { happened } else { Vec::new() }
}

fn client_turn(server: &mut ServerConnection, happened: &mut Vec<String>) -> bool {
    loop {
        server.poll();
        assert!(server.output().len() <= OUTPUT_LEN_MAX);
        let mut calls = Vec::new();
        while let Some(event) = server.next_event() {
            happened.push(format!("{event:?}"));
            match event {
                Event::Request { stream, head, .. } => {
                    check_head(head);
                    calls.push((stream, Some(200)));
                }
                Event::Refused { stream, fault } => {
                    if let Remedy::Answer(status) = fault.remedy() {
                        calls.push((stream, Some(status)));
                    }
                }
                Event::Readable { stream } => calls.push((stream, None)),
                Event::Closed { .. } => return false,
                _ => {}
            }
        }
        if calls.is_empty() && server.output().is_empty() && !server.wants_poll() {
            return true;
        }
        for (stream, status) in calls {
            match status {
                // Every second answer waits until the connection ends, or is a WebSocket's.
                Some(200) if stream % 4 == 1 => drop(server.respond_text(stream, OK, false)),
                Some(200) => {
                    let _ = server.respond_text(stream, OK, false);
                    server.send(stream, &[7; 40_000], true);
                }
                Some(status) => {
                    let text = format!("HTTP/1.1 {status} x\r\n\r\n");
                    let _ = server.respond_text(stream, text.as_bytes(), true);
                }
                None => {
                    while !server.data(stream).is_empty() {
                        server.release(stream, server.data(stream).len().div_ceil(2));
                    }
                }
            }
        }
        server.sent(server.output().len());
    }
}

/// A head is one head and nothing else, or the reader refuses it.
fn check_head(head: &[u8]) {
    let limits = csp_http::Limits::default();
    let mut scratch = Scratch::new(&limits);
    match HeadReader::default().request(&[head], true, &limits, &mut scratch) {
        Ok(Some(request)) => assert_eq!(request.head_len(), head.len(), "{}", head.escape_ascii()),
        Ok(None) => panic!("half a head: {}", head.escape_ascii()),
        Err(refusal) => assert!(!refusal.to_string().is_empty()),
    }
}

fn member(bytes: &[u8]) -> bool {
    let (size, bytes) = cut(bytes);
    let whole = member_run(bytes, usize::MAX, usize::MAX);
    assert_eq!(member_run(bytes, usize::MAX, size), whole, "slices of {size} bytes");
    member_run(bytes, size, size);
    whole.iter().any(|text| text.starts_with("Response"))
}

fn member_run(bytes: &[u8], turn: usize, size: usize) -> Vec<String> {
    let mut client = ClientConnection::new(&Limits::default());
    let mut happened = Vec::new();
    let head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    for at in 0..3 {
        let opened = client.request_text(head, Scheme::Http, at == 1);
        assert_eq!(opened, Ok(2 * at + 1));
        client.send(2 * at + 1, &[7; 40_000], false);
    }
    let mut rest = bytes;
    let mut is_open = member_turn(&mut client, &mut happened);
    while !rest.is_empty() && is_open {
        let slices: Vec<&[u8]> = rest[..rest.len().min(turn)].chunks(size.min(rest.len())).collect();
        let taken = client.receive(Instant::ZERO, &slices);
        rest = &rest[taken..];
        is_open = member_turn(&mut client, &mut happened);
        assert!(taken > 0 || !is_open);
    }
    client.receive_end();
    if is_open {
        assert!(!member_turn(&mut client, &mut happened), "{happened:?}");
    }
    let ends = |text: &&String| text.starts_with("Done") || text.starts_with("Reset");
    assert_eq!(happened.iter().filter(ends).count(), 3, "{happened:?}");
    assert_eq!(client.streams(), 0);
    happened
}

fn member_turn(client: &mut ClientConnection, happened: &mut Vec<String>) -> bool {
    let mut is_open = true;
    loop {
        client.poll();
        assert!(client.output().len() <= OUTPUT_LEN_MAX);
        let mut readable = Vec::new();
        let mut is_still = true;
        while let Some(event) = client.next_event() {
            is_still = false;
            happened.push(format!("{event:?}"));
            match event {
                ClientEvent::Response { head, .. } => check_response(head),
                ClientEvent::Readable { stream } => readable.push(stream),
                ClientEvent::Closed { .. } => is_open = false,
                _ => {}
            }
        }
        if is_still && client.output().is_empty() && !client.wants_poll() {
            return is_open;
        }
        for stream in readable {
            while !client.data(stream).is_empty() {
                client.release(stream, client.data(stream).len().div_ceil(2));
            }
        }
        client.sent(client.output().len());
    }
}

fn check_response(head: &[u8]) {
    let limits = csp_http::Limits::default();
    let mut scratch = Scratch::new(&limits);
    match HeadReader::default().response(&[head], true, &limits, &mut scratch) {
        Ok(Some(response)) => assert_eq!(response.head_len(), head.len(), "{}", head.escape_ascii()),
        Ok(None) => panic!("half a head: {}", head.escape_ascii()),
        Err(refusal) => assert!(!refusal.to_string().is_empty()),
    }
}
