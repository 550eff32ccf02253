//! Signs statements that others read later. (TLS signs connections by itself.)
//!
//! A signature carries its signer's certificate. The cluster's authorities sign certificates directly
//! (`direct.rs`), so that this certificate is the whole chain.

use std::time::Duration;

use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::{CertificateError, Error, SignatureScheme};
use webpki::EndEntityCert;

use crate::folder::Folder;
use crate::peer::{Peer, PeerError};
use crate::provider;
use crate::uri::Identity;

/// Prefix of every signed message. It keeps a TLS handshake signature from being valid for a statement: what
/// TLS 1.3 signs begins with 64 spaces; TLS 1.2 has the signer's random bytes at 32 to 64; a transcript
/// begins with a message type.
const CONTEXT: &[u8; 64] = b"CSP statement, version 1, by the holder of a certificate of CSP\n";
/// Accepted signature algorithms, in order of preference: those that TLS 1.3 uses for certificates.
const SCHEMES: [SignatureScheme; 6] = [
    SignatureScheme::ECDSA_NISTP256_SHA256,
    SignatureScheme::ECDSA_NISTP384_SHA384,
    SignatureScheme::ED25519,
    SignatureScheme::RSA_PSS_SHA256,
    SignatureScheme::RSA_PSS_SHA384,
    SignatureScheme::RSA_PSS_SHA512,
];
/// Largest length of a certificate and of a signature, in bytes. Longer ones are rejected.
const CERTIFICATE_LEN_MAX: usize = 8 << 10;
const SIGNATURE_LEN_MAX: usize = 1 << 10;

/// The signature of a statement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Signature {
    /// The signer's certificate (DER).
    pub certificate: Vec<u8>,
    /// The algorithm: a SignatureScheme of TLS (RFC 8446 §4.2.3).
    pub scheme: u16,
    /// The signature itself.
    pub bytes: Vec<u8>,
}

/// Why a statement was not signed.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// The key supports none of the accepted algorithms.
    #[error("the key in key.pem is of no kind that signs statements; `cspctl pki issue` makes ECDSA P-256")]
    Kind,
    /// The cryptography library failed.
    #[error("signing failed: {0}")]
    Library(#[source] Error),
}

/// Why a signature is rejected.
#[derive(Debug, thiserror::Error)]
pub enum SignatureError {
    /// The certificate or signature is too long.
    #[error("its certificate or signature is too long")]
    TooLong,
    /// No trusted authority vouches for the certificate at the time in question.
    #[error("its signer's certificate is not accepted: {0}")]
    Certificate(String),
    /// The certificate identifies no holder.
    #[error("its signer's certificate names nobody: {0}")]
    Holder(#[from] PeerError),
    /// The signer belongs to another cluster.
    #[error("its signer {0} is of another cluster")]
    Cluster(Box<Identity>),
    /// The algorithm is unknown, or does not match the certificate's key.
    #[error("its algorithm {0:#06x} is none of those in use")]
    Scheme(u16),
    /// The signature does not match the statement.
    #[error("its signature is of another text or by another key")]
    Mismatch,
}

/// Returns the bytes that are signed for a statement.
fn message(statement: &str) -> Vec<u8> {
    [CONTEXT.as_slice(), statement.as_bytes()].concat()
}

/// Describes in words why a certificate is rejected.
fn describe(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(CertificateError::Revoked) => "it is revoked".to_owned(),
        Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            "none of the authorities in ca.pem has issued it".to_owned()
        }
        Error::InvalidCertificate(error) => error.to_string(),
        error => error.to_string(),
    }
}

impl Folder {
    /// Signs a statement with this program's key.
    pub fn sign(&self, statement: &str) -> Result<Signature, SignError> {
        let signer = self.key.key.choose_scheme(&SCHEMES).ok_or(SignError::Kind)?;
        let bytes = signer.sign(&message(statement)).map_err(SignError::Library)?;
        let certificate = self.holder.certificate.to_vec();
        Ok(Signature { certificate, scheme: signer.scheme().into(), bytes })
    }

    /// Verifies the signature of a statement, and the signer's certificate by the authorities and revocation
    /// lists of this folder at the time `at` (since the Unix epoch). Returns the signer, which is a member of
    /// this cluster with any role.
    pub fn verify(
        &self,
        statement: &str,
        signature: &Signature,
        at: Duration,
    ) -> Result<Peer, SignatureError> {
        if signature.certificate.len() > CERTIFICATE_LEN_MAX || signature.bytes.len() > SIGNATURE_LEN_MAX {
            return Err(SignatureError::TooLong);
        }
        let certificate = CertificateDer::from(signature.certificate.as_slice());
        let at = UnixTime::since_unix_epoch(at);
        let verified = self.client_verifier.verify_client_cert(&certificate, &[], at);
        verified.map_err(|error| SignatureError::Certificate(describe(&error)))?;
        let signer = Peer::of_chain(std::slice::from_ref(&certificate))?;
        if signer.identity.cluster != self.holder.identity.cluster {
            return Err(SignatureError::Cluster(Box::new(signer.identity)));
        }
        let scheme = SignatureScheme::from(signature.scheme);
        let unknown = SignatureError::Scheme(signature.scheme);
        if !SCHEMES.contains(&scheme) {
            return Err(unknown);
        }
        let mapping = provider().signature_verification_algorithms.mapping;
        let Some(algorithm) =
            mapping.iter().find(|(known, _)| *known == scheme).and_then(|(_, all)| all.first())
        else {
            return Err(unknown);
        };
        let key = EndEntityCert::try_from(&certificate).map_err(|_| SignatureError::Mismatch)?;
        let verified = key.verify_signature(*algorithm, &message(statement), &signature.bytes);
        verified.map(|()| signer).map_err(|_| SignatureError::Mismatch)
    }
}
