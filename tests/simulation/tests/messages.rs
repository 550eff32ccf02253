//! Messages on the whole data path under seeds: what a subscriber receives is in order, without doubles, and
//! every gap is counted; what is pushed arrives once; nothing is left behind. `CSP_SEEDS` sets the number of
//! seeds (default 100; 60 with handlers, which makes more than 10,000 swaps), `CSP_SEED` replays one.

use std::time::Duration;

use csp_lan::faulty::FaultConfig;
use csp_simulation::messages::{
    Leaves, MessageIncident, MessageReport, MessageScenario, MessageWorld, PeerPlan, Place, Role,
    SwapCounters,
};
use csp_simulation::{Scenario, Transaction};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn seeds() -> Vec<u64> {
    match number("CSP_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("CSP_SEEDS").unwrap_or(100)).collect(),
    }
}

#[test]
fn messages_arrive_once_and_in_order_or_are_counted_as_dropped() {
    let (mut all, mut bad) = (MessageReport::default(), Vec::new());
    let seeds = seeds();
    for seed in &seeds {
        let scenario = MessageScenario::of(*seed);
        let incident = scenario.incident;
        let report = MessageWorld::new(scenario).run();
        all.messages += report.messages;
        all.received += report.received;
        all.dropped += report.dropped;
        all.lost += report.lost;
        all.held += report.held;
        all.exact += report.exact;
        all.broken += report.broken;
        all.streams += report.streams;
        all.refused += report.refused;
        if seeds.len() == 1 {
            println!("{:#?}\n{}", MessageScenario::of(*seed), report.counters);
        }
        if !report.violations.is_empty() {
            eprintln!("seed {seed} ({incident:?}):");
            report.violations.iter().for_each(|v| eprintln!("  {v}"));
            bad.push(*seed);
        }
    }
    println!(
        "{} seeds: {} messages, {} received, {} copies dropped, {} lost with pullers at most; senders held back {} times; \
         {} channels accounted for exactly, {} connections ended by an incident, {} byte streams beside, {} of them refused",
        seeds.len(),
        all.messages,
        all.received,
        all.dropped,
        all.lost,
        all.held,
        all.exact,
        all.broken,
        all.streams,
        all.refused
    );
    assert!(
        bad.is_empty(),
        "seeds {bad:?} failed; replay with CSP_SEED={} cargo test -p csp-simulation --test messages",
        bad[0]
    );
    if seeds.len() >= 100 {
        let counts = [all.exact, all.broken, all.streams, all.refused].map(|count| count as u64);
        let tried = [[all.dropped, all.lost, all.held].as_slice(), &counts].concat();
        assert!(!tried.contains(&0), "something was never tried: {tried:?}");
    }
}

/// Swaps that are tried under each seed.
const SWAPS: usize = 240;

/// Supplied handlers stamp messages of channels while their code, parameters and stages are changed, their
/// state goes on, and nodes fail.
#[test]
fn handlers_are_swapped_while_nodes_fail_and_every_message_is_stamped_once_and_in_order() {
    let (mut all, mut swaps, mut bad) = (MessageReport::default(), SwapCounters::default(), Vec::new());
    let seeds = match number("CSP_SEED") {
        Some(seed) => vec![seed],
        None => (1_000..1_000 + number("CSP_SEEDS").unwrap_or(60)).collect(),
    };
    for seed in &seeds {
        let scenario = MessageScenario::with_handlers(*seed, SWAPS);
        let incident = scenario.incident;
        let report = MessageWorld::new(scenario).run();
        all.messages += report.messages;
        all.dropped += report.dropped;
        all.dropped_path += report.dropped_path;
        all.exact += report.exact;
        all.broken += report.broken;
        all.stamped.iter_mut().zip(report.stamped).for_each(|(all, more)| *all += more);
        swaps.done += report.swaps.done;
        swaps.code += report.swaps.code;
        swaps.parameters += report.swaps.parameters;
        swaps.refused += report.swaps.refused;
        swaps.waited += report.swaps.waited;
        if seeds.len() == 1 {
            println!("{:#?}\n{}", MessageScenario::with_handlers(*seed, SWAPS), report.counters);
        }
        if !report.violations.is_empty() {
            eprintln!("seed {seed} ({incident:?}):");
            report.violations.iter().for_each(|v| eprintln!("  {v}"));
            bad.push(*seed);
        }
    }
    println!(
        "{} seeds: {swaps:?}; {} messages, stamped by module {:?}, {} copies dropped, {} messages dropped in paths; {} channels \
         accounted for exactly, {} connections ended by an incident",
        seeds.len(),
        all.messages,
        all.stamped,
        all.dropped,
        all.dropped_path,
        all.exact,
        all.broken
    );
    assert!(
        bad.is_empty(),
        "seeds {bad:?} failed; replay with CSP_SEED={} cargo test -p csp-simulation --test messages handlers",
        bad[0]
    );
    if seeds.len() >= 60 {
        assert!(swaps.done >= 10_000, "{swaps:?}");
        let tried = [swaps.code, swaps.parameters, swaps.refused, swaps.waited, all.broken as u64];
        assert!(!tried.contains(&0) && !all.stamped.contains(&0), "something was never tried: {tried:?}");
    }
}

