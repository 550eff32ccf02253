//! The secret of which the keys of tickets are derived: a file that is the same on all proxies.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use csp_daemon::private_file;
use csp_tls::{TICKET_SECRET_LEN_MIN, TicketKeys};
use rustls::crypto::CryptoProvider;
use rustls::server::ProducesTickets;
use rustls::time_provider::DefaultTimeProvider;

use super::{Stamp, stamp};

/// Longest file in bytes.
const FILE_LEN_MAX: u64 = 64 * 1024;

/// The secret, as it was read last.
#[derive(Default)]
pub(super) struct TicketSecret {
    file: Option<PathBuf>,
    /// What the file was at the last try, usable or not.
    tried: Option<Stamp>,
    bytes: Option<Vec<u8>>,
    /// Grows when the bytes change.
    version: u64,
}

/// Reads a secret; the error says what is wrong with the file.
pub fn read(path: &Path) -> Result<Vec<u8>, String> {
    let bytes = private_file::read_bytes(path, FILE_LEN_MAX);
    let bytes = bytes.map_err(|error| format!("{}: {error}", path.display()))?;
    if bytes.len() < TICKET_SECRET_LEN_MIN {
        return Err(format!(
            "{}: {} bytes; a secret has at least {TICKET_SECRET_LEN_MIN}, such as `openssl rand 48` makes",
            path.display(),
            bytes.len()
        ));
    }
    Ok(bytes)
}

impl TicketSecret {
    /// The secret of a file, which is read by [`load`](Self::load).
    pub(super) fn of(file: Option<&Path>) -> Self {
        TicketSecret { file: file.map(Path::to_owned), ..TicketSecret::default() }
    }

    /// Reads the file if it has changed. While it is wrong, the former secret stays.
    pub(super) fn load(&mut self) -> Result<(), String> {
        let Some(file) = &self.file else { return Ok(()) };
        let now = stamp(file);
        if self.bytes.is_some() && self.tried == now {
            return Ok(());
        }
        self.tried = now;
        let bytes = read(file)?;
        if self.bytes.as_ref() != Some(&bytes) {
            (self.bytes, self.version) = (Some(bytes), self.version + 1);
        }
        Ok(())
    }

    /// Returns whether the file has changed.
    pub(super) fn has_changed(&self) -> bool {
        self.file.as_ref().is_some_and(|file| stamp(file) != self.tried)
    }

    /// Returns a number that changes with the secret.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Returns the keys of a service's tickets; `None` without a secret.
    pub(super) fn keys(
        &self,
        provider: &Arc<CryptoProvider>,
        binding: &[u8],
    ) -> Option<Arc<dyn ProducesTickets>> {
        let with = (Arc::clone(provider), Arc::new(DefaultTimeProvider) as Arc<_>);
        let keys = TicketKeys::new(with, self.bytes.as_deref()?, binding)?;
        Some(Arc::new(keys))
    }
}
