//! Paths through contexts elsewhere: the broker with the session of the real program, over a connection that
//! is cut anywhere, has little room, and is lost.
#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;
#[path = "contexts/placed.rs"]
mod placed;
#[path = "contexts/supplied.rs"]
mod supplied;

use std::time::Duration;

use common::{CHANNEL, End, World, message, of_channels, open_channel, subscribe};
use csp_context::builder::HandlerBuilder;
use csp_context::session::{Limits, Session};
use csp_handlers::{Call, Emit, FormatId, Handler, Needs, ParameterError, Piece, State, Stop, builtin};
use csp_messages::{ChannelKind, QueueLimits};
use csp_proxy_core::ServerHost;
use csp_proxy_core::service::local::{LocalServices, Step};
use csp_proxy_core::service::upstream::{Ended, OpenError, Opened, Request, ServerId, Upstream};
use csp_services::{
    ChannelPath, ChannelPolicy, ChannelSpec, ContextSpec, MessagesPolicy, PATIENCE, PathStage, Presence,
    RETRY,
};
use csp_support::Random;
use csp_types::FlowLabel;
use csp_wire::context::{Place, Record, Supply};

/// The first label of connections to contexts.
const LINKS: u32 = 900;
/// What a program may have received and not read.
const RING: usize = 64 * 1024;
/// The number at the plane of `g0`.
const G0: u16 = 8;

/// Answers with a new message: the first frame, then the others and a byte as one.
#[derive(Debug)]
struct Append;

impl Handler for Append {
    fn needs(&self) -> Needs {
        Needs { new_len_max: 100_001, ..Needs::default() }
    }

    fn configure(&mut self, _: &str, _: &mut State) -> Result<(), ParameterError> {
        Ok(())
    }

    fn on_message(&mut self, call: &mut Call<'_>) -> Result<(), Stop> {
        let len = call.message().len;
        let pieces = [Piece::Of { start: 0, len }, Piece::Bytes(b"!")];
        Ok(call.emit(0, Emit::New { format: FormatId(7), frames: &[len + 1], pieces: &pieces })?)
    }
}

fn make(name: &str) -> Option<Box<dyn Handler>> {
    if name == "append" { Some(Box::new(Append)) } else { builtin::make(name) }
}

fn opened(label: FlowLabel) -> Opened {
    let address = (ServerHost::Node("an-1".parse().unwrap()), 1);
    Opened { label, server: ServerId::default(), address }
}

/// A program at the other end of a connection.
struct Program {
    label: u32,
    session: Session,
}

struct Cluster {
    w: World,
    /// The channel.
    spec: ChannelSpec,
    programs: Vec<Program>,
    /// Where supplied handlers of all programs are made.
    builder: HandlerBuilder,
    next_label: u32,
    /// Programs that would take a connection.
    up: bool,
    opened: u32,
    /// Bytes that programs have got.
    carried: usize,
}

fn push_pull() -> ChannelSpec {
    let mut spec = open_channel();
    spec.channel.kind =
        ChannelKind::PushPull { backlog: QueueLimits { messages: 5, ..QueueLimits::default() } };
    spec
}

fn path(stages: &[(&str, u16, &str)]) -> Vec<ChannelPath> {
    let stage = |(handler, context, parameters): &(&str, u16, &str)| PathStage {
        handler: (*handler).into(),
        context: *context,
        parameters: (*parameters).into(),
        maker: None,
        auto: None,
        outputs: Vec::new(),
    };
    vec![ChannelPath::new(CHANNEL, stages.iter().map(stage).collect())]
}

impl Cluster {
    fn new(spec: ChannelSpec, stages: &[(&str, u16, &str)]) -> Self {
        Self::with_path(spec, &path(stages))
    }

