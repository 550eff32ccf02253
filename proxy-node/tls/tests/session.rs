//! Sessions against rustls' client, over streams that are cut anywhere.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::{Read as _, Write as _};
use std::sync::Arc;

use csp_tls::{Certificate, CertificateError, Failure, ServerTls, Session, TlsVersion};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::time_provider::DefaultTimeProvider;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn certificate(name: &str, names: &[&str]) -> (Certificate, CertificateDer<'static>) {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let certificate = Certificate::from_pem(&provider(), name, chain.as_bytes(), key.as_bytes()).unwrap();
    (certificate, made.cert.der().clone())
}

/// A server for these names, a certificate each, and a client that trusts them.
fn both(
    names: &[&[&str]],
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> (ServerTls, ClientConfig) {
    let made: Vec<_> = names.iter().map(|names| certificate(names[0], names)).collect();
    let mut roots = RootCertStore::empty();
    made.iter().for_each(|(_, der)| roots.add(der.clone()).unwrap());
    let certificates: Vec<Certificate> = made.into_iter().map(|(certificate, _)| certificate).collect();
    let tickets = rustls::crypto::ring::Ticketer::new().unwrap();
    let protocols = ["http/1.1".to_owned()];
    let tls = ServerTls::new(
        (provider(), Arc::new(DefaultTimeProvider)),
        &certificates,
        TlsVersion::Tls12,
        &protocols,
        Some(tickets),
    )
    .unwrap();
    let client = ClientConfig::builder_with_provider(provider()).with_protocol_versions(versions).unwrap();
    (tls, client.with_root_certificates(roots).with_no_client_auth())
}

fn client(config: &ClientConfig, name: &str) -> ClientConnection {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    ClientConnection::new(Arc::new(config.clone()), name).unwrap()
}

/// Both ends, and the bytes on the way.
struct Pair {
    client: ClientConnection,
    server: Session,
    to_server: Vec<u8>,
    /// Ciphertext bytes that the client has not acknowledged.
    queued: u64,
    /// What the server's application has read.
    received: Vec<u8>,
    /// What the client's has.
    read: Vec<u8>,
    random: u64,
}

impl Pair {
    fn new(client: ClientConnection, tls: &ServerTls, seed: u64) -> Self {
        let server = Session::new(tls).unwrap();
        Pair {
            client,
            server,
            to_server: Vec::new(),
            queued: 0,
            received: Vec::new(),
            read: Vec::new(),
            random: seed | 1,
        }
    }

    fn random(&mut self, below: usize) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) as usize % below
    }

    /// Has the server process up to `arrived` bytes, which lie in slices that are cut anywhere.
    fn take(&mut self, arrived: usize) {
        let mut at = 0;
        loop {
            let cut = self.random(arrived - at + 1);
            let (first, second) = self.to_server[at..arrived].split_at(cut);
            let slices = [first, second];
            let Some(len) = self.server.next_record(arrived - at, slices.into_iter()) else { break };
            let mut left = len;
            let parts = slices.into_iter().map(|slice| {
                let part = &slice[..slice.len().min(left)];
                left -= part.len();
                part
            });
            self.server.take_record(parts);
            at += len;
            while self.server.readable() > 0 {
                let len = self.random(self.server.readable()) + 1;
                self.received.extend_from_slice(&self.server.plaintext()[..len]);
                self.server.consume(len);
            }
        }
        self.to_server.drain(..at);
    }

    /// Moves bytes in both directions once, some of them. Returns whether there were any.
    fn step(&mut self) -> bool {
        let mut moved = false;
        while self.client.wants_write() {
            moved |= self.client.write_tls(&mut self.to_server).unwrap() > 0;
        }
        let arrived = match self.random(3) {
            0 => self.random(self.to_server.len() + 1),
            _ => self.to_server.len(),
        };
        self.take(arrived);
        let (room, mut out) = (self.random(20_000), Vec::new());
        self.server.encrypt(room, &mut out);
        assert!(out.len() <= room, "{} bytes for {room}", out.len());
        self.queued += out.len() as u64;
        moved |= !out.is_empty();
        let mut rest = &out[..];
        while !rest.is_empty() {
            self.client.read_tls(&mut rest).unwrap();
            let _ = self.client.process_new_packets();
            let mut bytes = [0; 20_000];
            while let Ok(len @ 1..) = self.client.reader().read(&mut bytes) {
                self.read.extend_from_slice(&bytes[..len]);
            }
        }
        if self.random(2) == 0 {
            self.queued = 0;
        }
        self.server.acknowledged(self.queued);
        moved || !self.to_server.is_empty() || self.server.has_output()
    }

    fn run(&mut self) {
        // Rooms that are too small for a record are drawn, too.
        (0..400).for_each(|_| _ = self.step());
    }

    fn read_by_client(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.read)
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

#[test]
fn bytes_pass_in_both_directions_and_both_ends_close() {
    for (seed, versions) in [(1, &[&TLS13][..]), (2, &[&TLS12]), (3, &[&TLS13, &TLS12])] {
        for seed in seed..seed + 40 {
            let (tls, config) = both(&[&["a.example"]], versions);
            let mut pair = Pair::new(client(&config, "a.example"), &tls, seed);
            pair.run();
            assert!(pair.server.is_established() && !pair.client.is_handshaking());
            let (there, back) = (pattern(100_000), pattern(70_001));
            for piece in there.chunks(20_000) {
                pair.client.writer().write_all(piece).unwrap();
                pair.run();
            }
            pair.server.write(&back);
            assert_eq!(pair.server.unacknowledged(pair.queued), back.len() as u64);
            let mut got = Vec::new();
            while got.len() < back.len() {
                pair.run();
                got.extend(pair.read_by_client());
            }
            assert!(pair.received == there && got == back, "seed {seed}");
            pair.queued = 0;
            pair.server.acknowledged(0);
            assert_eq!(pair.server.unacknowledged(0), 0);

            pair.client.send_close_notify();
            pair.run();
            assert!(pair.server.is_closed_by_peer() && pair.server.failure().is_none());
            pair.server.write(b"still");
            pair.server.close();
            pair.server.write(b"no more");
            pair.run();
            assert!(!pair.server.has_output());
            assert_eq!(pair.read_by_client(), b"still");
            let state = pair.client.process_new_packets().unwrap();
            assert!(state.peer_has_closed());
        }
    }
}

