//! Certificates of clients (RFC 8446 §4.3.2): by which authority they are verified, and whom they name.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::time_provider::TimeProvider;
use rustls::{Error, RootCertStore};
use x509_parser::prelude::{AttributeTypeAndValue, FromDer as _, X509Certificate, X509Name};

/// Largest number of certificates of authorities, and of revocation lists.
const AUTHORITIES_MAX: usize = 64;
/// Longest text of a distinguished name in bytes.
const NAME_LEN_MAX: usize = 1_024;
/// Longest serial number in bytes (RFC 5280 §4.1.2.2 allows 20).
const SERIAL_LEN_MAX: usize = 64;
/// Longest certificate of a client that is passed on, as DER, in bytes.
const CERTIFICATE_LEN_MAX: usize = 8 * 1024;

/// Why clients cannot be verified.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ClientsError {
    /// The text has no PEM section of a certificate, or one that cannot be read.
    #[error("{0}")]
    Authority(String),
    /// The same of revocation lists.
    #[error("{0}")]
    Revocation(String),
}

/// How certificates of clients are verified.
#[derive(Clone)]
pub struct ClientVerifier {
    verifier: Arc<dyn ClientCertVerifier>,
    time: Arc<dyn TimeProvider>,
}

impl ClientVerifier {
    /// Makes it from the certificates of authorities, and from their revocation lists if there are any, both
    /// as PEM. `required`: a client without a certificate is refused.
    ///
    /// With revocation lists a certificate of whose issuer there is none, or an old one, is refused, too.
    ///
    /// # Errors
    /// If either is malformed, or there is no certificate.
    pub fn from_pem(
        (provider, time): (Arc<CryptoProvider>, Arc<dyn TimeProvider>),
        authorities: &[u8],
        revoked: Option<&[u8]>,
        required: bool,
    ) -> Result<Self, ClientsError> {
        let wrong = |error: String| ClientsError::Authority(error);
        let mut roots = RootCertStore::empty();
        for (at, certificate) in CertificateDer::pem_slice_iter(authorities).enumerate() {
            if at == AUTHORITIES_MAX {
                return Err(wrong(format!("more than {AUTHORITIES_MAX} certificates")));
            }
            let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
            roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
        }
        if roots.is_empty() {
            return Err(wrong("no certificate (PEM, \"BEGIN CERTIFICATE\")".to_owned()));
        }
        let mut builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        if let Some(revoked) = revoked {
            let lists = CertificateRevocationListDer::pem_slice_iter(revoked).take(AUTHORITIES_MAX + 1);
            let lists: Result<Vec<_>, _> = lists.collect();
            let lists = lists.map_err(|error| ClientsError::Revocation(error.to_string()))?;
            if lists.len() > AUTHORITIES_MAX {
                let text = format!("more than {AUTHORITIES_MAX} revocation lists");
                return Err(ClientsError::Revocation(text));
            }
            if lists.is_empty() {
                let text = "no revocation list (PEM, \"BEGIN X509 CRL\")".to_owned();
                return Err(ClientsError::Revocation(text));
            }
            builder = builder.with_crls(lists).enforce_revocation_expiration();
        }
        if !required {
            builder = builder.allow_unauthenticated();
        }
        let verifier = builder.build().map_err(|error| ClientsError::Revocation(error.to_string()))?;
        Ok(ClientVerifier { verifier, time })
    }

    pub(crate) fn verifier(&self) -> Arc<dyn ClientCertVerifier> {
        Arc::clone(&self.verifier)
    }

    /// Verifies the chain of a session that was resumed: its certificate may have been revoked, or be too
    /// old, since the ticket was made.
    pub(crate) fn verify_again(&self, chain: Option<&[CertificateDer<'_>]>) -> Result<(), Error> {
        let Some((own, others)) = chain.and_then(<[_]>::split_first) else {
            return match self.verifier.client_auth_mandatory() {
                true => Err(Error::NoCertificatesPresented),
                false => Ok(()),
            };
        };
        let now = self.time.current_time().ok_or(Error::FailedToGetCurrentTime)?;
        self.verifier.verify_client_cert(own, others, now).map(drop)
    }
}

impl fmt::Debug for ClientVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientVerifier").finish_non_exhaustive()
    }
}

