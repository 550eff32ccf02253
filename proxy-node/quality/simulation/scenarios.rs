//! The paper's scenarios (IQ, Figs. 2 to 5, 9, 11, 12) on virtual time: three flows A, B and C into a link of
//! 500 Mb/s; B has the highest priority.
#![allow(dead_code, reason = "each program that includes it uses a part")]

use std::sync::Arc;

use csp_quality::{
    Action, Capacity, Condition, Cost, FlowId, FlowSpec, FlowTable, LinkConfig, MonitorConfig,
    MonitorFrequency, MonitorMode, Overflow, Plan, Predicate, QualityConfig, QueueBounds, Reservation,
    ResourceManager, Scheme, Threshold, Trigger, WINDOW, dynamic_adaptation,
};
use csp_support::Random;
use csp_types::{Duration, Instant};

use super::simulation::{Source, World, least_kept};

pub const MEGA: u64 = 1_000_000;
pub const LINK: u64 = 500 * MEGA;
pub const NAMES: [&str; 3] = ["A", "B", "C"];
const LEN: u32 = 1_500;
/// Places of the receive ring before the queues.
const RING: usize = 64;
const WARM_UP: Duration = Duration::from_millis(500);
const MEASURED: Duration = Duration::from_secs(2);

/// A flow of a scenario.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// Mb/s that arrive.
    pub input: u64,
    pub len: u32,
    pub cost: Cost,
    /// Thousandths that its handler leaves.
    pub leaves: u32,
    pub priority: u8,
    pub contexts: u16,
    /// Mb/s that it is promised.
    pub promise: u64,
    /// Items that may wait.
    pub queue: u32,
}

/// What happens before the queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ingress {
    /// One receive ring for all flows; an item that finds its queue full holds the ring.
    Ring,
    /// The same, and a trigger puts the filter `drop-when-full` before a queue that is nine tenths full.
    Filtered,
}

/// What came of a flow.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Mb/s.
    pub input: f64,
    pub output: f64,
    /// Mean, and 99 of 100, in ms.
    pub delay: f64,
    pub delay_p99: f64,
    /// Least part of its promise in any window of 100 ms; infinite without a promise or a window with items.
    pub kept: f64,
}

pub fn flow(input: u64, priority: u8, contexts: u16, promise: u64, queue: u32) -> Flow {
    let cost = Cost { item: Duration::from_micros(10), ..Cost::default() };
    Flow { input, len: LEN, cost, leaves: 1_000, priority, contexts, promise, queue }
}

/// A world of three flows.
pub fn world(flows: [Flow; 3], scheme: Scheme, ingress: Ingress, point_every: u32) -> (World, Vec<FlowId>) {
    let spec = |(name, flow): (&str, &Flow)| {
        let mut spec = FlowSpec::new(name, Predicate::default());
        spec.priority = flow.priority;
        spec.post = Some(name.to_owned());
        spec.item.bytes_max = flow.len;
        spec.bounds = QueueBounds { items: flow.queue, bytes: 16 << 20 };
        spec.overflow = Overflow::Hold;
        let bits_per_second = flow.promise * MEGA;
        spec.reservation = Reservation { contexts: flow.contexts, items_per_second: 0, bits_per_second };
        spec
    };
    let specs: Vec<FlowSpec> = NAMES.into_iter().zip(&flows).map(spec).collect();
    let table = Arc::new(FlowTable::new(3).replace(specs).expect("three flows"));
    let ids: Vec<FlowId> = NAMES.iter().map(|name| table.id(name).expect("it is there")).collect();
    let capacity =
        Capacity { contexts: 8, link: LinkConfig { bits_per_second: LINK, quantum: 16_384 }, point_every };
    let cost = |name: &str| NAMES.iter().position(|known| *known == name).map(|at| flows[at].cost);
    let plan = Arc::new(Plan::new(table, capacity, cost).expect("promises that can be kept"));
    let monitor = MonitorConfig { mode: MonitorMode::Flows, ..MonitorConfig::default() };
    let config = QualityConfig { contexts: scheme, link: scheme, monitor, ..QualityConfig::default() };
    let mut manager = ResourceManager::new(config, plan, Instant::ZERO);
    if ingress == Ingress::Filtered {
        let full = ids.iter().zip(&flows).map(|(id, flow)| full_trigger(*id, flow.queue));
        manager.set_triggers(full.collect()).expect("triggers");
    }
    let mut world = World::new(manager, capacity.contexts, 4);
    world.ingress = Some((RING, Default::default()));
    world.keep_delays = true;
    for (at, (id, flow)) in ids.iter().zip(&flows).enumerate() {
        world.costs[usize::from(id.0)] = Some((flow.cost, flow.leaves));
        // They do not begin in the same instant.
        let from = Instant::from_nanos(1_700 * at as u64);
        let mut source = Source::new(*id, vec![flow.len], vec![(from, flow.input * MEGA)]);
        source.jitter = Some(Random::new(at as u64));
        world.sources.push(source);
    }
    (world, ids)
}

