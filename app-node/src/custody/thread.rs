//! The custody's thread: turns while there is work, waits when there is none; and the agent's end of it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use csp_telemetry::{Mailbox, MailboxSender, MetricSource, MetricWriter, SnapshotCell};
use csp_types::{Duration, Instant, NodeId};
use csp_vi::{Armed, WaitSet, Wake};

use super::{Charge, Counters, Custody, now, unix_now_s};

/// How long the thread looks again before it blocks when it found nothing.
const SPIN: Duration = Duration::from_micros(20);
/// Longest sleep while there are connections, and while there are none.
const SLEEP_MAX: Duration = Duration::from_millis(250);
const SLEEP_UNUSED: Duration = Duration::from_secs(60);
const PUBLISH_INTERVAL: Duration = Duration::from_millis(250);
/// Orders that may wait.
const MAILBOX_CAPACITY: usize = 4096;

#[derive(Debug)]
enum Order {
    Take(Box<Charge>),
    Proxies(Vec<(NodeId, u8, PathBuf)>),
    Stop,
}

/// What the custody publishes: its counters, and how many connections there are.
pub type Published = (Counters, usize);

/// The custody as the agent has it. Its thread ends when this is dropped; its connections end with it.
#[derive(Debug)]
pub struct Custodian {
    mailbox: MailboxSender<Order>,
    published: Arc<SnapshotCell<Published>>,
    thread: Option<JoinHandle<()>>,
}

impl Custodian {
    pub(super) fn start(custody: Custody) -> io::Result<Self> {
        let (mailbox, receiver) = csp_telemetry::mailbox::mailbox(MAILBOX_CAPACITY)?;
        let published = Arc::new(SnapshotCell::new(custody.counters()));
        let (cell, set) = (Arc::clone(&published), WaitSet::new()?);
        let run = move || run(custody, receiver, &cell, set);
        let thread = std::thread::Builder::new().name("custody".to_owned()).spawn(run)?;
        Ok(Custodian { mailbox, published, thread: Some(thread) })
    }

    /// Takes a connection into custody; one that there is no room for ends.
    pub fn take(&self, charge: Charge) {
        if let Err(error) = self.mailbox.send(Order::Take(Box::new(charge))) {
            tracing::warn!(%error, "a connection could not be taken into custody");
        }
    }

    /// Tells the proxies that there are now; `false`: tell them again later.
    pub fn set_proxies(&self, proxies: Vec<(NodeId, u8, PathBuf)>) -> bool {
        self.mailbox.send(Order::Proxies(proxies)).is_ok()
    }

    /// The custody's numbers.
    pub fn metrics(&self) -> impl MetricSource + 'static {
        Metrics(Arc::clone(&self.published))
    }
}

impl Drop for Custodian {
    fn drop(&mut self) {
        let _ = self.mailbox.send(Order::Stop); // one that is gone has stopped
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(
    mut custody: Custody,
    mut mailbox: Mailbox<Order>,
    published: &SnapshotCell<Published>,
    mut set: WaitSet,
) {
    let (mut wake, mut generation): (Vec<Wake>, Option<u64>) = (Vec::new(), None);
    let (mut last_work, mut last_published, mut unix_s) = (now(), Instant::ZERO, unix_now_s());
    loop {
        let at = now();
        if at.saturating_since(last_published) >= PUBLISH_INTERVAL {
            (last_published, unix_s) = (at, unix_now_s());
            published.publish(&custody.counters());
        }
        let mut busy = false;
        while let Some(order) = mailbox.poll() {
            busy = true;
            match order {
                Order::Take(charge) => custody.take(at, *charge),
                Order::Proxies(proxies) => custody.set_proxies(proxies.into_iter()),
                Order::Stop => return,
            }
        }
        busy |= custody.turn(at, unix_s);
        if busy {
            last_work = at;
        } else if at.saturating_since(last_work) < SPIN {
            std::thread::yield_now();
        } else if matches!(custody.arm(), Ok(Armed::Armed)) {
            if generation != Some(custody.wake_generation()) {
                generation = Some(custody.wake_generation());
                wake.clear();
                custody.wake(&mut wake);
                set.update(&wake);
                set.add(&mailbox);
                set.add(custody.sockets());
            }
            let longest = if custody.counters().1 > 0 { SLEEP_MAX } else { SLEEP_UNUSED };
            let until = custody.next_timeout().map_or(longest, |t| t.saturating_since(at).min(longest));
            if set.wait(until) {
                mailbox.clear_wake();
            }
            last_work = now();
        }
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
