//! Reads a file with keys of the SAN. What its lines mean is the transport's matter.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::config::ConfigError;

/// Longest key file, in bytes.
const LEN_MAX: u64 = 1 << 20;

/// Reads a key file. A file that its group or others may read or write is refused: its keys prove to be a node of the
/// cluster.
pub fn read(path: &Path) -> Result<String, ConfigError> {
    let wrong = |message: String| error(path, message);
    let cannot = |error: std::io::Error| wrong(format!("cannot be read: {error}"));
    // The mode is that of the file that is read, whatever the path names a moment later.
    let opened = File::open(path).map_err(cannot)?;
    let mode = opened.metadata().map_err(cannot)?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(wrong(format!(
            "its mode {mode:03o} lets others than its owner at it; make it 600: chmod 600 {}",
            path.display()
        )));
    }
    let mut text = String::new();
    opened.take(LEN_MAX).read_to_string(&mut text).map_err(cannot)?;
    Ok(text)
}

/// The error of a key file whose text has a fault.
pub fn error(path: &Path, fault: impl ToString) -> ConfigError {
    ConfigError::new(&path.display().to_string(), "key file", fault.to_string())
}
