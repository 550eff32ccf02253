//! Certificates, and which one a client gets.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use webpki::EndEntityCert;

/// Largest number of certificates in one chain.
const CHAIN_MAX: usize = 10;

/// A chain of certificates with its private key, and the names that it is for.
#[derive(Clone)]
pub struct Certificate {
    /// What it is called in configurations and messages.
    name: String,
    /// The DNS names that it is for, in lower case.
    names: Vec<String>,
    key: Arc<CertifiedKey>,
}

/// Why a certificate cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CertificateError {
    /// The text has no PEM section of a certificate.
    #[error("no certificate (PEM, \"BEGIN CERTIFICATE\")")]
    NoCertificate,
    /// The chain is too long.
    #[error("{0} certificates in one chain; at most {CHAIN_MAX}")]
    TooMany(usize),
    /// The text has no PEM section of a private key.
    #[error("no private key (PEM, PKCS #8, PKCS #1 or SEC 1): {0}")]
    NoKey(String),
    /// The key's kind is unknown, or it is not that of the certificate.
    #[error("{0}")]
    Key(String),
    /// The certificate cannot be read.
    #[error("{0}")]
    Certificate(String),
}

impl Certificate {
    /// Reads a chain, the server's own certificate first, and its private key, both as PEM.
    ///
    /// # Errors
    /// If either is missing or malformed, or they do not belong together.
    pub fn from_pem(
        provider: &CryptoProvider,
        name: &str,
        chain: &[u8],
        key: &[u8],
    ) -> Result<Self, CertificateError> {
        let chain: Result<Vec<CertificateDer<'static>>, _> = CertificateDer::pem_slice_iter(chain).collect();
        let chain = chain.map_err(|error| CertificateError::Certificate(error.to_string()))?;
        if chain.len() > CHAIN_MAX {
            return Err(CertificateError::TooMany(chain.len()));
        }
        let own = chain.first().ok_or(CertificateError::NoCertificate)?;
        let parsed =
            EndEntityCert::try_from(own).map_err(|error| CertificateError::Certificate(error.to_string()))?;
        let names = parsed.valid_dns_names().map(str::to_ascii_lowercase).collect();
        let key =
            PrivateKeyDer::from_pem_slice(key).map_err(|error| CertificateError::NoKey(error.to_string()))?;
        let key = CertifiedKey::from_der(chain, key, provider);
        let key = key.map_err(|error| CertificateError::Key(error.to_string()))?;
        Ok(Certificate { name: name.to_owned(), names, key: Arc::new(key) })
    }

    /// Returns its name in configurations.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the DNS names that it is for (RFC 5280 §4.2.1.6), in lower case.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    pub(crate) fn certified_key(&self) -> &CertifiedKey {
        &self.key
    }

    /// Returns the chain as DER, the server's own certificate first.
    #[must_use]
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.key.cert
    }
}

impl fmt::Debug for Certificate {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Certificates by the server name that a client asks for (RFC 6066 §3).
#[derive(Debug)]
pub(crate) struct ByServerName {
    exact: HashMap<String, Arc<CertifiedKey>>,
    /// By what follows the first label of the name: `*.example.com` is `example.com`.
    wildcards: HashMap<String, Arc<CertifiedKey>>,
    /// For clients that name none, or none of these.
    default: Arc<CertifiedKey>,
}

impl ByServerName {
    /// The first certificate is the default, and the first of several for the same name is used.
    pub(crate) fn new(certificates: &[Certificate]) -> Option<Self> {
        let default = Arc::clone(&certificates.first()?.key);
        let (mut exact, mut wildcards) = (HashMap::new(), HashMap::new());
        for certificate in certificates {
            for name in &certificate.names {
                let (map, name) = match name.strip_prefix("*.") {
                    Some(parent) => (&mut wildcards, parent),
                    None => (&mut exact, name.as_str()),
                };
                map.entry(name.to_owned()).or_insert_with(|| Arc::clone(&certificate.key));
            }
        }
        Some(ByServerName { exact, wildcards, default })
    }

    fn find(&self, name: Option<&str>) -> &Arc<CertifiedKey> {
        let found = name.and_then(|name| {
            let name = name.to_ascii_lowercase();
            let parent = name.split_once('.').map(|(_, parent)| parent);
            self.exact.get(&name).or_else(|| self.wildcards.get(parent?))
        });
        found.unwrap_or(&self.default)
    }
}

impl ResolvesServerCert for ByServerName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(self.find(hello.server_name())))
    }
}
