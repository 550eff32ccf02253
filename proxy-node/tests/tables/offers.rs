//! Offers that a process does not answer are made to an idle one, whatever messages cross.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use csp_proxy_node::core::{ChannelId, OFFER_PATIENCE};
use csp_types::{FlowLabel, Instant};
use csp_wire::channel::{CLOSE_UNREAD, MessageHeader, MessageKind};
use csp_wire::tcp::Flags as TcpFlags;

use super::world::{World, web};

const PORT: u16 = 8001;

fn of(label: u32, kind: MessageKind, argument: u32, len: u32) -> MessageHeader {
    MessageHeader::of_flow(kind, FlowLabel::from_wire(label).unwrap(), argument, len)
}

impl World {
    /// Returns a world with one service and this number of processes at one member, with channels 1, 2, …
    fn prefork(processes: u32) -> Self {
        let mut w = World::new(&[]);
        w.policy(vec![web(&[PORT])]);
        (1..=processes).for_each(|channel| w.process_at(channel, PORT));
        w
    }

    fn send_on_flow(&mut self, channel: u32, label: u32, kind: MessageKind) {
        let argument = if kind == MessageKind::Accepted { 1 << 16 } else { 0 };
        let payload: &[u8] = if kind == MessageKind::Data { b"response" } else { &[] };
        self.send(channel, of(label, kind, argument, payload.len() as u32), payload);
    }

    fn takes(&mut self, channel: u32, kind: MessageKind) -> Option<u32> {
        let labels = self.out.take(channel, kind);
        assert!(labels.len() <= 1, "{kind:?}: {labels:?}");
        labels.first().copied()
    }

    fn withdrawn(&self) -> u64 {
        self.core.counters().offers_withdrawn
    }

    /// Establishes a connection that process 1 was offered and did not answer, and that is now offered to
    /// process 2. Returns its label, and what its client expects next.
    fn moved(processes: u32) -> (World, u32, u32) {
        let mut w = World::prefork(processes);
        let expects = w.connect(1, 1000);
        let label = w.takes(1, MessageKind::Open).unwrap();
        w.pass(OFFER_PATIENCE);
        assert_eq!(
            (w.takes(1, MessageKind::Reset), w.takes(2, MessageKind::Open)),
            (Some(label), Some(label))
        );
        (w, label, expects)
    }

    /// Checks that `channel` serves the connection.
    fn is_served_by(&mut self, channel: u32, label: u32, expects: u32) {
        self.send_on_flow(channel, label, MessageKind::Accepted);
        self.client(1, 1000, 101, expects, TcpFlags::ACK, b"request");
        assert_eq!(self.takes(channel, MessageKind::Data), Some(label));
        self.out.records.clear();
        self.send_on_flow(channel, label, MessageKind::Data);
        assert_eq!(self.out.records, [(1, 1000, expects)], "the first byte that the client gets");
    }
}

#[test]
fn an_offer_without_answer_goes_to_an_idle_process() {
    let mut w = World::prefork(2);
    w.connect(1, 1000);
    let label = w.takes(1, MessageKind::Open).unwrap();
    w.pass(OFFER_PATIENCE - Duration::from_millis(1));
    assert!(w.out.messages.is_empty());
    w.pass(Duration::from_millis(1));
    assert_eq!((w.takes(1, MessageKind::Reset), w.takes(2, MessageKind::Open)), (Some(label), Some(label)));
    assert_eq!(w.withdrawn(), 1);
    // The first process is in doubt: the next connections are not tried there.
    w.send_on_flow(2, label, MessageKind::Accepted);
    w.connect(1, 1001);
    assert!(w.takes(2, MessageKind::Open).is_some());
}

#[test]
fn an_offer_that_is_answered_in_time_stays() {
    let mut w = World::prefork(2);
    w.connect_all(1000..1002);
    w.accept_all();
    assert_eq!(w.core.flow_count(), 2);
    w.pass(10 * OFFER_PATIENCE);
    assert!(w.out.messages.is_empty() && w.withdrawn() == 0);
}

