//! Memory that the caller has registered, with a cache of past registrations.
//!
//! A registration costs milliseconds (the kernel pins the pages and informs the device), and callers register
//! the same memory for every connection. Deregistered memory therefore stays registered with the device, up
//! to a bound, while its owner keeps it mapped for other reasons. The least recently used is evicted first;
//! memory with a send in progress is never evicted.

use super::memory::Registration;
use super::sys::Api;
use super::sys::ibv::{self, Pd};
use crate::ViError;
use crate::region::{Memory, Piece, RegionId};
use crate::slots::Slots;

/// Largest number of devices that a provider uses at once.
pub(super) const DEVICES_MAX: usize = 4;

/// Largest number of registered regions.
const REGIONS_MAX: usize = 4096;

/// Bounds of the cache of deregistered memory: entries, and bytes in total.
const IDLE_MAX: usize = 64;
const IDLE_LEN_MAX: usize = 256 << 20;

/// Counters of registrations since the provider was created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheCounters {
    /// Registrations of memory that was still registered with the device.
    pub hits: u64,
    /// Registrations of other memory.
    pub misses: u64,
    /// Cached memory evicted to make room, or because no other owner kept it.
    pub evictions: u64,
}

struct Entry {
    memory: Memory,
    registered: [Option<Registration>; DEVICES_MAX],
    /// Number of regions that refer to it.
    users: u32,
    /// Number of posted work requests that send from it.
    posted: u32,
    /// Time of the last registration, in calls of [`Regions::register`].
    used: u64,
}

impl Entry {
    fn is_idle(&self) -> bool {
        self.users == 0 && self.posted == 0
    }
}

pub(super) struct Regions {
    api: &'static Api,
    entries: Slots<Entry>,
    /// The entry of each region.
    regions: Slots<u64>,
    clock: u64,
    pub counters: CacheCounters,
}

impl Regions {
    pub(super) fn new(api: &'static Api) -> Self {
        let (entries, regions) = (Slots::new(REGIONS_MAX), Slots::new(REGIONS_MAX));
        Regions { api, entries, regions, clock: 0, counters: CacheCounters::default() }
    }

    /// Registers `memory` with the devices `on`, each given by number and protection domain.
    pub(super) fn register(
        &mut self,
        memory: &Memory,
        on: impl Iterator<Item = (usize, *mut Pd)>,
    ) -> Result<RegionId, ViError> {
        self.evict();
        self.clock += 1;
        let known = self.entries.iter().find(|(_, entry)| entry.memory.is_same(memory)).map(|(id, _)| id);
        let id = match known {
            Some(id) => {
                self.counters.hits += 1;
                id
            }
            None => {
                self.counters.misses += 1;
                let memory = memory.clone();
                let entry = Entry { memory, registered: [const { None }; 4], users: 0, posted: 0, used: 0 };
                self.entries.insert(entry).ok_or(ViError::Exhausted("region"))?
            }
        };
        let made = on.into_iter().try_for_each(|(device, pd)| self.key(id, device, pd).map(drop));
        let region = made.and_then(|()| self.regions.insert(id).ok_or(ViError::Exhausted("region")));
        let Some(entry) = self.entries.get_mut(id) else { return Err(ViError::Unknown("region")) };
        match region {
            Ok(region) => {
                (entry.users, entry.used) = (entry.users + 1, self.clock);
                Ok(RegionId(region))
            }
            Err(error) => {
                if entry.is_idle() {
                    self.entries.remove(id);
                }
                Err(error)
            }
        }
    }

    /// Ends the caller's use of a region.
    pub(super) fn deregister(&mut self, region: RegionId) -> Result<(), ViError> {
        let id = self.regions.remove(region.0).ok_or(ViError::Unknown("region"))?;
        if let Some(entry) = self.entries.get_mut(id) {
            entry.users -= 1;
        }
        self.evict();
        Ok(())
    }

    /// Evicts cached memory that no other owner keeps, and more until the cache is within its bounds.
    pub(super) fn evict(&mut self) {
        loop {
            let (mut count, mut len, mut oldest, mut forgotten) = (0, 0usize, None, None);
            for (id, entry) in self.entries.iter().filter(|(_, entry)| entry.is_idle()) {
                (count, len) = (count + 1, len.saturating_add(entry.memory.len()));
                if entry.memory.is_unshared() {
                    forgotten = Some(id);
                }
                if oldest.is_none_or(|(used, _)| entry.used < used) {
                    oldest = Some((entry.used, id));
                }
            }
            let over = count > IDLE_MAX || len > IDLE_LEN_MAX;
            let gone = forgotten.or(oldest.filter(|_| over).map(|(_, id)| id));
            let Some(id) = gone else { return };
            self.entries.remove(id);
            self.counters.evictions += 1;
        }
    }

    /// Returns the entry of a piece and the piece's address, after checking its bounds.
    pub(super) fn locate(&self, piece: &Piece) -> Result<(u64, u64), ViError> {
        let id = *self.regions.get(piece.region.0).ok_or(ViError::Unknown("region"))?;
        let entry = self.entries.get(id).ok_or(ViError::Unknown("region"))?;
        let at = entry.memory.at(piece.offset, piece.len);
        Ok((id, at.ok_or(ViError::Config("a piece is not within its region"))? as u64))
    }

    /// Returns the memory of a region.
    pub(super) fn memory(&self, region: RegionId) -> Result<&Memory, ViError> {
        let entry = self.regions.get(region.0).and_then(|&id| self.entries.get(id));
        Ok(&entry.ok_or(ViError::Unknown("region"))?.memory)
    }

    /// Returns the local key of an entry's memory on a device, and registers the memory there at first use.
    pub(super) fn key(&mut self, id: u64, device: usize, pd: *mut Pd) -> Result<u32, ViError> {
        let entry = self.entries.get_mut(id).ok_or(ViError::Unknown("region"))?;
        let place = entry.registered.get_mut(device).ok_or(ViError::Unknown("device"))?;
        if let Some(registered) = place {
            return Ok(registered.local_key());
        }
        let all = (0, entry.memory.len());
        let made = Registration::new(self.api, pd, &entry.memory, all, ibv::ACCESS_LOCAL_WRITE)?;
        Ok(place.insert(made).local_key())
    }

    /// Records that a posted work request sends from an entry.
    pub(super) fn hold(&mut self, id: u64) {
        if let Some(entry) = self.entries.get_mut(id) {
            entry.posted += 1;
        }
    }

    /// Records that the work request was retired.
    pub(super) fn release(&mut self, id: u64) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        entry.posted -= 1;
        if entry.is_idle() && entry.memory.is_unshared() {
            self.entries.remove(id);
            self.counters.evictions += 1;
        }
    }

    /// Registers all memory in use with a device that was opened.
    pub(super) fn join(&mut self, device: usize, pd: *mut Pd) -> Result<(), ViError> {
        let used: Vec<u64> =
            self.entries.iter().filter(|(_, entry)| entry.users > 0).map(|(id, _)| id).collect();
        used.into_iter().try_for_each(|id| self.key(id, device, pd).map(drop))
    }

    /// Ends all registrations with a device that is closed.
    pub(super) fn leave(&mut self, device: usize) {
        for index in 0..self.entries.len() {
            if let Some((_, entry)) = self.entries.at_mut(index)
                && let Some(place) = entry.registered.get_mut(device)
            {
                *place = None;
            }
        }
    }
}
