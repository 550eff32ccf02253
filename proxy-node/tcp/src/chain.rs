//! Byte streams as lists of buffer slices.
//!
//! ```text
//!   position   100        1500            17884     17890
//!                |- copied -|--- in a buffer ---|  hole  |- copied -|
//!   memory     own block    where it arrived               own block
//! ```
//!
//! Long payload remains where it arrived: a slice refers to the blocks that it overlaps. Short payload would
//! occupy far more memory than its length, so it is copied into blocks owned by the chain, position `p` to
//! offset `p` modulo the block length. Bytes that arrive one at a time and in any order thus fill one block,
//! not one block each.

use crate::blocks::{BlockPool, Place};
use crate::list::NIL;

/// A slice left in place may occupy at most this many times its length in blocks.
const HELD_PER_BYTE_MAX: usize = 2;

/// One slice of a chain. Positions are modulo 2³².
#[derive(Clone, Copy, Debug)]
struct Node {
    position: u32,
    len: u32,
    place: Place,
    previous: u32,
    next: u32,
    /// The block is owned by the chain and can be written to. The node lies within this one block, at the
    /// offset of its position.
    own: bool,
}

impl Node {
    fn end(&self) -> u32 {
        self.position.wrapping_add(self.len)
    }
}

/// The nodes of all chains of a pool.
#[derive(Debug)]
pub(crate) struct Nodes {
    /// The nodes used so far. The capacity for all is reserved, but its memory is not touched before it is
    /// used.
    nodes: Vec<Node>,
    free: u32,
    most: usize,
}

impl Nodes {
    pub fn new(count: usize) -> Self {
        Nodes { nodes: Vec::with_capacity(count), free: NIL, most: count }
    }

    fn get(&self, node: u32) -> Option<&Node> {
        self.nodes.get(node as usize)
    }

    fn get_mut(&mut self, node: u32) -> Option<&mut Node> {
        self.nodes.get_mut(node as usize)
    }

    fn allocate(&mut self, new: Node) -> Option<u32> {
        let node = self.free;
        if let Some(slot) = self.nodes.get_mut(node as usize) {
            self.free = slot.next;
            *slot = new;
            return Some(node);
        }
        let fresh = self.nodes.len();
        (fresh < self.most).then(|| {
            self.nodes.push(new);
            fresh as u32
        })
    }

    fn release(&mut self, node: u32) {
        let free = self.free;
        if let Some(slot) = self.nodes.get_mut(node as usize) {
            slot.next = free;
            self.free = node;
        }
    }
}

/// Limits on what a chain may occupy in its pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    /// Blocks that must remain free for other chains.
    pub reserve: usize,
    /// While the chain holds fewer blocks than this, payload may remain where it arrived; beyond, it is
    /// copied.
    pub in_place: u32,
    /// Most blocks that the chain may hold.
    pub blocks: u32,
}

/// Whether position `a` is before `b`.
fn is_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// Number of blocks that `len` bytes (at least 1) from `offset` on overlap.
fn overlap(offset: u32, len: u32, block_len: usize) -> u32 {
    ((offset as usize + len as usize - 1) / block_len) as u32 + 1
}

/// Slices of one byte stream, in order of their positions.
#[derive(Debug)]
pub(crate) struct Chain {
    head: u32,
    tail: u32,
    /// The node visited last, so that sequential access does not walk the chain.
    cursor: u32,
    /// Sum over all nodes of the blocks that each overlaps.
    held: u32,
}

impl Chain {
    /// No bytes.
    pub const EMPTY: Chain = Chain { head: NIL, tail: NIL, cursor: NIL, held: 0 };

    /// Blocks that the chain holds. A block shared with other chains, or by several slices, counts each time.
    #[cfg(test)]
    pub fn held(&self) -> u32 {
        self.held
    }

    /// Stores the bytes of `data` from `position` on, except those that the chain already has. `place` is
    /// their location in the pool, if they lie there. Returns how many bytes from `position` on the chain
    /// holds afterwards, up to the end of `data`: fewer than all if memory or `allowance` is used up.
    pub fn insert(
        &mut self,
        pool: &mut BlockPool,
        position: u32,
        data: &[u8],
        place: Option<Place>,
        allowance: Allowance,
    ) -> usize {
        let mut done = 0;
        let mut previous = self.last_up_to(pool, position);
        while done < data.len() {
            let at = position.wrapping_add(done as u32);
            if let Some(node) = pool.nodes.get(previous)
                && is_before(at, node.end())
            {
                done += node.end().wrapping_sub(at) as usize; // these bytes are already stored
                continue;
            }
            let next = pool.nodes.get(previous).map_or(self.head, |node| node.next);
            let mut gap = data.len() - done;
            if let Some(node) = pool.nodes.get(next) {
                let room = node.position.wrapping_sub(at) as usize;
                if room == 0 {
                    previous = next;
                    continue;
                }
                gap = gap.min(room);
            }
            let piece = data.get(done..done + gap).unwrap_or(&[]);
            let place = place.map(|place| place.plus(done as u32, pool.block_len()));
            let stored = match place.filter(|place| self.may_stay(pool, *place, gap, allowance)) {
                Some(place) => {
                    self.refer(pool, (previous, next), at, gap as u32, place).map(|node| (node, gap))
                }
                None => self.copy(pool, (previous, next), at, piece, allowance),
            };
            let Some((node, len)) = stored else { break };
            (previous, self.cursor) = (node, node);
            done += len;
        }
        done.min(data.len())
    }

