//! Information flows in the plane, on virtual time: shares and promises at the link and at contexts, order,
//! switches by a new generation, and that nothing is lost but by a counted action of a flow.
#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod contexts;
#[path = "../chains/elsewhere.rs"]
#[allow(dead_code, reason = "paths lose a context elsewhere, flows do not")]
mod elsewhere;
mod fields;
mod traces;
mod world;

use std::sync::Arc;

use csp_messages::{Budget, ChannelConfig, ChannelKind, FullQueue, QueueLimits, Role};
use csp_quality::{Board, FlowSpec, FlowStatus, Overflow, Scheme, SharedLinkConfig, dynamic_adaptation};
use csp_support::Random;
use csp_types::Duration;
use world::{LINK, World, at, seconds, seeds, spec};

#[test]
fn without_flows_all_leaves_at_once() {
    let mut world = World::new(&[33_000_000, 33_000_000, 33_000_000], FullQueue::DropNewest);
    world.run(seconds(0.2));
    assert!(world.link.status(world.now).is_none() && world.link.due().is_none());
    assert!(world.pairs.iter().all(|pair| pair.received.len() as u64 == pair.sent && pair.sent > 500));
}

/// Fig. 3 and Fig. 4 of the paper, a tenth of its rates.
#[test]
fn promises_hold_in_every_window_and_the_rest_goes_by_priority() {
    for (rates, scheme, expected) in [
        ([33, 33, 33], Scheme::RoundRobin, [16.7, 16.7, 16.7]),
        ([33, 33, 33], Scheme::PriorityAware, [8.5, 33.0, 8.5]),
        ([33, 33, 33], Scheme::PriorityAwareReserved, [8.5, 33.0, 8.5]),
        ([15, 70, 15], Scheme::PriorityAware, [0.0, 50.0, 0.0]),
        ([15, 70, 15], Scheme::PriorityAwareReserved, [5.0, 40.0, 5.0]),
        ([15, 70, 15], Scheme::EqualStatic, [12.5, 12.5, 12.5]),
    ] {
        let mut world = World::new(&rates.map(|rate| rate * 1_000_000), FullQueue::DropNewest);
        world.set_flows(vec![spec("a", 0, 0, 5), spec("b", 1, 9, 20), spec("c", 2, 0, 5)], scheme, |_| {
            Vec::new()
        });
        world.run(seconds(1.5));
        let seen = [0, 1, 2].map(|flow| world.mbps(flow, at(0.5), at(1.5)));
        for (seen, expected) in seen.iter().zip(expected) {
            assert!(
                (seen - expected).abs() <= 0.6 + expected * 0.05,
                "{scheme:?} {rates:?}: {seen:?}, not {expected:?}"
            );
        }
        let used: f64 = seen.iter().sum();
        if !scheme.is_static() {
            assert!(
                used >= 0.99 * LINK as f64 / 1e6,
                "{scheme:?} {rates:?}: {used} Mb/s of the link are used"
            );
        }
        if scheme == Scheme::PriorityAwareReserved {
            for (flow, promise) in [(0, 5.0), (1, 20.0), (2, 5.0)] {
                let windows = (5..15).map(|tenth| f64::from(tenth) / 10.0);
                let least =
                    windows.map(|from| world.mbps(flow, at(from), at(from + 0.1))).fold(f64::MAX, f64::min);
                assert!(
                    least >= promise * 0.999,
                    "{rates:?}: flow {flow} had {least} of {promise} Mb/s in a window"
                );
            }
        }
        world.assert_in_order();
    }
}

#[test]
fn a_critical_flow_leaves_first_and_waits_least() {
    let mut world = World::new(&[60_000_000, 10_000_000], FullQueue::DropNewest);
    world.set_flows(
        vec![spec("bulk", 0, 0, 0), spec("gates", 1, 9, 12)],
        Scheme::PriorityAwareReserved,
        |_| Vec::new(),
    );
    world.run(seconds(1.0));
    let (bulk, gates) = (world.status("bulk"), world.status("gates"));
    let mean = |flow: &FlowStatus| flow.delay_sum.as_secs_f64() / flow.counters.released as f64;
    assert_eq!(gates.counters.dropped_newest, 0);
    assert!(bulk.counters.dropped_newest > 0);
    assert!(mean(&gates) < 1e-3 && mean(&bulk) > 10e-3, "{} {}", mean(&gates), mean(&bulk));
    assert!(gates.queued.0 <= 2, "{:?}", gates.queued);
}

