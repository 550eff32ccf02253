//! The connection log: records of workers, written by a thread of its own to a file, to standard output or to
//! syslog.
//!
//! ```text
//!  worker ── list of records, every 100 ms ──▶ writer ──▶ file, reopened by SIGHUP; or datagrams
//!         ◀────────── empty lists ───────────
//! ```
//! A worker never waits: lists for which there is no room are lost, and counted.

mod line;
mod output;

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use csp_control::config::Problems;
use csp_daemon::background::thread_time;
use csp_daemon::syslog::{Facility, Target};
use csp_daemon::{DaemonError, clock};
use csp_policy::LogAddresses;
use csp_telemetry::{MetricSource, MetricWriter};
use csp_types::{Instant, NodeId};
use serde::Deserialize;
use tokio::signal::unix::{SignalKind, signal};

use crate::ProxyWorker;
use crate::core::EndedConnection;
use output::{Output, Place};

/// Lists of records that may wait for the writer.
const LISTS_MAX: usize = 64;

/// `connection_log:` where connections are recorded that the policy says are to be: `file` or `syslog`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogSection {
    /// The file; it is created, appended to, and opened again when the daemon gets SIGHUP. `-`: standard
    /// output, which is the journal under systemd.
    #[serde(default)]
    pub file: Option<PathBuf>,
    /// The syslog that records are sent to.
    #[serde(default)]
    pub syslog: Option<SyslogSection>,
    /// How a record is written.
    #[serde(default)]
    pub format: Format,
}

/// `connection_log.syslog:` who gets records as messages.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SyslogSection {
    /// The socket or address.
    pub to: Target,
    /// The facility.
    #[serde(default)]
    pub facility: Facility,
}

impl LogSection {
    /// Checks it as the section `connection_log`.
    pub(super) fn check(&self, problems: &mut Problems) {
        if self.file.is_some() == self.syslog.is_some() {
            let message = "allowed is one of both: file, such as /var/log/csp/proxy-node/connections.log, or syslog, such as {to: /dev/log}";
            problems.add("connection_log", message);
        }
    }
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
    addresses: LogAddresses,
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
    /// How much of clients' addresses the records of this worker have: nothing before there is a policy.
    addresses: LogAddresses,
    /// What cannot be written, for the metric.
    sink: &'static str,
}

impl std::fmt::Debug for ConnectionLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnectionLog").field("counts", &self.counts).finish_non_exhaustive()
    }
}

impl ConnectionLog {
    /// Opens the file and starts the writer. Errors say what is wrong with the file.
    pub fn start(section: &LogSection, node: NodeId) -> Result<ConnectionLog, DaemonError> {
        let (place, sink) = match (&section.file, &section.syslog) {
            (Some(file), _) => (Place::File(file.clone()), "file"),
            (None, Some(syslog)) => (Place::Syslog(syslog.clone()), "syslog"),
            (None, None) => return Err(DaemonError::Unavailable("connection_log: no file".to_owned())),
        };
        let output = Output::open(&place).map_err(|error| {
            let words = format!("connection_log.{sink}: {place}: {error}");
            DaemonError::System(io::Error::new(error.kind(), words))
        })?;
        let (lists, filled) = bounded::<Job>(LISTS_MAX);
        let (emptied, spare) = bounded(LISTS_MAX);
        let counts = Arc::new(Counts::default());
        let (of_thread, format) = (counts.clone(), section.format);
        let thread = std::thread::Builder::new().name("connection-log".to_owned()).spawn(move || {
            let mut writer =
                Writer { node, format, place, output: Some(output), is_failing: false, counts: of_thread };
            while let Ok(Job::Write(mut list)) = filled.recv() {
                writer.write(&list);
                list.records.clear();
                let _ = emptied.try_send(list.records);
            }
        })?;
        let writer = Arc::new(Mutex::new(Some(thread)));
        Ok(ConnectionLog { lists, writer, spare, counts, addresses: LogAddresses::None, sink })
    }

    /// Sets how much of clients' addresses this worker's records have from now on.
    pub(crate) fn set_addresses(&mut self, addresses: LogAddresses) {
        self.addresses = addresses;
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
        let (worker, now, addresses) = (worker.number(), clock::now(), self.addresses);
        let list = List { worker, now, addresses, records };
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
        for (reason, lost) in [("busy", count(&counts.lost)), (self.sink, count(&counts.failed))] {
            let help = "Records of connections that were lost: the writer was too slow, or the file or syslog did not take them";
            out.counter("csp_connection_log_lost_total", help, &[("reason", reason)], lost);
        }
        let seconds = count(&counts.busy_ns) / 1_000_000_000;
        let help = "Processor time of the connection log's writer";
        out.counter("csp_connection_log_writer_seconds_total", help, &[], seconds);
    }
}

struct Writer {
    node: NodeId,
    format: Format,
    place: Place,
    /// `None` after an error: it is opened again for the next list.
    output: Option<Output>,
    /// The last list could not be written; the file may end within a line.
    is_failing: bool,
    counts: Arc<Counts>,
}

impl Writer {
    fn write(&mut self, list: &List) {
        let (count, mut written) = (list.records.len() as u64, 0);
        match self.try_write(list, &mut written) {
            Ok(()) => self.is_failing = false,
            Err(error) => {
                if !std::mem::replace(&mut self.is_failing, true) {
                    let place = &self.place;
                    tracing::error!(%place, %error, "the connection log cannot be written: its records are lost");
                }
                self.output = None;
            }
        }
        self.counts.written.fetch_add(written, Ordering::Relaxed);
        self.counts.failed.fetch_add(count.saturating_sub(written), Ordering::Relaxed);
        let busy = u64::try_from(thread_time().as_nanos()).unwrap_or(u64::MAX);
        self.counts.busy_ns.store(busy, Ordering::Relaxed);
    }

    /// Writes a list, and adds to `written` what is certainly there.
    fn try_write(&mut self, list: &List, written: &mut u64) -> io::Result<()> {
        if self.counts.reopen.swap(false, Ordering::Relaxed) {
            self.output = None;
        }
        let output = match &mut self.output {
            Some(output) => output,
            closed => closed.insert(Output::open(&self.place)?),
        };
        let (node, format) = (self.node, self.format);
        let style = line::Style { node, worker: list.worker, format, addresses: list.addresses };
        let times = line::Times::new(list.now);
        let out = match output {
            Output::Syslog(messages) => {
                for record in &list.records {
                    messages.send(style, &times, record)?;
                    *written += 1;
                }
                return Ok(());
            }
            Output::File(file) => file as &mut dyn Write,
            Output::Stdout(stdout) => stdout,
        };
        if self.is_failing {
            out.write_all(b"\n")?;
        }
        for record in &list.records {
            line::write(out, style, &times, record)?;
            out.write_all(b"\n")?;
        }
        out.flush()?;
        *written = list.records.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
