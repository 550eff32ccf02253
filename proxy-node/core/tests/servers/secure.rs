//! TLS towards servers: bytes and ends, handshakes that fail, checks.

use std::sync::Arc;

use csp_proxy_core::{
    CheckSpec, ClientOptions, ClientTls, HttpCheck, PlainState, ProxyHeader, Question, ServerOptions,
    ServerTls, ServiceSpec, TlsVersion, Trust, reason,
};
use csp_tcp::FailReason;
use csp_tls::{Certificate, Session};
use rustls::crypto::{CryptoProvider, ring};
use rustls::time_provider::DefaultTimeProvider;

use super::host::End;
use super::world::{PORT, World, server, web};
use super::{MS, S, bytes};

const NAME: &str = "www.csp.test";

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// A certificate for this name, and its text, by which it is trusted.
fn certificate(name: &str) -> (Certificate, String) {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    (Certificate::from_pem(&provider(), name, chain.as_bytes(), key.as_bytes()).unwrap(), chain)
}

/// What a server with this certificate offers.
fn offers(certificate: Certificate) -> ServerTls {
    let with = (provider(), Arc::new(DefaultTimeProvider) as Arc<_>);
    let tickets = ring::Ticketer::new().unwrap();
    ServerTls::new(with, &[certificate], TlsVersion::Tls12, &[], Some(tickets)).unwrap()
}

fn trusts(authority: &str, least: TlsVersion) -> ClientTls {
    let trust = Trust::Authorities(authority.as_bytes());
    let options = ClientOptions { trust, certificate: None, least, protocol: None, name: Some(NAME) };
    ClientTls::new((provider(), Arc::new(DefaultTimeProvider)), &options).unwrap()
}

fn with(tls: ClientTls, servers: &[u8]) -> ServiceSpec {
    ServiceSpec { servers: ServerOptions { tls: Some(tls), ..ServerOptions::default() }, ..web(servers) }
}

/// A world whose servers have one certificate, which the service trusts.
fn world(servers: &[u8]) -> (World, ClientTls) {
    let (own, authority) = certificate(NAME);
    let mut w = World::new(servers);
    for number in servers {
        w.server(*number).tls = Some(offers(own.clone()));
    }
    let tls = trusts(&authority, TlsVersion::Tls12);
    w.policy(vec![with(tls.clone(), servers)]);
    (w, tls)
}

/// Returns why each server is down.
fn why(w: &World) -> Vec<Option<&'static str>> {
    let services = w.core.services();
    let members = services.iter().flat_map(|service| &service.members);
    let text = |state| match state {
        Some(PlainState::Down { code, .. }) => Some(reason::text(code)),
        _ => None,
    };
    members.map(|member| text(member.plain)).collect()
}

#[test]
fn bytes_and_ends_pass_whoever_ends_first_though_segments_are_lost() {
    for seed in 0..24 {
        let (mut w, _) = world(&[1]);
        w.seed(seed);
        w.loses = if seed % 2 == 0 { 0 } else { 20 };
        w.server(1).echoes = true;
        let label = w.connect();
        let sent = bytes(300_000, seed as u8);
        w.client().write(label, &sent);
        w.client().at_mut(label).stalls = seed % 3 == 0;
        w.run(2 * S);
        w.client().at_mut(label).stalls = false;
        if seed % 4 < 2 {
            w.client().finish(label);
        }
        w.run(60 * S);
        let server = w.server(1).accepted[0];
        assert!(w.server(1).at(server).read == sent && w.client().at(label).read == sent, "seed {seed}");
        if seed % 4 >= 2 {
            w.server(1).finish(server);
            w.run(20 * S);
            assert!(w.client().at(label).finished, "seed {seed}");
            w.client().finish(label);
        }
        w.loses = 0;
        w.run(60 * S);
        assert!(w.server(1).at(server).finished, "seed {seed}: close_notify");
        assert_eq!(w.client().at(label).end, Some(End::Closed), "seed {seed}");
        w.assert_empty(&format!("seed {seed}"));
        assert_eq!(w.core.counters().tls_server_handshakes, 1);
    }
}

