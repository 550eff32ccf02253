//! Responses that are compressed on their way to clients that accept it.

use std::io::Read as _;

use csp_filters::Spec;
use csp_filters::compress::{Coding, CompressSpec};
use csp_gateway::spec::{CacheConfig, ServiceConfig};
use csp_support::Random;
use csp_types::FlowLabel;

use crate::cache::{with_cache, world_of};
use crate::http::{Http, service};
use crate::http2::{Client, http2};

fn with_compression(config: ServiceConfig) -> ServiceConfig {
    let codings = vec![(Coding::Br, 4), (Coding::Gzip, 5)];
    let compress = Some(CompressSpec { is_on: true, codings, types: Vec::new(), least: 100 });
    ServiceConfig { filters: Spec { compress, ..Spec::default() }, ..config }
}

fn get(fields: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n")
}

fn response(fields: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// Text that a compressor makes shorter, though not by much.
fn text(random: &mut Random, len: usize) -> Vec<u8> {
    (0..len).map(|_| b'a' + random.below(20) as u8).collect()
}

/// Has the member send bytes, in pieces, as the gateway takes them.
fn says(h: &mut Http, member: FlowLabel, random: &mut Random, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let len = bytes.len().min(1 + random.below(9_000) as usize);
        let sent = h.w.sends(member, &bytes[..len]);
        bytes = &bytes[sent..];
        h.w.settle();
        assert!(sent > 0, "nothing moves");
    }
}

/// Returns head and body of the response that a client of HTTP/1.1 has received from this position on.
fn received(h: &Http, port: u16, from: usize) -> (String, Vec<u8>) {
    let bytes = &h.w.clients[&port].received[from..];
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let mut body = bytes[end..].to_vec();
    if head.contains("Transfer-Encoding: chunked") {
        let (mut rest, mut whole) = (&body[..], Vec::new());
        while let Some(line) = rest.windows(2).position(|two| two == b"\r\n") {
            let len = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
            let Some(chunk) = rest.get(line + 2..line + 2 + len) else { break };
            whole.extend_from_slice(chunk);
            rest = rest.get(line + 4 + len..).unwrap_or_default();
        }
        body = whole;
    }
    (head, body)
}

/// Returns as much of a body as can be read.
fn expand(coding: &str, bytes: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    let _ = match coding {
        "gzip" => flate2::read::GzDecoder::new(bytes).read_to_end(&mut whole),
        _ => brotli::Decompressor::new(bytes, 4_096).read_to_end(&mut whole),
    };
    whole
}

#[test]
fn a_response_is_compressed_as_its_client_wants() {
    let mut random = Random::new(1);
    for (accept, coding) in [
        ("gzip", "gzip"),
        ("gzip, br", "br"),
        ("br;q=0.5, gzip;q=0.8", "gzip"),
        ("*", "br"),
        ("x-gzip", "gzip"),
    ] {
        for len in [100, 8_000, 300_000] {
            let mut h = Http::new(with_compression(service()));
            let member = h.asks(1_000, &get(&format!("Accept-Encoding: {accept}")));
            let body = text(&mut random, len);
            let fields = "Content-Type: text/html; charset=utf-8\r\nETag: \"1\"\r\nAccept-Ranges: bytes\r\n";
            says(&mut h, member, &mut random, &response(fields, &body));
            let (head, got) = received(&h, 1_000, 0);
            assert!(head.contains(&format!("\r\nContent-Encoding: {coding}\r\n")), "{accept}: {head}");
            assert!(head.contains("\r\nETag: W/\"1\"\r\n") && head.contains("\r\nVary: Accept-Encoding\r\n"));
            assert!(!head.contains("Content-Length") && !head.contains("Accept-Ranges"), "{head}");
            assert!(expand(coding, &got) == body, "{coding} {len}");
            assert!(len < 8_000 || got.len() < len * 3 / 4, "{} of {len}", got.len());
            // The connection goes on.
            let from = h.w.clients[&1_000].received.len();
            h.send(1_000, get("A: b"));
            says(&mut h, member, &mut random, &response("", b"hello"));
            assert_eq!(received(&h, 1_000, from).1, b"hello");
            h.assert_no_leak();
        }
    }
}

