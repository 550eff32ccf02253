//! Paths that divide: outputs that lead to other channels, and paths of single formats that take the place of
//! a path of all, and the reverse, while messages are in them.
#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

use std::collections::VecDeque;

use csp_handlers::OUTPUTS_MAX;
use csp_messages::{
    Budget, ChannelConfig, ChannelId, ChannelKind, FormatId, FullQueue, HashKey, MessagePlane, PathChange,
    PathEntry, PathError, PathId, PathSpec, PathState, PeerId, PlaneConfig, PublishError, QueueLimits, Role,
    Targets,
};
use csp_support::Random;
use csp_types::Instant;

/// Formats of the source's messages.
const FORMATS: u32 = 3;
const QUEUE: QueueLimits = QueueLimits { messages: 4, bytes: 4_000, in_flight: 0 };

struct World {
    plane: MessagePlane,
    source: ChannelId,
    publisher: PeerId,
    /// A subscriber of the source, and of each channel behind an outlet.
    subscribers: Vec<PeerId>,
    derived: Vec<ChannelId>,
    count: u32,
}

impl World {
    fn new(policy: FullQueue, derived: usize) -> Self {
        let mut plane = MessagePlane::new(PlaneConfig::new(HashKey([5, 6]))).unwrap();
        let mut add = |name: &str, policy| {
            let config = ChannelConfig {
                name: name.to_owned(),
                kind: ChannelKind::PublishSubscribe { policy, cache: None },
                budget: Budget { guaranteed: 1 << 20, max: 8 << 20 },
                message_len_max: 1_000,
                queue: QueueLimits { messages: 1_000, ..QueueLimits::default() },
                sequence: false,
            };
            let channel = plane.add_channel(config).unwrap();
            let subscriber = plane.attach(channel, Role::Subscriber).unwrap();
            plane.subscribe(Instant::ZERO, subscriber, b"").unwrap();
            (channel, subscriber)
        };
        let (source, first) = add("source", policy);
        let (derived, mut subscribers): (Vec<_>, Vec<_>) =
            (0..derived).map(|at| add(&format!("derived-{at}"), FullQueue::DropNewest)).unzip();
        subscribers.insert(0, first);
        let publisher = plane.attach(source, Role::Publisher).unwrap();
        for channel in &derived {
            plane.activate_path(Instant::ZERO, PathSpec::chain(*channel, &[("forward", 0, "")])).unwrap();
        }
        World { plane, source, publisher, subscribers, derived, count: 0 }
    }

    /// Publishes the next message of a format: its number is what subscribers compare.
    fn publish(&mut self, format: u32) -> Result<u32, PublishError> {
        let bytes = [&[format as u8][..], &(self.count + 1).to_le_bytes()].concat();
        let parts = std::iter::once(&bytes[..]);
        let format = FormatId(format);
        self.plane.publish_as(Instant::ZERO, self.publisher, format, &[5], parts)?;
        self.count += 1;
        Ok(self.count)
    }

    fn turn(&mut self) -> bool {
        while self.plane.next_resumed(None).is_some() {}
        let Some(mut turn) = self.plane.next_flow() else { return false };
        if self.plane.is_context(&turn) {
            self.plane.run_context(Instant::ZERO, &mut turn, None, None);
        }
        self.plane.end_turn(turn);
        true
    }

    fn run(&mut self) {
        (0..1_000).for_each(|_| _ = self.turn());
    }

    /// The numbers of the messages that a subscriber has now, with their formats.
    fn receive(&mut self, subscriber: usize) -> Vec<(u8, u32)> {
        let (subscriber, mut received) = (self.subscribers[subscriber], Vec::new());
        while let Some(delivery) = self.plane.next_delivery(Instant::ZERO, subscriber) {
            let bytes = self.plane.slices(delivery.handle).collect::<Vec<_>>().concat();
            received.push((bytes[0], u32::from_le_bytes(bytes[1..5].try_into().unwrap())));
            self.plane.delivered(subscriber, delivery.handle).unwrap();
        }
        received
    }

    /// A path that divides by `multicast`: to a second stage with an outlet, to another outlet, and to
    /// receivers.
    fn divided(&self) -> PathSpec {
        let stages = [("multicast", 0, "3"), ("drop-every", 1, "2")];
        let outlets = self.derived.clone();
        let mut spec = PathSpec { queue: QUEUE, outlets, ..PathSpec::chain(self.source, &stages) };
        spec.stages[0].outputs = vec![Targets::stage(1), Targets::outlet(1), Targets::RECEIVERS];
        spec.stages[0].outputs.resize(OUTPUTS_MAX.into(), Targets::NONE);
        spec.stages[1].outputs = vec![Targets::outlet(0)];
        spec
    }
}