#[test]
fn where_nobody_is_idle_offers_stay() {
    let mut w = World::prefork(2);
    w.connect_all(1000..1060);
    let offered = [w.out.take(1, MessageKind::Open).len(), w.out.take(2, MessageKind::Open).len()];
    assert_eq!(offered, [30, 30]);
    w.pass(50 * OFFER_PATIENCE);
    assert!(w.out.messages.is_empty() && w.withdrawn() == 0);
    assert_eq!(w.core.flow_count(), 60);
}

#[test]
fn what_crosses_the_reset_is_not_the_connections() {
    use MessageKind::{Accepted, Close, Credit, Data, Reset, Shutdown};
    let answers: [&[MessageKind]; 5] = [
        &[Close],
        &[Accepted, Close],
        &[Accepted, Data, Credit, Shutdown, Close],
        &[Accepted, Reset],
        &[Reset],
    ];
    for answer in answers {
        let (mut w, label, expects) = World::moved(2);
        w.out.records.clear();
        answer.iter().for_each(|kind| w.send_on_flow(1, label, *kind));
        assert!(w.out.messages.is_empty() && w.out.records.is_empty(), "{answer:?}: {:?}", w.out.messages);
        w.is_served_by(2, label, expects);
    }
}

#[test]
fn a_refusal_that_crosses_the_reset_refuses_nothing() {
    let (mut w, label, expects) = World::moved(2);
    w.send_on_flow(1, label, MessageKind::Refused);
    assert!(w.out.messages.is_empty() && w.core.counters().opens_refused == 0);
    w.is_served_by(2, label, expects);
}

#[test]
fn the_death_of_the_first_process_changes_nothing() {
    let (mut w, label, expects) = World::moved(2);
    w.core.channel_down(w.now, ChannelId(1), true, &mut w.out);
    w.processes.remove(&1);
    w.is_served_by(2, label, expects);
}

#[test]
fn what_the_second_process_refuses_goes_back_once_the_first_has_answered() {
    let refused = |w: &mut World, label| {
        w.send(2, MessageHeader::new(MessageKind::AcceptCredit, 7, 0, 0), &[]);
        w.send_on_flow(2, label, MessageKind::Refused);
        w.out.messages.clear();
    };
    let dead = |w: &mut World, _| w.core.channel_down(w.now, ChannelId(2), true, &mut w.out);
    for end in [refused as fn(&mut World, u32), dead] {
        let (mut w, label, expects) = World::moved(2);
        end(&mut w, label);
        w.send_on_flow(1, label, MessageKind::Accepted);
        w.send_on_flow(1, label, MessageKind::Data);
        w.pass(50 * OFFER_PATIENCE);
        assert!(w.out.messages.is_empty(), "it does not look at its channel yet: {:?}", w.out.messages);
        w.send_on_flow(1, label, MessageKind::Close);
        assert_eq!(w.takes(1, MessageKind::Open), Some(label));
        w.is_served_by(1, label, expects);
    }
}

#[test]
fn a_process_that_does_not_answer_keeps_nothing_from_others() {
    let mut w = World::prefork(3);
    w.connect_all(1000..1003);
    let busy = w.accept_all();
    w.connect(1, 1003);
    let label = w.takes(1, MessageKind::Open).unwrap();
    // The others have answered all offers and are busy serving them: they send nothing more.
    w.pass(7 * OFFER_PATIENCE);
    assert_eq!((w.takes(1, MessageKind::Reset), w.takes(2, MessageKind::Reset)), (Some(label), Some(label)));
    assert_eq!((w.takes(2, MessageKind::Open), w.takes(3, MessageKind::Open)), (Some(label), Some(label)));
    // The client of the first one leaves, which makes that process idle.
    let (_, done) = busy[0];
    w.send_on_flow(1, label, MessageKind::Close);
    w.send(1, MessageHeader { flags: CLOSE_UNREAD, ..of(done, MessageKind::Close, 0, 0) }, &[]);
    w.out.messages.clear();
    w.pass(OFFER_PATIENCE);
    assert_eq!((w.takes(3, MessageKind::Reset), w.takes(1, MessageKind::Open)), (Some(label), Some(label)));
}

