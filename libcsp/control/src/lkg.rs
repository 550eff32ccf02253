//! The last-known-good policy on disk, which a node uses while etcd is unreachable.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

use crate::policy_store::{GenerationRecord, Kept};
use crate::signatures::{Activation, Verifier, now};

/// Name of the file in a node's state directory.
pub(crate) const FILE: &str = "policy.json";

/// The fields of the file beside the generation's record.
#[derive(Deserialize)]
struct StoredFields {
    activation: Option<Activation>,
}

/// Reads the policy stored in `directory`. Returns `None` without a file, and for a policy that is truncated,
/// altered or no longer valid, or whose activation `verifier` rejects; such a file is logged and kept.
pub(crate) fn load(directory: &Path, verifier: &Verifier) -> Option<Kept> {
    let path = directory.join(FILE);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => {
            tracing::error!(file = %path.display(), %error, "cannot read the last-known-good policy");
            return None;
        }
    };
    match read(&text, &path.display().to_string(), verifier) {
        Ok(kept) => Some(kept),
        Err(reason) => {
            tracing::error!(file = %path.display(), reason, "not using the last-known-good policy");
            None
        }
    }
}

fn read(text: &str, origin: &str, verifier: &Verifier) -> Result<Kept, String> {
    let record = GenerationRecord::from_json(text, origin)?;
    let StoredFields { activation } =
        serde_json::from_str(text).map_err(|error| format!("{origin}: {error}"))?;
    match &activation {
        Some(activation) if activation.is_of(record.generation, &record.hash) => {
            // The activation was verified when this node followed it. That the signer's certificate has
            // expired since does not matter.
            let then = Duration::from_millis(activation.sequence).min(now());
            let verified =
                verifier.activation(activation, now()).or_else(|_| verifier.activation(activation, then));
            verified.map_err(|error| format!("{origin}: {error}"))?;
        }
        Some(activation) => {
            let generation = activation.generation;
            return Err(format!(
                "{origin}: its activation is of generation {generation} or of another content"
            ));
        }
        // Written by a version, or a node without an identity, that required no signature. Only this node
        // writes the directory.
        None if verifier.is_needed() => {
            tracing::warn!(file = origin, "the last-known-good policy is from before signatures");
        }
        None => {}
    }
    Ok(Kept { record, activation })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use csp_policy::Policy;

    use super::*;
    use crate::durable;

    const POLICY: &str = "apiVersion: csp/v1\nservices: [{name: web, vip: 10.76.0.100, port: 80, pool: [{node: an-1, port: 80}]}]\n";

    fn directory(name: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("csp-lkg-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).unwrap();
        directory
    }

    fn load_record(directory: &Path) -> Option<GenerationRecord> {
        load(directory, &Verifier::new(None)).map(|kept| kept.record)
    }

    fn store(directory: &Path, record: &GenerationRecord) {
        durable::replace(directory, FILE, &serde_json::to_string(record).unwrap()).unwrap();
    }

    #[test]
    fn what_was_stored_comes_back_and_a_half_written_successor_does_no_harm() {
        let directory = directory("round-trip");
        assert_eq!(load_record(&directory), None);
        let record = GenerationRecord::new(7, Policy::parse_yaml(POLICY, "p.yaml").unwrap());
        store(&directory, &record);
        fs::write(directory.join("policy.json.new"), "{\"generation\": 8, \"crea").unwrap();
        assert_eq!(load_record(&directory), Some(record.clone()));
        let next = GenerationRecord { generation: 8, ..record };
        store(&directory, &next);
        assert_eq!(load_record(&directory), Some(next));
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn torn_altered_and_invalid_files_are_not_used() {
        let directory = directory("torn");
        let record = GenerationRecord::new(7, Policy::parse_yaml(POLICY, "p.yaml").unwrap());
        let good = serde_json::to_string(&record).unwrap();
        for cut in 0..good.len() {
            fs::write(directory.join(FILE), &good[..cut]).unwrap();
            assert_eq!(load_record(&directory), None, "used a file cut at byte {cut}");
        }
        fs::write(directory.join(FILE), good.replace("an-1", "an-2")).unwrap();
        assert_eq!(load_record(&directory), None, "used a policy that does not fit its hash");
        fs::write(directory.join(FILE), [0xff, 0xfe]).unwrap();
        assert_eq!(load_record(&directory), None, "used a file that is no text");
        fs::remove_dir_all(&directory).unwrap();
    }
}
