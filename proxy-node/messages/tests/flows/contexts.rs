//! Contexts divided among flows: messages wait in their flow's queue, pass the channel's path in a context's
//! time, and wait for the link.

use csp_handlers::{Call, Emit, Handler, Needs, ParameterError, State, Stop};
use csp_messages::{FullQueue, PathSpec};
use csp_quality::{FlowSpec, FlowStatus, Overflow, Scheme};
use csp_support::Random;
use csp_types::{Duration, FlowLabel, FourTuple, Instant};

use crate::elsewhere::{self, Elsewhere};
use crate::world::{LINK, World, at, seconds, seeds, spec};

/// A flow of a channel with a path, of which contexts are promised.
fn with_path(name: &str, number: u32, priority: u8, contexts: u16) -> FlowSpec {
    let mut spec = spec(name, number, priority, 0);
    spec.post = Some("path".to_owned());
    spec.reservation.contexts = contexts;
    spec
}

fn set_path(world: &mut World, at: usize, stages: &[(&str, u16, &str)]) {
    let spec = PathSpec::chain(world.pairs[at].channel, stages);
    world.plane.activate_path(world.now, spec).unwrap();
}

/// Fig. 5 of the paper, a tenth of its rates: eight contexts just fill the link; one is A's, two are B's, one
/// is C's, four are allotted to nobody.
fn scarce(scheme: Scheme) -> (World, Vec<FlowStatus>) {
    let mut world = World::new(&[3_800_000, 50_000_000, 3_800_000], FullQueue::DropNewest);
    world.contexts = 8;
    // 12,000 bits in 240 us are 50 Mb/s.
    world.cost = Duration::from_micros(239);
    for pair in 0..3 {
        set_path(&mut world, pair, &[("forward", 0, "")]);
    }
    let flows = vec![with_path("a", 0, 0, 1), with_path("b", 1, 9, 2), with_path("c", 2, 0, 1)];
    world.set_flows(flows, scheme, |_| Vec::new());
    world.run(seconds(2.0));
    let flows = ["a", "b", "c"].map(|name| world.status(name)).to_vec();
    world.assert_in_order();
    (world, flows)
}

#[test]
fn static_contexts_leave_the_link_idle_and_lent_ones_fill_it() {
    let (sa, flows) = scarce(Scheme::Static);
    let mbps = |world: &World| [0, 1, 2].map(|flow| world.mbps(flow, at(1.0), at(2.0)));
    let of_sa = mbps(&sa);
    let used: f64 = of_sa.iter().sum::<f64>() / (LINK as f64 / 1e6);
    assert!((0.38..=0.42).contains(&used), "SA uses {used} of the link: {of_sa:?}");
    // Two of eight contexts: a quarter of the time.
    let busy = flows[1].context_time.as_secs_f64() / sa.now.as_nanos() as f64 * 1e9;
    assert!((1.97..=2.03).contains(&busy), "{busy} contexts of two");
    let (par, of_par_flows) = scarce(Scheme::PriorityAwareReserved);
    let of_par = mbps(&par);
    let used: f64 = of_par.iter().sum::<f64>() / (LINK as f64 / 1e6);
    assert!(used >= 0.99, "PAR uses {used} of the link: {of_par:?}");
    assert!(of_par[1] >= 3.0 * of_sa[1], "{of_par:?} {of_sa:?}");
    let mean = |flow: &FlowStatus| flow.delay_sum.as_secs_f64() / flow.counters.released as f64;
    assert!(mean(&of_par_flows[1]) <= 0.5 * mean(&flows[1]));
    // A's and C's contexts are theirs whenever they have something.
    assert!(of_par[0] > 3.6 && of_par[2] > 3.6, "{of_par:?}");
}

#[test]
fn each_scheme_divides_contexts_as_it_says() {
    for (scheme, expected) in [
        (Scheme::RoundRobin, [10.0, 10.0]),
        (Scheme::EqualStatic, [10.0, 10.0]),
        (Scheme::Static, [10.0, 5.0]),
        (Scheme::PriorityAware, [0.0, 20.0]),
        (Scheme::PriorityAwareReserved, [10.0, 10.0]),
    ] {
        // The link has room for all that contexts can do: 20 Mb/s.
        let mut world = World::new(&[40_000_000, 40_000_000], FullQueue::DropNewest);
        (world.contexts, world.cost) = (4, Duration::from_micros(600));
        (0..2).for_each(|pair| set_path(&mut world, pair, &[("forward", 0, "")]));
        let flows = vec![with_path("a", 0, 0, 2), with_path("b", 1, 1, 1)];
        // The default flow has no handler, and no claim to contexts. One of four is allotted to nobody.
        world.set_flows(flows, scheme, |_| Vec::new());
        world.run(seconds(1.0));
        let seen = [0, 1].map(|flow| world.mbps(flow, at(0.5), at(1.0)));
        for (seen, expected) in seen.iter().zip(expected) {
            assert!((seen - expected).abs() < 0.5, "{scheme:?}: {seen} instead of {expected} Mb/s");
        }
        world.assert_in_order();
    }
}