#[test]
fn a_client_gets_the_certificate_of_the_name_that_it_asks_for() {
    let names: [&[&str]; 3] = [&["a.example"], &["*.b.example", "b.example"], &["www.b.example"]];
    let (tls, config) = both(&names, &[&TLS13]);
    for (name, own) in [
        ("a.example", "a.example"),
        ("A.Example", "a.example"),
        ("x.b.example", "*.b.example"),
        ("b.example", "*.b.example"),
        ("www.b.example", "www.b.example"),
    ] {
        let mut pair = Pair::new(client(&config, name), &tls, 7);
        pair.run();
        assert!(pair.server.is_established(), "{name}");
        let got = pair.client.peer_certificates().unwrap()[0].clone();
        let parsed = webpki::EndEntityCert::try_from(&got).unwrap();
        assert_eq!(parsed.valid_dns_names().next(), Some(own), "{name}");
    }
    // The first is for others, whom it does not convince.
    let mut pair = Pair::new(client(&config, "x.y.b.example"), &tls, 7);
    pair.run();
    let alert = pair.server.failure().and_then(Failure::received_alert);
    assert!(alert.is_some() && !pair.server.is_established());
}

#[test]
fn sessions_are_resumed() {
    for versions in [&[&TLS13], &[&TLS12]] {
        let (tls, config) = both(&[&["a.example"]], versions);
        let mut kinds = Vec::new();
        for seed in 1..3 {
            let mut pair = Pair::new(client(&config, "a.example"), &tls, seed);
            pair.run();
            kinds.push(pair.client.handshake_kind().unwrap());
        }
        assert_eq!(kinds, [rustls::HandshakeKind::Full, rustls::HandshakeKind::Resumed]);
    }
}

#[test]
fn a_stream_that_ends_without_close_notify_is_truncated() {
    let (tls, config) = both(&[&["a.example"]], &[&TLS13]);
    let mut pair = Pair::new(client(&config, "a.example"), &tls, 5);
    pair.run();
    pair.client.writer().write_all(b"all of it?").unwrap();
    pair.run();
    pair.server.stream_ended();
    assert_eq!(pair.received, b"all of it?");
    assert_eq!(pair.server.failure(), Some(&Failure::Truncated));
    // What the server has to say still goes.
    pair.server.write(b"this is");
    pair.run();
    assert_eq!(pair.read_by_client(), b"this is");
}

#[test]
fn what_is_no_tls_fails_with_an_alert() {
    let (tls, _) = both(&[&["a.example"]], &[&TLS13]);
    for bytes in [
        &b"GET / HTTP/1.1\r\nhost: a.example\r\n\r\n"[..],
        &[0x80, 0x2e, 1, 0, 2, 0, 0],
        &[22, 3, 1, 0xff, 0xff, 1],
    ] {
        let mut server = Session::new(&tls).unwrap();
        let len = server.next_record(bytes.len(), [bytes].into_iter()).unwrap();
        server.take_record([&bytes[..len]].into_iter());
        assert!(matches!(server.failure(), Some(Failure::Protocol(_))), "{bytes:?}");
        assert_eq!(server.next_record(bytes.len(), [bytes].into_iter()), None);
        let mut out = Vec::new();
        server.encrypt(1_000, &mut out);
        assert_eq!(out.first(), Some(&21), "an alert for {bytes:?}");
    }
}

#[test]
fn damaged_bytes_fail_and_never_panic() {
    let (tls, config) = both(&[&["a.example"]], &[&TLS13, &TLS12]);
    for seed in 1..400 {
        let mut pair = Pair::new(client(&config, "a.example"), &tls, seed);
        for _ in 0..60 {
            while pair.client.wants_write() {
                pair.client.write_tls(&mut pair.to_server).unwrap();
            }
            if pair.random(8) == 0 && !pair.to_server.is_empty() {
                let at = pair.random(pair.to_server.len());
                pair.to_server[at] ^= 1 << pair.random(8);
            }
            if pair.random(4) == 0 {
                let _ = pair.client.writer().write_all(&pattern(300));
            }
            pair.step();
        }
    }
}

#[test]
fn certificates_and_keys_must_belong_together() {
    let made = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
    let other = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
    let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let read = |chain: &str, key: &str| {
        Certificate::from_pem(&provider(), "a", chain.as_bytes(), key.as_bytes()).map(drop)
    };
    assert_eq!(read(&chain, &key), Ok(()));
    assert_eq!(read("", &key), Err(CertificateError::NoCertificate));
    assert_eq!(read(&chain.repeat(11), &key), Err(CertificateError::TooMany(11)));
    assert!(matches!(read(&chain, ""), Err(CertificateError::NoKey(_))));
    assert!(matches!(read(&chain, &chain), Err(CertificateError::NoKey(_))));
    let wrong = read(&chain, &other.signing_key.serialize_pem());
    assert!(matches!(wrong, Err(CertificateError::Key(_))), "{wrong:?}");
}
