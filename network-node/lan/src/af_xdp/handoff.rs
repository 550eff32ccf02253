//! Frames of one worker that another has received: bounded rings between all pairs of workers of an
//! interface.
//!
//! Which worker a frame belongs to is decided by [`crate::steering`], as for raw sockets; queues only decide
//! who receives it. A frame is copied into the ring, and dropped if that is full. A worker that waits is
//! woken by an event descriptor, written once for all that it has not looked at.
//!
//! ```text
//!   receiver ─┬─▶ another worker's frames ──────────▶ ring of HANDOFF_LEN ─▶ each call
//!             └─▶ every worker's (is_shared): copies ▶ ring of SHARED_LEN ──▶ calls without other frames, and each SHARED_EVERYth
//! ```
//! A flood of fragments fills the second ring alone, and there not the room that is left for ARP replies and
//! neighbour advertisements.

use std::cell::UnsafeCell;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::{CHUNK_LEN, check};
use crate::port::{RECEIVE_BATCH_MAX, SHARED_EVERY};
use crate::steering::{is_fragment, is_shared, worker_of};

/// Capacity of a ring, in frames.
pub const HANDOFF_LEN: usize = 256;
/// Capacity of a ring for frames that all workers share.
const SHARED_LEN: usize = 64;
/// Largest number of fragments in such a ring.
const FRAGMENTS_MAX: usize = 48;
const _: () = assert!(FRAGMENTS_MAX < SHARED_LEN && SHARED_LEN <= RECEIVE_BATCH_MAX);
// Indices wrap at a multiple of the length.
const _: () = assert!(HANDOFF_LEN.is_power_of_two() && SHARED_LEN.is_power_of_two());
/// Bytes of the length field before a frame.
const LEN_LEN: usize = 4;

/// A frame with its length before it.
type Slot = UnsafeCell<[u8; CHUNK_LEN]>;

/// A single-producer, single-consumer ring.
struct Ring {
    /// Numbers of frames written and read; both wrap.
    written: AtomicU32,
    read: AtomicU32,
    slots: Box<[Slot]>,
}

// SAFETY: a slot between `read` and `written` is the consumer's, any other the producer's; there is one of
// each (`Handoffs::end` gives an end out once), and the indices are published with release and read with
// acquire.
unsafe impl Sync for Ring {}

impl Ring {
    fn new(len: usize) -> Self {
        // SAFETY: all-zero bytes are a valid array of bytes. They become pages when they are used.
        let slots = unsafe { Box::<[Slot]>::new_zeroed_slice(len).assume_init() };
        Ring { written: AtomicU32::new(0), read: AtomicU32::new(0), slots }
    }

    /// Called by the producer: copies a frame into the ring. Returns false if `most` frames are waiting.
    fn push(&self, frame: &[u8], most: usize) -> bool {
        let written = self.written.load(Ordering::Relaxed);
        let waiting = written.wrapping_sub(self.read.load(Ordering::Acquire)) as usize;
        if waiting >= most.min(self.slots.len()) || frame.len() > CHUNK_LEN - LEN_LEN {
            return false;
        }
        let slot = &self.slots[written as usize % self.slots.len()];
        // SAFETY: the slot is the producer's (above), of which there is one, and it makes one reference at a
        // time.
        let slot = unsafe { &mut *slot.get() };
        slot[..LEN_LEN].copy_from_slice(&(frame.len() as u32).to_ne_bytes());
        slot[LEN_LEN..LEN_LEN + frame.len()].copy_from_slice(frame);
        self.written.store(written.wrapping_add(1), Ordering::Release);
        true
    }

    /// Called by the consumer: calls `each` for at most a batch of frames.
    fn pop(&self, each: &mut dyn FnMut(&[u8])) -> usize {
        let read = self.read.load(Ordering::Relaxed);
        let count = self.written.load(Ordering::Acquire).wrapping_sub(read).min(RECEIVE_BATCH_MAX as u32);
        for at in 0..count {
            let slot = &self.slots[read.wrapping_add(at) as usize % self.slots.len()];
            // SAFETY: the slot is the consumer's (above), of which there is one, until `read` is published.
            let slot = unsafe { &*slot.get() };
            let len = u32::from_ne_bytes([slot[0], slot[1], slot[2], slot[3]]) as usize;
            each(&slot[LEN_LEN..(LEN_LEN + len).min(CHUNK_LEN)]);
        }
        self.read.store(read.wrapping_add(count), Ordering::Release);
        count as usize
    }
}

/// The frames that other workers have received for a worker.
struct Inbox {
    /// Rings indexed by sender.
    rings: Vec<Ring>,
    /// Rings indexed by sender, for frames that all workers share.
    shared: Vec<Ring>,
    event: OwnedFd,
    /// Whether the event descriptor was written, or is about to be, and the worker has not checked its rings
    /// since.
    signalled: AtomicBool,
    /// Whether the worker has obtained its end.
    taken: AtomicBool,
}

/// The rings between all workers of an interface.
pub struct Handoffs {
    inboxes: Vec<Inbox>,
}

impl core::fmt::Debug for Handoffs {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Handoffs({} workers)", self.inboxes.len())
    }
}

