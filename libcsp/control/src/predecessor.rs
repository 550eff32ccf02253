//! Identifies the former incarnation of this node on this host, so that a daemon that was killed and restarts
//! need not wait until the lease of its former registration expires.
//!
//! The running daemon locks the file `<id>.incarnation` in the state directory and writes its incarnation
//! number into it. The kernel releases the lock when its holder ends for any reason, so that the next holder
//! knows that the number in the file belongs to a dead process. This is an optimisation: without the file or
//! the lock, a start under a registered id takes the lease's TTL.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::registry::NodeRecord;

/// Largest length of the number in the file, in bytes.
const NUMBER_LEN_MAX: u64 = 20;

/// The lock on the file, held while the daemon lives.
#[derive(Debug, Default)]
pub(crate) struct Predecessor {
    /// Incarnation of the dead daemon, if known.
    pub(crate) incarnation: Option<u64>,
    _lock: Option<File>,
}

impl Predecessor {
    /// Locks the file of `record`'s node in `directory` (created if missing), reads the incarnation of its
    /// last holder and writes its own.
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
            // The former daemon is alive. The registration decides whether this one may join.
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
