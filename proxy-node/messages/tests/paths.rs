//! Paths beside a plain model: random paths, changed between messages, with full queues and little memory.
//! Nothing is lost, doubled or out of order but what counters say.
#![allow(clippy::unwrap_used, reason = "a test")]

mod chains;

use std::collections::VecDeque;

use chains::elsewhere::{self, Elsewhere};
use chains::{Chain, deploy};
use csp_messages::{
    Budget, ChannelConfig, ChannelId, ChannelKind, FormatId, FullQueue, HashKey, MessagePlane, PathChange,
    PathId, PathSpec, PathState, PeerId, PlaneConfig, PoolConfig, PublishError, QueueLimits, Role,
    SubscriptionsConfig,
};
use csp_support::Random;
use csp_types::Instant;

const BLOCK: u32 = 64;
const FORMATS: u32 = 2;
/// Marks of receivers whose publishers are held back, and of all paths.
const SMALL: QueueLimits = QueueLimits { messages: 5, bytes: 900, in_flight: 2 };

/// A channel with one receiver, and what the model expects it to receive, by format.
struct World {
    plane: MessagePlane,
    channel: ChannelId,
    publisher: PeerId,
    receiver: PeerId,
    chains: Vec<(Option<PathId>, Chain)>,
    expected: Vec<VecDeque<Vec<u8>>>,
    parked: bool,
    count: u32,
    dropped: u64,
    held: u64,
    received: u64,
    replaced: u64,
    /// A context that is remote, in some runs.
    elsewhere: Option<Elsewhere>,
}

fn kinds() -> [ChannelKind; 3] {
    let publish = |policy| ChannelKind::PublishSubscribe { policy, cache: None };
    [publish(FullQueue::DropNewest), publish(FullQueue::Block), ChannelKind::PushPull { backlog: SMALL }]
}

impl World {
    fn new(kind: ChannelKind) -> Self {
        let pool = PoolConfig { block_len: BLOCK, blocks: 20_000 };
        let subscriptions =
            SubscriptionsConfig { topic_len_max: 32, entries_max: 100, nodes_max: 100, ..Default::default() };
        let config = PlaneConfig::new(HashKey([3, 5]));
        let config = PlaneConfig { pool, subscriptions, peers_max: 4, channels_max: 2, ..config };
        let mut plane = MessagePlane::new(config).unwrap();
        deploy(plane.handlers_mut());
        let drops = matches!(kind, ChannelKind::PublishSubscribe { policy: FullQueue::DropNewest, .. });
        // A receiver of the channel that drops has room for all, so that only paths drop.
        let (queue, blocks) = match drops {
            true => (QueueLimits { messages: 5_000, bytes: 1 << 30, in_flight: 2 }, 19_000),
            false => (SMALL, 60),
        };
        let bytes = u64::from(BLOCK) * blocks;
        let budget = Budget { guaranteed: bytes, max: bytes };
        let config =
            ChannelConfig { name: "c".into(), kind, budget, message_len_max: 400, queue, sequence: false };
        let channel = plane.add_channel(config).unwrap();
        let push = matches!(kind, ChannelKind::PushPull { .. });
        let roles = if push { (Role::Pusher, Role::Puller) } else { (Role::Publisher, Role::Subscriber) };
        let (publisher, receiver) =
            (plane.attach(channel, roles.0).unwrap(), plane.attach(channel, roles.1).unwrap());
        if !push {
            plane.subscribe(Instant::ZERO, receiver, b"").unwrap();
        }
        let formats = FORMATS as usize;
        World {
            plane,
            channel,
            publisher,
            receiver,
            chains: (0..formats).map(|_| (None, Chain::default())).collect(),
            expected: vec![VecDeque::new(); formats],
            parked: false,
            count: 0,
            dropped: 0,
            held: 0,
            received: 0,
            replaced: 0,
            elsewhere: None,
        }
    }

    fn act(&mut self, random: &mut Random) {
        match random.below(100) {
            0..50 => self.publish(random),
            50..54 => self.replace(random),
            54..56 => self.remove(random),
            56..58 => self.park(random.below(3) == 0),
            58..78 => _ = self.turn(random.below(3) as usize + 1),
            78..80 => self.lose(),
            _ => _ = self.receive(random.below(8) as usize),
        }
    }

    fn publish(&mut self, random: &mut Random) {
        let format = random.below(u64::from(FORMATS)) as usize;
        self.count += 1;
        let len = if random.below(8) == 0 { random.below(200) } else { random.below(30) } as usize;
        let mut bytes = vec![format as u8];
        bytes.extend_from_slice(&self.count.to_le_bytes());
        bytes.resize(5 + len, self.count as u8);
        let frames = [5, len as u32];
        let id = FormatId(format as u32);
        match self.plane.publish_as(Instant::ZERO, self.publisher, id, &frames, bytes.chunks(7)) {
            Ok(published) if published.dropped > 0 => self.dropped += 1,
            Ok(_) => self.expected[format].extend(self.chains[format].1.pass(bytes)),
            Err(PublishError::Held) => self.held += 1,
            Err(error) => panic!("{error}"),
        }
    }

