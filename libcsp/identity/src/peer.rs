//! The peer of a TLS connection, as its certificate describes it.

use std::time::Duration;

use rustls::pki_types::{CertificateDer, UnixTime};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

use crate::uri::{Identity, IdentityError};

/// The holder of a certificate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    /// The holder's identity.
    pub identity: Identity,
    /// The certificate's serial number in lower-case hex.
    pub serial: String,
    /// Beginning of the certificate's validity, in seconds since the Unix epoch.
    pub not_before: i64,
    /// End of the certificate's validity, in seconds since the Unix epoch.
    pub not_after: i64,
    /// The certificate itself.
    pub certificate: CertificateDer<'static>,
}

/// Why a certificate identifies no holder.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PeerError {
    /// It is not an X.509 certificate.
    #[error("it is no X.509 certificate")]
    Certificate,
    /// It has no URI, or more than one.
    #[error("it has {0} URIs of the form csp://CLUSTER/ROLE/ID instead of one")]
    Uris(usize),
    /// Its URI is not an identity of CSP.
    #[error("its URI {0}")]
    Identity(#[from] IdentityError),
}

impl Peer {
    /// Reads the first certificate of a chain. It verifies nothing: the TLS handshake has done so.
    pub fn of_chain(chain: &[CertificateDer<'_>]) -> Result<Peer, PeerError> {
        let first = chain.first().ok_or(PeerError::Certificate)?;
        let (rest, certificate) = X509Certificate::from_der(first).map_err(|_| PeerError::Certificate)?;
        if !rest.is_empty() {
            return Err(PeerError::Certificate);
        }
        let names = certificate.subject_alternative_name().map_err(|_| PeerError::Certificate)?;
        let uris: Vec<&str> = names
            .iter()
            .flat_map(|names| &names.value.general_names)
            .filter_map(|name| match name {
                GeneralName::URI(uri) => Some(*uri),
                _ => None,
            })
            .collect();
        let [uri] = uris[..] else { return Err(PeerError::Uris(uris.len())) };
        Ok(Peer {
            identity: uri.parse()?,
            serial: hex(certificate.tbs_certificate.raw_serial()),
            not_before: certificate.validity().not_before.timestamp(),
            not_after: certificate.validity().not_after.timestamp(),
            certificate: first.clone().into_owned(),
        })
    }

    /// Returns the remaining validity of the certificate; zero when it has expired.
    pub fn life_left(&self, now: UnixTime) -> Duration {
        let end = u64::try_from(self.not_after).unwrap_or(0);
        Duration::from_secs(end.saturating_sub(now.as_secs()))
    }
}

/// Returns a serial number in hex, without leading zeros.
fn hex(serial: &[u8]) -> String {
    let digits: String = serial.iter().map(|byte| format!("{byte:02x}")).collect();
    digits.trim_start_matches('0').to_owned()
}
