//! The resource manager, one behaviour at a time.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;

use csp_quality::{
    Action, ApplyError, Capacity, Condition, Cost, Filter, FlowId, FlowSpec, FlowTable, Item, LinkConfig,
    MonitorConfig, MonitorFrequency, MonitorMode, Offered, Overflow, Plan, Predicate, QualityConfig,
    QueueBounds, Refusal, Reservation, Resource, ResourceManager, Scheme, Threshold, Trigger, TriggerError,
    dynamic_adaptation,
};
use csp_types::{Duration, Instant};

const LEN: u32 = 1_000;
const CAPACITY: Capacity =
    Capacity { contexts: 2, link: LinkConfig { bits_per_second: 8_000_000, quantum: 1_000 }, point_every: 4 };
const COST: Cost = Cost { item: Duration::from_micros(100), kib: Duration::ZERO, output_bound: false };

fn at(micros: u64) -> Instant {
    Instant::from_nanos(micros * 1_000)
}

fn item(handle: u64) -> Item {
    Item { handle, bytes: LEN, messages: 1, arrived: Instant::ZERO }
}

fn spec(name: &str) -> FlowSpec {
    let mut spec = FlowSpec::new(name, Predicate::default());
    spec.item.bytes_max = LEN;
    spec
}

fn plan(specs: Vec<FlowSpec>) -> Result<Arc<Plan>, Refusal> {
    // What no predicate matches is as short as the rest: on so slow a link longer items would make every
    // promise impossible.
    let specs = specs.into_iter().chain([spec("default")]).collect();
    let table = FlowTable::new(8).replace(specs).unwrap();
    Plan::new(Arc::new(table), CAPACITY, |name| (name == "handler").then_some(COST)).map(Arc::new)
}

fn manager(specs: Vec<FlowSpec>) -> ResourceManager {
    let monitor = MonitorConfig { mode: MonitorMode::Flows, ..MonitorConfig::default() };
    let config = QualityConfig { items_max: 64, monitor, ..QualityConfig::default() };
    ResourceManager::new(config, plan(specs).unwrap(), Instant::ZERO)
}

const A: FlowId = FlowId(1);
const B: FlowId = FlowId(2);
const C: FlowId = FlowId(3);

fn offer(manager: &mut ResourceManager, flow: FlowId, handle: u64) -> (Offered, Vec<u64>) {
    let mut evicted = Vec::new();
    let offered = manager.offer(Instant::ZERO, flow, item(handle), |item| evicted.push(item.handle));
    (offered, evicted)
}

#[test]
fn a_full_queue_holds_drops_or_makes_room_and_counts() {
    for (overflow, expected, evicted, counted) in [
        (Overflow::Hold, Offered::Held, vec![], (1, 0, 0)),
        (Overflow::DropNewest, Offered::Dropped, vec![], (0, 1, 0)),
        (Overflow::DropOldest, Offered::Queued, vec![0], (0, 0, 1)),
    ] {
        let bounds = QueueBounds { items: 2, bytes: 1 << 20 };
        let mut manager = manager(vec![FlowSpec { bounds, overflow, ..spec("a") }]);
        (0..2).for_each(|n| assert_eq!(offer(&mut manager, A, n).0, Offered::Queued));
        assert_eq!(offer(&mut manager, A, 2), (expected, evicted), "{overflow:?}");
        let counters = manager.counters(A);
        assert_eq!((counters.held, counters.dropped_newest, counters.dropped_oldest), counted);
        assert_eq!((counters.outstanding(), manager.queued(A)), (2, (2, u64::from(2 * LEN))));
    }
}

#[test]
fn bytes_bound_a_queue_too_and_a_long_item_has_room_in_an_empty_one() {
    let bounds = QueueBounds { items: 9, bytes: 1_500 };
    let mut manager = manager(vec![FlowSpec { bounds, ..spec("a") }]);
    let long = Item { bytes: 2_000, ..item(1) };
    assert_eq!(manager.offer(Instant::ZERO, A, long, |_| ()), Offered::Queued);
    assert_eq!(offer(&mut manager, A, 2).0, Offered::Dropped);
    assert_eq!((manager.counters(A).oversized, manager.counters(A).dropped_newest), (1, 1));
}

