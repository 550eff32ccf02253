//! Hairpins: connections of a program of the cluster to a service of the cluster, without TCP and the LAN between.
//!
//! ```text
//!  process ─ CONNECT ─▶ flow a ┐ bytes for a's process: a ring ┐ flow b ─ OPEN ─▶ process of the service
//!          ◀ CONNECTED          └ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ┘
//!                                 bytes for b's process: a ring
//! ```
//! A hairpin is two flows with a label each, so that a process can be at both of its ends. Each is the client's end of the
//! other ([`LoopEnd`]). The flow of the service waits in the backlog, is offered and changes hands like any other. The ring
//! that a process writes to is as long as its window: what it may send always fits.
//!
//! The memory is set aside at start-up and touched as it is used. A connection for which there is no hairpin left goes
//! through a network node, like one to an address that no service here has.

mod course;

use std::collections::VecDeque;
use std::net::SocketAddr;

use csp_tcp::Buffer;
use csp_types::{FlowLabel, LabelAllocator};

use super::service::ClientEnd;

/// The window of a process at either end of a hairpin, in bytes.
pub const HAIRPIN_WINDOW: u32 = 64 * 1024;
const RING_LEN: usize = HAIRPIN_WINDOW as usize;

/// Labels of hairpins, and how many of them there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HairpinConfig {
    /// The first label index; they cover twice `pairs` indices, none of which is the TCP engine's or another worker's.
    pub first_label_index: u32,
    /// Hairpins at once; each takes two rings of [`HAIRPIN_WINDOW`] bytes.
    pub pairs: usize,
}

/// The client's end of one flow of a hairpin.
#[derive(Clone, Copy, Debug)]
struct End {
    label: FlowLabel,
    /// The other flow; [`FlowLabel::NONE`] once it is over.
    peer: FlowLabel,
    /// The source address of the hairpin.
    source: SocketAddr,
    /// Where the bytes for this flow's process begin in its ring, and how many there are.
    start: usize,
    len: usize,
    /// No byte follows them.
    finished: bool,
    /// It is in the list of flows to settle.
    settling: bool,
}

/// All hairpins of a worker.
#[derive(Debug)]
pub(crate) struct Hairpin {
    first_index: usize,
    labels: LabelAllocator<Box<[u32]>>,
    ends: Box<[Option<End>]>,
    /// A ring for each end.
    memory: Box<[u8]>,
    live: usize,
    /// Flows whose end of stream has arrived somewhere: perhaps their hairpin is over.
    to_settle: VecDeque<FlowLabel>,
}

impl Hairpin {
    /// Room for the hairpins of a configuration.
    pub(crate) fn new(config: HairpinConfig) -> Self {
        let count = 2 * config.pairs;
        let zeros = || vec![0; count].into_boxed_slice();
        Hairpin {
            first_index: config.first_label_index.max(1) as usize,
            labels: LabelAllocator::new(config.first_label_index, zeros(), zeros()),
            ends: vec![None; count].into_boxed_slice(),
            memory: vec![0; count * RING_LEN].into_boxed_slice(),
            live: 0,
            to_settle: VecDeque::with_capacity(2 * count),
        }
    }

    /// A new hairpin from `source`; the labels of its flows.
    pub(crate) fn open(&mut self, source: SocketAddr) -> Option<(FlowLabel, FlowLabel)> {
        let a = self.labels.allocate()?;
        let Some(b) = self.labels.allocate() else {
            self.labels.release(a);
            return None;
        };
        for (label, peer) in [(a, b), (b, a)] {
            let at = self.slot(label)?;
            self.ends[at] =
                Some(End { label, peer, source, start: 0, len: 0, finished: false, settling: false });
        }
        self.live += 2;
        Some((a, b))
    }

