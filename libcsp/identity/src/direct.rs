//! Verification of clients whose certificate an authority has signed itself.
//!
//! The cluster's authorities have no others below them (pathlen 0). A client that sends more certificates than its own is
//! refused before they are looked at: searching a path among many that name each other takes a tenth of a second.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

/// Refuses chains of more than one certificate, and leaves the rest to another verifier.
#[derive(Debug)]
pub(crate) struct Direct(pub(crate) Arc<dyn ClientCertVerifier>);

/// Refuses certificates between one and its authority.
pub(crate) fn none_between(intermediates: &[CertificateDer<'_>]) -> Result<(), Error> {
    if intermediates.is_empty() { Ok(()) } else { Err(CertificateError::UnknownIssuer.into()) }
}

impl ClientCertVerifier for Direct {
    fn offer_client_auth(&self) -> bool {
        self.0.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.0.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        none_between(intermediates)?;
        self.0.verify_client_cert(end_entity, &[], now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
