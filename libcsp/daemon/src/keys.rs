//! This daemon's SAN keys: read at the start, and followed on disk.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use csp_control::{ConfigError, key_file};
use csp_transport::{Holder, KeySet, Keys};

/// Interval at which the file is checked for changes.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Device, inode, length and time of change of a file. They differ once the file was written or replaced.
type Stamp = Option<(u64, u64, u64, i64, i64)>;

/// A key file and the keys in force.
#[derive(Clone, Debug)]
pub struct KeyFile {
    path: PathBuf,
    holder: Holder,
    keys: Keys,
    stamp: Stamp,
}

impl KeyFile {
    /// Reads the key file of `holder`.
    pub fn load(path: &Path, holder: Holder) -> Result<KeyFile, ConfigError> {
        let stamp = stamp(path);
        let keys = Keys::new(read(path, holder)?);
        Ok(KeyFile { path: path.to_owned(), holder, keys, stamp })
    }

    /// Returns the keys in force, for endpoints and signers. They change with the file.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Follows the file: a change is in force within a second. An invalid file is reported once, and the
    /// former keys stay in force. Runs until it is dropped.
    pub async fn follow(mut self) {
        let mut beat = tokio::time::interval(LOOK_INTERVAL);
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            beat.tick().await;
            let looked = tokio::task::spawn_blocking(move || {
                self.check();
                self
            });
            let Ok(file) = looked.await else { return };
            self = file;
        }
    }

    /// Checks the file once.
    fn check(&mut self) {
        let stamp = stamp(&self.path);
        if stamp == self.stamp {
            return;
        }
        self.stamp = stamp;
        match read(&self.path, self.holder) {
            Ok(set) => {
                tracing::info!(generations = ?set.generations(), "the keys on disk are in force");
                self.keys.replace(set);
            }
            Err(error) => {
                tracing::warn!(%error, "the keys on disk cannot be used; those from before stay in force");
            }
        }
    }
}

fn read(path: &Path, holder: Holder) -> Result<KeySet, ConfigError> {
    let text = zeroize::Zeroizing::new(key_file::read(path)?);
    let set = KeySet::parse(&text).and_then(|set| set.check(holder).map(|()| set));
    set.map_err(|error| key_file::error(path, error))
}

fn stamp(path: &Path) -> Stamp {
    let of = std::fs::metadata(path).ok()?;
    Some((of.dev(), of.ino(), of.len(), of.ctime(), of.ctime_nsec()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use csp_types::Role;

    use super::*;

    struct File(PathBuf);

    impl File {
        fn new(name: &str) -> File {
            File(std::env::temp_dir().join(format!("csp-keys-{name}-{}", std::process::id())))
        }

        /// Replaces the file as editors and `cspctl` do.
        fn write(&self, text: &str) {
            let new = self.0.with_extension("new");
            fs::write(&new, text).unwrap();
            fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).unwrap();
            fs::rename(&new, &self.0).unwrap();
        }

        fn load(&self, holder: Holder) -> Result<KeyFile, String> {
            let file = KeyFile::load(&self.0, holder).map_err(|error| error.to_string());
            file.map_err(|error| error.replace(&self.0.display().to_string(), "FILE"))
        }
    }

    impl Drop for File {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_new_generation_is_in_force_once_it_is_written_and_a_fault_changes_nothing() {
        let file = File::new("follow");
        file.write(&"1".repeat(64));
        let mut known = file.load(Holder::Proxy).unwrap();
        let keys = known.keys().clone();
        known.check();
        assert_eq!(keys.current().generations(), [1]);
        file.write(&format!("2 cluster {}\n1 cluster {}\n", "2".repeat(64), "1".repeat(64)));
        known.check();
        assert_eq!(keys.current().generations(), [2, 1]);
        for fault in ["", "nonsense"] {
            file.write(fault);
            known.check();
            assert_eq!(keys.current().generations(), [2, 1], "{fault:?}");
        }
        fs::remove_file(&file.0).unwrap();
        known.check();
        file.write(&format!("2 cluster {}\n", "2".repeat(64)));
        known.check();
        assert_eq!(keys.current().generations(), [2]);
    }

    #[test]
    fn a_file_for_another_or_with_too_much_in_it_is_refused_by_name() {
        let file = File::new("refused");
        let node = Holder::Node(Role::AppNode, "an-1".parse().unwrap());
        file.write(&"1".repeat(64));
        let error = file.load(node).unwrap_err();
        assert!(
            error.starts_with("FILE: key file: a cluster key is in it: only proxy nodes hold those"),
            "{error}"
        );
        file.write("abc");
        let error = file.load(Holder::Proxy).unwrap_err();
        assert_eq!(error, "FILE: key file: line 1: a key has 64 hexadecimal digits, this one has 3");
        for mode in [0o640, 0o604, 0o620, 0o644] {
            fs::set_permissions(&file.0, fs::Permissions::from_mode(mode)).unwrap();
            let error = file.load(Holder::Proxy).unwrap_err();
            assert!(error.contains(&format!("its mode {mode:03o}")), "{error}");
            assert!(error.ends_with("chmod 600 FILE"), "{error}");
        }
    }
}