#[test]
fn outputs_of_a_path_lead_to_other_channels() {
    let mut w = World::new(FullQueue::DropNewest, 2);
    w.plane.activate_path(Instant::ZERO, w.divided()).unwrap();
    for _ in 0..4 {
        w.publish(1).unwrap();
    }
    w.run();
    let received = [0, 1, 2].map(|at| w.receive(at).iter().map(|(_, number)| *number).collect::<Vec<_>>());
    assert_eq!(received, [vec![1, 2, 3, 4], vec![1, 3], vec![1, 2, 3, 4]]);
    assert_eq!(w.plane.occupancy().blocks_used, 0);
    // The derived channels number what they have got themselves.
    let published = w.derived.clone().into_iter().map(|channel| w.plane.channel_status(channel).unwrap());
    assert_eq!(published.map(|status| status.counters.published).collect::<Vec<_>>(), [2, 4]);
}

#[test]
fn an_outlet_without_a_channel_discards() {
    let mut w = World::new(FullQueue::DropNewest, 2);
    let path = w.plane.activate_path(Instant::ZERO, w.divided()).unwrap();
    w.plane.set_outlets(path, Vec::new());
    w.publish(1).unwrap();
    w.run();
    assert_eq!([0, 1, 2].map(|at| w.receive(at).len()), [1, 0, 0]);
    assert_eq!(w.plane.occupancy().blocks_used, 0);
}

/// Messages of a replaced path may leave by an outlet whose channel is gone: they are lost, and counted.
#[test]
fn what_an_outlet_of_a_removed_channel_discards_is_counted() {
    let mut w = World::new(FullQueue::DropNewest, 2);
    w.plane.activate_path(Instant::ZERO, w.divided()).unwrap();
    w.publish(1).unwrap();
    w.plane.remove_channel(w.derived[1]).unwrap();
    w.publish(1).unwrap();
    w.run();
    assert_eq!([0, 1].map(|at| w.receive(at).len()), [2, 1]);
    assert_eq!(w.plane.channel_status(w.source).unwrap().counters.dropped_path, 2);
    assert_eq!(w.plane.occupancy().blocks_used, 0);
}

#[test]
fn what_no_path_takes_reaches_no_outlet() {
    let mut w = World::new(FullQueue::DropNewest, 2);
    let spec = PathSpec { format: Some(FormatId(1)), ..w.divided() };
    w.plane.activate_path(Instant::ZERO, spec).unwrap();
    w.publish(2).unwrap();
    w.run();
    assert_eq!([0, 1, 2].map(|at| w.receive(at).len()), [1, 0, 0]);
}

#[test]
fn a_channel_whose_paths_overlap_keeps_those_that_it_has() {
    let mut w = World::new(FullQueue::DropNewest, 0);
    let spec = |format: Option<u32>| PathSpec {
        format: format.map(FormatId),
        ..PathSpec::chain(w.source, &[("forward", 0, "")])
    };
    let id = w.plane.activate_path(Instant::ZERO, spec(None)).unwrap();
    for wanted in [[Some(1), Some(1)], [Some(1), None]] {
        let wanted = wanted.map(|format| PathChange::New(spec(format)));
        let error = w.plane.replace_paths(Instant::ZERO, w.source, wanted.into()).unwrap_err();
        assert_eq!(error, PathError::Overlap);
    }
    let kept = w.plane.replace_paths(Instant::ZERO, w.source, vec![PathChange::Keep(id)]).unwrap();
    assert_eq!((kept, w.plane.paths().len()), (vec![id], 1));
}

/// Which paths the source has.
#[derive(Clone, Default)]
struct Shape {
    all: bool,
    formats: [Option<PathId>; FORMATS as usize],
}

