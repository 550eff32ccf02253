//! The custody in its thread, and the agent's end of it.

use std::io;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use csp_daemon::{DataThread, DataWorker};
use csp_telemetry::{MetricSource, MetricWriter, SnapshotCell};
use csp_types::spin::SpinSetting;
use csp_types::{Duration, Instant, NodeId};
use csp_vi::{Armed, ViError, Wake};

use super::{Charge, Counters, Custody};

/// Longest sleep while there are connections, and while there are none.
const SLEEP_MAX: Duration = Duration::from_millis(250);
const SLEEP_UNUSED: Duration = Duration::from_secs(60);
/// Orders that may wait.
const ORDERS_MAX: usize = 4096;

/// What the agent says to the custody.
#[derive(Debug)]
pub enum Order {
    /// Take this connection.
    Take(Box<Charge>),
    /// The proxy workers that there are now.
    Proxies(Vec<(NodeId, u8, PathBuf)>),
    /// End the thread.
    Stop,
}

/// What the custody publishes: its counters, and how many connections there are.
pub type Published = (Counters, usize);

/// The custody as the agent has it. Its thread ends when this is dropped; its connections end with it.
#[derive(Debug)]
pub struct Custodian(DataThread<Order, Published>);

impl Custodian {
    pub(super) fn start(custody: Custody, spin: SpinSetting) -> io::Result<Self> {
        Ok(Custodian(DataThread::start("custody".to_owned(), custody, ORDERS_MAX, spin)?))
    }

    /// Takes a connection into custody; one that there is no room for ends.
    pub fn take(&self, charge: Charge) {
        if let Err(error) = self.0.mailbox().send(Order::Take(Box::new(charge))) {
            tracing::warn!(%error, "a connection could not be taken into custody");
        }
    }

    /// Tells the proxies that there are now; `false`: tell them again later.
    pub fn set_proxies(&self, proxies: Vec<(NodeId, u8, PathBuf)>) -> bool {
        self.0.mailbox().send(Order::Proxies(proxies)).is_ok()
    }

    /// The custody's numbers.
    pub fn metrics(&self) -> impl MetricSource + 'static {
        Metrics(Arc::clone(self.0.published()))
    }
}

impl Drop for Custodian {
    fn drop(&mut self) {
        DataThread::stop_all(std::slice::from_mut(&mut self.0), || Order::Stop);
    }
}

impl DataWorker for Custody {
    type Question = Order;
    type Published = Published;

    fn turn(&mut self, now: Instant, unix_s: u64) -> bool {
        Custody::turn(self, now, unix_s)
    }

    fn answer(&mut self, now: Instant, order: Order) -> ControlFlow<()> {
        match order {
            Order::Take(charge) => self.take(now, *charge),
            Order::Proxies(proxies) => self.set_proxies(proxies.into_iter()),
            Order::Stop => return ControlFlow::Break(()),
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

struct Metrics(Arc<SnapshotCell<Published>>);

impl MetricSource for Metrics {
    fn collect(&self, out: &mut MetricWriter) {
        let (counters, connections) = self.0.read();
        let help = "Connections that the agent carries for programs that share or inherited them";
        out.gauge("csp_custody_connections", help, &[], connections as f64);
        out.counter("csp_custody_taken_total", "Connections taken into custody", &[], counters.taken);
        let help = "Connections that could not be taken over from their proxy";
        out.counter("csp_custody_lost_total", help, &[], counters.lost);
        for (direction, bytes) in [("in", counters.bytes_in), ("out", counters.bytes_out)] {
            let help = "Bytes of connections in custody, from clients (in) and to them (out)";
            out.counter("csp_custody_bytes_total", help, &[("direction", direction)], bytes);
        }
    }
}
