//! Members that speak HTTP/2: streams of clients of both versions on few connections.

use std::time::Duration;

use csp_gateway::spec::{PoolOptions, ServiceConfig, Timeouts};
use csp_http2::{Limits, Reason as Code};
use csp_wire::channel::MessageKind;

use crate::http::Http;
use crate::http2::Client;
use crate::servers::{OK, POST, Servers, over_http2};

const GET: &str = "GET /a HTTP/1.1\r\nHost: a\r\n\r\n";
const EMPTY: &str = "HTTP/1.1 204 No Content\r\n\r\n";

fn world() -> (Http, Client, Servers) {
    let mut h = Http::new(over_http2());
    let client = Client::connect(&mut h, 1_000);
    (h, client, Servers::new())
}

#[test]
fn a_stream_of_a_client_is_one_of_the_member() {
    let (mut h, mut client, mut servers) = world();
    let stream = client.ask(&mut h, POST, false);
    client.send(&mut h, stream, b"hello", false);
    servers.settle(&mut h, &mut client);
    let asked = &servers.all[0].got[&1];
    assert!(asked.head.starts_with("POST /a HTTP/1.1\r\nhost: a\r\n"), "{asked:?}");
    assert!(asked.head.contains("te: trailers\r\n") && !asked.ended, "{asked:?}");
    assert_eq!(asked.body, b"hello");
    // The response begins and goes on before the request has ended.
    servers.all[0].respond(&mut h, 1, "HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n", false);
    servers.all[0].respond(&mut h, 1, OK, false);
    for part in [&b"one"[..], b"two"] {
        servers.all[0].send(&mut h, 1, part, false);
        client.run(&mut h);
        client.send(&mut h, stream, part, false);
        servers.settle(&mut h, &mut client);
    }
    assert_eq!(client.got[&stream].body, b"onetwo");
    assert_eq!(servers.all[0].got[&1].body, b"helloonetwo");
    client.machine.trailers(stream, b"x-sum: 8\r\n\r\n").unwrap();
    servers.settle(&mut h, &mut client);
    assert!(servers.all[0].got[&1].ended && servers.all[0].got[&1].trailers.contains("x-sum: 8"));
    servers.all[0].trailers(&mut h, 1, "grpc-status: 0\r\ngrpc-message: fine\r\n\r\n");
    servers.settle(&mut h, &mut client);
    let got = &client.got[&stream];
    assert!(got.done && got.heads.len() == 2 && got.heads[0].starts_with("HTTP/1.1 103"), "{got:?}");
    assert!(got.trailers.contains("grpc-status: 0\r\ngrpc-message: fine"), "{got:?}");
    // Trailers alone, and a head without a body.
    let stream = client.ask(&mut h, GET, true);
    servers.settle(&mut h, &mut client);
    assert!(servers.all[0].got[&3].ended);
    servers.all[0].respond(&mut h, 3, "HTTP/1.1 200 OK\r\ngrpc-status: 5\r\n\r\n", true);
    let head = client.ask(&mut h, "HEAD /h HTTP/1.1\r\nHost: a\r\n\r\n", true);
    servers.settle(&mut h, &mut client);
    servers.all[0].respond(&mut h, 5, "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n", true);
    servers.settle(&mut h, &mut client);
    assert!(client.got[&stream].heads[0].contains("grpc-status: 5\r\n") && client.got[&stream].done);
    assert!(client.got[&head].heads[0].contains("content-length: 9\r\n") && client.got[&head].done);
    assert_eq!(servers.all.len(), 1);
    let record = &h.records()[0];
    assert_eq!((record.received, record.sent, record.status, record.code()), (11, 6, 200, "ok"));
    assert_eq!(h.gateway().snapshot().upstreams.reused, 2);
    h.assert_no_leak();
}

