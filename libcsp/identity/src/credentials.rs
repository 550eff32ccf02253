//! The identity of this program, followed on disk.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::pki_types::UnixTime;
use tokio::sync::watch;

use crate::client::{self, Wanted};
use crate::folder::{CERTIFICATE, Folder, FolderError, REVOKED, Stamp};
use crate::peer::Peer;

/// How often the folder is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The identity of this program. Clones share it; [`Credentials::follow`] keeps it as it is on disk.
#[derive(Clone, Debug)]
pub struct Credentials {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    current: watch::Sender<Arc<Folder>>,
    looked: Mutex<Looked>,
}

/// What was found when the folder was last looked at.
#[derive(Debug)]
struct Looked {
    stamp: Stamp,
    problem: Option<String>,
}

/// What operators watch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CredentialsState {
    /// Who this program is.
    pub holder: Peer,
    /// Why what lies on disk is not in use; `None` when it is.
    pub problem: Option<String>,
}

impl Credentials {
    /// Reads the folder.
    pub fn open(path: &Path) -> Result<Credentials, FolderError> {
        // Before the files: what is written between is noticed later.
        let stamp = Stamp::of(path);
        let (current, _) = watch::channel(Arc::new(Folder::read(path)?));
        let looked = Mutex::new(Looked { stamp, problem: None });
        Ok(Credentials { inner: Arc::new(Inner { path: path.to_owned(), current, looked }) })
    }

    /// Reads the folder again whenever its files change, for ever. What cannot be used, such as a certificate whose key
    /// is not written yet, leaves the old one in force and is tried again.
    pub async fn follow(self) {
        let mut beat = tokio::time::interval(LOOK_INTERVAL);
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            beat.tick().await;
            let this = self.clone();
            // Files may be on a disk that does not answer.
            let _ = tokio::task::spawn_blocking(move || this.look()).await;
        }
    }

    /// Looks at the folder once; returns whether what it contains is new and in force now.
    pub fn look(&self) -> bool {
        // Files may take long: others ask for the state meanwhile.
        let stamp = Stamp::of(&self.inner.path);
        let looked = || self.inner.looked.lock().unwrap_or_else(PoisonError::into_inner);
        let as_before = |looked: &Looked| stamp == looked.stamp && looked.problem.is_none();
        if as_before(&looked()) {
            return false;
        }
        let read = Folder::read(&self.inner.path).and_then(|folder| self.successor(folder));
        let mut looked = looked();
        match read {
            Ok(folder) => {
                let (serial, not_after) = (folder.holder.serial.clone(), folder.holder.not_after);
                *looked = Looked { stamp, problem: None };
                self.inner.current.send_replace(Arc::new(folder));
                tracing::info!(serial, not_after, "the identity on disk is in force");
                true
            }
            Err(error) => {
                let problem = error.to_string();
                // Files are written one after the other: what is wrong twice is worth a line.
                if looked.stamp == stamp && looked.problem.as_ref() != Some(&problem) {
                    tracing::warn!(problem, "the identity on disk cannot be used; the one before stays");
                }
                let seen = looked.stamp == stamp;
                looked.problem = Some(if seen { problem } else { String::new() });
                looked.stamp = stamp;
                false
            }
        }
    }

    /// Refuses another program's identity, and lists that take revocations back.
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

    /// Returns what is in force.
    pub fn current(&self) -> Arc<Folder> {
        self.inner.current.borrow().clone()
    }

    /// Returns a receiver that is marked as changed when what is in force changes.
    pub fn changes(&self) -> watch::Receiver<Arc<Folder>> {
        self.inner.current.subscribe()
    }

    /// Returns what operators watch.
    pub fn state(&self) -> CredentialsState {
        let looked = self.inner.looked.lock().unwrap_or_else(PoisonError::into_inner);
        let problem = looked.problem.clone().filter(|problem| !problem.is_empty());
        CredentialsState { holder: self.current().holder.clone(), problem }
    }

    /// Returns the configuration for a server's next connection. Clients may come without a certificate.
    pub fn server_config(&self) -> Arc<ServerConfig> {
        self.current().server_config.clone()
    }

    /// Returns how a server that has to be `wanted` is verified by clients that have a configuration of their own.
    pub fn server_verifier(&self, wanted: Wanted) -> Arc<dyn rustls::client::danger::ServerCertVerifier> {
        Arc::new(client::Follower::new(self, wanted))
    }

    /// Returns certificate and key in PEM, for clients that take no other form.
    pub fn pem(&self) -> (Vec<u8>, Vec<u8>) {
        let folder = self.current();
        (folder.pem.certificate.clone(), folder.pem.key.clone())
    }

    /// Verifies a client of a live connection again: against the authorities and revocations of now.
    pub fn verify_client(&self, peer: &Peer, now: UnixTime) -> Result<(), String> {
        let folder = self.current();
        if peer.identity.cluster != folder.holder.identity.cluster {
            return Err(format!("is of the cluster {}", peer.identity.cluster));
        }
        let verified = folder.client_verifier.verify_client_cert(&peer.certificate, &[], now);
        verified.map(drop).map_err(|error| error.to_string())
    }
}
