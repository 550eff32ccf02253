//! The receive buffers of one end of a VI and the flow control over them, for the providers that bring
//! messages through a library or a byte stream (`ucx`, `tcp`).
//!
//! Both ends count: the receiver the receives that it has posted in total, the sender the messages that it
//! has sent in total, modulo 2³². The difference is the window.

use std::collections::VecDeque;

use crate::regions::Place;
use crate::{ViConfig, ViError};

/// Largest memory of the buffers of one end, in bytes.
const END_MEMORY_LEN_MAX: usize = 1 << 28;

/// The length that stands for a buffer that is posted.
const POSTED: u32 = u32::MAX;

/// Returns an error if an end whose send buffers take `send_len` bytes would need too much memory.
pub(crate) fn check_memory(send_len: usize, config: &ViConfig) -> Result<(), ViError> {
    let receive_len = config.receive_depth as usize * config.message_len as usize;
    if send_len.saturating_add(receive_len) > END_MEMORY_LEN_MAX {
        return Err(ViError::Exhausted("VI memory: lower the queue depths or message_len"));
    }
    Ok(())
}

/// A received message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Arrived {
    pub buffer: u32,
    pub len: u32,
    pub immediate: u32,
}

/// The memory for received messages.
enum Buffers {
    /// Buffers of `message_len` bytes each, one after another.
    Own(Box<[u8]>),
    /// In the caller's memory.
    Lent(Box<[Place]>),
}

/// The receive buffers of one end.
pub(crate) struct Receives {
    depth: u32,
    message_len: usize,
    memory: Buffers,
    /// Posted buffers, in the order posted.
    free: VecDeque<u16>,
    /// For each buffer the length of the message that the caller holds in it, or [`POSTED`].
    held: Box<[u32]>,
    /// Receives posted in total, receives advertised to the peer in total, and messages received.
    posted: u32,
    advertised: u32,
    received: u32,
}

impl Receives {
    /// Creates the buffers of an end, all posted; the memory is the provider's.
    pub(crate) fn new(config: &ViConfig) -> Self {
        let (depth, message_len) = (config.receive_depth, config.message_len as usize);
        Receives {
            depth,
            message_len,
            memory: Buffers::Own(vec![0; depth as usize * message_len].into()),
            free: (0..depth as u16).collect(),
            held: vec![POSTED; depth as usize].into(),
            posted: depth,
            advertised: depth,
            received: 0,
        }
    }

    /// Receives into these buffers. Their number equals the receive depth, and each is long enough (checked
    /// by the caller).
    pub(crate) fn receive_into(&mut self, places: Box<[Place]>) {
        self.memory = Buffers::Lent(places);
    }

    /// Messages received in total, modulo 2³².
    pub(crate) fn received(&self) -> u32 {
        self.received
    }

    /// Whether posted receives should be advertised now, without waiting for a message that carries the
    /// count.
    pub(crate) fn is_credit_due(&self) -> bool {
        let unadvertised = self.posted.wrapping_sub(self.advertised);
        let window = self.advertised.wrapping_sub(self.received);
        unadvertised > 0 && (window == 0 || unadvertised * 2 >= self.depth)
    }

    /// Returns the receives posted in total, for a message to the peer.
    pub(crate) fn advertise(&mut self) -> u32 {
        self.advertised = self.posted;
        self.posted
    }

    /// Takes the next posted buffer for a message of `len` bytes. `None` if the peer had no posted receive
    /// for it or it is too long.
    pub(crate) fn reserve(&mut self, len: usize) -> Option<u16> {
        if len > self.message_len { None } else { self.free.pop_front() }
    }

    /// Returns the address of `len` bytes at `offset` of a reserved buffer. It is valid while this value
    /// exists and is not [given other memory](Self::receive_into).
    pub(crate) fn at(&mut self, buffer: u16, offset: usize, len: usize) -> Option<*mut u8> {
        if offset.checked_add(len)? > self.message_len {
            return None;
        }
        match &mut self.memory {
            Buffers::Own(bytes) => {
                let start = usize::from(buffer) * self.message_len + offset;
                Some(bytes.get_mut(start..start + len)?.as_mut_ptr())
            }
            Buffers::Lent(places) => {
                let place = places.get(usize::from(buffer))?;
                place.memory.at(place.offset + offset, len)
            }
        }
    }

    /// Copies bytes of a message to `offset` of its reserved buffer.
    pub(crate) fn fill(&mut self, buffer: u16, offset: usize, data: &[u8]) -> Option<()> {
        match &mut self.memory {
            Buffers::Own(bytes) => {
                let start = usize::from(buffer) * self.message_len + offset;
                bytes.get_mut(start..start + data.len())?.copy_from_slice(data);
            }
            Buffers::Lent(places) => {
                let place = places.get(usize::from(buffer))?;
                place.memory.write(place.offset + offset, data);
            }
        }
        Some(())
    }

