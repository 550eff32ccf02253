//! Data threads, which take turns while there is work and wait while there is none; and the control thread's
//! handle of a worker in one.

mod cpus;
mod progress;
mod seat;
mod shared;

use std::io;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;

use csp_telemetry::SnapshotCell;
use csp_telemetry::mailbox::{MailboxError, MailboxSender, mailbox};
use csp_types::spin::{Gap, SpinPolicy, SpinSetting, SpinWorth};
use csp_types::{Duration, Instant};
use csp_vi::{Armed, ViError, WaitSet, Wake};

use crate::clock::{now, unix_now_s};
use seat::{Seat, Seated};

pub use cpus::Cpus;
pub use progress::Progress;
pub use shared::{SharedThreads, Threads};

/// Shortest interval between publications of a worker's numbers.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(100);
/// Before a sleep that may be longer than this the numbers are published, even if the last publication is
/// recent.
const LONG_SLEEP: Duration = Duration::from_secs(1);

/// Delay before [`DataThread::stop_all`] tries a full mailbox again.
const FULL_WAIT: Duration = Duration::from_millis(1);

/// A worker that runs by turns, in a thread of its own or in one that it shares.
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

/// A worker that another one of its thread also uses, between its turns. The lock is never waited for.
impl<W: DataWorker> DataWorker for Arc<Mutex<W>> {
    type Question = W::Question;
    type Published = W::Published;

    fn turn(&mut self, now: Instant, unix_s: u64) -> bool {
        held(self).turn(now, unix_s)
    }

    fn answer(&mut self, now: Instant, question: Self::Question) -> ControlFlow<()> {
        held(self).answer(now, question)
    }

    fn publish(&mut self) -> Self::Published {
        held(self).publish()
    }

    fn arm(&mut self) -> Result<Armed, ViError> {
        held(self).arm()
    }

    fn wake(&self, into: &mut Vec<Wake>) {
        held(self).wake(into);
    }

    fn wake_generation(&self) -> u64 {
        held(self).wake_generation()
    }

    fn next_timeout(&self) -> Option<Instant> {
        held(self).next_timeout()
    }

    fn sleep_max(&self) -> Duration {
        held(self).sleep_max()
    }
}

/// A panic would have ended the process.
fn held<W>(worker: &Mutex<W>) -> MutexGuard<'_, W> {
    worker.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The control thread's handle of a worker in a data thread.
#[derive(Debug)]
pub struct DataThread<Q, P> {
    mailbox: MailboxSender<Q>,
    published: Arc<SnapshotCell<P>>,
    progress: Progress,
    /// Disconnected when the worker has ended.
    ended: Mutex<mpsc::Receiver<()>>,
    /// `stop_all` has sent the message that ends the worker.
    is_stopped: bool,
    /// The thread, if the worker has one of its own.
    thread: Option<JoinHandle<()>>,
}

impl<Q: Send + 'static, P: Clone + Send + 'static> DataThread<Q, P> {
    /// Starts a thread named `name` around `worker`. At most `questions_max` questions wait for it; `spin`
    /// determines how long it polls before it sleeps. Errors are those of creating a thread, an eventfd or an
    /// epoll set.
    pub fn start<W>(name: String, worker: W, questions_max: usize, spin: SpinSetting) -> io::Result<Self>
    where
        W: DataWorker<Question = Q, Published = P> + Send + 'static,
    {
        let (mut handle, seat) = Self::seat(worker, questions_max)?;
        handle.thread = Some(spawn(name, None, vec![seat], spin)?);
        Ok(handle)
    }

