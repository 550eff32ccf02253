//! Decisions by expectation and by rate, and what no rate may cause.

use csp_support::Random;

use super::*;
use crate::desired::DesiredInstance;

const HOLD_S: u64 = 10;

fn at(second: u64) -> Instant {
    Instant::from_nanos((1 + second) * 1_000_000_000)
}

fn auto(expects: Option<u64>) -> Auto {
    Auto { expects, ..Auto::default() }
}

fn desired(instances: &[(&str, Auto)]) -> Desired {
    let instance = |(name, auto): &(&str, Auto)| DesiredInstance {
        name: (*name).to_owned(),
        module: "counter".to_owned(),
        auto: Some(*auto),
        ..DesiredInstance::default()
    };
    Desired { instances: instances.iter().map(instance).collect(), rules: vec![] }
}

fn node() -> Node {
    Node { no_driver: None, room: 64, overrun: false }
}

/// Instances whose counters rise by rates of the test, looked at each second.
struct Bench {
    places: Places,
    observations: Vec<Observation>,
    node: Node,
    second: u64,
}

impl Bench {
    fn new(instances: &[(&str, Auto)]) -> Self {
        let mut places = Places::default();
        places.declare(at(0), &mut desired(instances), |_| None);
        let observations = instances
            .iter()
            .map(|(name, _)| Observation { name: (*name).to_owned(), ..Observation::default() });
        let mut bench = Bench { places, observations: observations.collect(), node: node(), second: 0 };
        // As the daemon does it when a policy comes into force: nothing was counted.
        bench.evaluate();
        for one in &mut bench.observations {
            one.packets = Some(0);
        }
        bench.evaluate();
        bench
    }

    fn evaluate(&mut self) -> Vec<Move> {
        let moves = self.places.evaluate(at(self.second), &self.node, &self.observations);
        for Move { name, to } in &moves {
            assert_ne!(self.places.level(name), Some(*to));
            self.places.moved(at(self.second), name);
            assert_eq!(self.places.level(name), Some(*to));
        }
        moves
    }

    /// Lets packets come for so many seconds. Returns the seconds, from now on, and the names of the moves.
    fn run(&mut self, seconds: u64, mut rate: impl FnMut(&str, u64) -> u64) -> Vec<(u64, String)> {
        let (from, mut moves) = (self.second, Vec::new());
        for _ in 0..seconds {
            self.second += 1;
            for one in &mut self.observations {
                *one.packets.as_mut().unwrap() += rate(&one.name, self.second - from);
            }
            let second = self.second - from;
            moves.extend(self.evaluate().into_iter().map(|one| (second, one.name)));
        }
        moves
    }

    fn shown(&self, name: &str) -> (u8, String) {
        (self.places.level(name).unwrap() as u8, self.places.why(name).unwrap().to_string())
    }
}

#[test]
fn a_rate_that_stands_moves_an_instance_and_half_of_it_keeps_it() {
    let mut bench = Bench::new(&[("a", auto(None))]);
    assert_eq!(bench.shown("a"), (2, "nothing measured".into()));
    assert_eq!(bench.run(60, |_, _| 99_999), []);
    assert_eq!(bench.shown("a"), (2, "99k packets/s".into()));
    let moves = bench.run(60, |_, _| 120_000);
    assert_eq!(moves.len(), 1);
    assert!((HOLD_S..HOLD_S + 3).contains(&moves[0].0), "{moves:?}");
    assert_eq!(bench.shown("a"), (1, "120k packets/s".into()));
    // A pause of a second is none; half of the rate is enough to stay.
    assert_eq!(bench.run(60, |_, second| if second % 20 == 0 { 0 } else { 120_000 }), []);
    assert_eq!(bench.run(60, |_, _| 50_010), []);
    let moves = bench.run(60, |_, _| 40_000);
    assert_eq!(moves.len(), 1);
    assert!((HOLD_S..HOLD_S + 12).contains(&moves[0].0), "{moves:?}");
    assert_eq!(bench.shown("a"), (2, "40k packets/s".into()));
}

