//! Supplied handlers in contexts elsewhere: the module crosses the connection once, runs there, and is
//! stopped there as in a worker.

use std::sync::Arc;

use csp_handlers::Standing;
use csp_messages::{PathState, PathStatus, StageMaker, StageObject, StageSupply};
use csp_sandbox::{Described, Engine, Limits, Module, NoFields, OnStop, Sha256, Supplied};
use csp_services::ContextNotice;

use super::*;

/// Counts in its memory. The fifth message is one too many for it; the second byte of parameters is refused.
const MODULE: &str = r#"(module
    (import "csp" "emit_same" (func $emit (param i32) (result i32)))
    (memory (export "memory") 1 1)
    (func (export "csp_abi") (result i32) i32.const 1)
    (func (export "configure") (param $len i32) (result i32) (i32.gt_u (local.get $len) (i32.const 1)))
    (func (export "on_message") (param i32 i32 i32) (result i32)
        (i32.store (i32.const 0) (i32.add (i32.load (i32.const 0)) (i32.const 1)))
        (if (i32.eq (i32.load (i32.const 0)) (i32.const 5)) (then (loop $on (br $on))))
        (call $emit (i32.const 0))))"#;

/// A path of one stage that runs `MODULE`, with a module of so many bytes more, which say nothing.
fn supplied(context: u16, on_stop: OnStop, more: usize) -> ChannelPath {
    let mut bytes = wat::parse_str(MODULE).unwrap();
    if more > 0 {
        // A custom section: its id, its length as LEB128 of five bytes, its name, and zeros.
        let len = more as u32;
        bytes.push(0);
        bytes.extend((0..5).map(|at| (len >> (7 * at)) as u8 & 0x7f | if at < 4 { 0x80 } else { 0 }));
        bytes.push(1);
        bytes.push(b'z');
        bytes.extend(vec![0; more - 2]);
    }
    let module = Module::compile(&Engine::new(Limits::default()).unwrap(), &bytes).unwrap();
    let made = Supplied::new(&module, Arc::new(NoFields), OnStop::default(), "").unwrap();
    let (described, hash) = (Described::of(&made), Sha256::of(&bytes).0);
    let supply = StageSupply { module: StageObject { hash, bytes: bytes.into() }, formats: None, on_stop };
    let here = move || {
        let made = Supplied::new(&module, Arc::new(NoFields), OnStop::default(), "").ok()?;
        Some(Box::new(made) as Box<dyn Handler>)
    };
    let maker = StageMaker::new("mine", here).elsewhere(supply, move || Some(Box::new(described.another())));
    let (handler, parameters) = ("mine".to_owned(), String::new());
    ChannelPath::new(
        CHANNEL,
        vec![PathStage { handler, context, parameters, maker: Some(maker), auto: None, outputs: Vec::new() }],
    )
}

fn cluster(path: ChannelPath) -> Cluster {
    let mut c = Cluster::with_path(push_pull(), &[path]);
    c.w.connect_null(1, "PUSH");
    c.w.connect_null(2, "PULL");
    c.settle();
    c
}

fn messages(numbers: std::ops::Range<u8>) -> Vec<u8> {
    numbers.flat_map(|n| message(&[&[n]])).collect()
}

fn status(c: &Cluster) -> PathStatus {
    c.w.broker.contexts().paths.into_iter().next_back().unwrap().1
}

#[test]
fn a_module_crosses_once_runs_there_and_messages_wait_meanwhile() {
    // Longer than the connection's room, so that it goes out in many parts.
    let mut c = cluster(supplied(G0, OnStop::End, 300_000));
    c.w.arrive(1, &messages(0..4));
    // What is not made yet answers nothing, and holds nobody up.
    c.settle();
    assert_eq!(c.w.taken(2), messages(0..4));
    // Another path with the same module at the same program: no byte of it crosses again.
    let before = c.carried;
    c.set_paths(&[]);
    c.set_paths(&[supplied(G0, OnStop::Pass, 300_000)]);
    c.w.arrive(1, &messages(0..4));
    c.settle();
    assert_eq!(c.w.taken(2), messages(0..4));
    assert!(before > 300_000 && c.carried - before < 10_000);
    // A program that takes the place of a lost one gets what it asks for.
    c.lose(0);
    c.builder = HandlerBuilder::new(csp_sandbox::Limits::default());
    c.pass(RETRY);
    c.w.arrive(1, &messages(9..12));
    c.settle();
    assert_eq!(c.w.taken(2), messages(9..12));
}