    /// Releases the end of a flow that is over; `false`: it is the flow of no hairpin.
    pub(crate) fn release(&mut self, label: FlowLabel) -> bool {
        if !self.is_of(label) {
            return false;
        }
        if let Some(peer) = self.get(label).map(|end| end.peer) {
            if let Some(other) = self.get_mut(peer) {
                other.peer = FlowLabel::NONE;
            }
            let at = label.index() - self.first_index;
            self.ends[at] = None;
            self.live -= 1;
            self.labels.release(label);
        }
        true
    }

    /// Whether a label is one of hairpins, live or not.
    pub(crate) fn is_of(&self, label: FlowLabel) -> bool {
        self.slot(label).is_some()
    }

    /// The other flow of a hairpin, where it lives.
    pub(crate) fn peer(&self, label: FlowLabel) -> Option<FlowLabel> {
        self.get(label).map(|end| end.peer).filter(|peer| !peer.is_none())
    }

    /// Whether a hairpin from this address lives.
    pub(crate) fn is_source(&self, source: SocketAddr) -> bool {
        self.live > 0 && self.ends.iter().flatten().any(|end| end.source == source)
    }

    /// Ends of hairpins that live.
    pub(crate) fn live(&self) -> usize {
        self.live
    }

    /// Bytes that wait for the process of a flow, and whether none follow.
    pub(crate) fn waiting(&self, label: FlowLabel) -> (usize, bool) {
        self.get(label).map_or((0, true), |end| (end.len, end.finished))
    }

    /// The process of a flow sends no more; returns the flow that has to pass this on.
    pub(crate) fn finish(&mut self, label: FlowLabel) -> Option<FlowLabel> {
        let peer = self.peer(label)?;
        self.get_mut(peer)?.finished = true;
        self.settle_later(label);
        Some(peer)
    }

    /// Looks later whether the hairpin of a flow is over.
    pub(crate) fn settle_later(&mut self, label: FlowLabel) {
        let settling = self.get_mut(label).map(|end| std::mem::replace(&mut end.settling, true));
        if settling == Some(false) {
            self.to_settle.push_back(label);
        }
    }

    /// The next flow whose hairpin is perhaps over.
    pub(crate) fn next_to_settle(&mut self) -> Option<FlowLabel> {
        let label = self.to_settle.pop_front()?;
        if let Some(end) = self.get_mut(label) {
            end.settling = false;
        }
        Some(label)
    }

    fn slot(&self, label: FlowLabel) -> Option<usize> {
        label.index().checked_sub(self.first_index).filter(|at| *at < self.ends.len())
    }

    fn get(&self, label: FlowLabel) -> Option<&End> {
        self.ends[self.slot(label)?].as_ref().filter(|end| end.label == label)
    }

    fn get_mut(&mut self, label: FlowLabel) -> Option<&mut End> {
        let at = self.slot(label)?;
        self.ends[at].as_mut().filter(|end| end.label == label)
    }

    /// The waiting bytes of an end: those up to the end of its ring, and those at its beginning.
    fn slices(&self, label: FlowLabel, max: usize) -> [&[u8]; 2] {
        let (Some(end), Some(at)) = (self.get(label), self.slot(label)) else { return [&[]; 2] };
        let ring = &self.memory[at * RING_LEN..(at + 1) * RING_LEN];
        let len = end.len.min(max);
        let first = len.min(RING_LEN - end.start);
        [&ring[end.start..end.start + first], &ring[..len - first]]
    }

    fn consume(&mut self, label: FlowLabel, len: usize) {
        let Some(end) = self.get_mut(label) else { return };
        let taken = len.min(end.len);
        end.len -= taken;
        end.start = if end.len == 0 { 0 } else { (end.start + taken) % RING_LEN };
    }

    /// Appends bytes for the process of a flow, as many as fit.
    fn push(&mut self, label: FlowLabel, bytes: &[u8]) -> usize {
        let Some(at) = self.slot(label) else { return 0 };
        let Some(end) = self.ends[at].as_mut().filter(|end| end.label == label) else { return 0 };
        let taken = bytes.len().min(RING_LEN - end.len);
        let from = (end.start + end.len) % RING_LEN;
        let first = taken.min(RING_LEN - from);
        let ring = &mut self.memory[at * RING_LEN..(at + 1) * RING_LEN];
        ring[from..from + first].copy_from_slice(&bytes[..first]);
        ring[..taken - first].copy_from_slice(&bytes[first..taken]);
        end.len += taken;
        taken
    }
}