    fn with_path(spec: ChannelSpec, path: &[ChannelPath]) -> Self {
        let mut w = World::new(spec.clone());
        w.broker.handlers_mut().unwrap().deploy("append", Box::new(|| Box::new(Append))).unwrap();
        let builder = HandlerBuilder::new(csp_sandbox::Limits::default());
        let (programs, next_label) = (Vec::new(), LINKS);
        let mut c = Cluster { w, spec, programs, builder, next_label, up: true, opened: 0, carried: 0 };
        c.set_paths(path);
        c
    }

    /// Puts the channel with these paths into force, with two contexts elsewhere.
    fn set_paths(&mut self, paths: &[ChannelPath]) {
        let channel = ChannelPolicy { paths: paths.to_vec(), ..self.spec.clone().into() };
        let contexts = [0, 1].map(|number| ContextSpec { number, service: format!("context g{number}") });
        let policy = MessagesPolicy { contexts: contexts.to_vec(), ..of_channels([channel]) };
        self.w.broker.apply(self.w.now, &policy).unwrap();
    }

    /// Runs timers that are due, and opens the connections that are asked for.
    fn turn(&mut self) {
        let w = &mut self.w;
        if w.broker.next_timeout().is_some_and(|at| at <= w.now) {
            w.broker.on_timeout(w.now);
        }
        while let Some(request) = w.broker.next_request() {
            let Request::Open(Upstream { token, service, .. }) = request else { continue };
            assert!(service.starts_with("context g"));
            if !self.up {
                w.broker.opened(w.now, token, Err(OpenError::NoServer));
                continue;
            }
            let label = self.next_label;
            (self.next_label, self.opened) = (label + 1, self.opened + 1);
            w.ends.insert(label, End { room: RING, upstream: true, ..End::default() });
            w.broker.opened(w.now, token, Ok(opened(World::label(label))));
            self.programs.push(Program { label, session: Session::new(Limits::default(), make) });
            w.serve(label);
        }
        w.settle();
    }

    /// Carries up to `most` bytes to each program, and what it answers back. Returns whether any moved.
    fn exchange(&mut self, mut most: impl FnMut() -> usize) -> bool {
        self.turn();
        let mut moved = false;
        for program in &mut self.programs {
            let end = self.w.ends.get_mut(&program.label).unwrap();
            let len = most().min(end.sent.len());
            let bytes: Vec<u8> = end.sent.drain(..len).collect();
            end.room += len;
            self.carried += len;
            let mut out = Vec::new();
            program.session.receive(self.w.now, &bytes, &mut out).unwrap();
            for request in program.session.take_requests() {
                let made = self.builder.make(&request);
                program.session.built(self.w.now, (request.place, request.serial), made, &mut out);
            }
            moved |= len > 0 || !out.is_empty();
            for part in out.chunks(most().max(1)) {
                self.w.ends.get_mut(&program.label).unwrap().arrived.extend_from_slice(part);
                self.w.serve(program.label);
            }
            self.w.serve(program.label); // it has room now
            self.w.settle();
            moved |= !self.w.ends[&program.label].sent.is_empty();
        }
        moved
    }

    fn settle(&mut self) {
        for _ in 0..100_000 {
            if !self.exchange(|| usize::MAX) {
                return;
            }
        }
        panic!("it never comes to rest");
    }

    /// The connection to a program is lost.
    fn lose(&mut self, at: usize) {
        let program = self.programs.remove(at);
        self.w.ends.remove(&program.label);
        self.w.broker.upstream_gone(self.w.now, World::label(program.label), Ended::Reset);
    }

    fn pass(&mut self, time: Duration) {
        self.w.now += time;
        self.turn();
    }

    fn presence(&self) -> Presence {
        self.w.broker.contexts().elsewhere[0].presence
    }
}

