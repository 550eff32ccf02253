//! The plane beside a plain model: acts in any order give the same deliveries.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeSet, VecDeque};

use csp_handlers::FormatId;
use csp_messages::{
    Budget, ChannelConfig, ChannelId, ChannelKind, FullQueue, HashKey, MessageHandle, MessagePlane, PeerId,
    PlaneConfig, PoolConfig, PublishError, QueueLimits, Role, SubscriptionsConfig,
};
use csp_types::Instant;
use proptest::prelude::*;

const POLICIES: [FullQueue; 3] = [FullQueue::DropNewest, FullQueue::DropOldest, FullQueue::Block];
const LIMITS: QueueLimits = QueueLimits { messages: 5, bytes: 900, in_flight: 2 };
const PEERS_MAX: usize = 12;

#[derive(Clone, Debug)]
enum Act {
    Attach(usize, Role),
    Detach(usize),
    Subscribe(usize, Vec<u8>),
    Cancel(usize, Vec<u8>),
    Publish(usize, Vec<u8>, usize),
    Take(usize),
    Deliver(usize),
}

/// A message in the model: its number and bytes.
type Message = (u64, Vec<u8>);

struct ModelPeer {
    id: PeerId,
    channel: usize,
    role: Role,
    subscriptions: BTreeSet<Vec<u8>>,
    waiting: VecDeque<Message>,
    in_flight: VecDeque<(MessageHandle, Message)>,
    blocks: bool,
    dropped: u64,
}

impl ModelPeer {
    fn is_full(&self) -> bool {
        self.waiting.len() >= LIMITS.messages as usize || self.bytes() >= LIMITS.bytes
    }

    fn bytes(&self) -> u64 {
        self.waiting.iter().map(|message| message.1.len() as u64).sum()
    }

    fn push(&mut self, message: Message, policy: FullQueue) {
        match (self.is_full(), policy) {
            (true, FullQueue::DropNewest) => {
                self.dropped += 1;
                return;
            }
            (true, FullQueue::DropOldest) => {
                self.waiting.pop_front();
                self.dropped += 1;
            }
            (true, FullQueue::Block) => panic!("publishers are held back before"),
            (false, _) => {}
        }
        self.waiting.push_back(message);
        self.blocks |= policy == FullQueue::Block && self.is_full();
    }

    fn take(&mut self) -> Option<Message> {
        if self.in_flight.len() >= LIMITS.in_flight as usize {
            return None;
        }
        let message = self.waiting.pop_front();
        self.blocks &= self.waiting.len() > LIMITS.messages as usize / 2 || self.bytes() > LIMITS.bytes / 2;
        message
    }
}

struct World {
    plane: MessagePlane,
    channels: Vec<ChannelId>,
    peers: Vec<ModelPeer>,
    sequences: Vec<u64>,
    count: u8,
}

fn plane() -> (MessagePlane, Vec<ChannelId>) {
    let pool = PoolConfig { block_len: 64, blocks: 4_096 };
    let subscriptions =
        SubscriptionsConfig { topic_len_max: 32, entries_max: 1_000, nodes_max: 1_000, ..Default::default() };
    let config = PlaneConfig::new(HashKey([3, 5]));
    let config = PlaneConfig { pool, subscriptions, channels_max: 3, peers_max: PEERS_MAX as u32, ..config };
    let mut plane = MessagePlane::new(config).unwrap();
    let mut add = |policy: &FullQueue| {
        let kind = ChannelKind::PublishSubscribe { policy: *policy, cache: None };
        let budget = Budget { guaranteed: 64 * 1_300, max: 64 * 4_096 };
        let name = format!("{policy:?}");
        plane
            .add_channel(ChannelConfig {
                name,
                kind,
                budget,
                message_len_max: 1_000,
                queue: LIMITS,
                sequence: false,
            })
            .unwrap()
    };
    let channels = POLICIES.iter().map(&mut add).collect();
    (plane, channels)
}

impl World {
    fn new() -> Self {
        let (plane, channels) = plane();
        World { plane, channels, peers: Vec::new(), sequences: vec![0; 3], count: 0 }
    }

    fn check(&mut self, act: Act) -> Result<(), TestCaseError> {
        match act {
            Act::Attach(channel, role) => self.attach(channel, role),
            Act::Publish(peer, topic, len) => self.publish(peer, topic, len),
            Act::Detach(peer) => self.detach(peer),
            Act::Subscribe(peer, prefix) => self.subscribe(peer, prefix),
            Act::Cancel(peer, prefix) => self.cancel(peer, &prefix),
            Act::Take(peer) => self.take(peer),
            Act::Deliver(peer) => self.deliver(peer),
        }
    }

