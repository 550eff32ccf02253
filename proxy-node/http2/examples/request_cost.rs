//! Requests of Chrome and answers of nginx with 100 bytes, again and again: `cost COUNT`, under callgrind
//! with two counts, or for the time.
#![allow(clippy::disallowed_types, reason = "a program with a clock, to measure the crate by hand")]

use csp_http::head::{HeadReader, Scratch};
use csp_http2::{Event, Limits, ServerConnection};
use csp_types::Instant;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nServer: nginx\r\nDate: Mon, 30 Nov 2026 12:00:00 GMT\r\n\
    Content-Type: text/html\r\nContent-Length: 100\r\nLast-Modified: Sun, 29 Nov 2026 12:00:00 GMT\r\n\
    ETag: \"65a1b2c3-4000\"\r\nAccept-Ranges: bytes\r\n\r\n";
const FIELDS: [(&str, &str); 17] = [
    (":method", "GET"),
    (":scheme", "https"),
    (":authority", "www.example.com"),
    (":path", "/static/app.js?v=17"),
    ("cache-control", "max-age=0"),
    ("sec-ch-ua", "\"Chromium\";v=\"130\", \"Google Chrome\";v=\"130\", \"Not?A_Brand\";v=\"99\""),
    ("sec-ch-ua-mobile", "?0"),
    ("sec-ch-ua-platform", "\"Linux\""),
    ("user-agent", "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/130.0.0.0"),
    ("accept", "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"),
    ("sec-fetch-site", "same-origin"),
    ("sec-fetch-mode", "no-cors"),
    ("sec-fetch-dest", "script"),
    ("referer", "https://www.example.com/"),
    ("accept-encoding", "gzip, deflate, br, zstd"),
    ("accept-language", "en-GB,en;q=0.9"),
    ("cookie", "session=4f1b2c9d8e7a; theme=dark"),
];

/// HEADERS of a request: with incremental indexing, then by the indices of a browser's second request.
fn request(stream: u32, first: bool) -> Vec<u8> {
    let mut block = Vec::new();
    for (at, (name, value)) in FIELDS.iter().enumerate() {
        if first {
            block.extend([0x40, name.len() as u8]);
            block.extend_from_slice(name.as_bytes());
            block.push(value.len() as u8);
            block.extend_from_slice(value.as_bytes());
        } else {
            block.push(0x80 | (62 + FIELDS.len() - 1 - at) as u8);
        }
    }
    let len = (block.len() as u32).to_be_bytes();
    [&len[1..], &[1, 5], &stream.to_be_bytes(), &block, b"\0\0\x04\x08\0\0\0\0\0\0\0\0\x64"].concat()
}

fn main() {
    let count: u32 = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(10_000);
    let mut server = ServerConnection::new(&Limits::default(), 0);
    server.receive(Instant::ZERO, &[PREFACE]);
    let limits = csp_http::Limits::default();
    let mut scratch = Scratch::new(&limits);
    let (start, mut seen) = (std::time::Instant::now(), 0);
    for at in 0..count {
        let bytes = request(2 * at + 1, at == 0);
        assert_eq!(server.receive(Instant::ZERO, &[&bytes]), bytes.len());
        server.poll();
        let Some(Event::Request { stream, head, .. }) = server.next_event() else { continue };
        let read = HeadReader::default().request(&[head], true, &limits, &mut scratch);
        seen += u32::from(read.is_ok_and(|head| head.is_some()));
        if server.respond_text(stream, RESPONSE, false).is_ok() {
            server.send(stream, &[b'x'; 100], true);
        }
        server.poll();
        while server.next_event().is_some() {}
        server.sent(server.output().len());
    }
    let each = start.elapsed().as_nanos() / u128::from(count);
    println!("{seen} of {count} requests, {each} ns each");
}
