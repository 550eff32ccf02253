//! Publishing, subscribing and delivering allocate nothing once peers are attached.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;

use csp_messages::{
    Budget, CacheConfig, ChannelConfig, ChannelKind, FormatId, FullQueue, HashKey, LastValueKey,
    MessagePlane, PathSpec, PeerId, PlaneConfig, PoolConfig, PublishError, QueueLimits, Role, TraceRequest,
};
use csp_quality::{
    Board, Capacity, Cost, Descriptor, FlowSpec, FlowTable, LinkConfig, OutputLink, Plan, Predicate,
    QualityConfig, Scheme, SharedLinkConfig,
};
use csp_support::allocation;
use csp_types::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: allocation::Counting = allocation::Counting;

/// Publishes until queues or memory are full, delivers half and then all.
fn turn(
    (plane, link): (&mut MessagePlane, &mut OutputLink),
    now: Instant,
    publishers: &[PeerId],
    bytes: &[u8],
) -> u64 {
    let mut delivered = 0;
    for (number, publisher) in (0..).zip(publishers) {
        let descriptor = Descriptor::default().channel(number);
        let flow = link.shared().map(|link| link.table().classify(&descriptor));
        let kind = (FormatId::UNKNOWN, flow.unwrap_or_default());
        for n in 0..100u8 {
            let head = [b't', n % 40];
            let parts = [&head[..1], &head[1..], bytes];
            let message = (&[2, bytes.len() as u32][..], parts.into_iter());
            match plane.publish_in(now, *publisher, kind, message, link.shared_mut()) {
                Ok(_) => {}
                Err(PublishError::Held) => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
    link.release(now, plane);
    while let Some(mut turn) = plane.next_flow() {
        if plane.is_context(&turn) {
            plane.run_context(now, &mut turn, None, link.shared_mut());
        }
        while let Some(peer) = plane.next_peer(&turn) {
            let delivery = plane.next_delivery(Instant::ZERO, peer).unwrap();
            assert_eq!(plane.slices(delivery.handle).map(<[u8]>::len).sum::<usize>(), delivery.len as usize);
            turn.charge(delivery.len);
            plane.delivered(peer, delivery.handle).unwrap();
            delivered += 1;
        }
        plane.end_turn(turn);
    }
    while plane.next_resumed(link.shared()).is_some() {}
    delivered
}

/// Every channel has a path, and contexts of its flow run it.
fn share(link: &mut OutputLink, plane: &mut MessagePlane) {
    let spec = |number: u32| {
        let predicate = Predicate { channel: Some(number), ..Predicate::default() };
        FlowSpec { post: Some("path".to_owned()), ..FlowSpec::new(&format!("flow-{number}"), predicate) }
    };
    for number in 0..4 {
        let channel = plane.channel_named(&format!("channel-{number}")).unwrap();
        plane.set_number(channel, number);
        let path = PathSpec::chain(channel, &[("forward", 0, ""), ("forward", 1, "")]);
        plane.activate_path(Instant::ZERO, path).unwrap();
    }
    let table = FlowTable::new(8).replace((0..4).map(spec).collect()).unwrap();
    let rate = LinkConfig { bits_per_second: 1_000_000_000_000, quantum: 1 << 20 };
    let capacity = Capacity { contexts: 8, link: rate, point_every: 16 };
    let cost = |_: &str| Some(Cost { item: Duration::from_nanos(8), ..Cost::default() });
    let config = SharedLinkConfig {
        plan: Arc::new(Plan::new(Arc::new(table), capacity, cost).unwrap()),
        quality: QualityConfig { link: Scheme::PriorityAwareReserved, ..QualityConfig::default() },
        triggers: Vec::new(),
        board: (Arc::new(Board::new(1)), 0),
        worker_percent: 100,
    };
    link.share(Instant::ZERO, config).unwrap();
}

#[test]
fn the_data_path_allocates_nothing() {
    check(false);
}

#[test]
fn the_data_path_with_flows_and_contexts_allocates_nothing() {
    check(true);
}

fn check(with_flows: bool) {
    let pool = PoolConfig { block_len: 256, blocks: 1_000 };
    let config = PlaneConfig { pool, peers_max: 64, ..PlaneConfig::new(HashKey([1, 2])) };
    let (mut plane, mut link) = (MessagePlane::new(config).unwrap(), OutputLink::default());
    let cache = Some(CacheConfig { key: LastValueKey::Topic, entries: 32, bytes: 256 * 50 });
    let queue = QueueLimits { messages: 20, bytes: 1 << 20, in_flight: 4 };
    let kinds = [
        ChannelKind::PublishSubscribe { policy: FullQueue::DropNewest, cache },
        ChannelKind::PublishSubscribe { policy: FullQueue::DropOldest, cache: None },
        ChannelKind::PublishSubscribe { policy: FullQueue::Block, cache: None },
        ChannelKind::PushPull { backlog: queue },
    ];
    let (mut publishers, mut subscribers) = (Vec::new(), Vec::new());
    for (n, kind) in kinds.into_iter().enumerate() {
        let budget = Budget { guaranteed: 256 * 100, max: 256 * 200 };
        let (name, message_len_max) = (format!("channel-{n}"), 256 * 20);
        let id = plane
            .add_channel(ChannelConfig { name, kind, budget, message_len_max, queue, sequence: false })
            .unwrap();
        let is_push = matches!(kind, ChannelKind::PushPull { .. });
        let roles = if is_push { [Role::Pusher, Role::Puller] } else { [Role::Publisher, Role::Subscriber] };
        publishers.push(plane.attach(id, roles[0]).unwrap());
        for _ in 0..5 {
            let peer = plane.attach(id, roles[1]).unwrap();
            subscribers.extend((!is_push).then_some(peer));
        }
    }
    if with_flows {
        share(&mut link, &mut plane);
    }
    let bytes = vec![7; 1_000];
    // The first division of the link allocates.
    turn((&mut plane, &mut link), Instant::from_nanos(1), &publishers, &bytes);
    // What is traced allocates nothing either, but for the names of a path's handlers.
    let (first, until) = (plane.channel_named("channel-0").unwrap(), Instant::from_nanos(1_000_000_000));
    let request = TraceRequest { messages: 32, topic: b"t", until, clock: || Instant::ZERO };
    let trace = (!with_flows).then(|| plane.arm_trace(Instant::ZERO, first, request).unwrap());
    let before = allocation::count();
    let mut delivered = 0;
    for round in 0..50u8 {
        for peer in &subscribers {
            plane.subscribe(Instant::ZERO, *peer, &[b't', round % 40]).unwrap();
            plane.subscribe(Instant::ZERO, *peer, &bytes[..usize::from(round)]).unwrap();
            plane.subscribe(Instant::ZERO, *peer, b"t").unwrap();
        }
        // Workers divide the link every 10 ms, which allocates; all turns are before that.
        let now = Instant::from_nanos(1_000 + u64::from(round) * 100_000);
        delivered += turn((&mut plane, &mut link), now, &publishers, &bytes);
        subscribers.iter().for_each(|peer| assert!(plane.cancel(*peer, b"t").is_some()));
    }
    assert!(delivered > if with_flows { 2_000 } else { 10_000 }, "{delivered}");
    assert_eq!(allocation::count() - before, 0);
    if let Some(trace) = trace {
        assert_eq!(plane.traced(trace).unwrap().count(), 32);
    }
}