    fn attach(&mut self, channel: usize, role: Role) -> Result<(), TestCaseError> {
        if self.peers.len() == PEERS_MAX {
            prop_assert!(self.plane.attach(self.channels[channel], role).is_err());
            return Ok(());
        }
        let id = self.plane.attach(self.channels[channel], role).unwrap();
        self.peers.push(ModelPeer {
            id,
            channel,
            role,
            subscriptions: BTreeSet::new(),
            waiting: VecDeque::new(),
            in_flight: VecDeque::new(),
            blocks: false,
            dropped: 0,
        });
        Ok(())
    }

    fn at(&self, peer: usize) -> Option<usize> {
        peer.checked_rem(self.peers.len())
    }

    fn detach(&mut self, peer: usize) -> Result<(), TestCaseError> {
        let Some(at) = self.at(peer) else { return Ok(()) };
        let peer = self.peers.swap_remove(at);
        let mut gone = Vec::new();
        assert!(self.plane.detach(peer.id, |prefix| gone.push(prefix.to_vec())));
        gone.sort();
        let others = |prefix: &&Vec<u8>| {
            !self.peers.iter().any(|p| p.channel == peer.channel && p.subscriptions.contains(*prefix))
        };
        prop_assert_eq!(gone, peer.subscriptions.iter().filter(others).cloned().collect::<Vec<_>>());
        let again = self.plane.detach(peer.id, |_| {});
        prop_assert!(!again && self.plane.peer_status(peer.id).is_none());
        for (handle, _) in peer.in_flight {
            prop_assert!(self.plane.delivered(peer.id, handle).is_err());
        }
        Ok(())
    }

    fn subscribe(&mut self, peer: usize, prefix: Vec<u8>) -> Result<(), TestCaseError> {
        let Some(at) = self.at(peer) else { return Ok(()) };
        let peer = &mut self.peers[at];
        let done = self.plane.subscribe(Instant::ZERO, peer.id, &prefix);
        prop_assert_eq!(done.is_ok(), peer.role.subscribes());
        if done.is_ok() {
            peer.subscriptions.insert(prefix);
        }
        Ok(())
    }

    fn cancel(&mut self, peer: usize, prefix: &[u8]) -> Result<(), TestCaseError> {
        let Some(at) = self.at(peer) else { return Ok(()) };
        let peer = &mut self.peers[at];
        let done = self.plane.cancel(peer.id, prefix);
        let had = peer.subscriptions.remove(prefix);
        prop_assert_eq!(done.map(|change| change.entry), had.then_some(true));
        Ok(())
    }

    fn publish(&mut self, peer: usize, topic: Vec<u8>, len: usize) -> Result<(), TestCaseError> {
        let Some(at) = self.at(peer) else { return Ok(()) };
        let (channel, sends, id) = (self.peers[at].channel, self.peers[at].role.sends(), self.peers[at].id);
        self.count = self.count.wrapping_add(1);
        let (bytes, frames) =
            ([topic.clone(), vec![self.count; len]].concat(), [topic.len() as u32, len as u32]);
        let done = self.plane.publish_as(Instant::ZERO, id, FormatId::UNKNOWN, &frames, bytes.chunks(3));
        let is_held = self.peers.iter().any(|p| p.channel == channel && p.blocks);
        let expected = match (sends, is_held) {
            (false, _) => Err(PublishError::NotAPublisher),
            (true, true) => Err(PublishError::Held),
            (true, false) => Ok(self.sequences[channel] + 1),
        };
        prop_assert_eq!(done.map(|published| published.sequence), expected);
        let Ok(sequence) = expected else { return Ok(()) };
        self.sequences[channel] = sequence;
        for peer in self.peers.iter_mut().filter(|peer| peer.channel == channel) {
            if peer.subscriptions.iter().any(|prefix| topic.starts_with(prefix)) {
                peer.push((sequence, bytes.clone()), POLICIES[channel]);
            }
        }
        Ok(())
    }

    fn take(&mut self, peer: usize) -> Result<(), TestCaseError> {
        let Some(at) = self.at(peer) else { return Ok(()) };
        let peer = &mut self.peers[at];
        let delivery = self.plane.next_delivery(Instant::ZERO, peer.id);
        let expected = peer.take();
        let got = delivery.map(|d| (d.sequence, self.plane.slices(d.handle).collect::<Vec<_>>().concat()));
        prop_assert_eq!(&got, &expected);
        peer.in_flight.extend(delivery.map(|delivery| delivery.handle).zip(expected));
        Ok(())
    }

