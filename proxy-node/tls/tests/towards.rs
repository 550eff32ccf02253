//! Sessions towards servers, against sessions of servers, over streams that are cut anywhere.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "common/mod.rs"]
mod common;

use std::net::SocketAddr;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use csp_support::Random;
use csp_tls::{
    Certificate, ClientError, ClientOptions, ClientTls, ClientVerifier, Failure, FailureClass, ServerTls,
    Session, TlsVersion, Trust,
};

use rustls::crypto::ring;

use common::{Clock, NAME, provider};

/// 2030, when the certificates of these tests are valid.
const NOW: u64 = 1_893_456_000;
const SERVER: ([u8; 4], u16) = ([10, 1, 2, 3], 443);

/// An authority.
struct Authority(rcgen::CertifiedIssuer<'static, rcgen::KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut parameters = rcgen::CertificateParams::new([]).unwrap();
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().unwrap();
        Authority(rcgen::CertifiedIssuer::self_signed(parameters, key).unwrap())
    }

    /// Returns a certificate for these names, which is valid in these years.
    fn certificate(&self, names: &[&str], years: (i32, i32)) -> Certificate {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut parameters = rcgen::CertificateParams::new(names).unwrap();
        parameters.not_before = rcgen::date_time_ymd(years.0, 1, 1);
        parameters.not_after = rcgen::date_time_ymd(years.1, 1, 1);
        let key = rcgen::KeyPair::generate().unwrap();
        let made = parameters.signed_by(&key, &self.0).unwrap();
        let (chain, key) = (made.pem(), key.serialize_pem());
        Certificate::from_pem(&provider(), "own", chain.as_bytes(), key.as_bytes()).unwrap()
    }

    fn pem(&self) -> Vec<u8> {
        self.0.pem().into_bytes()
    }
}

fn server(certificate: Certificate, protocols: &[&str], clients: Option<ClientVerifier>) -> ServerTls {
    let protocols: Vec<String> = protocols.iter().map(|name| (*name).to_owned()).collect();
    let tickets = rustls::crypto::ring::Ticketer::new().unwrap();
    let (with, least) = ((provider(), Clock::at(NOW) as Arc<_>), TlsVersion::Tls12);
    ServerTls::with_clients(with, &[certificate], least, &protocols, Some(tickets), clients).unwrap()
}

fn client(options: &ClientOptions<'_>) -> ClientTls {
    ClientTls::new((provider(), Clock::at(NOW)), options).unwrap()
}

fn options<'a>(pem: &'a [u8], name: Option<&'a str>) -> ClientOptions<'a> {
    let trust = Trust::Authorities(pem);
    ClientOptions { trust, certificate: None, least: TlsVersion::Tls12, protocol: None, name }
}

/// One end, the ciphertext on its way to it, and what was read.
struct End {
    session: Session,
    arriving: Vec<u8>,
    read: Vec<u8>,
}

/// Both ends.
struct Pair {
    ends: [End; 2],
    random: Random,
}

impl Pair {
    fn new(client: &ClientTls, server: &ServerTls, seed: u64) -> Self {
        let end = |session| End { session, arriving: Vec::new(), read: Vec::new() };
        let proxy = Session::towards(client, SERVER.into()).unwrap();
        assert!(proxy.has_output(), "its hello");
        Pair { ends: [end(proxy), end(Session::new(server).unwrap())], random: Random::new(seed) }
    }

    /// Moves some bytes in both directions.
    fn step(&mut self) {
        for at in [0, 1] {
            let (room, mut out) = (self.random.below(20_000) as usize, Vec::new());
            self.ends[at].session.encrypt(room, &mut out);
            assert!(out.len() <= room);
            self.ends[at].session.acknowledged(0);
            let to = &mut self.ends[1 - at];
            to.arriving.extend(out);
            let arrived = match self.random.below(3) {
                0 => self.random.below(to.arriving.len() as u64 + 1) as usize,
                _ => to.arriving.len(),
            };
            let mut done = 0;
            loop {
                let bytes = &to.arriving[done..arrived];
                let Some(len) = to.session.next_record(bytes.len(), [bytes].into_iter()) else { break };
                to.session.take_record([&bytes[..len]].into_iter());
                done += len;
                while to.session.readable() > 0 {
                    let len = self.random.below(to.session.readable() as u64) as usize + 1;
                    to.read.extend_from_slice(&to.session.plaintext()[..len]);
                    to.session.consume(len);
                }
            }
            to.arriving.drain(..done);
        }
    }