#[test]
fn contexts_that_are_lent_come_back_at_the_next_point() {
    let mut world = World::new(&[40_000_000, 0], FullQueue::DropNewest);
    (world.contexts, world.cost) = (4, Duration::from_micros(600));
    (0..2).for_each(|pair| set_path(&mut world, pair, &[("forward", 0, "")]));
    let flows = vec![with_path("a", 0, 0, 0), with_path("b", 1, 0, 3)];
    world.set_flows(flows, Scheme::PriorityAwareReserved, |_| Vec::new());
    world.run(seconds(0.5));
    assert!((world.mbps(0, at(0.3), at(0.5)) - 20.0).abs() < 0.5, "all contexts are lent");
    world.pairs[1].rate = 40_000_000;
    world.run(seconds(0.5));
    // A point is after 16 items of a context: 16 * 2.4 ms at the latest.
    let (a, b) = (world.mbps(0, at(0.56), at(1.0)), world.mbps(1, at(0.56), at(1.0)));
    // Three are B's, and both share the fourth.
    assert!((a - 2.5).abs() < 0.5 && (b - 17.5).abs() < 0.5, "{a} {b}");
}

#[test]
fn what_handlers_drop_and_make_is_counted_and_keeps_its_order() {
    let mut world = World::new(&[4_000_000, 4_000_000, 4_000_000], FullQueue::DropNewest);
    (world.contexts, world.cost) = (2, Duration::from_micros(10));
    set_path(&mut world, 0, &[("drop-every", 0, "3"), ("forward", 1, "")]);
    set_path(&mut world, 1, &[("duplicate", 0, "3")]);
    let flows = vec![with_path("drops", 0, 0, 0), with_path("makes", 1, 0, 0), with_path("none", 2, 0, 0)];
    world.set_flows(flows, Scheme::RoundRobin, |_| Vec::new());
    world.run(seconds(0.5));
    world.pairs.iter_mut().for_each(|pair| pair.rate = 0);
    world.run(seconds(0.2));
    let sent = world.pairs.iter().map(|pair| pair.sent).collect::<Vec<_>>();
    let counters = ["drops", "makes", "none"].map(|name| world.status(name).counters);
    assert_eq!(counters.map(|counters| counters.outstanding()), [0; 3]);
    assert_eq!(counters[0].absorbed, sent[0] / 3);
    assert_eq!((counters[1].made, counters[1].released), (2 * sent[1], 3 * sent[1]));
    // A channel without a path needs no context.
    assert_eq!((counters[2].taken, counters[2].released), (0, sent[2]));
    let numbers = |pair: usize| world.pairs[pair].received.iter().map(|(number, _)| *number);
    assert!(numbers(0).eq((0..sent[0]).filter(|number| number % 3 != 2)));
    assert!(numbers(1).eq((0..sent[1]).flat_map(|number| [number; 3])));
    assert!(numbers(2).eq(0..sent[2]));
    assert_eq!(world.plane.occupancy().messages, 0);
}

/// Makes a new message of the same bytes, and so needs memory.
#[derive(Debug)]
struct Copies;

impl Handler for Copies {
    fn needs(&self) -> Needs {
        Needs { new_len_max: 1_500, ..Needs::default() }
    }

    fn configure(&mut self, _: &str, _: &mut State) -> Result<(), ParameterError> {
        Ok(())
    }

    fn on_message(&mut self, call: &mut Call<'_>) -> Result<(), Stop> {
        let (format, len) = (call.message().format, call.message().len);
        let piece = csp_handlers::Piece::Of { start: 0, len };
        Ok(call.emit(0, Emit::New { format, frames: &[len], pieces: &[piece] })?)
    }
}

