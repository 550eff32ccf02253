//! Payload memory of one direction: regions of blocks with reference counts, and buffers that are lent to
//! callers to be filled.
//!
//! ```text
//!   region of up to 64 blocks            a buffer: a run of free blocks, lent to the caller
//!   |##|##|..|..|##|..|..|..|..|..|      |message ············|
//!    ▲ referred to by chains              └ returned: blocks with payload remain in use, the others are free
//! ```
//!
//! A region's memory is one allocation, made at start-up and never moved, so that a provider can register it.
//! While a buffer is lent, its holder owns the memory of the whole region: the engine can neither read nor
//! write anything in it.

use crate::chain::Nodes;
use crate::list::IndexList;

/// Blocks per region: one bit of a word for each.
pub const REGION_BLOCKS: usize = 64;

/// Location of payload: a block, and an offset in bytes within it. The payload may continue in the following
/// blocks of the region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub block: u32,
    pub offset: u32,
}

impl Place {
    /// The location `n` bytes further on.
    pub fn plus(self, n: u32, block_len: usize) -> Place {
        let at = self.offset as usize + n as usize;
        Place { block: self.block + (at / block_len) as u32, offset: (at % block_len) as u32 }
    }
}

#[derive(Debug)]
struct Region {
    /// `None` while a buffer of the region is lent.
    bytes: Option<Box<[u8]>>,
    /// One bit per block, set if the block is free.
    free: u64,
    /// Value of `free` when no block is in use.
    whole: u64,
    /// Chains have blocks in this region that they write to: no buffer of it is lent until all of its blocks
    /// are free again.
    copied: bool,
}

/// All payload memory of one direction of a stack.
#[derive(Debug)]
pub(crate) struct BlockPool {
    regions: Vec<Region>,
    /// Reference counts of blocks: chain nodes that overlap the block, plus one while it is part of a lent
    /// buffer.
    references: Vec<u16>,
    /// Regions with room for a buffer, most recently used first.
    roomy: IndexList,
    /// Other regions with free blocks: those that data is copied into, and those with no room for a buffer.
    broken: IndexList,
    free: usize,
    shift: u32,
    /// Blocks per buffer; more than a region has if messages are too long for one.
    buffer_blocks: u32,
    pub(crate) nodes: Nodes,
}

/// Memory for receiving a message into. The caller must return it with [`crate::Stack::give_back`]: until
/// then the engine can neither read nor write its region, and a buffer that is dropped is lost to the pool.
#[derive(Debug)]
#[must_use = "return it with Stack::give_back"]
pub struct Buffer {
    pub(crate) direction: Direction,
    region: u32,
    /// The first block, counted within the region.
    first: u32,
    blocks: u32,
    shift: u32,
    bytes: Box<[u8]>,
}

/// Direction of payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Received: from the peer to the application.
    Receive,
    /// Sent: from the application to the peer.
    Send,
}

/// How scarce payload memory of one direction is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pressure {
    /// At least half is free: windows and buffers grow.
    None,
    /// At least a quarter is free: windows and buffers keep their size.
    Moderate,
    /// Less than a quarter is free: connections are limited to their initial sizes.
    High,
}

impl Pressure {
    /// The limit of a connection whose window or buffer has grown to `grown` from its initial `least`.
    pub fn limit(self, grown: u32, least: u32) -> u32 {
        if self == Pressure::High { least } else { grown.max(least) }
    }

    /// Adapts a window or buffer towards `wanted` bytes: it grows without pressure, and shrinks to what is
    /// used under high pressure.
    pub fn tune(self, grown: &mut u32, wanted: u32) {
        match self {
            Pressure::None => *grown = (*grown).max(wanted),
            Pressure::Moderate => {}
            Pressure::High => *grown = (*grown).min(wanted),
        }
    }
}

impl Buffer {
    /// The memory, at least as long as the longest message that it is for.
    pub fn bytes(&self) -> &[u8] {
        let start = (self.first as usize) << self.shift;
        self.bytes.get(start..start + ((self.blocks as usize) << self.shift)).unwrap_or(&[])
    }

    /// The memory, for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let start = (self.first as usize) << self.shift;
        self.bytes.get_mut(start..start + ((self.blocks as usize) << self.shift)).unwrap_or(&mut [])
    }

    /// Location of `part`, if it is a part of this buffer.
    pub(crate) fn place_of(&self, part: &[u8]) -> Option<Place> {
        let own = self.bytes();
        let offset = (part.as_ptr() as usize).checked_sub(own.as_ptr() as usize)?;
        if part.is_empty() || offset.checked_add(part.len())? > own.len() {
            return None;
        }
        let start = Place { block: self.region * REGION_BLOCKS as u32 + self.first, offset: 0 };
        Some(start.plus(offset as u32, 1 << self.shift))
    }
}

