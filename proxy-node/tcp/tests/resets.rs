//! Resets that the application causes: what it wrote before arrives first, in every order of its calls and
//! over every link.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use std::time::Duration;

use common::{LinkFaults, Net, Random, client_tuple, seeds, small_config, stream_byte};
use csp_tcp::{Event, FailReason, StackConfig, State};
use csp_types::FlowLabel;
use csp_types::limits::{RESET_STALL, RESET_WAIT};
use csp_wire::tcp::Flags;

/// How the server ends its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// SO_LINGER 0, or an error of the proxy.
    Reset,
    /// `close` while bytes of the client are unread.
    CloseUnread,
    /// `close` after everything was read; the client sends more.
    CloseThenData,
}

/// What happens at the server, in this order.
#[derive(Clone, Copy, Debug)]
struct Plan {
    /// Bytes that it writes.
    writes: usize,
    /// Whether it calls `shutdown` afterwards.
    shuts: bool,
    end: End,
    /// Time between writing and the end.
    pause: Duration,
}

/// What the client has received.
#[derive(Debug, Default)]
struct Heard {
    bytes: usize,
    finished: bool,
    last: Option<Event>,
}

struct Pair {
    net: Net,
    client: FlowLabel,
    server: FlowLabel,
    heard: Heard,
    /// Events of the server.
    events: Vec<Event>,
    reads: bool,
    key: u64,
}

impl Pair {
    fn new(seed: u64, faults: LinkFaults) -> Pair {
        let client = StackConfig { receive_window_initial: 1 << 18, ..small_config(1) };
        let server = StackConfig { send_buffer_min: 1 << 19, ..small_config(2) };
        let mut net = Net::new(seed, client, server);
        let label = net.hosts[0].stack.connect(net.now, client_tuple(1000), 7, 1).unwrap();
        let mut pair = Pair {
            net,
            client: label,
            server: FlowLabel::NONE,
            heard: Heard::default(),
            events: Vec::new(),
            reads: true,
            key: seed,
        };
        pair.run(Duration::from_millis(20));
        pair.net.faults = [faults; 2];
        pair.net.log = Some(Vec::new());
        pair
    }

    fn run(&mut self, time: Duration) {
        let limit = self.net.now + time;
        loop {
            self.collect();
            self.net.flush();
            if !self.net.step(limit) {
                break;
            }
        }
        self.collect();
    }

    fn collect(&mut self) {
        while let Some((label, event)) = self.net.hosts[1].stack.poll_event() {
            self.server = label;
            self.events.push(event);
        }
        loop {
            self.read();
            match self.net.hosts[0].stack.poll_event() {
                Some((_, Event::PeerFinished)) => self.heard.finished = true,
                Some((_, event @ (Event::Closed | Event::Failed(_) | Event::Reset))) => {
                    assert!(self.heard.last.replace(event).is_none(), "a second last event");
                }
                Some(_) => {}
                None => break,
            }
        }
    }

    fn read(&mut self) {
        if !self.reads {
            return;
        }
        let (key, mut at) = (self.key, self.heard.bytes);
        self.net.hosts[0].stack.read_with(self.net.now, self.client, usize::MAX, |slice| {
            for byte in slice {
                assert_eq!(*byte, stream_byte(key, at as u64), "byte {at}");
                at += 1;
            }
            slice.len()
        });
        self.heard.bytes = at;
    }

    fn serve(&mut self, plan: Plan) {
        let now = self.net.now;
        if plan.end != End::CloseThenData {
            self.net.hosts[0].stack.write(now, self.client, &[7; 3_000]);
            self.run(Duration::from_millis(600));
            assert!(self.net.hosts[1].stack.readable(self.server) > 0);
        }
        let bytes: Vec<u8> = (0..plan.writes).map(|at| stream_byte(self.key, at as u64)).collect();
        let stack = &mut self.net.hosts[1].stack;
        assert_eq!(stack.write(self.net.now, self.server, &bytes), plan.writes);
        if plan.shuts {
            stack.shutdown(self.net.now, self.server);
        }
        self.run(plan.pause);
        let (now, stack) = (self.net.now, &mut self.net.hosts[1].stack);
        match plan.end {
            End::Reset => drop(stack.reset(now, self.server)),
            End::CloseUnread => stack.close(now, self.server),
            End::CloseThenData => {
                stack.close(now, self.server);
                self.net.hosts[0].stack.write(now, self.client, &[8; 3_000]);
            }
        }
    }

    /// The sequence number of the first RST that the server sent, relative to the end of what it had sent
    /// before.
    fn rst_behind(&self) -> Option<i64> {
        let mut top = None::<u32>;
        for (_, from, header, len) in self.net.log.iter().flatten() {
            if *from != 1 {
                continue;
            }
            if header.flags.contains(Flags::RST) {
                return top.map(|top| i64::from(header.seq.wrapping_sub(top) as i32));
            }
            let end = header.seq.wrapping_add(*len as u32 + u32::from(header.flags.contains(Flags::FIN)));
            top = Some(top.map_or(end, |top| if end.wrapping_sub(top) as i32 > 0 { end } else { top }));
        }
        None
    }