/// Schemes, priorities, promises, paths and the number of contexts change while traffic runs; at the end
/// there are no flows.
#[test]
fn contexts_change_while_traffic_runs_and_nothing_is_lost_or_reordered() {
    for seed in seeds() {
        let mut random = Random::new(seed);
        let rates: Vec<u64> = (0..4).map(|_| (2 + random.below(20)) * 1_000_000).collect();
        let policy = [FullQueue::DropNewest, FullQueue::Block][random.below(2) as usize];
        let mut world = World::new(&rates, policy);
        world.plane.handlers_mut().deploy("copies", Box::new(|| Box::new(Copies))).unwrap();
        world.cost = Duration::from_micros(100 + random.below(300));
        let mut paths = Vec::new();
        for _ in 0..16 {
            world.contexts = [0, 1, 3, 8][random.below(4) as usize];
            let chosen: Vec<u32> = (0..4).filter(|_| random.below(4) > 0).collect();
            let flows = chosen.into_iter().map(|number| {
                let own = random.below(3).min(u64::from(world.contexts) / 4) as u16;
                let mut flow = with_path(&format!("flow-{number}"), number, random.below(4) as u8, own);
                flow.post = flow.post.filter(|_| world.contexts > 0);
                flow.overflow = Overflow::Hold;
                flow.bounds.items = 1 + random.below(100) as u32;
                flow
            });
            let flows: Vec<FlowSpec> = flows.collect();
            let scheme = Scheme::ALL[random.below(5) as usize];
            match random.below(6) {
                0 => world.end_flows(),
                _ => world.set_flows(flows, scheme, |_| Vec::new()),
            }
            let pair = random.below(4) as usize;
            let spec = |stages| PathSpec::chain(world.pairs[pair].channel, stages);
            match random.below(4) {
                0 => paths.push(world.plane.activate_path(world.now, spec(&[("forward", 0, "")])).unwrap()),
                1 => {
                    let spec = spec(&[("copies", 0, ""), ("forward", 1, ""), ("copies", 2, "")]);
                    paths.push(world.plane.activate_path(world.now, spec).unwrap());
                }
                2 => {
                    let path = paths.pop().and_then(|path| world.plane.path_status(path));
                    _ = path.map(|path| world.plane.replace_paths(world.now, path.channel, Vec::new()));
                }
                _ => {}
            }
            let subscriber = world.pairs[random.below(4) as usize].subscriber;
            world.plane.set_parked(subscriber, random.below(4) == 0);
            world.run(Duration::from_micros(1 + random.below(50_000)));
        }
        for pair in &mut world.pairs {
            pair.rate = 0;
            world.plane.set_parked(pair.subscriber, false);
        }
        world.end_flows();
        world.run(Duration::from_millis(20));
        world.assert_in_order();
        for pair in &world.pairs {
            let counters = world.plane.channel_status(pair.channel).unwrap().counters;
            let dropped = counters.dropped_flow + counters.dropped_path + counters.dropped_newest;
            let received = pair.received.len() as u64;
            assert_eq!(
                pair.sent,
                received + dropped,
                "seed {seed}: {} of channel {}",
                pair.sent,
                pair.number
            );
            assert_eq!(world.plane.waiting_in_flows(pair.channel), 0);
        }
        assert_eq!(world.plane.occupancy().messages, 0, "seed {seed}: a message is not released");
    }
}

#[test]
fn what_handlers_take_is_measured_and_charged() {
    thread_local! {
        static TIME: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    }
    // Each look takes 150 us: two are in what is measured of a message, and two more measure its handler now
    // and then.
    let clock = || TIME.with(|time| Instant::from_nanos(time.replace(time.get() + 150_000)));
    let mut world = World::new(&[40_000_000], FullQueue::DropNewest);
    world.contexts = 4;
    set_path(&mut world, 0, &[("forward", 0, "")]);
    let mut flow = with_path("a", 0, 0, 0);
    // No profile: nothing is promised.
    flow.post = Some("unknown".to_owned());
    world.set_flows(vec![flow], Scheme::RoundRobin, |_| Vec::new());
    world.link.set_clock(Some(clock));
    world.run(seconds(1.0));
    let status = world.status("a");
    assert!((150..=600).contains(&status.cost.as_micros()), "{:?}", status.cost);
    // Four contexts have the whole worker.
    let expected = 12_000.0 / status.cost.as_secs_f64() / 1e6;
    let seen = world.mbps(0, at(0.5), at(1.0));
    assert!((seen / expected - 1.0).abs() < 0.15, "{seen} instead of {expected} Mb/s");
}

