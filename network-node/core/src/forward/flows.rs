//! Which server has a flow, so that a flow stays with its server while others come and go.
//!
//! ```text
//!  hash of the flow ─▶ set: │ tag × 8 │ server and time × 8 │      two cache lines
//! ```
//! An entry is 16 bytes: the flow's hash with a secret key stands for its addresses and ports. A set that is
//! full loses the flow that was used least recently; its next packet goes where the pool's table says, which
//! is the same server unless servers have changed. So a flood of new flows costs nobody a connection, needs
//! no memory, and nothing expires by a timer.

use csp_types::Instant;

/// Entries of a set.
const WAYS: usize = 8;

/// Tags, then servers (high half) and the second in which the flow was used last (low half).
type Set = [u64; 2 * WAYS];

/// The table. Its memory comes from the system as it is first used.
#[derive(Debug)]
pub(super) struct ServerOfFlow {
    sets: Box<[Set]>,
    /// Entries that have been given to a flow.
    used: usize,
}

/// Returns the second of a time. It wraps after 136 years.
fn second(now: Instant) -> u32 {
    (now.as_nanos() / 1_000_000_000) as u32
}

/// A tag is never 0, which is an empty entry.
const fn tag_of(hash: u64) -> u64 {
    hash | 1
}

impl ServerOfFlow {
    /// Makes a table with room for about `flows_max` flows.
    pub(super) fn new(flows_max: usize) -> Self {
        let sets = flows_max.div_ceil(WAYS).max(1).next_power_of_two();
        ServerOfFlow { sets: vec![[0; 2 * WAYS]; sets].into_boxed_slice(), used: 0 }
    }

    /// Returns the number of flows in it, those that are over included.
    pub(super) const fn len(&self) -> usize {
        self.used
    }

    pub(super) const fn capacity(&self) -> usize {
        self.sets.len() * WAYS
    }

    fn set_of(&mut self, hash: u64) -> &mut Set {
        // The tag's lowest bit is always set; the set is chosen by the bits above.
        let mask = self.sets.len() - 1;
        &mut self.sets[(hash >> 1) as usize & mask]
    }

    /// Returns the id of the server that has the flow, unless it rested longer than `idle_s` seconds. With
    /// `touch`, the flow counts as used now.
    pub(super) fn find(&mut self, now: Instant, hash: u64, idle_s: u32, touch: bool) -> Option<u32> {
        let (tag, now) = (tag_of(hash), second(now));
        let (tags, values) = self.set_of(hash).split_at_mut(WAYS);
        let at = tags.iter().position(|known| *known == tag)?;
        let value = values.get_mut(at)?;
        let rested = now.wrapping_sub(*value as u32);
        if rested > idle_s {
            return None;
        }
        let server = (*value >> 32) as u32;
        if touch && rested > 0 {
            *value = u64::from(server) << 32 | u64::from(now);
        }
        Some(server)
    }

    /// Notes the server of a flow, in place of its former one or of the flow of its set that was used least
    /// recently.
    pub(super) fn insert(&mut self, now: Instant, hash: u64, server: u32) {
        let (tag, now) = (tag_of(hash), second(now));
        let (tags, values) = self.set_of(hash).split_at_mut(WAYS);
        let known = tags.iter().position(|known| *known == tag);
        let free = || tags.iter().position(|known| *known == 0);
        let oldest = || (0..WAYS).max_by_key(|at| now.wrapping_sub(values[*at] as u32));
        let at = known.or_else(free).or_else(oldest).unwrap_or(0);
        let fresh = tags[at] == 0;
        tags[at] = tag;
        values[at] = u64::from(server) << 32 | u64::from(now);
        self.used += usize::from(fresh);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn a_flow_keeps_its_server_until_it_has_rested() {
        let mut table = ServerOfFlow::new(64);
        assert_eq!(table.find(at(1), 0x1234, 10, true), None);
        table.insert(at(1), 0x1234, 7);
        assert_eq!(table.find(at(11), 0x1234, 10, true), Some(7));
        assert_eq!(table.find(at(21), 0x1234, 10, false), Some(7), "it was used at 11");
        assert_eq!(table.find(at(22), 0x1234, 10, true), None);
        table.insert(at(22), 0x1234, 8);
        assert_eq!((table.find(at(22), 0x1234, 10, true), table.len()), (Some(8), 1));
    }

    #[test]
    fn a_full_set_loses_the_flow_that_was_used_least_recently() {
        let mut table = ServerOfFlow::new(8);
        let hash = |flow: u64| flow << 8;
        (0..8).for_each(|flow| table.insert(at(flow), hash(flow + 1), flow as u32));
        assert_eq!(table.find(at(20), hash(1), 100, true), Some(0));
        table.insert(at(21), hash(9), 9);
        assert_eq!(table.find(at(21), hash(2), 100, true), None, "the oldest went");
        assert_eq!(table.find(at(21), hash(1), 100, true), Some(0));
        assert_eq!(table.find(at(21), hash(9), 100, true), Some(9));
        assert_eq!((table.len(), table.capacity()), (8, 8));
    }
}