#[test]
fn a_stop_there_is_what_the_policy_says() {
    for on_stop in [OnStop::Pass, OnStop::End, OnStop::Restart] {
        for passes in [false, true] {
            let path = ChannelPath { passes_faults: passes, ..supplied(G0, on_stop, 0) };
            let mut c = cluster(path);
            c.w.arrive(1, &messages(0..8));
            c.settle();
            let taken = c.w.taken(2);
            // The fifth is given up; a path that was ended lets none pass. The others find the module
            // waiting, or gone.
            let expected = match (on_stop, passes) {
                (OnStop::Pass, false) => [messages(0..4), messages(5..8)].concat(),
                (OnStop::Pass | OnStop::Restart, true) => messages(0..8),
                (OnStop::End, _) | (OnStop::Restart, false) => messages(0..4),
            };
            assert_eq!(taken, expected, "{on_stop:?} {passes}");
            let path = status(&c);
            let stage = &path.stages[0];
            assert_eq!((stage.usage.stops, stage.profile.messages), (1, 8), "{on_stop:?}");
            let ended = on_stop == OnStop::End;
            assert_eq!(path.state == PathState::Ended, ended, "{on_stop:?}");
            let dropped = 8 - expected.len() as u64 / messages(0..1).len() as u64;
            assert_eq!(path.counters.dropped_faults, dropped, "{on_stop:?} {passes}");
            // Later ones: after the back-off a new instance counts from 0.
            c.pass(Duration::from_millis(200));
            c.w.arrive(1, &messages(8..12));
            c.settle();
            let expected = if ended { Vec::new() } else { messages(8..12) };
            assert_eq!(c.w.taken(2), expected, "{on_stop:?} {passes}");
        }
    }
}

#[test]
fn a_module_that_cannot_run_there_says_so_and_its_messages_wait() {
    let mut path = supplied(G0, OnStop::End, 0);
    path.stages[0].parameters = "too long".to_owned();
    let mut c = cluster(path);
    c.w.arrive(1, &messages(0..4));
    c.settle();
    assert!(c.w.taken(2).is_empty());
    let Some(ContextNotice::Refused { channel, handler, context, .. }) = c.w.broker.poll_context_notice()
    else {
        panic!("nothing was said");
    };
    assert_eq!((&*channel, &*handler, context), ("ticks", "mine", G0));
    assert!(status(&c).stages[0].refused.is_some());
    // The next policy mends it.
    c.set_paths(&[supplied(G0, OnStop::Pass, 0)]);
    c.w.arrive(1, &messages(4..8));
    for _ in 0..8 {
        c.settle();
        c.pass(PATIENCE / 5);
    }
    c.settle();
    assert_eq!(c.w.taken(2), messages(4..8), "what waited for the former one is given up after a while");
    assert_eq!(c.w.broker.snapshots()[0].status.counters.lost, 4);
}

#[test]
fn what_a_stage_counts_there_is_seen_here() {
    let mut c = cluster(supplied(G0, OnStop::End, 0));
    c.pass(Duration::from_secs(1));
    c.programs[0].session.set_clock(|| csp_types::Instant::from_nanos(7));
    c.w.arrive(1, &messages(0..3));
    c.settle();
    c.pass(Duration::from_secs(1));
    c.w.arrive(1, &messages(3..4));
    c.settle();
    let stage = status(&c).stages.remove(0);
    assert_eq!(stage.times.unwrap().measured, 1, "every 16th call");
    assert!(stage.usage.fuel > 0 && stage.refused.is_none());
    assert_eq!(Standing::default(), Standing::Running);
}

#[test]
fn a_context_that_asks_for_what_it_does_not_need_is_disconnected() {
    let head = |record: Record<'_>| {
        let mut bytes = [0; 300];
        let len = record.emit_head(None, &mut bytes).unwrap();
        bytes[..len].to_vec()
    };
    let place = Place { path: 0, generation: 0, stage: 0 };
    let own = Sha256::of(&wat::parse_str(MODULE).unwrap()).0;
    // Of another module; the same one for ever.
    for (object, times) in [(&[7; 32], 1), (&own, 3)] {
        let mut c = cluster(supplied(G0 + 1, OnStop::End, 0));
        c.w.arrive(1, &messages(0..1));
        let label = c.programs[0].label;
        c.turn();
        let want = head(Record::Want { place, object }).repeat(times);
        c.w.arrive(label, &want);
        assert!(c.w.has_ended(label), "{times}");
        assert_eq!(c.w.broker.contexts().elsewhere[1].violations, 1);
    }
}

#[test]
fn a_context_may_ask_for_what_a_stage_needed_that_has_ended_meanwhile() {
    let mut c = cluster(supplied(G0 + 1, OnStop::End, 0));
    c.w.arrive(1, &messages(0..1));
    let label = c.programs[0].label;
    c.turn();
    let (place, object) = (Place { path: 0, generation: 99, stage: 0 }, &[7; 32]);
    let mut bytes = [0; 300];
    let len = Record::Want { place, object }.emit_head(None, &mut bytes).unwrap();
    c.w.arrive(label, &bytes[..len]);
    c.turn();
    assert!(!c.w.has_ended(label));
    assert_eq!(c.w.broker.contexts().elsewhere[1].violations, 0);
}
