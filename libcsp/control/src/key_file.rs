//! Reads a file with SAN keys. The transport defines its format.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::config::ConfigError;

/// Longest key file, in bytes.
const LEN_MAX: u64 = 1 << 20;

/// Reads a key file. A file that its group or others may read or write is rejected, since the keys
/// authenticate a node of the cluster. Exception: a credential created by systemd may be group-readable,
/// since from systemd 254 on the group bits show the access list that lets the service's user read it.
pub fn read(path: &Path) -> Result<String, ConfigError> {
    let wrong = |message: String| error(path, message);
    let cannot = |error: std::io::Error| wrong(format!("cannot be read: {error}"));
    // The mode is checked on the open file, since the path may name another file a moment later.
    let opened = File::open(path).map_err(cannot)?;
    let mode = opened.metadata().map_err(cannot)?.permissions().mode() & 0o777;
    let credentials = std::env::var_os("CREDENTIALS_DIRECTORY");
    if mode & forbidden(path, credentials.as_deref().map(Path::new)) != 0 {
        return Err(wrong(format!(
            "its mode {mode:03o} lets others than its owner at it; make it 600: chmod 600 {}",
            path.display()
        )));
    }
    let mut text = String::new();
    opened.take(LEN_MAX).read_to_string(&mut text).map_err(cannot)?;
    Ok(text)
}

/// Returns the permission bits that the key file at `path` may not have. `credentials` is the directory in
/// which systemd keeps the service's credentials.
fn forbidden(path: &Path, credentials: Option<&Path>) -> u32 {
    if credentials.is_some_and(|folder| path.starts_with(folder)) { 0o037 } else { 0o077 }
}

/// Returns the error for a key file with invalid content.
pub fn error(path: &Path, fault: impl ToString) -> ConfigError {
    ConfigError::new(&path.display().to_string(), "key file", fault.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credential_may_be_readable_for_its_group_and_no_other_file() {
        let folder = Path::new("/run/credentials/csp-proxy-node.service");
        let (credential, other) = (folder.join("cluster.key"), Path::new("/etc/csp/proxy-node.key"));
        for (path, credentials, mode, refused) in [
            (credential.as_path(), Some(folder), 0o440, false),
            (credential.as_path(), Some(folder), 0o444, true),
            (credential.as_path(), Some(folder), 0o460, true),
            (credential.as_path(), None, 0o440, true),
            (other, Some(folder), 0o440, true),
            (other, None, 0o600, false),
        ] {
            assert_eq!(mode & forbidden(path, credentials) != 0, refused, "{} {mode:o}", path.display());
        }
    }
}
