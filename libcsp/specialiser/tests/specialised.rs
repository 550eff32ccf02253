//! Specialised operators beside the built-in ones, over random formats, queries and messages: the same
//! verdicts and bytes, the same messages, frames and counters. `CSP_SEED=n` replays one seed; `CSP_SEEDS=n`
//! runs more.
#![allow(clippy::unwrap_used, clippy::disallowed_types, reason = "a test with a deadline")]

#[path = "../../sandbox/tests/common/port.rs"]
mod port;
#[path = "../../queries/tests/random/mod.rs"]
mod random;

use std::cell::Cell;
use std::sync::Arc;

use csp_handlers::{FormatId, Handler, State, Stop};
use csp_operators::{Counters, FormatSet, Limits, Query, Rules, SAMPLES, Time, Verdict, make};
use csp_queries::{Condition, Image, Plan};
use csp_specialiser::{Declined, Work, Workshop, generate};
use csp_support::Random;
use port::{FakePort, at, send};
use random::{Channels, Expressions, Format};

thread_local!(static READS: Cell<u64> = const { Cell::new(0) });

/// A clock on which every version of a trial takes no time.
fn still() -> u64 {
    0
}

/// A clock on which messages of the specialised version take less time. A trial has 8 messages of one
/// version, then 8 of the other, and reads the clock twice a message.
fn favours_specialised() -> u64 {
    let read = READS.get();
    READS.set(read + 1);
    let is_end = read % 2 == 1;
    let is_specialised = read / 16 % 2 == 1;
    match (is_end, is_specialised) {
        (false, _) => 0,
        (true, true) => 10,
        (true, false) => 100,
    }
}

fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match number("CSP_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("CSP_SEEDS").unwrap_or(400),
    }
}

/// A query over a random format, as text.
fn sql(random: &mut Random, format: &Format) -> String {
    let mut expressions = Expressions { random, columns: format.columns.clone(), functions: false };
    let filter = match expressions.random.below(5) {
        0 => "TRUE".to_owned(),
        1 => format!("{} AND {} AND {}", expressions.truth(0), expressions.truth(1), expressions.truth(0)),
        _ => expressions.truth(2),
    };
    let mut outputs: Vec<String> = format.columns.iter().map(|column| column.0.clone()).collect();
    outputs.retain(|_| expressions.random.below(2) == 0);
    for _ in 0..expressions.random.below(3) {
        outputs.push(expressions.number(2));
    }
    if outputs.is_empty() || expressions.random.below(2) == 0 {
        outputs.push(expressions.truth(1));
    }
    let outputs: Vec<_> = outputs.iter().enumerate().map(|(at, text)| format!("{text} AS o{at}")).collect();
    format!("SELECT {} FROM a WHERE {filter}", outputs.join(", "))
}

/// What the plan's own programs make of a row.
fn generic(condition: &Condition, image: Option<&Image>, row: &[u8], out: Option<&mut [u8]>) -> Verdict {
    match condition.accepts(&[row]) {
        None => Verdict::Unsaid,
        Some(false) => Verdict::Refused,
        Some(true) => match (image, out) {
            (Some(image), Some(out)) => image.emit(&[row], out).map_or(Verdict::Accepted, Verdict::Written),
            _ => Verdict::Accepted,
        },
    }
}

#[derive(Default, Debug)]
struct Said {
    plans: u64,
    made: u64,
    rows: u64,
    refused: u64,
    written: u64,
    unsaid: u64,
    accepted: u64,
}