    fn deliver(&mut self, peer: usize) -> Result<(), TestCaseError> {
        let Some(at) = self.at(peer) else { return Ok(()) };
        let peer = &mut self.peers[at];
        if let Some((second, _)) = peer.in_flight.get(1).filter(|second| second.0 != peer.in_flight[0].0) {
            prop_assert!(self.plane.delivered(peer.id, *second).is_err(), "only in order");
        }
        if let Some((handle, (_, bytes))) = peer.in_flight.pop_front() {
            let stored = self.plane.slices(handle).collect::<Vec<_>>().concat();
            prop_assert_eq!(stored, bytes, "what is in flight stays");
            prop_assert!(self.plane.delivered(peer.id, handle).is_ok());
        }
        Ok(())
    }

    /// What is true after every act.
    fn check_state(&self) -> Result<(), TestCaseError> {
        for peer in &self.peers {
            let status = self.plane.peer_status(peer.id).unwrap();
            let waits = (status.waiting, status.bytes_waiting, status.in_flight);
            prop_assert_eq!(waits, (peer.waiting.len(), peer.bytes(), peer.in_flight.len()));
            prop_assert_eq!(status.counters.dropped(), peer.dropped);
            prop_assert_eq!(status.subscriptions as usize, peer.subscriptions.len());
        }
        for (at, channel) in self.channels.iter().enumerate() {
            let blocked = self.peers.iter().filter(|peer| peer.channel == at && peer.blocks).count();
            prop_assert_eq!(self.plane.channel_status(*channel).unwrap().blocked as usize, blocked);
        }
        let messages: std::collections::BTreeSet<(usize, u64)> = self.peers.iter().flat_map(kept).collect();
        prop_assert_eq!(self.plane.occupancy().messages as usize, messages.len());
        Ok(())
    }

    /// Turns serve what waits, in the order of each receiver; then nothing is left.
    fn drain(mut self) -> Result<(), TestCaseError> {
        while let Some(mut turn) = self.plane.next_flow() {
            while let Some(id) = self.plane.next_peer(&turn) {
                let at = self.peers.iter().position(|peer| peer.id == id).unwrap();
                prop_assert!(!self.peers[at].waiting.is_empty());
                self.take(at)?;
                turn.charge(100);
            }
            self.plane.end_turn(turn);
            (0..self.peers.len()).try_for_each(|at| self.deliver(at))?;
        }
        while self.peers.iter().any(|peer| !peer.in_flight.is_empty()) {
            (0..self.peers.len()).try_for_each(|at| self.deliver(at))?;
        }
        let stuck: Vec<usize> = self.peers.iter().map(|peer| peer.waiting.len()).collect();
        if stuck.iter().any(|waiting| *waiting > 0) {
            // The bound of what is in flight ended the turns.
            return self.drain();
        }
        prop_assert_eq!(self.plane.occupancy().blocks_used, 0);
        while !self.peers.is_empty() {
            self.detach(0)?;
        }
        prop_assert_eq!(self.plane.subscription_counts().entries, 0);
        prop_assert_eq!((self.plane.peers(), self.plane.pool_counters().stale_handles), (0, 0));
        prop_assert!(self.plane.next_flow().is_none());
        Ok(())
    }
}

/// The messages that a peer keeps in the pool.
fn kept(peer: &ModelPeer) -> impl Iterator<Item = (usize, u64)> + '_ {
    let in_flight = peer.in_flight.iter().map(|(_, message)| message);
    peer.waiting.iter().chain(in_flight).map(|message| (peer.channel, message.0))
}

fn topic() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop::sample::select(vec![b'a', b'b']), 0..4)
}

fn act() -> impl Strategy<Value = Act> {
    let role = prop::sample::select(vec![Role::Publisher, Role::Subscriber, Role::Both, Role::Both]);
    let peer = 0..PEERS_MAX;
    let len = prop_oneof![4 => 0..200usize, 1 => 800..990usize];
    prop_oneof![
        2 => (0..3usize, role).prop_map(|(channel, role)| Act::Attach(channel, role)),
        1 => peer.clone().prop_map(Act::Detach),
        6 => (peer.clone(), topic()).prop_map(|(peer, prefix)| Act::Subscribe(peer, prefix)),
        3 => (peer.clone(), topic()).prop_map(|(peer, prefix)| Act::Cancel(peer, prefix)),
        16 => (peer.clone(), topic(), len).prop_map(|(peer, topic, len)| Act::Publish(peer, topic, len)),
        10 => peer.clone().prop_map(Act::Take),
        6 => peer.prop_map(Act::Deliver),
    ]
}

proptest! {
    #[test]
    fn acts_in_any_order_give_what_the_model_gives(acts in prop::collection::vec(act(), 1..300)) {
        let mut world = World::new();
        for act in acts {
            world.check(act)?;
            world.check_state()?;
        }
        world.drain()?;
    }
}