#[test]
fn some_responses_are_left_as_they_are() {
    let html = "Content-Type: text/html\r\n";
    let of = |fields: &str| format!("{html}{fields}");
    for (request, fields, len, varies) in [
        ("A: b", html.to_owned(), 1_000, true),
        ("Accept-Encoding: gzip;q=0", html.to_owned(), 1_000, true),
        ("Accept-Encoding: identity, gzip;q=0.5", html.to_owned(), 1_000, true),
        ("Accept-Encoding: gzip", html.to_owned(), 99, false),
        ("Accept-Encoding: gzip", "Content-Type: image/png\r\n".to_owned(), 1_000, false),
        ("Accept-Encoding: gzip", String::new(), 1_000, false),
        ("Accept-Encoding: gzip", of("Content-Encoding: br\r\n"), 1_000, false),
        ("Accept-Encoding: gzip", of("Cache-Control: max-age=1, no-transform\r\n"), 1_000, false),
        ("Accept-Encoding: gzip", of("Content-Range: bytes 0-999/2000\r\n"), 1_000, false),
    ] {
        let mut h = Http::new(with_compression(service()));
        let member = h.asks(1_000, &get(request));
        let sent = response(&fields, &vec![b'a'; len]);
        h.says(member, &sent);
        let (head, body) = received(&h, 1_000, 0);
        assert_eq!(body, vec![b'a'; len], "{request} {fields}");
        assert_eq!(head.contains("Vary: Accept-Encoding"), varies, "{request} {fields}: {head}");
        h.assert_no_leak();
    }
    // HEAD.
    let mut h = Http::new(with_compression(service()));
    let member = h.asks(1_000, &get("Accept-Encoding: gzip").replace("GET", "HEAD"));
    h.says(member, format!("HTTP/1.1 200 OK\r\n{html}Content-Length: 1000\r\n\r\n"));
    let answer = h.reads(1_000);
    assert!(answer.contains("\r\nContent-Length: 1000\r\nVary: Accept-Encoding\r\n"), "{answer}");
    h.send(1_000, get("If-None-Match: W/\"1\""));
    h.says(member, "HTTP/1.1 304 Not Modified\r\nETag: \"1\"\r\n\r\n");
    assert_eq!(h.reads(1_000), "HTTP/1.1 304 Not Modified\r\nETag: \"1\"\r\nVary: Accept-Encoding\r\n\r\n");
    h.assert_no_leak();
    // A route that compresses nothing.
    let mut config = with_compression(service());
    let mut off = config.filters.clone();
    off.compress.iter_mut().for_each(|compress| compress.is_on = false);
    config.rules[0].filters = off;
    let mut h = Http::new(config);
    let member = h.asks(1_000, &get("Accept-Encoding: gzip"));
    let sent = response(html, &[b'a'; 2_000]);
    h.says(member, &sent);
    assert_eq!(h.reads(1_000).as_bytes(), sent);
    h.assert_no_leak();
}

/// What a server has said so far reaches the client, though the server goes on later.
#[test]
fn a_pause_of_the_server_is_no_pause_of_the_client() {
    for coding in ["gzip", "br"] {
        let mut h = Http::new(with_compression(service()));
        let member = h.asks(1_000, &get(&format!("Accept-Encoding: {coding}")));
        h.says(
            member,
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
        );
        let mut whole = Vec::new();
        for at in 0..20 {
            let event = format!("data: {at}\n\n");
            h.says(member, format!("{:x}\r\n{event}\r\n", event.len()));
            whole.extend_from_slice(event.as_bytes());
            let (_, got) = received(&h, 1_000, 0);
            assert_eq!(expand(coding, &got), whole, "{coding}: event {at}");
        }
        h.says(member, "0\r\nX-Sum: 1\r\n\r\n");
        assert!(h.w.clients[&1_000].received.ends_with(b"\r\n0\r\n\r\n"), "trailers are dropped");
        assert_eq!(expand(coding, &received(&h, 1_000, 0).1), whole);
        h.assert_no_leak();
    }
}