    /// Records that a reserved buffer has its whole message.
    pub(crate) fn complete(&mut self, buffer: u16, len: usize, immediate: u32) -> Option<Arrived> {
        let len = len as u32;
        *self.held.get_mut(usize::from(buffer))? = len;
        self.received = self.received.wrapping_add(1);
        Some(Arrived { buffer: buffer.into(), len, immediate })
    }

    /// Copies a received message into the next posted buffer. `None` as from [`reserve`](Self::reserve).
    pub(crate) fn store(&mut self, data: &[u8], immediate: u32) -> Option<Arrived> {
        let buffer = self.reserve(data.len())?;
        self.fill(buffer, 0, data)?;
        self.complete(buffer, data.len(), immediate)
    }

    /// Posts a held buffer again. `None` if the buffer is not held.
    pub(crate) fn post(&mut self, buffer: u32) -> Option<()> {
        let held = self.held.get_mut(buffer as usize).filter(|held| **held != POSTED)?;
        *held = POSTED;
        self.free.push_back(buffer as u16);
        self.posted = self.posted.wrapping_add(1);
        Some(())
    }

    /// Copies from a held buffer. `None` if the buffer is not held.
    pub(crate) fn read(&self, buffer: u32, offset: usize, into: &mut [u8]) -> Option<usize> {
        let len = self.held.get(buffer as usize).copied().filter(|&len| len != POSTED)? as usize;
        let offset = offset.min(len);
        let count = (len - offset).min(into.len());
        match &self.memory {
            Buffers::Own(bytes) => {
                let start = buffer as usize * self.message_len + offset;
                into[..count].copy_from_slice(bytes.get(start..start + count)?);
                Some(count)
            }
            Buffers::Lent(places) => {
                let place = places.get(buffer as usize)?;
                Some(place.memory.read(place.offset + offset, &mut into[..count]))
            }
        }
    }
}

/// What the peer of one end lets it send.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Window {
    depth: u32,
    /// Receives that the peer has posted in total, and data messages sent.
    posted: u32,
    sent: u32,
}

impl Window {
    /// The window to a peer that has posted `depth` receives, before the first message.
    pub(crate) fn new(depth: u32) -> Self {
        Window { depth, posted: depth, sent: 0 }
    }

    /// Receives that the peer has posted and this end has not used.
    pub(crate) fn len(&self) -> u32 {
        self.posted.wrapping_sub(self.sent)
    }

    /// Messages sent for which the peer has not posted a receive again.
    pub(crate) fn used(&self) -> u32 {
        self.depth.saturating_sub(self.len())
    }

    /// Data messages sent in total.
    pub(crate) fn sent(&self) -> u32 {
        self.sent
    }

    /// Counts a data message.
    pub(crate) fn count(&mut self) {
        self.sent = self.sent.wrapping_add(1);
    }

    /// Updates the peer's count of posted receives. Returns `false` if the count is impossible. One below the
    /// current is ignored: a library may reorder messages.
    pub(crate) fn update(&mut self, posted: u32) -> bool {
        let window = posted.wrapping_sub(self.sent);
        let plausible = window <= self.depth;
        if plausible && window > self.len() {
            self.posted = posted;
        }
        plausible
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: ViConfig = ViConfig { receive_depth: 2, send_depth: 2, message_len: 4 };

    #[test]
    fn buffers_are_filled_in_the_order_posted_and_held_until_they_are_posted() {
        let mut receives = Receives::new(&CONFIG);
        assert_eq!(receives.store(b"12345", 0), None, "too long");
        assert_eq!(receives.store(b"ab", 7), Some(Arrived { buffer: 0, len: 2, immediate: 7 }));
        let second = receives.reserve(4).unwrap();
        assert_eq!((receives.fill(second, 0, b"c"), receives.fill(second, 1, b"def")), (Some(()), Some(())));
        assert!(receives.at(second, 3, 1).is_some() && receives.at(second, 3, 2).is_none());
        assert_eq!(receives.read(1, 0, &mut [0; 4]), None, "not complete");
        receives.complete(second, 4, 0).unwrap();
        assert_eq!(receives.store(b"", 0), None, "none is posted");
        let mut bytes = [0; 4];
        assert_eq!((receives.read(1, 2, &mut bytes), &bytes[..2]), (Some(2), &b"ef"[..]));
        assert!(!receives.is_credit_due());
        assert_eq!((receives.post(1), receives.post(1), receives.post(9)), (Some(()), None, None));
        assert!(receives.is_credit_due());
        assert_eq!((receives.advertise(), receives.is_credit_due()), (3, false));
        assert_eq!(receives.store(b"x", 0).map(|arrived| arrived.buffer), Some(1));
    }

    #[test]
    fn a_window_takes_only_possible_counts() {
        let mut window = Window::new(2);
        window.count();
        assert_eq!((window.len(), window.used(), window.sent()), (1, 1, 1));
        assert!(window.update(3) && window.update(2), "a count below the current is ignored");
        assert_eq!((window.len(), window.used()), (2, 0));
        assert!(!window.update(4), "more than the depth");
        assert!(!window.update(0), "less than was used");
    }
}
