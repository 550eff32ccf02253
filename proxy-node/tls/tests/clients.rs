//! Certificates of clients: the server lets in those that it verifies, reads their names, and verifies the
//! certificate of a resumed session again.
#![allow(clippy::unwrap_used, reason = "a panic is a failed test")]

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::{Clock, Done, NAME, connect, provider};
use csp_tls::{Certificate, ClientIdentity, ClientVerifier, ServerTls, TicketKeys, TlsVersion};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CustomExtension, DistinguishedName,
    DnType, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber,
    date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, HandshakeKind, RootCertStore};

/// 2026-12-01.
const NOW: u64 = 1_796_083_200;
const SECRET: &[u8] = &[5; 48];

struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// Without rcgen's own name.
fn params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
}

fn authority(name: &str) -> Authority {
    let key = KeyPair::generate().unwrap();
    let mut params = params();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name.push(DnType::OrganizationName, "Example, Inc.");
    params.distinguished_name.push(DnType::CommonName, name);
    let pem = params.self_signed(&key).unwrap().pem();
    Authority { pem, issuer: Issuer::new(params, key) }
}

type Chain = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

impl Authority {
    /// A client's certificate, until the end of a year.
    fn client(&self, name: &str, serial: u64, until: i32) -> Chain {
        let key = KeyPair::generate().unwrap();
        let mut params = params();
        params.serial_number = Some(SerialNumber::from(serial));
        params.not_after = date_time_ymd(until, 12, 31);
        params.distinguished_name.push(DnType::OrganizationName, "Example");
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (vec![certificate.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
    }

    fn revokes(&self, serials: &[u64], until: i32) -> String {
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(until, 12, 31),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).unwrap().pem().unwrap()
    }
}

struct Server {
    certificate: Certificate,
    roots: RootCertStore,
    clock: Arc<Clock>,
}

impl Server {
    fn new() -> Server {
        let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).unwrap();
        let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let certificate = Certificate::from_pem(&provider(), NAME, chain.as_bytes(), key.as_bytes()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        Server { certificate, roots, clock: Clock::at(NOW) }
    }

    fn offer(&self, by: Option<(&Authority, Option<&str>, bool)>, binding: &[u8]) -> ServerTls {
        let with = || (provider(), self.clock.clone() as Arc<_>);
        let verifier = by.map(|(authority, revoked, required)| {
            let revoked = revoked.map(str::as_bytes);
            ClientVerifier::from_pem(with(), authority.pem.as_bytes(), revoked, required).unwrap()
        });
        let tickets = Arc::new(TicketKeys::new(with(), SECRET, binding).unwrap());
        let certificates = std::slice::from_ref(&self.certificate);
        let least = TlsVersion::Tls12;
        ServerTls::with_clients(with(), certificates, least, &[], Some(tickets), verifier).unwrap()
    }

    fn client(&self, version: usize, chain: Option<&Chain>) -> Arc<ClientConfig> {
        let version = [&TLS12, &TLS13][version];
        let config = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[version]);
        let config = config.unwrap().with_root_certificates(self.roots.clone());
        Arc::new(match chain {
            Some((chain, key)) => config.with_client_auth_cert(chain.clone(), key.clone_key()).unwrap(),
            None => config.with_no_client_auth(),
        })
    }
}

fn subject(done: &Done) -> Option<String> {
    done.server.identity().map(|identity| identity.subject.to_string())
}

