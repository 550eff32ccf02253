//! Clients over TLS: of their bytes one record is readable at a time.

use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::time::Duration;

use csp_gateway::spec::ServiceConfig;
use csp_http::head::Scheme;
use csp_http2::Limits;
use csp_proxy_core::{Certificate, ServerTls, ServiceSpec, TlsVersion};
use csp_support::Random;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::ServerName;
use rustls::time_provider::DefaultTimeProvider;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use crate::http::{A, Http, service};
use crate::random::body;
use crate::world::pool;

pub const NAME: &str = "www.csp.test";
pub const PORT: u16 = 1_000;

pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Returns what the service has, and a client that trusts it. `protocols`: those that the service offers;
/// `wanted`: those that the client does.
fn both(protocols: &[String], wanted: &[&str]) -> (ServerTls, ClientConnection) {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).unwrap();
    let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let certificate = Certificate::from_pem(&provider(), NAME, chain.as_bytes(), key.as_bytes()).unwrap();
    let tls = ServerTls::new(
        (provider(), Arc::new(DefaultTimeProvider)),
        &[certificate],
        TlsVersion::Tls12,
        protocols,
        None,
    )
    .unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let config = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let mut config = config.unwrap().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = wanted.iter().map(|name| name.as_bytes().to_vec()).collect();
    config.max_fragment_size = Some(4_096); // the world's windows are smaller than the longest record
    let mut client = ClientConnection::new(Arc::new(config), ServerName::try_from(NAME).unwrap()).unwrap();
    client.set_buffer_limit(None);
    (tls, client)
}

/// A client of the world with its session.
pub struct Secure {
    pub session: ClientConnection,
    /// Ciphertext that was read, and that waits.
    pub taken: usize,
    pub waiting: Vec<u8>,
    pub read: Vec<u8>,
}

impl Secure {
    pub fn run(&mut self, h: &mut Http) {
        let received = &h.w.clients[&PORT].received;
        let mut bytes = &received[self.taken..];
        self.taken = received.len();
        while !bytes.is_empty() {
            self.session.read_tls(&mut bytes).unwrap();
            let state = self.session.process_new_packets().unwrap();
            let mut plaintext = vec![0; state.plaintext_bytes_to_read()];
            self.session.reader().read_exact(&mut plaintext).unwrap();
            self.read.extend(plaintext);
        }
        while self.session.wants_write() {
            self.session.write_tls(&mut self.waiting).unwrap();
        }
        loop {
            match h.w.client_sends(PORT, &self.waiting) {
                0 => return,
                sent => drop(self.waiting.drain(..sent)),
            }
        }
    }

    /// Sends text in records of random lengths.
    fn send(&mut self, text: &[u8], random: &mut Random) {
        let mut rest = text;
        while !rest.is_empty() {
            let most = [1, 20, 3_000][random.below(3) as usize];
            let len = rest.len().min(1 + random.below(most) as usize);
            self.session.writer().write_all(&rest[..len]).unwrap();
            rest = &rest[len..];
        }
    }
}

