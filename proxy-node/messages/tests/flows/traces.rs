//! Traces of messages that wait in the queues of flows.

use csp_messages::{CopyState, FullQueue, PathSpec, TraceId, TraceRequest};
use csp_quality::{FlowSpec, Overflow, Scheme};
use csp_types::Instant;

use crate::world::{LEN, World, at, seconds, spec};

const QUEUED_MAX: u32 = 4;

/// Two channels, each with a flow of which four messages may wait; nobody sends by itself.
fn world(overflow: Overflow) -> World {
    let mut world = World::new(&[0, 0], FullQueue::DropNewest);
    let flow = |name: &str, number| {
        let mut spec = FlowSpec { overflow, ..spec(name, number, 0, 0) };
        spec.bounds.items = QUEUED_MAX;
        spec
    };
    world.set_flows(vec![flow("a", 0), flow("b", 1)], Scheme::RoundRobin, |_| Vec::new());
    world.run(seconds(0.01));
    world
}

fn arm(world: &mut World, messages: usize) -> TraceId {
    let request = TraceRequest { messages, topic: b"", until: at(100.0), clock: || Instant::ZERO };
    world.plane.arm_trace(world.now, world.pairs[0].channel, request).unwrap()
}

/// What has become of the one copy of each message.
fn states(world: &World, id: TraceId) -> Vec<CopyState> {
    let only = |message: &csp_messages::TracedMessage| {
        let [copy] = &message.copies[..] else { panic!("{message:?}") };
        assert_eq!(copy.peer, world.pairs[0].subscriber);
        copy.state
    };
    world.plane.traced(id).unwrap().map(only).collect()
}

#[test]
fn a_message_waits_in_its_flow_and_is_written_whatever_another_channel_released_last() {
    let mut world = world(Overflow::DropNewest);
    // What this one matched must not be taken for what the next ones do.
    world.publish(1);
    world.run(seconds(0.01));
    let id = arm(&mut world, 6);
    (0..6).for_each(|_| world.publish(0));
    let mut expected = vec![CopyState::InFlow; QUEUED_MAX as usize];
    expected.extend([CopyState::DroppedFlow; 2]);
    assert_eq!(states(&world, id), expected);
    assert!(!world.plane.traced(id).unwrap().next().unwrap().is_settled());
    world.run(seconds(0.1));
    expected[..QUEUED_MAX as usize].fill(CopyState::Written(LEN as u32));
    assert_eq!(states(&world, id), expected);
    assert!(world.plane.traced(id).unwrap().all(csp_messages::TracedMessage::is_settled));
}

#[test]
fn a_message_that_gives_way_to_a_later_one_of_its_flow_is_dropped() {
    let mut world = world(Overflow::DropOldest);
    let id = arm(&mut world, 5);
    (0..5).for_each(|_| world.publish(0));
    let mut expected = vec![CopyState::InFlow; 5];
    expected[0] = CopyState::DroppedFlow;
    assert_eq!(states(&world, id), expected);
}

#[test]
fn a_receiver_whose_queue_is_full_when_a_message_is_released_does_not_get_it() {
    let mut world = world(Overflow::DropNewest);
    let room = csp_messages::QueueLimits::default().messages;
    world.plane.set_parked(world.pairs[0].subscriber, true);
    for _ in 1..room {
        world.publish(0);
        world.run(seconds(0.001));
    }
    let id = arm(&mut world, 3);
    (0..2).for_each(|_| world.publish(0));
    assert_eq!(states(&world, id), [CopyState::InFlow; 2]);
    world.run(seconds(0.01));
    assert_eq!(states(&world, id), [CopyState::Waiting, CopyState::DroppedNewest]);
    // Once it is full, the message costs the link nothing and does not wait for it.
    world.publish(0);
    assert_eq!(states(&world, id)[2], CopyState::DroppedNewest);
}

#[test]
fn a_message_for_a_context_of_flows_waits_in_its_flow_then_goes_through_its_path() {
    let mut world = World::new(&[0, 0], FullQueue::DropNewest);
    world.contexts = 2;
    world.cost = csp_types::Duration::from_micros(10);
    let path = PathSpec::chain(world.pairs[0].channel, &[("forward", 0, "")]);
    world.plane.activate_path(world.now, path).unwrap();
    let mut flow = spec("a", 0, 0, 0);
    flow.post = Some("path".to_owned());
    world.set_flows(vec![flow], Scheme::RoundRobin, |_| Vec::new());
    world.run(seconds(0.01));
    let id = arm(&mut world, 1);
    world.publish(0);
    assert_eq!(states(&world, id), [CopyState::InFlow]);
    world.run(seconds(0.1));
    assert_eq!(states(&world, id), [CopyState::Written(LEN as u32)]);
    assert_eq!(world.plane.traced(id).unwrap().next().unwrap().stages.len(), 1);
}
