//! Bodies between clients of HTTP/1.1 and members that speak HTTP/2.

use crate::http::Http;
use crate::servers::{OK, POST, Servers, over_http2};

/// Has a client send text piece by piece, while its member reads.
fn sends(h: &mut Http, servers: &mut Servers, port: u16, mut text: &[u8]) {
    let mut rounds = 0;
    while !text.is_empty() {
        let len = h.w.client_sends(port, text);
        text = &text[len..];
        servers.run(h);
        rounds += 1;
        assert!(rounds < 10_000, "{} bytes do not pass", text.len());
    }
}

#[test]
fn bodies_of_any_size_pass_between_the_versions() {
    for room in [300, 5_000, 1 << 20] {
        let mut h = Http::new(over_http2());
        h.room = room;
        let mut servers = Servers::new();
        h.w.connect(1_000);
        for (at, len) in [0, 1, 16_384, 65_536, 300_000].into_iter().enumerate() {
            let body: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            let stream = 1 + 4 * at as u32;
            let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n");
            sends(&mut h, &mut servers, 1_000, &[head.as_bytes(), &body].concat());
            let asked = &servers.all[0].got[&stream];
            assert!(asked.ended && asked.body == body, "{room} {len}: {} bytes", asked.body.len());
            assert_body(&mut h, &mut servers, stream, &body, false);
            let chunk = if len > 0 { format!("{len:x}\r\n").into_bytes() } else { Vec::new() };
            let end = if len > 0 { &b"\r\n0\r\n\r\n"[..] } else { b"0\r\n\r\n" };
            sends(&mut h, &mut servers, 1_000, &[POST.as_bytes(), &chunk, &body, end].concat());
            let asked = &servers.all[0].got[&(stream + 2)];
            assert!(asked.ended && asked.body == body, "{room} {len}: {} bytes", asked.body.len());
            assert_body(&mut h, &mut servers, stream + 2, &body, true);
        }
        assert_eq!(h.codes(), [(200, "ok"); 10]);
        h.assert_no_leak();
    }
}

/// Has the member respond, and checks what the client of HTTP/1.1 receives.
fn assert_body(h: &mut Http, servers: &mut Servers, stream: u32, body: &[u8], is_chunked: bool) {
    h.reads(1_000);
    let start = h.w.clients[&1_000].received.len();
    let head = match is_chunked {
        true => OK.to_owned(),
        false => format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()),
    };
    servers.all[0].respond(h, stream, &head, false);
    let mut sent = 0;
    for _ in 0..10_000 {
        sent += servers.all[0].machine.send(stream, &body[sent..], sent == body.len());
        servers.run(h);
        if sent == body.len() {
            break;
        }
    }
    servers.all[0].machine.send(stream, &[], true);
    servers.run(h);
    let received = &h.w.clients[&1_000].received[start..];
    let at = received.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    let mut rest = &received[at..];
    let mut got = Vec::new();
    if !is_chunked {
        got = std::mem::take(&mut rest).to_vec();
    }
    while !rest.is_empty() {
        let line = rest.windows(2).position(|two| two == b"\r\n").unwrap();
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
        got.extend(&rest[line + 2..line + 2 + size]);
        rest = &rest[line + 2 + size + 2..];
        if size == 0 {
            break;
        }
    }
    assert!(got == body && rest.is_empty(), "{} of {} bytes", got.len(), body.len());
}
