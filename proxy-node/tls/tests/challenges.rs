//! Handshakes of an ACME authority (RFC 8737) beside those of clients.
#![allow(clippy::unwrap_used, reason = "a panic is a failed test")]

mod common;

use std::sync::Arc;

use common::{Clock, NAME, connect, provider};
use csp_tls::{Certificate, Failure, ServerTls, TlsChallenges, TlsVersion};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, HandshakeKind, RootCertStore, SignatureScheme};

/// A day in 2026.
const NOW: u64 = 1_780_000_000;

fn certificate(name: &str, roots: &mut RootCertStore) -> Certificate {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    roots.add(made.cert.der().clone()).unwrap();
    let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    Certificate::from_pem(&provider(), name, chain.as_bytes(), key.as_bytes()).unwrap()
}

/// A client that trusts only these certificates.
fn client(roots: &RootCertStore, protocols: &[&str]) -> Arc<ClientConfig> {
    let client = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let mut client = client.unwrap().with_root_certificates(roots.clone()).with_no_client_auth();
    client.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    Arc::new(client)
}

/// A certificate as challenges have it (RFC 8737 §3), and its key.
fn proof(name: &str) -> (String, String) {
    let mut params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.custom_extensions = vec![rcgen::CustomExtension::new_acme_identifier(&[7; 32])];
    let key = rcgen::KeyPair::generate().unwrap();
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

/// An authority: it looks at the certificate itself, and trusts nobody.
#[derive(Debug)]
struct Looks;

impl ServerCertVerifier for Looks {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.3 is expected".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

fn authority(protocols: &[&str]) -> Arc<ClientConfig> {
    let client = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let client = client.unwrap().dangerous().with_custom_certificate_verifier(Arc::new(Looks));
    let mut client = client.with_no_client_auth();
    client.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    Arc::new(client)
}

#[test]
fn the_authority_gets_the_challenge_and_no_byte_of_it_reaches_a_service() {
    let mut own = RootCertStore::empty();
    let with = || (provider(), Clock::at(NOW) as Arc<_>);
    let certificates = [certificate(NAME, &mut own)];
    let tls = ServerTls::new(with(), &certificates, TlsVersion::Tls12, &[], None).unwrap();
    let of = |name: &str| {
        let (chain, key) = proof(name);
        Some(TlsChallenges::new(with(), &[(name, &chain, &key)]).unwrap())
    };
    let under_way = tls.clone().answering(of(NAME));
    let authority = authority(&["acme-tls/1"]);
    let done = connect(&authority, &under_way);
    assert_eq!(done.client, Ok(HandshakeKind::Full));
    assert_eq!(done.server.failure(), Some(&Failure::Challenge));
    assert!(!done.server.is_established() && done.server.readable() == 0);
    // Clients are served as ever: with another protocol, with none, and with one more.
    for protocols in [&["h2"][..], &[], &["acme-tls/1", "h2"]] {
        let done = connect(&client(&own, protocols), &under_way);
        assert_eq!(done.client, Ok(HandshakeKind::Full), "{protocols:?}");
        assert!(done.server.is_established(), "{protocols:?}");
    }
    // A name of no challenge gets no certificate, and without challenges there is nothing special.
    let other = tls.clone().answering(of("other.csp.test"));
    assert!(connect(&authority, &other).client.is_err());
    assert!(connect(&client(&own, &["acme-tls/1"]), &tls).server.is_established());
    assert!(tls != under_way && under_way == under_way.clone());
}
