//! A VI whose memory is filled and emptied in place by a third party, such as a device that sends for a
//! process of this host.
//!
//! Messages from the peer are read where they lie ([`ShmProvider::received_at`]). For a message to the peer,
//! [`ShmProvider::claim`] returns the next slot that the peer has posted, the third party writes into it, and
//! [`ShmProvider::publish`] sends it. Slots are published in the order in which they were claimed. Values
//! written by the peer are checked as for any VI.

use super::{ShmProvider, ring};
use crate::{BufferId, Memory, RequestId, ViConfig, ViError, ViId};

/// The memory of a lent VI. It stays mapped while a clone of [`memory`](Loan::memory) exists, also after the
/// VI has ended.
#[derive(Clone, Debug)]
pub struct Loan {
    /// The memory of both directions.
    pub memory: Memory,
    /// Offset in it of the payload of each slot towards the peer; each payload has room for `message_len`
    /// bytes.
    pub slots: Box<[usize]>,
}

impl ShmProvider {
    /// Lends the memory of a VI: from now on its slots towards the peer are claimed and published, and
    /// `post_send` fails.
    pub fn lend(&mut self, vi: ViId) -> Result<Loan, ViError> {
        let end = self.vis.get_mut(vi.0).ok_or(ViError::Unknown("VI"))?;
        let rings = end.rings.as_mut().ok_or(ViError::NotConnected)?;
        rings.sender.lend();
        let slots = (0..rings.sender.arena().geometry.depth).map(|slot| rings.outgoing_at(slot)).collect();
        Ok(Loan { memory: rings.memory(), slots })
    }

    /// Returns the offset of the message in a held buffer within the VI's memory, and its length in bytes.
    pub fn received_at(&self, vi: ViId, buffer: BufferId) -> Result<(usize, usize), ViError> {
        let end = self.vis.get(vi.0).ok_or(ViError::Unknown("VI"))?;
        let rings = end.rings.as_ref().ok_or(ViError::Unknown("buffer"))?;
        let len = rings.receiver.held_len(buffer.0).ok_or(ViError::Unknown("buffer"))?;
        Ok((rings.incoming_at(buffer.0 as usize), len as usize))
    }

    /// Claims the slot for the next message to the peer, if it has posted one. An invalid posted entry breaks
    /// the VI.
    pub fn claim(&mut self, vi: ViId) -> Result<Option<u32>, ViError> {
        let end = self.vis.get_mut(vi.0).ok_or(ViError::Unknown("VI"))?;
        match lent(end.sending()?)?.claim() {
            Ok(slot) => Ok(slot.map(u32::from)),
            Err(ring::Violation) => {
                self.break_vi(vi.0);
                Err(ViError::NotConnected)
            }
        }
    }

    /// Sends the message of `len` bytes in `slot`, which must be the first claimed of those not yet
    /// published.
    pub fn publish(&mut self, vi: ViId, slot: u32, len: u32, immediate: u32) -> Result<(), ViError> {
        let end = self.vis.get_mut(vi.0).ok_or(ViError::Unknown("VI"))?;
        let max = end.config.message_len;
        if len > max {
            return Err(ViError::TooLong { len: len as usize, max: max as usize });
        }
        let unknown = ViError::Unknown("claimed slot");
        let slot = u16::try_from(slot).map_err(|_| unknown.clone())?;
        let sending = lent(end.sending()?)?.publish(slot, len, immediate).ok_or(unknown)?;
        self.after_send(vi.0, Ok(sending), None)
    }

    /// Returns the configuration that the connector stated in a pending request.
    pub fn wanted(&self, request: RequestId) -> Option<ViConfig> {
        self.acceptor.waiting.get(request.0).map(|waiting| waiting.config)
    }

    /// Returns whether a VI ended because its peer wrote invalid values to the memory or aborted it, rather
    /// than because the peer disconnected or died.
    pub fn is_broken(&self, vi: ViId) -> bool {
        let Some(end) = self.vis.get(vi.0) else { return false };
        end.broken || end.rings.as_ref().is_some_and(|rings| rings.receiver.is_aborted())
    }

    /// Stops listening at the address of call number `listener` of `listen`, counted from 0, and removes the
    /// socket file. Its pending requests remain.
    pub fn unlisten(&mut self, listener: u32) -> Result<(), ViError> {
        let ended = self.acceptor.unlisten(&self.epoll, listener);
        if ended { Ok(()) } else { Err(ViError::Unknown("listener")) }
    }
}