#[test]
fn messages_pass_a_path_that_leaves_the_worker_and_comes_back() {
    let stages = [("forward", 0, ""), ("drop-every", G0, "3"), ("duplicate", 1, "2"), ("append", G0 + 1, "")];
    for (spec, sender, receiver) in [(open_channel(), "PUB", "SUB"), (push_pull(), "PUSH", "PULL")] {
        let mut c = Cluster::new(spec, &stages);
        c.w.connect_null(1, sender);
        c.w.connect_null(2, receiver);
        if receiver == "SUB" {
            c.w.arrive(2, &subscribe(b""));
        }
        c.settle();
        assert_eq!((c.programs.len(), c.presence()), (2, Presence::Connected), "one for each context");
        let all: Vec<Vec<u8>> = (0..9u8).map(|n| message(&[b"topic", &[n]])).collect();
        c.w.arrive(1, &all.concat());
        c.settle();
        let expected: Vec<u8> = (0..9u8)
            .filter(|n| n % 3 != 2)
            .flat_map(|n| message(&[&[&b"topic"[..], &[n], b"!"].concat()]).repeat(2))
            .collect();
        assert_eq!(c.w.taken(2), expected, "{receiver}");
        assert_eq!(c.w.broker.plane().unwrap().occupancy().messages, 0);
        let paths = c.w.broker.contexts().paths;
        let emitted: Vec<u64> = paths[0].1.stages.iter().map(|stage| stage.profile.emitted).collect();
        assert_eq!(emitted, [9, 6, 12, 12]);
        // Parameters change between two messages, and the state stays.
        let mut changed = stages;
        changed[1].2 = "2";
        c.set_paths(&path(&changed));
        c.w.arrive(1, &all[..4].concat());
        c.settle();
        assert_eq!(c.w.taken(2).len(), expected.len() / 3);
    }
}

/// What a chain without state makes of a message of one frame.
fn model(stages: &[(&str, u16, &str)], body: Vec<u8>) -> Vec<Vec<u8>> {
    stages.iter().fold(vec![body], |bodies, (handler, _, parameters)| match *handler {
        "duplicate" => {
            let times: usize = parameters.parse().unwrap();
            bodies.into_iter().flat_map(|body| vec![body; times]).collect()
        }
        "append" => bodies.into_iter().map(|body| [&body[..], b"!"].concat()).collect(),
        _ => bodies,
    })
}