#[test]
fn a_flow_that_holds_loses_nothing_and_holds_only_its_own_publishers() {
    let mut world = World::new(&[60_000_000, 10_000_000], FullQueue::DropNewest);
    let bulk = FlowSpec { overflow: Overflow::Hold, ..spec("bulk", 0, 0, 0) };
    world.set_flows(vec![bulk, spec("gates", 1, 9, 12)], Scheme::PriorityAwareReserved, |_| Vec::new());
    world.run(seconds(1.0));
    let (bulk, gates) = (world.status("bulk"), world.status("gates"));
    assert!(bulk.counters.held > 100, "{bulk:?}");
    assert_eq!((bulk.counters.dropped_newest, gates.counters.dropped_newest, gates.counters.held), (0, 0, 0));
    assert_eq!(world.pairs[0].sent, world.pairs[0].received.len() as u64 + u64::from(bulk.queued.0));
    assert!((world.mbps(0, at(0.2), at(1.0)) - 40.0).abs() < 1.0);
}

#[test]
fn a_receiver_that_holds_back_stops_its_flow_and_no_other() {
    let mut world = World::new(&[60_000_000, 20_000_000], FullQueue::Block);
    world.set_flows(vec![spec("slow", 0, 9, 0), spec("quick", 1, 0, 0)], Scheme::PriorityAware, |_| {
        Vec::new()
    });
    world.plane.set_parked(world.pairs[0].subscriber, true);
    world.run(seconds(1.0));
    let (slow, quick) = (world.status("slow"), world.status("quick"));
    assert!(slow.blocked && !quick.blocked);
    assert!(slow.queued.0 > 50, "only the first message was released: {slow:?}");
    assert!((world.mbps(1, at(0.5), at(1.0)) - 20.0).abs() < 0.5);
    world.plane.set_parked(world.pairs[0].subscriber, false);
    world.pairs.iter_mut().for_each(|pair| pair.rate = 0);
    world.run(seconds(1.0));
    assert!(!world.status("slow").blocked);
    let dropped = world.status("slow").counters.dropped_newest;
    assert_eq!(world.pairs[0].sent, world.pairs[0].received.len() as u64 + dropped);
    world.assert_in_order();
}

#[test]
fn dynamic_adaptation_protects_a_surge_and_gives_back() {
    let mut world = World::new(&[17_000_000, 17_000_000, 17_000_000], FullQueue::DropNewest);
    let flows = vec![spec("a", 0, 0, 4), spec("b", 1, 9, 20), spec("c", 2, 0, 4)];
    world.set_flows(flows, Scheme::RoundRobin, |table| {
        vec![dynamic_adaptation(table.id("b").unwrap(), 25_000_000, 15_000_000, Duration::from_millis(50))]
    });
    let scheme = |world: &mut World| world.link.status(world.now).unwrap().0.scheme;
    world.run(seconds(0.5));
    assert_eq!(scheme(&mut world), Scheme::RoundRobin);
    world.pairs[1].rate = 40_000_000;
    world.run(seconds(0.5));
    assert_eq!(scheme(&mut world), Scheme::PriorityAwareReserved);
    assert!(world.mbps(1, at(0.6), at(1.0)) >= 39.5);
    // A generation that changes nothing of the link leaves what the trigger has done.
    let same = world.last.clone().unwrap();
    world.link.share(world.now, same).unwrap();
    assert_eq!(scheme(&mut world), Scheme::PriorityAwareReserved);
    world.pairs[1].rate = 10_000_000;
    world.run(seconds(0.5));
    assert_eq!(scheme(&mut world), Scheme::RoundRobin);
    let names: Vec<bool> =
        std::iter::from_fn(|| world.link.next_fired()).map(|(_, change)| change.fired).collect();
    assert_eq!(names, [true, false]);
}

