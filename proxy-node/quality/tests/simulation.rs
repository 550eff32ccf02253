//! Random flows, schemes and changes on virtual time: promises are kept in every window of 100 ms while they
//! are in force, nothing idles, flows keep their order, and nothing is lost uncounted. `CSP_SEED=n` replays
//! one world, `CSP_SEEDS=n` runs so many.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../simulation/mod.rs"]
mod simulation;

use std::sync::Arc;

use csp_quality::{
    Capacity, Cost, FlowId, FlowSpec, FlowTable, LinkConfig, MonitorConfig, MonitorMode, Overflow, Plan,
    Predicate, QualityConfig, QueueBounds, Refusal, Reservation, Resource, ResourceManager, Scheme, WINDOW,
};
use csp_support::Random;
use csp_types::{Duration, Instant};
use simulation::{Source, World, keeps_promises, least_kept};

const RUN: Duration = Duration::from_millis(700);

fn seeds() -> Vec<u64> {
    match std::env::var("CSP_SEED") {
        Ok(seed) => vec![seed.parse().expect("CSP_SEED is a number")],
        Err(_) => {
            let count = std::env::var("CSP_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(300);
            (0..count).collect()
        }
    }
}

/// A world that the seed determines.
struct Case {
    random: Random,
    world: World,
    capacity: Capacity,
    costs: Vec<Option<Cost>>,
    specs: Vec<FlowSpec>,
    /// Since when scheme and promises are as they are.
    since: Instant,
    plan: Arc<Plan>,
    /// Promises checked: windows' worth of time.
    checked: usize,
    refused: usize,
}

fn random_spec(random: &mut Random, at: usize, cost: Option<Cost>, link: u64) -> FlowSpec {
    let mut spec =
        FlowSpec::new(&format!("flow-{at}"), Predicate { channel: Some(at as u32), ..Default::default() });
    spec.priority = random.below(4) as u8;
    spec.post = cost.map(|_| format!("handler-{at}"));
    spec.item.bytes_max = 200 + random.below(3_000) as u32;
    spec.bounds = QueueBounds { items: 8 + random.below(400) as u32, bytes: 20_000 + random.below(1 << 20) };
    spec.overflow = [Overflow::Hold, Overflow::DropNewest, Overflow::DropOldest][random.below(3) as usize];
    if random.below(3) == 0 {
        spec.reservation.bits_per_second = link / (2 + random.below(20));
    }
    if random.below(6) == 0 {
        spec.reservation.items_per_second = 100 + random.below(3_000) as u32;
    }
    if cost.is_some() && random.below(4) == 0 {
        spec.reservation.contexts = 1 + random.below(2) as u16;
    }
    spec
}

/// Makes a plan; promises that are refused are withdrawn. Returns how many were.
fn admit(
    table: &FlowTable,
    specs: &mut [FlowSpec],
    capacity: Capacity,
    costs: &[Option<Cost>],
) -> (Arc<Plan>, usize) {
    let mut refused = 0;
    loop {
        let table = Arc::new(table.replace(specs.to_vec()).unwrap());
        let cost = |name: &str| costs[name.trim_start_matches("handler-").parse::<usize>().unwrap()];
        match Plan::new(table, capacity, cost) {
            Ok(plan) => return (Arc::new(plan), refused),
            Err(
                Refusal::Contexts { flow, .. }
                | Refusal::Link { flow, .. }
                | Refusal::Slack { flow, .. }
                | Refusal::Profile { flow, .. },
            ) => {
                refused += 1;
                let spec = specs.iter_mut().find(|spec| spec.name == flow).unwrap();
                spec.reservation = Reservation::default();
            }
        }
    }
}

impl Case {
    fn new(seed: u64) -> Case {
        let mut random = Random::new(seed);
        let link = 40_000_000 + random.below(200_000_000);
        let quantum = [4_096, 16_384][random.below(2) as usize];
        let capacity = Capacity {
            contexts: 1 + random.below(8) as u16,
            link: LinkConfig { bits_per_second: link, quantum },
            point_every: 1 + random.below(64) as u32,
        };
        let count = 1 + random.below(12) as usize;
        let costs: Vec<Option<Cost>> = (0..count)
            .map(|_| {
                let item = Duration::from_nanos(1_000 + random.below(150_000));
                (random.below(2) == 0).then_some(Cost { item, ..Cost::default() })
            })
            .collect();
        let mut specs: Vec<FlowSpec> =
            (0..count).map(|at| random_spec(&mut random, at, costs[at], link)).collect();
        let (plan, refused) = admit(&FlowTable::new(16), &mut specs, capacity, &costs);
        let config = QualityConfig {
            items_max: 4_096,
            contexts: Scheme::PriorityAwareReserved,
            link: Scheme::PriorityAwareReserved,
            monitor: MonitorConfig { mode: MonitorMode::Flows, ..MonitorConfig::default() },
            ..QualityConfig::default()
        };
        let manager = ResourceManager::new(config, Arc::clone(&plan), Instant::ZERO);
        let mut world = World::new(manager, capacity.contexts, plan.table().capacity());
        world.quantum = u64::from(quantum);
        for (id, spec) in plan.table().flows().filter(|(id, _)| *id != FlowId::DEFAULT) {
            let at: usize = spec.name.trim_start_matches("flow-").parse().unwrap();
            // Items of promised flows that a handler processes are as long as was said: that is what its cost
            // was computed for.
            let longest = spec.item.bytes_max;
            world.costs[usize::from(id.0)] = costs[at].map(|cost| (cost, 1_000));
            let lens = (0..1 + random.below(8)).map(|_| match costs[at] {
                Some(_) => longest,
                None => longest / 2 + random.below(u64::from(longest / 2)) as u32,
            });
            let lens = lens.collect();
            let mut rates = Vec::new();
            let mut from = Instant::ZERO;
            while from < Instant::ZERO + RUN {
                rates.push((from, random.below(3).min(1) * random.below(link * 5 / 4)));
                from += Duration::from_micros(1_000 + random.below(400_000));
            }
            world.sources.push(Source::new(id, lens, rates));
        }
        Case { random, world, capacity, costs, specs, since: Instant::ZERO, plan, checked: 0, refused }
    }

    fn run(&mut self) {
        self.note_owners();
        while self.world.now < Instant::ZERO + RUN {
            let pause = Duration::from_micros(1_000 + self.random.below(350_000));
            self.world.run((self.world.now + pause).min(Instant::ZERO + RUN));
            self.check_promises();
            self.change();
        }
        // SA leaves flows standing for which nothing is left.
        let now = self.world.now;
        self.world.manager.switch(now, Resource::Contexts, Scheme::RoundRobin);
        self.world.manager.switch(now, Resource::Link, Scheme::RoundRobin);
        self.world.drain(Duration::from_secs(3_000));
        self.world.check_nothing_lost();
    }

    /// Checks the promises of the time since the last change.
    fn check_promises(&mut self) {
        let (from, to) = (self.since, self.world.now);
        let (contexts, link) = self.world.manager.schemes();
        if keeps_promises(link) {
            for (id, spec) in self.plan.table().flows() {
                if spec.post.is_some() && !keeps_promises(contexts) {
                    continue;
                }
                self.checked += self.check_rate(id, spec, from, to);
            }
        }
        if keeps_promises(contexts) {
            self.check_contexts();
        }
        self.world.strangers.clear();
    }

    fn check_rate(&self, id: FlowId, spec: &FlowSpec, from: Instant, to: Instant) -> usize {
        let track = &self.world.tracks[usize::from(id.0)];
        let running = track.backlog_since.map(|since| (since, to));
        let periods = track.backlogs.iter().copied().chain(running);
        let periods: Vec<(Instant, Instant)> = periods
            .map(|(begins, ends)| (begins.max(from), ends.min(to)))
            .filter(|(begins, ends)| *ends >= *begins + WINDOW)
            .collect();
        let promise = spec.reservation;
        if periods.is_empty() || (promise.bits_per_second == 0 && promise.items_per_second == 0) {
            return 0;
        }
        let mut bits = promise.bits_per_second;
        if self
            .world
            .sources
            .iter()
            .any(|source| source.flow == id && source.lens.iter().all(|len| *len == spec.item.bytes_max))
        {
            // Items of equal length: a promise of items is one of bits.
            bits = bits.max(u64::from(promise.items_per_second) * u64::from(spec.item.bytes_max) * 8);
        }
        if bits > 0 {
            let kept = least_kept(track, bits, &periods, WINDOW);
            assert!(
                kept >= 1.0,
                "{} had {:.1} % of its promise of {bits} b/s in a window",
                spec.name,
                kept * 100.0
            );
        }
        periods.len()
    }

    /// Checks that contexts serve the flows that own them from the first resource-management point on.
    fn check_contexts(&self) {
        let longest = self.costs.iter().flatten().map(|cost| cost.item).max().unwrap_or_default();
        let patience = longest * (self.capacity.point_every + 1);
        for stranger in &self.world.strangers {
            let waited = stranger.at.saturating_since(stranger.since.max(self.since));
            assert!(waited <= patience, "after {waited:?} and {patience:?}: {stranger:?}");
        }
    }

    /// Notes which flows own contexts: by ids, as many as each is promised.
    fn note_owners(&mut self) {
        let flows = self.plan.table().flows().filter(|(_, spec)| spec.post.is_some());
        let owners =
            flows.flat_map(|(id, spec)| std::iter::repeat_n(id, usize::from(spec.reservation.contexts)));
        self.world.owners = owners.collect();
    }

    fn change(&mut self) {
        let now = self.world.now;
        self.since = now;
        let scheme = match self.random.below(2) {
            0 => Scheme::PriorityAwareReserved,
            _ => Scheme::ALL[self.random.below(5) as usize],
        };
        match self.random.below(6) {
            0 => self.world.manager.switch(now, Resource::Contexts, scheme),
            1 => self.world.manager.switch(now, Resource::Link, scheme),
            2 => {
                self.world.manager.switch(now, Resource::Contexts, scheme);
                self.world.manager.switch(now, Resource::Link, scheme);
            }
            3 => {
                let flow = self.random.below(self.specs.len() as u64) as u16 + 1;
                self.world.manager.set_priority(FlowId(flow), self.random.below(4) as u8);
            }
            _ => self.change_plan(),
        }
    }

    /// Other priorities and promises, flows that come and go.
    fn change_plan(&mut self) {
        for at in 0..self.specs.len() {
            if self.random.below(3) == 0 {
                let link = self.capacity.link.bits_per_second;
                let new = random_spec(&mut self.random, at, self.costs[at], link);
                let spec = &mut self.specs[at];
                (spec.priority, spec.reservation, spec.overflow) =
                    (new.priority, new.reservation, new.overflow);
            }
        }
        let (plan, refused) = admit(self.plan.table(), &mut self.specs, self.capacity, &self.costs);
        self.refused += refused;
        self.world.manager.apply(self.world.now, Arc::clone(&plan)).unwrap();
        self.plan = plan;
        self.note_owners();
    }
}

#[test]
fn promises_are_kept_nothing_idles_and_nothing_is_lost() {
    let (mut checked, mut refused, seeds) = (0, 0, seeds());
    for seed in &seeds {
        let result = std::panic::catch_unwind(|| {
            let mut case = Case::new(*seed);
            case.run();
            (case.checked, case.refused)
        });
        let Ok((c, r)) = result else { panic!("CSP_SEED={seed} fails") };
        (checked, refused) = (checked + c, refused + r);
    }
    println!("{} seeds: {checked} backlogs with a promise checked, {refused} promises refused", seeds.len());
    assert!(seeds.len() < 100 || (checked > seeds.len() / 4 && refused > seeds.len() / 10));
}
