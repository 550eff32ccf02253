//! The receiving half: recvmmsg into an array of slots, one frame with its virtio-net header in each.
//!
//! A second socket receives the few frames that all workers share ([`crate::steering::is_shared`]). A call
//! that finds frames in the first one does not read it, except once in [`SHARED_EVERY`] calls: a busy worker
//! makes one system call.

use std::os::fd::RawFd;
use std::sync::Arc;

use csp_wire::offload::Frame;

use super::socket::Socket;
use super::vnet::{self, VNET_LEN};
use crate::port::{LanReceiver, RECEIVE_BATCH_MAX, ReceiveCounters, SHARED_EVERY};

/// Length of a slot: virtio-net header, Ethernet header and the largest IP packet, rounded up to cache lines.
const SLOT_LEN: usize = 64 * 1024 + 128;
const _: () = assert!(SLOT_LEN >= VNET_LEN + 14 + 65_535 && SLOT_LEN.is_multiple_of(64));

/// The result of one message of the call.
#[derive(Clone, Copy, Default)]
struct Received {
    len: u32,
    truncated: bool,
}

pub(super) struct Receiver {
    socket: Arc<Socket>,
    shared: Option<Socket>,
    /// Calls since the shared socket was read.
    unread: u32,
    slots: Box<[u8]>,
    counters: ReceiveCounters,
}

impl Receiver {
    pub(super) fn new(socket: Arc<Socket>, shared: Option<Socket>) -> Self {
        let slots = vec![0; SLOT_LEN * RECEIVE_BATCH_MAX].into_boxed_slice();
        Receiver { socket, shared, unread: 0, slots, counters: ReceiveCounters::default() }
    }

    fn receive_batch(&mut self, fd: RawFd) -> ([Received; RECEIVE_BATCH_MAX], usize) {
        let mut vectors =
            [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: SLOT_LEN }; RECEIVE_BATCH_MAX];
        // SAFETY: all-zero bytes are valid mmsghdrs: integers and null pointers.
        let mut messages: [libc::mmsghdr; RECEIVE_BATCH_MAX] = unsafe { std::mem::zeroed() };
        let slots = self.slots.chunks_exact_mut(SLOT_LEN);
        for ((message, vector), slot) in messages.iter_mut().zip(&mut vectors).zip(slots) {
            vector.iov_base = slot.as_mut_ptr().cast();
            message.msg_hdr.msg_iov = &raw mut *vector;
            message.msg_hdr.msg_iovlen = 1;
        }
        // SAFETY: each message points to one element of `vectors`, and that to a slot of SLOT_LEN writable
        // bytes of `self.slots`. All outlive the call; `self` is borrowed mutably, so nothing else accesses
        // the slots. Name and control pointers are null.
        let count = unsafe {
            libc::recvmmsg(
                fd,
                messages.as_mut_ptr(),
                RECEIVE_BATCH_MAX as libc::c_uint,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        let mut received = [Received::default(); RECEIVE_BATCH_MAX];
        let Ok(count) = usize::try_from(count) else {
            self.note_error();
            return (received, 0);
        };
        for (to, from) in received.iter_mut().zip(&messages[..count.min(RECEIVE_BATCH_MAX)]) {
            to.len = from.msg_len;
            to.truncated = from.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
        }
        (received, count.min(RECEIVE_BATCH_MAX))
    }

    fn note_error(&mut self) {
        match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR) => {}
            _ => self.counters.errors += 1,
        }
    }
}

impl Receiver {
    fn receive_from(&mut self, fd: RawFd, each: &mut dyn FnMut(Frame<'_>)) -> usize {
        let (received, count) = self.receive_batch(fd);
        for (slot, message) in self.slots.chunks_exact(SLOT_LEN).zip(&received[..count]) {
            let Some((header, frame)) = slot[..(message.len as usize).min(SLOT_LEN)].split_first_chunk()
            else {
                self.counters.bad_offload += 1;
                continue;
            };
            if message.truncated {
                self.counters.truncated += 1;
                continue;
            }
            let Some((checksum, gso)) = vnet::parse(header) else {
                self.counters.bad_offload += 1;
                continue;
            };
            self.counters.frames += 1;
            self.counters.bytes += frame.len() as u64;
            each(Frame { bytes: frame, checksum, gso });
        }
        count
    }
}

impl LanReceiver for Receiver {
    fn receive(&mut self, each: &mut dyn FnMut(Frame<'_>)) -> usize {
        let count = self.receive_from(self.socket.fd(), each);
        let Some(shared) = self.shared.as_ref().map(Socket::fd) else { return count };
        self.unread += 1;
        if count > 0 && self.unread < SHARED_EVERY {
            return count;
        }
        self.unread = 0;
        count + self.receive_from(shared, each)
    }

    fn fds(&self) -> [Option<RawFd>; 2] {
        [Some(self.socket.fd()), self.shared.as_ref().map(Socket::fd)]
    }

    fn counters(&mut self) -> ReceiveCounters {
        self.counters.overrun += self.socket.overruns() + self.shared.as_ref().map_or(0, Socket::overruns);
        self.counters
    }
}
