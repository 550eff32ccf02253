//! The network node's worker in this worker's thread, which takes records by a call, and leaves those from
//! the LAN in memory of the TCP engine.

mod inbox;

use std::sync::Arc;

use csp_tcp::Buffer;
use csp_transport::{Adjacency, AdjacentInbox, AdjacentWorker};
use csp_types::{Instant, NodeId};
use csp_wire::tunnel::Record;

use inbox::{BUFFERS_MAX, Inbox};

/// What is sent in one turn, in bytes, so that the LAN's frames are received in between.
const BYTES_PER_TURN: usize = 1 << 20;
/// What a record with payload costs beyond it, in bytes: a system call and a frame.
const SEGMENT_WORTH: usize = 4096;
/// What a record without payload costs. A turn has room for as many answers to SYNs as the TCP engine keeps
/// for one.
const BARE_WORTH: usize = 256;

/// The network node's worker in this worker's thread, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Adjacent {
    nodes: Option<(Arc<Adjacency>, u8)>,
    worker: Option<Arc<dyn AdjacentWorker>>,
    /// The tunnel is up at the network node's end, too. That changes only between this worker's turns.
    up: bool,
    /// What was sent in this turn, in bytes.
    sent: usize,
    /// Records taken so far.
    taken: u64,
    inbox: Arc<Inbox>,
    /// The number of the network node's worker while the tunnel is up at this end.
    via: Option<u32>,
    /// Buffers in which records were left before this turn.
    filled: usize,
    /// Some records went through the tunnel before this turn, maybe since these were too few.
    was_shut: bool,
    /// Buffers to lend: as many as were needed lately.
    level: usize,
    /// Buffers in which records were left so far.
    left: u64,
}

impl Adjacent {
    /// Sets the nodes that share threads, and the number of this worker.
    pub(crate) fn set(&mut self, nodes: Arc<Adjacency>, number: u8) {
        let inbox: Arc<dyn AdjacentInbox> = self.inbox.clone();
        nodes.set_inbox(number, Arc::downgrade(&inbox));
        self.nodes = Some((nodes, number));
    }

    /// Returns whether the worker at the other end of a tunnel is the one in this thread.
    pub(super) fn is(&mut self, node: NodeId, worker: u8) -> bool {
        let Some((nodes, number)) = &self.nodes else { return false };
        if (node, worker) != (nodes.network_node, *number) {
            return false;
        }
        self.worker = nodes.get(*number).cloned();
        self.up = self.worker.as_ref().is_some_and(|worker| worker.is_up());
        self.worker.is_some()
    }

    /// The tunnel is up at this end: its network node's worker has this number.
    pub(super) fn tunnel_up(&mut self, via: u32) {
        self.via = Some(via);
    }

    /// The tunnel of a network node's worker is down at this end.
    pub(super) fn tunnel_down(&mut self, via: u32) {
        if self.via.take_if(|up| *up == via).is_some() {
            self.inbox.shut();
        }
    }

    /// Returns the number of the network node's worker in this thread while its tunnel is up at this end.
    pub(super) fn via(&self) -> Option<u32> {
        self.via
    }

    /// Returns the next buffer that was lent, the length of the records in it, and the number of the network
    /// node's worker that left them.
    pub(crate) fn take_left(&mut self) -> Option<(Buffer, usize, Option<u32>)> {
        let (buffer, len) = self.inbox.take()?;
        self.filled += usize::from(len > 0);
        self.left += u64::from(len > 0);
        Some((buffer, len, self.via))
    }

    /// Returns whether records wait for the next turn.
    pub(crate) fn is_left(&self) -> bool {
        self.via.is_some() && !self.inbox.is_empty()
    }

    /// All records that were left have been taken, and those that are in the tunnel are taken next: others
    /// may be left again, unless [`is_behind`](Self::is_behind) follows.
    pub(crate) fn open(&mut self) {
        self.was_shut = self.inbox.is_shut();
        if self.via.is_some() {
            self.inbox.open();
        }
    }

    /// Some records stay in the tunnel after this turn.
    pub(crate) fn is_behind(&mut self) {
        self.inbox.shut();
    }

    /// Returns how many buffers to lend until the next turn: one more than was needed lately, or twice as
    /// many if those did not suffice, but at most `most`.
    pub(crate) fn wanted(&mut self, most: usize) -> usize {
        let filled = std::mem::take(&mut self.filled);
        let needed = if self.was_shut { 2 * filled } else { filled };
        self.level = (needed + 1).max(self.level - self.level.div_ceil(8)).min(most.min(BUFFERS_MAX));
        if self.via.is_none() || self.inbox.is_shut() { 0 } else { self.level }
    }

    /// Returns a buffer that was lent beyond the first one.
    pub(crate) fn take_unneeded(&mut self) -> Option<Buffer> {
        self.inbox.take_unneeded()
    }

    /// The tunnels end.
    pub(crate) fn close(&mut self) {
        self.via = None;
        self.inbox.shut();
    }

    /// Lends memory for records.
    pub(crate) fn lend(&self, buffer: Buffer) {
        self.inbox.lend(buffer);
    }

    /// Allows further records; returns whether the turn before had to stop.
    pub(crate) fn begin_turn(&mut self) -> bool {
        self.up = self.worker.as_ref().is_some_and(|worker| worker.is_up());
        std::mem::take(&mut self.sent) >= BYTES_PER_TURN
    }

