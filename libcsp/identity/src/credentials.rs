//! Loads this program's identity from disk and follows its files.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::pki_types::UnixTime;
use tokio::sync::watch;

use crate::client::{self, ExpectedServer};
use crate::folder::{CERTIFICATE, Folder, FolderError, REVOKED, Stamp};
use crate::peer::Peer;

/// Interval at which the folder is checked for changed files.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// This program's identity. Clones share one state; [`Credentials::follow`] keeps it in step with the files
/// on disk.
#[derive(Clone, Debug)]
pub struct Credentials {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    current: watch::Sender<Arc<Folder>>,
    last_check: Mutex<LastCheck>,
}

/// Result of the latest check of the folder.
#[derive(Debug)]
struct LastCheck {
    stamp: Stamp,
    problem: Option<String>,
}

/// State of the credentials for monitoring.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CredentialsState {
    /// Identity of this program, as in its certificate.
    pub holder: Peer,
    /// Why the files on disk are not in use; `None` when they are.
    pub problem: Option<String>,
}

impl Credentials {
    /// Reads and checks the folder at `path`. Fails when a file is missing or invalid.
    pub fn open(path: &Path) -> Result<Credentials, FolderError> {
        // Taken before the files are read, so that a change during the read is noticed at the next check.
        let stamp = Stamp::of(path);
        let (current, _) = watch::channel(Arc::new(Folder::read(path)?));
        let last_check = Mutex::new(LastCheck { stamp, problem: None });
        Ok(Credentials { inner: Arc::new(Inner { path: path.to_owned(), current, last_check }) })
    }

    /// Reloads the folder whenever its files change. Never returns. Files that are not usable, such as a
    /// certificate whose key is not written yet, leave the former identity in force, and are tried again.
    pub async fn follow(self) {
        let mut beat = tokio::time::interval(LOOK_INTERVAL);
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            beat.tick().await;
            let this = self.clone();
            // Disk access may block, so it does not run on the executor's threads.
            let _ = tokio::task::spawn_blocking(move || this.check()).await;
        }
    }

    /// Checks the folder once. Returns whether a new identity was loaded and is in force.
    pub fn check(&self) -> bool {
        // Reading files may take long. The lock is not held meanwhile, so that other tasks can read the
        // state.
        let stamp = Stamp::of(&self.inner.path);
        let last_check = || self.inner.last_check.lock().unwrap_or_else(PoisonError::into_inner);
        let as_before = |last_check: &LastCheck| stamp == last_check.stamp && last_check.problem.is_none();
        if as_before(&last_check()) {
            return false;
        }
        let read = Folder::read(&self.inner.path).and_then(|folder| self.successor(folder));
        let mut last_check = last_check();
        match read {
            Ok(folder) => {
                let (serial, not_after) = (folder.holder.serial.clone(), folder.holder.not_after);
                *last_check = LastCheck { stamp, problem: None };
                self.inner.current.send_replace(Arc::new(folder));
                tracing::info!(serial, not_after, "the identity on disk is in force");
                true
            }
            Err(error) => {
                let problem = error.to_string();
                // Files are replaced one after the other. Only a fault that two checks have found is logged.
                if last_check.stamp == stamp && last_check.problem.as_ref() != Some(&problem) {
                    tracing::warn!(problem, "the identity on disk cannot be used; the one before stays");
                }
                let seen = last_check.stamp == stamp;
                last_check.problem = Some(if seen { problem } else { String::new() });
                last_check.stamp = stamp;
                false
            }
        }
    }

    /// Rejects the identity of another program, and revocation lists that would undo a revocation.
    fn successor(&self, folder: Folder) -> Result<Folder, FolderError> {
        let current = self.current();
        let refused = |file: &str, problem: String| {
            Err(FolderError::Content { path: self.inner.path.join(file), problem })
        };
        let (old, new) = (current.holder.identity, folder.holder.identity);
        if old != new {
            let problem =
                format!("is for {new}; this program is {old} and takes another identity at its start only");
            return refused(CERTIFICATE, problem);
        }
        match current.revocations.precede(&folder.revocations) {
            Ok(()) => Ok(folder),
            Err(problem) => refused(REVOKED, problem),
        }
    }

    /// Returns the identity and authorities in force.
    pub fn current(&self) -> Arc<Folder> {
        self.inner.current.borrow().clone()
    }

    /// Returns a receiver that is notified when the identity or the authorities in force change.
    pub fn changes(&self) -> watch::Receiver<Arc<Folder>> {
        self.inner.current.subscribe()
    }

    /// Returns the state for monitoring.
    pub fn state(&self) -> CredentialsState {
        let last_check = self.inner.last_check.lock().unwrap_or_else(PoisonError::into_inner);
        let problem = last_check.problem.clone().filter(|problem| !problem.is_empty());
        CredentialsState { holder: self.current().holder.clone(), problem }
    }

    /// Returns the TLS configuration for a server's next connection. Client certificates are optional.
    pub fn server_config(&self) -> Arc<ServerConfig> {
        self.current().server_config.clone()
    }

    /// Returns a verifier that accepts the server `expected` only, for clients that build their own
    /// configuration.
    pub fn server_verifier(
        &self,
        expected: ExpectedServer,
    ) -> Arc<dyn rustls::client::danger::ServerCertVerifier> {
        Arc::new(client::Follower::new(self, expected))
    }

    /// Returns certificate and private key in PEM, for libraries that do not accept rustls' types.
    pub fn pem(&self) -> (Vec<u8>, Vec<u8>) {
        let folder = self.current();
        (folder.pem.certificate.clone(), folder.pem.key.clone())
    }

    /// Verifies the client of a live connection again, by the authorities and revocation lists in force at
    /// `now`.
    pub fn verify_client(&self, peer: &Peer, now: UnixTime) -> Result<(), String> {
        let folder = self.current();
        if peer.identity.cluster != folder.holder.identity.cluster {
            return Err(format!("is of the cluster {}", peer.identity.cluster));
        }
        let verified = folder.client_verifier.verify_client_cert(&peer.certificate, &[], now);
        verified.map(drop).map_err(|error| error.to_string())
    }
}
