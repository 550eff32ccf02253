//! Links in a slab of fixed size, found by [`LinkId`] or by VI.

use csp_vi::ViId;

use super::link::Link;
use crate::event::LinkId;

#[derive(Debug)]
struct Slot {
    generation: u32,
    link: Option<Link>,
}

/// The links of an endpoint.
#[derive(Debug)]
pub(super) struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// A bit for each slot with a link. A slot is several cache lines long, and most have none.
    live: Vec<u64>,
    /// Sorted by VI. Links are few, so that neither hashing nor its seed is needed.
    by_vi: Vec<(ViId, u32)>,
}

impl Table {
    /// A table of `capacity` slots, allocated now.
    pub(super) fn new(capacity: u32) -> Self {
        Table {
            slots: (0..capacity).map(|_| Slot { generation: 0, link: None }).collect(),
            free: (0..capacity).rev().collect(),
            live: vec![0; capacity.div_ceil(u64::BITS) as usize],
            by_vi: Vec::with_capacity(capacity as usize),
        }
    }

    /// Total number of slots.
    pub(super) fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Number of free slots.
    pub(super) fn available(&self) -> usize {
        self.free.len()
    }

    /// Inserts a link. Returns `None` if the table is full.
    pub(super) fn insert(&mut self, link: Link) -> Option<LinkId> {
        let index = self.free.pop()?;
        let slot = self.slots.get_mut(index as usize)?;
        let at = self.by_vi.partition_point(|&(vi, _)| vi < link.vi);
        self.by_vi.insert(at, (link.vi, index));
        slot.link = Some(link);
        self.live[index as usize / 64] |= 1 << (index % 64);
        Some(LinkId { index, generation: slot.generation })
    }

    /// Removes a link; its id is invalid from then on.
    pub(super) fn remove(&mut self, id: LinkId) -> Option<Link> {
        let slot = self.slots.get_mut(id.index as usize).filter(|slot| slot.generation == id.generation)?;
        let link = slot.link.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.index);
        self.live[id.index as usize / 64] &= !(1 << (id.index % 64));
        if let Ok(at) = self.by_vi.binary_search_by_key(&link.vi, |&(vi, _)| vi) {
            self.by_vi.remove(at);
        }
        Some(link)
    }

    /// Binds the link to another VI.
    pub(super) fn rebind(&mut self, id: LinkId, vi: ViId) {
        let Some(link) = self.get_mut(id) else { return };
        let former = core::mem::replace(&mut link.vi, vi);
        if let Ok(at) = self.by_vi.binary_search_by_key(&former, |&(vi, _)| vi) {
            self.by_vi.remove(at);
        }
        let at = self.by_vi.partition_point(|&(of, _)| of < vi);
        self.by_vi.insert(at, (vi, id.index));
    }

    /// The link of this id.
    pub(super) fn get(&self, id: LinkId) -> Option<&Link> {
        let slot = self.slots.get(id.index as usize)?;
        slot.link.as_ref().filter(|_| slot.generation == id.generation)
    }

    /// The link of this id, mutable.
    pub(super) fn get_mut(&mut self, id: LinkId) -> Option<&mut Link> {
        let slot = self.slots.get_mut(id.index as usize)?;
        slot.link.as_mut().filter(|_| slot.generation == id.generation)
    }

    /// The id of the link over `vi`.
    pub(super) fn find(&self, vi: ViId) -> Option<LinkId> {
        let at = self.by_vi.binary_search_by_key(&vi, |&(vi, _)| vi).ok()?;
        self.id_at(self.by_vi.get(at)?.1)
    }

    /// The id of the link in slot `index`, if one is there.
    fn id_at(&self, index: u32) -> Option<LinkId> {
        let slot = self.slots.get(index as usize)?;
        slot.link.as_ref().map(|_| LinkId { index, generation: slot.generation })
    }

    /// The first link in slot `index` or after it.
    pub(super) fn first_from(&self, index: u32) -> Option<LinkId> {
        let mut at = index as usize / 64;
        let mut word = self.live.get(at)? & (u64::MAX << (index % 64));
        while word == 0 {
            at += 1;
            word = *self.live.get(at)?;
        }
        self.id_at(at as u32 * 64 + word.trailing_zeros())
    }

    /// All links, in slot order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (LinkId, &Link)> {
        let first = self.first_from(0);
        let ids = core::iter::successors(first, |id| self.first_from(id.index + 1));
        ids.filter_map(|id| Some((id, self.get(id)?)))
    }
}
