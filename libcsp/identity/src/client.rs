//! The client's side of mutual TLS. Each new connection uses the certificate, key and authorities in force at
//! that moment.

use std::fmt;
use std::sync::Arc;

use csp_types::{NodeId, Role};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::credentials::Credentials;
use crate::peer::Peer;
use crate::provider;
use crate::uri::{Identity, IdentityRole};

/// The server that a client expects to reach. Its address alone does not identify it: one host can run
/// daemons of several tiers, and an address can move to another host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExpectedServer {
    /// A member of etcd, or a management node that has started its own etcd under its own identity.
    Etcd,
    /// Any management node of the cluster.
    Management,
    /// The daemon of this role with this node id.
    Node(Role, NodeId),
}

impl ExpectedServer {
    fn is(self, identity: &Identity) -> bool {
        match self {
            ExpectedServer::Etcd => matches!(identity.role, IdentityRole::Etcd | IdentityRole::MgmtNode),
            ExpectedServer::Management => identity.role == IdentityRole::MgmtNode,
            ExpectedServer::Node(role, id) => identity.role.node() == Some(role) && identity.id == id,
        }
    }
}

impl fmt::Display for ExpectedServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExpectedServer::Etcd => f.write_str("etcd"),
            ExpectedServer::Management => f.write_str("a management node"),
            ExpectedServer::Node(role, id) => write!(f, "{role}/{id}"),
        }
    }
}

/// Verifies servers and selects the client certificate by the credentials in force.
#[derive(Debug)]
pub(crate) struct Follower {
    credentials: Credentials,
    expected: ExpectedServer,
}

impl Follower {
    pub(crate) fn new(credentials: &Credentials, expected: ExpectedServer) -> Follower {
        Follower { credentials: credentials.clone(), expected }
    }
}

/// Returns a client configuration that always follows `credentials`. The server must be the one `expected`,
/// and its certificate must belong to this cluster and contain the address or name of the connection. Without
/// credentials no server is trusted, so that only plain HTTP works.
pub fn client_config(credentials: Option<&Credentials>, expected: ExpectedServer) -> ClientConfig {
    let builder = ClientConfig::builder_with_provider(provider());
    let builder = match builder.with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12]) {
        Ok(builder) => builder,
        // ring supports both TLS versions, so this cannot fail.
        Err(error) => unreachable!("{error}"),
    };
    let Some(credentials) = credentials else {
        return builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    };
    let mut config = builder
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Follower::new(credentials, expected)))
        .with_client_cert_resolver(Arc::new(Follower::new(credentials, expected)));
    config.resumption = Resumption::disabled();
    config
}

/// Returns the client configuration for servers outside of the cluster: their certificates must be issued by
/// one of the authorities in the PEM text `authorities`. No certificate of this program is shown. The error
/// says what is wrong with the text.
pub fn web_client_config(authorities: &[u8]) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(crate::folder::certificates(authorities)?);
    if added == 0 {
        return Err("has no certificate of an authority".to_owned());
    }
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| error.to_string())?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

impl ServerCertVerifier for Follower {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let folder = self.credentials.current();
        let verifier = &folder.server_verifier;
        verifier.verify_server_cert(end_entity, &[], server_name, ocsp_response, now)?;
        let server = Peer::of_chain(std::slice::from_ref(end_entity))
            .map_err(|error| Error::General(format!("the server's certificate: {error}")))?;
        if server.identity.cluster != folder.holder.identity.cluster || !server.identity.role.serves() {
            return Err(CertificateError::ApplicationVerificationFailure.into());
        }
        if !self.expected.is(&server.identity) {
            let (found, expected) = (server.identity, self.expected);
            return Err(Error::General(format!("the server is {found}, and not {expected}")));
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.credentials.current().server_verifier.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.credentials.current().server_verifier.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.credentials.current().server_verifier.supported_verify_schemes()
    }
}

impl ResolvesClientCert for Follower {
    fn resolve(
        &self,
        _root_hint_subjects: &[&[u8]],
        _schemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        Some(self.credentials.current().key.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}
