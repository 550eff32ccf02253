//! Errors of operations on an authority's folder.

use std::io;
use std::path::PathBuf;

use crate::{CERTIFICATES_MAX, RequestError, Timestamp};

/// Why an operation on the folder failed. Nothing was changed, except possibly with [`PkiError::Write`].
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // The messages describe the fields.
pub enum PkiError {
    /// The folder has no authority.
    #[error("{dir} is no CA folder: it has no pki.json; `cspctl pki init --cluster NAME` makes one", dir = .dir.display())]
    Missing { dir: PathBuf },
    /// The folder already has an authority.
    #[error("{dir} is the CA folder of cluster {cluster} already", dir = .dir.display())]
    Exists { dir: PathBuf, cluster: String },
    /// The folder has other content.
    #[error("{dir} has files and is no CA folder; name one that does not exist yet", dir = .dir.display())]
    Foreign { dir: PathBuf },
    /// Another process holds the folder's lock.
    #[error("{dir} is in use by {holder}; only one command at a time may change it, try again when that one has ended", dir = .dir.display())]
    Busy { dir: PathBuf, holder: String },
    /// A file cannot be read.
    #[error("cannot read {path}: {source}", path = .path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A file or folder cannot be written.
    #[error("cannot write {path}: {source}", path = .path.display())]
    Write { path: PathBuf, source: io::Error },
    /// The content of a file was not written by this crate.
    #[error("{path} is damaged: {problem}; restore the CA folder from its backup", path = .path.display())]
    Damaged { path: PathBuf, problem: String },
    /// A private key is readable by others.
    #[error("{path} has mode {mode:04o} and can be read by others; `chmod 600` it, or replace the authority if somebody has read it", path = .path.display())]
    Exposed { path: PathBuf, mode: u32 },
    /// No authority can meet the request.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The certificate would outlive the authority that signs it.
    #[error(
        "authority {authority} ends at {end}, before a certificate until {wanted} does; ask for a shorter lifetime, or replace the authority (`cspctl pki rotate start`)"
    )]
    OutlivesAuthority { authority: u32, end: Timestamp, wanted: Timestamp },
    /// The system's time is before the beginning of the authority's validity.
    #[error("the clock says {now}, but authority {authority} is valid from {begin} only; set the clock")]
    Clock { now: Timestamp, authority: u32, begin: Timestamp },
    /// The registry of certificates is full.
    #[error(
        "the CA folder has records of {CERTIFICATES_MAX} certificates that have not expired, the most it can have"
    )]
    Full,
    /// No certificate was ever issued to the owner.
    #[error("no certificate was ever issued to {owner}; `cspctl pki list` shows those that were")]
    NotIssued { owner: String },
    /// No rotation is in progress.
    #[error("no rotation is under way; `cspctl pki rotate start` begins one")]
    NotStarted,
    /// The new authority does not issue certificates yet.
    #[error(
        "authority {next} does not issue yet; distribute ca.pem to all hosts, then `cspctl pki rotate switch`"
    )]
    NotSwitched { next: u32 },
    /// Certificates of the old authority are still in use.
    #[error("authority {authority} is still needed by {}; issue new certificates to them and distribute those first, or revoke theirs", some(.owners))]
    InUse { authority: u32, owners: Vec<String> },
    /// The certificate or revocation list could not be created.
    #[error("cannot sign {what}: {source}")]
    Sign { what: String, source: rcgen::Error },
}

/// Lists the first owners, and the number of further ones.
fn some(owners: &[String]) -> String {
    const SHOWN: usize = 5;
    let shown = owners.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    match owners.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