    fn replace(&mut self, random: &mut Random) {
        let format = random.below(u64::from(FORMATS)) as usize;
        let chain = Chain::random(random);
        let mut spec = PathSpec::chain(self.channel, &chain.stages());
        (spec.format, spec.queue) = (Some(FormatId(format as u32)), SMALL);
        spec.keeps_state = random.below(4) > 0;
        let keeps = spec.keeps_state;
        // Paths that are replaced and wait for a parked receiver may use up the table.
        let Ok(id) = self.plane.activate_path(Instant::ZERO, spec) else { return };
        let old = std::mem::replace(&mut self.chains[format], (Some(id), chain));
        if keeps {
            self.chains[format].1.take_over(&old.1);
        }
        self.replaced += 1;
    }

    fn remove(&mut self, random: &mut Random) {
        let format = random.below(u64::from(FORMATS)) as usize;
        if self.chains[format].0.is_none() {
            return;
        }
        let others = self.chains.iter().enumerate().filter(|(at, _)| *at != format);
        let kept = others.filter_map(|(_, (id, _))| id.map(PathChange::Keep)).collect();
        if self.plane.replace_paths(Instant::ZERO, self.channel, kept).is_ok() {
            self.chains[format] = (None, Chain::default());
        }
    }

    fn park(&mut self, parked: bool) {
        self.parked = parked;
        self.plane.set_parked(self.receiver, parked);
    }

    fn go_elsewhere(&mut self) {
        assert!(self.plane.set_remote(elsewhere::CONTEXT, 3));
        self.elsewhere = Some(Elsewhere::default());
    }

    fn lose(&mut self) {
        if let Some(elsewhere) = &mut self.elsewhere {
            elsewhere.lose(&mut self.plane);
        }
    }

    /// Runs contexts for some turns. Turns of the channel are ended at once.
    fn turn(&mut self, turns: usize) -> u32 {
        let mut done = 0;
        while self.plane.next_resumed(None).is_some() {}
        for _ in 0..turns {
            let Some(mut turn) = self.plane.next_flow() else { break };
            if self.plane.is_context(&turn) {
                done += self.plane.run_context(Instant::ZERO, &mut turn, None, None);
            }
            self.plane.end_turn(turn);
        }
        if let Some(elsewhere) = &mut self.elsewhere {
            elsewhere.fetch(&mut self.plane);
            done += elsewhere.answer(&mut self.plane, turns, None) as u32;
        }
        done
    }

    fn receive(&mut self, most: usize) -> usize {
        for done in 0..most {
            let Some(delivery) = self.plane.next_delivery(Instant::ZERO, self.receiver) else { return done };
            let bytes = self.plane.slices(delivery.handle).collect::<Vec<_>>().concat();
            let expected = self.expected[usize::from(bytes[0])].pop_front();
            assert_eq!(Some(&bytes), expected.as_ref(), "message {}", self.received);
            self.plane.delivered(self.receiver, delivery.handle).unwrap();
            self.received += 1;
        }
        most
    }

    /// Everything that was published is received, and nothing is left.
    fn finish(mut self) -> Self {
        self.park(false);
        loop {
            let (processed, received) = (self.turn(64), self.receive(100));
            if processed == 0 && received == 0 && !self.plane.contexts_have_work() {
                break;
            }
        }
        let left = self.expected.iter().map(VecDeque::len).sum::<usize>();
        assert_eq!(left, 0, "lost, or stuck: {:#?} {:?}", self.plane.paths(), self.plane.occupancy());
        assert_eq!((self.plane.occupancy().blocks_used, self.plane.pool_counters().stale_handles), (0, 0));
        let paths = self.plane.paths();
        assert!(paths.iter().all(|path| path.state == PathState::Active), "{paths:?}");
        let status = self.plane.channel_status(self.channel).unwrap();
        assert_eq!(status.counters.dropped_path, self.dropped);
        let bad = |path: &csp_messages::PathStatus| {
            let counters = &path.counters;
            counters.dropped_invalid + counters.dropped_ignored + counters.dropped_faults + counters.lost
        };
        assert_eq!(paths.iter().map(bad).sum::<u64>(), 0);
        self
    }
}

fn seeds() -> std::ops::Range<u64> {
    match std::env::var("CSP_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..300,
    }
}

#[test]
fn paths_that_change_give_what_the_model_gives() {
    for kind in kinds() {
        let (mut received, mut dropped, mut held, mut replaced, mut answered) = (0, 0, 0, 0, 0);
        for seed in seeds() {
            println!("CSP_SEED={seed} {kind:?}");
            let (mut random, mut world) = (Random::new(seed), World::new(kind));
            if seed % 2 == 1 {
                world.go_elsewhere();
            }
            (0..600).for_each(|_| world.act(&mut random));
            let world = world.finish();
            received += world.received;
            dropped += world.dropped;
            held += world.held;
            replaced += world.replaced;
            answered += world.elsewhere.map_or(0, |elsewhere| elsewhere.answered);
        }
        println!("{kind:?}: {received} received, {dropped} dropped, {held} held, {replaced} replaced");
        if seeds().count() > 1 {
            let drops = matches!(kind, ChannelKind::PublishSubscribe { policy: FullQueue::DropNewest, .. });
            assert!(
                received > 10_000 && replaced > 1_000 && answered > 1_000,
                "the test has worked: {answered}"
            );
            assert_eq!((dropped > 100, held > 100), (drops, !drops), "{dropped} dropped, {held} held");
        }
    }
}