/// SplitMix64 (Steele et al. 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % bound
    }
}

/// A process that accepts one connection, serves it, and only then accepts the next. It implements the
/// application's end of a channel by hand, with messages in transit in both directions.
#[derive(Default)]
struct Worker {
    to: VecDeque<(Instant, MessageHeader)>,
    from: VecDeque<(Instant, MessageHeader)>,
    queue: VecDeque<u32>,
    serving: Option<(u32, Instant)>,
    /// Connections that it has ended, and whose end the proxy has not confirmed.
    ended: BTreeSet<u32>,
    /// While it serves it does not read its channel.
    computes: bool,
    /// Until then it processes nothing.
    away_until: Instant,
    idle_since: Option<Instant>,
}

/// Longest transit time of a message, and how long an idle process and a waiting connection may miss each
/// other: every process is tried in turn, and those in doubt are tried again.
const WAY_MS_MAX: u64 = 5;
const WORKERS: u32 = 5;
const MEET_MS_MAX: u64 = 200 + (WORKERS as u64 + 1) * (8 * 20 + 2 * WAY_MS_MAX + 2);

impl Worker {
    fn send(&mut self, now: Instant, random: &mut Random, header: MessageHeader) {
        let arrives = now + Duration::from_millis(random.below(WAY_MS_MAX));
        let after = self.from.back().map_or(arrives, |last| last.0.max(arrives));
        self.from.push_back((after, header));
    }

    fn receive(&mut self, now: Instant, random: &mut Random, header: MessageHeader) {
        let label = header.id;
        match header.kind {
            MessageKind::Open if now < self.away_until => {
                self.send(now, random, of(label, MessageKind::Refused, 111, 0));
            }
            MessageKind::Open => {
                let known = self.queue.contains(&label) || self.ended.contains(&label);
                assert!(!known && self.serving.is_none_or(|s| s.0 != label), "OPEN of a label in use");
                self.queue.push_back(label);
            }
            MessageKind::Reset | MessageKind::Close => {
                let waited = self.queue.contains(&label);
                self.queue.retain(|l| *l != label);
                let served = self.serving.take_if(|s| s.0 == label).is_some();
                if waited || served {
                    self.send(now, random, of(label, MessageKind::Close, 0, 0));
                }
                self.ended.remove(&label);
            }
            MessageKind::Data | MessageKind::Shutdown | MessageKind::Credit => {}
            other => panic!("{other:?}"),
        }
        // As an application grants again the credit that it has used.
        let credit = MessageHeader::new(MessageKind::AcceptCredit, 7, 1, 0);
        if header.kind == MessageKind::Open {
            self.send(now, random, credit);
        }
    }

    fn run(&mut self, now: Instant, random: &mut Random) {
        if let Some((label, until)) = self.serving
            && now >= until
        {
            self.serving = None;
            self.ended.insert(label);
            let close = of(label, MessageKind::Close, 0, 0);
            self.send(now, random, MessageHeader { flags: CLOSE_UNREAD, ..close });
        }
        while (self.serving.is_none() || !self.computes)
            && let Some((_, header)) = self.to.pop_front_if(|(at, _)| *at <= now)
        {
            self.receive(now, random, header);
        }
        if self.serving.is_none() && random.below(2_000) == 0 {
            self.away_until = now + Duration::from_millis(50);
            while let Some(label) = self.queue.pop_front() {
                self.send(now, random, of(label, MessageKind::Refused, 111, 0));
            }
        }
        if self.serving.is_none()
            && now >= self.away_until
            && let Some(label) = self.queue.pop_front()
        {
            let ms = if random.below(4) == 0 { random.below(2_000) } else { random.below(100) };
            self.computes = random.below(2) == 0;
            self.serving = Some((label, now + Duration::from_millis(1 + ms)));
            self.send(now, random, of(label, MessageKind::Accepted, 1 << 16, 0));
        }
        let idle =
            self.serving.is_none() && self.to.is_empty() && self.from.is_empty() && now >= self.away_until;
        self.idle_since = if idle { self.idle_since.or(Some(now)) } else { None };
    }
}

