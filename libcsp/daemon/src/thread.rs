//! A data thread: turns while there is work, waits when there is none; and the control thread's end of it.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread::JoinHandle;

use csp_telemetry::SnapshotCell;
use csp_telemetry::mailbox::{Mailbox, MailboxError, MailboxSender, mailbox};
use csp_types::spin::{Gap, SpinPolicy, SpinSetting, SpinWorth};
use csp_types::{Duration, Instant};
use csp_vi::{Armed, ViError, WaitSet, Wake};

use crate::clock::{now, unix_now_s};

/// How often published numbers are renewed, at most.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(100);
/// Before a sleep that may be longer than this the numbers are published, however fresh the last ones are.
const LONG_SLEEP: Duration = Duration::from_secs(1);

/// How long [`DataThread::stop_all`] waits before it tries a full mailbox again.
const FULL_WAIT: Duration = Duration::from_millis(1);

/// Something that is moved on by turns, in a thread of its own.
pub trait DataWorker {
    /// What the control thread says to it or asks of it.
    type Question: Send + 'static;
    /// What it publishes.
    type Published: Clone + Send + 'static;

    /// Moves everything that can move; returns whether anything did. `unix_s` may be a tenth of a second behind.
    fn turn(&mut self, now: Instant, unix_s: u64) -> bool;

    /// Answers the control thread; [`ControlFlow::Break`] ends the thread.
    fn answer(&mut self, now: Instant, question: Self::Question) -> ControlFlow<()>;

    /// The numbers to publish. Called ten times a second at most, and before each sleep that may be long.
    fn publish(&mut self) -> Self::Published;

    /// Gets ready to sleep.
    fn arm(&mut self) -> Result<Armed, ViError>;

    /// What wakes a sleeper.
    fn wake(&self, into: &mut Vec<Wake>);

    /// Counts changes of what [`wake`](Self::wake) tells.
    fn wake_generation(&self) -> u64;

    /// When a turn is wanted though nothing happens.
    fn next_timeout(&self) -> Option<Instant>;

    /// Longest sleep. Numbers of a worker that sleeps are as old, unless this is over a second: then they are published before.
    fn sleep_max(&self) -> Duration {
        PUBLISH_INTERVAL
    }
}

/// A data thread as the control thread has it.
#[derive(Debug)]
pub struct DataThread<Q, P> {
    mailbox: MailboxSender<Q>,
    published: Arc<SnapshotCell<P>>,
    thread: Option<JoinHandle<()>>,
}

impl<Q: Send + 'static, P: Clone + Send + 'static> DataThread<Q, P> {
    /// Starts a thread named `name` around `worker`. At most `questions_max` questions wait for it; `spin` is how long it looks
    /// again before it sleeps. Errors are those of making a thread, an eventfd or an epoll set.
    pub fn start<W>(name: String, mut worker: W, questions_max: usize, spin: SpinSetting) -> io::Result<Self>
    where
        W: DataWorker<Question = Q, Published = P> + Send + 'static,
    {
        let (sender, receiver) = mailbox(questions_max)?;
        let published = Arc::new(SnapshotCell::new(worker.publish()));
        let (cell, waiter) = (Arc::clone(&published), Waiter::new()?);
        let spin = SpinPolicy::new(spin, SpinWorth::DAEMON);
        let thread = std::thread::Builder::new()
            .name(name)
            .spawn(move || run(worker, receiver, &cell, waiter, spin))?;
        Ok(DataThread { mailbox: sender, published, thread: Some(thread) })
    }

    /// Where questions go.
    pub fn mailbox(&self) -> &MailboxSender<Q> {
        &self.mailbox
    }

    /// What the worker published last.
    pub fn published(&self) -> &Arc<SnapshotCell<P>> {
        &self.published
    }

    /// Sends every thread what ends it, then waits for all of them. A second time nothing happens.
    pub fn stop_all(threads: &mut [Self], end: impl Fn() -> Q) {
        for thread in threads.iter().filter(|thread| thread.thread.is_some()) {
            // One that is gone has stopped; one that is behind has to hear it.
            while thread.mailbox.send(end()) == Err(MailboxError::Full) {
                std::thread::sleep(FULL_WAIT);
            }
        }
        for thread in threads.iter_mut().filter_map(|thread| thread.thread.take()) {
            let _ = thread.join(); // its panic has ended the process
        }
    }
}

fn run<W: DataWorker>(
    mut worker: W,
    mut mailbox: Mailbox<W::Question>,
    published: &SnapshotCell<W::Published>,
    mut waiter: Waiter,
    mut spin: SpinPolicy,
) {
    let (mut gap, mut last_published, mut unix_s) = (Gap::new(), Instant::ZERO, unix_now_s());
    loop {
        let at = now();
        let mut busy = false;
        // One question a turn: a mailbox that is refilled as fast as it is emptied does not delay the turns, on which
        // heartbeats and timers depend.
        if let Some(question) = mailbox.poll() {
            busy = true;
            if worker.answer(at, question).is_break() {
                return;
            }
        }
        busy |= worker.turn(at, unix_s);
        if at.saturating_since(last_published) >= PUBLISH_INTERVAL {
            (last_published, unix_s) = (at, unix_now_s());
            published.publish(&worker.publish());
        }
        if busy {
            spin.found(&mut gap, at);
        } else if spin.nothing(&mut gap, at) {
            std::thread::yield_now();
        } else if matches!(worker.arm(), Ok(Armed::Armed)) {
            let mut longest = worker.sleep_max();
            if longest > LONG_SLEEP && !published.publish(&worker.publish()) {
                longest = PUBLISH_INTERVAL; // somebody reads just now: once more then
            }
            waiter.wait(&worker, &mut mailbox, at, longest);
            gap.woke();
            if now().saturating_since(at) >= PUBLISH_INTERVAL {
                unix_s = unix_now_s();
            }
        }
    }
}

/// The descriptors that a worker blocks on, kept in step with the worker.
struct Waiter {
    set: WaitSet,
    wake: Vec<Wake>,
    generation: Option<u64>,
}

impl Waiter {
    fn new() -> io::Result<Self> {
        Ok(Waiter { set: WaitSet::new()?, wake: Vec::new(), generation: None })
    }

    /// Blocks until there is something to do, for `longest` after `at` at most.
    fn wait<W: DataWorker>(
        &mut self,
        worker: &W,
        mailbox: &mut Mailbox<W::Question>,
        at: Instant,
        longest: Duration,
    ) {
        if self.generation != Some(worker.wake_generation()) {
            self.generation = Some(worker.wake_generation());
            self.wake.clear();
            worker.wake(&mut self.wake);
            self.set.update(&self.wake);
            self.set.add(mailbox);
        }
        let until = worker.next_timeout().map_or(longest, |t| t.saturating_since(at).min(longest));
        if self.set.wait(until) {
            mailbox.clear_wake();
        }
    }
}

#[cfg(test)]
mod tests;