fn full_trigger(flow: FlowId, queue: u32) -> Trigger {
    let at = Threshold { fire: u64::from(queue) * 9 / 10, release: u64::from(queue) / 2 };
    Trigger {
        name: format!("queue-{}-full", flow.0),
        condition: Condition::QueueAbove(flow, at),
        hold: Duration::ZERO,
        release_hold: Duration::from_millis(100),
        fire: vec![Action::Install(flow, "drop-when-full".to_owned())],
        release: vec![Action::Remove(flow, "drop-when-full".to_owned())],
    }
}

/// Runs three flows under a scheme.
pub fn run(flows: [Flow; 3], scheme: Scheme, ingress: Ingress) -> [Outcome; 3] {
    let (mut world, ids) = world(flows, scheme, ingress, 8);
    let from = Instant::ZERO + WARM_UP;
    world.run(from);
    let first: Vec<usize> = ids.iter().map(|id| world.tracks[usize::from(id.0)].delays.len()).collect();
    let to = from + MEASURED;
    world.run(to);
    std::array::from_fn(|at| {
        let track = &world.tracks[usize::from(ids[at].0)];
        let mut delays = track.delays[first[at]..].to_vec();
        delays.sort_unstable();
        let millis = |delay: Duration| delay.as_secs_f64() * 1e3;
        let mean = delays.iter().sum::<Duration>().checked_div(delays.len() as u32).map_or(f64::NAN, millis);
        let running = track.backlog_since.map(|since| (since, to));
        let periods: Vec<_> = track.backlogs.iter().copied().chain(running).collect();
        let periods: Vec<_> = periods.into_iter().map(|(begins, ends)| (begins.max(from), ends)).collect();
        let kept = match flows[at].promise {
            0 => f64::INFINITY,
            promise => least_kept(track, promise * MEGA, &periods, WINDOW),
        };
        let output = world.sent_between(ids[at], from, to) as f64 * 8.0 / 1e6 / MEASURED.as_secs_f64();
        let p99 = delays.get(delays.len() * 99 / 100).copied().map_or(f64::NAN, millis);
        Outcome { input: flows[at].input as f64, output, delay: mean, delay_p99: p99, kept }
    })
}

/// Figs. 2 and 3: 330 Mb/s each. PAR promises A and C 50, B 200 Mb/s.
pub fn equal_inputs(scheme: Scheme, ingress: Ingress) -> [Outcome; 3] {
    let par = scheme == Scheme::PriorityAwareReserved;
    let promise = |mega| if par { mega } else { 0 };
    let flows = [
        flow(330, 0, 0, promise(50), 512),
        flow(330, 1, 0, promise(200), 256),
        flow(330, 0, 0, promise(50), 256),
    ];
    run(flows, scheme, ingress)
}

/// Fig. 4: B 700 Mb/s, A and C 150 each. PAR promises A and C 50 Mb/s each.
pub fn spike(scheme: Scheme) -> [Outcome; 3] {
    let flows = [flow(150, 0, 0, 50, 512), flow(700, 1, 0, 0, 256), flow(150, 0, 0, 50, 256)];
    run(flows, scheme, Ingress::Filtered)
}