fn check_program(work: &Work, seed: u64, said: &mut Said) {
    let random = &mut Random::new(seed);
    let format = random::format(random, 1);
    let sql = sql(random, &format);
    let Ok(plan) = Plan::new(&sql, &Channels([format.schema.clone(), format.schema.clone()]), 90) else {
        return;
    };
    let plan = Arc::new(plan);
    said.plans += 1;
    let condition_only = random.below(4) == 0;
    let mut program = match generate(&plan, condition_only) {
        Ok(_) => work.program(&plan, condition_only).unwrap_or_else(|error| panic!("{error}\n{sql}")),
        Err(declined) => {
            assert_ne!(declined, Declined::Stateful, "{sql}");
            return;
        }
    };
    said.made += 1;
    let fixed = plan.fixed(0, None);
    let condition = Condition::new(&plan, &plan.filter).unwrap();
    let image = if condition_only { None } else { Image::new(&plan) };
    for _ in 0..60 {
        let bytes = random::message(random, &format.schema);
        let Some(row) = fixed.of(&bytes, bytes.len()) else { continue };
        let mut outs = [[0xaa; 400]; 2];
        let room = if random.below(10) == 0 { random.below(100) as usize } else { 400 };
        let [one, other] = &mut outs;
        let expected = generic(&condition, image.as_ref(), row, Some(&mut one[..room]));
        let verdict = program.run(row, Some(&mut other[..room]));
        assert_eq!(verdict, expected, "{sql}\n{row:?}");
        said.rows += 1;
        match verdict {
            Verdict::Unsaid => said.unsaid += 1,
            Verdict::Refused => said.refused += 1,
            Verdict::Accepted => said.accepted += 1,
            Verdict::Written(len) => {
                assert_eq!(one[..len], other[..len], "{sql}\n{row:?}");
                said.written += 1;
            }
        }
    }
}

#[test]
fn programs_yield_what_plans_yield_over_random_formats_and_messages() {
    let mut said = Said::default();
    let (_workshop, work) = Workshop::new(still).unwrap();
    for seed in seeds() {
        println!("CSP_SEED={seed}");
        check_program(&work, seed, &mut said);
    }
    println!("{said:?}");
    if std::env::var("CSP_SEED").is_err() {
        let Said { plans, made, rows, refused, written, .. } = said;
        assert!(made > plans / 3 && refused > rows / 10 && written > rows / 20, "{said:?}");
        assert!(said.unsaid > 0 && said.accepted > 0, "{said:?}");
    }
}

/// Two handlers of the same query, each with its state: the generic one, and one that has a specialised
/// version.
struct Pair {
    handlers: [(Box<dyn Handler>, State); 2],
    slice: usize,
}

impl Pair {
    fn new(handlers: [Box<dyn Handler>; 2], parameters: &str) -> Option<Self> {
        let mut made = handlers.map(|handler| {
            let state = State::new(&handler.needs());
            (handler, state)
        });
        let set = made.each_mut().map(|(handler, state)| handler.configure(parameters, state).is_ok());
        assert_eq!(set[0], set[1]);
        set[0].then_some(Pair { handlers: made, slice: 1 << 16 })
    }

    /// Sends a message to both, and compares what comes of it.
    fn send(&mut self, format: u32, frames: &[Vec<u8>], room: usize, what: &str) -> Result<(), Stop> {
        let slice = self.slice;
        let [one, other] = self.handlers.each_mut().map(|(handler, state)| {
            let mut port = FakePort::new(&[]);
            (port.frames, port.format, port.slice, port.room) = (frames.to_vec(), format, slice, room);
            let done = send(&mut **handler, state, &mut port, at(2));
            let counters = Counters::of(state);
            (done, port.emitted, counters)
        });
        assert_eq!(other, one, "{what}: {frames:?}");
        one.0
    }
}

/// Messages in slices of some lengths, alone or behind a topic, with and without room; all of one format.
fn check_operator(pair: &mut Pair, random: &mut Random, format: &Format, what: &str) -> u64 {
    let mut accepted = 0;
    for _ in 0..4 * 3 * SAMPLES {
        let body = random::message(random, &format.schema);
        let frames = if random.below(4) == 0 { vec![b"topic".to_vec(), body] } else { vec![body] };
        pair.slice = [1 << 16, 1 << 16, 1 << 16, 9][random.below(4) as usize];
        let room = usize::from(random.below(20) > 0);
        accepted += u64::from(pair.send(1, &frames, room, what).is_ok());
    }
    accepted
}