#[test]
fn an_expectation_decides_at_once_until_packets_were_measured_for_the_hold() {
    let mut bench = Bench::new(&[("a", auto(Some(1_000_000)))]);
    assert_eq!(bench.shown("a"), (1, "1.0M packets/s expected".into()), "before any packet");
    // Without packets nothing is measured.
    assert_eq!(bench.run(1_000, |_, _| 0), []);
    let moves = bench.run(60, |_, _| 10);
    assert_eq!(moves.len(), 1, "{moves:?}");
    assert!((2 * HOLD_S - 1..2 * HOLD_S + 3).contains(&moves[0].0), "{moves:?}");
    assert_eq!(bench.shown("a"), (2, "10 packets/s".into()));

    // Another expectation decides at once, other bounds leave it where it is.
    let declare = |bench: &mut Bench, auto| {
        let mut desired = desired(&[("a", auto)]);
        bench.places.declare(at(bench.second), &mut desired, |_| None);
        (desired.instances[0].level, bench.evaluate().len())
    };
    assert_eq!(declare(&mut bench, auto(Some(2_000_000))), (Level::Worker, 1));
    let longer = Auto { hold: Duration::from_secs(60), ..auto(Some(2_000_000)) };
    assert_eq!(declare(&mut bench, longer), (Level::Driver, 0));
    assert_eq!(declare(&mut bench, auto(Some(60_000))), (Level::Driver, 1), "half of the bound is no reason");
    assert_eq!(bench.shown("a"), (2, "60k packets/s expected".into()));
    // More than is expected counts.
    assert_eq!(bench.run(60, |_, _| 300_000).len(), 1);
}

#[test]
fn an_instance_that_was_at_a_level_of_its_own_begins_there() {
    let mut places = Places::default();
    let mut desired = desired(&[("a", auto(None)), ("b", auto(None)), ("c", auto(None))]);
    let level_of = |name: &str| match name {
        "a" => Some(Level::Driver),
        "b" => Some(Level::Host),
        _ => None,
    };
    places.declare(at(0), &mut desired, level_of);
    let levels: Vec<Level> = desired.instances.iter().map(|instance| instance.level).collect();
    assert_eq!(levels, [Level::Driver, Level::Worker, Level::Worker]);
    // What is of another module, or has a level of its own again, is not known any more.
    desired.instances[0].module = "dscp".to_owned();
    desired.instances[1].auto = None;
    places.declare(at(1), &mut desired, |_| None);
    assert_eq!((places.level("a"), places.level("b")), (Some(Level::Worker), None));
}

#[test]
fn what_cannot_run_in_the_driver_stays_and_leaves_at_once_with_the_reason() {
    let mut bench = Bench::new(&[("a", auto(None))]);
    bench.observations[0].obstacle = Some("it calls".to_owned());
    assert_eq!(bench.run(60, |_, _| 10), []);
    assert_eq!(bench.shown("a"), (2, "10 packets/s".into()), "no word of it where it does not matter");
    bench.node.overrun = true;
    assert_eq!(bench.run(1, |_, _| 10), []);
    let text = "10 packets/s, LAN ports lose frames; not in the driver: it calls";
    assert_eq!(bench.shown("a"), (2, text.into()));
    bench.node.overrun = false;
    assert_eq!(bench.run(60, |_, _| 2_000_000), []);
    assert_eq!(bench.shown("a"), (2, "2.0M packets/s; not in the driver: it calls".into()));
    bench.observations[0].obstacle = None;
    assert_eq!(bench.run(60, |_, _| 2_000_000), [(HOLD_S + 1, "a".to_owned())]);
    bench.node.no_driver = Some("BPF is not permitted".to_owned());
    assert_eq!(bench.run(60, |_, _| 2_000_000), [(1, "a".to_owned())]);
    assert_eq!(bench.shown("a"), (2, "2.0M packets/s; not in the driver: BPF is not permitted".into()));
}

#[test]
fn those_behind_an_instance_go_with_it() {
    let mut bench = Bench::new(&[("a", auto(None)), ("b", auto(None)), ("c", auto(None))]);
    bench.observations[0].next = vec!["b".to_owned()];
    bench.observations[1].next = vec!["c".to_owned()];
    let moves = bench.run(60, |name, _| if name == "a" { 200_000 } else { 7 });
    let names: Vec<&str> = moves.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"], "{moves:?}");
    assert_eq!(moves[0].0, moves[2].0, "at once: {moves:?}");
    assert_eq!(bench.shown("c"), (1, "7 packets/s, with b".into()));
    let moves = bench.run(100, |_, _| 7);
    let names: Vec<&str> = moves.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"], "none leaves before the one in front of it: {moves:?}");
    // Also where the first is there by its expectation.
    let mut desired = desired(&[("a", auto(Some(200_000))), ("b", auto(None)), ("c", auto(None))]);
    bench.places.declare(at(bench.second), &mut desired, |_| None);
    assert_eq!(bench.evaluate().len(), 3);
}

