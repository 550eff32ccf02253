//! The data path with TLS that ends at the proxies, under seeds: plaintext arrives once and in order, or the
//! connection ends with an error; a stream that ends early is told from one that is complete. `CSP_SEEDS`
//! sets the number of seeds (default 100), `CSP_SEED` replays one.

use csp_simulation::{Scenario, World};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn plaintext_arrives_once_and_in_order_or_the_connection_ends_with_an_error() {
    let seeds: Vec<u64> = match number("CSP_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("CSP_SEEDS").unwrap_or(100)).collect(),
    };
    let (mut complete, mut aborted, mut broken, mut bad) = (0, 0, 0, Vec::new());
    for seed in &seeds {
        let report = World::new(Scenario::with_tls(*seed)).run();
        complete += report.complete;
        aborted += report.aborted;
        broken += report.broken;
        if seeds.len() == 1 {
            println!("{:#?}\n{}", Scenario::with_tls(*seed), report.counters);
        }
        if !report.violations.is_empty() {
            eprintln!("seed {seed}: {:#?}", report.violations);
            bad.push(*seed);
        }
    }
    println!(
        "{} seeds: {complete} transactions completed, {aborted} were aborted, {broken} ended by an incident",
        seeds.len()
    );
    assert!(bad.is_empty(), "seeds {bad:?} failed; replay with CSP_SEED");
    assert!(seeds.len() < 100 || complete > 0 && aborted > 0 && broken > 0, "something was never tried");
}
