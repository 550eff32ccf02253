//! The pipe between the caller's slices and h2, which wants `AsyncRead` and `AsyncWrite`.
//!
//! ```text
//!  receive ─▶ input (bounded) ─▶ h2 ─▶ written (bounded by the output that is left) ─▶ output ─▶ caller
//! ```
//! Both ends are used by one thread in turn; the lock is never contended.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

#[derive(Debug, Default)]
struct Ends {
    input: Vec<u8>,
    /// Bytes of `input` that h2 has read.
    read: usize,
    input_ended: bool,
    written: Vec<u8>,
    /// Bytes that h2 may still write.
    room: usize,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// h2's end of the pipe. The caller has a clone of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pipe(Arc<Mutex<Ends>>);

impl Pipe {
    fn ends(&self) -> MutexGuard<'_, Ends> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of bytes that h2 has not read.
    pub(crate) fn unread(&self) -> usize {
        let ends = self.ends();
        ends.input.len() - ends.read
    }

    /// Adds bytes that the peer has sent.
    pub(crate) fn receive(&self, bytes: &[u8]) {
        let mut ends = self.ends();
        if ends.read == ends.input.len() {
            ends.input.clear();
            ends.read = 0;
        }
        ends.input.extend_from_slice(bytes);
        wake(&mut ends.reader);
    }

    /// Reports that the peer sends no more.
    pub(crate) fn receive_end(&self) {
        let mut ends = self.ends();
        ends.input_ended = true;
        wake(&mut ends.reader);
    }

    /// Lets h2 write `room` bytes.
    pub(crate) fn set_room(&self, room: usize) {
        let mut ends = self.ends();
        ends.room = room;
        if room > 0 {
            wake(&mut ends.writer);
        }
    }

    /// Moves what h2 has written to the end of `output`.
    pub(crate) fn take_written(&self, output: &mut Vec<u8>) {
        let mut ends = self.ends();
        if output.is_empty() {
            std::mem::swap(output, &mut ends.written);
        } else {
            output.append(&mut ends.written);
        }
    }

    /// Releases memory of an idle pipe.
    pub(crate) fn shrink(&self) {
        let mut ends = self.ends();
        if ends.read == ends.input.len() {
            (ends.input, ends.read) = (Vec::new(), 0);
        }
        ends.written.shrink_to_fit();
    }
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

impl AsyncRead for Pipe {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut ends = self.ends();
        let unread = &ends.input[ends.read..];
        if unread.is_empty() && !ends.input_ended {
            ends.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        let len = unread.len().min(into.remaining());
        into.put_slice(&unread[..len]);
        ends.read += len;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut ends = self.ends();
        if ends.room == 0 && !bytes.is_empty() {
            ends.writer = Some(context.waker().clone());
            return Poll::Pending;
        }
        let len = bytes.len().min(ends.room);
        ends.written.extend_from_slice(&bytes[..len]);
        ends.room -= len;
        Poll::Ready(Ok(len))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