/// Whether a client was let in, and the reason if not.
fn outcome(done: &Done) -> Result<(), String> {
    match (done.server.is_established(), done.server.failure()) {
        (true, None) => Ok(()),
        (false, Some(failure)) => Err(failure.to_string()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_has_a_certificate_of_the_authority_is_let_in() {
    let (server, ours, others) = (Server::new(), authority("Staff"), authority("Others"));
    let revoked = ours.revokes(&[0xb0b], 2030);
    let required = server.offer(Some((&ours, Some(&revoked), true)), b"");
    let optional = server.offer(Some((&ours, Some(&revoked), false)), b"");
    let (alice, bob) = (ours.client("alice", 0xa11ce, 2030), ours.client("bob", 0xb0b, 2030));
    let (old, mallory) = (ours.client("old", 3, 2025), others.client("mallory", 4, 2030));
    for version in [0, 1] {
        for (tls, chain, expected) in [
            (&required, Some(&alice), Ok("CN=alice,O=Example")),
            (&optional, Some(&alice), Ok("CN=alice,O=Example")),
            (&optional, None, Ok("")),
            (&required, None, Err("no certificate")),
            (&required, Some(&bob), Err("Revoked")),
            (&optional, Some(&bob), Err("Revoked")),
            (&required, Some(&old), Err("Expired")),
            (&required, Some(&mallory), Err("UnknownIssuer")),
            (&optional, Some(&mallory), Err("UnknownIssuer")),
        ] {
            let done = connect(&server.client(version, chain), tls);
            match (outcome(&done), expected) {
                (Ok(()), Ok(expected)) => assert_eq!(subject(&done).unwrap_or_default(), expected),
                (Err(told), Err(expected)) => {
                    let told = told.replace(' ', "").to_lowercase();
                    assert!(told.contains(&expected.replace(' ', "").to_lowercase()), "{expected}: {told}");
                    assert!(done.client.is_err() && subject(&done).is_none(), "{expected}");
                }
                (got, expected) => panic!("{version}: {got:?} instead of {expected:?}"),
            }
        }
    }
    // A list that is too old, or of another authority, lets nobody in.
    for list in [ours.revokes(&[], 2025), others.revokes(&[], 2030)] {
        let tls = server.offer(Some((&ours, Some(&list), true)), b"");
        assert!(outcome(&connect(&server.client(1, Some(&alice)), &tls)).is_err());
    }
}

#[test]
fn a_ticket_lets_in_nobody_whom_the_certificate_would_not() {
    let (server, ours) = (Server::new(), authority("Staff"));
    let alice = ours.client("alice", 7, 2026);
    let before = server.offer(Some((&ours, None, true)), b"same");
    let revoked = ours.revokes(&[7], 2030);
    let after = server.offer(Some((&ours, Some(&revoked), true)), b"same");
    let open = server.offer(None, b"same");
    let elsewhere = server.offer(Some((&ours, None, true)), b"other");
    for version in [0, 1] {
        let client = server.client(version, Some(&alice));
        assert_eq!(connect(&client, &before).client, Ok(HandshakeKind::Full));
        let resumed = connect(&client, &before);
        assert_eq!(resumed.client, Ok(HandshakeKind::Resumed), "{version}");
        assert_eq!(subject(&resumed).as_deref(), Some("CN=alice,O=Example"));
        assert_eq!(connect(&client, &elsewhere).client, Ok(HandshakeKind::Full), "bound to others");
        // Revoked since.
        assert_eq!(outcome(&connect(&client, &before)), Ok(()));
        assert!(outcome(&connect(&client, &after)).unwrap_err().contains("Revoked"), "{version}");
        // A session without a certificate does not become one with it.
        let nobody = server.client(version, None);
        assert_eq!(connect(&nobody, &open).client, Ok(HandshakeKind::Full));
        assert!(outcome(&connect(&nobody, &before)).is_err(), "{version}");
        // Too old since: 2026-12-31, minutes after the ticket.
        server.clock.0.store(1_798_675_100, Ordering::Relaxed);
        let client = server.client(version, Some(&alice));
        assert_eq!(outcome(&connect(&client, &before)), Ok(()), "{version}");
        server.clock.0.store(1_798_675_300, Ordering::Relaxed);
        assert!(outcome(&connect(&client, &before)).unwrap_err().contains("xpired"), "{version}");
        server.clock.0.store(NOW, Ordering::Relaxed);
    }
}

#[test]
fn names_are_text_that_fits_a_field() {
    let key = KeyPair::generate().unwrap();
    let issuer = authority("Zoë\r\nX-Admin: 1");
    let named = |names: &[(DnType, &str)], extension: usize| {
        let mut params = params();
        params.serial_number = Some(SerialNumber::from_slice(&[0x80, 1, 2]));
        for (kind, name) in names {
            params.distinguished_name.push(kind.clone(), *name);
        }
        let padding = CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 99_999, 1], vec![4; extension]);
        params.custom_extensions.push(padding);
        params.signed_by(&key, &issuer.issuer).unwrap().der().clone()
    };
    let odd = DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 99_999, 2]);
    let der = named(&[(DnType::CommonName, " #a+b,c;\"<>\\ "), (DnType::CountryName, "FR"), (odd, "x")], 1);
    let identity = ClientIdentity::of(&der).unwrap();
    let expected = "1.3.6.1.4.1.99999.2=#0c0178,C=FR,CN=\\ #a\\+b\\,c\\;\\\"\\<\\>\\\\\\ ";
    assert_eq!(&*identity.subject, expected);
    assert_eq!(&*identity.issuer, "CN=Zo\\C3\\AB\\0D\\0AX-Admin: 1,O=Example\\, Inc.");
    assert_eq!(&*identity.serial, "800102");
    let field = &identity.certificate;
    assert!(field.starts_with(":MII") && field.ends_with(':') && field.len() > der.len() * 4 / 3, "{field}");
    assert!(field.bytes().all(|byte| byte.is_ascii_graphic()));
    // What is too long is nobody's.
    assert!(ClientIdentity::of(&named(&[(DnType::CommonName, &"x".repeat(2_000))], 1)).is_none());
    assert!(ClientIdentity::of(&named(&[(DnType::CommonName, "x")], 9_000)).is_none());
    assert!(ClientIdentity::of(&CertificateDer::from(vec![0x30, 0x82, 1])).is_none());
}

#[test]
fn what_is_wrong_with_files_is_told() {
    let with = || (provider(), Clock::at(NOW) as Arc<_>);
    let ours = authority("Staff");
    let make = |authority: &str, revoked: Option<&str>| {
        let made = ClientVerifier::from_pem(with(), authority.as_bytes(), revoked.map(str::as_bytes), true);
        made.map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(make(&ours.pem, None), Ok(()));
    assert_eq!(make(&ours.pem, Some(&ours.revokes(&[1], 2030))), Ok(()));
    assert!(make("", None).unwrap_err().contains("BEGIN CERTIFICATE"));
    assert!(make(&ours.pem.replace('M', "?"), None).is_err());
    assert!(make(&ours.pem, Some("")).unwrap_err().contains("BEGIN X509 CRL"));
    assert!(make(&ours.pem, Some(&ours.pem)).unwrap_err().contains("BEGIN X509 CRL"));
}