#[test]
fn the_driver_takes_no_more_than_it_has_room_for() {
    let names: Vec<String> = (0..5).map(|n| format!("i{n}")).collect();
    let instances: Vec<(&str, Auto)> =
        names.iter().map(|name| (name.as_str(), auto(Some(200_000)))).collect();
    let mut bench = Bench::new(&instances[..3]);
    let in_driver =
        |bench: &Bench| names.iter().filter(|name| bench.places.level(name) == Some(Level::Driver)).count();
    assert_eq!(in_driver(&bench), 3);
    bench.node.room = 2;
    assert_eq!(bench.run(30, |_, _| 200_000), [(1, "i2".to_owned())]);
    let text = "not in the driver: the driver has no room for further plug-ins";
    assert!(bench.shown("i2").1.ends_with(text), "{:?}", bench.shown("i2"));
    bench.node.room = 3;
    assert_eq!(bench.run(60, |_, _| 200_000).len(), 1);
    assert_eq!(in_driver(&bench), 3);
}

#[test]
fn counters_that_begin_anew_are_no_rate() {
    let mut bench = Bench::new(&[("a", auto(None))]);
    bench.run(5, |_, _| 1_000);
    bench.observations[0].packets = Some(0);
    assert_eq!(bench.run(1, |_, _| 0), []);
    assert_eq!(bench.places.rate("a"), Some(1_000), "the interval is left out");
    // Readings that follow each other at once say nothing.
    bench.observations[0].packets = Some(1_000_000);
    let now = Instant::from_nanos(at(bench.second).as_nanos() + 1_000_000);
    assert!(bench.places.evaluate(now, &bench.node, &bench.observations).is_empty());
    assert_eq!(bench.places.rate("a"), Some(1_000));
}

/// Whatever rates come, also where a level changes what is counted: an instance stays for its hold wherever
/// it moves, and longer each time.
#[test]
fn no_rate_makes_an_instance_flap() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let expects = [None, Some(1_000_000), Some(10)][seed as usize % 3];
        let mut bench = Bench::new(&[("a", auto(expects)), ("b", auto(None)), ("c", auto(None))]);
        if seed % 2 == 0 {
            bench.observations[0].next = vec!["b".to_owned()];
        }
        let mut rates = [0u64; 3];
        let mut last: BTreeMap<String, u64> = BTreeMap::new();
        let mut count = 0u32;
        for _ in 0..5_000 {
            let often = 1 + random.below(40);
            if random.below(often) == 0 {
                let which = random.below(3) as usize;
                rates[which] =
                    [0, 10, 40_000, 49_000, 51_000, 99_000, 101_000, 5_000_000][random.below(8) as usize];
            }
            let in_driver = bench.places.level("a") == Some(Level::Driver);
            let noise = random.below(3_000);
            // The driver counts before coalescing, the workers after it.
            let factor = if in_driver && seed % 5 == 0 { 40 } else { 1 };
            let moves = bench.run(1, |name, _| match name {
                "a" => rates[0] * factor + noise,
                "b" => rates[1] + noise,
                _ => rates[2],
            });
            for (_, name) in moves {
                let stayed = bench.second - last.insert(name.clone(), bench.second).unwrap_or_default();
                let first = bench.second == stayed;
                assert!(first || stayed >= HOLD_S, "seed {seed}: {name} moved after {stayed} s");
                count += 1;
            }
        }
        // Three instances for 5,000 s, of which no stay is shorter than 10 s and those in the workers take
        // longer and longer.
        assert!(count <= 300, "seed {seed}: {count} moves");
    }
    // The worst: much in the workers, nothing in the driver.
    let mut bench = Bench::new(&[("a", auto(None))]);
    let mut moves = 0;
    for _ in 0..20_000 {
        let rate = if bench.places.level("a") == Some(Level::Worker) { 1_000_000 } else { 0 };
        moves += bench.run(1, |_, _| rate).len();
    }
    assert!(moves <= 80, "{moves} moves in 20,000 s");
}