impl Handoffs {
    /// Creates the rings. Their memory, 1.25 MiB for each pair of sender and receiver, is allocated by the
    /// kernel when it is first used.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new(workers: u8) -> io::Result<Arc<Self>> {
        let inbox = |_| {
            // SAFETY: eventfd takes no pointers; its result is checked.
            let fd = check(unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) })?;
            // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
            let event = unsafe { OwnedFd::from_raw_fd(fd) };
            let [rings, shared] =
                [HANDOFF_LEN, SHARED_LEN].map(|len| (0..workers).map(|_| Ring::new(len)).collect());
            Ok(Inbox {
                rings,
                shared,
                event,
                signalled: AtomicBool::new(false),
                taken: AtomicBool::new(false),
            })
        };
        let inboxes = (0..workers).map(inbox).collect::<io::Result<Vec<Inbox>>>()?;
        Ok(Arc::new(Handoffs { inboxes }))
    }

    pub(super) fn workers(&self) -> usize {
        self.inboxes.len()
    }

    /// Returns a worker's end.
    ///
    /// # Panics
    /// The worker does not exist, or its end was already returned.
    pub(super) fn end(self: &Arc<Self>, worker: u8) -> End {
        let taken = self.inboxes[usize::from(worker)].taken.swap(true, Ordering::Relaxed);
        assert!(!taken, "each worker opens its port once");
        End { all: Arc::clone(self), worker: worker.into(), to_wake: 0, unread: 0 }
    }
}

/// The destination of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Destination {
    Own,
    Others,
}

/// A worker's end of the rings. Exactly one exists per worker.
pub(super) struct End {
    all: Arc<Handoffs>,
    worker: usize,
    /// Workers to wake because they were given frames, one bit each.
    to_wake: u64,
    /// Calls since the shared frames were received.
    unread: u32,
}

impl End {
    /// Hands a frame over if it belongs to another worker, or to all. Increments `dropped` for each ring
    /// without room.
    pub(super) fn place(&mut self, frame: &[u8], dropped: &mut u64) -> Destination {
        if is_shared(frame) {
            let own = self.worker;
            let most = if is_fragment(frame) { FRAGMENTS_MAX } else { SHARED_LEN };
            for to in (0..self.all.workers()).filter(|to| *to != own) {
                self.to_wake |= 1 << to;
                *dropped += u64::from(!self.all.inboxes[to].shared[own].push(frame, most));
            }
            return Destination::Own;
        }
        let to = worker_of(frame, self.all.workers());
        if to == self.worker {
            return Destination::Own;
        }
        self.to_wake |= 1 << to;
        *dropped += u64::from(!self.all.inboxes[to].rings[self.worker].push(frame, HANDOFF_LEN));
        Destination::Others
    }

    /// Wakes the workers that were given frames since the last call.
    pub(super) fn wake_others(&mut self) {
        let mut to_wake = core::mem::take(&mut self.to_wake);
        while to_wake != 0 {
            let inbox = &self.all.inboxes[to_wake.trailing_zeros() as usize];
            to_wake &= to_wake - 1;
            if !inbox.signalled.swap(true, Ordering::AcqRel) {
                let one = 1u64.to_ne_bytes();
                // SAFETY: `one` has the 8 readable bytes that an event descriptor takes, and outlives the
                // call.
                let _ = unsafe { libc::write(inbox.event.as_raw_fd(), one.as_ptr().cast(), one.len()) };
            }
        }
    }