#[test]
fn clients_of_http_2_and_of_http_1_0_get_the_same_bytes() {
    let mut random = Random::new(2);
    let body = text(&mut random, 200_000);
    let sent = response("Content-Type: application/json\r\n", &body);
    let mut h = Http::new(with_compression(http2()));
    let mut client = Client::connect(&mut h, 1_000);
    let stream = client.ask(&mut h, &get("Accept-Encoding: gzip"), true);
    let member = h.accept();
    let mut rest = &sent[..];
    while !rest.is_empty() {
        let len = h.w.sends(member, &rest[..rest.len().min(7_000)]);
        rest = &rest[len..];
        client.run(&mut h);
    }
    client.run(&mut h);
    let got = &client.got[&stream];
    assert!(
        got.done && got.heads[0].to_ascii_lowercase().contains("content-encoding: gzip"),
        "{:?}",
        got.heads
    );
    assert!(expand("gzip", &got.body) == body);
    h.assert_no_leak();
    let mut h = Http::new(with_compression(service()));
    let member = h.asks(1_000, &get("Accept-Encoding: gzip").replace("1.1", "1.0"));
    says(&mut h, member, &mut random, &sent);
    assert!(h.w.clients[&1_000].fin);
    assert!(expand("gzip", &received(&h, 1_000, 0).1) == body);
    h.assert_no_leak();
}

/// The cache has what the server has sent, and each client gets what it wants.
#[test]
fn a_stored_response_is_compressed_for_each_client() {
    let mut random = Random::new(3);
    let body = text(&mut random, 50_000);
    let (mut h, store) = world_of(with_cache(with_compression(service()), CacheConfig::default()));
    let fields = "Cache-Control: max-age=60\r\nETag: \"1\"\r\nContent-Type: text/css\r\n";
    let member = h.asks(1_000, &get("Accept-Encoding: gzip"));
    says(&mut h, member, &mut random, &response(fields, &body));
    assert!(expand("gzip", &received(&h, 1_000, 0).1) == body);
    assert_eq!(store.status().objects, 1);
    for (port, accept, coding) in [(1_001, "br", "br"), (1_002, "gzip", "gzip"), (1_003, "identity", "")] {
        h.w.connect(port);
        h.send(port, get(&format!("Accept-Encoding: {accept}")));
        h.w.pass(std::time::Duration::from_millis(500));
        let (head, got) = received(&h, port, 0);
        assert!(head.contains("\r\nAge: ") && head.contains("\r\nVary: Accept-Encoding\r\n"), "{head}");
        assert_eq!(head.contains(&format!("\r\nContent-Encoding: {coding}\r\n")), !coding.is_empty());
        let got = if coding.is_empty() { got } else { expand(coding, &got) };
        assert!(got == body, "{accept}: {} bytes", got.len());
    }
    // By the weak validator that it got.
    h.w.connect(1_004);
    h.send(1_004, get("Accept-Encoding: gzip\r\nIf-None-Match: W/\"1\""));
    assert!(h.reads(1_004).starts_with("HTTP/1.1 304 "));
    h.w.connect(1_005);
    h.send(1_005, get("Accept-Encoding: gzip\r\nRange: bytes=1-3"));
    assert!(h.reads(1_005).contains("\r\nContent-Range: bytes 1-3/50000\r\n"), "of what is stored");
    store.purge(&csp_cache::Purge::Tag("none"));
    h.assert_no_leak();
}

/// The member has said everything, and the client does not take what was made of it.
#[test]
fn a_client_that_takes_nothing_is_to_blame() {
    let (mut random, mut stalled) = (Random::new(5), 0);
    for len in (1..20).map(|of| of * 9_000) {
        let mut h = Http::new(with_compression(service()));
        h.w.connect(1_000);
        h.w.clients.get_mut(&1_000).unwrap().stalled = true;
        h.send(1_000, get("Accept-Encoding: gzip"));
        let member = h.accept();
        let bytes = response("Content-Type: text/html\r\n", &text(&mut random, len));
        let mut at = 0;
        while at < bytes.len() {
            let sent = h.w.sends(member, &bytes[at..]);
            at += sent;
            if sent == 0 {
                break;
            }
        }
        h.w.pass(std::time::Duration::from_secs(120));
        let codes = h.codes();
        assert!(codes.iter().all(|code| matches!(code, (200, "ok" | "client-stalled"))), "{len}: {codes:?}");
        stalled += codes.iter().filter(|(_, code)| *code == "client-stalled").count();
    }
    assert!(stalled > 0);
}