    /// Whether payload may remain where it is: it must not occupy much more memory than its length.
    fn may_stay(&self, pool: &BlockPool, place: Place, len: usize, allowance: Allowance) -> bool {
        let blocks = overlap(place.offset, len as u32, pool.block_len());
        let fits = blocks as usize * pool.block_len() <= HELD_PER_BYTE_MAX * len;
        fits && self.held.saturating_add(blocks) <= allowance.in_place
    }

    /// Inserts a slice that refers to existing blocks between two neighbours.
    fn refer(
        &mut self,
        pool: &mut BlockPool,
        between: (u32, u32),
        position: u32,
        len: u32,
        place: Place,
    ) -> Option<u32> {
        let node =
            self.link(pool, between, Node { position, len, place, previous: NIL, next: NIL, own: false })?;
        let blocks = overlap(place.offset, len, pool.block_len());
        (place.block..place.block + blocks).for_each(|block| pool.refer(block));
        self.held += blocks;
        Some(node)
    }

    /// Copies the start of `data`, up to the end of its block, into a block owned by the chain, between two
    /// neighbours.
    fn copy(
        &mut self,
        pool: &mut BlockPool,
        (previous, next): (u32, u32),
        position: u32,
        data: &[u8],
        allowance: Allowance,
    ) -> Option<(u32, usize)> {
        let mask = pool.block_len() as u32 - 1;
        let len = data.len().min((pool.block_len() as u32 - (position & mask)) as usize);
        let data = data.get(..len)?;
        let end = position.wrapping_add(len as u32);
        for neighbour in [previous, next] {
            let shares = |node: &&Node| node.own && node.position & !mask == position & !mask;
            let Some(node) = pool.nodes.get(neighbour).filter(shares).copied() else { continue };
            let place = Place { block: node.place.block, offset: position & mask };
            if !pool.store(place, data) {
                continue;
            }
            if node.end() == position {
                let node = pool.nodes.get_mut(neighbour)?;
                node.len += len as u32;
                self.join(pool, neighbour, next);
                return Some((neighbour, len));
            }
            if node.position == end {
                let node = pool.nodes.get_mut(neighbour)?;
                (node.position, node.place, node.len) = (position, place, node.len + len as u32);
                return Some((neighbour, len));
            }
            let node = Node { position, len: len as u32, place, previous: NIL, next: NIL, own: true };
            let node = self.link(pool, (previous, next), node)?;
            pool.refer(place.block);
            self.held += 1;
            return Some((node, len));
        }
        if pool.free() <= allowance.reserve || self.held >= allowance.blocks {
            return None;
        }
        let place = Place { block: pool.allocate()?, offset: position & mask };
        let node = Node { position, len: len as u32, place, previous: NIL, next: NIL, own: true };
        let node = self.link(pool, (previous, next), node).filter(|_| pool.store(place, data));
        match node {
            Some(node) => self.held += u32::from(node != NIL),
            None => pool.unrefer(place.block),
        }
        node.map(|node| (node, len))
    }

    /// Merges two adjacent nodes in one block owned by the chain.
    fn join(&mut self, pool: &mut BlockPool, node: u32, next: u32) {
        let (Some(left), Some(right)) = (pool.nodes.get(node).copied(), pool.nodes.get(next).copied()) else {
            return;
        };
        if !right.own || left.place.block != right.place.block || left.end() != right.position {
            return;
        }
        self.remove(pool, next);
        if let Some(node) = pool.nodes.get_mut(node) {
            node.len += right.len;
        }
    }

    fn link(&mut self, pool: &mut BlockPool, (previous, next): (u32, u32), node: Node) -> Option<u32> {
        let node = pool.nodes.allocate(Node { previous, next, ..node })?;
        match pool.nodes.get_mut(previous) {
            Some(previous) => previous.next = node,
            None => self.head = node,
        }
        match pool.nodes.get_mut(next) {
            Some(next) => next.previous = node,
            None => self.tail = node,
        }
        Some(node)
    }

    /// Removes a node and releases its blocks.
    fn remove(&mut self, pool: &mut BlockPool, at: u32) {
        let Some(node) = pool.nodes.get(at).copied() else { return };
        match pool.nodes.get_mut(node.previous) {
            Some(previous) => previous.next = node.next,
            None => self.head = node.next,
        }
        match pool.nodes.get_mut(node.next) {
            Some(next) => next.previous = node.previous,
            None => self.tail = node.previous,
        }
        if self.cursor == at {
            self.cursor = self.head;
        }
        let blocks = overlap(node.place.offset, node.len, pool.block_len());
        (node.place.block..node.place.block + blocks).for_each(|block| pool.unrefer(block));
        self.held = self.held.saturating_sub(blocks);
        pool.nodes.release(at);
    }

