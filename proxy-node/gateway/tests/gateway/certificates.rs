//! The gateway tells members of the certificate that a client has shown, and drops what the client writes of
//! it.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use csp_gateway::CertificateFields;
use csp_gateway::spec::ServiceConfig;
use csp_http::head::Scheme;
use csp_http2::Limits;
use csp_proxy_core::{Certificate, ClientVerifier, ServerTls, ServiceSpec, TlsVersion};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, SerialNumber,
};
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::time_provider::DefaultTimeProvider;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use crate::http::{A, Http, service};
use crate::secure::{NAME, PORT, Secure, provider};
use crate::world::pool;

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.serial_number = Some(SerialNumber::from(0xa11ce));
    params
}

/// Returns what the service has, whose clients may have a certificate, and a client that has one or not.
fn both(protocol: &str, has_one: bool) -> (ServerTls, ClientConnection) {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).unwrap();
    let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let certificate = Certificate::from_pem(&provider(), NAME, chain.as_bytes(), key.as_bytes()).unwrap();
    let (key, mut authority) = (KeyPair::generate().unwrap(), params("Staff"));
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let pem = authority.self_signed(&key).unwrap().pem();
    let with = || (provider(), Arc::new(DefaultTimeProvider) as Arc<_>);
    let clients = ClientVerifier::from_pem(with(), pem.as_bytes(), None, false).unwrap();
    let protocols = [protocol.to_owned()];
    let tls =
        ServerTls::with_clients(with(), &[certificate], TlsVersion::Tls12, &protocols, None, Some(clients));
    let own = KeyPair::generate().unwrap();
    let signed = params("alice").signed_by(&own, &Issuer::new(authority, key)).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let config = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let config = config.unwrap().with_root_certificates(roots);
    let mut config = match has_one {
        true => {
            let key = PrivateKeyDer::try_from(own.serialize_der()).unwrap();
            config.with_client_auth_cert(vec![signed.der().clone()], key).unwrap()
        }
        false => config.with_no_client_auth(),
    };
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let client = ClientConnection::new(Arc::new(config), ServerName::try_from(NAME).unwrap()).unwrap();
    (tls.unwrap(), client)
}

/// A request whose client claims a certificate.
fn request(protocol: &str) -> Vec<u8> {
    const FORGED: [(&[u8], &[u8]); 2] =
        [(b"client-cert", b":forged:"), (b"x-ssl-client-subject", b"CN=root")];
    if protocol == "http/1.1" {
        let fields = FORGED.map(|(name, value)| [name, b": ", value, b"\r\n"].concat()).concat();
        return [b"GET / HTTP/1.1\r\nHost: a\r\n", &fields[..], b"\r\n"].concat();
    }
    // GET, https, / by HPACK's table, and literals.
    let mut block = vec![0x82, 0x87, 0x84, 0x41, 1, b'a'];
    for (name, value) in FORGED {
        block.extend([&[0, name.len() as u8][..], name, &[value.len() as u8], value].concat());
    }
    let head = [0, 0, block.len() as u8, 1, 5, 0, 0, 0, 1];
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &[0, 0, 0, 4, 0, 0, 0, 0, 0][..], &head, &block].concat()
}

/// Returns the head that a member gets of such a request.
fn head(protocol: &str, has_one: bool, certificate: CertificateFields) -> String {
    let (tls, session) = both(protocol, has_one);
    let http2 = Some(Limits::default());
    let config = ServiceConfig { scheme: Scheme::Https, http2, certificate, ..service() };
    let mut h = Http::with_members(config, &[A]);
    h.w.policy(ServiceSpec { tls: Some(tls), ..pool(&[A]) });
    h.w.connect(PORT);
    let mut client = Secure { session, taken: 0, waiting: Vec::new(), read: Vec::new() };
    client.session.writer().write_all(&request(protocol)).unwrap();
    for _ in 0..40 {
        client.run(&mut h);
        h.w.pass(Duration::from_millis(50));
        if !h.w.offers.is_empty() {
            break;
        }
    }
    let label = h.accept();
    h.w.pass(Duration::from_millis(50));
    h.hears(label)
}

#[test]
fn members_are_told_by_the_proxy_only() {
    let all = CertificateFields { client_cert: true, x_ssl: true };
    for protocol in ["http/1.1", "h2"] {
        let told = head(protocol, true, all);
        for line in [
            "\r\nClient-Cert: :MII",
            "\r\nX-SSL-Client-Verify: SUCCESS\r\n",
            "\r\nX-SSL-Client-Subject: CN=alice\r\n",
            "\r\nX-SSL-Client-Issuer: CN=Staff\r\n",
            "\r\nX-SSL-Client-Serial: 0A11CE\r\n",
        ] {
            assert!(told.contains(line), "{protocol}: {line}: {told}");
        }
        let count = |text: &str| told.to_lowercase().matches(text).count();
        assert_eq!((count("client-cert"), count("client-subject"), count("forged")), (1, 1, 0), "{told}");
        let told = head(protocol, false, all);
        assert!(told.contains("\r\nX-SSL-Client-Verify: NONE\r\n"), "{protocol}: {told}");
        assert!(!told.to_lowercase().contains("client-cert") && !told.contains("CN="), "{protocol}: {told}");
        let told = head(protocol, true, CertificateFields { client_cert: false, x_ssl: true });
        assert!(
            told.contains("CN=alice") && !told.to_lowercase().contains("client-cert"),
            "{protocol}: {told}"
        );
        let told = head(protocol, true, CertificateFields::default()).to_lowercase();
        assert!(!told.contains("client-"), "{protocol}: {told}");
    }
}