/// New generations with other schemes, priorities, promises and flows while traffic runs; at the end there
/// are none.
#[test]
fn generations_change_while_traffic_runs_and_nothing_is_lost_or_reordered() {
    for seed in seeds() {
        let mut random = Random::new(seed);
        let rates: Vec<u64> = (0..4).map(|_| (5 + random.below(30)) * 1_000_000).collect();
        let mut world = World::new(&rates, FullQueue::DropNewest);
        let mut promised = 0;
        for _ in 0..12 {
            let chosen: Vec<u32> = (0..4).filter(|_| random.below(4) > 0).collect();
            let flows = chosen.into_iter().map(|number| {
                let overflow = [Overflow::Hold, Overflow::DropNewest, Overflow::DropOldest];
                let mut flow =
                    spec(&format!("flow-{number}"), number, random.below(4) as u8, random.below(8));
                flow.overflow = overflow[random.below(3) as usize];
                flow.bounds.items = 1 + random.below(200) as u32;
                promised += u64::from(flow.reservation.bits_per_second > 0);
                flow
            });
            let flows: Vec<FlowSpec> = flows.collect();
            let scheme = Scheme::ALL[random.below(5) as usize];
            match random.below(8) {
                0 => world.end_flows(),
                _ => world.set_flows(flows, scheme, |_| Vec::new()),
            }
            world.run(Duration::from_micros(1 + random.below(60_000)));
        }
        world.pairs.iter_mut().for_each(|pair| pair.rate = 0);
        world.end_flows();
        world.run(Duration::from_millis(1));
        world.assert_in_order();
        for pair in &world.pairs {
            let status = world.plane.channel_status(pair.channel).unwrap();
            let dropped = status.counters.dropped_flow;
            assert_eq!(
                pair.sent,
                pair.received.len() as u64 + dropped,
                "seed {seed}: a message of {} is lost",
                pair.number
            );
            assert_eq!(world.plane.waiting_in_flows(pair.channel), 0);
        }
        assert_eq!(world.plane.occupancy().messages, 0, "seed {seed}: a message is not released");
        assert!(promised > 0);
    }
}

#[test]
fn a_channel_that_is_removed_leaves_nothing_to_the_next_in_its_place() {
    let mut world = World::new(&[40_000_000, 40_000_000], FullQueue::DropNewest);
    world.set_flows(vec![spec("a", 0, 0, 0), spec("b", 1, 0, 0)], Scheme::RoundRobin, |_| Vec::new());
    world.run(seconds(0.2));
    let waiting = world.plane.waiting_in_flows(world.pairs[0].channel);
    assert!(waiting > 10);
    let lost = world.plane.remove_channel(world.pairs[0].channel).unwrap().lost;
    assert_eq!(lost, waiting as u64);
    let config = ChannelConfig {
        name: "next".to_owned(),
        kind: ChannelKind::PublishSubscribe { policy: FullQueue::DropNewest, cache: None },
        budget: Budget { guaranteed: 1 << 20, max: 16 << 20 },
        message_len_max: 4_096,
        queue: QueueLimits::default(),
        sequence: false,
    };
    let next = world.plane.add_channel(config).unwrap();
    assert_eq!(next.index, world.pairs[0].channel.index);
    let subscriber = world.plane.attach(next, Role::Subscriber).unwrap();
    world.plane.subscribe(world.now, subscriber, b"").unwrap();
    let gone = world.pairs.remove(0);
    world.run(seconds(0.5));
    assert_eq!(world.plane.peer_status(subscriber).unwrap().counters.queued, 0);
    drop(gone);
    world.pairs[0].rate = 0;
    world.run(seconds(0.5));
    assert_eq!(world.plane.occupancy().messages, 0);
}

