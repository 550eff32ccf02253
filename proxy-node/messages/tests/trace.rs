//! What traces record, their bounds, and walks over peers and their prefixes.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::cell::Cell;

use csp_handlers::FormatId;
use csp_messages::{
    Budget, ChannelConfig, ChannelId, ChannelKind, CopyState, FullQueue, HashKey, MessagePlane, PathSpec,
    PeerId, PlaneConfig, PoolConfig, PublishError, QueueLimits, Role, TRACE_COPIES_MAX, TRACE_MESSAGES_MAX,
    TRACE_TOPIC_LEN_MAX, TRACES_MAX, TraceError, TraceId, TraceRequest, TracedMessage,
};
use csp_types::{Duration, Instant};

thread_local! {
    static MICROS: Cell<u64> = const { Cell::new(0) };
}

/// A clock that goes on by a microsecond whenever it is read.
fn clock() -> Instant {
    MICROS.set(MICROS.get() + 1);
    Instant::ZERO + Duration::from_micros(MICROS.get())
}

fn at(millis: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(millis)
}

fn request(messages: usize, topic: &[u8]) -> TraceRequest<'_> {
    TraceRequest { messages, topic, until: at(10_000), clock }
}

struct World {
    plane: MessagePlane,
    channel: ChannelId,
    sender: PeerId,
}

impl World {
    /// A channel with memory for so many messages.
    fn new(kind: ChannelKind, blocks: u64) -> Self {
        let pool = PoolConfig { block_len: 1_024, blocks: 64 };
        let config = PlaneConfig { pool, peers_max: 200, ..PlaneConfig::new(HashKey([1, 2])) };
        let mut plane = MessagePlane::new(config).unwrap();
        let queue = QueueLimits { messages: 2, bytes: 1 << 20, in_flight: 1 };
        let budget = Budget { guaranteed: 1_024, max: 1_024 * blocks };
        let config = ChannelConfig {
            name: "ticks".into(),
            kind,
            budget,
            message_len_max: 1_000,
            queue,
            sequence: false,
        };
        let channel = plane.add_channel(config).unwrap();
        let is_push = matches!(kind, ChannelKind::PushPull { .. });
        let sender = plane.attach(channel, if is_push { Role::Pusher } else { Role::Publisher }).unwrap();
        World { plane, channel, sender }
    }

    fn publish_subscribe(policy: FullQueue, blocks: u64) -> Self {
        World::new(ChannelKind::PublishSubscribe { policy, cache: None }, blocks)
    }

    fn subscriber(&mut self, prefix: &[u8]) -> PeerId {
        let peer = self.plane.attach(self.channel, Role::Subscriber).unwrap();
        self.plane.subscribe(at(0), peer, prefix).unwrap();
        peer
    }

    fn send(&mut self, millis: u64, frames: &[&[u8]]) -> Result<u64, PublishError> {
        let lens: Vec<u32> = frames.iter().map(|frame| frame.len() as u32).collect();
        let done =
            self.plane.publish_as(at(millis), self.sender, FormatId::UNKNOWN, &lens, frames.iter().copied());
        done.map(|published| published.sequence)
    }

    /// Writes the next message for a peer, with 40 bytes of framing.
    fn write(&mut self, peer: PeerId) {
        let delivery = self.plane.next_delivery(at(5), peer).unwrap();
        self.plane.trace_written(peer, &delivery, |_| Some(delivery.len as usize + 40));
        self.plane.delivered(peer, delivery.handle).unwrap();
        self.plane.trace_flushed(peer);
    }

    fn arm(&mut self, request: TraceRequest<'_>) -> TraceId {
        self.plane.arm_trace(at(1), self.channel, request).unwrap()
    }

    fn traced(&self, id: TraceId) -> Vec<TracedMessage> {
        self.plane.traced(id).unwrap().cloned().collect()
    }
}

fn states(message: &TracedMessage) -> Vec<(PeerId, CopyState)> {
    message.copies.iter().map(|copy| (copy.peer, copy.state)).collect()
}

