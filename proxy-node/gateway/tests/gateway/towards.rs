//! Plain servers that are reached over TLS, by HTTP/1.1 and by HTTP/2.

use std::sync::Arc;

use csp_gateway::HttpService;
use csp_gateway::spec::{MemberHttp2, ServiceConfig};
use csp_http2::{Event, Limits, ServerConnection};
use csp_proxy_core::{
    Certificate, ClientOptions, ClientTls, ServerOptions, ServerTls, ServiceSpec, TlsVersion, Trust,
};
use rustls::time_provider::DefaultTimeProvider;

use crate::http::{Http, service};
use crate::secure::{NAME, provider};
use crate::world::plain::plain;
use crate::world::{POOL, pool};

const GET: &str = "GET /a HTTP/1.1\r\nHost: a\r\n\r\n";

/// A gateway before one plain server of TLS that offers these protocols. `wanted`: what the proxy asks for.
fn before(config: ServiceConfig, offered: &[&str], wanted: Option<&str>) -> Http {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).unwrap();
    let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let own = Certificate::from_pem(&provider(), NAME, chain.as_bytes(), key.as_bytes()).unwrap();
    let offered: Vec<String> = offered.iter().map(|name| (*name).to_owned()).collect();
    let with = || (provider(), Arc::new(DefaultTimeProvider) as Arc<_>);
    let server = ServerTls::new(with(), &[own], TlsVersion::Tls12, &offered, None).unwrap();
    let options = ClientOptions {
        trust: Trust::Authorities(chain.as_bytes()),
        certificate: None,
        least: TlsVersion::Tls12,
        protocol: wanted,
        name: Some(NAME),
    };
    let tls = ClientTls::new(with(), &options).unwrap();
    let mut h = Http::with_members(config, &[]);
    h.w.add_servers(&[1]);
    h.w.server(1).tls = Some(server);
    let servers = ServerOptions { tls: Some(tls), ..ServerOptions::default() };
    h.w.policy(ServiceSpec { pool: vec![plain(1)], servers, ..pool(&[]) });
    h
}

/// Has the server write on its last connection.
fn says(h: &mut Http, bytes: &[u8]) {
    let label = *h.w.server(1).accepted.last().unwrap();
    h.w.server(1).write(label, bytes);
    h.w.settle();
}

/// Returns what the server has read on its last connection.
fn hears(h: &mut Http) -> String {
    let label = *h.w.server(1).accepted.last().unwrap();
    String::from_utf8_lossy(&h.w.server(1).at(label).read).into_owned()
}

#[test]
fn requests_pass_on_a_kept_connection() {
    let mut h = before(service(), &[], None);
    h.w.connect(1_000);
    for round in 1..4 {
        h.send(1_000, GET);
        assert_eq!(hears(&mut h).matches("GET /a HTTP/1.1").count(), round, "{}", hears(&mut h));
        says(&mut h, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
        assert!(h.reads(1_000).ends_with("\r\n\r\nhello"));
    }
    assert_eq!(h.w.server(1).accepted.len(), 1);
    let body = "x".repeat(12_000);
    h.send(1_000, format!("PUT /b HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
    assert!(hears(&mut h).ends_with(&body));
    assert_eq!(h.w.server(1).accepted.len(), 2, "only what cannot be sent again gets a fresh one");
    h.assert_no_leak();
}

/// Its server was verified by what no longer holds, such as an authority that is withdrawn.
#[test]
fn a_kept_connection_serves_no_request_once_members_are_reached_in_another_way() {
    let mut h = before(service(), &[], None);
    h.w.connect(1_000);
    let round = |h: &mut Http| {
        h.send(1_000, GET);
        says(h, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
        assert!(h.reads(1_000).ends_with("\r\n\r\nhello"));
        h.w.server(1).accepted.len()
    };
    assert_eq!([round(&mut h), round(&mut h)], [1, 1]);
    for (reached, expected) in [(0, 1), (1, 2), (1, 2)] {
        let mut changed = HttpService::new(service()).unwrap();
        changed.reached = reached;
        let now = h.w.now;
        h.gateway().set_services(now, vec![Arc::new(changed)]);
        h.w.settle();
        assert_eq!(round(&mut h), expected);
    }
    h.assert_no_leak();
}

/// What ends with the connection is whole if the server says so, and cut otherwise.
#[test]
fn a_body_that_ends_with_the_connection_is_whole_by_close_notify_only() {
    for cuts in [false, true] {
        let mut h = before(service(), &[], None);
        h.w.connect(1_000);
        h.send(1_000, GET);
        says(&mut h, b"HTTP/1.1 200 OK\r\n\r\nall of it?");
        let label = h.w.server(1).accepted[0];
        h.w.server(1).at_mut(label).cuts = cuts;
        h.w.server(1).finish(label);
        h.w.settle();
        let read = h.reads(1_000);
        assert!(read.contains("all of it?"), "{read}");
        assert_eq!(read.ends_with("0\r\n\r\n"), !cuts, "{read}");
        let codes = h.codes();
        assert_eq!(codes[0].1 == "ok", !cuts, "{codes:?}");
        h.assert_no_leak();
    }
}

#[test]
fn a_server_whose_certificate_is_wrong_gets_no_byte_and_the_client_an_answer() {
    let mut h = before(service(), &[], None);
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).unwrap();
    let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let stranger = Certificate::from_pem(&provider(), NAME, chain.as_bytes(), key.as_bytes()).unwrap();
    let with = (provider(), Arc::new(DefaultTimeProvider) as Arc<_>);
    h.w.server(1).tls = Some(ServerTls::new(with, &[stranger], TlsVersion::Tls12, &[], None).unwrap());
    h.w.connect(1_000);
    h.send(1_000, GET);
    h.w.pass(std::time::Duration::from_secs(20));
    let read = h.reads(1_000);
    assert!(read.starts_with("HTTP/1.1 50"), "{read}");
    assert_eq!(hears(&mut h), "");
    h.assert_no_leak();
}

#[test]
fn http2_is_spoken_with_servers_that_choose_it() {
    let member_http2 = MemberHttp2 { services: vec![POOL.into()], connections: 1, ..MemberHttp2::default() };
    let mut h = before(ServiceConfig { member_http2, ..service() }, &["h2"], Some("h2"));
    h.w.connect(1_000);
    h.send(1_000, GET);
    let label = h.w.server(1).accepted[0];
    let (mut machine, mut read) = (ServerConnection::new(&Limits::default(), 1), 0);
    let mut heads = Vec::new();
    for _ in 0..20 {
        let bytes = h.w.server(1).at(label).read[read..].to_vec();
        read += machine.receive(h.w.now, &[&bytes]);
        machine.poll();
        while let Some(event) = machine.next_event() {
            if let Event::Request { stream, head, .. } = event {
                heads.push(String::from_utf8_lossy(head).into_owned());
                let head = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n";
                machine.respond_text(stream, head, false).unwrap();
                assert_eq!(machine.send(stream, b"hello", true), 5);
            }
        }
        machine.poll();
        let output = machine.output().to_vec();
        machine.sent(output.len());
        says(&mut h, &output);
    }
    assert!(heads.len() == 1 && heads[0].starts_with("GET /a "), "{heads:?}");
    let read = h.reads(1_000);
    assert!(read.starts_with("HTTP/1.1 200 OK") && read.ends_with("hello"), "{read}");
    h.assert_no_leak();
}
