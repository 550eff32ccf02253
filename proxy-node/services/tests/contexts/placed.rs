//! Stages that place themselves: by what their calls cost on a clock that the test drives, moved between two
//! messages.

use std::cell::Cell;

use csp_messages::{PathState, PlacementBounds, Rule, Why};
use csp_services::{AutoPlace, ContextNotice};

use super::*;

thread_local! {
    static CLOCK: Cell<u64> = const { Cell::new(0) };
    /// How much later it is at each look at the clock, in nanoseconds: what a call costs.
    static COST: Cell<u64> = const { Cell::new(0) };
}

fn clock() -> csp_types::Instant {
    CLOCK.set(CLOCK.get() + COST.get());
    csp_types::Instant::from_nanos(CLOCK.get())
}

const HOLD: Duration = Duration::from_secs(3);

fn placed(handler: &str, rule: Rule) -> ChannelPath {
    let bounds = PlacementBounds { calls: 4, hold: HOLD, ..PlacementBounds::default() };
    let auto = AutoPlace { rule, bounds, contexts: vec![1, G0] };
    let stage = |handler: &str, context, auto| {
        let (handler, parameters) = (handler.to_owned(), String::new());
        PathStage { handler, context, parameters, maker: None, auto, outputs: Vec::new() }
    };
    let first = auto.first().unwrap();
    ChannelPath::new(CHANNEL, vec![stage("forward", 0, None), stage(handler, first, Some(auto))])
}

struct Placed {
    c: Cluster,
    sent: u32,
    received: Vec<u8>,
}

impl Placed {
    fn new(path: &ChannelPath) -> Self {
        let mut c = Cluster::with_path(push_pull(), std::slice::from_ref(path));
        c.w.broker.set_clock(clock);
        c.w.connect_null(1, "PUSH");
        c.w.connect_null(2, "PULL");
        Placed { c, sent: 0, received: Vec::new() }
    }

    fn send(&mut self, count: u32) {
        let numbers = self.sent..self.sent + count;
        self.sent += count;
        let all: Vec<u8> = numbers.flat_map(|n| message(&[&n.to_be_bytes()])).collect();
        self.c.w.arrive(1, &all);
    }

    /// A second with traffic in which a call costs so many microseconds.
    fn second(&mut self, micros: u64) {
        COST.set(micros * 1_000);
        self.c.programs.iter_mut().for_each(|program| program.session.set_clock(clock));
        for _ in 0..5 {
            for _ in 0..20 {
                self.send(40);
                self.c.settle();
                self.received.extend(self.c.w.taken(2));
            }
            self.c.pass(Duration::from_millis(200));
        }
    }

    /// Runs until the stage is in a context. Returns after how many seconds.
    fn until(&mut self, context: u16, micros: u64) -> Option<u32> {
        (0..60).find(|_| {
            let is_there = self.context() == context;
            if !is_there {
                self.second(micros);
            }
            is_there
        })
    }

    fn context(&self) -> u16 {
        let paths = self.c.w.broker.contexts().paths;
        let path = paths.iter().find(|(_, path)| path.state != PathState::Retired).unwrap();
        path.1.stages[1].context
    }

    fn why(&self) -> Why {
        self.c.w.broker.contexts().places[0].why
    }

    /// All that was sent has arrived, once and in order.
    fn check(&mut self) {
        self.c.settle();
        self.received.extend(self.c.w.taken(2));
        let expected: Vec<u8> = (0..self.sent).flat_map(|n| message(&[&n.to_be_bytes()])).collect();
        assert!(self.received == expected, "{} of {} bytes", self.received.len(), expected.len());
    }
}

#[test]
fn a_stage_enters_the_worker_and_leaves_it_and_no_message_is_lost() {
    let path = placed("forward", Rule::Supplied);
    let mut p = Placed::new(&path);
    assert_eq!(p.context(), G0, "it has shown nothing yet");
    for _ in 0..10 {
        p.second(60);
    }
    assert_eq!((p.context(), p.c.presence()), (G0, Presence::Connected));
    assert!(matches!(p.why(), Why::P99(..)), "{:?}", p.why());
    // Calls of before count half as much after each report.
    let entered = p.until(1, 20).unwrap();
    assert!((6..20).contains(&entered), "{entered}");
    let Some(ContextNotice::Moved { from: G0, to: 1, error: None, .. }) = p.c.w.broker.poll_context_notice()
    else {
        panic!("nothing was said");
    };
    // The same policy again leaves it there.
    p.c.set_paths(std::slice::from_ref(&path));
    p.second(20);
    assert_eq!((p.context(), p.c.presence()), (1, Presence::Connected), "and the program stays at hand");
    assert!(p.until(G0, 200).is_some());
    // It has come back: it takes longer now.
    let again = p.until(1, 20).unwrap();
    assert!((6..20).contains(&again), "{again}");
    p.check();
    assert_eq!(p.c.w.broker.contexts().places[0].moves, 3);
    // Another policy places it anew.
    let other = placed("duplicate", Rule::Supplied);
    p.c.set_paths(&[other]);
    p.c.settle();
    assert_eq!(p.context(), G0);
}

#[test]
fn a_stage_that_costs_more_than_the_crossing_leaves_the_worker() {
    let mut p = Placed::new(&placed("forward", Rule::Cost));
    assert_eq!(p.context(), 1);
    p.second(1);
    assert!(p.until(G0, 30).is_some());
    for _ in 0..20 {
        p.second(30);
    }
    assert_eq!(p.context(), G0);
    p.check();
}

#[test]
fn a_stage_whose_state_is_kept_or_whose_context_is_away_stays() {
    let mut p = Placed::new(&placed("drop-every", Rule::Cost));
    for _ in 0..15 {
        p.second(30);
    }
    assert_eq!((p.context(), p.why()), (1, Why::KeepsState));
    let mut p = Placed::new(&placed("forward", Rule::Cost));
    p.c.up = false;
    for _ in 0..15 {
        p.second(30);
    }
    assert_eq!((p.context(), p.why()), (1, Why::NobodyElsewhere));
    p.c.up = true;
    assert!(p.until(G0, 30).is_some());
    p.check();
}

#[test]
fn moves_lose_double_and_reorder_nothing_however_messages_flow() {
    let mut moves = 0;
    for seed in 0..15 {
        let mut random = Random::new(seed);
        let rule = if seed % 2 == 0 { Rule::Supplied } else { Rule::Cost };
        let mut p = Placed::new(&placed("forward", rule));
        p.c.w.ends.get_mut(&2).unwrap().room = 0;
        for _ in 0..1_500 {
            COST.set([500, 20_000, 200_000][(p.sent / 20_000) as usize % 3]);
            match random.below(10) {
                0..3 => p.send(random.below(120) as u32),
                3..5 => {
                    p.c.w.give_room(2, random.below(20_000) as usize);
                    p.received.extend(p.c.w.taken(2));
                }
                5..7 => p.c.pass(Duration::from_millis(200)),
                _ => {
                    p.c.programs.iter_mut().for_each(|program| program.session.set_clock(clock));
                    let mut lens = Random::new(random.below(1 << 40));
                    p.c.exchange(|| lens.below(20_000) as usize);
                }
            }
        }
        p.c.w.give_room(2, 1 << 30);
        for _ in 0..200 {
            p.c.pass(Duration::from_millis(100));
            p.c.settle();
            p.received.extend(p.c.w.taken(2));
        }
        p.check();
        moves += p.c.w.broker.contexts().places[0].moves;
    }
    assert!(moves >= 15, "{moves} moves");
}