#[test]
fn a_trace_shows_who_gets_a_message_when_and_who_does_not() {
    let mut w = World::publish_subscribe(FullQueue::DropNewest, 8);
    let (all, full) = (w.subscriber(b""), w.subscriber(b"a"));
    w.subscriber(b"b");
    for n in 0..2u8 {
        w.send(2, &[b"a", &[n]]).unwrap();
    }
    w.write(all);
    w.write(all);
    let id = w.arm(request(1, b"a"));
    w.send(3, &[b"b", b"another topic"]).unwrap();
    w.send(3, &[b"apple", &[7; 600]]).unwrap();
    w.send(3, &[b"apple", b"too late"]).unwrap();
    let traced = w.traced(id);
    let [message] = &traced[..] else { panic!("{traced:?}") };
    assert_eq!((message.sequence, message.publisher, &message.topic[..]), (4, w.sender, &b"apple"[..]));
    assert_eq!((message.frames(), message.receivers, message.matched), (&[5, 600][..], 3, 2));
    let mut expected = vec![(all, CopyState::Waiting), (full, CopyState::DroppedNewest)];
    let sorted = |mut states: Vec<(PeerId, CopyState)>| {
        states.sort_by_key(|(peer, _)| peer.index);
        states
    };
    assert_eq!(sorted(states(message)), expected);
    assert!(message.arrived < message.looked_up && !message.is_settled());
    w.write(all); // of topic b
    assert_eq!(sorted(states(&w.traced(id)[0])), expected, "another message was written");
    w.write(all);
    expected[0].1 = CopyState::Written(645);
    let message = &w.traced(id)[0];
    assert_eq!(sorted(states(message)), expected);
    let queued = message.copies.iter().find(|copy| copy.peer == full).unwrap().at;
    let written = message.copies.iter().find(|copy| copy.peer == all).unwrap().at;
    assert!(message.looked_up < queued && queued < written && message.is_settled());
    w.plane.end_trace(id);
    assert!(w.plane.traced(id).is_none() && !w.plane.is_tracing());
}

#[test]
fn a_message_for_which_there_is_no_memory_is_dropped_for_all() {
    let mut w = World::publish_subscribe(FullQueue::DropNewest, 2);
    let full = w.subscriber(b"a");
    (0..2).for_each(|_| w.send(2, &[b"a"]).map(drop).unwrap());
    let (other, id) = (w.subscriber(b"b"), w.arm(request(2, b"")));
    w.send(2, &[b"b"]).unwrap();
    w.send(2, &[b"a"]).unwrap();
    let traced = w.traced(id);
    assert_eq!(states(&traced[0]), [(other, CopyState::DroppedMemory)]);
    assert_eq!(states(&traced[1]), [(full, CopyState::DroppedNewest)]);
    assert!(traced.iter().all(TracedMessage::is_settled));
}

#[test]
fn copies_that_are_dropped_later_say_why() {
    let mut w = World::publish_subscribe(FullQueue::DropOldest, 3);
    let (slow, leaves) = (w.subscriber(b"s"), w.subscriber(b"l"));
    let id = w.arm(request(3, b""));
    w.send(1, &[b"l"]).unwrap();
    assert!(w.plane.detach(leaves, |_| {}));
    for _ in 0..3 {
        w.send(1, &[b"s"]).unwrap();
    }
    let traced = w.traced(id);
    assert_eq!(states(&traced[0]), [(leaves, CopyState::Left)]);
    assert_eq!(states(&traced[1]), [(slow, CopyState::DroppedOldest)]);
    assert_eq!(states(&traced[2]), [(slow, CopyState::Waiting)]);
    // The channel's memory is three blocks: one more message needs what the subscriber, which takes nothing,
    // has.
    let other = w.subscriber(b"o");
    w.send(1_000, &[b"o"]).unwrap();
    assert_eq!(states(&w.traced(id)[2]), [(slow, CopyState::Waiting)]);
    w.send(1_000, &[b"o"]).unwrap();
    assert_eq!(states(&w.traced(id)[2]), [(slow, CopyState::DroppedStalled)]);
    let next = w.arm(request(1, b"o"));
    w.send(1_001, &[b"s"]).unwrap();
    w.write(other);
    w.write(other);
    assert!(w.traced(next).is_empty() && w.traced(id).len() == 3);
}

