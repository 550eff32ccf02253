//! The peers of all channels, and the queues of those that receive.
//!
//! A peer is one connection's part in one channel. Its slot is used again after it is detached, with another
//! generation. Methods on the receiving side keep three facts true:
//!
//! - a peer is in its channel's `pending` list exactly when a message can be given to it;
//! - a puller is in `roomy` exactly when its queue is not full, and a subscriber in `lagging` exactly when
//!   its queue has messages and drops some when it is full;
//! - `blocked` is the number of subscribers that hold back publishers.

use csp_quality::SharedLink;
use csp_types::{Duration, Instant};

use crate::channel::Channel;
use crate::config::ChannelKind;
use crate::flows::Wanted;
use crate::list::Links;
use crate::plane::Replay;
use crate::pool::{MessageHandle, MessagePool};
use crate::queue::{FullQueue, Item, Pushed, Queue};

/// Names a peer of a channel until it is detached.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PeerId {
    /// Index of the peer's slot.
    pub index: u32,
    /// How often the slot was used before.
    pub generation: u32,
}

/// The role of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Publishes.
    Publisher,
    /// Receives what it subscribes to.
    Subscriber,
    /// Publishes and subscribes, also to its own messages.
    Both,
    /// Pushes.
    Pusher,
    /// Pulls.
    Puller,
}

impl Role {
    /// Returns whether the peer sends messages to the channel.
    pub fn sends(self) -> bool {
        matches!(self, Role::Publisher | Role::Both | Role::Pusher)
    }

    /// Returns whether the channel sends messages to the peer.
    pub fn receives(self) -> bool {
        matches!(self, Role::Subscriber | Role::Both | Role::Puller)
    }

    /// Returns whether the peer can subscribe.
    pub fn subscribes(self) -> bool {
        matches!(self, Role::Subscriber | Role::Both)
    }

    /// Returns whether channels of this kind have such peers.
    pub fn fits(self, kind: &ChannelKind) -> bool {
        matches!(self, Role::Pusher | Role::Puller) == matches!(kind, ChannelKind::PushPull { .. })
    }
}

#[derive(Debug)]
pub(crate) struct Peer {
    generation: u32,
    /// `None` if the slot is free.
    pub role: Option<Role>,
    pub channel: u16,
    /// The peer's connection has no room.
    parked: bool,
    /// A process of the cluster without TCP.
    local: bool,
    /// When the receiver took a message, or its queue ceased to be empty.
    taken: Instant,
    /// Messages published by the peer.
    pub published: u64,
    /// The message of an information flow for which it is held back.
    wanted: Option<Wanted>,
    /// Progress of the last values that the peer has yet to receive.
    replay: Replay,
    pub queue: Queue,
}

/// Messages that a detached receiver leaves in its channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Left {
    /// Messages that were in flight to it.
    pub in_flight: u64,
}

impl Peer {
    /// Returns whether nothing waits for the peer or is in flight to it, and its connection has room.
    #[inline]
    pub fn is_idle(&self) -> bool {
        !self.parked && self.queue.is_empty() && self.queue.in_flight() == 0
    }
}

#[derive(Debug)]
pub(crate) struct Peers {
    slots: Vec<Peer>,
    free: Vec<u32>,
    peers_max: usize,
    pending: Links,
    /// Links of `roomy` and `lagging`: a peer has its place in one of the two.
    turns: Links,
    held: Links,
}

impl Peers {
    pub fn new(peers_max: u32) -> Self {
        let peers_max = peers_max as usize;
        Peers {
            slots: Vec::with_capacity(peers_max),
            free: Vec::with_capacity(peers_max),
            peers_max,
            pending: Links::new(peers_max),
            turns: Links::new(peers_max),
            held: Links::new(peers_max),
        }
    }

