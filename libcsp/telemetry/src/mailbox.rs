//! Questions from the control thread to a data worker.
//!
//! A bounded channel carries them, an eventfd wakes a worker that sleeps in epoll, a oneshot channel brings the answer
//! back. The worker never blocks on any of these.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TrySendError};
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::oneshot;

/// How often a full mailbox is looked at by who waits for room.
const ROOM_INTERVAL: Duration = Duration::from_millis(1);

/// Why a question got no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MailboxError {
    /// The worker has as many unanswered questions as the mailbox holds.
    #[error("the worker's mailbox is full")]
    Full,
    /// The worker has ended, or dropped the question.
    #[error("the worker has gone")]
    Gone,
    /// No answer in time.
    #[error("the worker did not answer in time")]
    Timeout,
}

/// Makes a mailbox for `capacity` waiting questions. Errors are those of eventfd(2).
pub fn mailbox<Q>(capacity: usize) -> std::io::Result<(MailboxSender<Q>, Mailbox<Q>)> {
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (sender, receiver) = crossbeam_channel::bounded(capacity);
    Ok((MailboxSender { sender, wake: Arc::clone(&wake) }, Mailbox { receiver, wake }))
}

/// The asking end.
#[derive(Debug)]
pub struct MailboxSender<Q> {
    sender: Sender<Q>,
    wake: Arc<OwnedFd>,
}

impl<Q> Clone for MailboxSender<Q> {
    fn clone(&self) -> Self {
        MailboxSender { sender: self.sender.clone(), wake: Arc::clone(&self.wake) }
    }
}

impl<Q> MailboxSender<Q> {
    /// Sends something that needs no answer.
    pub fn send(&self, message: Q) -> Result<(), MailboxError> {
        self.sender.try_send(message).map_err(|error| match error {
            TrySendError::Full(_) => MailboxError::Full,
            TrySendError::Disconnected(_) => MailboxError::Gone,
        })?;
        // Fails only when the counter is about to overflow, and then the worker is being woken anyway.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        Ok(())
    }

    /// Waits until the mailbox has room, at most `timeout`. What this thread sends next is accepted if no other thread sends.
    pub async fn room(&self, timeout: Duration) -> Result<(), MailboxError> {
        let room = async {
            while self.sender.is_full() {
                tokio::time::sleep(ROOM_INTERVAL).await;
            }
        };
        tokio::time::timeout(timeout, room).await.map_err(|_| MailboxError::Full)
    }

    /// Asks: `question` puts the place for the answer into a message. Waits for the answer at most `timeout`.
    pub async fn ask<R>(
        &self,
        timeout: Duration,
        question: impl FnOnce(Reply<R>) -> Q,
    ) -> Result<R, MailboxError> {
        let (answer, answered) = oneshot::channel();
        self.send(question(Reply(answer)))?;
        match tokio::time::timeout(timeout, answered).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(MailboxError::Gone),
            Err(_) => Err(MailboxError::Timeout),
        }
    }
}

/// Where a worker puts its answer. When it is dropped the question ends with [`MailboxError::Gone`].
#[derive(Debug)]
pub struct Reply<R>(oneshot::Sender<R>);

impl<R> Reply<R> {
    /// Answers. An asker that gave up is no error.
    pub fn send(self, answer: R) {
        let _ = self.0.send(answer);
    }
}

/// The worker's end.
#[derive(Debug)]
pub struct Mailbox<Q> {
    receiver: Receiver<Q>,
    wake: Arc<OwnedFd>,
}

impl<Q> Mailbox<Q> {
    /// The next message, if one waits. No system call: cheap enough for every turn of a polling loop.
    pub fn poll(&mut self) -> Option<Q> {
        self.receiver.try_recv().ok()
    }

    /// Resets the wake-up descriptor. Call it when epoll reported [`Mailbox::as_fd`] readable, **before** polling, so
    /// that a message that comes meanwhile makes it readable again.
    pub fn clear_wake(&mut self) {
        let mut counter = [0; 8];
        // Nothing to read is fine: the wake-up was cleared already.
        let _ = rustix::io::read(&*self.wake, &mut counter);
    }
}

impl<Q> AsFd for Mailbox<Q> {
    /// Readable (level-triggered) while a wake-up is pending.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

#[cfg(test)]
mod tests;
