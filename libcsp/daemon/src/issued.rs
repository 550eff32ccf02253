//! Certificates of services that were obtained from an authority, as files of a node: one file for each,
//! with chain and private key, mode 600. Management nodes give them to proxies and to each other.
//!
//! ```text
//!   leader ── PUT /v1/certificates/NAME ──▶ NAME.pem ──▶ the next connections
//!          ◀─ GET /v1/certificates ──────── what is there
//! ```
//! Of two certificates for the same names, that of the later order counts, whenever they end: the leader's
//! own new one replaces all others. Self-signed ones and those of implausible times are refused.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::{DefaultBodyLimit, Extension, Path as Name, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, put};
use axum::{Json, Router};
use csp_api::certificates::{Bundle, CERTIFICATE_LEN_MAX, Ordered, StoredCertificate, StoredCertificates};
use csp_api::mgmt::ErrorBody;
use csp_identity::{Caller, IdentityRole};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use sha2::{Digest as _, Sha256};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::clock::unix_now_s;
use crate::private_file;

/// Certificates that a node keeps.
const STORED_MAX: usize = 1024;
/// Certificates in a chain.
const CHAIN_MAX: usize = 10;
/// Longest name of a certificate.
const NAME_LEN_MAX: usize = 253;
/// Longest URL of a directory.
const DIRECTORY_LEN_MAX: usize = 2048;
const DAY_S: i64 = 86_400;
/// Longest lifetime of a certificate, in days: public authorities issue none of more than 398.
const LIFETIME_DAYS_MAX: i64 = 400;

/// The certificates of a node.
#[derive(Debug)]
pub struct Issued {
    folder: PathBuf,
    writing: Mutex<()>,
    changes: AtomicU64,
}

/// Returns what a certificate with its key is for. The error says what is wrong with it.
pub fn read(name: &str, bundle: &Bundle) -> Result<StoredCertificate, String> {
    let chain: Result<Vec<CertificateDer<'static>>, _> =
        CertificateDer::pem_slice_iter(bundle.chain.as_bytes()).collect();
    let chain = chain.map_err(|error| format!("the chain cannot be read: {error}"))?;
    if chain.len() > CHAIN_MAX {
        return Err(format!("{} certificates in one chain; at most {CHAIN_MAX}", chain.len()));
    }
    let own = chain.first().ok_or("there is no certificate (PEM, \"BEGIN CERTIFICATE\")")?.clone();
    let key = PrivateKeyDer::from_pem_slice(bundle.key.as_bytes());
    let key = key.map_err(|error| format!("the private key cannot be read: {error}"))?;
    CertifiedKey::from_der(chain, key, &ring::default_provider())
        .map_err(|error| format!("key and certificate: {error}"))?;
    let (_, parsed) = X509Certificate::from_der(&own)
        .map_err(|error| format!("the certificate cannot be read: {error}"))?;
    if parsed.issuer().as_raw() == parsed.subject().as_raw() {
        return Err("the certificate is self-signed: no authority has issued it".to_owned());
    }
    let others = parsed.subject_alternative_name().ok().flatten();
    let names = others.iter().flat_map(|of| &of.value.general_names).filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase().into()),
        _ => None,
    });
    let sha256 = Sha256::new().chain_update(&bundle.chain).chain_update(&bundle.key).finalize();
    Ok(StoredCertificate {
        name: name.into(),
        sha256: sha256.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into(),
        names: names.collect(),
        issuer: parsed.issuer().to_string().into(),
        not_before_s: parsed.validity().not_before.timestamp(),
        not_after_s: parsed.validity().not_after.timestamp(),
        ordered: bundle.ordered.clone(),
    })
}

/// Checks the times of a certificate. The error says what is wrong with them.
fn check_times(of: &StoredCertificate, now_s: i64) -> Result<(), String> {
    if of.not_before_s > now_s.saturating_add(DAY_S) {
        return Err("the certificate is valid from more than a day from now on: is a clock wrong?".to_owned());
    }
    let days = of.not_after_s.saturating_sub(of.not_before_s) / DAY_S;
    if days > LIFETIME_DAYS_MAX {
        return Err(format!("the certificate is for {days} days; at most {LIFETIME_DAYS_MAX}"));
    }
    Ok(())
}

