//! The cluster key: the secret that signs the tokens of nodes and processes.

use std::fmt;
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
    /// Reads the key file: 64 hex digits and an optional end of line. Warns when others than the owner may read it.
    pub fn load(path: &Path) -> Result<ClusterKey, ConfigError> {
        let file = path.display().to_string();
        let wrong = |message: String| ConfigError::new(&file, "cluster key", message);
        let text =
            std::fs::read_to_string(path).map_err(|error| wrong(format!("cannot be read: {error}")))?;
        let mode = std::fs::metadata(path).map_err(|error| wrong(error.to_string()))?.permissions().mode();
        if mode & 0o077 != 0 {
            tracing::warn!(
                file,
                "the cluster key can be read by others than its owner (mode {:03o}); use 600",
                mode & 0o777
            );
        }
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