impl BlockPool {
    /// A pool of `blocks` blocks of `block_len` bytes, a power of two, with buffers for messages of up to
    /// `message_len` bytes.
    pub fn new(blocks: usize, block_len: usize, message_len: usize) -> Self {
        let count = blocks.div_ceil(REGION_BLOCKS);
        let region = |n: usize| {
            let here = (blocks - n * REGION_BLOCKS).min(REGION_BLOCKS);
            let (bytes, whole) = (vec![0; here * block_len].into_boxed_slice(), run_of(0, here as u32));
            Region { bytes: Some(bytes), free: whole, whole, copied: false }
        };
        let mut pool = BlockPool {
            regions: (0..count).map(region).collect(),
            references: vec![0; blocks],
            roomy: IndexList::new(count),
            broken: IndexList::new(count),
            free: blocks,
            shift: block_len.trailing_zeros(),
            buffer_blocks: message_len.max(1).div_ceil(block_len) as u32,
            nodes: Nodes::new(2 * blocks),
        };
        (0..count as u32).rev().for_each(|region| pool.list(region));
        pool
    }

    /// Number of blocks.
    pub fn capacity(&self) -> usize {
        self.references.len()
    }

    /// Number of free blocks.
    pub fn free(&self) -> usize {
        self.free
    }

    /// Bytes in free blocks.
    pub fn free_bytes(&self) -> usize {
        self.free << self.shift
    }

    /// How scarce free blocks are.
    pub fn pressure(&self) -> Pressure {
        match self.free {
            free if free >= self.capacity() / 2 => Pressure::None,
            free if free >= self.capacity() / 4 => Pressure::Moderate,
            _ => Pressure::High,
        }
    }

    /// Bytes per block.
    pub fn block_len(&self) -> usize {
        1 << self.shift
    }

    /// Moves a region to the list that its free blocks call for: to the front, because its memory is warm. A
    /// region that is free again after copies goes to the end, from which the next region for copies is
    /// taken. The pool thus touches no more memory than was ever in use at once.
    fn list(&mut self, region: u32) {
        let Some(home) = self.regions.get_mut(region as usize) else { return };
        let emptied = home.copied && home.free == home.whole;
        home.copied &= !emptied;
        let Region { bytes, free, copied, .. } = home;
        let (is_in, roomy) = (bytes.is_some(), !*copied && run_start(*free, self.buffer_blocks).is_some());
        let (into, out_of) = match roomy {
            true => (&mut self.roomy, &mut self.broken),
            false => (&mut self.broken, &mut self.roomy),
        };
        out_of.remove(region);
        match is_in && *free != 0 {
            true if emptied && roomy => into.push_back(region),
            true => into.push_front(region),
            false => into.remove(region),
        }
    }

    /// Allocates a block for copied bytes, with one reference. Regions that lend no buffers are preferred.
    pub fn allocate(&mut self) -> Option<u32> {
        let region = self.broken.front().or_else(|| self.roomy.back())?;
        let home = self.regions.get_mut(region as usize)?;
        let bit = home.free.trailing_zeros();
        home.free &= !run_of(bit, 1);
        home.copied = true;
        self.free -= 1;
        self.list(region);
        let block = region * REGION_BLOCKS as u32 + bit;
        if let Some(references) = self.references.get_mut(block as usize) {
            *references = 1;
        }
        Some(block)
    }

    /// Adds a reference to the block.
    pub fn refer(&mut self, block: u32) {
        if let Some(references) = self.references.get_mut(block as usize) {
            *references += 1;
        }
    }

    /// Removes a reference; the block is free after the last.
    pub fn unrefer(&mut self, block: u32) {
        let Some(references) = self.references.get_mut(block as usize) else { return };
        *references = references.saturating_sub(1);
        if *references > 0 {
            return;
        }
        let region = block / REGION_BLOCKS as u32;
        if let Some(Region { free, .. }) = self.regions.get_mut(region as usize) {
            *free |= run_of(block % REGION_BLOCKS as u32, 1);
            self.free += 1;
            self.list(region);
        }
    }

    /// The bytes from `place` up to the end of its region, at most `len`; none while a buffer of the region
    /// is lent.
    pub fn bytes(&self, place: Place, len: usize) -> &[u8] {
        let (region, start) = self.locate(place);
        let bytes = self.regions.get(region).and_then(|r| r.bytes.as_deref()).unwrap_or(&[]);
        let rest = bytes.get(start..).unwrap_or(&[]);
        rest.get(..len).unwrap_or(rest)
    }

    /// Copies `data` to `place`; `false` while a buffer of its region is lent.
    pub fn store(&mut self, place: Place, data: &[u8]) -> bool {
        let (region, start) = self.locate(place);
        let bytes = self.regions.get_mut(region).and_then(|r| r.bytes.as_deref_mut());
        let Some(room) = bytes.and_then(|bytes| bytes.get_mut(start..start + data.len())) else {
            return false;
        };
        room.copy_from_slice(data);
        true
    }

    fn locate(&self, place: Place) -> (usize, usize) {
        let block = place.block as usize;
        (block / REGION_BLOCKS, ((block % REGION_BLOCKS) << self.shift) + place.offset as usize)
    }

