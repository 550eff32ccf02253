//! Threads that sleep while others use the engine: what wakes them, and when.

use csp_vi::Armed;
use libc::c_int;

use super::Engine;
use crate::{lock, sys, wait};

/// A thread that sleeps.
#[derive(Clone, Copy, Debug)]
pub struct Asleep {
    thread: usize,
    /// The eventfd that wakes it.
    waker: c_int,
    /// When it wakes by itself, for what the application end wants then, in nanoseconds of CLOCK_MONOTONIC.
    until: u64,
}

/// How often a thread that is awake takes what has come before it leaves the rest to those that sleep.
const LOOKS: u32 = 4;

impl Engine {
    /// Other threads rely on being woken: by the provider, which a look at it has disarmed, and in time for what this
    /// thread has started.
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
            // Told once.
            first.until = next;
            sys::signal(first.waker);
        }
    }

    /// Arms the provider again; `false`: there is something to take first.
    fn arm_for_others(&mut self) -> bool {
        let busy = self.link.as_mut().is_some_and(|link| matches!(link.app.arm(), Ok(Armed::Busy)));
        self.disarmed = busy;
        !busy
    }

    /// This thread, which slept with this waker, sleeps no more.
    pub fn awake(&mut self, waker: c_int) {
        let thread = lock::thread();
        self.asleep.retain(|sleeper| sleeper.waker != waker || sleeper.thread != thread);
    }

    /// Gets ready to sleep: what wakes, or that there is something to do first. `None` without an attachment, when
    /// only other threads can have news. `waker` is the eventfd that wakes this thread, where others may run meanwhile.
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
            self.asleep.push(Asleep { thread: lock::thread(), waker, until });
        }
        Ok(self.wakes())
    }

    /// When the application end wants to be called though nothing arrives, in nanoseconds of CLOCK_MONOTONIC.
    fn deadline(&self) -> u64 {
        let Some(link) = &self.link else { return u64::MAX };
        let app = link.app.next_timeout().map(|at| at.as_nanos());
        let agent = link.session.next_timeout().map(|at| at.as_nanos());
        wait::sooner(app, agent).unwrap_or(u64::MAX)
    }

    /// What wakes a sleeper.
    pub fn wakes(&mut self) -> Option<wait::Wakes> {
        let link = self.link.as_mut()?;
        Some(wait::Wakes { provider: link.wake()?, agent: link.agent })
    }

    /// A sleeper woke; `agent`: because of the agent's socket.
    pub fn woken(&mut self, agent: bool) {
        self.counters.wakeups += 1;
        if let (true, Some(link)) = (agent, &mut self.link) {
            link.session.woken();
        }
    }

    /// Nanoseconds until the application end wants to be called though nothing arrives.
    pub fn next_timeout(&self) -> Option<u64> {
        let at = Some(self.deadline()).filter(|at| *at < u64::MAX);
        at.map(|at| at.saturating_sub(sys::monotonic_nanos()))
    }
}
