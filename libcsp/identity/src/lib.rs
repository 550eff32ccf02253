//! Identities: who a certificate is for, the certificates of this program as they lie on disk, and the two sides of
//! mutual TLS that follow them.
//!
//! A certificate names its holder by a URI, [`Identity`]. Programs read theirs from a folder ([`Credentials`]) and
//! notice when it changes: certificates are renewed, authorities replaced and holders revoked without a restart.
//! Issuing is the operator's (`cspctl pki`), not a daemon's.
#![forbid(unsafe_code)]

mod uri;

pub use uri::{Identity, IdentityError, IdentityRole};