/// Fig. 5: eight contexts just fill the link. One is A's, two are B's, one is C's; four are allotted to
/// nobody.
pub fn contexts_are_scarce(scheme: Scheme) -> [Outcome; 3] {
    // 12,000 bits in 192 µs are 62.5 Mb/s a context.
    let cost = Cost { item: Duration::from_micros(192), ..Cost::default() };
    let mut flows = [(38, 0, 1), (500, 1, 2), (38, 0, 1)]
        .map(|(input, priority, contexts)| Flow { cost, ..flow(input, priority, contexts, 0, 256) });
    flows[0].queue = 512;
    run(flows, scheme, Ingress::Filtered)
}

/// Fig. 12: three kinds of the data items of an airline, equally frequent: A is standardised to 100 B at
/// great cost, B becomes 300 B, C passes with little change.
pub fn airline() -> [Outcome; 3] {
    let kind = |micros, leaves, priority, promise| Flow {
        len: 600,
        cost: Cost { item: Duration::from_micros(micros), ..Cost::default() },
        leaves,
        ..flow(600, priority, 0, promise, 256)
    };
    let mut outcomes = run(
        [kind(16, 167, 0, 40), kind(4, 500, 1, 200), kind(2, 900, 0, 40)],
        Scheme::PriorityAwareReserved,
        Ingress::Filtered,
    );
    // What would leave if everything did.
    outcomes
        .iter_mut()
        .zip([167.0, 500.0, 900.0])
        .for_each(|(outcome, leaves)| outcome.input *= leaves / 1e3);
    outcomes
}

