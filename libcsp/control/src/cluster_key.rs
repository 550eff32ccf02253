//! The cluster key: the secret that signs the tokens of nodes and processes.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::config::ConfigError;

/// Length of the cluster key in bytes.
pub const CLUSTER_KEY_LEN: usize = 32;

/// The cluster key. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterKey([u8; CLUSTER_KEY_LEN]);

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterKey(..)")
    }
}

impl ClusterKey {
    /// Reads the key file: 64 hex digits and an optional end of line. A file that its group or others may read or write
    /// is refused: whoever has the key can be any node of the cluster.
    pub fn load(path: &Path) -> Result<ClusterKey, ConfigError> {
        let file = path.display().to_string();
        let wrong = |message: String| ConfigError::new(&file, "cluster key", message);
        let cannot = |error: std::io::Error| wrong(format!("cannot be read: {error}"));
        // The mode is that of the file that is read, whatever the path names a moment later.
        let mut opened = File::open(path).map_err(cannot)?;
        let mode = opened.metadata().map_err(cannot)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(wrong(format!(
                "its mode {mode:03o} lets others than its owner at it; make it 600: chmod 600 {file}"
            )));
        }
        let mut text = String::new();
        opened.read_to_string(&mut text).map_err(cannot)?;
        ClusterKey::from_hex(text.trim()).ok_or_else(|| {
            let allowed = 2 * CLUSTER_KEY_LEN;
            wrong(format!(
                "has {} characters; allowed are exactly {allowed} hex digits (0-9 a-f)",
                text.trim().len()
            ))
        })
    }

    /// The key that `hex` writes; `None` unless it is exactly 64 hex digits.
    pub fn from_hex(hex: &str) -> Option<ClusterKey> {
        let digits: Vec<u8> = hex.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect::<Option<_>>()?;
        if digits.len() != 2 * CLUSTER_KEY_LEN {
            return None;
        }
        let mut key = [0; CLUSTER_KEY_LEN];
        for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = pair[0] << 4 | pair[1];
        }
        Some(ClusterKey(key))
    }

    /// The key's bytes.
    pub fn as_bytes(&self) -> &[u8; CLUSTER_KEY_LEN] {
        &self.0
    }
}

impl From<[u8; CLUSTER_KEY_LEN]> for ClusterKey {
    fn from(bytes: [u8; CLUSTER_KEY_LEN]) -> Self {
        ClusterKey(bytes)
    }
}
