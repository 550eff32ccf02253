//! Where the network node's worker of this thread leaves records: in memory of the TCP engine, in which their
//! payload stays.
//!
//! ```text
//!   turn of the proxy      network node's turn           turn of the proxy
//!   … lend ──────────▶ [ record | record | … ] ──────▶ take ─▶ core ─▶ back to the engine
//! ```
//! Buffers are lent between two turns of the proxy's worker only: meanwhile nobody reads the engine's memory.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use csp_tcp::Buffer;
use csp_transport::AdjacentInbox;
use csp_wire::tunnel::Record;

/// Largest number of buffers lent at a time: one for each of the longest frames that the LAN's port receives
/// in a turn.
pub(super) const BUFFERS_MAX: usize = 64;

/// Records between two turns. Its lock is free whenever it is taken: one thread alone uses it.
#[derive(Debug)]
pub(super) struct Inbox(Mutex<Contents>);

#[derive(Debug)]
struct Contents {
    /// Buffers with records, oldest first.
    filled: VecDeque<Filled>,
    empty: Vec<Buffer>,
    /// A record went through the tunnel, which the proxy has not taken yet.
    shut: bool,
}

#[derive(Debug)]
struct Filled {
    buffer: Buffer,
    len: usize,
}

impl Filled {
    fn push(&mut self, record: &Record<'_>, parts: &[&[u8]]) -> bool {
        let room = self.buffer.bytes_mut().get_mut(self.len..).unwrap_or_default();
        let written = record.emit_parts(parts, room);
        self.len += written.unwrap_or(0);
        written.is_some()
    }
}

impl Default for Inbox {
    fn default() -> Self {
        let (filled, empty) = (VecDeque::with_capacity(BUFFERS_MAX), Vec::with_capacity(BUFFERS_MAX));
        Inbox(Mutex::new(Contents { filled, empty, shut: true }))
    }
}

impl Inbox {
    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the oldest buffer with records, and their length; then those without, with length 0.
    pub(super) fn take(&self) -> Option<(Buffer, usize)> {
        let mut contents = self.contents();
        let filled = contents.filled.pop_front().map(|filled| (filled.buffer, filled.len));
        filled.or_else(|| contents.empty.pop().map(|buffer| (buffer, 0)))
    }

    /// Returns a buffer without records, if there is another one.
    pub(super) fn take_unneeded(&self) -> Option<Buffer> {
        let mut contents = self.contents();
        if contents.empty.len() > 1 { contents.empty.pop() } else { None }
    }

    /// Adds a buffer.
    pub(super) fn lend(&self, buffer: Buffer) {
        self.contents().empty.push(buffer);
    }

    /// Returns the bytes of all buffers.
    pub(super) fn lent(&self) -> usize {
        let contents = self.contents();
        let all = contents.filled.iter().map(|filled| &filled.buffer).chain(&contents.empty);
        all.map(|buffer| buffer.bytes().len()).sum()
    }

    /// Returns whether no record waits.
    pub(super) fn is_empty(&self) -> bool {
        self.contents().filled.is_empty()
    }

    /// Takes records again: what went through the tunnel is being taken.
    pub(super) fn open(&self) {
        self.contents().shut = false;
    }

    /// Returns whether all records go through the tunnel.
    pub(super) fn is_shut(&self) -> bool {
        self.contents().shut
    }
}

impl AdjacentInbox for Inbox {
    fn leave(&self, record: &Record<'_>, parts: &[&[u8]]) -> bool {
        let mut contents = self.contents();
        if contents.shut {
            return false;
        }
        if contents.filled.back_mut().is_some_and(|last| last.push(record, parts)) {
            return true;
        }
        let Some(buffer) = contents.empty.pop() else { return false };
        let mut next = Filled { buffer, len: 0 };
        let written = next.push(record, parts);
        match written {
            true => contents.filled.push_back(next),
            false => contents.empty.push(next.buffer),
        }
        written
    }

    fn shut(&self) {
        self.contents().shut = true;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "helpers of tests")]
mod tests {
    use csp_tcp::{Direction, Stack, StackConfig};
    use csp_wire::tunnel::Records;

    use super::*;

    const RECORD: Record<'_> = Record::election(1, &[]);

    fn lend(stack: &mut Stack, inbox: &Inbox, count: usize) {
        inbox.open();
        (0..count).for_each(|_| inbox.lend(stack.lend(Direction::Receive).unwrap()));
    }

    /// Returns the payloads of all records in order, and gives the memory back.
    fn take(stack: &mut Stack, inbox: &Inbox) -> Vec<Vec<u8>> {
        let mut payloads = Vec::new();
        while let Some((buffer, len)) = inbox.take() {
            let records = Records::new(&buffer.bytes()[..len]).map(|record| record.unwrap().payload.to_vec());
            payloads.extend(records);
            stack.give_back(buffer);
        }
        payloads
    }

    #[test]
    fn records_are_taken_in_order_from_as_many_buffers_as_they_need() {
        let mut stack = Stack::new(StackConfig::default());
        let (inbox, blocks) = (Inbox::default(), stack.occupancy().blocks);
        lend(&mut stack, &inbox, 2);
        let sent: Vec<Vec<u8>> = (0..5).map(|n| vec![n; 20_000 + usize::from(n)]).collect();
        for payload in &sent {
            let (first, second) = payload.split_at(40);
            assert!(inbox.leave(&RECORD, &[first, second]));
        }
        assert!(!inbox.is_empty());
        assert_eq!(take(&mut stack, &inbox), sent);
        assert!(inbox.is_empty() && !inbox.leave(&RECORD, &[&[1]]), "no memory is lent any more");
        assert_eq!(stack.occupancy().blocks, blocks);
    }

    #[test]
    fn once_a_record_goes_through_the_tunnel_so_do_the_others_until_it_is_taken() {
        let mut stack = Stack::new(StackConfig::default());
        let inbox = Inbox::default();
        lend(&mut stack, &inbox, 1);
        assert!(inbox.leave(&RECORD, &[&[1; 50_000]]));
        assert!(!inbox.leave(&RECORD, &[&[2; 50_000]]), "no room");
        inbox.shut();
        assert!(!inbox.leave(&RECORD, &[&[3]]), "it would overtake the one before");
        assert_eq!(take(&mut stack, &inbox), [vec![1; 50_000]]);
        assert!(!inbox.leave(&RECORD, &[&[3]]) && inbox.is_shut());
        lend(&mut stack, &inbox, 1);
        assert!(inbox.leave(&RECORD, &[&[4]]));
        assert!(!inbox.leave(&RECORD, &[&[5; 200_000]]), "longer than a buffer");
        assert_eq!(take(&mut stack, &inbox), [vec![4]]);
    }
}