    /// Returns a worker that is to be run in a thread, and its handle.
    fn seat<W>(mut worker: W, questions_max: usize) -> io::Result<(Self, Box<dyn Seated>)>
    where
        W: DataWorker<Question = Q, Published = P> + Send + 'static,
    {
        let (sender, receiver) = mailbox(questions_max)?;
        let published = Arc::new(SnapshotCell::new(worker.publish()));
        let (end, ended) = mpsc::channel();
        let progress = Progress::new();
        let seat = Seat {
            worker,
            mailbox: receiver,
            published: Arc::clone(&published),
            progress: progress.clone(),
            _ends: end,
        };
        let handle = DataThread {
            mailbox: sender,
            published,
            progress,
            ended: Mutex::new(ended),
            is_stopped: false,
            thread: None,
        };
        Ok((handle, Box::new(seat)))
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

    /// Sends every worker the message that ends it, then waits for all of them. A second call has no effect.
    pub fn stop_all(threads: &mut [Self], end: impl Fn() -> Q) {
        for thread in threads.iter().filter(|thread| !thread.is_stopped) {
            // A worker whose mailbox is closed has ended. One with a full mailbox must still receive the
            // message.
            while thread.mailbox.send(end()) == Err(MailboxError::Full) {
                std::thread::sleep(FULL_WAIT);
            }
        }
        for thread in threads.iter_mut().filter(|thread| !thread.is_stopped) {
            thread.is_stopped = true;
            let ended = thread.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
            let _ = ended.recv(); // disconnected
            let _ = thread.thread.take().map(JoinHandle::join); // a panic would have ended the process
        }
    }
}

/// Starts a thread for these workers, on a processor if one is named.
fn spawn(
    name: String,
    cpu: Option<u16>,
    seats: Vec<Box<dyn Seated>>,
    spin: SpinSetting,
) -> io::Result<JoinHandle<()>> {
    let (waiter, spin) = (Waiter::new()?, SpinPolicy::new(spin, SpinWorth::DAEMON));
    std::thread::Builder::new().name(name).spawn(move || {
        if let Some(cpu) = cpu {
            cpus::pin(cpu);
        }
        run(seats, waiter, spin);
    })
}

/// Runs workers by turns until all have ended.
fn run(mut seats: Vec<Box<dyn Seated>>, mut waiter: Waiter, mut spin: SpinPolicy) {
    let (mut gap, mut last_published, mut unix_s) = (Gap::new(), Instant::ZERO, unix_now_s());
    while !seats.is_empty() {
        let at = now();
        let mut busy = false;
        let before = seats.len();
        seats.retain_mut(|seat| match seat.turn(at, unix_s) {
            ControlFlow::Continue(found) => {
                busy |= found;
                true
            }
            ControlFlow::Break(()) => false,
        });
        if seats.len() < before {
            waiter.generation = None;
            continue;
        }
        if at.saturating_since(last_published) >= PUBLISH_INTERVAL {
            (last_published, unix_s) = (at, unix_now_s());
            for seat in &mut seats {
                let _ = seat.publish(); // a reader holds the snapshot now: next time
            }
        }
        if busy {
            spin.found(&mut gap, at);
        } else if spin.nothing(&mut gap, at) {
            std::thread::yield_now();
        } else if seats.iter_mut().all(|seat| seat.arm()) {
            waiter.wait(&mut seats, at);
            gap.woke();
            if now().saturating_since(at) >= PUBLISH_INTERVAL {
                unix_s = unix_now_s();
            }
        }
    }
}

/// The descriptors that a thread blocks on, updated with the sets of its workers.
struct Waiter {
    set: WaitSet,
    wake: Vec<Wake>,
    /// The sum of the workers' generations.
    generation: Option<u64>,
}

impl Waiter {
    fn new() -> io::Result<Self> {
        Ok(Waiter { set: WaitSet::new()?, wake: Vec::new(), generation: None })
    }

    /// Blocks until there is something to do, as long after `at` as all workers allow.
    fn wait(&mut self, seats: &mut [Box<dyn Seated>], at: Instant) {
        let generation = seats.iter().fold(0u64, |sum, seat| sum.wrapping_add(seat.wake_generation()));
        if self.generation != Some(generation) {
            self.generation = Some(generation);
            self.wake.clear();
            seats.iter().for_each(|seat| seat.wake(&mut self.wake));
            self.set.update(&self.wake);
            seats.iter().for_each(|seat| self.set.add(&seat.mailbox()));
        }
        let longest = |seat: &mut Box<dyn Seated>| {
            let longest = seat.sleep();
            seat.next_timeout().map_or(longest, |due| due.saturating_since(at).min(longest))
        };
        let until = seats.iter_mut().map(longest).min().unwrap_or(Duration::ZERO);
        if self.set.wait(until) {
            seats.iter_mut().for_each(|seat| seat.clear_wake());
        }
    }
}

#[cfg(test)]
mod tests;
