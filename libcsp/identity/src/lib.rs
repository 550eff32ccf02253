//! Identities: who a certificate is for, the certificates of this program as they lie on disk, and the two sides of
//! mutual TLS that follow them.
//!
//! A certificate names its holder by a URI, [`Identity`]. Programs read theirs from a folder ([`Folder`], [`Credentials`])
//! and notice when it changes: certificates are renewed, authorities replaced and holders revoked without a restart.
//! Issuing is the operator's (`cspctl pki`), not a daemon's.
#![forbid(unsafe_code)]

mod caller;
mod client;
mod credentials;
mod direct;
mod folder;
mod peer;
mod revocations;
mod signature;
mod uri;

pub use caller::{Access, Caller};
pub use client::{Wanted, client_config};
pub use credentials::{Credentials, CredentialsState};
pub use folder::{CA, CERTIFICATE, Folder, FolderError, KEY, REVOKED};
pub use peer::{Peer, PeerError};
pub use rustls::pki_types::UnixTime;
pub use signature::{SignError, Signature, SignatureError};
pub use uri::{Identity, IdentityError, IdentityRole};

/// The cryptography of all of CSP's TLS: ring's. Not the process' default, which a library could have set.
fn provider() -> std::sync::Arc<rustls::crypto::CryptoProvider> {
    std::sync::Arc::new(rustls::crypto::ring::default_provider())
}