    /// Lends a buffer for the next message. `None` if no region has enough consecutive free blocks, or if the
    /// other regions could not store a copy of the message's payload while this one is lent.
    pub fn lend(&mut self, direction: Direction) -> Option<Buffer> {
        let (region, blocks) = (self.roomy.front()?, self.buffer_blocks);
        let Region { bytes, free, .. } = self.regions.get_mut(region as usize)?;
        if self.free < (free.count_ones() + blocks) as usize {
            return None;
        }
        let first = run_start(*free, blocks)?;
        let bytes = bytes.take()?;
        *free &= !run_of(first, blocks);
        self.free -= blocks as usize;
        let start = (region * REGION_BLOCKS as u32 + first) as usize;
        self.references.get_mut(start..start + blocks as usize)?.fill(1);
        self.list(region);
        Some(Buffer { direction, region, first, blocks, shift: self.shift, bytes })
    }

    /// Returns a buffer; its blocks without further references are free.
    pub fn give_back(&mut self, buffer: Buffer) {
        let Buffer { region, first, blocks, bytes, .. } = buffer;
        let Some(home) = self.regions.get_mut(region as usize) else { return };
        home.bytes = Some(bytes);
        let start = region * REGION_BLOCKS as u32 + first;
        let mut freed = 0;
        for n in 0..blocks {
            let Some(references) = self.references.get_mut((start + n) as usize) else { break };
            *references = references.saturating_sub(1);
            if *references == 0 {
                freed |= run_of(first + n, 1);
            }
        }
        home.free |= freed;
        self.free += freed.count_ones() as usize;
        self.list(region);
    }
}

/// A mask of `count` bits from bit `start` on.
fn run_of(start: u32, count: u32) -> u64 {
    let bits = if count >= u64::BITS { u64::MAX } else { (1 << count) - 1 };
    bits << start
}

/// Start of the first run of `count` set bits.
fn run_start(mut bits: u64, count: u32) -> Option<u32> {
    if count > u64::BITS {
        return None;
    }
    // After each step a set bit stands for `run` bits from it on.
    let mut run = 1;
    while run < count {
        let step = run.min(count - run);
        bits &= bits >> step;
        run += step;
    }
    (bits != 0).then(|| bits.trailing_zeros())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_bits_are_found() {
        assert_eq!(run_start(0b1011_0111, 3), Some(0));
        assert_eq!(run_start(0b1011_0110, 3), None);
        assert_eq!(run_start(0b1111_0110, 4), Some(4));
        assert_eq!(run_start(u64::MAX, 64), Some(0));
        assert_eq!(run_start(u64::MAX, 65), None);
        assert_eq!(run_start(0, 1), None);
    }

    #[test]
    fn a_buffer_comes_back_and_what_is_referred_to_stays() {
        let mut pool = BlockPool::new(100, 512, 1500);
        let mut buffer = pool.lend(Direction::Receive).unwrap();
        assert_eq!((buffer.bytes().len(), pool.free()), (1536, 97));
        buffer.bytes_mut()[600..1000].fill(7);
        let place = buffer.place_of(&buffer.bytes()[600..1000]).unwrap();
        assert_eq!(buffer.place_of(&[0; 4]), None, "bytes outside of the buffer have no location in it");
        pool.refer(place.block);
        assert!(pool.bytes(place, 400).is_empty() && !pool.store(place, &[1]), "its memory is lent");
        let copied = pool.allocate().unwrap();
        assert_ne!(copied / 64, place.block / 64, "meanwhile other regions are used");
        pool.give_back(buffer);
        assert_eq!((pool.bytes(place, 400), pool.free()), (&[7; 400][..], 98));
        pool.unrefer(place.block);
        pool.unrefer(copied);
        assert_eq!(pool.free(), 100);
    }

    #[test]
    fn copies_and_buffers_come_back_to_memory_that_was_touched() {
        let mut pool = BlockPool::new(64 * 100, 512, 1500);
        let mut touched = std::collections::BTreeSet::new();
        for _ in 0..1_000 {
            let buffer = pool.lend(Direction::Receive).unwrap();
            touched.insert(buffer.region);
            let copies = [pool.allocate().unwrap(), pool.allocate().unwrap()];
            pool.give_back(buffer);
            copies.iter().for_each(|block| {
                touched.insert(block / 64);
                pool.unrefer(*block);
            });
        }
        assert_eq!(touched.len(), 2, "{touched:?}");
    }

    #[test]
    fn without_a_run_of_blocks_there_is_no_buffer_but_blocks_there_are() {
        let mut pool = BlockPool::new(64, 512, 1024);
        let all: Vec<u32> = std::iter::from_fn(|| pool.allocate()).collect();
        assert_eq!(all.len(), 64);
        all.iter().step_by(2).for_each(|block| pool.unrefer(*block));
        assert_eq!(pool.free(), 32);
        assert!(pool.lend(Direction::Send).is_none());
        assert!(pool.allocate().is_some());
        let pool = BlockPool::new(2, 512, 4096);
        assert!(pool.roomy.front().is_none(), "a region that is too small lends nothing");
    }
}
