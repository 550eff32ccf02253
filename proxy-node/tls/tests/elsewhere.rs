//! Handshakes whose long steps are made elsewhere.
#![allow(clippy::unwrap_used, reason = "a panic is a failed test")]

mod common;

use std::io::{Read as _, Write as _};
use std::process::Command;
use std::sync::Arc;

use common::{NAME, provider};
use csp_tls::{Certificate, Failure, ServerTls, Session, TlsVersion};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::time_provider::DefaultTimeProvider;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore, SupportedProtocolVersion};

/// Returns a certificate for [`NAME`] and its key, as PEM, of a kind that openssl(1) knows.
fn made(kind: &[&str]) -> Vec<u8> {
    let done = Command::new("openssl")
        .args(["req", "-x509", "-nodes", "-days", "2", "-newkey"])
        .args(kind)
        .args(["-subj", "/CN=csp", "-addext", &format!("subjectAltName=DNS:{NAME}")])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .args(["-keyout", "/dev/stdout", "-out", "/dev/stdout"])
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    done.stdout
}

fn offers(pem: &[u8]) -> ServerTls {
    let certificate = Certificate::from_pem(&provider(), NAME, pem, pem).unwrap();
    let with = (provider(), Arc::new(DefaultTimeProvider) as Arc<_>);
    let tickets = ring::Ticketer::new().unwrap();
    ServerTls::new(with, &[certificate], TlsVersion::Tls12, &[], Some(tickets)).unwrap()
}

fn trusts(
    chain: &[u8],
    version: &'static SupportedProtocolVersion,
    with: CryptoProvider,
) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(chain).unwrap()).unwrap();
    let client = ClientConfig::builder_with_provider(Arc::new(with)).with_protocol_versions(&[version]);
    Arc::new(client.unwrap().with_root_certificates(roots).with_no_client_auth())
}

/// How a connection went.
#[derive(PartialEq, Debug)]
struct Went {
    kind: Option<HandshakeKind>,
    /// Steps that were made elsewhere.
    away: usize,
    server_read: Vec<u8>,
    client_read: Vec<u8>,
}

/// Has a client connect, whose records wait while the session is away, and both say a word.
fn connect(config: &Arc<ClientConfig>, tls: &ServerTls) -> Went {
    let mut client = ClientConnection::new(config.clone(), ServerName::try_from(NAME).unwrap()).unwrap();
    let mut server = Session::new(tls).unwrap();
    server.put_off_dear_steps();
    let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
    client.writer().write_all(b"hello").unwrap();
    server.write(b"welcome");
    let mut went = Went { kind: None, away: 0, server_read: Vec::new(), client_read: Vec::new() };
    for _ in 0..20 {
        while client.wants_write() {
            client.write_tls(&mut to_server).unwrap();
        }
        while let Some(len) = server.next_record(to_server.len(), [&to_server[..]].into_iter()) {
            server.take_record([&to_server[..len]].into_iter());
            to_server.drain(..len);
            went.server_read.extend_from_slice(server.plaintext());
            server.consume(usize::MAX);
        }
        server.encrypt(100_000, &mut to_client);
        if let Some(mut session) = server.take_away() {
            went.away += 1;
            assert!(server.is_away() && !server.is_established() && !server.has_output());
            server.stream_ended(); // what has arrived is not read yet
            assert!(server.failure().is_none() && server.take_away().is_none());
            std::thread::spawn(move || {
                session.run();
                session
            })
            .join()
            .map(|session| server.bring_back(session))
            .unwrap();
        }
        server.encrypt(100_000, &mut to_client);
        let mut bytes = &to_client[..];
        while !bytes.is_empty() {
            client.read_tls(&mut bytes).unwrap();
            client.process_new_packets().unwrap();
        }
        to_client.clear();
    }
    let _ = client.reader().read_to_end(&mut went.client_read); // it ends with WouldBlock
    went.kind = client.handshake_kind();
    went
}

fn said(kind: HandshakeKind, away: usize) -> Went {
    Went { kind: Some(kind), away, server_read: b"hello".to_vec(), client_read: b"welcome".to_vec() }
}

#[test]
fn the_answer_to_a_client_is_signed_elsewhere_with_a_key_of_rsa() {
    let made = made(&["rsa:2048"]);
    let tls = offers(&made);
    assert!(tls.is_dear());
    for version in [&TLS12, &TLS13] {
        let client = trusts(&made, version, ring::default_provider());
        assert_eq!(connect(&client, &tls), said(HandshakeKind::Full, 1), "{version:?}");
        assert_eq!(connect(&client, &tls), said(HandshakeKind::Resumed, 1), "{version:?}");
    }
}

#[test]
fn a_client_that_is_asked_for_another_key_share_is_answered_elsewhere_both_times() {
    let made = made(&["rsa:2048"]);
    let mut provider = ring::default_provider();
    provider.kx_groups = vec![ring::kx_group::SECP384R1, ring::kx_group::X25519];
    let client = trusts(&made, &TLS13, provider);
    let mut of_server = ring::default_provider();
    of_server.kx_groups = vec![ring::kx_group::X25519];
    let certificate = Certificate::from_pem(&of_server, NAME, &made, &made).unwrap();
    let with = (Arc::new(of_server), Arc::new(DefaultTimeProvider) as Arc<_>);
    let tls = ServerTls::new(with, &[certificate], TlsVersion::Tls13, &[], None).unwrap();
    let went = connect(&client, &tls);
    assert_eq!(went, said(HandshakeKind::FullWithHelloRetryRequest, went.away));
    assert!(went.away >= 2, "{went:?}");
}

#[test]
fn keys_of_elliptic_curves_are_not_dear() {
    let made = made(&["ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]);
    let tls = offers(&made);
    assert!(!tls.is_dear() && tls.clone().with_dear_handshakes().is_dear());
    let client = trusts(&made, &TLS13, ring::default_provider());
    assert_eq!(connect(&client, &tls), said(HandshakeKind::Full, 0));
}

#[test]
fn a_step_that_cannot_be_made_fails_the_handshake() {
    let made = made(&["rsa:2048"]);
    let mut server = Session::new(&offers(&made)).unwrap();
    server.put_off_dear_steps();
    let client = trusts(&made, &TLS13, ring::default_provider());
    let mut client = ClientConnection::new(client, ServerName::try_from(NAME).unwrap()).unwrap();
    let mut hello = Vec::new();
    client.write_tls(&mut hello).unwrap();
    server.take_record([&hello[..]].into_iter());
    let mut session = server.take_away().unwrap();
    session.fail("no processor");
    server.bring_back(session);
    let why = server.failure().map(Failure::to_string).unwrap();
    assert!(why.contains("no processor") && !server.is_established(), "{why}");
}
