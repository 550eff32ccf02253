//! Files with secrets, which only their owner may read.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Returns the text of a file, up to `len_max` bytes; the error says what is wrong with it and what to do.
pub fn read(path: &Path, len_max: u64) -> Result<String, String> {
    let bytes = read_bytes(path, len_max)?;
    String::from_utf8(bytes).map_err(|_| "cannot be read: it is no text (UTF-8)".to_owned())
}

/// Returns the bytes of a file, up to `len_max`; the error as of [`read`].
pub fn read_bytes(path: &Path, len_max: u64) -> Result<Vec<u8>, String> {
    let cannot = |error: std::io::Error| format!("cannot be read: {error}");
    // The mode is that of the file that is read, whatever the path names a moment later.
    let file = File::open(path).map_err(cannot)?;
    let mode = file.metadata().map_err(cannot)?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        let chmod = format!("chmod 600 {}", path.display());
        return Err(format!("its mode {mode:03o} lets others than its owner at it; make it 600: {chmod}"));
    }
    let mut bytes = Vec::new();
    file.take(len_max).read_to_end(&mut bytes).map_err(cannot)?;
    Ok(bytes)
}
