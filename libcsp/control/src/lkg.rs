//! The last-known-good policy on disk: what a node serves on while etcd is away.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::durable;
use crate::policy_store::GenerationRecord;

/// Name of the file in a node's state directory.
const FILE: &str = "policy.json";

/// The file of one node.
#[derive(Clone, Debug)]
pub(crate) struct LastKnownGood {
    directory: PathBuf,
}

impl LastKnownGood {
    /// The file in `directory`, which is created when missing.
    pub(crate) fn in_directory(directory: &Path) -> io::Result<LastKnownGood> {
        fs::create_dir_all(directory)?;
        Ok(LastKnownGood { directory: directory.to_owned() })
    }

    /// The stored generation. `None` without a file, and for one that is torn, altered or no longer valid: that is
    /// logged and left where it is.
    pub(crate) fn load(&self) -> Option<GenerationRecord> {
        let path = self.directory.join(FILE);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::error!(file = %path.display(), %error, "cannot read the last-known-good policy");
                return None;
            }
        };
        match GenerationRecord::from_json(&text, &path.display().to_string()) {
            Ok(record) => Some(record),
            Err(reason) => {
                tracing::error!(file = %path.display(), reason, "not using the last-known-good policy");
                None
            }
        }
    }

    /// Stores `record` so that after a crash at any moment the file holds either the old or the new generation.
    pub(crate) fn store(&self, record: &GenerationRecord) -> io::Result<()> {
        let text = serde_json::to_string(record)?;
        durable::replace(&self.directory, FILE, &text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;

    const POLICY: &str = "apiVersion: csp/v1\nservices: [{name: web, vip: 10.76.0.100, port: 80, pool: [{node: an-1, port: 80}]}]\n";

    fn directory(name: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("csp-lkg-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        directory
    }

    #[test]
    fn what_was_stored_comes_back_and_a_half_written_successor_does_no_harm() {
        let directory = directory("round-trip");
        let file = LastKnownGood::in_directory(&directory).unwrap();
        assert_eq!(file.load(), None);
        let record = GenerationRecord::new(7, Policy::parse_yaml(POLICY, "p.yaml").unwrap());
        file.store(&record).unwrap();
        fs::write(directory.join("policy.json.new"), "{\"generation\": 8, \"crea").unwrap();
        assert_eq!(file.load(), Some(record.clone()));
        let next = GenerationRecord { generation: 8, ..record };
        file.store(&next).unwrap();
        assert_eq!(file.load(), Some(next));
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn torn_altered_and_invalid_files_are_not_used() {
        let directory = directory("torn");
        let file = LastKnownGood::in_directory(&directory).unwrap();
        let record = GenerationRecord::new(7, Policy::parse_yaml(POLICY, "p.yaml").unwrap());
        let good = serde_json::to_string(&record).unwrap();
        for cut in 0..good.len() {
            fs::write(directory.join(FILE), &good[..cut]).unwrap();
            assert_eq!(file.load(), None, "used a file cut at byte {cut}");
        }
        fs::write(directory.join(FILE), good.replace("an-1", "an-2")).unwrap();
        assert_eq!(file.load(), None, "used a policy that does not fit its hash");
        fs::write(directory.join(FILE), [0xff, 0xfe]).unwrap();
        assert_eq!(file.load(), None, "used a file that is no text");
        fs::remove_dir_all(&directory).unwrap();
    }
}