/// Writes a file of mode 600, whole or not at all.
pub fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    let draft = path.with_extension("draft");
    let _ = fs::remove_file(&draft);
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&draft)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

fn is_name(name: &str) -> bool {
    let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    (1..=NAME_LEN_MAX).contains(&name.len()) && name.bytes().all(legal) && !name.starts_with('.')
}

impl Issued {
    /// Those in a folder, which is made with the first one.
    pub fn new(folder: PathBuf) -> Arc<Self> {
        Arc::new(Issued { folder, writing: Mutex::default(), changes: AtomicU64::new(0) })
    }

    /// Returns the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the file of a certificate.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.pem"))
    }

    /// Returns a number that rises with each certificate that is stored.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Reads a certificate.
    ///
    /// # Errors
    /// It is not there, or its file cannot be used.
    pub fn load(&self, name: &str) -> Result<(Bundle, StoredCertificate), String> {
        if !is_name(name) {
            return Err(format!("{name:?} names no certificate"));
        }
        let path = self.file(name);
        let text = private_file::read(&path, CERTIFICATE_LEN_MAX as u64)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        let (ordered, key, chain) = parts(&text);
        let bundle = Bundle { chain: chain.to_owned(), key: key.to_owned(), ordered };
        let stored = read(name, &bundle).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok((bundle, stored))
    }

    /// Makes the folder and writes to it.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn check_writable(&self) -> Result<(), String> {
        let cannot = |error| format!("{}: cannot be written: {error}", self.folder.display());
        fs::create_dir_all(&self.folder).map_err(cannot)?;
        let probe = self.folder.join("probe");
        write_private(&probe, &" ".repeat(PROBE_LEN)).map_err(cannot)?;
        fs::remove_file(&probe).map_err(cannot)
    }

    /// Stores a certificate, unless the one that is there is for the same names and of a later order.
    /// Returns what is there afterwards.
    ///
    /// # Errors
    /// It is none, or cannot be written.
    pub fn put(&self, name: &str, bundle: &Bundle, now_s: i64) -> Result<StoredCertificate, String> {
        if !is_name(name) {
            return Err(format!("{name:?} names no certificate"));
        }
        let directory = &*bundle.ordered.directory;
        if directory.len() > DIRECTORY_LEN_MAX || !directory.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("the directory of the authority is no URL".to_owned());
        }
        let new = read(name, bundle)?;
        check_times(&new, now_s)?;
        let _alone = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let names = |of: &StoredCertificate| {
            let mut names = of.names.clone();
            names.sort();
            names
        };
        match self.load(name) {
            Ok((_, old)) if old.sha256 == new.sha256 => return Ok(old),
            Ok((_, old)) if old.not_after_s <= now_s && new.not_after_s > now_s => {}
            Ok((_, old)) if names(&old) == names(&new) && old.ordered_s(now_s) > new.ordered_s(now_s) => {
                return Err(format!("the certificate {name} that is there was ordered later"));
            }
            Ok((_, old)) if names(&old) == names(&new) && new.not_after_s <= now_s.min(old.not_after_s) => {
                return Err(format!("this certificate {name} has ended"));
            }
            _ => {}
        }
        if self.names().len() >= STORED_MAX && !self.file(name).exists() {
            return Err(format!("there are {STORED_MAX} certificates in {}", self.folder.display()));
        }
        let cannot = |error| format!("{}: cannot be written: {error}", self.folder.display());
        fs::create_dir_all(&self.folder).map_err(cannot)?;
        let Ordered { at_s, directory } = &bundle.ordered;
        let text = format!("{ORDERED}{at_s} {directory}\n{}{SEPARATOR}{}", bundle.key, bundle.chain);
        write_private(&self.file(name), &text).map_err(cannot)?;
        self.changes.fetch_add(1, Ordering::Release);
        Ok(new)
    }

    /// Returns the certificates that are there and can be used.
    pub fn stored(&self) -> Vec<StoredCertificate> {
        self.names().iter().filter_map(|name| Some(self.load(name).ok()?.1)).collect()
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let name = |entry: fs::DirEntry| Some(entry.file_name().to_str()?.strip_suffix(".pem")?.to_owned());
        let mut names: Vec<String> = entries.filter_map(name).filter(|name| is_name(name)).collect();
        names.sort();
        names.truncate(STORED_MAX);
        names
    }
}

