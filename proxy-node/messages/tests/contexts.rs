//! Contexts and paths, one behaviour at a time. Random ones are in `paths.rs`.
#![allow(clippy::unwrap_used, reason = "a test")]

use csp_handlers::{Call, Emit, FormatId, Full, Handler, Needs, ParameterError, State, Stop, Tick};
use csp_messages::{
    Budget, ChannelConfig, ChannelId, ChannelKind, FullQueue, HashKey, MessagePlane, PathChange, PathError,
    PathId, PathSpec, PathState, PeerId, PlaneConfig, PublishError, QueueLimits, Role, StageMaker, StageSpec,
    Targets,
};
use csp_types::{Duration, Instant};

const QUEUE: QueueLimits = QueueLimits { messages: 4, bytes: 1 << 20, in_flight: 4 };

struct World {
    plane: MessagePlane,
    channel: ChannelId,
    publisher: PeerId,
    receiver: PeerId,
}

impl World {
    fn new(policy: FullQueue) -> Self {
        let config = PlaneConfig { peers_max: 8, channels_max: 4, ..PlaneConfig::new(HashKey([3, 5])) };
        let mut plane = MessagePlane::new(config).unwrap();
        plane.handlers_mut().deploy("odd", Box::new(|| Box::new(Odd::default()))).unwrap();
        let kind = ChannelKind::PublishSubscribe { policy, cache: None };
        let (budget, queue) = (Budget { guaranteed: 1 << 20, max: 2 << 20 }, QUEUE);
        let config =
            ChannelConfig { name: "c".into(), kind, budget, message_len_max: 10_000, queue, sequence: false };
        let channel = plane.add_channel(config).unwrap();
        let publisher = plane.attach(channel, Role::Publisher).unwrap();
        let receiver = plane.attach(channel, Role::Subscriber).unwrap();
        plane.subscribe(Instant::ZERO, receiver, b"").unwrap();
        World { plane, channel, publisher, receiver }
    }

    fn activate(&mut self, stages: &[(&str, u16, &str)]) -> PathId {
        let spec = PathSpec { queue: QUEUE, ..PathSpec::chain(self.channel, stages) };
        self.plane.activate_path(Instant::ZERO, spec).unwrap()
    }

    fn publish(&mut self, byte: u8) -> Result<u32, PublishError> {
        let done = self.plane.publish_as(
            Instant::ZERO,
            self.publisher,
            FormatId::UNKNOWN,
            &[1],
            [&[byte][..]].into_iter(),
        );
        done.map(|published| published.dropped)
    }

    fn run(&mut self) {
        while self.plane.next_resumed(None).is_some() {}
        while let Some(mut turn) = self.plane.next_flow() {
            let is_context = self.plane.is_context(&turn);
            self.plane.run_context(Instant::ZERO, &mut turn, None, None);
            self.plane.end_turn(turn);
            if !is_context && !self.plane.contexts_have_work() {
                break;
            }
        }
    }

    /// Runs contexts, and returns the first byte of each message that is received.
    fn receive(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        loop {
            self.run();
            let Some(delivery) = self.plane.next_delivery(Instant::ZERO, self.receiver) else { return bytes };
            bytes.push(self.plane.slices(delivery.handle).next().unwrap()[0]);
            self.plane.delivered(self.receiver, delivery.handle).unwrap();
        }
    }
}

/// Handlers that misbehave, by parameter.
#[derive(Debug, Default)]
struct Odd(String);

impl Handler for Odd {
    fn needs(&self) -> Needs {
        let period = Some(Duration::from_millis(5));
        Needs { state: 16, more_max: 100, outputs: 2, new_len_max: 2, period, layout: Some(0) }
    }

    fn accepts(&self, format: FormatId) -> bool {
        format != FormatId(13)
    }

    fn yields(&self, output: u8, input: FormatId) -> FormatId {
        if output == 1 { FormatId(13) } else { input }
    }

