//! The receive queue: bytes in order, which wait to be read, and bytes after holes, which wait for the holes
//! to be filled. Neither is moved.

use csp_wire::tcp::{SackBlock, SackBlocks};

use crate::blocks::{BlockPool, Place};
use crate::chain::{Allowance, Chain, Slices};
use crate::ranges::{RangePool, Ranges};
use crate::sendqueue::send_memory;
use crate::seq::{Seq, SeqRange};

/// ```text
///   read                  next = position of rcv_nxt
///    |---- readable --------|   hole   |== range ==|  hole  |= range =|
/// ```
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    chain: Chain,
    read: u32,
    next: u32,
    ranges: Ranges,
    /// Size to which the receive window has grown, in bytes; 0 before it has.
    pub grown: u32,
}

/// The pools from which receive queues take memory.
pub(crate) struct Pools<'a> {
    pub blocks: &'a mut BlockPool,
    pub ranges: &'a mut RangePool,
}

/// Data that has arrived, within the window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived<'a> {
    /// RCV.NXT.
    pub rcv_nxt: Seq,
    /// Sequence number of the first byte, not before RCV.NXT.
    pub seq: Seq,
    pub data: &'a [u8],
    /// Its location in the pool, if it lies there; it may remain there.
    pub place: Option<Place>,
}

/// How a segment's data was stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Stored {
    /// How far RCV.NXT advances.
    pub advanced: u32,
    /// Bytes newly stored after a hole.
    pub out_of_order: u32,
    /// Bytes dropped because memory, ranges or the connection's limit were exhausted.
    pub dropped: u32,
}

impl ReceiveQueue {
    pub const EMPTY: ReceiveQueue =
        ReceiveQueue { chain: Chain::EMPTY, read: 0, next: 0, ranges: Ranges::EMPTY, grown: 0 };

    /// Bytes that can be read.
    pub fn readable(&self) -> u32 {
        self.next.wrapping_sub(self.read)
    }

    /// Whether there are bytes after a hole.
    pub fn has_holes(&self) -> bool {
        !self.ranges.is_empty()
    }

    /// Number of bytes after holes.
    pub fn out_of_order(&self, ranges: &RangePool) -> u32 {
        self.ranges.as_slice(ranges).iter().map(SeqRange::len).sum()
    }

    /// Stores data. `window` is how many bytes the connection may store at once: it bounds the memory.
    pub fn insert(&mut self, pools: Pools<'_>, arrived: Arrived<'_>, window: u32) -> Stored {
        let Arrived { rcv_nxt, seq, data, place } = arrived;
        let Pools { blocks, ranges } = pools;
        if data.is_empty() {
            return Stored::default();
        }
        let worth = (send_memory(window, blocks.block_len()) / blocks.block_len() as u64) as u32;
        // When memory is short, it is reserved for bytes in order, and the last eighth for connections whose
        // reader has read everything: neither holes nor readers that do not read may starve other
        // connections.
        let last = (blocks.capacity() / 8).max(1);
        if seq != rcv_nxt {
            let allowance = Allowance { reserve: last, in_place: worth, blocks: worth };
            return self.insert_behind_hole(Pools { blocks, ranges }, arrived, allowance);
        }
        let reserve = if self.readable() > 0 { last } else { 0 };
        let allowance = Allowance { reserve, in_place: worth, blocks: u32::MAX };
        let mut stored = self.chain.insert(blocks, self.next, data, place, allowance);
        if stored == 0 && self.has_holes() {
            // RFC 2018 §8: bytes after a hole may be discarded. Here they occupy the memory that is needed to
            // fill the hole.
            self.discard_out_of_order(blocks, ranges);
            stored = self.chain.insert(blocks, self.next, data, place, allowance);
        }
        let mut end = rcv_nxt.plus(stored as u32);
        // The bytes may have filled the hole before the first range.
        if let Some(range) = self.ranges.as_slice(ranges).iter().rfind(|range| !range.start.after(end)) {
            end = end.max(range.end);
        }
        self.ranges.trim_before(ranges, end);
        let advanced = end.since(rcv_nxt);
        self.next = self.next.wrapping_add(advanced);
        Stored { advanced, out_of_order: 0, dropped: (data.len() - stored) as u32 }
    }