#[test]
fn filters_stand_before_the_queue() {
    let mut filtered = spec("a");
    filtered.pre = vec!["sample-3".to_owned(), "the-owner's".to_owned()];
    let mut manager = manager(vec![filtered]);
    let passed = (0..9).filter(|n| offer(&mut manager, A, *n).0 == Offered::Queued).count();
    assert_eq!((passed, manager.counters(A).filtered), (3, 6));
    assert!(manager.install(A, Filter::Drop));
    assert_eq!(offer(&mut manager, A, 9).0, Offered::Dropped);
    manager.remove(A, Filter::Drop);
    assert_eq!(
        ["drop", "sample-0", "sample-x", "parse"].map(Filter::parse),
        [Some(Filter::Drop), None, None, None]
    );
}

#[test]
fn the_link_releases_while_less_than_a_quantum_is_unsent() {
    let mut manager = manager(vec![spec("a"), FlowSpec { priority: 1, ..spec("b") }]);
    manager.switch(Instant::ZERO, Resource::Link, Scheme::PriorityAware);
    [(A, 0), (A, 1), (B, 2)]
        .into_iter()
        .for_each(|(flow, n)| assert_eq!(offer(&mut manager, flow, n).0, Offered::Queued));
    // A thousand bytes take a millisecond.
    assert_eq!(manager.release(at(0)).map(|released| released.item.handle), Some(2));
    assert_eq!(manager.release(at(0)), None);
    let next = manager.next_release(at(0)).unwrap();
    assert!(next <= at(2) && next > at(0), "{next:?}");
    assert_eq!(manager.unsent(at(500)), 500);
    let released = manager.release(at(500)).unwrap();
    assert_eq!((released.item.handle, released.delay), (0, Duration::from_micros(500)));
    assert_eq!(manager.release(at(500)), None);
    manager.set_blocked(at(500), A, true);
    assert_eq!((manager.release(at(9_000)), manager.next_release(at(9_000))), (None, None));
    manager.set_blocked(at(9_000), A, false);
    assert_eq!(manager.release(at(9_000)).map(|released| released.item.handle), Some(1));
}

fn with_handler(name: &str, priority: u8, contexts: u16) -> FlowSpec {
    let reservation = Reservation { contexts, ..Reservation::default() };
    FlowSpec { priority, reservation, post: Some("handler".to_owned()), ..spec(name) }
}

#[test]
fn a_context_that_its_flow_does_not_use_is_lent_until_the_next_point() {
    let mut manager = manager(vec![with_handler("a", 0, 1), with_handler("b", 9, 0)]);
    manager.switch(Instant::ZERO, Resource::Contexts, Scheme::PriorityAwareReserved);
    (0..8).for_each(|n| assert_eq!(offer(&mut manager, B, n).0, Offered::Queued));
    let taken = manager.take(at(0), 0).unwrap();
    assert_eq!(taken.flow, B, "a has nothing: its context is lent");
    manager.finish(at(100), taken, None);
    assert_eq!(offer(&mut manager, A, 100).0, Offered::Queued);
    let mut flows = Vec::new();
    for n in 1..5 {
        let taken = manager.take(at(n * 100), 0).unwrap();
        flows.push(taken.flow);
        manager.finish(at(n * 100 + 99), taken, None);
    }
    assert_eq!(flows, [B, B, B, A], "every four items is a point");
    assert_eq!(manager.counters(B).absorbed, 4);
}

#[test]
fn a_promise_that_cannot_be_kept_is_refused_with_what_is_left() {
    let promise = |bits| Reservation { bits_per_second: bits, ..Reservation::default() };
    let a = FlowSpec { reservation: promise(5_000_000), ..spec("a") };
    let b = FlowSpec { reservation: promise(3_000_000), ..spec("b") };
    let held = plan(vec![a.clone()]).unwrap().held(A).0;
    assert!((5_000_000.0..5_400_000.0).contains(&held), "{held}");
    match plan(vec![a.clone(), b]).unwrap_err() {
        Refusal::Link { flow, asked: 3_000_000, held, left, total: 8_000_000 } => {
            assert_eq!(flow, "b");
            assert!(held > left && left == 8_000_000 - plan(vec![a]).unwrap().held(A).0.ceil() as u64);
        }
        other => panic!("{other}"),
    }
    let refused = plan(vec![with_handler("a", 0, 2), with_handler("b", 0, 1)]).unwrap_err();
    let text = "flow \"b\" asks for 1.00 contexts; 0.00 of 2 are left";
    assert_eq!(refused.to_string(), text);
    let mut unknown = with_handler("c", 0, 0);
    (unknown.post, unknown.reservation) = (Some("new".to_owned()), promise(1_000));
    assert!(matches!(plan(vec![unknown]), Err(Refusal::Profile { handler, .. }) if handler == "new"));
    let left = plan(vec![with_handler("a", 0, 1)]).unwrap().left();
    assert_eq!((left.contexts, left.bits_per_second), (1.0, 8_000_000));
}