#[test]
fn clients_of_http_1_get_chunks_and_trailers() {
    let mut h = Http::new(over_http2());
    let mut servers = Servers::new();
    h.w.connect(1_000);
    h.send(1_000, format!("{POST}5\r\nhello\r\n"));
    servers.run(&mut h);
    assert_eq!(servers.all[0].got[&1].body, b"hello");
    servers.all[0].respond(&mut h, 1, OK, false);
    servers.all[0].send(&mut h, 1, b"abc", false);
    assert!(h.reads(1_000).ends_with("\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc"));
    h.send(1_000, "3\r\nyou\r\n0\r\nX-Sum: 8\r\n\r\n");
    servers.run(&mut h);
    let asked = &servers.all[0].got[&1];
    assert!(asked.ended && asked.trailers.contains("x-sum: 8") && asked.body == b"helloyou", "{asked:?}");
    servers.all[0].trailers(&mut h, 1, "grpc-status: 0\r\n\r\n");
    assert_eq!(h.reads(1_000), "\r\n0\r\ngrpc-status: 0\r\n\r\n");
    // With lengths, on the same connections.
    h.send(1_000, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc");
    servers.run(&mut h);
    let asked = &servers.all[0].got[&3];
    assert!(asked.ended && asked.body == b"abc" && asked.head.contains("content-length: 3\r\n"));
    servers.all[0].respond(&mut h, 3, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n", false);
    servers.all[0].send(&mut h, 3, b"ok", true);
    let text = h.reads(1_000);
    assert!(text.ends_with("Content-Length: 2\r\n\r\nok"), "{text}");
    h.send(1_000, GET);
    servers.run(&mut h);
    servers.all[0].respond(&mut h, 5, EMPTY, true);
    assert_eq!(h.reads(1_000), EMPTY);
    // Of HTTP/1.0: until the end of the connection.
    h.w.connect(1_001);
    h.send(1_001, "GET / HTTP/1.0\r\n\r\n");
    servers.run(&mut h);
    servers.all[0].answer(&mut h, 7, b"until the end");
    assert!(h.reads(1_001).ends_with("\r\n\r\nuntil the end") && h.w.clients[&1_001].fin);
    assert_eq!(h.codes(), [(200, "ok"), (200, "ok"), (204, "ok"), (200, "ok")]);
    h.assert_no_leak();
}

#[test]
fn a_hundred_streams_share_one_connection() {
    let (mut h, mut client, mut servers) = world();
    let streams: Vec<u32> = (0..100).map(|_| client.ask(&mut h, POST, false)).collect();
    servers.settle(&mut h, &mut client);
    assert_eq!((servers.all.len(), servers.all[0].got.len()), (1, 100));
    for stream in &streams {
        client.send(&mut h, *stream, format!("from {stream}").as_bytes(), true);
    }
    servers.settle(&mut h, &mut client);
    for stream in servers.all[0].open().into_iter().rev() {
        let body = servers.all[0].got[&stream].body.clone();
        servers.all[0].answer(&mut h, stream, &body);
    }
    servers.settle(&mut h, &mut client);
    for stream in streams {
        assert_eq!(client.got[&stream].body, format!("from {stream}").as_bytes());
        assert!(client.got[&stream].done);
    }
    let upstreams = h.gateway().snapshot().upstreams;
    assert_eq!((upstreams.opened, upstreams.open, upstreams.idle), (1, 1, 1));
    h.assert_no_leak();
}

/// Beyond what the member permits, another connection is opened; beyond what the worker has, requests wait.
#[test]
fn streams_beyond_those_permitted_use_other_connections() {
    let (mut h, mut client, mut servers) = world();
    servers.limits = Limits { streams_max: 5, ..Limits::default() };
    let streams: Vec<u32> = (0..50).map(|_| client.ask(&mut h, GET, true)).collect();
    servers.settle(&mut h, &mut client);
    let begun: usize = servers.all.iter().map(|server| server.got.len()).sum();
    assert_eq!((servers.all.len(), begun), (8, 40), "the worker has eight connections");
    for _ in 0..20 {
        for server in &mut servers.all {
            for stream in server.open() {
                server.got.remove(&stream);
                server.respond(&mut h, stream, EMPTY, true);
            }
        }
        servers.settle(&mut h, &mut client);
    }
    assert!(streams.iter().all(|stream| client.got[stream].done));
    assert_eq!(h.codes(), [(204, "ok"); 50]);
    h.assert_no_leak();
}

#[test]
fn requests_are_spread_over_connections() {
    let mut config = over_http2();
    config.member_http2.connections = 3;
    let mut h = Http::new(config);
    let (mut client, mut servers) = (Client::connect(&mut h, 1_000), Servers::new());
    let first = client.ask(&mut h, GET, true);
    servers.settle(&mut h, &mut client);
    servers.all[0].respond(&mut h, 1, EMPTY, true);
    servers.settle(&mut h, &mut client);
    assert!(client.got[&first].done);
    for _ in 0..9 {
        client.ask(&mut h, GET, true);
        servers.settle(&mut h, &mut client);
    }
    let streams: Vec<usize> = servers.all.iter().map(|server| server.got.len()).collect();
    assert_eq!(streams, [4, 3, 3]);
    h.assert_no_leak();
}

#[test]
fn a_slow_client_does_not_stop_the_others() {
    let (mut h, mut client, mut servers) = world();
    let slow = client.ask(&mut h, GET, true);
    servers.settle(&mut h, &mut client);
    client.stalled_stream = slow;
    servers.all[0].respond(&mut h, 1, OK, false);
    let body: Vec<u8> = (0..700_000).map(|at| (at % 251) as u8).collect();
    let mut sent = 0;
    loop {
        let taken = servers.all[0].machine.send(1, &body[sent..], false);
        sent += taken;
        servers.settle(&mut h, &mut client);
        if taken == 0 {
            break;
        }
    }
    assert!((100_000..400_000).contains(&sent), "{sent} bytes: the windows bound them");
    for at in 0..20 {
        let fast = client.ask(&mut h, POST, false);
        client.send(&mut h, fast, &body[..30_000], true);
        servers.settle(&mut h, &mut client);
        let stream = 3 + 2 * at;
        assert_eq!(servers.all[0].got[&stream].body.len(), 30_000);
        servers.all[0].answer(&mut h, stream, &body[..30_000]);
        servers.settle(&mut h, &mut client);
        assert!(client.got[&fast].body == body[..30_000] && client.got[&fast].done);
    }
    client.stalled_stream = 0;
    client.run(&mut h);
    while sent < body.len() {
        sent += servers.all[0].machine.send(1, &body[sent..], false);
        servers.settle(&mut h, &mut client);
    }
    servers.all[0].trailers(&mut h, 1, "x: y\r\n\r\n");
    servers.settle(&mut h, &mut client);
    assert!(client.got[&slow].body == body && client.got[&slow].done);
    h.assert_no_leak();
}

/// A member that does not read a request bounds what its client may send, and nothing else.
#[test]
fn a_slow_member_holds_back_its_request_alone() {
    let (mut h, mut client, mut servers) = world();
    let slow = client.ask(&mut h, POST, false);
    servers.settle(&mut h, &mut client);
    servers.all[0].stalled_stream = 1;
    let body: Vec<u8> = (0..700_000).map(|at| (at % 241) as u8).collect();
    let mut sent = 0;
    loop {
        let taken = client.machine.send(slow, &body[sent..], false);
        sent += taken;
        servers.settle(&mut h, &mut client);
        if taken == 0 {
            break;
        }
    }
    assert!(sent < 400_000, "{sent} bytes: the windows bound them");
    let fast = client.ask(&mut h, POST, false);
    client.send(&mut h, fast, b"fast", true);
    servers.settle(&mut h, &mut client);
    servers.all[0].answer(&mut h, 3, b"fast, too");
    servers.settle(&mut h, &mut client);
    assert_eq!(client.got[&fast].body, b"fast, too");
    servers.all[0].stalled_stream = 0;
    while sent < body.len() {
        servers.settle(&mut h, &mut client);
        sent += client.machine.send(slow, &body[sent..], sent + 32_768 >= body.len());
    }
    servers.settle(&mut h, &mut client);
    assert!(servers.all[0].got[&1].body == body && servers.all[0].got[&1].ended);
    h.assert_no_leak();
}

/// GOAWAY: streams up to its number go on; those above, of any method, go to another connection.
#[test]
fn after_goaway_only_what_was_not_processed_is_sent_again() {
    let (mut h, mut client, mut servers) = world();
    let first = client.ask(&mut h, POST, false);
    let second = client.ask(&mut h, "POST /b HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n", false);
    client.send(&mut h, second, b"a", false);
    servers.settle(&mut h, &mut client);
    assert_eq!(servers.all[0].got.len(), 2);
    // By hand: the machine would name the greatest number that it has seen.
    let frame = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
    let label = servers.all[0].label;
    assert_eq!(h.w.sends(label, &frame), frame.len());
    servers.settle(&mut h, &mut client);
    assert_eq!(servers.all.len(), 2, "another connection");
    assert!(servers.all[1].got[&1].head.starts_with("POST /b "));
    client.send(&mut h, second, b"b", true);
    servers.settle(&mut h, &mut client);
    assert_eq!(servers.all[1].got[&1].body, b"ab");
    servers.all[1].answer(&mut h, 1, b"second");
    servers.all[0].answer(&mut h, 1, b"first");
    let third = client.ask(&mut h, GET, true);
    servers.settle(&mut h, &mut client);
    servers.all[1].answer(&mut h, 3, b"third");
    servers.settle(&mut h, &mut client);
    for (stream, body) in [(first, "first"), (second, "second"), (third, "third")] {
        assert_eq!(client.got[&stream].body, body.as_bytes());
    }
    assert!(h.w.served[&label.to_wire()].finished, "the connection ends with its last stream");
    assert_eq!(h.gateway().snapshot().services[0].1.rules[0].retries, 1);
    h.assert_no_leak();
}

#[test]
fn a_refused_stream_is_sent_again_unless_much_of_its_body_has_passed() {
    let (mut h, mut client, mut servers) = world();
    let stream = client.ask(&mut h, POST, false);
    servers.settle(&mut h, &mut client);
    servers.all[0].machine.reset(1, Code::REFUSED_STREAM);
    servers.settle(&mut h, &mut client);
    assert_eq!(servers.all.len(), 2, "on another connection");
    // With its body, and its end.
    client.send(&mut h, stream, b"body", true);
    servers.settle(&mut h, &mut client);
    assert_eq!(servers.all[1].got[&1].body, b"body");
    servers.all[1].machine.reset(1, Code::REFUSED_STREAM);
    servers.settle(&mut h, &mut client);
    let again = &servers.all[0].got[&3];
    assert!(again.body == b"body" && again.ended, "{again:?}");
    servers.all[0].answer(&mut h, 3, b"done");
    servers.settle(&mut h, &mut client);
    assert_eq!(client.got[&stream].body, b"done");
    // More of a body than is kept has passed.
    let stream = client.ask(&mut h, POST, false);
    client.send(&mut h, stream, &[7; 20_000], true);
    servers.settle(&mut h, &mut client);
    for server in &mut servers.all {
        let open = server.got.iter().find(|(_, asked)| asked.body.len() == 20_000).map(|(open, _)| *open);
        open.into_iter().for_each(|open| server.machine.reset(open, Code::REFUSED_STREAM));
        server.got.clear();
    }
    servers.settle(&mut h, &mut client);
    assert!(client.got[&stream].heads[0].starts_with("HTTP/1.1 502"), "{:?}", client.got);
    // Whoever refuses all is given up.
    let stream = client.ask(&mut h, GET, true);
    for _ in 0..8 {
        servers.settle(&mut h, &mut client);
        for server in servers.all.iter_mut().filter(|server| !server.is_closed) {
            for open in server.open() {
                server.machine.reset(open, Code::REFUSED_STREAM);
                server.got.remove(&open);
            }
        }
    }
    assert!(client.got[&stream].heads[0].starts_with("HTTP/1.1 502"), "{:?}", client.got);
    assert_eq!(h.codes(), [(200, "ok"), (502, "member-reset"), (502, "member-reset")]);
    h.assert_no_leak();
}

#[test]
fn a_member_that_dies_is_replaced_for_what_may_be_repeated() {
    for how in [MessageKind::Close, MessageKind::Reset] {
        let (mut h, mut client, mut servers) = world();
        let get = client.ask(&mut h, GET, true);
        let post = client.ask(&mut h, POST, true);
        let begun = client.ask(&mut h, GET, true);
        servers.settle(&mut h, &mut client);
        servers.all[0].respond(&mut h, 5, OK, false);
        servers.all[0].send(&mut h, 5, b"part", false);
        let label = servers.all[0].label;
        h.w.says(label, how, 0, &[]);
        servers.all[0].is_closed = true;
        servers.settle(&mut h, &mut client);
        assert!(client.got[&post].heads[0].starts_with("HTTP/1.1 502"), "{:?}", client.got);
        assert_eq!(client.got[&begun].reset.as_deref(), Some("Some(INTERNAL_ERROR)"));
        servers.all[1].answer(&mut h, 1, b"again");
        servers.settle(&mut h, &mut client);
        assert_eq!(client.got[&get].body, b"again");
        let mut codes = h.codes();
        codes.sort_unstable();
        assert_eq!(codes, [(200, "member-closed"), (200, "ok"), (502, "member-closed")]);
        h.assert_no_leak();
    }
}

#[test]
fn resets_pass_in_both_directions() {
    let (mut h, mut client, mut servers) = world();
    let (first, second) = (client.ask(&mut h, GET, true), client.ask(&mut h, POST, false));
    let third = client.ask(&mut h, GET, true);
    servers.settle(&mut h, &mut client);
    client.machine.reset(first, Code::CANCEL);
    servers.settle(&mut h, &mut client);
    assert_eq!(servers.all[0].got[&1].reset.as_deref(), Some("CANCEL"));
    servers.all[0].machine.reset(3, Code::INTERNAL_ERROR);
    servers.all[0].respond(&mut h, 5, OK, false);
    servers.all[0].send(&mut h, 5, b"part", false);
    servers.all[0].machine.reset(5, Code::CANCEL);
    servers.settle(&mut h, &mut client);
    assert!(client.got[&second].heads[0].starts_with("HTTP/1.1 502"));
    assert_eq!(client.got[&third].reset.as_deref(), Some("Some(INTERNAL_ERROR)"));
    // A client that is gone cancels all of its streams.
    client.ask(&mut h, GET, true);
    servers.settle(&mut h, &mut client);
    client.leave(&mut h);
    servers.run(&mut h);
    assert_eq!(servers.all[0].got[&7].reset.as_deref(), Some("CANCEL"));
    assert!(!servers.all[0].is_closed);
    let codes = [(499, "client-gone"), (502, "member-reset"), (200, "member-reset"), (499, "client-gone")];
    assert_eq!(h.codes(), codes);
    h.assert_no_leak();
}

/// A response that ends before its request ends the stream.
#[test]
fn a_response_may_end_before_its_request() {
    let (mut h, mut client, mut servers) = world();
    let stream = client.ask(&mut h, POST, false);
    client.send(&mut h, stream, b"first", false);
    servers.settle(&mut h, &mut client);
    servers.all[0].answer(&mut h, 1, b"enough");
    servers.settle(&mut h, &mut client);
    assert_eq!(client.got[&stream].body, b"enough");
    assert!(client.got[&stream].done);
    let stream = client.ask(&mut h, GET, true);
    servers.settle(&mut h, &mut client);
    servers.all[0].answer(&mut h, 3, b"next");
    servers.settle(&mut h, &mut client);
    assert_eq!(client.got[&stream].body, b"next");
    assert_eq!(h.codes(), [(200, "ok"), (200, "ok")]);
    h.assert_no_leak();
}

#[test]
fn idle_connections_close_and_policies_renew_them() {
    let second = Duration::from_secs(1);
    let timeouts = Timeouts { upstream_idle: 2 * second, ..Timeouts::default() };
    let config = || ServiceConfig { timeouts, ..over_http2() };
    let mut h = Http::new(config());
    let (mut client, mut servers) = (Client::connect(&mut h, 1_000), Servers::new());
    let ask = |h: &mut Http, client: &mut Client, servers: &mut Servers| {
        let stream = client.ask(h, GET, true);
        servers.settle(h, client);
        let server = servers.all.last_mut().unwrap();
        let number = *server.got.last_key_value().unwrap().0;
        server.respond(h, number, EMPTY, true);
        servers.settle(h, client);
        assert!(client.got[&stream].done);
    };
    ask(&mut h, &mut client, &mut servers);
    h.w.pass(second);
    ask(&mut h, &mut client, &mut servers);
    assert_eq!(servers.all.len(), 1);
    h.w.pass(2 * second + Duration::from_millis(10));
    servers.settle(&mut h, &mut client);
    assert!(servers.all[0].is_closed && h.gateway().snapshot().upstreams.open == 0);
    // A policy that changes what is kept ends connections with their streams.
    ask(&mut h, &mut client, &mut servers);
    let stream = client.ask(&mut h, GET, true);
    servers.settle(&mut h, &mut client);
    let timeouts = Timeouts { upstream_idle: 3 * second, ..timeouts };
    h.set(ServiceConfig { timeouts, ..config() });
    ask(&mut h, &mut client, &mut servers);
    assert_eq!((servers.all.len(), servers.all[1].is_closed), (3, false));
    servers.all[1].answer(&mut h, 3, b"old");
    servers.settle(&mut h, &mut client);
    assert!(client.got[&stream].body == b"old" && servers.all[1].is_closed);
    h.assert_no_leak();
    // A connection ends after so many requests.
    let pool = PoolOptions { requests_max: 2, ..PoolOptions::default() };
    let mut h = Http::new(ServiceConfig { pool, ..config() });
    let (mut client, mut servers) = (Client::connect(&mut h, 1_000), Servers::new());
    (0..3).for_each(|_| ask(&mut h, &mut client, &mut servers));
    assert_eq!((servers.all.len(), servers.all[0].is_closed), (2, true));
    h.assert_no_leak();
}

/// A member that does not speak HTTP/2, one that says nothing, and one that refuses.
#[test]
fn members_that_do_not_speak_http_2_are_answered_for() {
    let timeouts = Timeouts { response: Duration::from_secs(2), ..Timeouts::default() };
    let mut h = Http::new(ServiceConfig { timeouts, ..over_http2() });
    let mut client = Client::connect(&mut h, 1_000);
    let stream = client.ask(&mut h, POST, true);
    let member = h.accept();
    h.says(member, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    client.run(&mut h);
    assert!(client.got[&stream].heads[0].starts_with("HTTP/1.1 502"), "{:?}", client.got);
    let (late, waits) = (client.ask(&mut h, POST, true), client.ask(&mut h, POST, true));
    let member = h.accept();
    h.w.pass(Duration::from_millis(2_010));
    client.run(&mut h);
    assert!(client.got[&late].heads[0].starts_with("HTTP/1.1 504"), "{:?}", client.got);
    h.resets(member);
    while let Some((_, label)) = h.w.offers.pop_front() {
        h.w.says(label, MessageKind::Refused, 0, &[]);
    }
    client.run(&mut h);
    assert!(client.got[&waits].heads[0].starts_with("HTTP/1.1 502"), "{:?}", client.got);
    let switch = "GET /a HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\
        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    let mut config = over_http2();
    config.rules[0].upgrade = true;
    h.set(config);
    h.w.connect(1_001);
    h.send(1_001, switch);
    assert!(h.reads(1_001).starts_with("HTTP/1.1 501 "));
    h.assert_no_leak();
}

/// There is no room for as many connections as the service would spread its requests over.
#[test]
fn without_room_for_connections_streams_share_those_that_exist() {
    let mut config = over_http2();
    config.member_http2.connections = 20;
    let mut h = Http::new(config);
    let (mut client, mut servers) = (Client::connect(&mut h, 1_000), Servers::new());
    let streams: Vec<u32> = (0..20).map(|_| client.ask(&mut h, GET, true)).collect();
    servers.settle(&mut h, &mut client);
    let begun: usize = servers.all.iter().map(|server| server.got.len()).sum();
    assert_eq!((servers.all.len(), begun), (8, 20));
    for server in &mut servers.all {
        for stream in server.open() {
            server.respond(&mut h, stream, EMPTY, true);
        }
    }
    servers.settle(&mut h, &mut client);
    assert!(streams.iter().all(|stream| client.got[stream].done));
    h.assert_no_leak();
}