#[test]
fn heads_and_bodies_pass_in_records_of_any_length() {
    for seed in 0..12 {
        let mut random = Random::new(seed);
        let (tls, session) = both(&[], &[]);
        let mut h = Http::with_members(ServiceConfig { scheme: Scheme::Https, ..service() }, &[A]);
        h.w.policy(ServiceSpec { tls: Some(tls), ..pool(&[A]) });
        h.w.connect(PORT);
        let mut client = Secure { session, taken: 0, waiting: Vec::new(), read: Vec::new() };
        let (up, down) = (body(seed, 20_000), body(seed + 1, 150_000));
        let field = "x".repeat(5_000);
        let head =
            format!("POST / HTTP/1.1\r\nHost: a\r\nX: {field}\r\nContent-Length: {}\r\n\r\n", up.len());
        client.send(&[head.as_bytes(), &up].concat(), &mut random);
        client.send(b"GET /next HTTP/1.1\r\nHost: a\r\n\r\n", &mut random);
        let (mut first, mut second, mut sent) = (None, None, 0);
        let whole = |client: &Secure| client.read.ends_with(b"\r\n0\r\n\r\n");
        for round in 0.. {
            assert!(round < 20_000, "seed {seed}: {} bytes", client.read.len());
            h.w.clients.get_mut(&PORT).unwrap().stalled = random.below(4) == 0 && round < 200;
            client.run(&mut h);
            while !h.w.offers.is_empty() {
                let label = h.accept();
                first = first.or(Some(label));
            }
            if let Some(label) = first {
                h.hears(label);
                let received = &h.w.served[&label.to_wire()].received;
                if second.is_none() && received.len() == head.len() + up.len() {
                    assert!(received.ends_with(&up), "seed {seed}");
                    h.says(label, "HTTP/1.1 204 No Content\r\n\r\n");
                    second = Some(label);
                } else if second.is_some() && received.ends_with(b"GET /next HTTP/1.1\r\nHost: a\r\n\r\n") {
                    if sent == 0 {
                        h.says(label, "HTTP/1.1 200 OK\r\n\r\n");
                    }
                    let now = h.w.sends(label, &down[sent..]);
                    sent += now;
                    if sent == down.len() && now > 0 {
                        h.closes(label);
                    }
                }
            }
            h.w.pass(Duration::from_millis(random.below(60)));
            if whole(&client) {
                break;
            }
        }
        let text = String::from_utf8_lossy(&client.read).into_owned();
        assert!(
            text.starts_with(
                "HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"
            )
        );
        assert_eq!(h.codes(), [(204, "ok"), (200, "ok")]);
        h.w.clients.get_mut(&PORT).unwrap().stalled = false;
        h.assert_no_leak();
    }
}

/// Has a client of these protocols send bytes; returns what it receives.
fn answer(wanted: &[&str], text: &[u8]) -> Vec<u8> {
    let (tls, session) = both(&["h2", "http/1.1"].map(str::to_owned), wanted);
    let config = ServiceConfig { scheme: Scheme::Https, http2: Some(Limits::default()), ..service() };
    let mut h = Http::with_members(config, &[A]);
    h.w.policy(ServiceSpec { tls: Some(tls), ..pool(&[A]) });
    h.w.connect(PORT);
    let mut client = Secure { session, taken: 0, waiting: Vec::new(), read: Vec::new() };
    client.session.writer().write_all(text).unwrap();
    for _ in 0..40 {
        client.run(&mut h);
        h.w.pass(Duration::from_millis(50));
    }
    client.read
}

#[test]
fn the_protocol_that_alpn_chose_is_spoken() {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
    let http2 = [PREFACE, SETTINGS].concat();
    let is_http1 = |answer: &[u8]| answer.starts_with(b"HTTP/1.1 ");
    let is_settings = |answer: &[u8]| answer.get(3) == Some(&4);
    for wanted in [&["h2"][..], &["http/1.1", "h2"]] {
        assert!(is_settings(&answer(wanted, &http2)), "{wanted:?}");
        // RFC 9113 §3.4: bytes other than the preface are no request of HTTP/1.1.
        let other = answer(wanted, b"TRACE / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(!is_http1(&other), "{wanted:?}: {}", String::from_utf8_lossy(&other));
    }
    let other = answer(&["http/1.1"], &http2);
    assert!(other.starts_with(b"HTTP/1.1 505 "), "{}", String::from_utf8_lossy(&other));
    assert!(is_http1(&answer(&["http/1.1"], b"TRACE / HTTP/1.1\r\nHost: a\r\n\r\n")));
    // Without ALPN the first bytes decide.
    assert!(is_settings(&answer(&[], &http2)));
    assert!(is_http1(&answer(&[], b"TRACE / HTTP/1.1\r\nHost: a\r\n\r\n")));
}