#[test]
fn operators_make_the_same_whichever_version_runs() {
    let rules = Rules { again: 50, again_max: 50, ..Rules::default() };
    let (mut specialised, mut accepted) = (0, 0);
    for seed in seeds().step_by(8) {
        println!("CSP_SEED={seed}");
        let random = &mut Random::new(seed);
        let format = random::format(random, 1);
        let (workshop, work) = Workshop::new(favours_specialised).unwrap();
        let sql = sql(random, &format);
        let Ok(plan) = Plan::new(&sql, &Channels([format.schema.clone(), format.schema.clone()]), 90) else {
            continue;
        };
        let plan = Arc::new(plan);
        let query = || {
            let inputs = [(FormatId(1), Time::Arrival)];
            Query::new(plan.clone(), &inputs, FormatId(9), Limits::default()).unwrap()
        };
        let by = workshop.named("a");
        let pair: [Box<dyn Handler>; 2] = [Box::new(query()), Box::new(query().specialised(&by, rules))];
        let mut pair = Pair::new(pair, "").unwrap();
        // Before the specialised version is there, and then in trials and between them.
        check_operator(&mut pair, random, &format, &sql);
        READS.set(0);
        work.run_pending();
        accepted += check_operator(&mut pair, random, &format, &sql);
        specialised += u64::from(texts(&workshop)[0].starts_with("specialised: "));
    }
    if std::env::var("CSP_SEED").is_err() {
        assert!(specialised > 10 && accepted > 1000, "{specialised} specialised, {accepted} accepted");
    }
}

const FLIGHTS: &str = r#"<messageSchema id="1" version="0" byteOrder="bigEndian"><types>
<composite name="messageHeader"><type name="blockLength" primitiveType="uint16"/><type name="templateId" primitiveType="uint16"/><type name="schemaId" primitiveType="uint16"/><type name="version" primitiveType="uint16"/></composite>
<composite name="text"><type name="length" primitiveType="uint16"/><type name="varData" primitiveType="uint8" length="0" characterEncoding="UTF-8"/></composite>
<type name="airport" primitiveType="char" length="4"/></types>
<message name="Flight" id="1"><field name="origin" id="1" type="airport"/><field name="number" id="2" type="uint32"/><field name="fuel" id="3" type="double"/>
<data name="remark" id="4" type="text"/></message></messageSchema>"#;

fn flight(number: u32) -> Vec<u8> {
    let mut bytes = vec![0, 16, 0, 1, 0, 1, 0, 0];
    bytes.extend(b"ATLX");
    bytes.extend(number.to_be_bytes());
    bytes.extend(2.5f64.to_be_bytes());
    bytes.extend([0, 4]);
    bytes.extend(b"late");
    bytes
}

/// The operators of a channel with the format above, and its workshop.
fn operator(name: &str, parameters: &str, clock: fn() -> u64) -> (Pair, Arc<Workshop>, Work) {
    let schema = Arc::new(csp_formats::Schema::parse(FLIGHTS).unwrap());
    let (workshop, work) = Workshop::new(clock).unwrap();
    let sets = [false, true].map(|has_specialiser| {
        let mut set = FormatSet::new();
        set.add(FormatId(1), schema.clone(), "Flight".into()).unwrap();
        if has_specialiser {
            set.set_specialiser(workshop.named("flights"), Rules::default());
        }
        Arc::new(set)
    });
    let pair = Pair::new(sets.map(|set| make(name, &set).unwrap()), parameters).unwrap();
    (pair, workshop, work)
}

fn texts(workshop: &Workshop) -> Vec<String> {
    workshop.standings().into_iter().map(|standing| standing.text).collect()
}

fn run(pair: &mut Pair, count: usize) {
    (0..count).for_each(|nth| pair.send(1, &[flight(nth as u32)], 8, "a flight").unwrap());
}

