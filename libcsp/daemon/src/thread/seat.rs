//! A worker in its thread, whatever its questions and numbers are.

use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, mpsc};

use csp_telemetry::SnapshotCell;
use csp_telemetry::mailbox::Mailbox;
use csp_types::{Duration, Instant};
use csp_vi::{Armed, Wake};

use crate::clock::now;

use super::{DataWorker, LONG_SLEEP, PUBLISH_INTERVAL, Progress};

/// A worker, its mailbox and what it publishes.
pub(super) struct Seat<W: DataWorker> {
    pub worker: W,
    pub mailbox: Mailbox<W::Question>,
    pub published: Arc<SnapshotCell<W::Published>>,
    pub progress: Progress,
    /// Dropped when the worker ends, which its handle notices.
    pub _ends: mpsc::Sender<()>,
}

/// What a thread does with a worker.
pub(super) trait Seated: Send {
    /// Answers a question, if there is one, then takes a turn. Returns whether there was any work;
    /// [`ControlFlow::Break`]: the worker has ended.
    fn turn(&mut self, at: Instant, unix_s: u64) -> ControlFlow<(), bool>;

    /// Publishes the worker's numbers; `false` if a reader holds them now.
    fn publish(&mut self) -> bool;

    /// Arms the worker's descriptors; `false` if there is work.
    fn arm(&mut self) -> bool;

    /// Prepares a sleep; returns how long it may last.
    fn sleep(&mut self) -> Duration;

    /// As [`DataWorker::next_timeout`].
    fn next_timeout(&self) -> Option<Instant>;

    /// As [`DataWorker::wake`], without the mailbox.
    fn wake(&self, into: &mut Vec<Wake>);

    /// As [`DataWorker::wake_generation`].
    fn wake_generation(&self) -> u64;

    /// The descriptor that is readable while questions wait.
    fn mailbox(&self) -> BorrowedFd<'_>;

    /// Resets that descriptor.
    fn clear_wake(&mut self);
}

impl<W: DataWorker + Send> Seated for Seat<W> {
    fn turn(&mut self, at: Instant, unix_s: u64) -> ControlFlow<(), bool> {
        self.progress.turn(at);
        let mut busy = false;
        // One question per turn: a mailbox that is refilled as fast as it is emptied does not delay the
        // turns, on which heartbeats and timers depend.
        if let Some(question) = self.mailbox.poll() {
            busy = true;
            let began = now();
            if self.worker.answer(at, question).is_break() {
                return ControlFlow::Break(());
            }
            self.progress.paused(now().saturating_since(began));
        }
        ControlFlow::Continue(busy | self.worker.turn(at, unix_s))
    }

    fn publish(&mut self) -> bool {
        let began = now();
        let done = self.published.publish(&self.worker.publish());
        self.progress.paused(now().saturating_since(began));
        done
    }

    fn arm(&mut self) -> bool {
        matches!(self.worker.arm(), Ok(Armed::Armed))
    }

    fn sleep(&mut self) -> Duration {
        let mut longest = self.worker.sleep_max();
        if longest > LONG_SLEEP && !self.publish() {
            longest = PUBLISH_INTERVAL; // a reader holds the snapshot now: publish again soon
        }
        self.progress.sleeps();
        longest
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.worker.next_timeout()
    }

    fn wake(&self, into: &mut Vec<Wake>) {
        self.worker.wake(into);
    }

    fn wake_generation(&self) -> u64 {
        self.worker.wake_generation()
    }

    fn mailbox(&self) -> BorrowedFd<'_> {
        self.mailbox.as_fd()
    }

    fn clear_wake(&mut self) {
        self.mailbox.clear_wake();
    }
}