#[test]
fn a_seed_replays_bit_for_bit() {
    let incidents = [
        MessageIncident::None,
        MessageIncident::ProgramDies,
        MessageIncident::PolicyRemoves(1),
        MessageIncident::ChannelResumes,
    ];
    for incident in incidents {
        let seed =
            (0..).find(|s| MessageScenario::of(*s).incident == incident).expect("every incident is drawn");
        let first = MessageWorld::new(MessageScenario::of(seed)).run();
        assert_eq!(first, MessageWorld::new(MessageScenario::of(seed)).run(), "seed {seed}");
    }
    let with_handlers = || MessageWorld::new(MessageScenario::with_handlers(1_003, SWAPS)).run();
    assert_eq!(with_handlers(), with_handlers());
}

/// Returns a scenario without peers, faults and incident: one publish/subscribe channel with ample room, and
/// one push channel.
fn quiet() -> MessageScenario {
    let links = Scenario {
        lan: [FaultConfig { delay: Duration::from_micros(500), ..FaultConfig::default() }; 2],
        network_workers: 1,
        clocks_differ: false,
        path_mtu: 1_500,
        lan_mtu: 1_500,
        marks: 0,
        cookies: false,
        ..Scenario::of(7)
    };
    MessageScenario::quiet(links)
}

/// A peer outside that is there from the start and stays.
fn peer(channel: usize, role: Role) -> PeerPlan {
    let start = matches!(role, Role::Sends { .. }).then_some(Duration::ZERO);
    PeerPlan { channel, place: Place::Outside, minor: 1, start, role, leaves: Leaves::Last, late: false }
}

fn subscriber(deaf: Option<(Duration, Duration)>) -> PeerPlan {
    peer(0, Role::Receives { topics: vec![b""], deaf })
}

fn publisher(channel: usize, messages: u32, every: Duration, len_max: u32) -> PeerPlan {
    peer(channel, Role::Sends { messages, len_max, every, topics: vec![b"a", b"b"], closes: false })
}

#[test]
fn a_subscriber_that_does_not_read_costs_others_nothing() {
    let (every, silence) =
        (Duration::from_micros(500), (Duration::from_millis(100), Duration::from_secs(30)));
    let messages = 6_000;
    let run = |deaf| {
        let inside = PeerPlan { place: Place::Inside(0), ..subscriber(None) };
        let publisher = publisher(0, messages, every, 4_000);
        let peers = vec![subscriber(deaf), subscriber(None), inside, publisher];
        let mut scenario = MessageScenario { peers, ..quiet() };
        scenario.channels[0].spec.channel.queue.messages = 100;
        let report = MessageWorld::new(scenario).run();
        assert_eq!(report.violations, Vec::<String>::new(), "{}", report.counters);
        report
    };
    let (with, without) = (run(Some(silence)), run(None));
    assert_eq!(without.dropped, 0);
    assert!(with.dropped > 1_000, "it lost messages: {}", with.counters);
    for ((last, received), (last_without, received_without)) in
        with.by_peer.iter().zip(&without.by_peer).skip(1)
    {
        assert_eq!(received, received_without);
        let later = last.saturating_sub(*last_without);
        assert!(later < Duration::from_millis(1), "the last message arrived {later:?} later");
    }
    assert_eq!(with.by_peer[1].1, u64::from(messages));
}

/// Byte streams of the worker end as early beside channels that are flooded as without them.
#[test]
fn byte_streams_go_on_beside_a_flood_of_messages() {
    let stream = |start_ms| Transaction {
        start: Duration::from_millis(start_ms),
        by_process: None,
        hairpin: false,
        upload: 2_000,
        download: 200_000,
        half_close: false,
        duplex: false,
        abort_after: None,
        refusal: None,
        late: false,
        deaf: None,
    };
    let run = |peers: Vec<PeerPlan>| {
        let work = (0..10).map(|n| stream(n * 3)).collect();
        let report = MessageWorld::new(MessageScenario { peers, work, ..quiet() }).run();
        assert_eq!(report.violations, Vec::<String>::new(), "{}", report.counters);
        report
    };
    let flood = |n: usize| {
        let inside = Place::Inside(n % 2);
        let place = if n.is_multiple_of(3) { inside } else { Place::Outside };
        PeerPlan { place, ..publisher(n % 2, 2_000, Duration::ZERO, 600) }
    };
    let pullers = (0..3).map(|_| peer(1, Role::Receives { topics: Vec::new(), deaf: None }));
    let peers = (0..4).map(|_| subscriber(None)).chain(pullers).chain((0..6).map(flood)).collect();
    let (with, without) = (run(peers), run(vec![subscriber(None), publisher(0, 1, Duration::ZERO, 600)]));
    println!("{:?} with {} messages, {:?} without", with.streams_end, with.messages, without.streams_end);
    assert!(with.messages == 12_000 && with.streams == 10);
    assert!(with.streams_end <= without.streams_end + Duration::from_millis(5));
}
