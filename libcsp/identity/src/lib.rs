//! Identities: the holder that a certificate names, this program's certificates on disk, and both sides of
//! mutual TLS.
//!
//! A certificate names its holder by a URI, [`Identity`]. A program reads its certificate from a folder
//! ([`Folder`], [`Credentials`]) and follows changes of the files, so that certificates are renewed,
//! authorities replaced and holders revoked without a restart. Issuing certificates belongs to the operator
//! (`cspctl pki`), not to daemons.
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
pub use client::{ExpectedServer, client_config, web_client_config};
pub use credentials::{Credentials, CredentialsState};
pub use folder::{CA, CERTIFICATE, Folder, FolderError, KEY, REVOKED};
pub use peer::{Peer, PeerError};
pub use rustls::pki_types::UnixTime;
pub use signature::{SignError, Signature, SignatureError};
pub use uri::{Identity, IdentityError, IdentityRole};

/// Returns the cryptography provider (ring) of all TLS in CSP. The process-wide default is not used, since
/// another library could have set it.
fn provider() -> std::sync::Arc<rustls::crypto::CryptoProvider> {
    std::sync::Arc::new(rustls::crypto::ring::default_provider())
}
