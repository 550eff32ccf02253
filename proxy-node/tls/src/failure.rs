//! Why a session fails, and of which class that is.

use rustls::{AlertDescription, CertificateError, Error};

/// Why a session failed. An alert for the peer waits to be sent where the protocol has one.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum Failure {
    /// The peer violated the protocol, or both have nothing in common.
    #[error("{0}")]
    Protocol(Error),
    /// The peer's connection ended without close_notify (RFC 8446 §6.1): bytes may be missing.
    #[error("the stream ended without close_notify")]
    Truncated,
    /// The keys may encrypt no more.
    #[error("the session's keys are used up")]
    KeysUsedUp,
    /// The client's certificate was verified, and names nobody who can be passed on.
    #[error("the client's certificate is too long, or its names are")]
    Unnamed,
    /// The server has not chosen the application protocol that is needed (RFC 7301).
    #[error("the server does not speak the application protocol that it was offered")]
    NoProtocol,
    /// The handshake was the answer to a challenge of an ACME authority (RFC 8737): nothing follows it.
    #[error("the handshake was that of an ACME authority")]
    Challenge,
}

/// Classes of failures, of which there are few: for counters and states.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum FailureClass {
    /// The certificate is for another name.
    Name,
    /// No authority that is trusted has signed the certificate.
    Untrusted,
    /// The certificate is not valid any more, or not yet.
    Expired,
    /// The certificate is wrong in another way.
    Certificate,
    /// The peer has refused the session by an alert.
    Alert,
    /// The application protocol is missing.
    NoProtocol,
    /// The stream ended without close_notify.
    Truncated,
    /// Whatever else: it is not TLS, or both have nothing in common.
    Protocol,
}

impl FailureClass {
    /// All of them, in the order of their [index](Self::index).
    pub const ALL: [FailureClass; 8] = [
        FailureClass::Name,
        FailureClass::Untrusted,
        FailureClass::Expired,
        FailureClass::Certificate,
        FailureClass::Alert,
        FailureClass::NoProtocol,
        FailureClass::Truncated,
        FailureClass::Protocol,
    ];

    /// Returns its place in [`ALL`](Self::ALL).
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Returns its name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            FailureClass::Name => "name",
            FailureClass::Untrusted => "untrusted",
            FailureClass::Expired => "expired",
            FailureClass::Certificate => "certificate",
            FailureClass::Alert => "alert",
            FailureClass::NoProtocol => "no_protocol",
            FailureClass::Truncated => "truncated",
            FailureClass::Protocol => "protocol",
        }
    }
}

impl Failure {
    /// Returns the alert that the peer has sent, if that is the reason.
    #[must_use]
    pub fn received_alert(&self) -> Option<AlertDescription> {
        match self {
            Failure::Protocol(Error::AlertReceived(alert)) => Some(*alert),
            _ => None,
        }
    }

    /// Returns its class.
    #[must_use]
    pub fn class(&self) -> FailureClass {
        match self {
            Failure::Protocol(Error::InvalidCertificate(error)) => of_certificate(error),
            Failure::Protocol(Error::AlertReceived(_)) => FailureClass::Alert,
            Failure::Protocol(Error::NoApplicationProtocol) | Failure::NoProtocol => FailureClass::NoProtocol,
            Failure::Truncated => FailureClass::Truncated,
            Failure::Unnamed => FailureClass::Certificate,
            Failure::Protocol(_) | Failure::KeysUsedUp | Failure::Challenge => FailureClass::Protocol,
        }
    }
}

fn of_certificate(error: &CertificateError) -> FailureClass {
    match error {
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            FailureClass::Name
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => FailureClass::Untrusted,
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => FailureClass::Expired,
        _ => FailureClass::Certificate,
    }
}