/// The client's end of a flow whose client is a process, too: the other flow of its hairpin.
#[derive(Debug)]
pub struct LoopEnd<'a> {
    pub(crate) label: FlowLabel,
    pub(crate) hairpin: &'a mut Hairpin,
}

impl ClientEnd for LoopEnd<'_> {
    fn readable(&self) -> usize {
        self.hairpin.waiting(self.label).0
    }

    fn peek(&mut self, max: usize) -> impl Iterator<Item = &[u8]> {
        self.hairpin.slices(self.label, max).into_iter().filter(|slice| !slice.is_empty())
    }

    fn consume(&mut self, len: usize) {
        self.hairpin.consume(self.label, len);
    }

    fn is_finished(&self) -> bool {
        self.hairpin.waiting(self.label).1
    }

    fn write(&mut self, bytes: &[u8], _: Option<&Buffer>) -> usize {
        match self.hairpin.peer(self.label) {
            Some(peer) => self.hairpin.push(peer, bytes),
            None => 0,
        }
    }

    fn unacknowledged(&self) -> u32 {
        self.hairpin.peer(self.label).map_or(0, |peer| self.hairpin.waiting(peer).0 as u32)
    }

    /// The ring has one length.
    fn useful_window(&self) -> u32 {
        HAIRPIN_WINDOW
    }

    fn set_window(&mut self, _: u32) {}

    fn is_over(&self) -> bool {
        self.hairpin.peer(self.label).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(port: u16) -> SocketAddr {
        ([10, 0, 0, 9], port).into()
    }

    #[test]
    fn what_is_written_at_one_end_is_read_at_the_other_in_order() {
        let mut hairpin = Hairpin::new(HairpinConfig { first_label_index: 100, pairs: 2 });
        let (a, b) = hairpin.open(source(1)).unwrap();
        let (mut sent, mut read) = (0u8, 0u8);
        let mut state = 7u64;
        for _ in 0..5_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let want = (state >> 33) as usize % 20_000;
            let bytes: Vec<u8> = (0..want).map(|n| sent.wrapping_add(n as u8)).collect();
            let taken = LoopEnd { label: a, hairpin: &mut hairpin }.write(&bytes, None);
            sent = sent.wrapping_add(taken as u8);
            let mut end = LoopEnd { label: b, hairpin: &mut hairpin };
            let most = (state >> 20) as usize % 20_000;
            let got: Vec<u8> = end.peek(most).flatten().copied().collect();
            assert!(got.len() <= most);
            end.consume(got.len());
            for byte in got {
                assert_eq!(byte, read);
                read = read.wrapping_add(1);
            }
        }
        assert_eq!(hairpin.waiting(a), (0, false), "the other direction is another ring");
    }

    #[test]
    fn a_hairpin_that_is_over_makes_room_for_another_and_is_not_mistaken_for_it() {
        let mut hairpin = Hairpin::new(HairpinConfig { first_label_index: 100, pairs: 1 });
        let (a, b) = hairpin.open(source(1)).unwrap();
        assert!(hairpin.open(source(2)).is_none() && hairpin.is_source(source(1)));
        hairpin.finish(a);
        assert!(hairpin.release(a) && hairpin.peer(b).is_none());
        assert!(hairpin.open(source(2)).is_none(), "half of one is left");
        assert!(hairpin.release(b) && hairpin.live() == 0 && !hairpin.is_source(source(1)));
        let (c, d) = hairpin.open(source(2)).unwrap();
        assert!(![c, d].contains(&a) && hairpin.peer(a).is_none() && hairpin.waiting(d) == (0, false));
        assert!(!hairpin.release(FlowLabel::new(7, 0)), "a label of the TCP engine");
    }
}
