//! Handshakes that prove to an ACME authority whose a name is: tls-alpn-01 (RFC 8737).
//!
//! Such a client offers the protocol `acme-tls/1` and no other, and gets the challenge's certificate for the
//! name that it asks for. The session ends with the handshake: no byte of it reaches a service, which might
//! demand a certificate of its clients.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::time_provider::TimeProvider;
use rustls::version::TLS13;

use super::hello::protocols;
use super::{CertificateError, ConfigError, Hello, HelloReader};

/// The protocol of such handshakes (RFC 8737 §6.2).
pub const ACME_TLS: &[u8] = b"acme-tls/1";

/// The certificates of the challenges under way. Sessions share them.
#[derive(Clone)]
pub struct TlsChallenges(Arc<ServerConfig>);

impl TlsChallenges {
    /// Makes them of names, each with a certificate and its private key as PEM. The certificates are not
    /// looked into: they have a critical extension that nobody but the authority knows (RFC 8737 §3).
    ///
    /// # Errors
    /// A certificate or a key is missing or malformed, or the provider lacks what TLS 1.3 needs.
    pub fn new(
        (provider, time): (Arc<CryptoProvider>, Arc<dyn TimeProvider>),
        certificates: &[(&str, &str, &str)],
    ) -> Result<Self, ConfigError> {
        let key = |(name, chain, key): &(&str, &str, &str)| {
            let of = |error| ConfigError::Certificate { name: (*name).to_owned(), error };
            Ok((name.to_ascii_lowercase(), Arc::new(key_of(&provider, chain, key).map_err(of)?)))
        };
        let named = Named(certificates.iter().map(key).collect::<Result<_, ConfigError>>()?);
        let config = ServerConfig::builder_with_details(provider, time).with_protocol_versions(&[&TLS13]);
        let config = config.map_err(|error| ConfigError::Provider(error.to_string()))?;
        let mut config = config.with_no_client_auth().with_cert_resolver(Arc::new(named));
        config.alpn_protocols = vec![ACME_TLS.to_vec()];
        config.max_early_data_size = 0;
        config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(TlsChallenges(Arc::new(config)))
    }

    /// Returns what is offered if the first record of a connection is such a handshake's. Those of
    /// authorities are in one record.
    pub(crate) fn of(&self, record: &[u8]) -> Option<Arc<ServerConfig>> {
        let mut message = Vec::new();
        let whole = HelloReader::gather([record].into_iter(), &mut message) == Hello::Whole;
        let mut offered = protocols(&message).filter(|_| whole).into_iter().flatten();
        // RFC 8737 §3: the list has this value and no other.
        let is_challenge = offered.next() == Some(ACME_TLS) && offered.next().is_none();
        is_challenge.then(|| Arc::clone(&self.0))
    }
}

impl PartialEq for TlsChallenges {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for TlsChallenges {
    /// Without keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsChallenges").finish_non_exhaustive()
    }
}

fn key_of(provider: &CryptoProvider, chain: &str, key: &str) -> Result<CertifiedKey, CertificateError> {
    let chain: Result<Vec<CertificateDer<'static>>, _> =
        CertificateDer::pem_slice_iter(chain.as_bytes()).collect();
    let chain = chain.map_err(|error| CertificateError::Certificate(error.to_string()))?;
    if chain.len() != 1 {
        return Err(CertificateError::NoCertificate);
    }
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes());
    let key = key.map_err(|error| CertificateError::NoKey(error.to_string()))?;
    let key = provider.key_provider.load_private_key(key);
    Ok(CertifiedKey::new(chain, key.map_err(|error| CertificateError::Key(error.to_string()))?))
}

/// Certificates by name; other names get none.
#[derive(Debug)]
struct Named(HashMap<String, Arc<CertifiedKey>>);

impl ResolvesServerCert for Named {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.get(&hello.server_name()?.to_ascii_lowercase()).cloned()
    }
}
