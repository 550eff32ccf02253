//! Logs of records: of connections and of HTTP requests that have ended, written by a thread of its own for
//! each log to a file, to standard output or to syslog.
//!
//! ```text
//!  worker ── list of records, every 100 ms ──▶ writer ──▶ file, reopened by SIGHUP; or datagrams
//!         ◀────────── empty lists ───────────
//! ```
//! A worker never waits: lists for which there is no room are lost, and counted.

mod connections;
mod http;
mod output;
mod style;

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
pub use http::http_record;
use output::{Output, Place};
use style::{Style, Times};

/// `connection_log:` and `http_log:` where is recorded what the policy says is to be: `file` or `syslog`.
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
    /// Checks it as the section `of` a log.
    pub(super) fn check(&self, of: &What, problems: &mut Problems) {
        if self.file.is_some() == self.syslog.is_some() {
            let message = format!(
                "allowed is one of both: file, such as /var/log/csp/proxy-node/{}, or syslog, such as {{to: /dev/log}}",
                of.file
            );
            problems.add(of.section, message);
        }
    }
}

/// How a record is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// A JSON object a line ([`csp_api::connections::ConnectionRecord`], [`csp_api::http::HttpRecord`]).
    #[default]
    Json,
    /// Fields separated by spaces; of HTTP requests the combined log format.
    Text,
}

/// What a log is of.
#[derive(Debug)]
pub struct What {
    /// The section of the configuration.
    pub section: &'static str,
    /// The name of its thread, and of what it has in messages.
    pub name: &'static str,
    /// MSGID of syslog.
    kind: &'static str,
    /// The usual name of its file.
    file: &'static str,
    /// Lists of records that may wait for the writer.
    lists_max: usize,
    /// The metrics of records that were written and lost, and of the writer's time.
    metrics: [&'static str; 3],
}

/// A record.
pub trait Recorded: Sized + Send + 'static {
    /// What a log of them is of.
    const WHAT: What;
    /// Memory for records of a worker, used again and again.
    type Room: Default + Send;

    /// Returns the records in `room`.
    fn records(room: &Self::Room) -> &[Self];

    /// Forgets the records, and keeps the memory.
    fn clear(room: &mut Self::Room);

    /// Returns what a worker has, in exchange for room, and how many were lost; `None`: it has none.
    fn take(worker: &mut ProxyWorker, room: impl FnOnce() -> Self::Room) -> Option<(Self::Room, u64)>;

    /// Writes it as a line, without its end.
    fn write(&self, out: &mut dyn Write, style: Style, times: &Times) -> io::Result<()>;

    /// When it ended, and whether it did so as it should.
    fn end(&self) -> (Instant, bool);
}

/// The log of connections.
pub type ConnectionLog = RecordLog<EndedConnection>;
/// The log of HTTP requests.
pub type HttpLog = RecordLog<csp_gateway::Record>;

/// The records of one worker up to a time.
struct List<R: Recorded> {
    worker: u8,
    now: Instant,
    addresses: LogAddresses,
    room: R::Room,
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
enum Job<R: Recorded> {
    Write(List<R>),
    /// Nothing follows.
    End,
}

/// A worker's way to the writer. Clones share it.
pub struct RecordLog<R: Recorded> {
    lists: Sender<Job<R>>,
    writer: Arc<Mutex<Option<JoinHandle<()>>>>,
    spare: Receiver<R::Room>,
    counts: Arc<Counts>,
    /// How much of clients' addresses the records of this worker have: nothing before there is a policy.
    addresses: LogAddresses,
    /// What cannot be written, for the metric.
    sink: &'static str,
}

impl<R: Recorded> Clone for RecordLog<R> {
    fn clone(&self) -> Self {
        RecordLog {
            lists: self.lists.clone(),
            writer: self.writer.clone(),
            spare: self.spare.clone(),
            counts: self.counts.clone(),
            addresses: self.addresses,
            sink: self.sink,
        }
    }
}

impl<R: Recorded> std::fmt::Debug for RecordLog<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecordLog").field("counts", &self.counts).finish_non_exhaustive()
    }
}