fn lent(rings: &mut super::vi::Rings) -> Result<&mut ring::Sender, ViError> {
    let sender = &mut rings.sender;
    if sender.is_lent() {
        Ok(sender)
    } else {
        Err(ViError::Unsupported("claim slots of a VI that is not lent"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{arenas, next_event, pair};
    use super::*;
    use crate::{Completion, Event, Provider};
    use std::sync::atomic::Ordering;

    #[test]
    fn a_lent_vi_carries_both_ways_from_and_into_its_memory() {
        let (mut listener, from, mut connector, to) = pair();
        assert!(matches!(listener.claim(from), Err(ViError::Unsupported(_))), "the VI is not lent");
        let loan = listener.lend(from).unwrap();
        assert!(matches!(listener.post_send(from, 0, 0, &[], false), Err(ViError::Unsupported(_))));
        let claimed: Vec<u32> = std::iter::from_fn(|| listener.claim(from).unwrap()).collect();
        assert_eq!(claimed, [0, 1, 2, 3, 4, 5, 6, 7], "all slots are posted at first, in their order");
        for lap in 0..20u32 {
            let slot = lap % 8;
            loan.memory.write(loan.slots[slot as usize], &lap.to_le_bytes());
            let wrong = listener.publish(from, (slot + 1) % 8, 4, 0);
            assert_eq!(wrong, Err(ViError::Unknown("claimed slot")), "the slot was not claimed first");
            assert!(matches!(listener.publish(from, slot, 257, 0), Err(ViError::TooLong { .. })));
            listener.publish(from, slot, 4, lap).unwrap();
            let Some(Completion::Received { buffer, len: 4, immediate, .. }) = connector.poll() else {
                panic!()
            };
            let mut bytes = [0; 4];
            connector.read(to, buffer, 0, &mut bytes).unwrap();
            assert_eq!((immediate, u32::from_le_bytes(bytes)), (lap, lap));
            assert_eq!(listener.claim(from), Ok(None), "the peer holds the slot");
            connector.post_recv(to, buffer).unwrap();
            assert_eq!(listener.claim(from), Ok(Some(slot)));
            // The other direction.
            connector.post_send(to, 0, 0, &[b"up"], false).unwrap();
            let Some(Completion::Received { buffer, .. }) = listener.poll() else { panic!("nothing came") };
            let (at, len) = listener.received_at(from, buffer).unwrap();
            let mut bytes = [0; 2];
            assert_eq!((loan.memory.read(at, &mut bytes), len, &bytes), (2, 2, b"up"));
            listener.post_recv(from, buffer).unwrap();
            assert!(listener.received_at(from, buffer).is_err(), "given back");
        }
        // The memory outlives both ends.
        listener.disconnect(from).unwrap();
        drop(connector);
        assert_eq!(loan.memory.write(loan.slots[7], b"late"), 4);
    }

    #[test]
    fn a_slot_posted_twice_breaks_the_vi() {
        let (mut listener, from, _connector, _) = pair();
        listener.lend(from).unwrap();
        let (outgoing, _) = arenas(&mut listener, from);
        outgoing.posted(1).store(2 << 12, Ordering::Relaxed);
        assert_eq!(listener.claim(from), Ok(Some(0)));
        assert_eq!(listener.claim(from), Err(ViError::NotConnected));
        assert_eq!(next_event(&mut listener), Event::Disconnected { vi: from, clean: false });
        assert!(listener.is_broken(from));
        assert_eq!(listener.publish(from, 0, 0, 0), Err(ViError::NotConnected));
        assert_eq!(listener.counters().violations, 1);
    }

    #[test]
    fn an_aborted_vi_is_distinguished_from_a_dead_peers() {
        for aborted in [true, false] {
            let (mut listener, from, mut connector, to) = pair();
            if aborted { connector.abort(to) } else { connector.disconnect(to) }.unwrap();
            assert_eq!(next_event(&mut listener), Event::Disconnected { vi: from, clean: !aborted });
            assert_eq!(listener.is_broken(from), aborted);
        }
        let (mut listener, from, connector, _) = pair();
        drop(connector);
        assert_eq!(next_event(&mut listener), Event::Disconnected { vi: from, clean: false });
        assert!(!listener.is_broken(from), "killed");
    }

    #[test]
    fn publishing_wakes_a_sleeping_peer_and_an_ended_listener_takes_no_more() {
        let (mut listener, from, mut connector, _) = pair();
        listener.lend(from).unwrap();
        listener.claim(from).unwrap();
        connector.arm().unwrap();
        let mut set = crate::WaitSet::new().unwrap();
        let mut wake = Vec::new();
        connector.wake(&mut wake);
        set.update(&wake);
        assert!(!set.wait(std::time::Duration::ZERO));
        listener.publish(from, 0, 0, 5).unwrap();
        assert!(set.wait(std::time::Duration::from_secs(10)));
        assert!(matches!(connector.poll(), Some(Completion::Received { immediate: 5, .. })));
        assert_eq!(listener.unlisten(1), Err(ViError::Unknown("listener")));
        listener.unlisten(0).unwrap();
        assert!(listener.unlisten(0).is_err());
    }
}
