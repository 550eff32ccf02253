//! Hairpins: connections of a program of the cluster to a service of the cluster, without TCP or the LAN in
//! between.
//!
//! ```text
//!  process ─ CONNECT ─▶ flow a ┐ bytes for a's process: a ring ┐ flow b ─ OPEN ─▶ process of the service
//!          ◀ CONNECTED          └ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ┘
//!                                 bytes for b's process: a ring
//! ```
//! A hairpin is two flows with a label each, so that the same process can be at both ends. Each flow is the
//! client's end of the other ([`LoopEnd`]). The service's flow waits in the backlog, is offered and changes
//! owners like any other. The ring that a process writes to has the length of its window, so that whatever it
//! may send fits.
//!
//! The memory is allocated at start-up and touched as it is used. If no hairpin is free, a connection goes
//! through a network node, as one to an address that this proxy does not serve.

mod course;

use std::collections::{HashSet, VecDeque};
use std::net::SocketAddr;

use csp_tcp::Buffer;
use csp_types::{FlowLabel, Instant, LabelAllocator};

use super::service::ClientEnd;
use super::waits::{Ahead, Waits};

/// The window of a process at either end of a hairpin, in bytes.
pub const HAIRPIN_WINDOW: u32 = 64 * 1024;
const RING_LEN: usize = HAIRPIN_WINDOW as usize;

/// The labels and the number of hairpins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HairpinConfig {
    /// The first label index. The labels cover twice `pairs` indices, none of which the TCP engine or another
    /// worker uses.
    pub first_label_index: u32,
    /// Largest number of hairpins; each uses two rings of [`HAIRPIN_WINDOW`] bytes.
    pub pairs: usize,
}

/// The client's end of one flow of a hairpin.
#[derive(Clone, Copy, Debug)]
struct End {
    label: FlowLabel,
    /// The other flow; [`FlowLabel::NONE`] after it has ended.
    peer: FlowLabel,
    /// The source address of the hairpin.
    source: SocketAddr,
    /// Position and number of the bytes in the ring that wait for this flow's process.
    start: usize,
    len: usize,
    /// Whether no bytes follow the waiting ones.
    finished: bool,
    /// Whether the end is in the list of flows to settle.
    settling: bool,
    /// The other flow has ended by a reset, which follows the bytes in the ring.
    resetting: bool,
}

/// All hairpins of a worker.
#[derive(Debug)]
pub(crate) struct Hairpin {
    first_index: usize,
    labels: LabelAllocator<Box<[u32]>>,
    ends: Box<[Option<End>]>,
    /// One ring for each end.
    memory: Box<[u8]>,
    live: usize,
    /// The source addresses in use, each by one hairpin.
    sources: HashSet<SocketAddr>,
    /// Flows whose hairpin may be over.
    to_settle: VecDeque<FlowLabel>,
    /// Resets of ends that wait for the bytes in their rings.
    delayed: Waits,
}

impl Hairpin {
    /// Allocates the hairpins of a configuration.
    pub(crate) fn new(config: HairpinConfig) -> Self {
        let count = 2 * config.pairs;
        let zeros = || vec![0; count].into_boxed_slice();
        Hairpin {
            first_index: config.first_label_index.max(1) as usize,
            labels: LabelAllocator::new(config.first_label_index, zeros(), zeros()),
            ends: vec![None; count].into_boxed_slice(),
            memory: vec![0; count * RING_LEN].into_boxed_slice(),
            live: 0,
            sources: HashSet::with_capacity(config.pairs),
            to_settle: VecDeque::with_capacity(2 * count),
            delayed: Waits::new(count),
        }
    }

    /// Opens a hairpin from `source`; returns the labels of its flows.
    pub(crate) fn open(&mut self, source: SocketAddr) -> Option<(FlowLabel, FlowLabel)> {
        let a = self.labels.allocate()?;
        let Some(b) = self.labels.allocate() else {
            self.labels.release(a);
            return None;
        };
        for (label, peer) in [(a, b), (b, a)] {
            let at = self.slot(label)?;
            let (finished, settling, resetting) = (false, false, false);
            self.ends[at] =
                Some(End { label, peer, source, start: 0, len: 0, finished, settling, resetting });
        }
        self.live += 2;
        self.sources.insert(source);
        Some((a, b))
    }