#[test]
fn clients_over_tls_reach_servers_over_tls() {
    let (mut w, tls) = world(&[1]);
    let (own, authority) = certificate(NAME);
    w.policy(vec![ServiceSpec { tls: Some(offers(own)), ..with(tls, &[1]) }]);
    w.server(1).echoes = true;
    for least in [TlsVersion::Tls12, TlsVersion::Tls13] {
        let label = w.connect();
        let address = (server(1), PORT).into();
        w.client().at_mut(label).session = Session::towards(&trusts(&authority, least), address);
        let sent = bytes(200_000, 9);
        w.client().write(label, &sent);
        w.run(3 * S);
        assert!(w.client().at(label).read == sent);
        w.client().finish(label);
        w.run(5 * S);
        assert!(w.client().at(label).finished, "the server's close_notify came through");
        assert_eq!(w.client().at(label).end, Some(End::Closed));
    }
    w.run(30 * S);
    w.assert_empty("both");
}

#[test]
fn sessions_are_resumed_and_a_header_precedes_them() {
    let (mut w, tls) = world(&[1]);
    for count in 1..4 {
        let label = w.connect();
        w.client().write(label, b"hello");
        w.run(500 * MS);
        let counters = w.core.counters();
        assert_eq!((counters.tls_server_handshakes, counters.tls_server_resumed), (count, count - 1));
        let now = w.now;
        w.client().tcp.abort(now, label);
        w.run(500 * MS);
    }
    // A server that expects no header sees one where its session begins.
    let servers = ServerOptions { header: Some(ProxyHeader::V1), tls: Some(tls), ..ServerOptions::default() };
    w.policy(vec![ServiceSpec { servers, ..web(&[1]) }]);
    w.server(1).tls = None;
    w.connect();
    w.run(100 * MS);
    let server = *w.server(1).accepted.last().unwrap();
    let read = &w.server(1).at(server).read;
    assert!(
        read.starts_with(b"PROXY TCP4 ") && read.windows(4).any(|of| of == b"\n\x16\x03\x01"),
        "{read:?}"
    );
}

#[test]
fn a_handshake_that_fails_is_a_server_that_cannot_be_reached() {
    let (other, _) = certificate(NAME);
    let (wrong, of_wrong) = certificate("other.csp.test");
    for (server, authority, expected) in [
        (offers(other), None, "TLS: no trusted authority has signed its certificate"),
        (offers(wrong), Some(of_wrong), "TLS: its certificate is for another name"),
    ] {
        let (mut w, tls) = world(&[1, 2]);
        w.server(1).tls = Some(server);
        let (_, good) = certificate(NAME);
        let tls = authority.map_or(tls, |authority| trusts(&format!("{authority}{good}"), TlsVersion::Tls12));
        let is_second_good = expected.contains("authority");
        w.policy(vec![with(tls, &[1, 2])]);
        let labels = [w.connect(), w.connect()];
        for label in labels {
            w.client().write(label, b"hello");
        }
        w.run(S / 2);
        assert_eq!(why(&w)[0], Some(expected));
        if is_second_good {
            let host = w.server(2);
            let read: Vec<Vec<u8>> = host.accepted.iter().map(|label| host.at(*label).read.clone()).collect();
            assert_eq!(read, [b"hello", b"hello"], "the next server; no byte went to the first");
        }
        let first = w.server(1);
        assert!(first.accepted.iter().all(|label| first.at(*label).read.is_empty()));
    }
}

/// Bytes must not reach a server of before in plaintext, nor one whose certificate is verified otherwise now.
#[test]
fn a_call_under_way_while_the_policy_changes_is_made_again() {
    let (own, authority) = certificate(NAME);
    let plain = || web(&[2]);
    let secured = || with(trusts(&authority, TlsVersion::Tls12), &[1]);
    for (first, second, number) in [(secured(), plain(), 2), (plain(), secured(), 1)] {
        let mut w = World::new(&[1, 2]);
        w.server(1).tls = Some(offers(own.clone()));
        w.policy(vec![first.clone()]);
        let label = w.connect();
        w.client().write(label, b"hello");
        while w.core.counters().connections_called == 0 {
            w.run(MS / 10);
        }
        w.run(MS / 10);
        w.policy(vec![second]);
        w.run(S);
        assert_eq!(w.core.counters().connections_called, 2, "the first got no byte");
        let host = w.server(3 - number);
        assert!(host.accepted.iter().all(|label| host.at(*label).read.is_empty()));
        let host = w.server(number);
        assert_eq!(
            host.accepted.iter().map(|label| &host.at(*label).read[..]).collect::<Vec<_>>(),
            [b"hello"]
        );
        assert_eq!(why(&w), [None]);
        // The same policy again changes nothing.
        let before = w.core.counters().connections_called;
        w.connect();
        w.run(S);
        assert_eq!(w.core.counters().connections_called, before + 1);
    }
}

