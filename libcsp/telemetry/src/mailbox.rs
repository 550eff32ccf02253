//! Requests from the control thread to a data worker.
//!
//! A bounded channel carries the requests, an eventfd wakes a worker that sleeps in epoll_wait(2), and a
//! oneshot channel returns each answer. The worker never blocks on any of them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TrySendError};
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::oneshot;

/// Interval at which a sender that waits for room checks a full mailbox.
const ROOM_INTERVAL: Duration = Duration::from_millis(1);

/// Why a request was not answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MailboxError {
    /// The mailbox holds as many unanswered requests as fit.
    #[error("the worker's mailbox is full")]
    Full,
    /// The worker has ended, or dropped the request.
    #[error("the worker has gone")]
    Gone,
    /// The timeout passed without an answer.
    #[error("the worker did not answer in time")]
    Timeout,
}

/// Creates a mailbox for `capacity` pending requests. Errors are those of eventfd(2).
pub fn mailbox<Q>(capacity: usize) -> std::io::Result<(MailboxSender<Q>, Mailbox<Q>)> {
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (sender, receiver) = crossbeam_channel::bounded(capacity);
    Ok((MailboxSender { sender, wake: Arc::clone(&wake) }, Mailbox { receiver, wake }))
}

/// The sending end, used by the control thread.
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
    /// Sends a message that needs no answer.
    pub fn send(&self, message: Q) -> Result<(), MailboxError> {
        self.sender.try_send(message).map_err(|error| match error {
            TrySendError::Full(_) => MailboxError::Full,
            TrySendError::Disconnected(_) => MailboxError::Gone,
        })?;
        // Fails only when the counter is about to overflow, and then the worker is being woken anyway.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        Ok(())
    }

    /// As [`send`](Self::send); the calling thread waits until there is room.
    pub fn send_when_room(&self, message: Q) -> Result<(), MailboxError> {
        self.sender.send(message).map_err(|_| MailboxError::Gone)?;
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes()); // as above
        Ok(())
    }

    /// Waits until the mailbox has room, at most `timeout`. The next message of this thread is then accepted,
    /// unless another thread sends first.
    pub async fn room(&self, timeout: Duration) -> Result<(), MailboxError> {
        let room = async {
            while self.sender.is_full() {
                tokio::time::sleep(ROOM_INTERVAL).await;
            }
        };
        tokio::time::timeout(timeout, room).await.map_err(|_| MailboxError::Full)
    }

    /// Sends a request and waits for the answer, at most `timeout`. `question` puts the reply handle into the
    /// message.
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

/// The handle by which a worker answers. Dropping it ends the request with [`MailboxError::Gone`].
#[derive(Debug)]
pub struct Reply<R>(oneshot::Sender<R>);

impl<R> Reply<R> {
    /// Sends the answer. It is discarded if the requester no longer waits.
    pub fn send(self, answer: R) {
        let _ = self.0.send(answer);
    }
}

/// The receiving end, owned by the worker.
#[derive(Debug)]
pub struct Mailbox<Q> {
    receiver: Receiver<Q>,
    wake: Arc<OwnedFd>,
}

impl<Q> Mailbox<Q> {
    /// Returns the next pending message. Makes no system call, so that a polling loop can call it every turn.
    pub fn poll(&mut self) -> Option<Q> {
        self.receiver.try_recv().ok()
    }

    /// Resets the wake-up descriptor. Call it when epoll reports [`Mailbox::as_fd`] readable, **before**
    /// polling: a message that arrives meanwhile then makes the descriptor readable again.
    pub fn clear_wake(&mut self) {
        let mut counter = [0; 8];
        // Nothing to read is fine: the wake-up was cleared already.
        let _ = rustix::io::read(&*self.wake, &mut counter);
    }
}

impl<Q> AsFd for Mailbox<Q> {
    /// Returns the wake-up descriptor. It is readable (level-triggered) while a wake-up is pending.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

#[cfg(test)]
mod tests;
