//! The operator's certificate authority: a folder that `cspctl pki` and the tests use.
//!
//! ```text
//! csp-pki/                 0700
//!   pki.json               cluster, authorities with their states, every certificate issued: the only source of truth
//!   ca-1.crt  ca-1.key     an authority; the key is 0600
//!   ca.pem                 certificates of the trusted authorities, one, or two during a rotation
//!   revoked.pem            one revocation list for each trusted authority
//!   issued/ROLE/ID/        an identity folder: certificate.pem key.pem ca.pem revoked.pem, ready to be copied to its host
//!   lock                   held by the one process that may write
//! ```
//!
//! Every file is replaced atomically. `pki.json` is written before the files that follow from it, and
//! [`Authority::open`] writes what a crash left out, so that a command that was interrupted can be run again.
//! Nothing here runs in a daemon: no daemon waits for the authority, and no daemon's host has its key.
//!
//! The time is an argument. Certificates follow RFC 5280.
#![forbid(unsafe_code)]

mod authority;
mod error;
mod files;
mod inspect;
mod registry;
mod request;
mod rotation;
mod serial;
mod signer;
#[cfg(test)]
mod tests;
mod timestamp;

pub use authority::{Authority, Issued, Revoked};
pub use error::PkiError;
pub use inspect::Inspected;
pub use registry::{AuthorityRecord, AuthorityState, CertificateRecord, Registry};
pub use request::{LIFETIME_DEFAULT, Request, RequestError};
pub use rotation::{Phase, Rotated};
pub use serial::Serial;
pub use timestamp::Timestamp;

/// Largest number of certificates in one registry.
pub const CERTIFICATES_MAX: usize = 100_000;
/// Default lifetime of an authority: ten years.
pub const AUTHORITY_LIFETIME_DEFAULT: std::time::Duration = std::time::Duration::from_secs(3650 * 86_400);
