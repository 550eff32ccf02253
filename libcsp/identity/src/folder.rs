//! Reads the folder of a program's identity: its certificate and key, the certificates of the authorities
//! that it trusts, and their revocation lists.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ServerConfig, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;

use crate::direct::Direct;
use crate::peer::{Peer, PeerError};
use crate::provider;
use crate::revocations::Revocations;

/// File with this program's certificate in PEM. Certificates between it and the authority's may follow.
pub const CERTIFICATE: &str = "certificate.pem";
/// File with the private key, in PEM (PKCS #8).
pub const KEY: &str = "key.pem";
/// File with the certificates of trusted authorities in PEM: one, or two during a rotation.
pub const CA: &str = "ca.pem";
/// File with the authorities' revocation lists in PEM (RFC 5280 §5). Optional.
pub const REVOKED: &str = "revoked.pem";

/// Largest size of a file, in bytes. A revocation list of 100,000 certificates takes 4 MiB.
const FILE_LEN_MAX: u64 = 16 << 20;
/// Largest number of trusted authorities.
const AUTHORITIES_MAX: usize = 16;

/// Why an identity folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// A file cannot be read.
    #[error("{path}: {source}; `cspctl pki issue` makes it")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A file's content is invalid.
    #[error("{path}: {problem}")]
    Content {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The certificate names no holder.
    #[error("{path}: {source}")]
    Holder {
        /// Path of the certificate's file.
        path: PathBuf,
        /// What is wrong.
        source: PeerError,
    },
}

/// The content of an identity folder, checked and ready for use.
#[derive(Debug)]
pub struct Folder {
    /// The holder of the certificate, that is, this program.
    pub holder: Peer,
    /// Certificate and key in PEM, for libraries that do not accept rustls' types.
    pub(crate) pem: Pem,
    pub(crate) key: Arc<CertifiedKey>,
    pub(crate) server_verifier: Arc<dyn ServerCertVerifier>,
    pub(crate) client_verifier: Arc<dyn ClientCertVerifier>,
    pub(crate) server_config: Arc<ServerConfig>,
    pub(crate) revocations: Revocations,
}

/// The authorities that a folder trusts.
struct Trust {
    roots: Arc<RootCertStore>,
    lists: Vec<CertificateRevocationListDer<'static>>,
    revocations: Revocations,
}

/// Certificate and key in PEM.
pub(crate) struct Pem {
    pub(crate) certificate: Vec<u8>,
    pub(crate) key: Vec<u8>,
}

impl std::fmt::Debug for Pem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pem")
    }
}

impl Folder {
    /// Reads and checks the folder at `path`. Expiry is not checked here: peers check it in each handshake.
    pub fn read(path: &Path) -> Result<Folder, FolderError> {
        let pem = Pem { certificate: read(&path.join(CERTIFICATE))?, key: read(&path.join(KEY))? };
        let content = |file: &str| {
            let path = path.join(file);
            move |problem: String| FolderError::Content { path, problem }
        };
        let chain = certificates(&pem.certificate).map_err(content(CERTIFICATE))?;
        let holder = Peer::of_chain(&chain)
            .map_err(|source| FolderError::Holder { path: path.join(CERTIFICATE), source })?;
        let key = PrivateKeyDer::from_pem_slice(&pem.key)
            .map_err(|error| content(KEY)(format!("has no private key in PEM: {error}")))?;
        let key = CertifiedKey::from_der(chain, key, &provider())
            .map_err(|error| content(KEY)(format!("does not fit {CERTIFICATE}: {error}")))?;
        Folder::build(holder, pem, Arc::new(key), trust(path)?).map_err(content(CA))
    }