#[test]
fn an_operator_goes_on_while_its_specialised_version_is_made_and_then_takes_it_if_it_is_better() {
    for (name, parameters) in [
        ("select", "origin = 'ATLX' AND number > 100"),
        ("project", "number, origin, remark, number * 2 AS twice WHERE fuel > 1"),
        ("split", "whole WHERE number > 100; number, origin WHERE fuel > 1"),
    ] {
        let parameters =
            if name == "project" { parameters.split(" WHERE").next().unwrap() } else { parameters };
        let (mut pair, workshop, work) = operator(name, parameters, favours_specialised);
        run(&mut pair, 10);
        let waits = "generic: the specialised version is not compiled yet";
        assert!(texts(&workshop).iter().all(|standing| standing == waits), "{name}");
        work.run_pending();
        READS.set(0);
        if name == "split" {
            // Its two parts share the clock of this test: which version is better is not said.
            run(&mut pair, 2000);
            continue;
        }
        run(&mut pair, 10);
        assert_eq!(texts(&workshop), ["generic: both versions are being timed"], "{name}");
        run(&mut pair, 3 * SAMPLES);
        assert_eq!(texts(&workshop), ["specialised: 10 ns a message beside 100 ns"], "{name}");
        drop(pair);
        assert!(workshop.standings().is_empty());
    }
}

#[test]
fn a_thread_makes_specialised_versions_while_messages_flow() {
    let (mut pair, workshop, work) = operator("select", "number > 100", favours_specialised);
    let thread = std::thread::spawn(move || work.run(&std::sync::Mutex::new(())));
    READS.set(0);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !texts(&workshop)[0].starts_with("specialised") {
        run(&mut pair, SAMPLES);
        assert!(std::time::Instant::now() < deadline, "{:?}", texts(&workshop));
    }
    // The thread ends when no operator can ask any more.
    drop((pair, workshop));
    thread.join().unwrap();
}

#[test]
fn an_operator_stays_generic_if_the_specialised_version_takes_as_long() {
    let (mut pair, workshop, work) = operator("project", "number, origin", still);
    work.run_pending();
    run(&mut pair, 10 + 3 * SAMPLES);
    assert_eq!(texts(&workshop), ["generic: 0 ns a message, the specialised version 0 ns"]);
}

#[test]
fn what_is_not_specialised_says_why() {
    for (name, parameters, why) in [
        ("select", "remark = 'late'", Declined::Condition),
        ("select", "fuel % 2 > 1", Declined::FloatRemainder),
        ("project", "remark", Declined::Result),
    ] {
        let (mut pair, workshop, work) = operator(name, parameters, still);
        work.run_pending();
        run(&mut pair, 5);
        let standings = texts(&workshop);
        if why != Declined::Result {
            assert_eq!(standings, [format!("generic: {why}")], "{parameters}");
        }
    }
}

#[test]
fn operators_that_are_gone_are_not_compiled_for_and_a_full_queue_is_an_answer() {
    let (pair, workshop, work) = operator("select", "number > 1", still);
    drop(pair);
    work.run_pending();
    assert!(workshop.standings().is_empty());
    let schema = Arc::new(csp_formats::Schema::parse(FLIGHTS).unwrap());
    let mut set = FormatSet::new();
    set.add(FormatId(1), schema, "Flight".into()).unwrap();
    set.set_specialiser(workshop.named("flights"), Rules::default());
    let set = Arc::new(set);
    let mut all: Vec<_> = (0..csp_specialiser::WAITING_MAX + 1)
        .map(|_| {
            let mut handler = make("select", &set).unwrap();
            let mut state = State::new(&handler.needs());
            handler.configure("number > 1", &mut state).unwrap();
            (handler, state)
        })
        .collect();
    let mut port = FakePort::new(&flight(1));
    (port.format, port.slice) = (1, 1 << 16);
    for (handler, state) in &mut all {
        send(&mut **handler, state, &mut port, at(1)).unwrap();
    }
    let refused = texts(&workshop).into_iter().filter(|text| text.contains("wait for")).count();
    assert_eq!(refused, 1);
}
