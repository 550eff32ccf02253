//! The client's side of mutual TLS: certificate, key and trust are those in force when a connection is made.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::credentials::Credentials;
use crate::peer::Peer;
use crate::provider;

/// Verifies servers, and chooses this program's certificate, by what is in force.
#[derive(Debug)]
pub(crate) struct Follower(pub(crate) Credentials);

/// Returns a configuration for clients that always uses what is in force. Servers must have a certificate of this cluster
/// for the address or name that is connected to. Without credentials it trusts no server: only plain HTTP works.
pub fn client_config(credentials: Option<&Credentials>) -> ClientConfig {
    let builder = ClientConfig::builder_with_provider(provider());
    let builder = match builder.with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12]) {
        Ok(builder) => builder,
        // ring has cipher suites for both versions.
        Err(error) => unreachable!("{error}"),
    };
    let Some(credentials) = credentials else {
        return builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    };
    let mut config = builder
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Follower(credentials.clone())))
        .with_client_cert_resolver(Arc::new(Follower(credentials.clone())));
    config.resumption = Resumption::disabled();
    config
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
        let folder = self.0.current();
        let verifier = &folder.server_verifier;
        verifier.verify_server_cert(end_entity, &[], server_name, ocsp_response, now)?;
        let server = Peer::of_chain(std::slice::from_ref(end_entity))
            .map_err(|error| Error::General(format!("the server's certificate: {error}")))?;
        if server.identity.cluster != folder.holder.identity.cluster || !server.identity.role.serves() {
            return Err(CertificateError::ApplicationVerificationFailure.into());
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.current().server_verifier.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.current().server_verifier.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.current().server_verifier.supported_verify_schemes()
    }
}

impl ResolvesClientCert for Follower {
    fn resolve(
        &self,
        _root_hint_subjects: &[&[u8]],
        _schemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        Some(self.0.current().key.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}
