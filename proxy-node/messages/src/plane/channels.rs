//! The channels of a worker, by slot, and those of them whose publishers are held back.

use super::ChannelId;
use crate::channel::Channel;
use crate::list::{Links, List};

#[derive(Debug)]
struct Slot {
    /// How often the slot was used before.
    generation: u16,
    /// The policy's number of the channel, by which flows know it.
    number: u32,
    channel: Option<Channel>,
}

/// The channels of a worker.
#[derive(Debug)]
pub(crate) struct Channels {
    slots: Vec<Slot>,
    /// Channels with publishers that are held back.
    held: List,
    held_links: Links,
}

impl Channels {
    pub fn new(channels_max: u16) -> Self {
        let slot = |_| Slot { generation: 0, number: u32::MAX, channel: None };
        Channels {
            slots: (0..channels_max).map(slot).collect(),
            held: List::EMPTY,
            held_links: Links::new(usize::from(channels_max)),
        }
    }

    /// Returns a slot without a channel.
    pub fn free(&self) -> Option<u16> {
        self.slots.iter().position(|slot| slot.channel.is_none()).map(|at| at as u16)
    }

    /// Puts a channel into a free slot.
    pub fn add(&mut self, slot: u16, channel: Channel) -> ChannelId {
        if let Some(slot) = self.slots.get_mut(usize::from(slot)) {
            (slot.number, slot.channel) = (u32::MAX, Some(channel));
        }
        self.id(slot)
    }

    /// Removes a channel. Its id names no channel any more.
    pub fn remove(&mut self, id: ChannelId) -> Option<Channel> {
        self.get(id)?;
        self.unhold(id.index);
        let slot = self.slots.get_mut(usize::from(id.index))?;
        slot.generation = slot.generation.wrapping_add(1);
        slot.channel.take()
    }

    /// Returns the channel of a name.
    pub fn named(&self, name: &str) -> Option<ChannelId> {
        let has_name = |slot: &Slot| slot.channel.as_ref().is_some_and(|ch| ch.config.name == name);
        self.slots.iter().position(has_name).map(|at| self.id(at as u16))
    }

    #[inline]
    pub fn get(&self, id: ChannelId) -> Option<&Channel> {
        let slot = self.slots.get(usize::from(id.index))?;
        slot.channel.as_ref().filter(|_| slot.generation == id.generation)
    }

    #[inline]
    pub fn get_mut(&mut self, id: ChannelId) -> Option<&mut Channel> {
        let slot = self.slots.get_mut(usize::from(id.index))?;
        slot.channel.as_mut().filter(|_| slot.generation == id.generation)
    }

    /// Returns the channel in a slot.
    #[inline]
    pub fn at(&self, slot: u16) -> Option<&Channel> {
        self.slots.get(usize::from(slot))?.channel.as_ref()
    }

    /// Returns the channel in a slot.
    #[inline]
    pub fn at_mut(&mut self, slot: u16) -> Option<&mut Channel> {
        self.slots.get_mut(usize::from(slot))?.channel.as_mut()
    }

    /// Returns the id of the channel in a slot.
    #[inline]
    pub fn id(&self, slot: u16) -> ChannelId {
        let generation = self.slots.get(usize::from(slot)).map_or(0, |slot| slot.generation);
        ChannelId { index: slot, generation }
    }

    /// Returns the policy's number of the channel in a slot.
    #[inline]
    pub fn number(&self, slot: u16) -> u32 {
        self.slots.get(usize::from(slot)).map_or(u32::MAX, |slot| slot.number)
    }

    /// Sets the policy's number of a channel.
    pub fn set_number(&mut self, id: ChannelId, number: u32) {
        if let Some(slot) = self.slots.get_mut(usize::from(id.index)) {
            slot.number = number;
        }
    }

    /// Records that publishers of a channel are held back.
    pub fn hold(&mut self, slot: u16) {
        self.held.push_back(&mut self.held_links, u32::from(slot));
    }

    /// Records that no publisher of a channel is held back.
    pub fn unhold(&mut self, slot: u16) {
        self.held.remove(&mut self.held_links, u32::from(slot));
    }

    /// Returns the first channel whose publishers are held back.
    pub fn first_held(&self) -> Option<u16> {
        self.held.front().map(|slot| slot as u16)
    }

    /// Returns the channel after another one whose publishers are held back.
    pub fn next_held(&self, slot: u16) -> Option<u16> {
        self.held.after(&self.held_links, u32::from(slot)).map(|slot| slot as u16)
    }
}
