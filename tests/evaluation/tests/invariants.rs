//! What holds for every configuration: nothing is lost, nothing is used more than it can be, a seed
//! replays exactly. `CSP_SEED` replays one seed.

use csp_evaluation::costs::{Cost, Costs, Kind, TierCosts, Unit};
use csp_evaluation::link::Fabric;
use csp_evaluation::scenario::{Arrivals, Scenario, ScenarioError, Stop, Tier};
use csp_evaluation::workload::Sizes;
use csp_evaluation::{Outcome, run};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const SEEDS: u64 = 150;

fn costs(random: &mut ChaCha8Rng) -> TierCosts {
    let mut cost = |most: f64| {
        (random.random_range(0..3) > 0).then(|| Cost {
            value: random.random::<f64>() * most,
            unit: Unit::Nanoseconds,
            kind: Kind::Assumed,
            source: "a seed".to_owned(),
        })
    };
    TierCosts {
        transaction: cost(100_000.0),
        packet: cost(5_000.0),
        record: cost(10_000.0),
        message: cost(5_000.0),
        byte: cost(10.0),
    }
}

/// A configuration that is determined by a seed.
fn scenario(seed: u64) -> Scenario {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let tier = |random: &mut ChaCha8Rng| Tier {
        nodes: random.random_range(1..=9),
        processors: random.random_range(1..=4),
        speed: 0.1 + random.random::<f64>() * 4.0,
    };
    let fabric = |random: &mut ChaCha8Rng| {
        let rate = [1_000_000_000, 2_000_000_000, 25_000_000_000][random.random_range(0..3)];
        match random.random_range(0..2) {
            0 => Fabric::ethernet(rate),
            _ => Fabric::infiniband(rate),
        }
    };
    let sizes = match random.random_range(0..3) {
        0 => Sizes::specweb99(),
        _ => Sizes::fixed(random.random_range(1..=100_000)),
    };
    let arrivals = match random.random_range(0..2) {
        0 => Arrivals::Open { per_second: random.random_range(10.0..100_000.0) },
        _ => Arrivals::Closed { outstanding: random.random_range(1..=100) },
    };
    Scenario {
        network: tier(&mut random),
        proxy: tier(&mut random),
        application: tier(&mut random),
        proxy_ports: random.random_range(1..=3),
        lan: Fabric::ethernet(1_000_000_000),
        san: fabric(&mut random),
        message_bytes: random.random_range(1..=70_000).max(200),
        request_bytes: random.random_range(1..=1400),
        head_bytes: random.random_range(1..=1000),
        sizes,
        arrivals,
        transactions: random.random_range(1..=150),
        stop: Stop::Drained,
        warm_up: 0,
        costs: Costs {
            network: costs(&mut random),
            proxy: costs(&mut random),
            application: costs(&mut random),
            ..Costs::free()
        },
        seed,
    }
}

fn seeds() -> Vec<u64> {
    match std::env::var("CSP_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => vec![seed],
        None => (0..SEEDS).collect(),
    }
}

fn conserves(seed: u64, scenario: &Scenario, outcome: &Outcome) {
    let counted = outcome.counted;
    let all = u64::from(scenario.transactions);
    assert_eq!((outcome.started, outcome.completed, outcome.in_flight), (all, all, 0), "seed {seed}");
    for (what, bytes) in [
        ("sent by application nodes", counted.bytes_sent),
        ("relayed by proxies", counted.bytes_relayed),
        ("received by clients", counted.bytes_received),
    ] {
        assert_eq!(bytes, counted.bytes_requested, "seed {seed}: bytes {what}");
    }
    assert_eq!(counted.packets_from_clients, counted.packets_at_proxies, "seed {seed}");
    assert_eq!(counted.packets_from_proxies, counted.packets_at_clients, "seed {seed}");
    assert_eq!(counted.messages_sent, counted.messages_received, "seed {seed}");
    let used = outcome.use_of;
    for share in
        [used.network, used.proxy, used.application, used.lan_in, used.lan_out, used.busiest_san_link]
    {
        assert!((0.0..=1.0 + 1e-9).contains(&share), "seed {seed}: {used:?}");
    }
    let latency = outcome.latency;
    assert!(latency.p50_us <= latency.p90_us && latency.p90_us <= latency.p99_us, "seed {seed}: {latency:?}");
    assert!(latency.p50_us > 0.0, "seed {seed}");
}

