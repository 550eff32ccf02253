//! The client's end of TLS: rustls over the simulated host's TCP. The lengths of what it sends follow from
//! the seed; the bytes do not, since keys are random.

use std::io::{Read as _, Write as _};
use std::sync::{Arc, OnceLock};

use csp_proxy_node::core::{Certificate, ServerTls, TlsVersion};
use csp_tcp::Stack;
use csp_types::{FlowLabel, Instant};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::ServerName;
use rustls::time_provider::DefaultTimeProvider;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

const NAME: &str = "www.csp.test";

/// What proxies offer, and clients trust.
#[derive(Clone)]
pub(crate) struct Identity {
    pub(crate) server: ServerTls,
    client: Arc<ClientConfig>,
}

/// Returns the identity of all runs.
pub(crate) fn identity() -> &'static Identity {
    static MADE: OnceLock<Identity> = OnceLock::new();
    MADE.get_or_init(make)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn make() -> Identity {
    // The signatures of Ed25519 have one length.
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("ring makes keys");
    let parameters = rcgen::CertificateParams::new([NAME.to_owned()]).expect("a name");
    let made = parameters.self_signed(&key).expect("it signs itself");
    let (chain, secret) = (made.pem(), key.serialize_pem());
    let certificate = Certificate::from_pem(&provider(), NAME, chain.as_bytes(), secret.as_bytes());
    let certificates = [certificate.expect("rcgen writes PEM")];
    let server = ServerTls::new(
        (provider(), Arc::new(DefaultTimeProvider)),
        &certificates,
        TlsVersion::Tls12,
        &[],
        None,
    );
    let mut roots = RootCertStore::empty();
    roots.add(made.der().clone()).expect("a certificate");
    let client = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let client = client.expect("ring has the versions").with_root_certificates(roots).with_no_client_auth();
    let server = server.expect("ring has the versions").with_dear_handshakes();
    Identity { server, client: Arc::new(client) }
}

/// One connection's session.
pub(crate) struct Secure {
    session: ClientConnection,
    /// Ciphertext that the engine has not taken.
    waiting: Vec<u8>,
    /// Whether TCP's stream ends after it.
    ends: bool,
    /// Whether the server has ended its stream.
    pub(crate) closed: bool,
    pub(crate) wrong: Option<String>,
}

impl Secure {
    pub(crate) fn new() -> Self {
        let name = ServerName::try_from(NAME).expect("a name");
        let session = ClientConnection::new(Arc::clone(&identity().client), name).expect("the name is one");
        Secure { session, waiting: Vec::new(), ends: false, closed: false, wrong: None }
    }

    /// Returns the number of ciphertext bytes that the engine has not taken.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Processes ciphertext; returns its plaintext.
    pub(crate) fn receive(&mut self, mut bytes: &[u8]) -> Vec<u8> {
        let mut plaintext = Vec::new();
        while !bytes.is_empty() && self.wrong.is_none() {
            if let Err(error) = self.session.read_tls(&mut bytes) {
                self.wrong = Some(format!("TLS: {error}"));
            }
            match self.session.process_new_packets() {
                Ok(state) => self.closed |= state.peer_has_closed(),
                Err(error) => self.wrong = Some(format!("TLS: {error}")),
            }
            let mut buffer = [0; 16 * 1024];
            while let Ok(len @ 1..) = self.session.reader().read(&mut buffer) {
                plaintext.extend_from_slice(&buffer[..len]);
            }
        }
        plaintext
    }

    /// Writes plaintext as far as the engine takes its ciphertext; returns how much was taken. If not all
    /// was, the engine reports when there is room.
    pub(crate) fn write(&mut self, bytes: &[u8], to: (&mut Stack, Instant, FlowLabel)) -> usize {
        let (tcp, now, label) = to;
        let mut taken = 0;
        self.flush(tcp, now, label);
        while taken < bytes.len() && self.waiting.is_empty() && !self.session.is_handshaking() {
            taken += self.session.writer().write(&bytes[taken..]).unwrap_or(0);
            self.flush(tcp, now, label);
        }
        taken
    }

    /// Ends the stream.
    pub(crate) fn close(&mut self) {
        if !std::mem::replace(&mut self.ends, true) {
            self.session.send_close_notify();
        }
    }

    /// Passes ciphertext to the engine; returns whether all of it went, and the stream ends.
    pub(crate) fn flush(&mut self, tcp: &mut Stack, now: Instant, label: FlowLabel) -> bool {
        while self.session.wants_write() {
            let _ = self.session.write_tls(&mut self.waiting); // memory takes everything
        }
        let written = tcp.write(now, label, &self.waiting);
        self.waiting.drain(..written);
        self.waiting.is_empty() && self.ends
    }
}
