//! What a service offers: versions, application protocols, certificates.

use std::fmt;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::server::ProducesTickets;
use rustls::time_provider::TimeProvider;
use rustls::version::{TLS12, TLS13};
use rustls::{ServerConfig, SignatureAlgorithm};

use super::certificates::ByServerName;
use super::{Certificate, CertificateError, ClientVerifier, TlsChallenges};

/// A version of the protocol.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum TlsVersion {
    /// RFC 5246, with ciphers that authenticate and keys that are forward secret.
    #[default]
    Tls12,
    /// RFC 8446.
    Tls13,
}

/// Why a service cannot offer what it is to offer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigError {
    /// There is no certificate.
    #[error("no certificate")]
    NoCertificate,
    /// A certificate cannot be used.
    #[error("certificate {name}: {error}")]
    Certificate {
        /// Its name.
        name: String,
        /// What is wrong.
        error: CertificateError,
    },
    /// The provider of cryptography does not have what the versions need.
    #[error("{0}")]
    Provider(String),
}

/// What a service offers. Sessions share it.
#[derive(Clone)]
pub struct ServerTls {
    config: Arc<ServerConfig>,
    /// How clients' certificates are verified; `None`: they are not asked for one.
    clients: Option<ClientVerifier>,
    /// Whether a handshake may take long.
    is_dear: bool,
    /// The challenges under way of an ACME authority.
    challenges: Option<TlsChallenges>,
}

impl ServerTls {
    /// Makes it from certificates, of which the first is for clients that name none of the others' names, or
    /// none at all. `protocols` (ALPN, RFC 7301) are in the order of preference; none: any client is
    /// accepted.
    ///
    /// # Errors
    /// If there is no certificate, or the provider lacks what a version needs.
    pub fn new(
        with: (Arc<CryptoProvider>, Arc<dyn TimeProvider>),
        certificates: &[Certificate],
        least: TlsVersion,
        protocols: &[String],
        tickets: Option<Arc<dyn ProducesTickets>>,
    ) -> Result<Self, ConfigError> {
        ServerTls::with_clients(with, certificates, least, protocols, tickets, None)
    }

    /// As [`new`](Self::new); clients are asked for a certificate if `clients` says how it is verified.
    ///
    /// # Errors
    /// As of [`new`](Self::new).
    pub fn with_clients(
        (provider, time): (Arc<CryptoProvider>, Arc<dyn TimeProvider>),
        certificates: &[Certificate],
        least: TlsVersion,
        protocols: &[String],
        tickets: Option<Arc<dyn ProducesTickets>>,
        clients: Option<ClientVerifier>,
    ) -> Result<Self, ConfigError> {
        let resolver = ByServerName::new(certificates).ok_or(ConfigError::NoCertificate)?;
        let versions: &[_] = match least {
            TlsVersion::Tls12 => &[&TLS13, &TLS12],
            TlsVersion::Tls13 => &[&TLS13],
        };
        let config = ServerConfig::builder_with_details(provider, time).with_protocol_versions(versions);
        let config = config.map_err(|error| ConfigError::Provider(error.to_string()))?;
        let config = match &clients {
            None => config.with_no_client_auth(),
            Some(clients) => config.with_client_cert_verifier(clients.verifier()),
        };
        let mut config = config.with_cert_resolver(Arc::new(resolver));
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        // 0-RTT can be replayed.
        config.max_early_data_size = 0;
        config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        match tickets {
            Some(tickets) => config.ticketer = tickets,
            None => config.send_tls13_tickets = 0,
        }
        let is_rsa = |it: &Certificate| it.certified_key().key.algorithm() == SignatureAlgorithm::RSA;
        let is_dear = clients.is_some() || certificates.iter().any(is_rsa);
        Ok(ServerTls { config: Arc::new(config), clients, is_dear, challenges: None })
    }

    /// Returns whether a handshake may take long: a key is of RSA, whose signature takes a millisecond, or
    /// clients send chains of certificates.
    #[must_use]
    pub fn is_dear(&self) -> bool {
        self.is_dear
    }

    /// Has handshakes count as [dear](Self::is_dear), whatever the keys are.
    #[must_use]
    pub fn with_dear_handshakes(self) -> Self {
        ServerTls { is_dear: true, ..self }
    }

    /// Returns the same with the challenges under way of an ACME authority, which new sessions answer.
    #[must_use]
    pub fn answering(self, challenges: Option<TlsChallenges>) -> Self {
        ServerTls { challenges, ..self }
    }

    pub(crate) fn challenges(&self) -> Option<&TlsChallenges> {
        self.challenges.as_ref()
    }

    /// Returns how clients' certificates are verified.
    pub(crate) fn clients(&self) -> Option<&ClientVerifier> {
        self.clients.as_ref()
    }

    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }
}

impl PartialEq for ServerTls {
    /// Whether sessions of one are sessions of the other.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.config, &other.config) && self.challenges == other.challenges
    }
}

impl Eq for ServerTls {}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls")
            .field("protocols", &self.config.alpn_protocols.len())
            .finish_non_exhaustive()
    }
}
