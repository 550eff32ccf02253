//! The network node's worker in this worker's thread, which takes records by a call.

use std::sync::Arc;

use csp_transport::{Adjacency, AdjacentWorker};
use csp_types::{Instant, NodeId};
use csp_wire::tunnel::Record;

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
}

impl Adjacent {
    /// Sets the nodes that share threads, and the number of this worker.
    pub(crate) fn set(&mut self, nodes: Arc<Adjacency>, number: u8) {
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