    fn assert_empty(&self) {
        let occupancy = self.net.hosts[1].stack.occupancy();
        let used = (occupancy.connections.0, occupancy.blocks.0, occupancy.records.0, occupancy.range_sets.0);
        assert_eq!(used, (0, 0, 0, 0));
    }
}

fn check(seed: u64, plan: Plan, faults: LinkFaults) {
    let mut pair = Pair::new(seed, faults);
    pair.serve(plan);
    pair.run(RESET_WAIT + Duration::from_secs(5));
    let overdue = pair.net.hosts[1].stack.counters().resets_overdue;
    assert_eq!(overdue, 0, "seed {seed} {plan:?}");
    assert_eq!(pair.heard.bytes, plan.writes, "seed {seed} {plan:?}");
    // With `close` alone FIN follows the data; unread bytes turn it into a reset without FIN.
    let fin = plan.shuts || plan.end == End::CloseThenData;
    assert_eq!(pair.heard.finished, fin, "seed {seed} {plan:?}");
    let last = pair.heard.last;
    assert!(matches!(last, None | Some(Event::Failed(FailReason::Reset))), "seed {seed} {plan:?}: {last:?}");
    if faults.loss == 0.0 {
        assert_eq!(last, Some(Event::Failed(FailReason::Reset)), "{plan:?}");
        // RFC 5961 §3.2: any other number would only cause a challenge ACK.
        assert_eq!(pair.rst_behind(), Some(0), "{plan:?}");
    }
    let expected = match plan.end {
        End::Reset => Event::Reset,
        End::CloseUnread | End::CloseThenData => Event::Failed(FailReason::DataAfterClose),
    };
    let ended: Vec<_> = pair.events.iter().filter(|e| matches!(e, Event::Reset | Event::Failed(_))).collect();
    let at_once = plan.end == End::Reset && ended.is_empty(); // everything was acknowledged: no event
    assert!(ended == [&expected] || at_once, "seed {seed} {plan:?}: {ended:?}");
    pair.assert_empty();
}

fn plan(random: &mut Random) -> Plan {
    let ends = [End::Reset, End::CloseUnread, End::CloseThenData];
    Plan {
        writes: [0, 1, 1_000, 20_000, 200_000][random.below(5) as usize],
        shuts: random.chance(0.5),
        end: ends[random.below(3) as usize],
        pause: Duration::from_micros([0, 0, 300, 1_200, 50_000][random.below(5) as usize]),
    }
}

#[test]
fn in_every_order_of_calls_the_data_comes_first_then_fin_if_asked_for_then_the_reset() {
    let delay = Duration::from_micros(500);
    for writes in [0, 1, 1_000, 20_000, 200_000] {
        for shuts in [false, true] {
            for end in [End::Reset, End::CloseUnread, End::CloseThenData] {
                for pause in [0, 300, 1_200, 50_000].map(Duration::from_micros) {
                    let plan = Plan { writes, shuts, end, pause };
                    check(writes as u64, plan, LinkFaults { delay, ..LinkFaults::default() });
                }
            }
        }
    }
}

#[test]
fn over_a_lossy_and_reordering_link_nothing_that_was_written_is_lost_either() {
    for seed in seeds(300) {
        let mut random = Random(seed ^ 0x5eed);
        let plan = plan(&mut random);
        let faults = LinkFaults {
            delay: Duration::from_micros(500 + random.below(20_000)),
            loss: 0.02,
            duplication: 0.02,
            reordering: 0.05,
            ..LinkFaults::default()
        };
        check(seed, plan, faults);
    }
}

#[test]
fn a_slow_link_takes_its_time_and_progress_extends_it() {
    let plan = Plan { writes: 300_000, shuts: false, end: End::Reset, pause: Duration::ZERO };
    // 300,000 bytes at 50 kB/s: six seconds, three times the limit without progress.
    let (delay, bandwidth) = (Duration::from_millis(5), 50_000);
    let faults = LinkFaults { delay, bandwidth, queue: 1 << 20, ..LinkFaults::default() };
    let mut pair = Pair::new(5, LinkFaults { delay, ..LinkFaults::default() });
    pair.net.hosts[0].stack.write(pair.net.now, pair.client, &[7; 100]);
    pair.run(Duration::from_millis(50));
    pair.net.faults[1] = faults;
    let bytes: Vec<u8> = (0..plan.writes).map(|at| stream_byte(5, at as u64)).collect();
    let stack = &mut pair.net.hosts[1].stack;
    assert_eq!(stack.write(pair.net.now, pair.server, &bytes), plan.writes);
    assert!(stack.reset(pair.net.now, pair.server));
    pair.run(RESET_WAIT);
    assert_eq!(pair.heard.bytes, plan.writes);
    assert_eq!(pair.heard.last, Some(Event::Failed(FailReason::Reset)));
}

