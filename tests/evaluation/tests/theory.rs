//! The simulator against what queueing theory says.

use csp_evaluation::costs::Costs;
use csp_evaluation::link::Fabric;
use csp_evaluation::plan::one_tier;
use csp_evaluation::scenario::{Arrivals, Scenario, Stop, Tier};
use csp_evaluation::station::Station;
use csp_evaluation::workload::{Sizes, exponential};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// Mean service time, picoseconds.
const SERVICE: f64 = 1e6;
/// Independent runs, from which the interval of confidence is computed.
const RUNS: u64 = 20;
/// Student's t for 19 degrees of freedom: a mean of 20 runs is outside of the interval once in a
/// thousand times. The seeds are fixed, so that a test passes always or never.
const T: f64 = 3.88;

/// Returns mean and half of its interval of confidence.
fn confidence(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, T * (variance / count).sqrt())
}

/// Mean wait in services, of a station with Poisson arrivals; the first tenth is not measured.
fn wait(seed: u64, use_of: f64, processors: u32, service: impl Fn(&mut ChaCha8Rng) -> f64) -> f64 {
    const JOBS: u32 = 40_000;
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut station = Station::new(processors, 1.0);
    let between = SERVICE / use_of / f64::from(processors);
    let (mut now, mut waited) = (0.0, 0.0);
    for job in 0..JOBS {
        now += exponential(&mut random, between);
        let at = now as u64;
        let (start, _) = station.admit(at, service(&mut random));
        if job >= JOBS / 10 {
            waited += (start - at) as f64;
        }
    }
    waited / f64::from(JOBS - JOBS / 10) / SERVICE
}

fn check(what: &str, expected: f64, measured: &[f64]) {
    let (mean, half) = confidence(measured);
    assert!((mean - expected).abs() <= half, "{what}: {mean:.4} ± {half:.4}, theory {expected:.4}");
    assert!(half < 0.25 * expected, "{what}: ± {half:.4} of {expected:.4} proves nothing");
}

#[test]
fn a_station_waits_as_m_m_1_does() {
    for use_of in [0.3, 0.6, 0.8] {
        let runs: Vec<f64> =
            (0..RUNS).map(|seed| wait(seed, use_of, 1, |random| exponential(random, SERVICE))).collect();
        check(&format!("M/M/1 at {use_of}"), use_of / (1.0 - use_of), &runs);
    }
}

#[test]
fn a_station_waits_as_m_d_1_does() {
    for use_of in [0.3, 0.6, 0.8, 0.9] {
        let runs: Vec<f64> = (0..RUNS).map(|seed| wait(100 + seed, use_of, 1, |_| SERVICE)).collect();
        check(&format!("M/D/1 at {use_of}"), use_of / (2.0 * (1.0 - use_of)), &runs);
    }
}

#[test]
fn a_station_of_several_processors_waits_as_m_m_c_does() {
    // Erlang C.
    let (processors, use_of) = (4, 0.75);
    let load = use_of * f64::from(processors);
    let (mut term, mut sum) = (1.0, 0.0);
    for number in 0..processors {
        sum += term;
        term *= load / f64::from(number + 1);
    }
    let waits = term / (1.0 - use_of) / (sum + term / (1.0 - use_of));
    let expected = waits / (f64::from(processors) * (1.0 - use_of));
    let runs: Vec<f64> = (0..RUNS)
        .map(|seed| wait(200 + seed, use_of, processors, |random| exponential(random, SERVICE)))
        .collect();
    check("M/M/4 at 0.75", expected, &runs);
}

/// One node of each tier, fast links: only the application node's processor is a queue.
fn one_queue(seed: u64, per_second: f64, microseconds: f64) -> Scenario {
    let fast = Fabric::ethernet(1_000_000_000_000);
    Scenario {
        network: Tier::new(1, 1),
        proxy: Tier::new(1, 1),
        application: Tier::new(1, 1),
        lan: fast.clone(),
        san: fast,
        sizes: Sizes::fixed(1000),
        arrivals: Arrivals::Open { per_second },
        transactions: 12_000,
        warm_up: 1_000,
        stop: Stop::Completed,
        seed,
        ..Scenario::paper(&one_tier(2, microseconds))
    }
}

#[test]
fn a_whole_configuration_with_one_queue_waits_as_m_d_1_does() {
    let (microseconds, use_of) = (100.0, 0.7);
    let alone = csp_evaluation::run(&Scenario {
        arrivals: Arrivals::Closed { outstanding: 1 },
        transactions: 2,
        warm_up: 0,
        ..one_queue(1, 1.0, microseconds)
    });
    let alone = alone.expect("runs").latency.mean_us;
    let runs: Vec<f64> = (0..RUNS)
        .map(|seed| {
            let scenario = one_queue(seed, use_of * 1e6 / microseconds, microseconds);
            let outcome = csp_evaluation::run(&scenario).expect("runs");
            (outcome.latency.mean_us - alone) / microseconds
        })
        .collect();
    check("M/D/1 in a configuration", use_of / (2.0 * (1.0 - use_of)), &runs);
}

#[test]
fn littles_law_holds() {
    // In a run that drains, L = λ W exactly: both sides are the same area, counted by time and by
    // transaction.
    for seed in 0..5 {
        let mut scenario = one_queue(seed, 8_000.0, 100.0);
        (scenario.stop, scenario.transactions, scenario.warm_up) = (Stop::Drained, 5_000, 0);
        let outcome = csp_evaluation::run(&scenario).expect("runs");
        let rate = outcome.completed as f64 / outcome.seconds;
        let expected = rate * outcome.mean_latency_us / 1e6;
        assert!((outcome.mean_in_flight / expected - 1.0).abs() < 1e-6, "{outcome:?}");
    }
    // While it is in a steady state, within what is on its way at the end.
    let scenario = Scenario { costs: Costs::free(), transactions: 10_000, ..Scenario::paper(&Costs::free()) };
    let outcome = csp_evaluation::run(&scenario.clone().with_application_capacity(4.0)).expect("runs");
    let expected = outcome.completed as f64 / outcome.seconds * outcome.mean_latency_us / 1e6;
    assert!(outcome.mean_in_flight >= expected * 0.999, "{outcome:?}");
    assert!(outcome.in_flight > 0 && outcome.started == outcome.completed + outcome.in_flight);
}