#[test]
fn workers_share_a_link_by_what_they_want() {
    let board = Arc::new(Board::new(2));
    let mut worlds: Vec<World> =
        [40_000_000, 40_000_000].iter().map(|rate| World::new(&[*rate], FullQueue::DropNewest)).collect();
    for (number, world) in worlds.iter_mut().enumerate() {
        world.set_flows(vec![spec("a", 0, 0, 0)], Scheme::RoundRobin, |_| Vec::new());
        let config = world.last.clone().unwrap();
        let other = SharedLinkConfig { board: (Arc::clone(&board), number), ..config };
        world.link.share(world.now, other).unwrap();
    }
    let run = |worlds: &mut Vec<World>, time: f64| {
        let until = worlds[0].now + seconds(time);
        while worlds[0].now < until {
            worlds.iter_mut().for_each(World::turn);
        }
    };
    run(&mut worlds, 1.0);
    let both: Vec<f64> = worlds.iter().map(|world| world.mbps(0, at(0.5), at(1.0))).collect();
    assert!(both.iter().all(|mbps| (mbps - 25.0).abs() < 1.0), "{both:?}");
    worlds[1].pairs[0].rate = 0;
    run(&mut worlds, 1.0);
    let alone = worlds[0].mbps(0, at(1.5), at(2.0));
    assert!((alone - 40.0).abs() < 1.0, "{alone}: what the other does not want is free");
    // Who comes back has its part at once, however long it was away, while the other one goes on.
    run(&mut worlds, 3.0);
    worlds[1].pairs[0].rate = 40_000_000;
    run(&mut worlds, 1.0);
    let again: Vec<f64> = worlds.iter().map(|world| world.mbps(0, at(5.1), at(6.0))).collect();
    assert!(again.iter().all(|mbps| (mbps - 25.0).abs() < 1.0), "{again:?}");
}

#[test]
fn a_backlog_that_receivers_hold_back_wants_nothing_of_the_link() {
    let board = Arc::new(Board::new(2));
    let mut worlds: Vec<World> =
        [40_000_000, 40_000_000].iter().map(|rate| World::new(&[*rate], FullQueue::Block)).collect();
    for (number, world) in worlds.iter_mut().enumerate() {
        world.set_flows(vec![spec("a", 0, 0, 0)], Scheme::RoundRobin, |_| Vec::new());
        let config = world.last.clone().unwrap();
        let other = SharedLinkConfig { board: (Arc::clone(&board), number), ..config };
        world.link.share(world.now, other).unwrap();
    }
    // The receiver of one worker takes nothing: its flow is full and waits for it.
    let subscriber = worlds[0].pairs[0].subscriber;
    worlds[0].plane.set_parked(subscriber, true);
    while worlds[0].now < at(1.0) {
        worlds.iter_mut().for_each(World::turn);
    }
    assert!(worlds[0].status("a").blocked && worlds[0].status("a").queued.0 > 100);
    let other = worlds[1].mbps(0, at(0.5), at(1.0));
    assert!(other >= 39.5, "{other}: what waits for receivers is no reason to leave the link idle");
}

#[test]
fn a_publisher_that_a_former_flow_held_back_goes_on_with_the_next() {
    let mut world = World::new(&[30_000_000, 90_000_000], FullQueue::DropNewest);
    let holds = |name: &str, number, priority| FlowSpec {
        overflow: Overflow::Hold,
        ..spec(name, number, priority, 0)
    };
    // The first flow never has its turn, so that it is full and stays so.
    world.set_flows(vec![holds("first", 0, 0), spec("top", 1, 9, 0)], Scheme::PriorityAware, |_| Vec::new());
    world.run(seconds(0.3));
    assert!(world.pairs[0].held && world.status("first").queued.0 == 256);
    let before = world.pairs[0].sent;
    // It keeps its name and its messages, but the publisher's next ones are another flow's.
    let flows = vec![holds("first", 7, 0), spec("top", 1, 9, 0), holds("second", 0, 20)];
    world.set_flows(flows, Scheme::PriorityAware, |_| Vec::new());
    world.run(seconds(0.1));
    assert_eq!(world.status("first").queued.0, 256);
    assert!(world.pairs[0].sent > before + 200, "{} after {before}", world.pairs[0].sent);
}