#[test]
fn a_client_that_takes_nothing_is_reset_after_a_bounded_time_and_has_what_its_window_took() {
    let mut pair = Pair::new(3, LinkFaults { delay: Duration::from_micros(500), ..LinkFaults::default() });
    pair.reads = false;
    let began = pair.net.now;
    let plan = Plan { writes: 400_000, shuts: false, end: End::CloseUnread, pause: Duration::ZERO };
    pair.serve(plan);
    let called = pair.net.now;
    let mut waited = None;
    while waited.is_none() && pair.net.now < began + RESET_WAIT {
        pair.run(Duration::from_millis(10));
        waited = (pair.net.hosts[1].stack.occupancy().connections.0 == 0).then(|| pair.net.now - called);
    }
    let waited = waited.unwrap();
    assert!(waited >= RESET_STALL && waited < RESET_STALL + Duration::from_millis(500), "{waited:?}");
    assert_eq!(pair.net.hosts[1].stack.counters().resets_overdue, 1);
    pair.assert_empty();
    // What its receive queue holds is readable after the reset, as with a kernel.
    pair.reads = true;
    pair.collect();
    assert!(pair.heard.bytes >= 200_000 && pair.heard.bytes < plan.writes, "{}", pair.heard.bytes);
    assert_eq!(pair.heard.last, Some(Event::Failed(FailReason::Reset)));
}

#[test]
fn the_time_of_a_reset_is_bounded_however_little_progress_the_client_makes() {
    let mut pair = Pair::new(4, LinkFaults { delay: Duration::from_micros(500), ..LinkFaults::default() });
    pair.reads = false;
    pair.serve(Plan { writes: 400_000, shuts: true, end: End::Reset, pause: Duration::ZERO });
    let called = pair.net.now;
    while pair.net.hosts[1].stack.occupancy().connections.0 > 0 {
        pair.run(Duration::from_millis(500));
        let now = pair.net.now;
        pair.net.hosts[0].stack.read_with(now, pair.client, 3_000, |slice| slice.len());
        assert!(pair.net.now - called <= RESET_WAIT + Duration::from_millis(500));
    }
    assert!(pair.net.now - called > RESET_WAIT - Duration::from_millis(500), "{:?}", pair.net.now - called);
}

#[test]
fn while_a_reset_waits_nothing_can_be_written_and_arriving_data_is_discarded() {
    let mut pair = Pair::new(6, LinkFaults { delay: Duration::from_millis(5), ..LinkFaults::default() });
    pair.net.hosts[0].stack.write(pair.net.now, pair.client, &[7; 100]);
    pair.run(Duration::from_millis(50));
    let (now, stack) = (pair.net.now, &mut pair.net.hosts[1].stack);
    assert_eq!(stack.write(now, pair.server, &[stream_byte(6, 0)]), 1);
    assert!(stack.reset(now, pair.server) && stack.reset(now, pair.server));
    assert_eq!((stack.writable(pair.server), stack.write(now, pair.server, b"more")), (0, 0));
    assert_eq!(stack.readable(pair.server), 0);
    stack.shutdown(now, pair.server);
    pair.net.hosts[0].stack.write(now, pair.client, &[7; 2_000]);
    pair.run(Duration::from_millis(7));
    assert_eq!(pair.net.hosts[1].stack.readable(pair.server), 0);
    assert_eq!(pair.net.hosts[1].stack.info(pair.server).map(|i| i.state), Some(State::Resetting));
    pair.run(Duration::from_secs(1));
    assert_eq!((pair.heard.bytes, pair.heard.finished), (1, false));
    assert_eq!(pair.heard.last, Some(Event::Failed(FailReason::Reset)));
    pair.assert_empty();
}

#[test]
fn what_arrived_before_a_reset_of_the_peer_is_read_before_the_failure_and_abort_discards_it() {
    for aborts in [false, true] {
        let mut pair =
            Pair::new(7, LinkFaults { delay: Duration::from_micros(500), ..LinkFaults::default() });
        let now = pair.net.now;
        pair.net.hosts[0].stack.write(now, pair.client, &[7; 5_000]);
        pair.run(Duration::from_millis(50));
        pair.net.hosts[0].stack.abort(pair.net.now, pair.client);
        pair.run(Duration::from_millis(50));
        assert_eq!(pair.events.last(), Some(&Event::Broken(FailReason::Reset)));
        let (now, stack) = (pair.net.now, &mut pair.net.hosts[1].stack);
        assert_eq!((stack.readable(pair.server), stack.write(now, pair.server, b"x")), (5_000, 0));
        assert_eq!(stack.failure(pair.server), Some(FailReason::Reset));
        if aborts {
            stack.abort(now, pair.server);
            assert_eq!(stack.poll_event(), None);
        } else {
            assert_eq!(stack.read_with(now, pair.server, 4_999, |slice| slice.len()), 4_999);
            assert_eq!(stack.poll_event(), None);
            assert_eq!(stack.read_with(now, pair.server, 1, |slice| slice.len()), 1);
            assert_eq!(stack.poll_event(), Some((pair.server, Event::Failed(FailReason::Reset))));
        }
        assert_eq!(pair.net.hosts[1].stack.failure(pair.server), None);
        pair.assert_empty();
    }
}