#[test]
fn a_pushed_message_shows_the_puller_that_has_got_it() {
    let backlog = QueueLimits { messages: 1, bytes: 1 << 20, in_flight: 1 };
    let mut w = World::new(ChannelKind::PushPull { backlog }, 8);
    let id = w.arm(request(2, b""));
    w.send(1, &[b"one"]).unwrap();
    assert_eq!(w.send(1, &[b"two"]), Err(PublishError::Held));
    let traced = w.traced(id);
    assert_eq!((traced.len(), traced[0].pushed, traced[0].is_settled()), (1, true, false));
    let puller = w.plane.attach(w.channel, Role::Puller).unwrap();
    w.write(puller);
    assert_eq!(states(&w.traced(id)[0]), [(puller, CopyState::Written(43))]);
    assert_eq!(w.plane.next_resumed(None), Some(w.sender));
    w.send(1, &[b"two"]).unwrap();
    assert_eq!(w.traced(id).iter().map(|message| message.sequence).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn traces_are_bounded_and_expire() {
    let mut w = World::publish_subscribe(FullQueue::DropNewest, 8);
    for _ in 0..TRACE_COPIES_MAX + 3 {
        w.subscriber(b"");
    }
    let long = [b't'; TRACE_TOPIC_LEN_MAX + 1];
    let refused = w.plane.arm_trace(at(1), w.channel, request(1, &long));
    assert_eq!(refused, Err(TraceError::Topic));
    let unknown = ChannelId { generation: 9, ..w.channel };
    assert_eq!(w.plane.arm_trace(at(1), unknown, request(1, b"")), Err(TraceError::UnknownChannel));
    let ids: Vec<TraceId> = (0..TRACES_MAX).map(|_| w.arm(request(1_000_000, b""))).collect();
    assert_eq!(w.plane.arm_trace(at(1), w.channel, request(1, b"")), Err(TraceError::TooMany));
    for _ in 0..2 * TRACE_MESSAGES_MAX {
        w.send(2, &[&long]).unwrap();
    }
    for id in &ids {
        let traced = w.traced(*id);
        assert_eq!(traced.len(), TRACE_MESSAGES_MAX);
        assert_eq!((traced[0].copies.len(), traced[0].topic.len()), (TRACE_COPIES_MAX, TRACE_TOPIC_LEN_MAX));
        assert_eq!(traced[0].matched as usize, TRACE_COPIES_MAX + 3);
    }
    w.plane.end_trace(ids[0]);
    let again = w.arm(request(1, b""));
    assert!(again != ids[0] && w.plane.traced(ids[0]).is_none());
    w.send(10_000, &[b"t"]).unwrap();
    assert!(!w.plane.is_tracing() && w.plane.traced(again).is_none(), "all have expired");
}

#[test]
fn peers_and_their_prefixes_are_walked_in_parts() {
    let mut w = World::publish_subscribe(FullQueue::DropNewest, 8);
    let mut expected = vec![w.sender];
    expected.extend((0..50u8).map(|n| w.subscriber(&[n])));
    let gone = expected.remove(7);
    assert!(w.plane.detach(gone, |_| {}));
    let (mut found, mut cursor, mut calls) = (Vec::new(), Some(0), 0);
    while let Some(from) = cursor {
        cursor = w.plane.peers_of(Some(w.channel), from, 8, |peer| found.push(peer));
        calls += 1;
    }
    assert_eq!((found, calls), (expected.clone(), 7));
    let other = ChannelId { generation: 9, ..w.channel };
    w.plane.peers_of(Some(other), 0, 100, |peer| panic!("{peer:?}"));
    let peer = expected[3];
    for n in 0..10u8 {
        w.plane.subscribe(at(0), peer, &[b'p', n]).unwrap();
    }
    let mut prefixes = Vec::new();
    assert_eq!(w.plane.prefixes_of(peer, 2, |prefix| prefixes.push(prefix.to_vec())), 11);
    assert_eq!(prefixes, [[b'p', 9], [b'p', 8]]);
    assert_eq!(w.plane.prefixes_of(gone, 2, |prefix| panic!("{prefix:?}")), 0);
    w.send(1, &[b"p"]).unwrap();
    assert_eq!(w.plane.peer_status(w.sender).unwrap().published, 1);
}

#[test]
fn a_trace_shows_the_handlers_of_a_path() {
    let mut w = World::publish_subscribe(FullQueue::DropNewest, 8);
    let all = w.subscriber(b"");
    let spec = PathSpec::chain(w.channel, &[("drop-every", 0, "2"), ("forward", 3, "")]);
    w.plane.activate_path(at(0), spec).unwrap();
    let id = w.arm(request(2, b""));
    w.send(3, &[b"a", &[1; 100]]).unwrap();
    w.send(3, &[b"b", &[1; 200]]).unwrap();
    assert_eq!(states(&w.traced(id)[0]), [(all, CopyState::Waiting)], "it is in the path");
    while let Some(mut turn) = w.plane.next_flow() {
        match w.plane.is_context(&turn) {
            true => _ = w.plane.run_context(at(4), &mut turn, None, None),
            false => w.write(all),
        }
        w.plane.end_turn(turn);
    }
    let traced = w.traced(id);
    let passed = |message: &TracedMessage| -> Vec<(u16, String, u64, u64)> {
        let stage = |s: &csp_messages::TracedStage| (s.context, s.handler.clone(), s.emitted, s.bytes);
        message.stages.iter().map(stage).collect()
    };
    assert_eq!(passed(&traced[0]), [(0, "drop-every".into(), 1, 101), (3, "forward".into(), 1, 101)]);
    assert_eq!(passed(&traced[1]), [(0, "drop-every".into(), 0, 0)]);
    assert_eq!(states(&traced[0]), [(all, CopyState::Written(141))]);
    assert_eq!(states(&traced[1]), [(all, CopyState::Consumed)]);
    assert!(traced.iter().all(TracedMessage::is_settled));
    let [first, second] = &traced[0].stages[..] else { panic!("{traced:?}") };
    assert!(first.at < first.done && first.done < second.at && second.done <= traced[0].copies[0].at);
}

impl World {
    /// Runs handlers until nothing is left for them; receivers take nothing.
    fn run_contexts(&mut self) {
        while self.plane.contexts_have_work() {
            let Some(mut turn) = self.plane.next_flow() else { return };
            if self.plane.is_context(&turn) {
                self.plane.run_context(at(4), &mut turn, None, None);
            }
            self.plane.end_turn(turn);
        }
    }

    fn traced_states(&self, id: TraceId) -> Vec<CopyState> {
        self.traced(id).iter().flat_map(states).map(|(_, state)| state).collect()
    }
}

#[test]
fn copies_that_leave_a_path_are_settled_as_those_without_one() {
    use CopyState::{DroppedNewest, DroppedOldest, Waiting, Written};
    for (policy, waiting, settled) in [
        (FullQueue::DropNewest, [Waiting, Waiting, DroppedNewest], [Written(42), Written(42), DroppedNewest]),
        (FullQueue::DropOldest, [DroppedOldest, Waiting, Waiting], [DroppedOldest, Written(42), Written(42)]),
    ] {
        for has_path in [false, true] {
            let mut w = World::publish_subscribe(policy, 8);
            let all = w.subscriber(b"");
            if has_path {
                w.plane.activate_path(at(0), PathSpec::chain(w.channel, &[("forward", 0, "")])).unwrap();
            }
            let id = w.arm(request(3, b""));
            (0..3u8).for_each(|n| _ = w.send(3, &[b"a", &[n]]).unwrap());
            w.run_contexts();
            assert_eq!(w.traced_states(id), waiting, "{policy:?}, path {has_path}");
            (0..2).for_each(|_| w.write(all));
            assert_eq!(w.traced_states(id), settled, "{policy:?}, path {has_path}");
            assert!(w.traced(id).iter().all(TracedMessage::is_settled));
        }
    }
}

#[test]
fn copies_of_messages_that_a_path_has_no_room_for_are_settled() {
    use CopyState::{DroppedPath, Waiting, Written};
    for (policy, waiting, settled) in [
        (FullQueue::DropNewest, [Waiting, Waiting, DroppedPath], [Written(42), Written(42), DroppedPath]),
        (FullQueue::DropOldest, [DroppedPath, Waiting, Waiting], [DroppedPath, Written(42), Written(42)]),
    ] {
        let mut w = World::publish_subscribe(policy, 8);
        let all = w.subscriber(b"");
        let mut spec = PathSpec::chain(w.channel, &[("forward", 0, "")]);
        spec.queue = QueueLimits { messages: 2, ..QueueLimits::default() };
        w.plane.activate_path(at(0), spec).unwrap();
        let id = w.arm(request(3, b""));
        (0..3u8).for_each(|n| _ = w.send(3, &[b"a", &[n]]).unwrap());
        assert_eq!(w.traced_states(id), waiting, "{policy:?}");
        w.run_contexts();
        (0..2).for_each(|_| w.write(all));
        assert_eq!(w.traced_states(id), settled, "{policy:?}");
        assert!(w.traced(id).iter().all(TracedMessage::is_settled));
    }
}