#[test]
fn nothing_is_lost_doubled_or_overtaken_however_the_connection_behaves() {
    let seeds = std::env::var("CSP_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = seeds.map_or(0..40, |seed: u64| seed..seed + 1);
    for seed in seeds {
        // Every other one without losses: a new connection has new room.
        let mut random = Random::new(seed);
        let stage = |random: &mut Random| {
            let handler = ["forward", "duplicate", "append"][random.below(3) as usize];
            let context = [0, 1, G0, G0, G0 + 1][random.below(5) as usize];
            (handler, context, if handler == "duplicate" { "3" } else { "" })
        };
        let count = random.below(4) + 1;
        let stages: Vec<_> = (0..count).map(|_| stage(&mut random)).collect();
        let mut c = Cluster::new(push_pull(), &stages);
        c.w.connect_null(1, "PUSH");
        c.w.connect_null(2, "PULL");
        c.w.ends.get_mut(&2).unwrap().room = 0;
        let (mut expected, mut sent) = (Vec::new(), Vec::new());
        for _ in 0..300 {
            let len = if random.below(20) == 0 { random.below(90_000) } else { random.below(900) };
            let body: Vec<u8> = (0..len).map(|_| random.below(256) as u8).collect();
            sent.push(message(&[&body]));
            expected.extend(model(&stages, body).into_iter().flat_map(|body| message(&[&body])));
        }
        let mut sent = sent.into_iter();
        let (mut received, mut idle) = (Vec::new(), 0);
        while received.len() < expected.len() {
            match random.below(12) {
                0..5 => {
                    let bytes: Vec<u8> = sent.by_ref().take(random.below(20) as usize).flatten().collect();
                    c.w.arrive(1, &bytes);
                }
                5..8 => {
                    c.w.give_room(2, random.below(200_000) as usize);
                    let taken = c.w.taken(2);
                    idle = if taken.is_empty() { idle + 1 } else { 0 };
                    assert!(
                        idle < 20_000,
                        "seed {seed}: it stands still at {} bytes of {stages:?}",
                        received.len()
                    );
                    received.extend(taken);
                }
                8 if seed % 2 == 0 && random.below(10) == 0 && !c.programs.is_empty() => {
                    let at = random.below(c.programs.len() as u64) as usize;
                    c.lose(at);
                }
                9 => c.pass(RETRY),
                _ => {
                    let (cut, mut lens) = (random.below(3), Random::new(random.below(1 << 40)));
                    c.exchange(|| match cut {
                        0 => usize::MAX,
                        1 => lens.below(40) as usize,
                        _ => lens.below(20_000) as usize,
                    });
                }
            }
        }
        assert!(received == expected, "seed {seed}: {stages:?}");
        c.pass(RETRY);
        c.settle();
        c.w.settle();
        assert!(c.w.taken(2).is_empty(), "seed {seed}");
        assert_eq!(c.w.broker.plane().unwrap().occupancy().messages, 0, "seed {seed}");
    }
}

#[test]
fn messages_wait_for_a_context_that_is_not_there_and_hold_senders_back() {
    let mut c = Cluster::new(push_pull(), &[("forward", 0, ""), ("forward", G0, "")]);
    c.up = false;
    c.w.connect_null(1, "PUSH");
    c.w.connect_null(2, "PULL");
    let one = message(&[&[7; 1_000]]);
    c.w.arrive(1, &one.repeat(3_000));
    c.settle();
    assert!(c.w.ends[&1].arrived.len() > 100_000 && c.w.taken(2).is_empty(), "the sender is held back");
    assert_eq!(c.presence(), Presence::Absent);
    c.pass(Duration::from_secs(60));
    c.up = true;
    c.pass(Duration::from_secs(1));
    let mut received = Vec::new();
    while received.len() < 3_000 * one.len() {
        c.settle();
        let taken = c.w.taken(2);
        assert!(!taken.is_empty(), "{} bytes", received.len());
        received.extend(taken);
    }
    assert!(received == one.repeat(3_000));
    assert_eq!((c.presence(), c.opened), (Presence::Connected, 1));
    // Without a path there is no use for it.
    c.set_paths(&[]);
    c.turn();
    c.pass(Duration::from_secs(1));
    let label = c.programs[0].label;
    assert_eq!(c.w.steps[&label], Step::Close);
    c.lose(0);
    c.pass(Duration::from_secs(1));
    assert_eq!((c.presence(), c.opened), (Presence::Unused, 1));
}

#[test]
fn a_process_that_does_not_greet_is_given_up_for_another() {
    let mut c = Cluster::new(push_pull(), &[("forward", G0, "")]);
    c.turn();
    let label = c.programs[0].label;
    for _ in 0..6 {
        c.pass(Duration::from_secs(1));
    }
    assert_eq!((c.w.steps[&label], c.presence()), (Step::Close, Presence::Absent));
    c.lose(0);
    c.pass(RETRY);
    c.settle();
    assert_eq!((c.presence(), c.opened), (Presence::Connected, 2));
}

#[test]
fn a_path_that_is_removed_does_not_wait_forever_for_a_lost_context() {
    let mut c = Cluster::new(push_pull(), &[("forward", G0, "")]);
    c.w.connect_null(1, "PUSH");
    c.w.connect_null(2, "PULL");
    c.settle();
    c.up = false;
    c.lose(0);
    let (old, new) = (message(&[b"old"]), message(&[b"new"]));
    c.w.arrive(1, &old.repeat(3));
    c.set_paths(&[]);
    c.w.arrive(1, &new);
    c.settle();
    assert!(c.w.taken(2).is_empty(), "what has entered the old path leaves first");
    for _ in 0..7 {
        c.pass(PATIENCE / 5);
    }
    c.settle();
    assert_eq!(c.w.taken(2), new);
    assert_eq!(c.w.broker.snapshots()[0].status.counters.lost, 3);
}

#[test]
fn a_context_that_violates_the_protocol_is_disconnected_and_takes_nothing_along() {
    let head = |record: Record<'_>| {
        let mut bytes = [0; 64];
        let len = record.emit_head(None, &mut bytes).unwrap();
        bytes[..len].to_vec()
    };
    let place = Place { path: 0, generation: 0, stage: 0 };
    let other = Place { stage: 5, ..place };
    let hello = head(Record::Hello { credit: 64 });
    let violations = [
        head(Record::Hello { credit: 0 }),
        vec![0; 64],
        vec![0xff; 64],
        [&hello[..], &hello].concat(),
        [&hello[..], &head(Record::Gone { place })].concat(),
        [
            &hello[..],
            &head(Record::Stage {
                place,
                room: 1,
                handler: "forward",
                parameters: "",
                supply: Supply::default(),
            }),
        ]
        .concat(),
        // Two messages were given.
        [&hello[..], &head(Record::Done { place, fault: false, ended: false }).repeat(3)].concat(),
        // The stage is the proxy's own, and was not described.
        [&hello[..], &head(Record::Same { place: Place { stage: 1, ..place }, output: 0 })].concat(),
        // A message that is longer than any of a channel.
        [&hello[..], &(64u32 << 20).to_le_bytes(), &[7; 60]].concat(),
    ];
    for (n, bytes) in violations.into_iter().enumerate() {
        let mut c = Cluster::new(push_pull(), &[("forward", G0, ""), ("forward", 0, "")]);
        c.w.connect_null(1, "PUSH");
        c.w.connect_null(2, "PULL");
        c.turn();
        let label = c.programs[0].label;
        let two = message(&[b"1"]).repeat(2);
        c.w.arrive(1, &two);
        let split = hello.len().min(bytes.len());
        for part in [&bytes[..split], &bytes[split..]] {
            if !c.w.has_ended(label) {
                c.w.arrive(label, part);
            }
        }
        assert!(c.w.has_ended(label), "violation {n}");
        let answered = c.w.taken(2);
        c.lose(0);
        assert_eq!(c.w.broker.contexts().elsewhere[0].violations, 1);
        c.pass(RETRY);
        c.settle();
        assert_eq!([answered, c.w.taken(2)].concat(), if n == 6 { vec![] } else { two }, "violation {n}");
    }
    // A stage that does not exist is over: the answer crossed GONE.
    let mut c = Cluster::new(push_pull(), &[("forward", G0, "")]);
    c.turn();
    let label = c.programs[0].label;
    c.w.arrive(
        label,
        &[&hello[..], &head(Record::Done { place: other, fault: false, ended: false })].concat(),
    );
    assert_eq!(c.w.steps[&label], Step::Moved);
}

#[test]
fn what_a_context_emits_without_room_is_bounded() {
    let mut c = Cluster::new(push_pull(), &[("forward", G0, "")]);
    c.w.connect_null(1, "PUSH");
    c.w.connect_null(2, "PULL");
    c.w.ends.get_mut(&2).unwrap().room = 0;
    c.turn();
    let (label, place) = (c.programs[0].label, Place { path: 0, generation: 0, stage: 0 });
    let head = |record: Record<'_>| {
        let mut bytes = [0; 32];
        record.emit_head(None, &mut bytes).unwrap();
        bytes.to_vec()
    };
    c.w.arrive(label, &head(Record::Hello { credit: 64 }));
    c.w.arrive(1, &message(&[b"1"]));
    let same = head(Record::Same { place, output: 0 }).repeat(2_000);
    let mut arrived = 0;
    while !c.w.has_ended(label) {
        arrived += same.len();
        assert!(arrived < 4 << 20, "it goes on forever");
        c.w.arrive(label, &same);
    }
    assert!(arrived > 256 << 10, "{arrived} bytes are within its room");
}
