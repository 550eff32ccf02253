//! Publishing through a path, running its handlers and delivering allocate nothing once the path is
//! activated.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod chains;

use csp_handlers::FormatId;
use csp_messages::{
    Budget, ChannelConfig, ChannelKind, FullQueue, HashKey, MessagePlane, PathSpec, PlaneConfig,
    PublishError, QueueLimits, Role,
};
use csp_support::allocation;
use csp_types::Instant;

#[global_allocator]
static ALLOCATOR: allocation::Counting = allocation::Counting;

#[test]
fn a_path_allocates_nothing() {
    let mut plane =
        MessagePlane::new(PlaneConfig { peers_max: 8, ..PlaneConfig::new(HashKey([1, 2])) }).unwrap();
    chains::deploy(plane.handlers_mut());
    let queue = QueueLimits { messages: 20, bytes: 1 << 20, in_flight: 4 };
    let kinds = [
        ChannelKind::PublishSubscribe { policy: FullQueue::DropNewest, cache: None },
        ChannelKind::PublishSubscribe { policy: FullQueue::Block, cache: None },
        ChannelKind::PushPull { backlog: queue },
    ];
    let mut publishers = Vec::new();
    for (n, kind) in kinds.into_iter().enumerate() {
        let budget = Budget { guaranteed: 2048 * 40, max: 2048 * 60 };
        let name = format!("channel-{n}");
        let id = plane
            .add_channel(ChannelConfig { name, kind, budget, message_len_max: 2048, queue, sequence: false })
            .unwrap();
        let push = matches!(kind, ChannelKind::PushPull { .. });
        let roles = if push { [Role::Pusher, Role::Puller] } else { [Role::Publisher, Role::Subscriber] };
        publishers.push(plane.attach(id, roles[0]).unwrap());
        let receiver = plane.attach(id, roles[1]).unwrap();
        if !push {
            plane.subscribe(Instant::ZERO, receiver, b"").unwrap();
        }
        let stages = [("append", 0, ""), ("duplicate", 1, "3"), ("drop-every", 0, "4"), ("head", 2, "")];
        plane.activate_path(Instant::ZERO, PathSpec { queue, ..PathSpec::chain(id, &stages) }).unwrap();
    }
    let (bytes, mut delivered, mut processed) = ([7; 200], 0, 0);
    let mut clock = || Instant::ZERO;
    let before = allocation::count();
    for _ in 0..100 {
        for publisher in &publishers {
            for _ in 0..30 {
                let parts = [&bytes[..3], &bytes[3..]];
                match plane.publish_as(
                    Instant::ZERO,
                    *publisher,
                    FormatId::UNKNOWN,
                    &[2, 198],
                    parts.into_iter(),
                ) {
                    Ok(_) => {}
                    Err(PublishError::Held) => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        while plane.next_resumed(None).is_some() {}
        while let Some(mut turn) = plane.next_flow() {
            processed += plane.run_context(Instant::ZERO, &mut turn, Some(&mut clock), None);
            while let Some(peer) = plane.next_peer(&turn) {
                let delivery = plane.next_delivery(Instant::ZERO, peer).unwrap();
                turn.charge(delivery.len);
                plane.delivered(peer, delivery.handle).unwrap();
                delivered += 1;
            }
            plane.end_turn(turn);
        }
    }
    assert_eq!(allocation::count() - before, 0);
    assert!(delivered > 5_000 && processed > 10_000, "{delivered} {processed}");
}