impl<R: Recorded> RecordLog<R> {
    /// Opens the file and starts the writer. Errors say what is wrong with the file.
    pub fn start(section: &LogSection, node: NodeId) -> Result<Self, DaemonError> {
        let What { section: named, name, .. } = R::WHAT;
        let (place, sink) = match (&section.file, &section.syslog) {
            (Some(file), _) => (Place::File(file.clone()), "file"),
            (None, Some(syslog)) => (Place::Syslog(syslog.clone()), "syslog"),
            (None, None) => return Err(DaemonError::Unavailable(format!("{named}: no file"))),
        };
        let output = Output::open(&place).map_err(|error| {
            let words = format!("{named}.{sink}: {place}: {error}");
            DaemonError::System(io::Error::new(error.kind(), words))
        })?;
        let (lists, filled) = bounded::<Job<R>>(R::WHAT.lists_max);
        let (emptied, spare) = bounded(R::WHAT.lists_max);
        let counts = Arc::new(Counts::default());
        let (of_thread, format) = (counts.clone(), section.format);
        let thread = std::thread::Builder::new().name(name.replace(' ', "-")).spawn(move || {
            let mut writer =
                Writer { node, format, place, output: Some(output), is_failing: false, counts: of_thread };
            while let Ok(Job::Write(mut list)) = filled.recv() {
                writer.write(&list);
                R::clear(&mut list.room);
                let _ = emptied.try_send(list.room);
            }
        })?;
        let writer = Arc::new(Mutex::new(Some(thread)));
        Ok(RecordLog { lists, writer, spare, counts, addresses: LogAddresses::None, sink })
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
        let Some((room, lost)) = R::take(worker, || self.spare.try_recv().unwrap_or_default()) else {
            return;
        };
        let (worker, now, addresses) = (worker.number(), clock::now(), self.addresses);
        let list = List { worker, now, addresses, room };
        let refused = match self.lists.try_send(Job::Write(list)).map_err(TrySendError::into_inner) {
            Err(Job::Write(list)) => R::records(&list.room).len() as u64,
            _ => 0,
        };
        self.counts.lost.fetch_add(lost + refused, Ordering::Relaxed);
    }
}

impl<R: Recorded> MetricSource for RecordLog<R> {
    fn collect(&self, out: &mut MetricWriter) {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let counts = &self.counts;
        let What { name, metrics: [written, losses, time], .. } = R::WHAT;
        let help = format!("Records that were written to the {name}");
        out.counter(written, &help, &[], count(&counts.written));
        for (reason, lost) in [("busy", count(&counts.lost)), (self.sink, count(&counts.failed))] {
            let help = format!(
                "Records of the {name} that were lost: the writer was too slow, or the file or syslog did not take them"
            );
            out.counter(losses, &help, &[("reason", reason)], lost);
        }
        let seconds = count(&counts.busy_ns) / 1_000_000_000;
        out.counter(time, &format!("Processor time of the writer of the {name}"), &[], seconds);
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
    fn write<R: Recorded>(&mut self, list: &List<R>) {
        let (count, mut written) = (R::records(&list.room).len() as u64, 0);
        match self.try_write(list, &mut written) {
            Ok(()) => self.is_failing = false,
            Err(error) => {
                if !std::mem::replace(&mut self.is_failing, true) {
                    let (place, name) = (&self.place, R::WHAT.name);
                    tracing::error!(%place, %error, "the {name} cannot be written: its records are lost");
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
    fn try_write<R: Recorded>(&mut self, list: &List<R>, written: &mut u64) -> io::Result<()> {
        if self.counts.reopen.swap(false, Ordering::Relaxed) {
            self.output = None;
        }
        let output = match &mut self.output {
            Some(output) => output,
            closed => closed.insert(Output::open(&self.place)?),
        };
        let (node, format) = (self.node, self.format);
        let style = Style { node, worker: list.worker, format, addresses: list.addresses };
        let (times, records) = (Times::new(list.now), R::records(&list.room));
        let out = match output {
            Output::Syslog(messages) => {
                for record in records {
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
        for record in records {
            record.write(out, style, &times)?;
            out.write_all(b"\n")?;
        }
        out.flush()?;
        *written = records.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
