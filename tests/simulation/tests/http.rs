//! HTTP on the data path under seeds: every request is answered once, complete and by its own response, or
//! the client sees that it was not; no request whose method is not idempotent is served twice; kept
//! connections that close, drains and incidents included. `CSP_SEEDS` sets the number of seeds (default 100),
//! `CSP_SEED` replays one.

use csp_simulation::{Incident, Scenario, World};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn requests_are_answered_once_or_the_client_sees_that_they_are_not() {
    let seeds: Vec<u64> = match number("CSP_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("CSP_SEEDS").unwrap_or(100)).collect(),
    };
    let (mut complete, mut aborted, mut broken, mut hairpins) = (0, 0, 0, 0);
    let (mut reused, mut stale, mut resent, mut repeated) = (0, 0, 0, 0);
    let mut bad = Vec::new();
    for seed in &seeds {
        let scenario = Scenario::with_http(*seed);
        let incident = scenario.incident;
        let report = World::new(scenario).run();
        complete += report.complete;
        aborted += report.aborted;
        broken += report.broken;
        hairpins += report.hairpins;
        reused += report.reused;
        stale += report.stale;
        resent += report.resent;
        repeated += report.repeated;
        if seeds.len() == 1 {
            println!("{:#?}\n{}", Scenario::with_http(*seed), report.counters);
        }
        if !report.violations.is_empty() {
            eprintln!("seed {seed} ({incident:?}): {:#?}", report.violations);
            bad.push(*seed);
        }
    }
    println!(
        "{} seeds: {complete} requests completed, {aborted} were aborted, {broken} ended by an incident; \
         {reused} used a kept connection, {stale} of them found it closed; {resent} connections of clients \
         ended before their last request; {repeated} requests were served again, {hairpins} hairpins",
        seeds.len()
    );
    assert!(bad.is_empty(), "seeds {bad:?} failed; replay with CSP_SEED");
    let counts = [complete, aborted, broken].map(|count| count as u64);
    let tried = counts.into_iter().chain([reused, stale, resent, hairpins]).all(|count| count > 0);
    assert!(seeds.len() < 100 || tried, "something was never tried");
}

/// A proxy that drained closed connections whose first request was on its way.
#[test]
fn a_drain_fails_no_request_of_a_fresh_connection() {
    for seed in [322, 398, 591] {
        let report = World::new(Scenario::with_http(seed)).run();
        assert_eq!(&report.violations, &Vec::<String>::new(), "seed {seed}: {}", report.counters);
    }
}

/// Without TLS, whose bytes are random.
#[test]
fn a_seed_replays_bit_for_bit() {
    for incident in [Incident::None, Incident::ProcessDies, Incident::ChannelBreaks] {
        let of_kind = |seed: &u64| {
            let scenario = Scenario::with_http(*seed);
            scenario.incident == incident && !scenario.tls
        };
        let seed = (0..).find(of_kind).expect("every incident is drawn");
        let first = World::new(Scenario::with_http(seed)).run();
        assert_eq!(first, World::new(Scenario::with_http(seed)).run(), "seed {seed}");
    }
}