/// Connections arrive at processes that serve one at a time, for three seconds and until all are served; none
/// waits while a process is idle.
fn one_at_a_time(seed: u64) -> u64 {
    let mut random = Random(seed);
    let mut w = World::prefork(0);
    let mut workers: BTreeMap<u32, Worker> = BTreeMap::new();
    let mut waits: BTreeMap<u32, Instant> = BTreeMap::new();
    let (mut next_channel, mut next_port) = (1, 1_000);
    let step = Duration::from_millis(1);
    for ms in 0.. {
        while workers.len() < WORKERS as usize {
            w.process_at(next_channel, PORT);
            workers.insert(next_channel, Worker::default());
            next_channel += 1;
        }
        if ms < 3_000 && random.below(15) == 0 && w.core.flow_count() < 40 {
            w.connect(1, next_port);
            next_port += 1;
        }
        w.pass(step);
        for (lane, header) in std::mem::take(&mut w.out.messages) {
            let Some(worker) = workers.get_mut(&lane.0) else { continue };
            let arrives = w.now + Duration::from_millis(random.below(WAY_MS_MAX));
            let after = worker.to.back().map_or(arrives, |last| last.0.max(arrives));
            worker.to.push_back((after, header));
        }
        for (channel, worker) in &mut workers {
            worker.run(w.now, &mut random);
            while let Some((_, header)) = worker.from.pop_front_if(|(at, _)| *at <= w.now) {
                w.send(*channel, header, &[]);
            }
        }
        if random.below(1_500) == 0 {
            let (channel, _) = workers.pop_first().unwrap();
            w.processes.remove(&channel);
            w.core.channel_down(w.now, ChannelId(channel), false, &mut w.out);
        }
        let flows = w.core.flows(w.now, 64);
        let waiting = flows.iter().filter(|f| f.state.ends_with("offered") || f.state.ends_with("pending"));
        let labels: BTreeSet<u32> = waiting.map(|f| f.label.to_wire()).collect();
        waits.retain(|label, _| labels.contains(label));
        for label in labels {
            waits.entry(label).or_insert(w.now);
        }
        let missed = |since: Instant| w.now.saturating_since(since) > Duration::from_millis(MEET_MS_MAX);
        let idle = workers.iter().find(|(_, p)| p.idle_since.is_some_and(missed));
        let stuck = waits.iter().find(|(_, since)| missed(**since));
        if let (Some((channel, _)), Some((label, _))) = (idle, stuck) {
            panic!("seed {seed}, {ms} ms: {label:#x} waits, {channel} is idle: {flows:#?}");
        }
        assert!(ms < 60_000, "seed {seed}: {flows:#?}");
        if ms >= 3_000 && flows.is_empty() {
            break;
        }
    }
    let counters = w.core.counters();
    assert_eq!((counters.violations, counters.drop_no_server), (0, 0), "seed {seed}");
    counters.offers_withdrawn
}

#[test]
fn no_connection_waits_while_a_process_is_idle() {
    let withdrawn: u64 = (0..40).map(one_at_a_time).sum();
    println!("{withdrawn} offers withdrawn");
    assert!(withdrawn > 40, "{withdrawn}");
}

#[test]
fn a_seed_of_processes_replays() {
    assert_eq!(one_at_a_time(7), one_at_a_time(7));
}