    fn build(holder: Peer, pem: Pem, key: Arc<CertifiedKey>, trust: Trust) -> Result<Folder, String> {
        let Trust { roots, lists, revocations } = trust;
        // An authority without a list has revoked nothing. Intermediate certificates are this authority's
        // own.
        let server_verifier = WebPkiServerVerifier::builder_with_provider(roots.clone(), provider())
            .with_crls(lists.clone())
            .only_check_end_entity_revocation()
            .allow_unknown_revocation_status()
            .build()
            .map_err(|error| error.to_string())?;
        // Clients without a certificate are accepted: public routes are open to them, and browsers use
        // sessions.
        let client_verifier = WebPkiClientVerifier::builder_with_provider(roots, provider())
            .with_crls(lists)
            .only_check_end_entity_revocation()
            .allow_unknown_revocation_status()
            .allow_unauthenticated()
            .build()
            .map_err(|error| error.to_string())?;
        let client_verifier: Arc<dyn ClientCertVerifier> = Arc::new(Direct(client_verifier));
        let server_config =
            server_config(&key, client_verifier.clone()).map_err(|error| error.to_string())?;
        Ok(Folder { holder, pem, key, server_verifier, client_verifier, server_config, revocations })
    }
}

/// Returns the TLS configuration of servers. Sessions are not resumed, so that every connection verifies the
/// peer's certificate.
fn server_config(
    key: &Arc<CertifiedKey>,
    verifier: Arc<dyn ClientCertVerifier>,
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let builder = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?;
    let resolver = Arc::new(rustls::sign::SingleCertAndKey::from(key.clone()));
    let mut config = builder.with_client_cert_verifier(verifier).with_cert_resolver(resolver);
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Reads the certificates of the trusted authorities and their revocation lists.
fn trust(path: &Path) -> Result<Trust, FolderError> {
    let content = |file: &str, problem: String| FolderError::Content { path: path.join(file), problem };
    let authorities = certificates(&read(&path.join(CA))?).map_err(|problem| content(CA, problem))?;
    if authorities.len() > AUTHORITIES_MAX {
        let problem = format!("has {} certificates; allowed are {AUTHORITIES_MAX}", authorities.len());
        return Err(content(CA, problem));
    }
    let mut roots = RootCertStore::empty();
    for authority in authorities.clone() {
        roots.add(authority).map_err(|error| content(CA, format!("has no usable authority: {error}")))?;
    }
    let lists = match read(&path.join(REVOKED)) {
        Ok(text) => revocation_lists(&text).map_err(|problem| content(REVOKED, problem))?,
        Err(FolderError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error),
    };
    let revocations = Revocations::of(&authorities, &lists).map_err(|problem| content(REVOKED, problem))?;
    Ok(Trust { roots: Arc::new(roots), lists, revocations })
}

/// Returns the revocation lists in the file. A file without a list was truncated: no writer produces one.
fn revocation_lists(pem: &[u8]) -> Result<Vec<CertificateRevocationListDer<'static>>, String> {
    let lists = CertificateRevocationListDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    match lists {
        Ok(lists) if lists.is_empty() => Err("has no list of revoked certificates in PEM".to_owned()),
        Ok(lists) => Ok(lists),
        Err(error) => Err(format!("has no list of revoked certificates in PEM: {error}")),
    }
}

pub(crate) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let all = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    match all {
        Ok(all) if all.is_empty() => Err("has no certificate in PEM".to_owned()),
        Ok(all) => Ok(all),
        Err(error) => Err(format!("has no certificate in PEM: {error}")),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, FolderError> {
    let of_path = |source| FolderError::File { path: path.to_owned(), source };
    let len = std::fs::metadata(path).map_err(of_path)?.len();
    if len > FILE_LEN_MAX {
        let problem = format!("is longer than {} MiB", FILE_LEN_MAX >> 20);
        return Err(FolderError::Content { path: path.to_owned(), problem });
    }
    std::fs::read(path).map_err(of_path)
}

/// A fingerprint of the folder's files. It differs once a file was written or replaced.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Stamp([Option<(u64, u64, i64, i64)>; 4]);

impl Stamp {
    /// Reads the metadata of the files.
    pub(crate) fn of(path: &Path) -> Stamp {
        Stamp([CERTIFICATE, KEY, CA, REVOKED].map(|file| {
            let found = std::fs::metadata(path.join(file)).ok()?;
            Some((found.ino(), found.len(), found.mtime(), found.mtime_nsec()))
        }))
    }
}