    fn run(&mut self) {
        (0..300).for_each(|_| self.step());
    }

    fn proxy(&mut self) -> &mut Session {
        &mut self.ends[0].session
    }

    /// Returns of which class the failure of the proxy's session is.
    fn class(&self) -> Option<FailureClass> {
        self.ends[0].session.failure().map(Failure::class)
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

#[test]
fn bytes_pass_in_both_directions_and_both_ends_close() {
    let authority = Authority::new();
    let pem = authority.pem();
    for seed in 0..60 {
        let tls = server(authority.certificate(&[NAME], (2029, 2031)), &[], None);
        let least = if seed % 2 == 0 { TlsVersion::Tls12 } else { TlsVersion::Tls13 };
        let client = client(&ClientOptions { least, ..options(&pem, Some(NAME)) });
        let mut pair = Pair::new(&client, &tls, seed);
        let (there, back) = (pattern(100_000), pattern(70_001));
        pair.proxy().write(&there); // it waits for the end of the handshake
        pair.run();
        pair.ends[1].session.write(&back);
        pair.run();
        assert!(pair.ends[1].read == there && pair.ends[0].read == back, "seed {seed}");
        let first = seed as usize % 2;
        pair.ends[first].session.close();
        pair.run();
        assert!(pair.ends[1 - first].session.is_closed_by_peer(), "seed {seed}");
        pair.ends[1 - first].session.write(b"still");
        pair.ends[1 - first].session.close();
        pair.run();
        assert!(pair.ends[first].read.ends_with(b"still") && pair.ends[first].session.is_closed_by_peer());
        assert!(pair.ends.iter().all(|end| end.session.failure().is_none() && !end.session.has_output()));
    }
}

#[test]
fn a_certificate_must_be_for_the_name_valid_and_of_the_authority() {
    let (authority, other) = (Authority::new(), Authority::new());
    let (pem, others) = (authority.pem(), other.pem());
    let address: SocketAddr = SERVER.into();
    let named = |client: ClientTls, name: &str| client.with_names([(address, name)].into_iter());
    let valid = (2029, 2031);
    for (names, years, client, expected) in [
        (&[NAME][..], valid, client(&options(&pem, Some(NAME))), None),
        (&["other.csp.test"], valid, client(&options(&pem, Some(NAME))), Some(FailureClass::Name)),
        (&["*.csp.test"], valid, client(&options(&pem, Some(NAME))), None),
        (&[NAME], valid, client(&options(&others, Some(NAME))), Some(FailureClass::Untrusted)),
        (&[NAME], (2020, 2029), client(&options(&pem, Some(NAME))), Some(FailureClass::Expired)),
        (&[NAME], (2031, 2032), client(&options(&pem, Some(NAME))), Some(FailureClass::Expired)),
        // A server's own name, and its address if it has none.
        (&[NAME], valid, named(client(&options(&pem, None)), "www.csp.test."), None),
        (&[NAME], valid, named(client(&options(&pem, None)), "b.csp.test"), Some(FailureClass::Name)),
        (&[NAME], valid, client(&options(&pem, None)), Some(FailureClass::Name)),
        (&["10.1.2.3"], valid, client(&options(&pem, None)), None),
        (&["10.1.2.3"], valid, named(client(&options(&pem, None)), NAME), Some(FailureClass::Name)),
        (
            &["other.csp.test"],
            (2020, 2021),
            client(&ClientOptions { trust: Trust::Anybody, ..options(&[], Some(NAME)) }),
            None,
        ),
    ] {
        let tls = server(authority.certificate(names, years), &[], None);
        let mut pair = Pair::new(&client, &tls, 3);
        pair.run();
        assert_eq!(pair.class(), expected, "{names:?} {years:?} {client:?}");
        assert_eq!(pair.proxy().is_established(), expected.is_none());
        if expected.is_some() {
            let alert = pair.ends[1].session.failure().and_then(Failure::received_alert);
            assert!(alert.is_some(), "the server learns it");
        }
    }
}

#[test]
fn the_application_protocol_must_be_chosen() {
    let authority = Authority::new();
    let pem = authority.pem();
    let client = client(&ClientOptions { protocol: Some("h2"), ..options(&pem, Some(NAME)) });
    for (offered, expected) in [
        (&["h2", "http/1.1"][..], None),
        (&[], Some(FailureClass::NoProtocol)),
        (&["http/1.1"], Some(FailureClass::Alert)),
    ] {
        let tls = server(authority.certificate(&[NAME], (2029, 2031)), offered, None);
        let mut pair = Pair::new(&client, &tls, 4);
        pair.run();
        assert_eq!(pair.class(), expected, "{offered:?}");
        assert_eq!(pair.proxy().protocol(), expected.is_none().then_some(&b"h2"[..]));
    }
}

#[test]
fn sessions_are_resumed_also_by_servers_that_know_the_proxy() {
    let authority = Authority::new();
    let pem = authority.pem();
    let own = authority.certificate(&["proxy.csp.test"], (2029, 2031));
    for least in [TlsVersion::Tls12, TlsVersion::Tls13] {
        for known in [false, true] {
            let with = (provider(), Clock::at(NOW) as Arc<_>);
            let clients = known.then(|| ClientVerifier::from_pem(with, &pem, None, true).unwrap());
            let tls = server(authority.certificate(&[NAME], (2029, 2031)), &[], clients);
            let certificate = known.then_some(&own);
            let client = client(&ClientOptions { certificate, least, ..options(&pem, Some(NAME)) });
            for resumed in [false, true, true] {
                let mut pair = Pair::new(&client, &tls, 5);
                pair.run();
                assert!(pair.proxy().is_established(), "{:?}", pair.class());
                assert_eq!(pair.proxy().is_resumed(), resumed, "{least:?}");
                let identity = pair.ends[1].session.identity();
                assert_eq!(identity.is_some(), known);
            }
        }
    }
}

/// A server may go on with a certificate that is too old, or have another one by now.
#[test]
fn nothing_is_resumed_once_the_certificate_has_expired() {
    let authority = Authority::new();
    let pem = authority.pem();
    for least in [TlsVersion::Tls12, TlsVersion::Tls13] {
        for (trust, expected) in [
            (Trust::Authorities(&pem), Some(FailureClass::Expired)),
            (Trust::Anybody, None), // verify: false
        ] {
            let clock = Clock::at(NOW - 3_600);
            let of = ClientOptions { trust, least, ..options(&pem, Some(NAME)) };
            let client = ClientTls::new((provider(), Arc::clone(&clock) as Arc<_>), &of).unwrap();
            let (old, tickets) =
                (authority.certificate(&[NAME], (2029, 2030)), ring::Ticketer::new().unwrap());
            let with = |certificate: &Certificate| {
                let (time, least) = ((provider(), Clock::at(NOW) as Arc<_>), TlsVersion::Tls12);
                let tickets = Some(Arc::clone(&tickets));
                ServerTls::with_clients(time, slice::from_ref(certificate), least, &[], tickets, None)
                    .unwrap()
            };
            let run = |tls: &ServerTls| {
                let mut pair = Pair::new(&client, tls, 8);
                pair.run();
                (pair.class(), pair.proxy().is_established() && pair.proxy().is_resumed())
            };
            assert_eq!([run(&with(&old)), run(&with(&old))], [(None, false), (None, true)]);
            clock.0.store(NOW + 3_600, Ordering::Relaxed); // tickets are not too old
            assert_eq!(run(&with(&old)), (expected, expected.is_none()), "{least:?}");
            if expected.is_some() {
                let renewed = authority.certificate(&[NAME], (2029, 2040));
                assert_eq!([run(&with(&renewed)), run(&with(&renewed))], [(None, false), (None, true)]);
            }
        }
    }
}

/// A check over HTTP/1.1 must not agree on HTTP/2.
#[test]
fn without_a_protocol_none_is_asked_for_and_the_rest_is_the_same() {
    let authority = Authority::new();
    let (pem, others) = (authority.pem(), Authority::new().pem());
    let with = |pem: &[u8]| client(&ClientOptions { protocol: Some("h2"), ..options(pem, Some(NAME)) });
    let tls = server(authority.certificate(&[NAME], (2029, 2031)), &["h2", "http/1.1"], None);
    let (calls, checks) = (with(&pem), with(&pem).without_protocol());
    for resumed in [false, true] {
        for (client, expected) in [(&calls, Some(&b"h2"[..])), (&checks, None)] {
            let mut pair = Pair::new(client, &tls, 9);
            pair.run();
            let proxy = pair.proxy();
            assert_eq!((proxy.protocol(), proxy.is_resumed()), (expected, resumed));
        }
    }
    let mut pair = Pair::new(&with(&others).without_protocol(), &tls, 9);
    pair.run();
    assert_eq!(pair.class(), Some(FailureClass::Untrusted));
    assert!(calls.keeps(&calls.clone()) && !calls.keeps(&with(&pem)) && !calls.keeps(&checks));
}

/// Addresses come and go; connections to one that has another name now were verified for the one before.
#[test]
fn connections_are_kept_while_no_server_has_another_name() {
    let authority = Authority::new();
    let pem = authority.pem();
    let made = client(&options(&pem, None));
    let named = |names: &[(u8, &str)]| {
        let names = names.iter().map(|(last, name)| (([10, 1, 2, *last], 443).into(), *name));
        made.clone().with_names(names)
    };
    let first = named(&[(1, "a.csp.test"), (2, "b.csp.test")]);
    assert!(named(&[(1, "a.csp.test"), (3, "c.csp.test")]).keeps(&first));
    assert!(!named(&[(1, "b.csp.test")]).keeps(&first));
}

#[test]
fn a_server_that_demands_a_certificate_refuses_a_proxy_without() {
    let authority = Authority::new();
    let pem = authority.pem();
    let with = (provider(), Clock::at(NOW) as Arc<_>);
    let clients = ClientVerifier::from_pem(with, &pem, None, true).unwrap();
    let tls = server(authority.certificate(&[NAME], (2029, 2031)), &[], Some(clients));
    let mut pair = Pair::new(&client(&options(&pem, Some(NAME))), &tls, 6);
    pair.run();
    assert_eq!(pair.class(), Some(FailureClass::Alert));
}

#[test]
fn a_stream_that_ends_without_close_notify_is_truncated() {
    let authority = Authority::new();
    let pem = authority.pem();
    let tls = server(authority.certificate(&[NAME], (2029, 2031)), &[], None);
    let mut pair = Pair::new(&client(&options(&pem, Some(NAME))), &tls, 7);
    pair.ends[1].session.write(b"all of it?");
    pair.run();
    pair.proxy().stream_ended();
    assert_eq!(pair.ends[0].read, b"all of it?");
    assert_eq!(pair.class(), Some(FailureClass::Truncated));
}

#[test]
fn what_is_no_tls_fails_and_damaged_bytes_never_panic() {
    let authority = Authority::new();
    let pem = authority.pem();
    let client = client(&options(&pem, Some(NAME)));
    for bytes in [&b"HTTP/1.1 400 Bad Request\r\n"[..], b"220 mail\r\n", &[21, 3, 3, 0, 2, 2, 40]] {
        let mut proxy = Session::towards(&client, SERVER.into()).unwrap();
        let len = proxy.next_record(bytes.len(), [bytes].into_iter()).unwrap();
        proxy.take_record([&bytes[..len]].into_iter());
        assert!(proxy.failure().is_some() && !proxy.is_established(), "{bytes:?}");
    }
    let tls = server(authority.certificate(&[NAME], (2029, 2031)), &[], None);
    for seed in 0..300 {
        let mut pair = Pair::new(&client, &tls, seed);
        for _ in 0..40 {
            for at in [0, 1] {
                let end = &mut pair.ends[at];
                if pair.random.below(8) == 0 && !end.arriving.is_empty() {
                    let place = pair.random.below(end.arriving.len() as u64) as usize;
                    end.arriving[place] ^= 1 << pair.random.below(8);
                }
                if pair.random.below(4) == 0 {
                    end.session.write(&pattern(300));
                }
            }
            pair.step();
        }
    }
}

#[test]
fn authorities_and_names_are_checked() {
    let refused = |of: &ClientOptions<'_>| ClientTls::new((provider(), Clock::at(NOW)), of).unwrap_err();
    let none = refused(&options(b"", Some(NAME)));
    assert!(matches!(&none, ClientError::Authority(text) if text.contains("no certificate")), "{none}");
    let text = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    assert!(matches!(refused(&options(text, Some(NAME))), ClientError::Authority(_)));
    let pem = Authority::new().pem();
    assert_eq!(refused(&options(&pem, Some("a b"))), ClientError::Name("a b".to_owned()));
    // A system's collection may have some that are not known.
    let both = [&text[..], &pem].concat();
    client(&ClientOptions { trust: Trust::System(&both), ..options(&[], Some(NAME)) });
}
