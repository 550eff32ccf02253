//! A data worker's thread: turns while there is work, waits when there is none.

use std::net::{IpAddr, SocketAddr};
use std::time::SystemTime;

use csp_telemetry::{Mailbox, Reply, SnapshotCell};
use csp_types::{Duration, FlowLabel, Instant, TraceEvent};
use csp_vi::{Armed, WaitSet, Wake};

use crate::core::FlowInfo;
use crate::links::{LinkNotice, ProxySpec, TunnelInfo};
use crate::worker::NetworkWorker;

use super::metrics::Published;

/// How long a worker that found nothing looks again before it blocks. Short: on machines with few cores the others
/// need the processor to make work for it.
const SPIN: Duration = Duration::from_micros(20);
/// Longest sleep, so that published numbers stay fresh.
const SLEEP_MAX: Duration = Duration::from_millis(100);
const PUBLISH_INTERVAL: Duration = Duration::from_millis(100);
/// Turns after closing, so that CLOSE gets out before the process ends.
const LAST_TURNS: usize = 3;

/// What the control thread says to or asks of a worker.
pub enum Question {
    /// A new policy generation: services and egress addresses; answered when it is in force or refused.
    Policy(Vec<SocketAddr>, Vec<IpAddr>, Reply<Result<(), String>>),
    /// The proxies there are now.
    Proxies(Vec<ProxySpec>),
    /// At most so many flows, each with its proxy's node.
    Flows(usize, Reply<Vec<(FlowInfo, String)>>),
    /// The tunnels that are wanted.
    Tunnels(Reply<Vec<TunnelInfo>>),
    /// What the flight recorder has of one flow, or of all.
    Trace(Option<FlowLabel>, Reply<Vec<TraceEvent>>),
    /// Close all links and end the thread.
    Stop,
}

/// CLOCK_MONOTONIC, which the processes of one host share.
pub fn now() -> Instant {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Instant::from_nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

fn unix_now_s() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// Runs until [`Question::Stop`].
pub fn run(
    mut worker: NetworkWorker,
    mut mailbox: Mailbox<Question>,
    published: &SnapshotCell<Published>,
    set: WaitSet,
) {
    let mut waiter = Waiter { set, wake: Vec::new(), generation: None };
    let (mut last_work, mut last_published, mut unix_s) = (now(), Instant::ZERO, unix_now_s());
    loop {
        let at = now();
        let mut busy = worker.turn(at, unix_s);
        while let Some(question) = mailbox.poll() {
            busy = true;
            if answer(&mut worker, at, question) {
                return;
            }
        }
        if at.saturating_since(last_published) >= PUBLISH_INTERVAL {
            (last_published, unix_s) = (at, unix_now_s());
            published.publish(&Published::of(&mut worker));
            log_notices(&mut worker);
        }
        if busy {
            last_work = at;
        } else if at.saturating_since(last_work) < SPIN {
            std::thread::yield_now();
        } else if matches!(worker.arm(), Ok(Armed::Armed)) {
            waiter.wait(&worker, &mut mailbox, at);
            last_work = now();
        }
    }
}

/// Told ten times a second at most, and not while frames wait.
fn log_notices(worker: &mut NetworkWorker) {
    while let Some(notice) = worker.poll_notice() {
        match notice {
            LinkNotice::Up { node, worker, address } => {
                tracing::info!(proxy = %node, worker, address, "tunnel up");
            }
            LinkNotice::Lost { node, worker, reason } => {
                tracing::warn!(proxy = %node, worker, reason, "tunnel lost; its flows go to other proxies");
            }
            LinkNotice::Failed { node, worker, reason } => {
                tracing::warn!(proxy = %node, worker, reason, "no tunnel yet; trying again");
            }
        }
    }
}

/// The descriptors that a worker blocks on, kept in step with its endpoints.
struct Waiter {
    set: WaitSet,
    wake: Vec<Wake>,
    generation: Option<u64>,
}

impl Waiter {
    /// Blocks until there is something to do.
    fn wait(&mut self, worker: &NetworkWorker, mailbox: &mut Mailbox<Question>, at: Instant) {
        if self.generation != Some(worker.wake_generation()) {
            self.generation = Some(worker.wake_generation());
            self.wake.clear();
            worker.wake(&mut self.wake);
            self.set.update(&self.wake);
            self.set.add(mailbox);
        }
        let until = worker.next_timeout().map_or(SLEEP_MAX, |t| t.saturating_since(at).min(SLEEP_MAX));
        if self.set.wait(until) {
            mailbox.clear_wake();
        }
    }
}

fn answer(worker: &mut NetworkWorker, at: Instant, question: Question) -> bool {
    match question {
        Question::Policy(services, egress, reply) => {
            reply.send(worker.set_services(at, &services, &egress).map_err(|error| error.to_string()));
        }
        Question::Proxies(proxies) => worker.set_proxies(at, &proxies),
        Question::Flows(limit, reply) => {
            let name = |flow: &FlowInfo| worker.node_of(flow.proxy).map_or(String::new(), |n| n.to_string());
            reply.send(worker.core().flows().take(limit).map(|flow| (flow, name(&flow))).collect());
        }
        Question::Tunnels(reply) => reply.send(worker.tunnels().collect()),
        Question::Trace(Some(label), reply) => reply.send(worker.core().flow_trace(label)),
        Question::Trace(None, reply) => reply.send(worker.core().trace().iter().copied().collect()),
        Question::Stop => {
            worker.close(at);
            for _ in 0..LAST_TURNS {
                worker.turn(now(), unix_now_s());
            }
            return true;
        }
    }
    false
}