    /// Calls `each` for the frames that other workers have handed over, at most a batch of each kind. `own`
    /// is the number of frames that the worker's own queues had in this call. If `own` is 0, a return value
    /// of 0 means that no frame is left.
    pub(super) fn receive(&mut self, own: usize, each: &mut dyn FnMut(&[u8])) -> usize {
        let inbox = &self.all.inboxes[self.worker];
        if inbox.signalled.load(Ordering::Acquire) {
            let mut count = [0u8; 8];
            // SAFETY: `count` has the 8 writable bytes that an event descriptor needs, and outlives the call.
            let read = unsafe { libc::read(inbox.event.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
            // Not written yet: the next call finds the frames.
            if read > 0 {
                // Frames whose sender saw the mark are found below; other senders write the event again.
                inbox.signalled.swap(false, Ordering::AcqRel);
            }
        }
        let mut from = |rings: &[Ring]| rings.iter().map(|ring| ring.pop(each)).sum::<usize>();
        let count = from(&inbox.rings);
        self.unread += 1;
        if own + count > 0 && self.unread < SHARED_EVERY {
            return count;
        }
        self.unread = 0;
        count + from(&inbox.shared)
    }

    pub(super) fn fd(&self) -> RawFd {
        self.all.inboxes[self.worker].event.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a TCP frame with a number in its source address.
    fn frame(number: u32) -> Vec<u8> {
        let mut frame = vec![0; 60];
        (frame[12], frame[14], frame[23]) = (8, 0x45, 6);
        frame[26..30].copy_from_slice(&number.to_be_bytes());
        frame[37] = 80;
        frame
    }

    fn is_readable(fd: RawFd) -> bool {
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: `poll` is one element that outlives the call.
        (unsafe { libc::poll(&raw mut poll, 1, 0) }) > 0
    }

    #[test]
    fn frames_reach_their_worker_in_order_and_what_does_not_fit_is_counted() {
        let all = Handoffs::new(2).unwrap();
        let (mut first, mut second) = (all.end(0), all.end(1));
        let frames: Vec<Vec<u8>> = (0..).map(frame).filter(|f| worker_of(f, 2) == 1).take(300).collect();
        let mut dropped = 0;
        for frame in &frames {
            assert_eq!(first.place(frame, &mut dropped), Destination::Others);
        }
        assert_eq!(dropped as usize, 300 - HANDOFF_LEN);
        assert!(!is_readable(second.fd()));
        first.wake_others();
        assert!(is_readable(second.fd()));
        let mut seen = Vec::new();
        while second.receive(0, &mut |frame| seen.push(frame.to_vec())) > 0 {}
        assert_eq!(seen, frames[..HANDOFF_LEN]);
        assert!(!is_readable(second.fd()));
        let own = (0..).map(frame).find(|f| worker_of(f, 2) == 0).unwrap();
        assert_eq!(first.place(&own, &mut dropped), Destination::Own);
    }

    /// Fragments have a separate ring with a limit, and a busy worker receives from it at intervals.
    #[test]
    fn a_flood_of_fragments_takes_no_room_from_other_frames() {
        const FLOOD: usize = 10_000;
        let all = Handoffs::new(3).unwrap();
        let (mut first, mut second, mut third) = (all.end(0), all.end(1), all.end(2));
        let fragment = |number| {
            let mut fragment = frame(number);
            fragment[20] = 0x20;
            fragment
        };
        let mut advertisement = vec![0; 60];
        (advertisement[12], advertisement[13], advertisement[21]) = (8, 6, 2);
        let whole: Vec<_> = (0..).map(frame).filter(|f| worker_of(f, 3) == 1).take(HANDOFF_LEN).collect();
        let mut dropped = 0;
        (0..FLOOD as u32)
            .for_each(|number| assert_eq!(first.place(&fragment(number), &mut dropped), Destination::Own));
        assert_eq!(dropped as usize, 2 * (FLOOD - FRAGMENTS_MAX));
        dropped = 0;
        assert_eq!(first.place(&advertisement, &mut dropped), Destination::Own);
        whole.iter().for_each(|frame| assert_eq!(first.place(frame, &mut dropped), Destination::Others));
        assert_eq!(dropped, 0);
        let shared: Vec<_> = (0..FRAGMENTS_MAX as u32).map(fragment).chain([advertisement]).collect();
        let calls = |end: &mut End, own: usize| {
            let mut seen = Vec::new();
            let count = end.receive(own, &mut |frame| seen.push(frame.to_vec()));
            assert_eq!(count, seen.len());
            seen
        };
        first.wake_others();
        assert!(is_readable(second.fd()) && is_readable(third.fd()));
        // Each of four calls hands the second worker a batch; in further calls its own queue has frames.
        for batch in whole.chunks(RECEIVE_BATCH_MAX) {
            assert_eq!(calls(&mut second, 0), batch);
        }
        for _ in whole.len() / RECEIVE_BATCH_MAX..SHARED_EVERY as usize - 1 {
            assert_eq!(calls(&mut second, 1), [[0u8; 0]; 0]);
        }
        assert_eq!(calls(&mut second, 1), shared);
        // The third worker is otherwise idle.
        assert_eq!(calls(&mut third, 0), shared);
        assert_eq!((calls(&mut second, 0).len(), calls(&mut third, 0).len()), (0, 0));
        assert!(!is_readable(second.fd()) && !is_readable(third.fd()));
    }

    #[test]
    fn no_frame_is_left_behind_while_its_worker_sleeps() {
        let all = Handoffs::new(2).unwrap();
        let (mut first, mut second) = (all.end(0), all.end(1));
        const FRAMES: u32 = 200_000;
        let sender = std::thread::spawn(move || {
            let (mut number, mut sent) = (0, 0u32);
            while sent < FRAMES {
                let frame = frame(number);
                number += 1;
                if worker_of(&frame, 2) != 1 {
                    continue;
                }
                let mut dropped = 1;
                while core::mem::take(&mut dropped) > 0 {
                    first.place(&frame, &mut dropped);
                    first.wake_others();
                }
                sent += 1;
            }
        });
        let (mut seen, mut last) = (0, None);
        while seen < FRAMES {
            let mut poll = libc::pollfd { fd: second.fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: `poll` is one element that outlives the call.
            let ready = unsafe { libc::poll(&raw mut poll, 1, 10_000) };
            assert_eq!(ready, 1, "the worker sleeps and has {seen} frames");
            while second.receive(0, &mut |frame| {
                let number = u32::from_be_bytes([frame[26], frame[27], frame[28], frame[29]]);
                assert!(last.is_none_or(|last| last < number), "{last:?} {number}");
                last = Some(number);
                seen += 1;
            }) > 0
            {}
        }
        sender.join().unwrap();
    }
}