/// Whom a client's certificate names. The texts are visible ASCII.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientIdentity {
    /// The subject, as RFC 4514 writes it: `CN=alice,O=Example`.
    pub subject: Box<str>,
    /// The issuer.
    pub issuer: Box<str>,
    /// The serial number, in upper-case hex digits.
    pub serial: Box<str>,
    /// The certificate as the value of a `Client-Cert` field (RFC 9440 §2.2): base64 of its DER, between
    /// colons.
    pub certificate: Box<str>,
}

impl ClientIdentity {
    /// Reads a certificate that was verified. `None`: it cannot be read, or is longer than what is passed on.
    #[must_use]
    pub fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        if certificate.len() > CERTIFICATE_LEN_MAX {
            return None;
        }
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        let serial = parsed.raw_serial();
        let serial = if serial.len() > 1 { serial.strip_prefix(&[0]).unwrap_or(serial) } else { serial };
        if serial.len() > SERIAL_LEN_MAX {
            return None;
        }
        let mut hex = String::with_capacity(2 * serial.len());
        serial.iter().for_each(|byte| {
            let _ = write!(hex, "{byte:02X}"); // a string takes everything
        });
        Some(ClientIdentity {
            subject: distinguished_name(parsed.subject())?,
            issuer: distinguished_name(parsed.issuer())?,
            serial: hex.into(),
            certificate: format!(":{}:", STANDARD.encode(certificate)).into(),
        })
    }
}

/// The short names of RFC 4514 §3, and two that OpenSSL writes, by object identifier.
const SHORT: [(&str, &str); 11] = [
    ("2.5.4.3", "CN"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.6", "C"),
    ("2.5.4.9", "STREET"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("0.9.2342.19200300.100.1.1", "UID"),
    ("1.2.840.113549.1.9.1", "emailAddress"),
    ("2.5.4.5", "serialNumber"),
];

/// Writes a name as RFC 4514 does: the last part first.
fn distinguished_name(name: &X509Name<'_>) -> Option<Box<str>> {
    let mut out = String::new();
    let parts: Vec<_> = name.iter_rdn().collect();
    for part in parts.into_iter().rev() {
        for (at, attribute) in part.iter().enumerate() {
            match (out.is_empty(), at) {
                (true, _) => {}
                (false, 0) => out.push(','),
                (false, _) => out.push('+'),
            }
            write_attribute(&mut out, attribute);
            if out.len() > NAME_LEN_MAX {
                return None;
            }
        }
    }
    Some(out.into())
}

fn write_attribute(out: &mut String, attribute: &AttributeTypeAndValue<'_>) {
    let kind = attribute.attr_type().to_id_string();
    let short = SHORT.iter().find(|(known, _)| *known == kind).map(|(_, short)| *short);
    if let (Some(short), Ok(text)) = (short, attribute.as_str()) {
        let _ = write!(out, "{short}=");
        return escape(out, text);
    }
    // RFC 4514 §2.4: the value as DER, in hex digits.
    let value = attribute.attr_value();
    let len = value.data.len();
    let _ = match len {
        0..=127 => write!(out, "{kind}=#{:02x}{len:02x}", value.tag().0),
        _ => write!(out, "{kind}=#{:02x}82{len:04x}", value.tag().0),
    };
    value.data.iter().take(NAME_LEN_MAX).for_each(|byte| {
        let _ = write!(out, "{byte:02x}");
    });
}

/// RFC 4514 §2.4; and what is not visible ASCII as its bytes.
fn escape(out: &mut String, text: &str) {
    let bytes = text.as_bytes();
    for (at, byte) in bytes.iter().enumerate() {
        let is_edge = at == 0 || at + 1 == bytes.len();
        match byte {
            b'"' | b'+' | b',' | b';' | b'<' | b'>' | b'\\' => out.extend(['\\', char::from(*byte)]),
            b'#' if at == 0 => out.push_str("\\#"),
            b' ' if is_edge => out.push_str("\\ "),
            b' '..=b'~' => out.push(char::from(*byte)),
            _ => {
                let _ = write!(out, "\\{byte:02X}");
            }
        }
        if out.len() > 2 * NAME_LEN_MAX {
            return;
        }
    }
}