    fn configure(&mut self, parameters: &str, _: &mut State) -> Result<(), ParameterError> {
        if parameters == "wrong" {
            return Err(ParameterError("it is wrong".into()));
        }
        self.0 = parameters.to_owned();
        Ok(())
    }

    fn on_message(&mut self, call: &mut Call<'_>) -> Result<(), Stop> {
        match self.0.as_str() {
            "faults" => Err(Stop::Fault("as its parameter says")),
            "ignores" => {
                let results = [(); 8].map(|()| call.emit(0, Emit::Same));
                assert!(results.contains(&Err(Full)));
                Ok(())
            }
            "lies" => Err(Stop::Full),
            "wrong output" => Ok(call.emit(2, Emit::Same)?),
            "too long" => Ok(call.emit(0, Emit::New { format: FormatId(1), frames: &[3], pieces: &[] })?),
            "too short" => Ok(call.emit(0, Emit::New { format: FormatId(1), frames: &[2], pieces: &[] })?),
            "no frames" => Ok(call.emit(0, Emit::Frames { format: FormatId(1), first: 1, count: 1 })?),
            _ => Ok(call.emit(0, Emit::Same)?),
        }
    }

    fn on_timer(&mut self, tick: &mut Tick<'_>) -> Result<(), Stop> {
        Ok(tick.emit(0, FormatId(2), &[1], b"T")?)
    }
}

fn odd(channel: ChannelId, parameters: &str) -> PathSpec {
    let outputs = vec![Targets::RECEIVERS, Targets::NONE];
    let stage =
        StageSpec { handler: "odd".into(), context: 0, maker: None, parameters: parameters.into(), outputs };
    PathSpec { stages: vec![stage], queue: QUEUE, ..PathSpec::chain(channel, &[]) }
}

#[test]
fn messages_pass_their_path_in_order_and_the_default_path_runs_no_context() {
    let mut world = World::new(FullQueue::DropNewest);
    (1..4).for_each(|byte| assert_eq!(world.publish(byte), Ok(0)));
    assert!(!world.plane.contexts_have_work());
    assert_eq!(world.receive(), [1, 2, 3]);
    let path = world.activate(&[("forward", 0, ""), ("duplicate", 1, "2"), ("drop-every", 0, "3")]);
    (1..4).for_each(|byte| assert_eq!(world.publish(byte), Ok(0)));
    assert_eq!(world.receive(), [1, 1, 2, 3]);
    let status = world.plane.path_status(path).unwrap();
    let calls: Vec<_> =
        status.stages.iter().map(|stage| (stage.profile.messages, stage.profile.emitted)).collect();
    assert_eq!(calls, [(3, 3), (3, 6), (6, 4)]);
    assert_eq!((status.counters.entered, status.counters.delivered), (3, 4));
    let contexts = world.plane.contexts();
    assert_eq!((contexts[0].report.messages, contexts[1].report.messages, contexts[0].stages), (9, 3, 2));
}

#[test]
fn an_output_goes_to_several_queues_and_to_receivers() {
    let mut world = World::new(FullQueue::DropNewest);
    let mut spec =
        PathSpec::chain(world.channel, &[("multicast", 0, "5"), ("forward", 1, ""), ("forward", 2, "")]);
    let (a, b) = (Targets::stage(1), Targets::stage(2));
    spec.stages[0].outputs = vec![a.and(b), Targets::RECEIVERS, Targets::NONE, b, Targets::NONE];
    spec.stages[0].outputs.resize(usize::from(csp_handlers::OUTPUTS_MAX), Targets::NONE);
    spec.stages[1].outputs = vec![Targets::RECEIVERS];
    world.plane.activate_path(Instant::ZERO, spec).unwrap();
    world.publish(9).unwrap();
    // Output 0 gives two, 1 one, 3 one.
    assert_eq!(world.receive(), [9; 4]);
    assert_eq!(world.plane.occupancy().blocks_used, 0);
}

