//! The files of a node's state directory. A dedicated thread writes them, and retries until the write
//! succeeds.
//!
//! A full or failing disk neither delays nor stops the node: the file keeps its former content, and
//! [`ControlStatus::state_problem`](crate::ControlStatus) has the reason until a write succeeds.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::durable;
use crate::status::StatusCell;

/// Interval between attempts to write a file.
const RETRY: Duration = Duration::from_secs(2);

/// Produces the content of a file, on the thread that writes it.
type Content = Box<dyn Fn() -> serde_json::Result<String> + Send>;

/// The files of one state directory. When the last handle is dropped, each pending file is tried once more.
#[derive(Clone, Debug)]
pub(crate) struct StateFiles {
    handle: Arc<Handle>,
}

#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.queue().closed = true;
        self.shared.changed.notify_one();
    }
}

#[derive(Debug)]
struct Shared {
    directory: PathBuf,
    queue: Mutex<Queue>,
    changed: Condvar,
    status: StatusCell,
}

#[derive(Debug, Default)]
struct Queue {
    /// Pending contents by file name. A newer content replaces an older one.
    pending: BTreeMap<&'static str, Pending>,
    /// Whether a content was submitted since the last attempt.
    fresh: bool,
    closed: bool,
}

struct Pending {
    content: Content,
    /// Notified after the first attempt.
    attempted: Option<oneshot::Sender<()>>,
}

impl std::fmt::Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pending")
    }
}

impl StateFiles {
    /// Opens `directory`, which is created if missing, and starts the thread. Errors are the system's.
    pub(crate) fn open(directory: &Path, status: StatusCell) -> io::Result<StateFiles> {
        fs::create_dir_all(directory)?;
        let (queue, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { directory: directory.to_owned(), queue, changed, status });
        let handle = Arc::new(Handle { shared: Arc::clone(&shared) });
        std::thread::Builder::new().name("csp-state".to_owned()).spawn(move || shared.run())?;
        Ok(StateFiles { handle })
    }

    /// Returns the directory.
    pub(crate) fn directory(&self) -> &Path {
        &self.handle.shared.directory
    }

    /// Like [`submit`](Self::submit), without waiting for the attempt.
    pub(crate) fn put(
        &self,
        name: &'static str,
        content: impl Fn() -> serde_json::Result<String> + Send + 'static,
    ) {
        self.handle.shared.insert(name, Pending { content: Box::new(content), attempted: None });
    }

    /// Submits `content` for the file `name`, replacing what was submitted for it before. Returns after the
    /// first attempt, successful or not. If the caller is cancelled, the content stays submitted.
    pub(crate) async fn submit(
        &self,
        name: &'static str,
        content: impl Fn() -> serde_json::Result<String> + Send + 'static,
    ) {
        let (attempted, ended) = oneshot::channel();
        let pending = Pending { content: Box::new(content), attempted: Some(attempted) };
        self.handle.shared.insert(name, pending);
        // An error means that a newer content was submitted.
        let _ = ended.await;
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, name: &'static str, pending: Pending) {
        let mut queue = self.queue();
        queue.pending.insert(name, pending);
        queue.fresh = true;
        self.changed.notify_one();
    }

    /// Runs the thread. Returns when the last handle is dropped.
    fn run(&self) {
        let mut problems = BTreeMap::new();
        loop {
            let (due, closed) = self.next();
            for (name, pending) in due {
                self.attempt(name, pending, &mut problems);
            }
            self.status.update(|status| status.state_problem = describe(&problems));
            if closed {
                return;
            }
        }
    }

    /// Waits until files are to be written. Returns them, and whether this is the last attempt.
    fn next(&self) -> (BTreeMap<&'static str, Pending>, bool) {
        let mut queue = self.queue();
        while !queue.fresh && !queue.closed {
            let idle = queue.pending.is_empty();
            let woken = match idle {
                true => (self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner), false),
                false => {
                    let waited = self.changed.wait_timeout(queue, RETRY);
                    let (queue, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
                    (queue, timeout.timed_out())
                }
            };
            queue = woken.0;
            if woken.1 {
                break;
            }
        }
        queue.fresh = false;
        (std::mem::take(&mut queue.pending), queue.closed)
    }

    fn attempt(&self, name: &'static str, mut pending: Pending, problems: &mut BTreeMap<String, String>) {
        let file = self.directory.join(name).display().to_string();
        let written = (pending.content)()
            .map_err(io::Error::from)
            .and_then(|text| durable::replace(&self.directory, name, &text));
        let attempted = pending.attempted.take();
        match written {
            Ok(()) => {
                if problems.remove(&file).is_some() {
                    tracing::info!(file, "is written again");
                }
            }
            Err(error) => {
                if !problems.contains_key(&file) {
                    tracing::error!(file, %error, "cannot be written; trying again every {} s", RETRY.as_secs());
                }
                problems.insert(file, error.to_string());
                self.queue().pending.entry(name).or_insert(pending);
            }
        }
        // The status is updated before the caller continues.
        self.status.update(|status| status.state_problem = describe(problems));
        if let Some(attempted) = attempted {
            let _ = attempted.send(());
        }
    }
}

fn describe(problems: &BTreeMap<String, String>) -> String {
    let lines: Vec<String> = problems.iter().map(|(file, error)| format!("{file}: {error}")).collect();
    match lines.is_empty() {
        true => String::new(),
        false => format!("{}; a restart without etcd would bring back an older state", lines.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_that_cannot_be_written_keeps_its_content_and_is_written_later() {
        let directory = std::env::temp_dir().join(format!("csp-state-files-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        let (status, mut receiver) = StatusCell::new();
        let files = StateFiles::open(&directory, status).unwrap();
        files.submit("a.json", || Ok("1".to_owned())).await;
        let content = || fs::read_to_string(directory.join("a.json")).unwrap();
        assert_eq!((content().as_str(), receiver.borrow().state_problem.as_str()), ("1", ""));
        // A directory stands where the new file is to be made.
        fs::create_dir(directory.join("a.json.new")).unwrap();
        files.submit("a.json", || Ok("2".to_owned())).await;
        let problem = receiver.borrow().state_problem.clone();
        assert!(problem.contains("a.json: Is a directory"), "{problem}");
        assert_eq!(content(), "1");
        files.submit("b.json", || Ok("3".to_owned())).await;
        assert_eq!(fs::read_to_string(directory.join("b.json")).unwrap(), "3", "other files are written");
        fs::remove_dir(directory.join("a.json.new")).unwrap();
        let healed = receiver.wait_for(|status| status.state_problem.is_empty());
        drop(tokio::time::timeout(Duration::from_secs(30), healed).await.unwrap().unwrap());
        assert_eq!(content(), "2");
        fs::remove_dir_all(&directory).unwrap();
    }
}
