//! The audit log: a file of JSON lines in the node's state directory that is only appended to.
//!
//! A change that cannot be recorded is not tried. Lines reach the system's cache before the change is tried,
//! and the disk when the system writes it: the log survives the daemon's death, and not in every case the
//! host's.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use csp_api::mgmt::AuditRecord;

/// Name of the file.
const FILE: &str = "audit.jsonl";
/// Name of the file before it: it replaces an older one.
const BEFORE: &str = "audit.jsonl.1";
/// Length at which a file is put aside, in bytes.
const FILE_LEN_MAX: u64 = 64 << 20;
/// Bytes at the end of a file that are read for one answer.
const TAIL_LEN_MAX: u64 = 2 << 20;

/// Receives each record once it is written, such as to make an event of it. It is called by the thread that
/// writes, and must not block.
pub trait AuditHook: Send + Sync {
    /// A record was written.
    fn recorded(&self, record: &AuditRecord);
}

/// The audit log of this node.
pub struct Audit {
    folder: PathBuf,
    open: Mutex<Open>,
    file_len_max: u64,
    hook: OnceLock<Arc<dyn AuditHook>>,
}

struct Open {
    file: File,
    len: u64,
}

impl std::fmt::Debug for Audit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Audit").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl Audit {
    /// Opens the log in `folder`, which exists.
    pub fn open(folder: &Path) -> std::io::Result<Self> {
        Self::limited(folder, FILE_LEN_MAX)
    }

    fn limited(folder: &Path, file_len_max: u64) -> std::io::Result<Self> {
        let open = Mutex::new(append(&folder.join(FILE))?);
        Ok(Audit { folder: folder.to_owned(), open, file_len_max, hook: OnceLock::new() })
    }

    /// Passes further records to `hook`, too. Only the first hook is kept.
    pub fn watch(&self, hook: Arc<dyn AuditHook>) {
        let _ = self.hook.set(hook);
    }

    /// Appends a record. Fails if it cannot be written; the caller then refuses the change.
    pub fn record(&self, record: &AuditRecord) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(record)?;
        line.push(b'\n');
        {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            if open.len > 0 && open.len + line.len() as u64 > self.file_len_max {
                std::fs::rename(self.folder.join(FILE), self.folder.join(BEFORE))?;
                *open = append(&self.folder.join(FILE))?;
            }
            // One write: a line is whole, or the file system is full.
            open.file.write_all(&line)?;
            open.len += line.len() as u64;
        }
        if let Some(hook) = self.hook.get() {
            hook.recorded(record);
        }
        Ok(())
    }

    /// Returns the newest records, newest first.
    pub fn newest(&self, limit: usize) -> std::io::Result<Vec<AuditRecord>> {
        let mut records = tail(&self.folder.join(FILE), limit)?;
        if records.len() < limit {
            records.extend(tail(&self.folder.join(BEFORE), limit - records.len())?);
        }
        Ok(records)
    }
}

fn append(path: &Path) -> std::io::Result<Open> {
    let named =
        |error: std::io::Error| std::io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path).map_err(named)?;
    let len = file.metadata().map_err(named)?.len();
    let mut open = Open { file, len };
    if len > 0 && !ends_a_line(path)? {
        // The rest of a line that a full disk cut.
        open.file.write_all(b"\n").map_err(named)?;
        open.len += 1;
    }
    Ok(open)
}

fn ends_a_line(path: &Path) -> std::io::Result<bool> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

/// The newest records of a file, newest first; none if there is no such file. Lines that are no records are
/// left out.
fn tail(path: &Path, limit: usize) -> std::io::Result<Vec<AuditRecord>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let len = file.metadata()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(TAIL_LEN_MAX)))?;
    let mut bytes = Vec::new();
    file.take(TAIL_LEN_MAX).read_to_end(&mut bytes)?;
    let lines = bytes.rsplit(|octet| *octet == b'\n');
    Ok(lines.filter_map(|line| serde_json::from_slice(line).ok()).take(limit).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("csp-audit-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    fn record(id: u64) -> AuditRecord {
        AuditRecord { id: id.to_string(), stage: "asked".into(), ..AuditRecord::default() }
    }

    fn ids(audit: &Audit, limit: usize) -> Vec<String> {
        audit.newest(limit).unwrap().into_iter().map(|record| record.id).collect()
    }

    struct Seen(Mutex<Vec<String>>);

    impl AuditHook for Seen {
        fn recorded(&self, record: &AuditRecord) {
            self.0.lock().unwrap().push(record.id.clone());
        }
    }

    #[test]
    fn records_are_appended_kept_over_a_restart_and_passed_to_the_hook() {
        let folder = folder("kept");
        let audit = Audit::open(&folder).unwrap();
        let seen = Arc::new(Seen(Mutex::default()));
        audit.watch(seen.clone());
        (0..3).for_each(|id| audit.record(&record(id)).unwrap());
        assert_eq!(*seen.0.lock().unwrap(), ["0", "1", "2"]);
        drop(audit);
        let path = folder.join(FILE);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        // A line that was cut spoils itself only.
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"time").unwrap();
        let audit = Audit::open(&folder).unwrap();
        audit.record(&record(3)).unwrap();
        assert_eq!(ids(&audit, 10), ["3", "2", "1", "0"]);
        assert_eq!(ids(&audit, 2), ["3", "2"]);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_long_file_is_put_aside_once() {
        let folder = folder("long");
        let len = serde_json::to_vec(&record(0)).unwrap().len() as u64 + 1;
        let audit = Audit::limited(&folder, 3 * len).unwrap();
        (0..8).for_each(|id| audit.record(&record(id)).unwrap());
        assert_eq!(ids(&audit, 100), ["7", "6", "5", "4", "3"], "the oldest file is gone");
        assert!(std::fs::metadata(folder.join(FILE)).unwrap().len() <= 3 * len);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
