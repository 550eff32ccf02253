//! Which incarnation of this node ran here before: a daemon that was killed and starts again need not wait until the
//! lease of its own old registration lapses.
//!
//! The file `<id>.incarnation` in the state directory is locked by the daemon that runs and holds its number. The kernel
//! releases the lock when its holder ends, however it ends: the next holder knows that the number found is a dead
//! one's. Nothing depends on it: without the file, or the lock, a start under a registered id takes a lease's life.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::registry::NodeRecord;

/// Longest number that the file holds, in bytes.
const NUMBER_LEN_MAX: u64 = 20;

/// This daemon's hold on the file, for as long as it lives.
#[derive(Debug, Default)]
pub(crate) struct Predecessor {
    /// The dead daemon's incarnation, where one is known.
    pub(crate) incarnation: Option<u64>,
    _lock: Option<File>,
}

impl Predecessor {
    /// Locks the file of `record`'s node in `directory` (created when missing), reads the identity of its last holder and writes this one's.
    pub(crate) fn succeed(directory: &Path, record: &NodeRecord) -> Self {
        let path = directory.join(format!("{}.incarnation", record.id));
        Self::try_succeed(directory, &path, record.incarnation).unwrap_or_else(|error| {
            tracing::warn!(file = %path.display(), %error, "a restart will have to wait for the old lease");
            Predecessor::default()
        })
    }

    fn try_succeed(directory: &Path, path: &Path, own: u64) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o640).open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            // It lives; whether it may be joined is decided by the registration.
            Err(TryLockError::WouldBlock) => return Ok(Predecessor::default()),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let mut text = String::new();
        (&mut file).take(NUMBER_LEN_MAX).read_to_string(&mut text)?;
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(own.to_string().as_bytes())?;
        Ok(Predecessor { incarnation: text.parse().ok(), _lock: Some(file) })
    }
}