    /// Number of peers.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub fn get(&self, id: PeerId) -> Option<&Peer> {
        self.slots
            .get(id.index as usize)
            .filter(|peer| peer.generation == id.generation && peer.role.is_some())
    }

    /// Returns the id of the peer in a slot.
    pub fn id(&self, index: u32) -> PeerId {
        let generation = self.slots.get(index as usize).map_or(0, |peer| peer.generation);
        PeerId { index, generation }
    }

    /// Returns the peers of a channel, by looking at all.
    pub fn of_channel(&self, channel: u16) -> impl Iterator<Item = PeerId> + '_ {
        let is_of = move |peer: &Peer| peer.role.is_some() && peer.channel == channel;
        (0u32..)
            .zip(&self.slots)
            .filter(move |(_, peer)| is_of(peer))
            .map(|(index, peer)| PeerId { index, generation: peer.generation })
    }

    /// Calls `each` with the peers of the channels for which `is_of` returns true. Looks at up to `max` slots
    /// from `from` on, and returns the slot for the next call; `None` after the last.
    pub fn walk(
        &self,
        from: u32,
        max: u32,
        is_of: impl Fn(u16) -> bool,
        mut each: impl FnMut(PeerId),
    ) -> Option<u32> {
        let end = from.saturating_add(max).min(self.slots.len() as u32);
        for index in from..end {
            let peer = &self.slots[index as usize];
            if peer.role.is_some() && is_of(peer.channel) {
                each(PeerId { index, generation: peer.generation });
            }
        }
        ((end as usize) < self.slots.len()).then_some(end)
    }

    /// Counts a message that a peer has sent, if it was `published`.
    pub fn count_published(&mut self, index: u32, published: bool) {
        if let Some(peer) = self.slots.get_mut(index as usize) {
            peer.published += u64::from(published);
        }
    }

    /// Records the message of a flow for which a peer is held back; `None`: for none.
    pub fn set_wanted(&mut self, index: u32, wanted: Option<Wanted>) {
        if let Some(peer) = self.slots.get_mut(index as usize) {
            peer.wanted = wanted;
        }
    }

    /// Adds a peer, with a queue if it receives; `None` if there are too many.
    pub fn attach(&mut self, ch: &mut Channel, channel: u16, role: Role) -> Option<PeerId> {
        let receives = role != Role::Publisher && role != Role::Pusher;
        let queue = if receives { Queue::new(&ch.config.queue) } else { Queue::none() };
        let (parked, local, taken) = (false, false, Instant::ZERO);
        let (generation, published, replay) = (0, 0, Replay::default());
        let (role, wanted) = (Some(role), None);
        let mut peer =
            Peer { generation, role, channel, parked, local, taken, published, wanted, replay, queue };
        let index = match self.free.pop() {
            Some(index) => {
                let slot = &mut self.slots[index as usize];
                peer.generation = slot.generation.wrapping_add(1);
                *slot = peer;
                index
            }
            None if self.slots.len() < self.peers_max => {
                self.slots.push(peer);
                self.slots.len() as u32 - 1
            }
            None => return None,
        };
        if role == Some(Role::Puller) {
            ch.pullers += 1;
            // What pullers have is put back into the backlog when they are detached.
            let theirs = ch.pullers as usize * ch.config.queue.messages as usize;
            let mark = ch.backlog_limits().map_or(0, |limits| limits.messages as usize);
            ch.backlog.reserve((mark + theirs).saturating_sub(ch.backlog.len()));
            ch.roomy.push_back(&mut self.turns, index);
            self.distribute(ch);
        }
        Some(self.id(index))
    }

    /// Returns the progress of a subscriber's last values.
    pub fn replay(&mut self, index: u32) -> Option<&mut Replay> {
        self.slots.get_mut(index as usize).map(|peer| &mut peer.replay)
    }

    /// Returns whether last values wait for a subscriber whose queue has room for them.
    #[inline]
    pub fn wants_replay(&self, ch: &Channel, index: u32) -> bool {
        self.slots.get(index as usize).is_some_and(|peer| peer.replay.waits()) && !self.is_half(ch, index)
    }

    /// Returns whether a receiver's queue is more than half full.
    pub fn is_half(&self, ch: &Channel, index: u32) -> bool {
        self.slots.get(index as usize).is_none_or(|peer| peer.queue.is_half(&ch.config.queue))
    }

    /// Removes a peer. A puller's waiting messages go back to the backlog; a subscriber's are released.
    pub fn detach(&mut self, ch: &mut Channel, pool: &mut MessagePool, index: u32) -> Left {
        ch.pending.remove(&mut self.pending, index);
        ch.held.remove(&mut self.held, index);
        let backlog = ch.backlog_limits();
        match backlog {
            Some(_) => ch.roomy.remove(&mut self.turns, index),
            None => ch.lagging.remove(&mut self.turns, index),
        }
        let Some(peer) = self.slots.get_mut(index as usize) else { return Left::default() };
        let role = peer.role.take();
        self.free.push(index);
        if backlog.is_none() && ch.policy() == FullQueue::Block && peer.queue.was_full() {
            ch.blocked -= 1;
        }
        let mut left = Left::default();
        while let Some(item) = peer.queue.pop_in_flight() {
            pool.release(item.handle);
            left.in_flight += 1;
        }
        while let Some(item) = peer.queue.pop_back() {
            match &backlog {
                Some(limits) => ch.backlog.push_front(item, limits),
                None => _ = pool.release(item.handle),
            }
        }
        peer.queue = Queue::none();
        if role == Some(Role::Puller) {
            ch.pullers -= 1;
            self.distribute(ch);
        }
        left
    }

    /// Returns whether the policy drops the next message for the subscriber, and counts it if so.
    pub fn drops_newest(&mut self, ch: &mut Channel, index: u32) -> bool {
        if ch.policy() != FullQueue::DropNewest {
            return false;
        }
        let Some(peer) = self.slots.get_mut(index as usize) else { return true };
        let is_full = peer.queue.is_full(&ch.config.queue);
        peer.queue.counters.dropped_newest += u64::from(is_full);
        ch.counters.dropped_newest += u64::from(is_full);
        is_full
    }

    /// Counts a message that was not stored because there was no memory.
    pub fn count_dropped_memory(&mut self, ch: &mut Channel, index: u32) {
        if let Some(peer) = self.slots.get_mut(index as usize) {
            peer.queue.counters.dropped_memory += 1;
            ch.counters.dropped_memory += 1;
        }
    }

    /// Queues a message for a subscriber; the caller holds a reference for it. Returns a message whose
    /// reference the caller must release.
    pub fn push(&mut self, ch: &mut Channel, index: u32, item: Item, now: Instant) -> Option<MessageHandle> {
        let policy = ch.policy();
        let peer = self.slots.get_mut(index as usize)?;
        let (was_empty, was_full) = (peer.queue.is_empty(), peer.queue.was_full());
        let pushed = peer.queue.push(item, &ch.config.queue, policy);
        if policy == FullQueue::Block && !was_full && peer.queue.was_full() {
            ch.blocked += 1;
        }
        if was_empty {
            peer.taken = now;
            if policy != FullQueue::Block {
                ch.lagging.push_back(&mut self.turns, index);
            }
            self.refresh(ch, index);
        }
        match pushed {
            Pushed::Queued => {
                ch.counters.queued += 1;
                None
            }
            Pushed::DroppedOldest(oldest) => {
                ch.counters.queued += 1;
                ch.counters.dropped_oldest += 1;
                Some(oldest.handle)
            }
            Pushed::DroppedNewest => {
                ch.counters.dropped_newest += 1;
                Some(item.handle)
            }
        }
    }

    /// Gives waiting messages of the backlog to pullers with room, one each in turn.
    pub fn distribute(&mut self, ch: &mut Channel) {
        let Some(limits) = ch.backlog_limits() else { return };
        while let Some(index) = ch.roomy.front()
            && let Some(item) = ch.backlog.pop(&limits)
        {
            let peer = &mut self.slots[index as usize];
            peer.queue.push(item, &ch.config.queue, FullQueue::Block);
            ch.counters.queued += 1;
            ch.roomy.rotate(&mut self.turns, index);
            if peer.queue.is_full(&ch.config.queue) {
                ch.roomy.remove(&mut self.turns, index);
            }
            self.refresh(ch, index);
        }
    }

    /// Counts a message that was passed on to an idle receiver without its queue.
    #[inline]
    pub fn passed_on(&mut self, ch: &mut Channel, index: u32) {
        let Some(peer) = self.slots.get_mut(index as usize) else { return };
        peer.queue.counters.queued += 1;
        peer.queue.counters.taken += 1;
        ch.counters.queued += 1;
        ch.counters.taken += 1;
        if peer.role == Some(Role::Puller) {
            ch.roomy.rotate(&mut self.turns, index);
        }
    }

    /// Takes the oldest message of a peer's queue, which is then in flight.
    pub fn take(&mut self, ch: &mut Channel, index: u32, now: Instant) -> Option<Item> {
        let peer = self.slots.get_mut(index as usize)?;
        if peer.parked {
            return None;
        }
        let was_full = peer.queue.was_full();
        let item = peer.queue.take(&ch.config.queue)?;
        peer.taken = now;
        ch.counters.taken += 1;
        let (is_empty, is_full) = (peer.queue.is_empty(), peer.queue.is_full(&ch.config.queue));
        let unblocked = was_full && !peer.queue.was_full();
        if ch.backlog_limits().is_some() {
            if !is_full {
                ch.roomy.push_back(&mut self.turns, index);
            }
            self.distribute(ch);
        } else if ch.policy() == FullQueue::Block {
            ch.blocked -= u32::from(unblocked);
        } else if is_empty {
            ch.lagging.remove(&mut self.turns, index);
        } else {
            ch.lagging.rotate(&mut self.turns, index);
        }
        self.refresh(ch, index);
        Some(item)
    }

    /// Records that a receiver has finished with its oldest message in flight; `false` if that is another.
    pub fn finish(&mut self, ch: &mut Channel, index: u32, handle: MessageHandle) -> bool {
        let Some(peer) = self.slots.get_mut(index as usize) else { return false };
        let was_at_bound = peer.queue.in_flight() >= ch.config.queue.in_flight as usize;
        let is_next = peer.queue.finish(handle);
        if is_next && was_at_bound {
            self.refresh(ch, index);
        }
        is_next
    }

    /// Sets whether the peer's connection has no room.
    pub fn set_parked(&mut self, ch: &mut Channel, index: u32, parked: bool) {
        if let Some(peer) = self.slots.get_mut(index as usize) {
            peer.parked = parked;
            self.refresh(ch, index);
        }
    }

    /// Records whether a peer is a process of the cluster, which no output link leads to.
    pub fn set_local(&mut self, index: u32, local: bool) {
        if let Some(peer) = self.slots.get_mut(index as usize) {
            peer.local = local;
        }
    }

    /// Returns whether a receiver's copy uses the output link: the receiver has room, and is not a process of
    /// the cluster.
    pub fn takes_link(&self, ch: &Channel, index: u32) -> bool {
        let full = |peer: &Peer| peer.queue.is_full(&ch.config.queue);
        self.slots.get(index as usize).is_some_and(|peer| !peer.local && !full(peer))
    }

    /// Adds the peer to the list of those that can be given a message, or removes it.
    fn refresh(&mut self, ch: &mut Channel, index: u32) {
        let Some(peer) = self.slots.get(index as usize) else { return };
        if !peer.parked && peer.queue.is_ready(&ch.config.queue) {
            ch.pending.push_back(&mut self.pending, index);
        } else {
            ch.pending.remove(&mut self.pending, index);
        }
    }

    /// Returns the next peer that can be given a message, and moves it to the end of the list.
    pub fn next_pending(&mut self, ch: &mut Channel) -> Option<PeerId> {
        let index = ch.pending.front()?;
        ch.pending.rotate(&mut self.pending, index);
        Some(self.id(index))
    }

    /// Drops the waiting messages of the subscriber that has taken nothing for longest, if that is at least
    /// `stalled_after`. Returns whether there was one.
    pub fn shed(
        &mut self,
        ch: &mut Channel,
        pool: &mut MessagePool,
        now: Instant,
        stalled_after: Duration,
    ) -> bool {
        let Some(index) = ch.lagging.front() else { return false };
        let peer = &mut self.slots[index as usize];
        if now.saturating_since(peer.taken) < stalled_after {
            return false;
        }
        while let Some(item) = peer.queue.pop(&ch.config.queue) {
            pool.release(item.handle);
            peer.queue.counters.dropped_stalled += 1;
            ch.counters.dropped_stalled += 1;
        }
        ch.lagging.remove(&mut self.turns, index);
        self.refresh(ch, index);
        true
    }

    /// Adds a publisher to those that are held back.
    pub fn hold(&mut self, ch: &mut Channel, index: u32) {
        ch.counters.held += 1;
        ch.held.push_back(&mut self.held, index);
    }

    /// Removes the publisher that has been held back for longest.
    pub fn unhold(&mut self, ch: &mut Channel) -> Option<PeerId> {
        let index = ch.held.front()?;
        ch.held.remove(&mut self.held, index);
        Some(self.id(index))
    }

    /// The same among those for whose message their flow has room.
    pub fn unhold_with_room(&mut self, ch: &mut Channel, link: &SharedLink) -> Option<PeerId> {
        let mut next = ch.held.front();
        while let Some(index) = next {
            let wanted = self.slots.get(index as usize).and_then(|peer| peer.wanted);
            if wanted.is_none_or(|wanted| wanted.has_room(link)) {
                ch.held.remove(&mut self.held, index);
                return Some(self.id(index));
            }
            next = ch.held.after(&self.held, index);
        }
        None
    }
}