    /// The last node that starts at or before `position`; [`NIL`] if there is none.
    fn last_up_to(&self, pool: &BlockPool, position: u32) -> u32 {
        let starts = |node: u32| pool.nodes.get(node).map(|node| node.position);
        let (Some(first), Some(last)) = (starts(self.head), starts(self.tail)) else { return NIL };
        if is_before(position, first) {
            return NIL;
        }
        if !is_before(position, last) {
            return self.tail;
        }
        // Starts at the nearest of the known nodes.
        let known = [self.head, self.cursor, self.tail];
        let distance = |node: &u32| match starts(*node) {
            Some(start) => (start.wrapping_sub(position) as i32).unsigned_abs(),
            None => u32::MAX,
        };
        let mut at = known.into_iter().min_by_key(distance).unwrap_or(self.head);
        while let Some(node) = pool.nodes.get(at) {
            if is_before(position, node.position) {
                at = node.previous;
            } else if starts(node.next).is_some_and(|start| !is_before(position, start)) {
                at = node.next;
            } else {
                break;
            }
        }
        at
    }

    /// The `len` bytes from `position` on, up to the first hole.
    pub fn slices<'a>(&mut self, pool: &'a BlockPool, position: u32, len: usize) -> Slices<'a> {
        let at = self.last_up_to(pool, position);
        let Some(node) = pool.nodes.get(at).filter(|node| is_before(position, node.end())) else {
            return Slices::EMPTY;
        };
        self.cursor = at;
        Slices { pool: Some(pool), node: at, skip: position.wrapping_sub(node.position), remaining: len }
    }

    /// The location and length of the first slice.
    pub fn first(&self, pool: &BlockPool) -> Option<(Place, usize)> {
        pool.nodes.get(self.head).map(|node| (node.place, node.len as usize))
    }

    /// Appends a slice of `len` bytes that lie at `place` and remain there; `false` if they may not.
    /// `position` is that of the end of the chain.
    pub fn append_in_place(
        &mut self,
        pool: &mut BlockPool,
        position: u32,
        len: usize,
        place: Place,
        allowance: Allowance,
    ) -> bool {
        let node = match self.may_stay(pool, place, len, allowance) {
            true => self.refer(pool, (self.tail, NIL), position, len as u32, place),
            false => None,
        };
        self.cursor = node.unwrap_or(self.cursor);
        node.is_some()
    }

    /// Releases everything before `position`.
    pub fn release_before(&mut self, pool: &mut BlockPool, position: u32) {
        let block_len = pool.block_len();
        while let Some(node) = pool.nodes.get_mut(self.head) {
            if !is_before(node.position, position) {
                return;
            }
            if !is_before(position, node.end()) {
                self.remove(pool, self.head);
                continue;
            }
            let n = position.wrapping_sub(node.position);
            let (from, to) = (node.place, node.place.plus(n, block_len));
            (node.position, node.len, node.place) = (position, node.len - n, to);
            (from.block..to.block).for_each(|block| pool.unrefer(block));
            self.held = self.held.saturating_sub(to.block - from.block);
        }
    }

    /// Releases everything from `position` on.
    pub fn release_from(&mut self, pool: &mut BlockPool, position: u32) {
        let block_len = pool.block_len();
        while let Some(node) = pool.nodes.get_mut(self.tail) {
            if !is_before(position, node.end()) {
                return;
            }
            if !is_before(node.position, position) {
                self.remove(pool, self.tail);
                continue;
            }
            let before = overlap(node.place.offset, node.len, block_len);
            node.len = position.wrapping_sub(node.position);
            let after = overlap(node.place.offset, node.len, block_len);
            let first = node.place.block;
            (first + after..first + before).for_each(|block| pool.unrefer(block));
            self.held = self.held.saturating_sub(before - after);
        }
    }

    /// Releases everything.
    pub fn clear(&mut self, pool: &mut BlockPool) {
        while self.head != NIL {
            self.remove(pool, self.head);
        }
        *self = Chain::EMPTY;
    }
}

/// Bytes of a chain, slice by slice.
#[derive(Clone, Debug)]
pub struct Slices<'a> {
    pool: Option<&'a BlockPool>,
    node: u32,
    skip: u32,
    remaining: usize,
}

impl Slices<'_> {
    pub(crate) const EMPTY: Slices<'static> = Slices { pool: None, node: NIL, skip: 0, remaining: 0 };
}

impl<'a> Iterator for Slices<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let pool = self.pool?;
        let node = pool.nodes.get(self.node)?;
        if self.remaining == 0 {
            return None;
        }
        let len = ((node.len - self.skip) as usize).min(self.remaining);
        let slice = pool.bytes(node.place.plus(self.skip, pool.block_len()), len);
        self.remaining -= len;
        self.skip = 0;
        // The iteration ends at a hole.
        let goes_on = pool.nodes.get(node.next).is_some_and(|next| next.position == node.end());
        self.node = if goes_on { node.next } else { NIL };
        (!slice.is_empty()).then_some(slice)
    }
}

#[cfg(test)]
mod tests;
