//! Calls of gRPC: deadlines, and the gateway's own answers.

use std::time::Duration;

use csp_gateway::spec::{ServiceConfig, Timeouts};
use csp_http::route::PathSpec;
use csp_wire::channel::MessageKind;

use crate::http::Http;
use crate::http2::Client;
use crate::servers::{Servers, over_http2};

fn call(path: &str, fields: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/grpc+proto\r\nTE: trailers\r\n{fields}\
         Transfer-Encoding: chunked\r\n\r\n"
    )
}

/// Checks that a stream has got a response of trailers alone.
fn assert_status(client: &Client, stream: u32, status: &str, code: &str) {
    let got = &client.got[&stream];
    let head = &got.heads[0];
    assert!(head.starts_with("HTTP/1.1 200 ") && got.done && got.body.is_empty(), "{got:?}");
    assert!(head.contains("content-type: application/grpc\r\n"), "{head}");
    assert!(head.contains(&format!("\r\ngrpc-status: {status}\r\ngrpc-message: {code}: ")), "{head}");
}

#[test]
fn answers_of_the_gateway_are_statuses_of_grpc() {
    let mut config = over_http2();
    config.rules[0].route.path = PathSpec::Prefix("/a".to_owned());
    config.rules[0].upgrade = true;
    let mut h = Http::new(config);
    let (mut client, mut servers) = (Client::connect(&mut h, 1_000), Servers::new());
    let nowhere = client.ask(&mut h, &call("/x", ""), false);
    assert_status(&client, nowhere, "12", "no-route");
    // The member has ended the connection.
    let lost = client.ask(&mut h, &call("/a", ""), false);
    servers.settle(&mut h, &mut client);
    let label = servers.all[0].label;
    h.w.says(label, MessageKind::Reset, 0, &[]);
    client.run(&mut h);
    assert_status(&client, lost, "14", "member-closed");
    // No server.
    h.w.policy(crate::world::pool(&[]));
    let none = client.ask(&mut h, &call("/a", ""), false);
    assert_status(&client, none, "14", "no-server");
    // To a client of HTTP/1.1 in the head, too.
    h.w.connect(1_001);
    h.send(1_001, call("/x", ""));
    let head = h.reads(1_001);
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("\r\ngrpc-status: 12\r\n"), "{head}");
    // The log has what the status of HTTP would be.
    let codes = [(404, "no-route"), (502, "member-closed"), (503, "no-server"), (404, "no-route")];
    assert_eq!(h.codes(), codes);
    h.assert_no_leak();
}

#[test]
fn a_deadline_bounds_the_call() {
    let mut h = Http::new(over_http2());
    let (mut client, mut servers) = (Client::connect(&mut h, 1_000), Servers::new());
    let late = client.ask(&mut h, &call("/a", "grpc-timeout: 200m\r\n"), false);
    let patient = client.ask(&mut h, &call("/a", "grpc-timeout: 99999999H\r\n"), false);
    let malformed = client.ask(&mut h, &call("/a", "grpc-timeout: 1s\r\n"), false);
    servers.settle(&mut h, &mut client);
    assert!(servers.all[0].got[&1].head.contains("grpc-timeout: 200m\r\n"), "the member knows it, too");
    h.w.pass(Duration::from_millis(199));
    client.run(&mut h);
    assert!(!client.got.contains_key(&late));
    h.w.pass(Duration::from_millis(2));
    servers.settle(&mut h, &mut client);
    assert_status(&client, late, "4", "total-timeout");
    assert_eq!(servers.all[0].got[&1].reset.as_deref(), Some("CANCEL"));
    h.w.pass(Duration::from_secs(5));
    servers.settle(&mut h, &mut client);
    for (stream, at) in [(patient, 3), (malformed, 5)] {
        servers.all[0].answer(&mut h, at, b"in time");
        servers.settle(&mut h, &mut client);
        assert_eq!(client.got[&stream].body, b"in time");
    }
    // After the response has begun it is cut.
    let cut = client.ask(&mut h, &call("/a", "grpc-timeout: 1S\r\n"), false);
    servers.settle(&mut h, &mut client);
    servers.all[0].respond(&mut h, 7, crate::servers::OK, false);
    h.w.pass(Duration::from_millis(1_001));
    servers.settle(&mut h, &mut client);
    assert!(client.got[&cut].reset.is_some(), "{:?}", client.got[&cut]);
    let codes = [(504, "total-timeout"), (200, "ok"), (200, "ok"), (200, "total-timeout")];
    assert_eq!(h.codes(), codes);
    h.assert_no_leak();
    // The rule's time is shorter; and other requests have no such field.
    let timeouts = Timeouts { total: Duration::from_millis(100), ..Timeouts::default() };
    let mut h = Http::new(ServiceConfig { timeouts, ..over_http2() });
    let (mut client, mut servers) = (Client::connect(&mut h, 1_000), Servers::new());
    let stream = client.ask(&mut h, &call("/a", "grpc-timeout: 1S\r\n"), false);
    let plain = client.ask(&mut h, "GET / HTTP/1.1\r\nHost: a\r\ngrpc-timeout: 1m\r\n\r\n", true);
    servers.settle(&mut h, &mut client);
    h.w.pass(Duration::from_millis(50));
    client.run(&mut h);
    assert!(!client.got.contains_key(&plain));
    h.w.pass(Duration::from_millis(51));
    client.run(&mut h);
    assert_status(&client, stream, "4", "total-timeout");
    assert!(client.got[&plain].heads[0].starts_with("HTTP/1.1 504"));
    h.assert_no_leak();
}
