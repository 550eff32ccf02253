//! A data thread, which takes turns while there is work and waits while there is none; and the control
//! thread's handle of it.

mod progress;

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

pub use progress::Progress;

/// Shortest interval between publications of a worker's numbers.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(100);
/// Before a sleep that may be longer than this the numbers are published, even if the last publication is
/// recent.
const LONG_SLEEP: Duration = Duration::from_secs(1);

/// Delay before [`DataThread::stop_all`] tries a full mailbox again.
const FULL_WAIT: Duration = Duration::from_millis(1);

/// A worker that runs by turns, in a thread of its own.
pub trait DataWorker {
    /// Messages and requests of the control thread.
    type Question: Send + 'static;
    /// The published numbers.
    type Published: Clone + Send + 'static;

    /// Performs all pending work; returns whether there was any. `unix_s` may be a tenth of a second behind.
    fn turn(&mut self, now: Instant, unix_s: u64) -> bool;

    /// Handles a request of the control thread; [`ControlFlow::Break`] ends the thread.
    fn answer(&mut self, now: Instant, question: Self::Question) -> ControlFlow<()>;

    /// Returns the numbers to publish. Called at most ten times a second, and before each sleep that may be
    /// long.
    fn publish(&mut self) -> Self::Published;

    /// Arms the descriptors of [`wake`](Self::wake) before a sleep.
    fn arm(&mut self) -> Result<Armed, ViError>;

    /// The descriptors that end a sleep, appended to `into`.
    fn wake(&self, into: &mut Vec<Wake>);

    /// Generation of the set that [`wake`](Self::wake) returns; it changes with the set.
    fn wake_generation(&self) -> u64;

    /// Time at which a turn is due even if nothing arrives.
    fn next_timeout(&self) -> Option<Instant>;

    /// Longest sleep. The published numbers of a sleeping worker may be this old, unless it exceeds a second:
    /// then they are published before the sleep.
    fn sleep_max(&self) -> Duration {
        PUBLISH_INTERVAL
    }
}

/// The control thread's handle of a data thread.
#[derive(Debug)]
pub struct DataThread<Q, P> {
    mailbox: MailboxSender<Q>,
    published: Arc<SnapshotCell<P>>,
    progress: Progress,
    thread: Option<JoinHandle<()>>,
}

impl<Q: Send + 'static, P: Clone + Send + 'static> DataThread<Q, P> {
    /// Starts a thread named `name` around `worker`. At most `questions_max` questions wait for it; `spin`
    /// determines how long it polls before it sleeps. Errors are those of creating a thread, an eventfd or an
    /// epoll set.
    pub fn start<W>(name: String, mut worker: W, questions_max: usize, spin: SpinSetting) -> io::Result<Self>
    where
        W: DataWorker<Question = Q, Published = P> + Send + 'static,
    {
        let (sender, receiver) = mailbox(questions_max)?;
        let published = Arc::new(SnapshotCell::new(worker.publish()));
        let (cell, waiter) = (Arc::clone(&published), Waiter::new()?);
        let spin = SpinPolicy::new(spin, SpinWorth::DAEMON);
        let progress = Progress::new();
        let own = progress.clone();
        let thread = std::thread::Builder::new()
            .name(name)
            .spawn(move || run(worker, receiver, &cell, &own, waiter, spin))?;
        Ok(DataThread { mailbox: sender, published, progress, thread: Some(thread) })
    }

    /// The mailbox for questions.
    pub fn mailbox(&self) -> &MailboxSender<Q> {
        &self.mailbox
    }

    /// The numbers that the worker published last.
    pub fn published(&self) -> &Arc<SnapshotCell<P>> {
        &self.published
    }

    /// Returns the thread's progress, by which a stuck thread is detected.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Sends every thread the message that ends it, then waits for all of them. A second call has no effect.
    pub fn stop_all(threads: &mut [Self], end: impl Fn() -> Q) {
        for thread in threads.iter().filter(|thread| thread.thread.is_some()) {
            // A thread whose mailbox is closed has stopped. A thread with a full mailbox must still receive
            // the message.
            while thread.mailbox.send(end()) == Err(MailboxError::Full) {
                std::thread::sleep(FULL_WAIT);
            }
        }
        for thread in threads.iter_mut().filter_map(|thread| thread.thread.take()) {
            let _ = thread.join(); // a panic would have ended the process
        }
    }
}

fn run<W: DataWorker>(
    mut worker: W,
    mut mailbox: Mailbox<W::Question>,
    published: &SnapshotCell<W::Published>,
    progress: &Progress,
    mut waiter: Waiter,
    mut spin: SpinPolicy,
) {
    let (mut gap, mut last_published, mut unix_s) = (Gap::new(), Instant::ZERO, unix_now_s());
    loop {
        let at = now();
        progress.turn(at);
        let mut busy = false;
        // One question per turn: a mailbox that is refilled as fast as it is emptied does not delay the
        // turns, on which heartbeats and timers depend.
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
                longest = PUBLISH_INTERVAL; // a reader holds the snapshot now: publish again soon
            }
            progress.sleeps();
            waiter.wait(&worker, &mut mailbox, at, longest);
            gap.woke();
            if now().saturating_since(at) >= PUBLISH_INTERVAL {
                unix_s = unix_now_s();
            }
        }
    }
}

/// The descriptors that a worker blocks on, updated with the worker's set.
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
