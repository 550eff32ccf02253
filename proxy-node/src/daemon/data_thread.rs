//! A data worker's thread: turns while there is work, waits when there is none.

use std::time::SystemTime;

use csp_telemetry::{Mailbox, Reply, SnapshotCell};
use csp_types::{Duration, FlowLabel, Instant, TraceEvent};
use csp_vi::{Armed, WaitSet, Wake};

use crate::ProxyWorker;
use crate::core::{EgressRule, FlowSnapshot, RecentFlow, ServiceSnapshot, ServiceSpec};

use super::metrics::Published;

/// How long a worker that found nothing looks again before it blocks. Short: on machines with few cores the others
/// need the processor to make work for it.
const SPIN: Duration = Duration::from_micros(20);
/// Longest sleep, so that published numbers and token checks stay fresh.
const SLEEP_MAX: Duration = Duration::from_millis(100);
const PUBLISH_INTERVAL: Duration = Duration::from_millis(100);

/// What the control thread says to or asks of a worker.
pub enum Question {
    /// A new policy generation; answered when it is in force.
    Policy(Vec<ServiceSpec>, Vec<EgressRule>, Reply<()>),
    /// At most so many flows.
    Flows(usize, Reply<Vec<FlowSnapshot>>),
    /// At most so many flows that live or ended lately, newest first.
    Recent(usize, Reply<Vec<RecentFlow>>),
    /// The services with their pools.
    Services(Reply<Vec<ServiceSnapshot>>),
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
    mut worker: ProxyWorker,
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
            published.publish(&Published::of(&worker));
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

/// The descriptors that a worker blocks on, kept in step with its endpoints.
struct Waiter {
    set: WaitSet,
    wake: Vec<Wake>,
    generation: Option<u64>,
}

impl Waiter {
    /// Blocks until there is something to do.
    fn wait(&mut self, worker: &ProxyWorker, mailbox: &mut Mailbox<Question>, at: Instant) {
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

fn answer(worker: &mut ProxyWorker, at: Instant, question: Question) -> bool {
    match question {
        Question::Policy(services, egress, reply) => {
            worker.set_policy(at, services, egress);
            reply.send(());
        }
        Question::Flows(limit, reply) => reply.send(worker.core().flows(at, limit)),
        Question::Recent(limit, reply) => reply.send(worker.core().recent_flows(limit)),
        Question::Services(reply) => reply.send(worker.core().services()),
        Question::Trace(label, reply) => {
            let events = worker.core().trace().iter().filter(|e| label.is_none_or(|l| l == e.label));
            reply.send(events.copied().collect());
        }
        Question::Stop => {
            worker.close(at);
            worker.turn(now(), unix_now_s());
            return true;
        }
    }
    false
}