    fn insert_behind_hole(
        &mut self,
        Pools { blocks, ranges }: Pools<'_>,
        Arrived { rcv_nxt, seq, data, place }: Arrived<'_>,
        allowance: Allowance,
    ) -> Stored {
        let all_dropped = Stored { dropped: data.len() as u32, ..Stored::default() };
        // Bytes without a range would occupy memory uselessly; with one-byte holes a peer could exhaust the
        // pool that way.
        let end = seq.plus(data.len() as u32);
        if blocks.free() <= allowance.reserve || !self.ranges.has_room(ranges, seq, end) {
            return all_dropped;
        }
        let position = self.next.wrapping_add(seq.since(rcv_nxt));
        // If only a part finds room, that part remains in the chain without a range; the ranges decide which
        // bytes count as received.
        if self.chain.insert(blocks, position, data, place, allowance) < data.len() {
            return all_dropped;
        }
        let Ok(new) = self.ranges.insert(ranges, seq, end) else {
            return all_dropped;
        };
        self.ranges.note_recent(ranges, seq);
        Stored { out_of_order: new, ..Stored::default() }
    }

    /// Up to `max` readable bytes.
    pub fn slices<'a>(&mut self, blocks: &'a BlockPool, max: usize) -> Slices<'a> {
        let len = max.min(self.readable() as usize);
        self.chain.slices(blocks, self.read, len)
    }

    /// Removes the first `n` readable bytes, which were read.
    pub fn consume(&mut self, blocks: &mut BlockPool, n: u32) {
        self.read = self.read.wrapping_add(n.min(self.readable()));
        if self.read == self.next && self.ranges.is_empty() {
            self.chain.clear(blocks);
        } else {
            self.chain.release_before(blocks, self.read);
        }
    }

    /// Discards the bytes after holes, because the holes will not be filled.
    pub fn discard_out_of_order(&mut self, blocks: &mut BlockPool, ranges: &mut RangePool) {
        self.ranges.clear(ranges);
        self.chain.release_from(blocks, self.next);
    }

    /// Removes everything.
    pub fn clear(&mut self, blocks: &mut BlockPool, ranges: &mut RangePool) {
        self.ranges.clear(ranges);
        self.read = self.next;
        self.chain.clear(blocks);
    }

    /// The SACK blocks to send: after `duplicate` (RFC 2883), the ranges of the latest segments first, then
    /// others (RFC 2018 §4).
    pub fn sack_blocks(&self, ranges: &RangePool, duplicate: Option<SeqRange>) -> SackBlocks {
        let mut blocks = SackBlocks::EMPTY;
        let block = |range: &SeqRange| SackBlock { start: range.start.0, end: range.end.0 };
        if let Some(duplicate) = &duplicate {
            blocks.push(block(duplicate));
        }
        let listed = usize::from(duplicate.is_some());
        let all = self.ranges.as_slice(ranges);
        let holding = |seq: Seq| {
            let range = all.get(all.partition_point(|range| !range.end.after(seq)));
            range.filter(|range| !seq.before(range.start))
        };
        let recent = self.ranges.recent(ranges).iter().filter_map(|&seq| holding(seq));
        for block in recent.chain(all.iter()).map(block) {
            if !blocks.as_slice()[listed..].contains(&block) && !blocks.push(block) {
                break;
            }
        }
        blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrived(rcv_nxt: Seq, seq: Seq, data: &[u8]) -> Arrived<'_> {
        Arrived { rcv_nxt, seq, data, place: None }
    }

    #[test]
    fn holes_fill_in_any_order_and_the_newest_range_is_reported_first() {
        let (mut blocks, mut ranges) = (BlockPool::new(8, 512, 1), RangePool::new(1));
        let mut queue = ReceiveQueue::EMPTY;
        let start = Seq(u32::MAX - 5);
        let data: Vec<u8> = (0..100).collect();
        let mut put = |queue: &mut ReceiveQueue, nxt: u32, from: usize, to: usize| {
            let seq = start.plus(from as u32);
            queue.insert(
                Pools { blocks: &mut blocks, ranges: &mut ranges },
                arrived(start.plus(nxt), seq, &data[from..to]),
                4096,
            )
        };
        assert_eq!(put(&mut queue, 0, 60, 80).out_of_order, 20);
        assert_eq!(put(&mut queue, 0, 20, 40).out_of_order, 20);
        assert_eq!(put(&mut queue, 0, 30, 50).out_of_order, 10);
        assert_eq!(put(&mut queue, 0, 0, 10).advanced, 10);
        let reported = |queue: &ReceiveQueue, ranges: &RangePool| -> Vec<(u32, u32)> {
            let all = queue.sack_blocks(ranges, None);
            all.as_slice().iter().map(|b| (Seq(b.start).since(start), Seq(b.end).since(start))).collect()
        };
        let mut put = |queue: &mut ReceiveQueue, nxt: u32, from: usize, to: usize| {
            let seq = start.plus(from as u32);
            queue.insert(
                Pools { blocks: &mut blocks, ranges: &mut ranges },
                arrived(start.plus(nxt), seq, &data[from..to]),
                4096,
            )
        };
        assert_eq!(put(&mut queue, 10, 10, 20).advanced, 40, "10..20 joins 20..50");
        assert_eq!(queue.readable(), 50);
        assert_eq!(reported(&queue, &ranges), [(60, 80)]);
        let seq = start.plus(50);
        let stored = queue.insert(
            Pools { blocks: &mut blocks, ranges: &mut ranges },
            arrived(seq, seq, &data[50..100]),
            4096,
        );
        assert_eq!((stored.advanced, queue.has_holes()), (50, false));
        let all: Vec<u8> = queue.slices(&blocks, 1000).flatten().copied().collect();
        assert_eq!(all, data);
        queue.consume(&mut blocks, 100);
        assert_eq!((blocks.free(), ranges.free()), (8, 1));
    }

    #[test]
    fn without_blocks_the_rest_is_dropped() {
        let (mut blocks, mut ranges) = (BlockPool::new(1, 512, 1), RangePool::new(1));
        let mut queue = ReceiveQueue::EMPTY;
        let stored = queue.insert(
            Pools { blocks: &mut blocks, ranges: &mut ranges },
            arrived(Seq(0), Seq(0), &[7; 600]),
            4096,
        );
        assert_eq!(stored, Stored { advanced: 512, out_of_order: 0, dropped: 88 });
        let stored = queue.insert(
            Pools { blocks: &mut blocks, ranges: &mut ranges },
            arrived(Seq(512), Seq(520), &[7; 6]),
            4096,
        );
        assert_eq!(stored.dropped, 6);
        // Bytes after a hole are discarded for those that fill it.
        let (mut blocks, mut queue) = (BlockPool::new(2, 512, 1), {
            queue.clear(&mut blocks, &mut ranges);
            queue
        });
        let far = queue.insert(
            Pools { blocks: &mut blocks, ranges: &mut ranges },
            arrived(Seq(512), Seq(9000), &[7; 6]),
            65_536,
        );
        assert_eq!((far.out_of_order, blocks.free()), (6, 1));
        let other = blocks.allocate();
        let near = queue.insert(
            Pools { blocks: &mut blocks, ranges: &mut ranges },
            arrived(Seq(512), Seq(512), &[7; 6]),
            65_536,
        );
        assert_eq!((near.advanced, queue.has_holes(), ranges.free()), (6, false, 1));
        other.into_iter().for_each(|block| blocks.unrefer(block));
        queue.clear(&mut blocks, &mut ranges);
        assert_eq!((queue.readable(), blocks.free()), (0, 2));
    }
}
