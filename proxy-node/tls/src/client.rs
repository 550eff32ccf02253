//! TLS towards servers: whom a session trusts, which name it verifies, and how it names itself.

mod store;

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::SingleCertAndKey;
use rustls::time_provider::TimeProvider;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use super::{Certificate, TlsVersion};

pub(crate) use store::Store;

/// Largest number of certificates of authorities: public ones are about 150.
const AUTHORITIES_MAX: usize = 1_024;

/// Whose certificates are trusted.
#[derive(Clone, Copy, Debug)]
pub enum Trust<'a> {
    /// Those that these authorities have signed, directly or not; as PEM.
    Authorities(&'a [u8]),
    /// The same of a system's collection, of which single certificates may be of kinds that are not known.
    System(&'a [u8]),
    /// Everybody's: whoever answers at the address is believed to be the server.
    Anybody,
}

/// What sessions towards the servers of one service have in common.
#[derive(Debug)]
pub struct ClientOptions<'a> {
    /// Whose certificates are trusted.
    pub trust: Trust<'a>,
    /// By which certificate the proxy names itself to servers that ask for one.
    pub certificate: Option<&'a Certificate>,
    /// The oldest version.
    pub least: TlsVersion,
    /// The application protocol that a server must choose (RFC 7301); `None`: none is offered.
    pub protocol: Option<&'a str>,
    /// The name of all servers; `None`: each has [its own](ClientTls::with_names).
    pub name: Option<&'a str>,
}

/// Why servers cannot be reached over TLS.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ClientError {
    /// The text has no PEM section of a certificate, or one that cannot be read.
    #[error("{0}")]
    Authority(String),
    /// The name is neither one of DNS nor an address.
    #[error("{0:?} is no name of a server")]
    Name(String),
    /// The provider of cryptography does not have what the versions need.
    #[error("{0}")]
    Provider(String),
}

/// How the servers of a service are reached over TLS. Sessions share it, and resume each other's.
#[derive(Clone)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
    sessions: Arc<Store>,
    name: Option<ServerName<'static>>,
    names: Arc<HashMap<SocketAddr, ServerName<'static>>>,
}

impl ClientTls {
    /// Makes it.
    ///
    /// # Errors
    /// If authorities or names are malformed, or the provider lacks what a version needs.
    pub fn new(
        (provider, time): (Arc<CryptoProvider>, Arc<dyn TimeProvider>),
        options: &ClientOptions<'_>,
    ) -> Result<Self, ClientError> {
        let versions: &[_] = match options.least {
            TlsVersion::Tls12 => &[&TLS13, &TLS12],
            TlsVersion::Tls13 => &[&TLS13],
        };
        let unfit = |error: Error| ClientError::Provider(error.to_string());
        let verifier = verifier(&provider, options.trust)?;
        let sessions = Arc::new(Store::new(Arc::clone(&time), !matches!(options.trust, Trust::Anybody)));
        let config = ClientConfig::builder_with_details(provider, time).with_protocol_versions(versions);
        let config = config.map_err(unfit)?.dangerous().with_custom_certificate_verifier(verifier);
        let mut config = match options.certificate {
            None => config.with_no_client_auth(),
            Some(certificate) => {
                let key = SingleCertAndKey::from(certificate.certified_key().clone());
                config.with_client_cert_resolver(Arc::new(key))
            }
        };
        config.alpn_protocols = options.protocol.iter().map(|name| name.as_bytes().to_vec()).collect();
        config.resumption = resumption(&sessions);
        config.enable_early_data = false; // it can be replayed
        let name = options.name.map(server_name).transpose()?;
        Ok(ClientTls { config: Arc::new(config), sessions, name, names: Arc::default() })
    }

    /// Returns the same for sessions in which no application protocol is asked for, such as checks over
    /// HTTP/1.1 of servers that speak HTTP/2 with clients. They resume only each other's.
    #[must_use]
    pub fn without_protocol(&self) -> Self {
        let sessions = Arc::new(self.sessions.empty());
        let mut config = ClientConfig::clone(&self.config);
        config.alpn_protocols.clear();
        config.resumption = resumption(&sessions);
        ClientTls { config: Arc::new(config), sessions, ..self.clone() }
    }

    /// Returns whether connections that were made with the other one may be used as those that are made with
    /// this one: their servers were verified in the same way, and none has another name now.
    #[must_use]
    pub fn keeps(&self, other: &Self) -> bool {
        let same = |(address, name)| other.names.get(address).is_none_or(|known| known == name);
        Arc::ptr_eq(&self.config, &other.config) && self.name == other.name && self.names.iter().all(same)
    }

    /// Sets the names of servers by their addresses. One without a name, and one whose name is none of DNS,
    /// must have a certificate for its address.
    #[must_use]
    pub fn with_names<'a>(self, names: impl Iterator<Item = (SocketAddr, &'a str)>) -> Self {
        let known = names.filter_map(|(address, name)| Some((address, server_name(name).ok()?)));
        ClientTls { names: Arc::new(known.collect()), ..self }
    }

    /// Returns the name that a server's certificate must be for. That of DNS is also asked for (SNI).
    pub(crate) fn name_of(&self, server: SocketAddr) -> ServerName<'static> {
        let name = self.name.as_ref().or_else(|| self.names.get(&server));
        name.cloned().unwrap_or_else(|| ServerName::IpAddress(server.ip().into()))
    }

    pub(crate) fn sessions(&self) -> &Arc<Store> {
        &self.sessions
    }

    pub(crate) fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.config)
    }
}

impl PartialEq for ClientTls {
    /// Whether sessions of one are sessions of the other.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.config, &other.config) && self.name == other.name && self.names == other.names
    }
}

impl Eq for ClientTls {}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTls").field("name", &self.name).finish_non_exhaustive()
    }
}

fn resumption(sessions: &Arc<Store>) -> Resumption {
    Resumption::store(Arc::clone(sessions) as Arc<_>)
}

fn server_name(name: &str) -> Result<ServerName<'static>, ClientError> {
    // RFC 6066 §3: without the last dot.
    let bare = name.strip_suffix('.').unwrap_or(name);
    ServerName::try_from(bare.to_owned()).map_err(|_| ClientError::Name(name.to_owned()))
}

fn verifier(
    provider: &Arc<CryptoProvider>,
    trust: Trust<'_>,
) -> Result<Arc<dyn ServerCertVerifier>, ClientError> {
    let (text, is_own) = match trust {
        Trust::Authorities(text) => (text, true),
        Trust::System(text) => (text, false),
        Trust::Anybody => return Ok(Arc::new(Anybody(provider.signature_verification_algorithms))),
    };
    let wrong = |error: String| ClientError::Authority(error);
    let mut roots = RootCertStore::empty();
    for (at, certificate) in CertificateDer::pem_slice_iter(text).enumerate() {
        if at == AUTHORITIES_MAX {
            return Err(wrong(format!("more than {AUTHORITIES_MAX} certificates")));
        }
        let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
        match roots.add(certificate) {
            Err(error) if is_own => return Err(wrong(error.to_string())),
            _ => {}
        }
    }
    if roots.is_empty() {
        return Err(wrong("no certificate (PEM, \"BEGIN CERTIFICATE\")".to_owned()));
    }
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    let verifier = verifier.build().map_err(|error| wrong(error.to_string()))?;
    Ok(verifier)
}

/// Verifies that the server has the key of the certificate that it presents, and nothing else.
#[derive(Debug)]
struct Anybody(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for Anybody {
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
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