#[test]
fn a_path_that_cannot_be_is_refused_and_the_former_one_stays() {
    let mut world = World::new(FullQueue::Block);
    let id = world.activate(&[("drop-every", 0, "2")]);
    let chain = |stages: &[(&str, u16, &str)]| PathSpec::chain(world.channel, stages);
    let forward = chain(&[("forward", 0, ""), ("forward", 1, "")]);
    let with = |change: &dyn Fn(&mut PathSpec)| {
        let mut spec = forward.clone();
        change(&mut spec);
        spec
    };
    let mut follows = odd(world.channel, "");
    follows.stages[0].outputs = vec![Targets::RECEIVERS, Targets::stage(1)];
    follows.stages.push(odd(world.channel, "").stages.remove(0));
    follows.format = Some(FormatId(4));
    let cases = [
        (chain(&[]), "a path has 1 to 8 handlers, not 0"),
        (chain(&[("forward", 0, ""); 9]), "a path has 1 to 8 handlers, not 9"),
        (chain(&[("frward", 0, "")]), "there is no handler `frward`"),
        (chain(&[("forward", 8, "")]), "there is no context c8: the worker has 8, from c0 on"),
        (chain(&[("odd", 0, "")]), "stage 0 has 1 outputs, and its handler has 2"),
        (chain(&[("duplicate", 0, "0")]), "handler `duplicate`: `0` is not a number of copies from 1 to 64"),
        (chain(&[("forward", 0, "x")]), "handler `forward`: the handler has no parameters, and got `x`"),
        (odd(world.channel, "wrong"), "handler `odd`: it is wrong"),
        (
            with(&|spec| spec.stages[1].outputs = vec![Targets::stage(1)]),
            "stage 1 emits to stage 1, which does not come later",
        ),
        (
            with(&|spec| spec.stages[0].outputs = vec![Targets::stage(2)]),
            "stage 0 emits to stage 2, which does not come later",
        ),
        (with(&|spec| spec.stages[0].outputs = vec![Targets::RECEIVERS]), "no output goes to stage 1"),
        (with(&|spec| spec.queue.messages = 0), "a path's queue needs room for a message"),
        (follows, "handler `odd` does not process format 13, which it would get"),
    ];
    for (spec, expected) in cases {
        let error = world.plane.activate_path(Instant::ZERO, spec).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
    assert_eq!(world.plane.paths().len(), 1);
    (1..4).for_each(|byte| world.publish(byte).map(drop).unwrap());
    assert_eq!((world.receive(), world.plane.path_status(id).is_some()), (vec![1, 3], true));
}

#[test]
fn memory_that_a_path_needs_is_checked_before() {
    let mut world = World::new(FullQueue::Block);
    let contexts = csp_messages::ContextsConfig { state_bytes_max: 200, ..Default::default() };
    world.plane = MessagePlane::new(PlaneConfig { contexts, ..PlaneConfig::new(HashKey([1, 2])) }).unwrap();
    world.plane.handlers_mut().deploy("odd", Box::new(|| Box::new(Odd::default()))).unwrap();
    let kind = ChannelKind::PublishSubscribe { policy: FullQueue::Block, cache: None };
    let budget = Budget { guaranteed: 2048, max: 1 << 20 };
    let config = ChannelConfig {
        name: "c".into(),
        kind,
        budget,
        message_len_max: 2048,
        queue: QUEUE,
        sequence: false,
    };
    let channel = world.plane.add_channel(config).unwrap();
    let error = world.plane.activate_path(Instant::ZERO, odd(channel, "")).unwrap_err();
    assert_eq!(error, PathError::Memory { needed: 2, has: 1 });
    let kind = ChannelKind::PublishSubscribe { policy: FullQueue::DropNewest, cache: None };
    let config = ChannelConfig {
        name: "d".into(),
        kind,
        budget,
        message_len_max: 2048,
        queue: QUEUE,
        sequence: false,
    };
    let channel = world.plane.add_channel(config).unwrap();
    world.plane.activate_path(Instant::ZERO, odd(channel, "")).unwrap();
    let error = world.plane.activate_path(Instant::ZERO, odd(channel, "")).unwrap_err();
    assert_eq!(error, PathError::State { context: 0, needed: 116, left: 84 });
}

#[test]
fn what_is_in_the_former_path_leaves_first_and_its_state_goes_on() {
    let mut world = World::new(FullQueue::DropNewest);
    let old = world.activate(&[("drop-every", 0, "3")]);
    [1, 2].into_iter().for_each(|byte| _ = world.publish(byte).unwrap());
    let new = world.activate(&[("drop-every", 3, "3")]);
    let state = |world: &World, id| world.plane.path_status(id).map(|path| path.state);
    assert_eq!(
        (state(&world, old), state(&world, new)),
        (Some(PathState::Retired), Some(PathState::Waiting))
    );
    [3, 4].into_iter().for_each(|byte| _ = world.publish(byte).unwrap());
    assert_eq!(world.receive(), [1, 2, 4]);
    assert_eq!((state(&world, old), state(&world, new)), (None, Some(PathState::Active)));
    world.publish(5).unwrap();
    world.plane.replace_paths(Instant::ZERO, world.channel, Vec::new()).unwrap();
    world.publish(6).unwrap();
    assert_eq!((world.receive(), world.plane.paths().len()), (vec![5, 6], 0));
    let over = world.plane.replace_paths(Instant::ZERO, world.channel, vec![PathChange::Keep(new)]);
    assert_eq!(over, Err(PathError::UnknownPath));
    let drops = world.plane.handlers().into_iter().find(|handler| handler.name == "drop-every").unwrap();
    assert_eq!((drops.profile.messages, drops.stages), (5, 0));
}

#[test]
fn parameters_change_between_two_messages() {
    let mut world = World::new(FullQueue::DropNewest);
    let path = world.activate(&[("duplicate", 0, "1")]);
    world.publish(1).unwrap();
    assert_eq!(world.receive(), [1]);
    world.plane.configure_handler(path, 0, "3").unwrap();
    assert!(world.plane.configure_handler(path, 0, "none").is_err());
    assert!(world.plane.configure_handler(path, 1, "3").is_err());
    world.publish(2).unwrap();
    assert_eq!(world.receive(), [2, 2, 2]);
}

#[test]
fn a_full_path_drops_with_a_counter_or_holds_back() {
    for (policy, received, drops) in [
        (FullQueue::DropNewest, [1, 2, 3, 4], [0, 0, 0, 0, 1, 1]),
        (FullQueue::DropOldest, [3, 4, 5, 6], [0, 0, 0, 0, 1, 1]),
    ] {
        let mut world = World::new(policy);
        let path = world.activate(&[("forward", 0, "")]);
        assert_eq!([1, 2, 3, 4, 5, 6].map(|byte| world.publish(byte).unwrap()), drops);
        let counters = world.plane.path_status(path).unwrap().counters;
        assert_eq!(counters.dropped_newest + counters.dropped_oldest, 2);
        assert_eq!(world.plane.channel_status(world.channel).unwrap().counters.dropped_path, 2);
        assert_eq!(world.receive(), received);
    }
    let mut world = World::new(FullQueue::Block);
    world.activate(&[("forward", 0, "")]);
    let done = [1, 2, 3, 4, 5].map(|byte| world.publish(byte));
    assert_eq!(done, [Ok(0), Ok(0), Ok(0), Ok(0), Err(PublishError::Held)]);
    assert_eq!(world.plane.next_resumed(None), None);
    assert_eq!(world.receive(), [1, 2, 3, 4]);
    world.publish(5).unwrap();
    assert_eq!(world.receive(), [5]);
}

#[test]
fn a_receiver_that_does_not_read_holds_its_path_back_and_no_other() {
    let mut world = World::new(FullQueue::Block);
    let path = world.activate(&[("duplicate", 0, "3"), ("forward", 0, "")]);
    let calm = {
        let kind = ChannelKind::PublishSubscribe { policy: FullQueue::DropNewest, cache: None };
        let budget = Budget { guaranteed: 1 << 20, max: 2 << 20 };
        let config = ChannelConfig {
            name: "calm".into(),
            kind,
            budget,
            message_len_max: 10_000,
            queue: QUEUE,
            sequence: false,
        };
        world.plane.add_channel(config).unwrap()
    };
    let sender = world.plane.attach(calm, Role::Both).unwrap();
    world.plane.subscribe(Instant::ZERO, sender, b"").unwrap();
    world.plane.activate_path(Instant::ZERO, PathSpec::chain(calm, &[("forward", 0, "")])).unwrap();
    let mut published = 0;
    for byte in 0..20 {
        published += u32::from(world.publish(byte).is_ok());
        world.run();
    }
    assert!(published < 20);
    assert!(world.plane.path_status(path).unwrap().stages.iter().any(|stage| stage.held));
    world.plane.publish_as(Instant::ZERO, sender, FormatId::UNKNOWN, &[1], [&b"x"[..]].into_iter()).unwrap();
    world.run();
    assert!(world.plane.next_delivery(Instant::ZERO, sender).is_some(), "the same context serves others");
    assert_eq!(world.receive().len() as u32, 3 * published);
}

#[test]
fn handlers_that_misbehave_are_counted() {
    let cases: [(&str, bool, &[u8]); 8] = [
        ("faults", false, &[]),
        ("faults", true, &[1]),
        ("lies", true, &[1]),
        ("ignores", false, &[1, 1, 1, 1]),
        ("wrong output", false, &[]),
        ("too long", false, &[]),
        ("too short", false, &[]),
        ("no frames", false, &[]),
    ];
    for (parameters, passes_faults, received) in cases {
        let mut world = World::new(FullQueue::Block);
        let spec = PathSpec { passes_faults, ..odd(world.channel, parameters) };
        let path = world.plane.activate_path(Instant::ZERO, spec).unwrap();
        world.publish(1).unwrap();
        assert_eq!(world.receive(), received, "{parameters}");
        let status = world.plane.path_status(path).unwrap();
        let (counters, profile) = (status.counters, status.stages[0].profile);
        let expected = match parameters {
            "faults" | "lies" => (1, u64::from(!passes_faults), 0, 0),
            "ignores" => (0, 0, 4, 0),
            _ => (0, 0, 0, 1),
        };
        let counted =
            (profile.faults, counters.dropped_faults, counters.dropped_ignored, counters.dropped_invalid);
        assert_eq!(counted, expected, "{parameters}");
        assert_eq!(world.plane.occupancy().blocks_used, 0, "{parameters}");
    }
}

#[test]
fn timers_call_handlers_between_messages() {
    let mut world = World::new(FullQueue::DropNewest);
    assert_eq!(world.plane.next_timeout(), None);
    world.plane.activate_path(Instant::ZERO, odd(world.channel, "")).unwrap();
    let at = Instant::ZERO + Duration::from_millis(5);
    assert_eq!(world.plane.next_timeout(), Some(at));
    world.publish(1).unwrap();
    world.plane.on_timeout(Instant::ZERO);
    assert_eq!(world.receive(), [1]);
    world.plane.on_timeout(at);
    world.publish(2).unwrap();
    assert_eq!(world.receive(), [b'T', 2]);
    assert_eq!(world.plane.next_timeout(), Some(at + Duration::from_millis(5)));
}

#[test]
fn a_removed_channel_takes_its_paths_with_it() {
    let mut world = World::new(FullQueue::DropNewest);
    let old = world.activate(&[("forward", 0, "")]);
    world.publish(1).unwrap();
    let new = world.activate(&[("forward", 1, "")]);
    [2, 3].into_iter().for_each(|byte| _ = world.publish(byte).unwrap());
    let counters = world.plane.remove_channel(world.channel).unwrap();
    assert_eq!((counters.lost, world.plane.occupancy().blocks_used), (3, 0));
    assert!(world.plane.path_status(old).is_none() && world.plane.path_status(new).is_none());
    world.run();
    assert!(world.plane.paths().is_empty() && world.plane.next_flow().is_none());
}

#[test]
fn calls_are_measured_by_the_caller_s_clock() {
    let mut world = World::new(FullQueue::DropNewest);
    let path = world.activate(&[("forward", 0, "")]);
    [1, 2, 3].into_iter().for_each(|byte| _ = world.publish(byte).unwrap());
    let mut nanos = 0;
    let mut clock = || {
        nanos += 250;
        Instant::from_nanos(nanos)
    };
    while let Some(mut turn) = world.plane.next_flow() {
        let is_context = world.plane.is_context(&turn);
        world.plane.run_context(Instant::ZERO, &mut turn, Some(&mut clock), None);
        world.plane.end_turn(turn);
        if !is_context {
            break;
        }
    }
    let timing = world.plane.path_status(path).unwrap().stages[0].profile.timing;
    assert_eq!(
        (timing.measured, timing.mean(), timing.max),
        (1, Duration::from_nanos(250), Duration::from_nanos(250))
    );
    assert_eq!(world.plane.contexts()[0].report.busy(), Duration::from_nanos(750));
}

/// The same name and state as [`Odd`], and another timer: `None` has none.
#[derive(Debug)]
struct Timed(Option<Duration>);

impl Handler for Timed {
    fn needs(&self) -> Needs {
        Needs { period: self.0, ..Odd::default().needs() }
    }

    fn configure(&mut self, _: &str, _: &mut State) -> Result<(), ParameterError> {
        Ok(())
    }

    fn on_message(&mut self, call: &mut Call<'_>) -> Result<(), Stop> {
        Ok(call.emit(0, Emit::Same)?)
    }

    fn on_timer(&mut self, _: &mut Tick<'_>) -> Result<(), Stop> {
        assert!(self.0.is_some(), "it has no timer");
        Ok(())
    }
}

#[test]
fn a_handler_that_goes_on_with_another_s_state_has_its_own_timer() {
    let mut world = World::new(FullQueue::DropNewest);
    let timed = |channel, period: Option<Duration>| {
        let mut spec = odd(channel, "");
        let make = move || Some(Box::new(Timed(period)) as Box<dyn Handler>);
        spec.stages[0].maker = Some(StageMaker::new(&format!("{period:?}"), make));
        spec
    };
    let ms = |ms| Instant::ZERO + Duration::from_millis(ms);
    world.plane.activate_path(Instant::ZERO, odd(world.channel, "")).unwrap();
    assert_eq!(world.plane.next_timeout(), Some(ms(5)));
    // The first time is that of the former timer, which runs; then the new period counts.
    world.plane.activate_path(Instant::ZERO, timed(world.channel, Some(Duration::from_millis(20)))).unwrap();
    assert_eq!(world.plane.next_timeout(), Some(ms(5)));
    world.plane.on_timeout(ms(5));
    assert_eq!(world.plane.next_timeout(), Some(ms(25)));
    world.run();
    world.plane.activate_path(ms(5), timed(world.channel, None)).unwrap();
    assert_eq!(world.plane.next_timeout(), None);
    world.plane.on_timeout(ms(100));
    world.publish(1).unwrap();
    assert_eq!(world.receive(), [1]);
    world.plane.activate_path(ms(100), odd(world.channel, "")).unwrap();
    assert_eq!(world.plane.next_timeout(), Some(ms(105)));
    world.plane.replace_paths(ms(100), world.channel, Vec::new()).unwrap();
    assert_eq!(world.plane.next_timeout(), None);
}