/// Between key and chain in a file: PEM ignores text outside of its sections.
const SEPARATOR: &str = "# The chain, the server's own certificate first:\n";
/// Begins the first line of a file: the order that the certificate comes from.
const ORDERED: &str = "# Ordered: ";
/// Bytes that are written to find out whether there is room for a certificate.
const PROBE_LEN: usize = 16 << 10;

/// Returns the parts of a file: order, key and chain.
fn parts(text: &str) -> (Ordered, &str, &str) {
    let first = text.strip_prefix(ORDERED).and_then(|rest| rest.split_once('\n'));
    let (line, rest) = first.unwrap_or(("", text));
    let (at_s, directory) = line.split_once(' ').unwrap_or((line, ""));
    let ordered = Ordered { at_s: at_s.parse().unwrap_or(0), directory: directory.into() };
    let (key, chain) = rest.split_once(SEPARATOR).unwrap_or(("", rest));
    (ordered, key, chain)
}

/// What a node says of itself beside its certificates.
pub type Describe = Arc<dyn Fn(StoredCertificates) -> StoredCertificates + Send + Sync>;

#[derive(Clone)]
struct Served(Arc<Issued>, Describe);

/// Returns the routes of a node's certificates. Private keys go to and come from management nodes only.
pub fn routes(issued: Arc<Issued>, describe: Describe) -> Router {
    Router::new()
        .route("/v1/certificates", get(list))
        .route(
            "/v1/certificates/{name}",
            put(store).get(fetch).layer(DefaultBodyLimit::max(CERTIFICATE_LEN_MAX)),
        )
        .with_state(Served(issued, describe))
}

/// Returns the refusal of a caller that is no management node.
///
/// # Errors
/// The answer with the refusal.
pub fn require_management(caller: &Caller) -> Result<(), Box<Response>> {
    let is_mgmt = caller.identity().is_some_and(|identity| identity.role == IdentityRole::MgmtNode);
    match is_mgmt || matches!(caller, Caller::Local) {
        true => Ok(()),
        false => Err(Box::new(refuse(StatusCode::FORBIDDEN, "this is for management nodes".to_owned()))),
    }
}

/// Returns an answer with an error.
pub fn refuse(status: StatusCode, error: String) -> Response {
    (status, Json(ErrorBody { error, ..ErrorBody::default() })).into_response()
}

/// Runs what waits for the disk on a thread that may.
async fn on_disk<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Response> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| refuse(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}

async fn list(State(Served(issued, describe)): State<Served>) -> Response {
    let stored = on_disk(move || issued.stored()).await;
    match stored {
        Ok(certificates) => {
            Json(describe(StoredCertificates { certificates, ..StoredCertificates::default() }))
                .into_response()
        }
        Err(response) => response,
    }
}

async fn fetch(
    State(Served(issued, _)): State<Served>,
    Extension(caller): Extension<Caller>,
    Name(name): Name<String>,
) -> Response {
    if let Err(refused) = require_management(&caller) {
        return *refused;
    }
    match on_disk(move || issued.load(&name)).await {
        Ok(Ok((bundle, _))) => Json(bundle).into_response(),
        Ok(Err(error)) => refuse(StatusCode::NOT_FOUND, error),
        Err(response) => response,
    }
}

async fn store(
    State(Served(issued, _)): State<Served>,
    Extension(caller): Extension<Caller>,
    Name(name): Name<String>,
    Json(bundle): Json<Bundle>,
) -> Response {
    if let Err(refused) = require_management(&caller) {
        return *refused;
    }
    let of = name.clone();
    match on_disk(move || issued.put(&name, &bundle, i64::try_from(unix_now_s()).unwrap_or(i64::MAX))).await {
        Ok(Ok(_)) => {
            tracing::info!(certificate = of, "a certificate was received");
            StatusCode::NO_CONTENT.into_response()
        }
        Ok(Err(error)) => {
            tracing::warn!(certificate = of, error, "a certificate was refused");
            refuse(StatusCode::UNPROCESSABLE_ENTITY, error)
        }
        Err(response) => response,
    }
}

#[cfg(test)]
mod tests;