#[test]
fn streams_of_a_flow_do_not_wait_for_its_contexts() {
    let mut world = World::new(&[0], FullQueue::DropNewest);
    (world.contexts, world.cost) = (1, Duration::from_millis(1));
    set_path(&mut world, 0, &[("forward", 0, "")]);
    // Messages and streams alike are in this flow.
    let all = FlowSpec { predicate: csp_quality::Predicate::default(), ..with_path("all", 0, 0, 1) };
    world.set_flows(vec![all], Scheme::PriorityAwareReserved, |_| Vec::new());
    (0..20).for_each(|_| world.publish(0));
    let tuple = FourTuple { local: ([10, 0, 0, 1], 80).into(), remote: ([10, 0, 0, 9], 40_000).into() };
    let want = |world: &mut World, index| {
        let link = world.link.shared_mut().unwrap();
        link.want_bytes(world.now, FlowLabel::new(index, 0), tuple, 1_000);
    };
    (1..=5).for_each(|index| want(&mut world, index));
    world.run(Duration::from_millis(5));
    let allowed = std::iter::from_fn(|| world.link.next_allowed());
    let allowed: Vec<_> = allowed.map(|(label, _)| label.index()).collect();
    assert_eq!(allowed, [1, 2, 3, 4, 5], "while {} messages wait", 20 - world.pairs[0].received.len());
    // It waits when flows end, and needs nobody's leave then.
    want(&mut world, 6);
    world.end_flows();
    world.run(Duration::from_millis(50));
    assert!(world.pairs[0].received.iter().map(|(number, _)| *number).eq(0..20));
    assert_eq!(world.plane.occupancy().messages, 0);
}

#[test]
fn a_stage_that_moves_elsewhere_while_messages_wait_keeps_their_order() {
    let mut world = World::new(&[0], FullQueue::DropNewest);
    (world.contexts, world.cost) = (1, Duration::from_millis(1));
    assert!(world.plane.set_remote(elsewhere::CONTEXT, 3));
    let mut far = Elsewhere::default();
    set_path(&mut world, 0, &[("forward", 0, "")]);
    world.set_flows(vec![with_path("a", 0, 0, 1)], Scheme::PriorityAwareReserved, |_| Vec::new());
    for round in 0..6 {
        (0..10).for_each(|_| world.publish(0));
        world.run(Duration::from_millis(3));
        let context = if round % 2 == 0 { elsewhere::CONTEXT } else { 0 };
        set_path(&mut world, 0, &[("forward", context, "")]);
        (0..10).for_each(|_| world.publish(0));
        for _ in 0..20 {
            far.fetch(&mut world.plane);
            far.answer(&mut world.plane, 1, world.link.shared_mut());
            world.turn();
        }
    }
    let until = world.now + seconds(1.0);
    while world.now < until {
        far.fetch(&mut world.plane);
        far.answer(&mut world.plane, 2, world.link.shared_mut());
        world.turn();
    }
    let numbers: Vec<u64> = world.pairs[0].received.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (0..120).collect::<Vec<_>>());
    assert!(far.answered > 0);
    assert_eq!(world.plane.occupancy().messages, 0);
}

/// Messages whose path was removed wait for no context any more when flows end: a later path in another
/// program gets its messages at once.
#[test]
fn messages_of_a_removed_path_wait_for_no_context_after_flows_have_ended() {
    let mut world = World::new(&[0], FullQueue::DropNewest);
    (world.contexts, world.cost) = (1, Duration::from_millis(1));
    assert!(world.plane.set_remote(elsewhere::CONTEXT, 3));
    let flows = || vec![with_path("a", 0, 0, 1)];
    set_path(&mut world, 0, &[("forward", 0, "")]);
    world.set_flows(flows(), Scheme::PriorityAwareReserved, |_| Vec::new());
    (0..5).for_each(|_| world.publish(0));
    let channel = world.pairs[0].channel;
    assert_eq!(world.plane.waiting_in_flows(channel), 5);
    world.plane.replace_paths(world.now, channel, Vec::new()).unwrap();
    world.end_flows();
    world.turn();
    assert_eq!(world.pairs[0].received.len(), 5);
    set_path(&mut world, 0, &[("forward", elsewhere::CONTEXT, "")]);
    world.set_flows(flows(), Scheme::PriorityAwareReserved, |_| Vec::new());
    world.publish(0);
    assert_eq!((world.plane.waiting_in_flows(channel), world.plane.waiting_in_paths(channel)), (0, 1));
}
