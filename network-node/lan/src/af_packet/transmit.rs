//! The transmitting half. Small frames are copied and sent in batches by sendmmsg; large ones are sent at
//! once, gathered by the kernel from the caller's parts.

use std::io;
use std::sync::Arc;

use csp_wire::offload::TxOffload;

use super::socket::Socket;
use super::vnet::{self, VNET_LEN};
use crate::port::{FRAME_PARTS_MAX, LanTransmitter, TransmitCounters, TransmitError};

/// Largest number of frames that wait for [`LanTransmitter::flush`].
const QUEUE_LEN: usize = 64;
/// Longest frame that is queued by copying, in bytes: copying more costs more than the system call that it
/// saves.
const COPY_LEN_MAX: usize = 4096;
/// Longest frame: Ethernet and the largest IP packet.
const FRAME_LEN_MAX: usize = 14 + 65_535;
const SLOT_LEN: usize = COPY_LEN_MAX + VNET_LEN;

pub(super) struct Transmitter {
    socket: Arc<Socket>,
    slots: Box<[u8]>,
    lens: [usize; QUEUE_LEN],
    queued: usize,
    counters: TransmitCounters,
}

impl Transmitter {
    pub(super) fn new(socket: Arc<Socket>) -> Self {
        let slots = vec![0; SLOT_LEN * QUEUE_LEN].into_boxed_slice();
        Transmitter { socket, slots, lens: [0; QUEUE_LEN], queued: 0, counters: TransmitCounters::default() }
    }

    fn enqueue(&mut self, header: &[u8; VNET_LEN], parts: &[&[u8]], len: usize) {
        let slot = &mut self.slots[self.queued * SLOT_LEN..][..SLOT_LEN];
        let (to_header, mut rest) = slot.split_at_mut(VNET_LEN);
        to_header.copy_from_slice(header);
        for part in parts {
            let (to, behind) = rest.split_at_mut(part.len());
            to.copy_from_slice(part);
            rest = behind;
        }
        self.lens[self.queued] = VNET_LEN + len;
        self.queued += 1;
    }

    fn send_now(
        &mut self,
        header: &[u8; VNET_LEN],
        parts: &[&[u8]],
        len: usize,
    ) -> Result<(), TransmitError> {
        let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let mut vectors = [empty; FRAME_PARTS_MAX + 1];
        let all = std::iter::once(&header[..]).chain(parts.iter().copied());
        for (vector, part) in vectors.iter_mut().zip(all) {
            *vector = libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() };
        }
        // SAFETY: all-zero bytes are a valid msghdr.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = vectors.as_mut_ptr();
        message.msg_iovlen = parts.len() + 1;
        // SAFETY: `message` points to the `parts.len() + 1` elements of `vectors` set above (`transmit`
        // limits `parts` to FRAME_PARTS_MAX), each of which points to a slice borrowed for longer than the
        // call; the kernel only reads them.
        let sent = unsafe { libc::sendmsg(self.socket.fd(), &raw const message, libc::MSG_DONTWAIT) };
        if sent < 0 {
            return Err(self.note_error());
        }
        self.counters.frames += 1;
        self.counters.bytes += len as u64;
        Ok(())
    }

    /// Passes the queued frames from number `first` on to the kernel. Returns the number of frames that it
    /// accepted.
    fn send_batch(&mut self, first: usize) -> io::Result<usize> {
        let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; QUEUE_LEN];
        // SAFETY: all-zero bytes are valid mmsghdrs: integers and null pointers.
        let mut messages: [libc::mmsghdr; QUEUE_LEN] = unsafe { std::mem::zeroed() };
        for at in first..self.queued {
            let slot = &mut self.slots[at * SLOT_LEN..][..self.lens[at]];
            vectors[at] = libc::iovec { iov_base: slot.as_mut_ptr().cast(), iov_len: slot.len() };
            messages[at].msg_hdr.msg_iov = &raw mut vectors[at];
            messages[at].msg_hdr.msg_iovlen = 1;
        }
        // SAFETY: each message from `first` to `queued` points to one element of `vectors`, and that to the
        // filled part of a slot of `self.slots`; all outlive the call, and the kernel only reads the slots.
        let sent = unsafe {
            libc::sendmmsg(
                self.socket.fd(),
                messages[first..].as_mut_ptr(),
                (self.queued - first) as libc::c_uint,
                libc::MSG_DONTWAIT,
            )
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    fn note_error(&mut self) -> TransmitError {
        match io::Error::last_os_error().raw_os_error().unwrap_or(0) {
            libc::EAGAIN | libc::ENOBUFS => {
                self.counters.full += 1;
                TransmitError::Full
            }
            libc::EMSGSIZE => {
                self.counters.too_long += 1;
                TransmitError::TooLong
            }
            errno => {
                self.counters.errors += 1;
                TransmitError::Device(errno)
            }
        }
    }
}

impl LanTransmitter for Transmitter {
    fn transmit(&mut self, parts: &[&[u8]], offload: Option<TxOffload>) -> Result<(), TransmitError> {
        let len: usize = parts.iter().map(|p| p.len()).sum();
        if len > FRAME_LEN_MAX || parts.len() > FRAME_PARTS_MAX {
            self.counters.too_long += 1;
            return Err(TransmitError::TooLong);
        }
        let header = vnet::emit(offload);
        if len > COPY_LEN_MAX {
            // Earlier frames must leave first.
            self.flush();
            return self.send_now(&header, parts, len);
        }
        if self.queued == QUEUE_LEN {
            self.flush();
        }
        self.enqueue(&header, parts, len);
        Ok(())
    }

    fn flush(&mut self) {
        let mut first = 0;
        while first < self.queued {
            match self.send_batch(first) {
                Ok(sent) => {
                    // sendmmsg never returns 0 for a non-empty batch; advancing by at least one bounds the
                    // loop in any case.
                    let sent = sent.max(1);
                    for len in &self.lens[first..self.queued.min(first + sent)] {
                        self.counters.frames += 1;
                        self.counters.bytes += (len - VNET_LEN) as u64;
                    }
                    first += sent;
                }
                Err(_) => {
                    self.note_error();
                    first += 1;
                }
            }
        }
        self.queued = 0;
    }

    fn counters(&self) -> TransmitCounters {
        self.counters
    }
}
