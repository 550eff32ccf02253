//! The connection log: records of workers, written by a thread of its own to a file or to standard output.
//!
//! ```text
//!  worker ── list of records, every 100 ms ──▶ writer ──▶ file, reopened by SIGHUP
//!         ◀────────── empty lists ───────────
//! ```
//! A worker never waits: lists for which there is no room are lost, and counted.

mod line;

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use csp_daemon::background::thread_time;
use csp_daemon::{DaemonError, clock};
use csp_telemetry::{MetricSource, MetricWriter};
use csp_types::{Instant, NodeId};
use serde::Deserialize;
use tokio::signal::unix::{SignalKind, signal};

use crate::ProxyWorker;
use crate::core::EndedConnection;

/// Lists of records that may wait for the writer.
const LISTS_MAX: usize = 64;
/// What `file` says for standard output.
const STDOUT: &str = "-";

/// `connection_log:` where connections are recorded that the policy says are to be.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogSection {
    /// The file; it is created, appended to, and opened again when the daemon gets SIGHUP. `-`: standard
    /// output, which is the journal under systemd.
    pub file: PathBuf,
    /// How a record is written.
    #[serde(default)]
    pub format: Format,
}

/// How a record is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// A JSON object a line ([`csp_api::connections::ConnectionRecord`]).
    #[default]
    Json,
    /// Fields separated by spaces.
    Text,
}

/// The records of one worker up to a time.
struct List {
    worker: u8,
    now: Instant,
    records: Vec<EndedConnection>,
}

#[derive(Debug, Default)]
struct Counts {
    written: AtomicU64,
    lost: AtomicU64,
    failed: AtomicU64,
    busy_ns: AtomicU64,
    reopen: AtomicBool,
}

/// What the writer gets.
enum Job {
    Write(List),
    /// Nothing follows.
    End,
}

/// A worker's way to the writer. Clones share it.
#[derive(Clone)]
pub struct ConnectionLog {
    lists: Sender<Job>,
    writer: Arc<Mutex<Option<JoinHandle<()>>>>,
    spare: Receiver<Vec<EndedConnection>>,
    counts: Arc<Counts>,
}

impl std::fmt::Debug for ConnectionLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnectionLog").field("counts", &self.counts).finish_non_exhaustive()
    }
}

impl ConnectionLog {
    /// Opens the file and starts the writer. Errors say what is wrong with the file.
    pub fn start(section: &LogSection, node: NodeId) -> Result<ConnectionLog, DaemonError> {
        let output = Output::open(&section.file).map_err(|error| {
            let words = format!("connection_log.file: {}: {error}", section.file.display());
            DaemonError::System(io::Error::new(error.kind(), words))
        })?;
        let (lists, filled) = bounded::<Job>(LISTS_MAX);
        let (emptied, spare) = bounded(LISTS_MAX);
        let counts = Arc::new(Counts::default());
        let (of_thread, format, path) = (counts.clone(), section.format, section.file.clone());
        let thread = std::thread::Builder::new().name("connection-log".to_owned()).spawn(move || {
            let mut writer =
                Writer { node, format, path, output: Some(output), is_failing: false, counts: of_thread };
            while let Ok(Job::Write(mut list)) = filled.recv() {
                writer.write(&list);
                list.records.clear();
                let _ = emptied.try_send(list.records);
            }
        })?;
        Ok(ConnectionLog { lists, writer: Arc::new(Mutex::new(Some(thread))), spare, counts })
    }

    /// Opens the file again before the next record: it was renamed.
    pub fn reopen(&self) {
        self.counts.reopen.store(true, Ordering::Relaxed);
    }

    /// Opens the file again whenever the process gets SIGHUP. Does not end unless signals cannot be had.
    pub(super) async fn follow_hangups(self) {
        let Ok(mut hangups) = signal(SignalKind::hangup()) else { return };
        while hangups.recv().await.is_some() {
            self.reopen();
        }
    }