#[test]
fn a_flow_that_is_gone_empties_and_its_id_waits_for_that() {
    let mut manager = manager(vec![with_handler("a", 0, 0), spec("b")]);
    assert_eq!(offer(&mut manager, A, 1).0, Offered::Queued);
    let first = Arc::new(manager.table().clone());
    let next = |table: &FlowTable, names: &[&str]| {
        let specs = names.iter().map(|name| spec(name)).collect();
        let table = Arc::new(table.replace(specs).unwrap());
        (Arc::clone(&table), Arc::new(Plan::new(table, CAPACITY, |_| None).unwrap()))
    };
    let (second, plan) = next(&first, &["b"]);
    manager.apply(at(1), plan).unwrap();
    // Under EAS only what has a claim is served; what is left of a flow has one.
    manager.switch(at(1), Resource::Contexts, Scheme::EqualStatic);
    // Eight new flows need all ids, that of a, too.
    let names: Vec<String> = (0..7).map(|n| format!("n{n}")).chain(["b".to_owned()]).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (_, plan) = next(&second, &names);
    assert_eq!(manager.apply(at(2), Arc::clone(&plan)), Err(ApplyError::Draining(A)));
    assert_eq!(
        offer(&mut manager, A, 2).0,
        Offered::Queued,
        "items of a flow that is gone are the default flow's"
    );
    assert_eq!(manager.counters(FlowId::DEFAULT).offered, 1);
    let taken = (0..2).find_map(|context| manager.take(at(3), context)).unwrap();
    assert_eq!(taken.flow, A);
    manager.finish(at(4), taken, Some(LEN));
    assert_eq!(manager.release(at(5)).map(|released| released.flow), Some(FlowId::DEFAULT));
    assert_eq!(manager.release(at(2_000)).map(|released| released.flow), Some(A));
    assert_eq!(manager.apply(at(2_000), plan), Ok(()));
}

#[test]
fn what_follows_items_at_contexts_stays_behind_them_when_the_handler_goes() {
    let mut manager = manager(vec![with_handler("a", 0, 0)]);
    assert_eq!(offer(&mut manager, A, 1).0, Offered::Queued);
    let table = Arc::new(manager.table().replace(vec![spec("a")]).unwrap());
    manager.apply(at(0), Arc::new(Plan::new(table, CAPACITY, |_| None).unwrap())).unwrap();
    assert_eq!(offer(&mut manager, A, 2).0, Offered::Queued);
    assert_eq!(manager.release(at(0)), None);
    for context in 0..2 {
        let taken = manager.take(at(1), context).unwrap();
        manager.finish(at(1), taken, Some(LEN));
    }
    assert_eq!(offer(&mut manager, A, 3).0, Offered::Queued);
    let handles: Vec<u64> =
        (0..3).map(|n| manager.release(at(10 + n * 1_000)).unwrap().item.handle).collect();
    assert_eq!(handles, [1, 2, 3]);
}

fn queue_trigger(fire: u64, release: u64, hold_us: u64) -> Trigger {
    Trigger {
        name: "full".to_owned(),
        condition: Condition::QueueAbove(A, Threshold { fire, release }),
        hold: Duration::ZERO,
        release_hold: Duration::from_micros(hold_us),
        fire: vec![Action::Install(A, "drop-when-full".to_owned()), Action::Raise("a is full".to_owned())],
        release: vec![Action::Remove(A, "drop-when-full".to_owned())],
    }
}

#[test]
fn a_trigger_installs_a_filter_while_a_queue_is_full() {
    let bounds = QueueBounds { items: 4, bytes: 1 << 20 };
    let mut manager = manager(vec![FlowSpec { bounds, overflow: Overflow::Hold, ..spec("a") }]);
    manager.set_triggers(vec![queue_trigger(4, 1, 1)]).unwrap();
    (0..4).for_each(|n| assert_eq!(offer(&mut manager, A, n).0, Offered::Queued));
    assert_eq!(offer(&mut manager, A, 4).0, Offered::Held);
    manager.control(at(0));
    assert_eq!(offer(&mut manager, A, 4).0, Offered::Dropped);
    assert_eq!(manager.counters(A).filtered, 1);
    let fired = manager.next_fired().unwrap();
    assert_eq!((fired.trigger, fired.fired, manager.next_fired()), (0, true, None));
    // The filter outlives a plan.
    let (table, capacity) = (Arc::new(manager.table().clone()), CAPACITY);
    manager.apply(at(0), Arc::new(Plan::new(table, capacity, |_| None).unwrap())).unwrap();
    assert_eq!(offer(&mut manager, A, 4).0, Offered::Dropped);
    (0..3).for_each(|n| assert!(manager.release(at(10_000 * n)).is_some()));
    manager.control(at(30_000));
    manager.control(at(30_002));
    assert!(!manager.next_fired().unwrap().fired);
    (5..8).for_each(|n| assert_eq!(offer(&mut manager, A, n).0, Offered::Queued));
    assert_eq!(offer(&mut manager, A, 8).0, Offered::Held, "the filter is gone");
}

