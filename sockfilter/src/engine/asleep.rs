//! Threads that sleep while others use the engine: what wakes them, and when.

use csp_vi::Armed;
use libc::c_int;

use super::Engine;
use crate::{lock, sys, wait};

/// A thread that sleeps.
#[derive(Clone, Copy, Debug)]
pub struct SleepingThread {
    thread: usize,
    /// The eventfd that wakes it.
    waker: c_int,
    /// Time at which it wakes for the application end's next deadline, in nanoseconds of CLOCK_MONOTONIC.
    until: u64,
}

/// Number of times that a running thread processes pending work before it leaves the rest to the sleeping
/// threads.
const LOOKS: u32 = 4;

impl Engine {
    /// Ensures that sleeping threads are woken: by the provider, which polling has disarmed, and in time for
    /// deadlines that this thread has created.
    pub fn keep_others_awake(&mut self) {
        if self.asleep.is_empty() {
            return;
        }
        let mut looks = 0;
        while self.disarmed && looks < LOOKS && !self.arm_for_others() {
            self.progress();
            looks += 1;
        }
        if self.disarmed {
            self.asleep.iter().for_each(|sleeper| sys::signal(sleeper.waker));
        }
        let next = self.deadline();
        if self.asleep.iter().all(|sleeper| next < sleeper.until)
            && let Some(first) = self.asleep.first_mut()
        {
            // Only one thread is woken, once.
            first.until = next;
            sys::signal(first.waker);
        }
    }

    /// Arms the provider again. Returns `false` if there is pending work to process first.
    fn arm_for_others(&mut self) -> bool {
        let busy = self.link.as_mut().is_some_and(|link| matches!(link.app.arm(), Ok(Armed::Busy)));
        self.disarmed = busy;
        !busy
    }

    /// Removes the entry of this thread, which slept with this waker.
    pub fn awake(&mut self, waker: c_int) {
        let thread = lock::thread();
        self.asleep.retain(|sleeper| sleeper.waker != waker || sleeper.thread != thread);
    }

    /// Prepares a sleep: returns the descriptors that end it, or `Busy` if there is pending work. Returns
    /// `None` without an attachment, when only other threads can cause a change. `waker` is the eventfd that
    /// wakes this thread, if other threads may run meanwhile.
    pub fn arm(&mut self, waker: Option<c_int>) -> Result<Option<wait::Wakes>, wait::Busy> {
        self.publish();
        let Some(link) = &mut self.link else { return Ok(None) };
        match link.app.arm() {
            Ok(Armed::Armed) => {}
            Ok(Armed::Busy) => return Err(wait::Busy),
            Err(_) => return Ok(None),
        }
        self.counters.waits += 1;
        self.disarmed = false;
        if let Some(waker) = waker {
            let until = self.deadline();
            self.asleep.push(SleepingThread { thread: lock::thread(), waker, until });
        }
        Ok(self.wakes())
    }

    /// The next deadline of the application end or the session, in nanoseconds of CLOCK_MONOTONIC.
    fn deadline(&self) -> u64 {
        let Some(link) = &self.link else { return u64::MAX };
        let app = link.app.next_timeout().map(|at| at.as_nanos());
        let agent = link.session.next_timeout().map(|at| at.as_nanos());
        wait::sooner(app, agent).unwrap_or(u64::MAX)
    }

    /// The descriptors that wake a sleeping thread.
    pub fn wakes(&mut self) -> Option<wait::Wakes> {
        let link = self.link.as_mut()?;
        Some(wait::Wakes { provider: link.wake()?, agent: link.agent })
    }

    /// Records that a sleeping thread woke; `agent`: because of the agent's socket.
    pub fn woken(&mut self, agent: bool) {
        self.counters.wakeups += 1;
        if let (true, Some(link)) = (agent, &mut self.link) {
            link.session.woken();
        }
    }

    /// Nanoseconds until the next deadline of the application end or the session.
    pub fn next_timeout(&self) -> Option<u64> {
        let at = Some(self.deadline()).filter(|at| *at < u64::MAX);
        at.map(|at| at.saturating_sub(sys::monotonic_nanos()))
    }
}