    /// Returns whether records are taken at present.
    pub(super) fn is_up(&self) -> bool {
        self.up
    }

    /// Returns whether more may be sent in this turn.
    pub(super) fn is_ready(&self) -> bool {
        self.sent < BYTES_PER_TURN
    }

    /// Returns the number of records taken so far.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// Returns the bytes of all buffers that are lent.
    pub(crate) fn lent(&self) -> usize {
        self.inbox.lent()
    }

    /// Returns the number of buffers in which records were left so far.
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// Passes a record on, with its headers in the first part; `false` if it has to go through the tunnel.
    pub(super) fn take(&mut self, now: Instant, record: &Record<'_>, parts: &[&[u8]]) -> bool {
        let Some(worker) = self.worker.as_ref().filter(|_| self.up) else { return false };
        if !worker.take(now, record, parts) {
            self.up = false;
            return false;
        }
        let payload_len: usize = parts.iter().skip(1).map(|part| part.len()).sum();
        self.sent += if payload_len == 0 { BARE_WORTH } else { SEGMENT_WORTH + payload_len };
        self.taken += 1;
        true
    }

    /// Sends what the records of this turn have resulted in.
    pub(super) fn flush(&self, now: Instant) {
        if let Some(worker) = self.worker.as_ref().filter(|_| self.sent > 0) {
            worker.flush(now);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "helpers of tests")]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use csp_types::FlowLabel;

    use super::*;

    /// Takes records while it is up; counts them and the calls of `flush`.
    #[derive(Debug, Default)]
    struct Fake {
        up: AtomicBool,
        taken: AtomicU64,
        flushed: AtomicU64,
    }

    impl AdjacentWorker for Fake {
        fn is_up(&self) -> bool {
            self.up.load(Ordering::Relaxed)
        }

        fn take(&self, _: Instant, _: &Record<'_>, _: &[&[u8]]) -> bool {
            let up = self.is_up();
            self.taken.fetch_add(u64::from(up), Ordering::Relaxed);
            up
        }

        fn flush(&self, _: Instant) {
            self.flushed.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn with_fake() -> (Adjacent, Arc<Fake>) {
        let (network, proxy) = ("nn-1".parse().unwrap(), "pn-1".parse().unwrap());
        let (nodes, fake) = (Adjacency::new(network, proxy, 2), Arc::new(Fake::default()));
        nodes.set(1, fake.clone());
        fake.up.store(true, Ordering::Relaxed);
        let mut adjacent = Adjacent::default();
        adjacent.set(Arc::new(nodes), 1);
        assert!(!adjacent.is(network, 0) && !adjacent.is(proxy, 1), "other workers are not in this thread");
        assert!(adjacent.is(network, 1));
        (adjacent, fake)
    }

    fn send(adjacent: &mut Adjacent, parts: &[&[u8]]) -> bool {
        adjacent.take(Instant::ZERO, &Record::flow_end(FlowLabel::NONE, 1), parts)
    }

    #[test]
    fn a_turn_sends_so_much_and_the_next_one_goes_on() {
        let (mut adjacent, fake) = with_fake();
        adjacent.begin_turn();
        let segment: [&[u8]; 3] = [&[0; 32], &[7; 40_000], &[7; 20_000]];
        let mut sent = 0;
        while adjacent.is_ready() {
            assert!(send(&mut adjacent, &segment));
            sent += 1;
        }
        assert_eq!(sent, BYTES_PER_TURN.div_ceil(60_000 + SEGMENT_WORTH));
        adjacent.flush(Instant::ZERO);
        assert_eq!(fake.flushed.load(Ordering::Relaxed), 1);
        assert!(adjacent.begin_turn(), "work is left, for which the thread must not sleep");
        assert!(adjacent.is_ready());
        adjacent.flush(Instant::ZERO);
        assert_eq!(fake.flushed.load(Ordering::Relaxed), 1, "nothing was sent in this turn");
        assert!(!adjacent.begin_turn());
    }

    /// A flood that is answered with cookies takes no turn from the connections that are established.
    #[test]
    fn a_turn_has_room_for_all_answers_to_a_flood() {
        let (mut adjacent, _) = with_fake();
        adjacent.begin_turn();
        let replies = csp_tcp::StackConfig::default().cookie_replies;
        for _ in 1..replies {
            assert!(send(&mut adjacent, &[&[0; 60]]));
        }
        assert!(adjacent.is_ready());
    }

    #[test]
    fn what_the_network_node_refuses_costs_nothing_and_goes_through_the_tunnel_until_it_is_up_again() {
        let (mut adjacent, fake) = with_fake();
        adjacent.begin_turn();
        fake.up.store(false, Ordering::Relaxed);
        assert!(!send(&mut adjacent, &[&[0; 20], &[7; 100]]));
        assert!(!adjacent.is_up() && adjacent.sent == 0 && adjacent.taken() == 0);
        fake.up.store(true, Ordering::Relaxed);
        assert!(!send(&mut adjacent, &[&[0; 20]]), "in this turn all takes the same way");
        adjacent.begin_turn();
        assert!(send(&mut adjacent, &[&[0; 20]]));
        assert_eq!((adjacent.taken(), fake.taken.load(Ordering::Relaxed)), (1, 1));
    }
}