/// Rates of three flows through time.
#[derive(Clone, Debug)]
pub struct Series {
    /// Seconds between two points.
    pub step: f64,
    /// Mb/s by flow and point.
    pub input: [Vec<f64>; 3],
    pub output: [Vec<f64>; 3],
    /// Switches of scheme: second, scheme.
    pub switches: Vec<(f64, &'static str)>,
}

/// Fig. 11: all have 170 Mb/s; B surges to 400 at 1 s, and ebbs to 100 at 2 s, when A and C have 220. Dynamic
/// adaptation from 250 on, back below 150 Mb/s.
pub fn adaptation() -> Series {
    let flows = [flow(170, 0, 0, 40, 512), flow(170, 1, 0, 0, 256), flow(170, 0, 0, 40, 256)];
    let (mut world, ids) = world(flows, Scheme::RoundRobin, Ingress::Filtered, 8);
    let mut triggers: Vec<Trigger> =
        ids.iter().zip(&flows).map(|(id, flow)| full_trigger(*id, flow.queue)).collect();
    triggers.push(dynamic_adaptation(ids[1], 250 * MEGA, 150 * MEGA, Duration::from_millis(50)));
    world.manager.set_triggers(triggers).expect("triggers");
    let at = |millis: u64| Instant::ZERO + Duration::from_millis(millis);
    let rates = [[170, 170, 220], [170, 400, 100], [170, 170, 220]];
    for (source, rates) in world.sources.iter_mut().zip(rates) {
        let from = source.next;
        let times = [from, at(1_000), at(2_000)];
        source.rates = times.into_iter().zip(rates.map(|rate| rate * MEGA)).collect();
    }
    let step = Duration::from_millis(20);
    let mut series = Series {
        step: step.as_secs_f64(),
        input: Default::default(),
        output: Default::default(),
        switches: vec![(0.0, Scheme::RoundRobin.abbreviation())],
    };
    let mut arrived = [0; 3];
    while world.now < at(3_000) {
        let from = world.now;
        world.run(from + step);
        for (flow, id) in ids.iter().enumerate() {
            let track = &world.tracks[usize::from(id.0)];
            let mega = |bytes: u64| bytes as f64 * 8.0 / 1e6 / step.as_secs_f64();
            series.input[flow].push(mega(track.arrived_bytes - arrived[flow]));
            arrived[flow] = track.arrived_bytes;
            series.output[flow].push(mega(world.sent_between(*id, from, world.now)));
        }
        while let Some(fired) = world.manager.next_fired() {
            if fired.trigger == 3 {
                let scheme = if fired.fired { Scheme::PriorityAwareReserved } else { Scheme::RoundRobin };
                series.switches.push((fired.at.as_nanos() as f64 / 1e9, scheme.abbreviation()));
            }
        }
    }
    series
}

/// Fig. 9: the longest time from a queue's crossing of a threshold until the trigger fires, in µs, over
/// `crossings`.
pub fn notice(frequency: MonitorFrequency, point_every: u32, crossings: usize) -> f64 {
    let flows = [flow(120, 0, 0, 0, 512), flow(120, 1, 0, 0, 256), flow(120, 0, 0, 0, 256)];
    let (mut world, ids) = world(flows, Scheme::RoundRobin, Ingress::Filtered, point_every);
    let threshold = Threshold { fire: 20, release: 3 };
    let trigger = Trigger {
        condition: Condition::QueueAbove(ids[0], threshold),
        release_hold: Duration::from_micros(10),
        ..full_trigger(ids[0], 20)
    };
    world
        .manager
        .set_triggers(vec![Trigger { fire: Vec::new(), release: Vec::new(), ..trigger }])
        .expect("a trigger");
    world.manager.set_monitor(MonitorConfig { frequency, ..MonitorConfig::default() });
    // Bursts of A of 2 ms at 500 Mb/s every 7 ms.
    let burst = |n: u64, at: u64| Instant::ZERO + Duration::from_micros(7_000 * n + at);
    let rates =
        (1..=2 * crossings as u64).flat_map(|n| [(burst(n, 0), 500 * MEGA), (burst(n, 2_000), 50 * MEGA)]);
    world.sources[0].rates = std::iter::once((Instant::ZERO, 50 * MEGA)).chain(rates).collect();
    let (mut crossed, mut fired, mut longest, mut seen) = (None, false, 0.0f64, 0);
    let end = burst(2 * crossings as u64, 0);
    while seen < crossings && world.now < end {
        world.run(world.now + Duration::from_micros(1));
        let queued = u64::from(world.manager.queued(ids[0]).0);
        if queued < threshold.fire && !fired {
            crossed = None;
        } else if queued >= threshold.fire && !fired {
            crossed.get_or_insert(world.now);
        }
        while let Some(change) = world.manager.next_fired() {
            fired = change.fired;
            if fired {
                // Otherwise noticed within the microsecond of this step.
                let since = crossed.take().unwrap_or(change.at);
                longest = longest.max(change.at.saturating_since(since).as_secs_f64() * 1e6);
                seen += 1;
            }
        }
    }
    assert_eq!(seen, crossings, "crossings that were noticed under {frequency:?}, {longest}");
    longest
}

/// What each flow gets of the link by its scheme, computed on paper: promises first, then equal parts of
/// equal priority.
pub fn on_paper(scheme: Scheme, inputs: [f64; 3], priorities: [u8; 3], promises: [f64; 3]) -> [f64; 3] {
    let link = LINK as f64 / 1e6;
    let mut shares = match scheme {
        Scheme::EqualStatic => return inputs.map(|input| input.min(link / 3.0)),
        Scheme::Static => {
            let weights = priorities.map(|priority| f64::from(priority) + 1.0);
            let sum: f64 = weights.iter().sum();
            return std::array::from_fn(|at| inputs[at].min(link * weights[at] / sum));
        }
        Scheme::PriorityAwareReserved => std::array::from_fn(|at| inputs[at].min(promises[at])),
        Scheme::RoundRobin | Scheme::PriorityAware => [0.0; 3],
    };
    // Water fills the highest priority first, in equal parts.
    let level = |at: usize| if scheme == Scheme::RoundRobin { 0 } else { priorities[at] };
    for priority in (0..=u8::MAX).rev() {
        for _ in 0..10_000 {
            let left = link - shares.iter().sum::<f64>();
            let thirsty: Vec<usize> =
                (0..3).filter(|at| level(*at) == priority && inputs[*at] - shares[*at] > 1e-6).collect();
            if thirsty.is_empty() || left < 1e-6 {
                break;
            }
            let part = left / thirsty.len() as f64;
            thirsty.iter().for_each(|at| shares[*at] += part.min(inputs[*at] - shares[*at]));
        }
    }
    shares
}
