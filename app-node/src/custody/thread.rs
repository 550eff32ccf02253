//! The custody in its thread, and the agent's handle to it.

use std::io;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use csp_daemon::{DataThread, DataWorker, Progress};
use csp_telemetry::{MetricSource, MetricWriter, Place, Shares, SnapshotCell};
use csp_types::spin::SpinSetting;
use csp_types::{Duration, Instant, NodeId};
use csp_vi::{Armed, ViError, Wake};
use csp_wire::agent::CarriedOption;

use super::{Counters, Custody, LeftConnection, WAITING_MAX, waiting_places};

/// Longest sleep while there are connections, and while there are none.
const SLEEP_MAX: Duration = Duration::from_millis(250);
const SLEEP_UNUSED: Duration = Duration::from_secs(60);
/// Largest number of queued commands: every connection that may wait, and changes of the proxies.
const COMMANDS_MAX: usize = WAITING_MAX + 16;

/// A message of the agent to the custody.
#[derive(Debug)]
pub enum Command {
    /// Take this connection, which holds an entry among the waiting ones.
    Take(Box<(LeftConnection, Place<u32>)>),
    /// Set an option of a connection.
    Option(CarriedOption),
    /// Replace the list of proxy workers.
    Proxies(Vec<(NodeId, u8, PathBuf)>),
    /// Stop the thread.
    Stop,
}

/// What the custody publishes: its counters, and the number of connections.
pub type Published = (Counters, usize);

/// The agent's handle to the custody. Dropping it stops the thread and ends its connections.
#[derive(Debug)]
pub struct Custodian {
    thread: DataThread<Command, Published>,
    /// Entries of waiting connections, by user.
    places: Shares<u32>,
    /// Connections lost because no entry was free.
    crowded_out: Arc<AtomicU64>,
}

impl Custodian {
    pub(super) fn start(custody: Custody, spin: SpinSetting) -> io::Result<Self> {
        let thread = DataThread::start("custody".to_owned(), custody, COMMANDS_MAX, spin)?;
        Ok(Custodian { thread, places: waiting_places(), crowded_out: Arc::default() })
    }

    /// Takes a connection into custody. The connection ends if its user has the largest number of waiting
    /// connections, or if the queue is full.
    pub fn take(&self, connection: LeftConnection) {
        let sent = self.places.enter(connection.uid).is_some_and(|place| {
            self.thread.mailbox().send(Command::Take(Box::new((connection, place)))).is_ok()
        });
        self.crowded_out.fetch_add(u64::from(!sent), Ordering::Relaxed);
    }

    /// Sets an option of a connection in custody; it is lost if the queue is full.
    pub fn set_option(&self, option: CarriedOption) {
        let _ = self.thread.mailbox().send(Command::Option(option));
    }

    /// Replaces the list of proxies; `false` if the queue is full and the caller has to try again later.
    pub fn set_proxies(&self, proxies: Vec<(NodeId, u8, PathBuf)>) -> bool {
        self.thread.mailbox().send(Command::Proxies(proxies)).is_ok()
    }

    /// Whether the custody's thread still takes turns.
    pub fn progress(&self) -> &Progress {
        self.thread.progress()
    }

    /// Returns the custody's metrics.
    pub fn metrics(&self) -> impl MetricSource + 'static {
        Metrics { published: Arc::clone(self.thread.published()), crowded_out: Arc::clone(&self.crowded_out) }
    }
}

impl Drop for Custodian {
    fn drop(&mut self) {
        DataThread::stop_all(std::slice::from_mut(&mut self.thread), || Command::Stop);
    }
}

impl DataWorker for Custody {
    type Question = Command;
    type Published = Published;

    fn turn(&mut self, now: Instant, unix_s: u64) -> bool {
        Custody::turn(self, now, unix_s)
    }

    fn answer(&mut self, now: Instant, command: Command) -> ControlFlow<()> {
        match command {
            Command::Take(taken) => {
                let (connection, place) = *taken;
                self.take(now, connection, place);
            }
            Command::Option(option) => self.set_option(now, option),
            Command::Proxies(proxies) => self.set_proxies(proxies.into_iter()),
            Command::Stop => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    fn publish(&mut self) -> Published {
        self.counters()
    }

    fn arm(&mut self) -> Result<Armed, ViError> {
        Custody::arm(self)
    }

    fn wake(&self, into: &mut Vec<Wake>) {
        Custody::wake(self, into);
    }

    fn wake_generation(&self) -> u64 {
        Custody::wake_generation(self)
    }

    fn next_timeout(&self) -> Option<Instant> {
        Custody::next_timeout(self)
    }

    fn sleep_max(&self) -> Duration {
        if self.counters().1 > 0 { SLEEP_MAX } else { SLEEP_UNUSED }
    }
}

struct Metrics {
    published: Arc<SnapshotCell<Published>>,
    crowded_out: Arc<AtomicU64>,
}

impl MetricSource for Metrics {
    fn collect(&self, out: &mut MetricWriter) {
        let (counters, connections) = self.published.read();
        let lost = counters.lost + self.crowded_out.load(Ordering::Relaxed);
        let help = "Connections that the agent carries for programs that share or inherited them";
        out.gauge("csp_custody_connections", help, &[], connections as f64);
        out.counter("csp_custody_taken_total", "Connections taken into custody", &[], counters.taken);
        let help = "Connections that could not be taken over from their proxy, or found no place";
        out.counter("csp_custody_lost_total", help, &[], lost);
        for (direction, bytes) in [("in", counters.bytes_in), ("out", counters.bytes_out)] {
            let help = "Bytes of connections in custody, from clients (in) and to them (out)";
            out.counter("csp_custody_bytes_total", help, &[("direction", direction)], bytes);
        }
    }
}