    /// Waits until what workers have given is written. Nothing can be recorded afterwards.
    pub(super) fn finish(&self) {
        let _ = self.lists.send(Job::End); // the writer has ended otherwise
        let thread = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        let _ = thread.map(JoinHandle::join); // a panic would have ended the process
    }

    /// Gives the writer what waits at a worker. Does not wait.
    pub(super) fn take(&self, worker: &mut ProxyWorker) {
        if !worker.core().has_ended_connections() {
            return;
        }
        let room = self.spare.try_recv().unwrap_or_default();
        let (records, lost) = worker.take_ended_connections(room);
        let list = List { worker: worker.number(), now: clock::now(), records };
        let refused = match self.lists.try_send(Job::Write(list)).map_err(TrySendError::into_inner) {
            Err(Job::Write(list)) => list.records.len() as u64,
            _ => 0,
        };
        self.counts.lost.fetch_add(lost + refused, Ordering::Relaxed);
    }
}

impl MetricSource for ConnectionLog {
    fn collect(&self, out: &mut MetricWriter) {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let counts = &self.counts;
        let help = "Records of connections written to the connection log";
        out.counter("csp_connection_log_records_total", help, &[], count(&counts.written));
        for (reason, lost) in [("busy", count(&counts.lost)), ("file", count(&counts.failed))] {
            let help = "Records of connections that were lost: the writer was too slow, or the file could not be written";
            out.counter("csp_connection_log_lost_total", help, &[("reason", reason)], lost);
        }
        let seconds = count(&counts.busy_ns) / 1_000_000_000;
        let help = "Processor time of the connection log's writer";
        out.counter("csp_connection_log_writer_seconds_total", help, &[], seconds);
    }
}

/// Where lines go.
enum Output {
    File(BufWriter<File>),
    Stdout(BufWriter<io::Stdout>),
}

impl Output {
    fn open(path: &Path) -> io::Result<Output> {
        if path == Path::new(STDOUT) {
            return Ok(Output::Stdout(BufWriter::new(io::stdout())));
        }
        let file = OpenOptions::new().append(true).create(true).mode(0o640).open(path)?;
        Ok(Output::File(BufWriter::with_capacity(256 << 10, file)))
    }

    fn writer(&mut self) -> &mut dyn Write {
        match self {
            Output::File(file) => file,
            Output::Stdout(stdout) => stdout,
        }
    }
}

struct Writer {
    node: NodeId,
    format: Format,
    path: PathBuf,
    /// `None` after an error: it is opened again for the next list.
    output: Option<Output>,
    /// The last list could not be written; the file may end within a line.
    is_failing: bool,
    counts: Arc<Counts>,
}

impl Writer {
    fn write(&mut self, list: &List) {
        let count = list.records.len() as u64;
        match self.try_write(list) {
            Ok(()) => {
                self.is_failing = false;
                self.counts.written.fetch_add(count, Ordering::Relaxed);
            }
            Err(error) => {
                self.counts.failed.fetch_add(count, Ordering::Relaxed);
                if !std::mem::replace(&mut self.is_failing, true) {
                    let file = self.path.display();
                    tracing::error!(%file, %error, "the connection log cannot be written: its records are lost");
                }
                self.output = None;
            }
        }
        let busy = u64::try_from(thread_time().as_nanos()).unwrap_or(u64::MAX);
        self.counts.busy_ns.store(busy, Ordering::Relaxed);
    }

    fn try_write(&mut self, list: &List) -> io::Result<()> {
        if self.counts.reopen.swap(false, Ordering::Relaxed) {
            self.output = None;
        }
        let output = match &mut self.output {
            Some(output) => output,
            closed => closed.insert(Output::open(&self.path)?),
        };
        let times = line::Times::new(list.now);
        let out = output.writer();
        if self.is_failing {
            out.write_all(b"\n")?;
        }
        for record in &list.records {
            line::write(out, self.format, (self.node, list.worker), &times, record)?;
        }
        out.flush()
    }
}