    /// Releases the end of a flow that has ended; `false` if the flow belongs to no hairpin.
    pub(crate) fn release(&mut self, label: FlowLabel) -> bool {
        if !self.is_of(label) {
            return false;
        }
        if let Some((peer, source)) = self.get(label).map(|end| (end.peer, end.source)) {
            match self.get_mut(peer) {
                Some(other) => other.peer = FlowLabel::NONE,
                None => drop(self.sources.remove(&source)),
            }
            let at = label.index() - self.first_index;
            self.ends[at] = None;
            self.live -= 1;
            self.labels.release(label);
        }
        true
    }

    /// Returns whether a label is in the range of hairpins, in use or not.
    pub(crate) fn is_of(&self, label: FlowLabel) -> bool {
        self.slot(label).is_some()
    }

    /// Returns the other flow of a hairpin, unless it has ended.
    pub(crate) fn peer(&self, label: FlowLabel) -> Option<FlowLabel> {
        self.get(label).map(|end| end.peer).filter(|peer| !peer.is_none())
    }

    /// Returns whether a hairpin from this address exists.
    pub(crate) fn is_source(&self, source: SocketAddr) -> bool {
        self.sources.contains(&source)
    }

    /// Returns the number of ends in use.
    pub(crate) fn live(&self) -> usize {
        self.live
    }

    /// Returns the number of free ends.
    pub(crate) fn free(&self) -> usize {
        self.ends.len() - self.live
    }

    /// Returns the number of bytes that wait for the process of a flow, and whether none follow.
    pub(crate) fn waiting(&self, label: FlowLabel) -> (usize, bool) {
        self.get(label).map_or((0, true), |end| (end.len, end.finished))
    }

    /// Records that the process of a flow sends no more; returns the flow that has to pass the end of the
    /// stream on.
    pub(crate) fn finish(&mut self, label: FlowLabel) -> Option<FlowLabel> {
        let peer = self.peer(label)?;
        self.get_mut(peer)?.finished = true;
        self.settle_later(label);
        Some(peer)
    }

    /// Schedules a check whether the hairpin of a flow is over.
    pub(crate) fn settle_later(&mut self, label: FlowLabel) {
        let settling = self.get_mut(label).map(|end| std::mem::replace(&mut end.settling, true));
        if settling == Some(false) {
            self.to_settle.push_back(label);
        }
    }

    /// Delays a reset until the process of a flow has received the waiting bytes. Returns `false` if the
    /// reset must be sent at once.
    pub(crate) fn reset_later(&mut self, now: Instant, label: FlowLabel) -> bool {
        let mut delayed = std::mem::take(&mut self.delayed);
        let (waiting, _) = self.waiting(label);
        let added = delayed.add(now, (label, waiting), |label| self.is_resetting(label));
        self.delayed = delayed;
        if let Some(end) = self.get_mut(label).filter(|_| added) {
            end.resetting = true;
        }
        added
    }

    /// Returns whether a reset waits until the process of a flow has received its bytes.
    pub(crate) fn is_resetting(&self, label: FlowLabel) -> bool {
        self.get(label).is_some_and(|end| end.resetting)
    }

    /// Returns when [`next_overdue`](Self::next_overdue) is to be called.
    pub(crate) fn resets_deadline(&self) -> Option<Instant> {
        self.delayed.deadline()
    }

    /// Removes and returns a flow whose reset has waited for long enough.
    pub(crate) fn next_overdue(&mut self, now: Instant) -> Option<FlowLabel> {
        let mut delayed = std::mem::take(&mut self.delayed);
        let ahead = |label| match self.is_resetting(label) {
            true => Ahead::Bytes(self.waiting(label).0),
            false => Ahead::Nothing,
        };
        let overdue = delayed.next_overdue(now, ahead);
        self.delayed = delayed;
        overdue
    }

    /// Returns the next flow whose hairpin is to be checked.
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

    /// Returns the waiting bytes of an end: those up to the end of its ring, and those at the beginning.
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

    /// Appends as many bytes as fit for the process of a flow; returns their number.
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

/// The client's end of a flow whose client is a process too: the other flow of its hairpin.
#[derive(Debug)]
pub struct LoopEnd<'a> {
    pub(crate) label: FlowLabel,
    pub(crate) hairpin: &'a mut Hairpin,
}

impl ClientEnd for LoopEnd<'_> {
    fn is_local(&self) -> bool {
        true
    }

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

    fn room(&self) -> usize {
        self.hairpin.peer(self.label).map_or(0, |peer| RING_LEN - self.hairpin.waiting(peer).0.min(RING_LEN))
    }

    fn unacknowledged(&self) -> u32 {
        self.hairpin.peer(self.label).map_or(0, |peer| self.hairpin.waiting(peer).0 as u32)
    }

    /// The ring has a fixed length.
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