#[test]
fn a_trigger_is_released_though_nothing_moves_any_more() {
    let mut manager = manager(vec![spec("a")]);
    manager.set_triggers(vec![queue_trigger(4, 1, 100_000)]).unwrap();
    (0..4).for_each(|n| assert_eq!(offer(&mut manager, A, n).0, Offered::Queued));
    manager.control(at(0));
    let mut last = 0;
    (0..4).for_each(|n| {
        last = 10_000 * n;
        assert!(manager.release(at(last)).is_some());
    });
    assert!(manager.next_fired().unwrap().fired);
    // An owner that has no other work does what it is asked to.
    for _ in 0..100 {
        let Some(next) = manager.next_control() else { break };
        last = (next.as_nanos() / 1_000).max(last);
        manager.control(at(last));
    }
    assert!(!manager.next_fired().expect("released").fired);
    assert_eq!(manager.next_control(), None, "and is not asked for more");
}

#[test]
fn triggers_do_not_flap() {
    let mut manager = manager(vec![spec("a"), spec("b")]);
    manager.set_triggers(vec![queue_trigger(10, 4, 50_000)]).unwrap();
    // An item takes a millisecond. The queue swings between 3 and 12 for nine seconds.
    (0..3).for_each(|n| assert_eq!(offer(&mut manager, A, n).0, Offered::Queued));
    let mut now = 0;
    for swing in 0..1_000 {
        for _ in 0..9 {
            now += 1_000;
            match swing % 2 {
                0 => assert_eq!(offer(&mut manager, A, now).0, Offered::Queued),
                _ => assert!(manager.release(at(now)).is_some()),
            }
            manager.control(at(now));
        }
        assert_eq!(manager.queued(A).0, if swing % 2 == 0 { 12 } else { 3 });
    }
    assert_eq!(manager.changes(0), 1, "it was never below for 50 ms at a time");
    // Within the thresholds nothing changes however long it lasts.
    (0..4).for_each(|n| assert_eq!(offer(&mut manager, A, n).0, Offered::Queued));
    (0..100).for_each(|n| manager.control(at(now + n * 10_000)));
    assert_eq!(manager.changes(0), 1);

    let refused = |trigger: Trigger| manager.set_triggers(vec![trigger]).unwrap_err();
    let mut refused = refused;
    assert!(matches!(refused(queue_trigger(4, 4, 1)), TriggerError::NoHysteresis { .. }));
    assert!(matches!(refused(queue_trigger(4, 1, 0)), TriggerError::NoHold(_)));
    let below = Condition::RateBelow(A, Threshold { fire: 4, release: 1 });
    assert!(matches!(
        refused(Trigger { condition: below, ..queue_trigger(4, 1, 1) }),
        TriggerError::NoHysteresis { .. }
    ));
    let unknown = Condition::PromiseMissed(FlowId(7));
    assert!(matches!(
        refused(Trigger { condition: unknown, ..queue_trigger(4, 1, 1) }),
        TriggerError::Flow(_)
    ));
}