/// Servers close with SO_LINGER of 0, or with bytes unread: what they have sent before is the client's.
#[test]
fn what_arrived_before_a_reset_of_the_server_reaches_the_client() {
    for len in [10, 5_000, 100_000] {
        let (mut w, _) = world(&[1]);
        let label = w.connect();
        w.client().write(label, b"hello");
        w.run(500 * MS);
        let server = w.server(1).accepted[0];
        let sent = bytes(len, 4);
        w.client().at_mut(label).stalls = true;
        w.server(1).write(server, &sent);
        w.run(500 * MS);
        let now = w.now;
        w.server(1).tcp.reset(now, server);
        w.run(500 * MS);
        w.client().at_mut(label).stalls = false;
        w.run(2 * S);
        assert!(w.client().at(label).read == sent, "{len}: {}", w.client().at(label).read.len());
        assert_eq!(w.client().at(label).end, Some(End::Failed(FailReason::Reset)));
        w.run(30 * S);
        w.assert_empty("reset");
    }
}

#[test]
fn servers_that_speak_no_tls_or_nothing_are_passed_over_in_time() {
    for (answer, expected) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "TLS: no session; it may not speak TLS"),
        (b"", "no answer in time"),
    ] {
        let (mut w, _) = world(&[1, 2]);
        w.server(1).tls = None;
        w.connect();
        w.run(50 * MS);
        let first = w.server(1).accepted.clone();
        for label in first {
            w.server(1).write(label, answer);
        }
        w.connect();
        w.run(50 * MS);
        let more = w.server(1).accepted.clone();
        for label in more {
            w.server(1).write(label, answer);
        }
        w.run(3_500 * MS);
        assert_eq!(why(&w)[0], Some(expected));
        assert_eq!(w.server(2).accepted.len(), 2, "{expected}");
    }
}

#[test]
fn a_stream_cut_off_reaches_the_client_as_a_reset() {
    let (mut w, _) = world(&[1]);
    let label = w.connect();
    w.client().write(label, b"hello");
    w.run(500 * MS);
    let server = w.server(1).accepted[0];
    w.server(1).write(server, b"all of it?");
    w.server(1).at_mut(server).cuts = true;
    w.server(1).finish(server);
    w.run(S);
    assert_eq!(w.client().at(label).read, b"all of it?");
    assert_eq!(w.client().at(label).end, Some(End::Failed(FailReason::Reset)));
    w.run(30 * S);
    w.assert_empty("cut off");
}

#[test]
fn checks_make_a_handshake_and_ask_inside_the_session() {
    let request = b"GET /health HTTP/1.1\r\n\r\n"[..].into();
    let http = Question::Http(HttpCheck { request, status: 200..=399 });
    for question in [None, Some(http)] {
        let (mut w, tls) = world(&[1, 2]);
        [1, 2].into_iter().for_each(|number| w.server(number).answer = b"HTTP/1.1 204 fine\r\n\r\n".to_vec());
        let check = CheckSpec {
            interval: 2 * S,
            timeout: S,
            rise: 2,
            fall: 3,
            port: None,
            header: None,
            question: question.clone(),
            tls: Some(tls.clone()),
        };
        let servers = ServerOptions { check: Some(check.into()), tls: Some(tls), ..ServerOptions::default() };
        w.policy(vec![ServiceSpec { servers, ..web(&[1, 2]) }]);
        w.run(10 * S);
        assert_eq!(why(&w), [None, None]);
        assert!(
            w.core.counters().tls_server_handshakes >= 8 && w.core.counters().tls_server_failed == [0; 8]
        );
        let host = w.server(1);
        let asked = host.accepted.iter().any(|label| !host.at(*label).read.is_empty());
        assert_eq!(asked, question.is_some());
        let (stranger, _) = certificate(NAME);
        let before = w.server(1).tls.replace(offers(stranger));
        w.run(10 * S);
        assert_eq!(why(&w), [Some("TLS: no trusted authority has signed its certificate"), None]);
        assert!(w.core.counters().tls_server_failed[1] >= 3);
        w.server(1).tls = before;
        w.run(8 * S);
        assert_eq!(why(&w), [None, None], "in use again");
        w.policy(vec![web(&[1, 2])]);
        w.run(30 * S);
        w.assert_empty("without checks");
    }
}