/// Changes the paths to others at random: none, one of all formats, or some of single ones, of which some
/// stay.
fn change(w: &mut World, shape: &mut Shape, entry: PathEntry, random: &mut Random) {
    let chain = |w: &World, random: &mut Random| {
        let stages: Vec<(&str, u16, &str)> =
            (0..=random.below(2)).map(|_| ("forward", random.below(3) as u16, "")).collect();
        PathSpec { queue: QUEUE, ..PathSpec::chain(w.source, &stages) }
    };
    let (mut wanted, mut keys) = (Vec::new(), Vec::new());
    let all = random.below(3) == 0;
    if all {
        wanted.push(PathChange::New(PathSpec { entry, ..chain(w, random) }));
    } else {
        for format in 0..FORMATS {
            match (random.below(3), shape.formats[format as usize]) {
                (0, Some(id)) => wanted.push(PathChange::Keep(id)),
                (0 | 1, _) => {
                    let spec = PathSpec { format: Some(FormatId(format)), ..chain(w, random) };
                    wanted.push(PathChange::New(spec));
                }
                _ => continue,
            }
            keys.push(format as usize);
        }
    }
    // Paths that wait for each other may use up the table: then nothing has changed.
    let Ok(ids) = w.plane.replace_paths(Instant::ZERO, w.source, wanted) else { return };
    *shape = Shape { all, ..Shape::default() };
    keys.into_iter().zip(ids).for_each(|(format, id)| shape.formats[format] = Some(id));
}

#[test]
fn paths_of_formats_and_a_path_of_all_replace_each_other_without_loss() {
    let (mut received, mut both) = (0, [0, 0]);
    for seed in 0..300 {
        println!("seed {seed}");
        let (mut random, mut shape) = (Random::new(seed), Shape::default());
        let mut w = World::new(FullQueue::Block, 0);
        // The first format is the unknown one.
        let entry = if seed % 2 == 0 { PathEntry::All } else { PathEntry::Known };
        let mut expected: [VecDeque<u32>; FORMATS as usize] = Default::default();
        for _ in 0..600 {
            match random.below(20) {
                0..10 => {
                    let format = random.below(FORMATS.into()) as u32;
                    if let Ok(number) = w.publish(format) {
                        expected[format as usize].push_back(number);
                    }
                }
                10 => {
                    change(&mut w, &mut shape, entry, &mut random);
                    both[usize::from(shape.all)] += 1;
                }
                11..17 => _ = w.turn(),
                _ => received += take(&mut w, &mut expected),
            }
        }
        w.run();
        received += take(&mut w, &mut expected);
        assert!(expected.iter().all(VecDeque::is_empty), "lost, or stuck: {:#?}", w.plane.paths());
        assert!(w.plane.paths().iter().all(|path| path.state == PathState::Active), "{:#?}", w.plane.paths());
        assert_eq!(w.plane.occupancy().blocks_used, 0);
    }
    assert!(received > 30_000 && both[0] > 3_000 && both[1] > 1_500, "{received} {both:?}");
}

/// Receives what there is: of each format in order.
fn take(w: &mut World, expected: &mut [VecDeque<u32>; FORMATS as usize]) -> usize {
    let received = w.receive(0);
    for (format, number) in &received {
        assert_eq!(expected[usize::from(*format)].pop_front(), Some(*number), "format {format}");
    }
    received.len()
}

#[test]
fn a_divided_path_is_replaced_under_traffic_and_no_output_loses_a_message() {
    let mut w = World::new(FullQueue::Block, 2);
    let (mut random, mut published) = (Random::new(1), 0);
    let mut received = [0, 0, 0].map(|_: u32| Vec::new());
    w.plane.activate_path(Instant::ZERO, w.divided()).unwrap();
    let mut replaced = 0;
    while published < 20_000 {
        match random.below(40) {
            0 => {
                // Other handlers at the same places, and the same ones in another context.
                let mut spec = w.divided();
                spec.stages[1].context = random.below(4) as u16;
                replaced += u32::from(w.plane.activate_path(Instant::ZERO, spec).is_ok());
            }
            1..20 => published += u32::from(w.publish(0).is_ok()),
            20..32 => _ = w.turn(),
            _ => {
                for (at, received) in received.iter_mut().enumerate() {
                    received.extend(w.receive(at).into_iter().map(|(_, number)| number));
                }
            }
        }
    }
    w.run();
    for (at, received) in received.iter_mut().enumerate() {
        received.extend(w.receive(at).into_iter().map(|(_, number)| number));
    }
    let all: Vec<u32> = (1..=published).collect();
    // `drop-every` goes on with its count.
    let odd: Vec<u32> = (1..=published).step_by(2).collect();
    assert!(received == [all.clone(), odd, all], "{:?}", received.map(|received| received.len()));
    let dropped =
        w.derived.iter().map(|channel| w.plane.channel_status(*channel).unwrap().counters.dropped_path);
    assert_eq!(dropped.sum::<u64>(), 0);
    assert!(replaced > 300, "{replaced}");
}
