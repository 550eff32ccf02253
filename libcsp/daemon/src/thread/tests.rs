use std::collections::VecDeque;

use csp_telemetry::Reply;
use csp_telemetry::mailbox::MailboxSender;

use super::*;

/// Time limit of every step of these tests.
const DEADLINE: std::time::Duration = std::time::Duration::from_secs(10);

enum Question {
    /// A piece of work; answered at once.
    Work(u32, Reply<()>),
    /// The worker is due at this time.
    Due(Instant),
    /// The worker puts this question into this mailbox again.
    Again(MailboxSender<Question>),
    Stop,
}

/// Adds up the pieces of work, one per turn.
#[derive(Default)]
struct Adder {
    work: VecDeque<u32>,
    due: Option<Instant>,
    sum: u32,
    reached: bool,
}

impl DataWorker for Adder {
    type Question = Question;
    type Published = (u32, bool);

    fn turn(&mut self, now: Instant, unix_s: u64) -> bool {
        assert!(unix_s > 1_700_000_000, "{unix_s}");
        if self.due.take_if(|due| *due <= now).is_some() {
            self.reached = true;
        }
        let piece = self.work.pop_front();
        self.sum += piece.unwrap_or(0);
        piece.is_some()
    }

    fn answer(&mut self, _: Instant, question: Question) -> ControlFlow<()> {
        match question {
            Question::Work(piece, reply) => {
                self.work.push_back(piece);
                reply.send(());
            }
            Question::Due(at) => self.due = Some(at),
            Question::Again(mailbox) => drop(mailbox.send(Question::Again(mailbox.clone()))),
            Question::Stop => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    fn publish(&mut self) -> (u32, bool) {
        (self.sum, self.reached)
    }

    fn arm(&mut self) -> Result<Armed, ViError> {
        Ok(if self.work.is_empty() { Armed::Armed } else { Armed::Busy })
    }

    fn wake(&self, _: &mut Vec<Wake>) {}

    fn wake_generation(&self) -> u64 {
        0
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.due
    }

    /// Longer than any test: an earlier wake-up has another cause.
    fn sleep_max(&self) -> Duration {
        Duration::from_secs(3600)
    }
}

type Thread = DataThread<Question, (u32, bool)>;

fn start() -> Thread {
    DataThread::start("adder".to_owned(), Adder::default(), 4, SpinSetting::Auto).unwrap()
}

/// Waits until the worker has published `wanted`.
fn await_published(thread: &Thread, wanted: (u32, bool)) {
    let start = std::time::Instant::now();
    while thread.published().read() != wanted {
        assert!(start.elapsed() < DEADLINE, "published is {:?}", thread.published().read());
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn a_sleeper_takes_work_publishes_before_it_sleeps_again_and_ends() {
    let thread = start();
    for (piece, sum) in [(1, 1), (10, 11), (100, 111)] {
        thread.mailbox().ask(DEADLINE, |reply| Question::Work(piece, reply)).await.unwrap();
        await_published(&thread, (sum, false));
    }
    let mailbox = thread.mailbox().clone();
    DataThread::stop_all(&mut [thread], || Question::Stop);
    assert!(mailbox.send(Question::Stop).is_err(), "the thread has ended");
}

#[test]
fn a_sleeper_gets_a_turn_when_it_is_due() {
    let thread = start();
    thread.mailbox().send(Question::Due(now() + Duration::from_millis(5))).unwrap();
    await_published(&thread, (0, true));
    DataThread::stop_all(&mut [thread, start()], || Question::Stop);
}

#[test]
fn a_mailbox_that_never_empties_does_not_keep_a_worker_from_its_turns() {
    let thread = start();
    thread.mailbox().send(Question::Again(thread.mailbox().clone())).unwrap();
    thread.mailbox().send(Question::Due(now())).unwrap();
    await_published(&thread, (0, true));
    DataThread::stop_all(&mut [thread], || Question::Stop);
}

#[test]
fn a_thread_with_a_full_mailbox_stops_and_may_be_stopped_again() {
    let thread = start();
    let mailbox = thread.mailbox().clone();
    // Four questions may wait; some of these are refused while the worker is busy with others.
    for _ in 0..100 {
        let _ = thread.mailbox().send(Question::Due(now()));
    }
    let mut threads = [thread];
    DataThread::stop_all(&mut threads, || Question::Stop);
    assert!(mailbox.send(Question::Stop).is_err(), "the thread has ended");
    DataThread::stop_all(&mut threads, || Question::Stop);
}

/// Two workers in one thread, and one that has a thread alone since its daemon has more of them.
#[tokio::test]
async fn workers_share_a_thread_and_end_one_by_one() {
    let threads = Threads::Shared(SharedThreads::new(&[2, 1], Cpus::default()));
    let start = |number| threads.start(("adder", number), Adder::default(), 4, SpinSetting::Auto).unwrap();
    let (first, alone) = (start(0), start(1));
    await_published(&alone, (0, false));
    alone.mailbox().ask(DEADLINE, |reply| Question::Work(7, reply)).await.unwrap();
    await_published(&alone, (7, false));
    // A worker whose thread is not complete keeps what it is asked.
    first.mailbox().send(Question::Due(now())).unwrap();
    assert_eq!(first.published().read(), (0, false));
    let second = start(0);
    await_published(&first, (0, true));
    for (thread, piece) in [(&first, 1), (&second, 2)] {
        thread.mailbox().ask(DEADLINE, |reply| Question::Work(piece, reply)).await.unwrap();
    }
    await_published(&second, (2, false));
    await_published(&first, (1, true));
    DataThread::stop_all(&mut [first], || Question::Stop);
    second.mailbox().ask(DEADLINE, |reply| Question::Work(3, reply)).await.unwrap();
    await_published(&second, (5, false));
    let due = now() + Duration::from_millis(5);
    second.mailbox().send(Question::Due(due)).unwrap();
    await_published(&second, (5, true));
    DataThread::stop_all(&mut [second, alone], || Question::Stop);
}