#[test]
fn every_condition_fires_and_is_released() {
    let reservation = Reservation { bits_per_second: 4_000_000, ..Reservation::default() };
    let base = Trigger { fire: Vec::new(), release: Vec::new(), ..queue_trigger(2, 1, 1_000) };
    let pair = |fire, release| Threshold { fire, release };
    let conditions = [
        (Condition::QueueAbove(A, pair(30, 3)), true),
        (Condition::RateAbove(A, pair(7_000_000, 1_000_000)), true),
        (Condition::RateBelow(A, pair(1_000, 1_000_000)), false),
        (Condition::DelayAbove(A, pair(2_000_000, 1_000)), true),
        (Condition::LinkFull(pair(900, 100)), true),
        (Condition::PromiseMissed(A), true),
    ];
    for (condition, when_busy) in conditions {
        // b comes first, so that a's promise is missed under PA.
        let mut manager =
            manager(vec![FlowSpec { reservation, ..spec("a") }, FlowSpec { priority: 2, ..spec("b") }]);
        manager.switch(Instant::ZERO, Resource::Link, Scheme::PriorityAware);
        let window = Duration::from_millis(100);
        manager.set_monitor(MonitorConfig { mode: MonitorMode::Flows, window, ..MonitorConfig::default() });
        manager.set_triggers(vec![Trigger { condition, ..base.clone() }]).unwrap();
        let mut states = Vec::new();
        for millis in 0..1_500u64 {
            let now = at(millis * 1_000);
            for flow in if millis < 600 { vec![A, B] } else { Vec::new() } {
                if flow == A || millis % 4 != 0 {
                    _ = manager.offer(now, flow, Item { arrived: now, ..item(millis) }, |_| ());
                }
            }
            while manager.release(now).is_some() {}
            manager.control(now);
            while let Some(fired) = manager.next_fired() {
                states.push((millis < 601, fired.fired));
            }
        }
        let busy = states.iter().find(|(busy, _)| *busy).map(|(_, fired)| *fired);
        let idle = states.iter().rfind(|(busy, _)| !*busy).map(|(_, fired)| *fired);
        match when_busy {
            true => assert_eq!((busy, idle), (Some(true), Some(false)), "{condition:?}: {states:?}"),
            false => assert_eq!(idle, Some(true), "{condition:?}: {states:?}"),
        }
    }
}

#[test]
fn monitoring_can_be_switched_and_its_frequency_changed() {
    let mut manager = manager(vec![spec("a"), FlowSpec { priority: 3, ..spec("b") }]);
    manager.set_triggers(vec![queue_trigger(1, 0, 1)]).unwrap();
    let config = |mode, frequency| MonitorConfig { mode, frequency, ..MonitorConfig::default() };
    let period = MonitorFrequency::Infrequent(Duration::from_millis(20));
    manager.set_monitor(config(MonitorMode::Off, period));
    assert_eq!(offer(&mut manager, A, 1).0, Offered::Queued);
    manager.control(at(0));
    assert_eq!(manager.changes(0), 0, "nothing is watched");
    manager.set_monitor(config(MonitorMode::Priorities, period));
    manager.control(at(10_000));
    assert_eq!((manager.changes(0), manager.next_control()), (0, Some(at(20_000))));
    manager.control(at(20_000));
    assert_eq!(manager.changes(0), 1);
    (0..10).for_each(|n| _ = manager.offer(at(30_000 + n * 1_000), B, item(n), |_| ()));
    (0..10).for_each(|n| _ = manager.release(at(30_000 + n * 1_000)));
    let seen = manager.observe_priority(at(41_000), 3);
    assert!((7_000_000..9_000_000).contains(&seen.arriving), "{seen:?}");
    assert_eq!(manager.observe(at(41_000), B).arriving, 0, "each flow is metered in the fancy mode only");
}

#[test]
fn the_critical_flow_has_the_link_while_it_surges() {
    let a = FlowSpec {
        reservation: Reservation { bits_per_second: 800_000, ..Reservation::default() },
        ..spec("a")
    };
    let mut manager = manager(vec![a, FlowSpec { priority: 9, ..spec("b") }, spec("c")]);
    let trigger = dynamic_adaptation(B, 6_000_000, 3_500_000, Duration::from_millis(30));
    manager.set_triggers(vec![trigger]).unwrap();
    let mut schemes = Vec::new();
    for tick in 0..4_000u64 {
        let now = at(tick * 250);
        // b: 2 Mb/s, then 8 Mb/s, then 2 Mb/s again. a and c: 4 Mb/s each.
        let surge = (1_000..2_500).contains(&tick);
        for (flow, sends) in
            [(A, tick % 8 == 0), (B, tick % if surge { 4 } else { 16 } == 0), (C, tick % 8 == 4)]
        {
            if sends {
                _ = manager.offer(now, flow, Item { arrived: now, ..item(tick) }, |_| ());
            }
        }
        while manager.release(now).is_some() {}
        manager.control(now);
        if schemes.last().is_none_or(|(_, last)| *last != manager.schemes()) {
            schemes.push((tick, manager.schemes()));
        }
    }
    use Scheme::{PriorityAwareReserved as Par, RoundRobin as Rr};
    assert_eq!(schemes.iter().map(|(_, pair)| *pair).collect::<Vec<_>>(), [(Rr, Rr), (Par, Par), (Rr, Rr)]);
    // The window of rates is 10 ms, 40 ticks.
    assert!((1_000..1_100).contains(&schemes[1].0) && (2_500..2_740).contains(&schemes[2].0), "{schemes:?}");
}