#[test]
fn nothing_is_lost_in_any_configuration() {
    for seed in seeds() {
        let scenario = scenario(seed);
        let outcome = run(&scenario).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        conserves(seed, &scenario, &outcome);
    }
}

#[test]
fn a_seed_replays_exactly_and_another_does_not() {
    for seed in seeds().into_iter().take(30) {
        let mut scenario = scenario(seed);
        let first = run(&scenario).expect("runs");
        assert_eq!(run(&scenario).expect("runs"), first, "seed {seed}");
        if let Arrivals::Open { .. } = scenario.arrivals {
            scenario.seed = !seed;
            assert_ne!(run(&scenario).expect("runs").seconds, first.seconds, "seed {seed}");
        }
    }
}

#[test]
fn more_capacity_never_completes_less() {
    let paper = Costs::parse(csp_evaluation::costs::PAPER).expect("the paper's costs");
    let scenario = Scenario { transactions: 4_000, ..Scenario::paper(&paper) };
    let mut before = 0.0;
    for processors in [1.0, 2.8, 5.2, 9.9, 18.0, 33.0] {
        let outcome = run(&scenario.clone().with_application_capacity(processors)).expect("runs");
        assert!(outcome.transactions_per_second >= before * 0.98, "{processors} P: {outcome:?}");
        before = outcome.transactions_per_second;
    }
}

#[test]
fn one_transaction_takes_the_time_that_is_computed_by_hand() {
    // 1,000 bytes with a head of 230: one packet. Every frame of Ethernet takes 12 ns of 1 Gb/s for 1.5
    // bytes.
    let scenario = Scenario {
        sizes: Sizes::fixed(1000),
        arrivals: Arrivals::Closed { outstanding: 1 },
        transactions: 1,
        stop: Stop::Drained,
        ..Scenario::paper(&Costs::free())
    };
    let outcome = run(&scenario).expect("runs");
    let frame = |payload: u32| f64::from((payload + 14).max(60) + 24) * 0.008;
    let hop = |bytes: u32| frame(bytes) + 0.5;
    let san = |bytes: u32| 2.0 * hop(bytes) + 1.0;
    // SYN and SYN/ACK, each by LAN and SAN.
    let handshake = 2.0 * (hop(40) + san(40));
    // The third packet of the handshake leaves before the request; that one then has every link to itself.
    let request = frame(40) + hop(170 + 40) + san(170 + 40) + san(170 + 16);
    let response = san(1230 + 16) + san(1230 + 40) + hop(1230 + 40);
    // The FIN follows the data on the last link.
    let expected = handshake + request + response + frame(40);
    assert!((outcome.latency.mean_us - expected).abs() < 0.001, "{} us, {expected}", outcome.latency.mean_us);
    // SYN, ACK, request, FIN; SYN/ACK, data, FIN, last ACK; open, get, response, close.
    let counted = outcome.counted;
    assert_eq!((counted.packets_from_clients, counted.packets_at_clients, counted.messages_sent), (4, 4, 4));
}

#[test]
fn what_cannot_be_simulated_is_refused() {
    type Wrong = fn(&mut Scenario);
    let wrong: [(Wrong, &str); 7] = [
        (|s| s.proxy.nodes = 0, "proxy nodes is 0; right is 1 to 4096"),
        (|s| s.application.speed = f64::NAN, "speed of a processor is NaN"),
        (|s| s.transactions = 0, "transactions is 0"),
        (|s| s.warm_up = s.transactions, "transactions not measured is 50000"),
        (|s| s.arrivals = Arrivals::Open { per_second: -1.0 }, "requests a second is -1"),
        (|s| s.sizes = Sizes::fixed(1 << 30), "packets of all transactions is"),
        (|s| s.message_bytes = 0, "bytes of a message is 0"),
    ];
    for (spoil, expected) in wrong {
        let mut scenario = Scenario::paper(&Costs::free());
        spoil(&mut scenario);
        let error: ScenarioError = run(&scenario).expect_err(expected);
        assert!(error.to_string().starts_with(expected), "{error}");
    }
}
