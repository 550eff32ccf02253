//! Scenarios of connections beginning and ending, over a link without faults unless a test sets some.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use std::time::Duration;

use common::{Net, Packet, address, client_tuple, small_config};
use csp_tcp::{Event, FailReason, PathError, StackConfig, State};
use csp_types::{FlowLabel, FourTuple};
use csp_wire::tcp::Flags;
use csp_wire::tcp::{Options, Repr};

/// A network whose hosts record their events.
struct Pair {
    net: Net,
    events: [Vec<(FlowLabel, Event)>; 2],
}

impl Pair {
    fn new() -> Self {
        Pair::with_server(small_config(2))
    }

    fn with_server(server: StackConfig) -> Self {
        let client = StackConfig { send_buffer_min: 1 << 20, ..small_config(1) };
        Pair { net: Net::new(1, client, server), events: [Vec::new(), Vec::new()] }
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
        for (host, events) in self.net.hosts.iter_mut().zip(&mut self.events) {
            while let Some(event) = host.stack.poll_event() {
                events.push(event);
            }
        }
    }

    fn events(&mut self, side: usize) -> Vec<Event> {
        self.collect();
        std::mem::take(&mut self.events[side]).into_iter().map(|(_, event)| event).collect()
    }

    /// Connects; returns the labels at both ends.
    fn establish(&mut self, port: u16) -> (FlowLabel, FlowLabel) {
        self.establish_as(client_tuple(port), 5)
    }

    fn establish_as(&mut self, tuple: FourTuple, service: u32) -> (FlowLabel, FlowLabel) {
        let client = self.net.hosts[0].stack.connect(self.net.now, tuple, 7, 1).unwrap();
        self.run(Duration::from_millis(20));
        let established = |passive, service, tuple| Event::Established { passive, service, tuple };
        assert_eq!(self.events[0], [(client, established(false, 1, tuple))]);
        let server = self.events[1][0].0;
        let mirrored = FourTuple { local: tuple.remote, remote: tuple.local };
        assert_eq!(self.events[1], [(server, established(true, service, mirrored))]);
        self.events = [Vec::new(), Vec::new()];
        (client, server)
    }

    fn write(&mut self, side: usize, label: FlowLabel, data: &[u8]) -> usize {
        self.net.hosts[side].stack.write(self.net.now, label, data)
    }

    fn read(&mut self, side: usize, label: FlowLabel, max: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.net.hosts[side].stack.read_with(self.net.now, label, max, |slice| {
            bytes.extend_from_slice(slice);
            slice.len()
        });
        bytes
    }

    fn shutdown(&mut self, side: usize, label: FlowLabel) {
        self.net.hosts[side].stack.shutdown(self.net.now, label);
    }

    fn state(&self, side: usize, label: FlowLabel) -> Option<State> {
        self.net.hosts[side].stack.info(label).map(|info| info.state)
    }

    /// Checks that nothing is left of any connection except `time_wait` TIME-WAIT entries on each side.
    fn assert_empty(&mut self, time_wait: [usize; 2]) {
        self.collect();
        for (side, host) in self.net.hosts.iter().enumerate() {
            let occupancy = host.stack.occupancy();
            assert_eq!(occupancy.connections.0, 0, "side {side}");
            assert_eq!((occupancy.blocks.0, occupancy.range_sets.0, occupancy.half_open.0), (0, 0, 0));
            assert_eq!(occupancy.time_wait.0, time_wait[side], "TIME-WAIT of side {side}");
            assert!(host.known.is_empty(), "side {side}'s network node still has a flow");
        }
    }
}

#[test]
fn a_request_and_its_answer_then_close_by_the_client() {
    let mut pair = Pair::new();
    let (client, server) = pair.establish(1000);
    assert_eq!(pair.write(0, client, b"GET /"), 5);
    pair.run(Duration::from_millis(5));
    assert_eq!(pair.events(1), [Event::Readable]);
    assert_eq!(pair.read(1, server, 100), b"GET /");
    pair.write(1, server, b"200 OK");
    pair.run(Duration::from_millis(5));
    assert_eq!(pair.read(0, client, 2), b"20");
    assert_eq!(pair.read(0, client, 100), b"0 OK");
    pair.shutdown(0, client);
    pair.run(Duration::from_millis(5));
    assert_eq!(
        (pair.state(0, client), pair.state(1, server)),
        (Some(State::FinWait2), Some(State::CloseWait))
    );
    assert_eq!(pair.events(1), [Event::PeerFinished]);
    pair.write(1, server, b"more");
    pair.shutdown(1, server);
    assert_eq!(pair.write(1, server, b"too late"), 0);
    pair.run(Duration::from_millis(5));
    assert_eq!(
        pair.events(0),
        [Event::Readable, Event::Readable, Event::PeerFinished],
        "unread bytes hold Closed back"
    );
    assert_eq!(pair.events(1), [Event::Closed]);
    assert_eq!(pair.read(0, client, 100), b"more");
    assert_eq!(pair.events(0), [Event::Closed]);
    assert_eq!(pair.net.hosts[0].stack.readable(client), 0);
    pair.assert_empty([1, 0]);
    pair.run(Duration::from_secs(61));
    pair.assert_empty([0, 0]);
    assert_eq!(pair.net.hosts[0].stack.next_timeout(), None);
}

#[test]
fn both_sides_close_at_once() {
    let mut pair = Pair::new();
    let (client, server) = pair.establish(1000);
    pair.shutdown(0, client);
    pair.shutdown(1, server);
    pair.run(Duration::from_millis(50));
    assert_eq!(pair.events(0), [Event::PeerFinished, Event::Closed]);
    assert_eq!(pair.events(1), [Event::PeerFinished, Event::Closed]);
    pair.assert_empty([1, 1]);
}

#[test]
fn both_sides_open_at_once() {
    let mut pair = Pair::new();
    let tuple = client_tuple(1000);
    let mirrored = FourTuple { local: tuple.remote, remote: tuple.local };
    let a = pair.net.hosts[0].stack.connect(pair.net.now, tuple, 7, 1).unwrap();
    let b = pair.net.hosts[1].stack.connect(pair.net.now, mirrored, 9, 1).unwrap();
    pair.run(Duration::from_millis(50));
    assert_eq!((pair.state(0, a), pair.state(1, b)), (Some(State::Established), Some(State::Established)));
    pair.write(0, a, b"ping");
    pair.run(Duration::from_millis(5));
    assert_eq!(pair.read(1, b, 10), b"ping");
}

#[test]
fn a_closed_port_refuses() {
    let mut pair = Pair::new();
    let mut tuple = client_tuple(1000);
    tuple.remote.set_port(81);
    pair.net.hosts[0].stack.connect(pair.net.now, tuple, 7, 1).unwrap();
    pair.run(Duration::from_millis(5));
    assert_eq!(pair.events(0), [Event::Failed(FailReason::Refused)]);
    pair.assert_empty([0, 0]);
}

#[test]
fn abort_resets_the_peer() {
    let mut pair = Pair::new();
    let (client, server) = pair.establish(1000);
    pair.write(1, server, b"unread");
    pair.run(Duration::from_millis(5));
    pair.net.hosts[0].stack.abort(pair.net.now, client);
    assert!(pair.net.hosts[0].stack.info(client).is_none());
    pair.run(Duration::from_millis(5));
    assert_eq!(pair.events(1), [Event::Failed(FailReason::Reset)]);
    pair.assert_empty([0, 0]);
}

#[test]
fn close_with_unread_data_resets_and_without_delivers_first() {
    let mut pair = Pair::new();
    let (client, server) = pair.establish(1000);
    pair.write(1, server, b"never read");
    pair.run(Duration::from_millis(5));
    pair.net.hosts[0].stack.close(pair.net.now, client);
    pair.run(Duration::from_millis(5));
    assert_eq!(pair.events(0), [Event::Readable, Event::Failed(FailReason::DataAfterClose)]);
    assert_eq!(pair.events(1), [Event::Failed(FailReason::Reset)]);

    let (client, server) = pair.establish(1001);
    pair.write(0, client, b"last words");
    pair.net.hosts[0].stack.close(pair.net.now, client);
    pair.run(Duration::from_millis(5));
    assert_eq!(pair.read(1, server, 100), b"last words");
    pair.write(1, server, b"anybody there?");
    pair.run(Duration::from_millis(5));
    assert_eq!(pair.events(0), [Event::Failed(FailReason::DataAfterClose)]);
    assert_eq!(pair.events(1), [Event::Readable, Event::PeerFinished, Event::Failed(FailReason::Reset)]);
    pair.assert_empty([0, 0]);
}

#[test]
fn an_orphan_in_fin_wait_2_is_given_up() {
    let mut pair = Pair::new();
    let (client, _) = pair.establish(1000);
    pair.net.hosts[0].stack.close(pair.net.now, client);
    pair.run(Duration::from_secs(59));
    assert_eq!(pair.state(0, client), Some(State::FinWait2));
    pair.run(Duration::from_secs(3));
    assert_eq!(pair.events(0), [Event::Failed(FailReason::TimedOut)]);
    assert_eq!(pair.events(1), [Event::PeerFinished, Event::Failed(FailReason::Reset)]);
    pair.assert_empty([0, 0]);
}

#[test]
fn a_silent_peer_times_out() {
    let mut pair = Pair::new();
    let (client, server) = pair.establish(1000);
    pair.net.faults[0].loss = 1.0;
    pair.write(0, client, b"hello?");
    pair.run(Duration::from_secs(3600));
    assert_eq!(pair.events(0), [Event::Failed(FailReason::TimedOut)]);
    let retransmits = pair.net.hosts[0].stack.counters().retransmission_timeouts;
    assert_eq!(retransmits, 12, "as often as configured");
    assert_eq!(pair.state(1, server), Some(State::Established));
    pair.net.hosts[0].stack.connect(pair.net.now, client_tuple(1001), 7, 1).unwrap();
    pair.run(Duration::from_secs(300));
    assert_eq!(pair.events(0), [Event::Failed(FailReason::TimedOut)], "so does an unanswered SYN");
}

#[test]
fn keepalive_finds_a_dead_peer_and_keeps_a_live_one() {
    let mut pair = Pair::new();
    let (client, server) = pair.establish(1000);
    pair.run(Duration::from_secs(7_200 * 3));
    assert_eq!((pair.events(0), pair.events(1)), (vec![], vec![]));
    assert!(pair.net.hosts[0].stack.counters().keepalive_probes >= 2);
    pair.net.hosts[0].stack.abort(pair.net.now, client);
    pair.net.flush();
    pair.net.cut();
    pair.net.faults[0].loss = 1.0;
    pair.run(Duration::from_secs(7_200 + 75 * 10));
    assert_eq!(pair.events(1), [Event::Failed(FailReason::TimedOut)]);
    assert_eq!(pair.state(1, server), None);
}

#[test]
fn a_closed_window_is_probed_until_it_opens() {
    let mut pair = Pair::new();
    let (client, server) = pair.establish(1000);
    let data: Vec<u8> = (0..3_000_000u32).map(|n| (n >> 3) as u8).collect();
    let mut written = pair.write(0, client, &data);
    pair.run(Duration::from_secs(1));
    written += pair.write(0, client, &data[written..]);
    pair.run(Duration::from_secs(1));
    let window = pair.net.hosts[1].stack.config().receive_window_max as usize;
    assert_eq!(pair.net.hosts[1].stack.readable(server), window, "the window is filled exactly");
    // The application does not read for an hour; probes are answered, so the connection survives.
    pair.run(Duration::from_secs(3600));
    assert!(pair.net.hosts[0].stack.counters().window_probes > 10);
    // The window update is lost; a probe discovers the open window.
    let mut received = pair.read(1, server, usize::MAX);
    pair.net.flush();
    pair.net.cut();
    while received.len() < data.len() {
        let before = received.len();
        pair.run(Duration::from_secs(100));
        written += pair.write(0, client, &data[written..]);
        received.extend(pair.read(1, server, usize::MAX));
        assert!(received.len() > before, "stuck at {before}");
    }
    assert_eq!(received, data);
    assert_eq!(pair.net.hosts[0].stack.counters().retransmission_timeouts, 0, "a closed window is no loss");
}

#[test]
fn a_new_syn_reuses_time_wait_and_an_old_one_does_not() {
    let mut pair = Pair::new();
    let (client, server) = pair.establish(1000);
    pair.shutdown(1, server);
    pair.run(Duration::from_millis(5));
    pair.shutdown(0, client);
    pair.run(Duration::from_millis(5));
    pair.assert_empty([0, 1]);
    pair.events = [Vec::new(), Vec::new()];
    pair.establish(1000);
    let stack = &pair.net.hosts[1].stack;
    assert_eq!((stack.counters().time_wait_reused, stack.occupancy().time_wait.0), (1, 0));
}

#[test]
fn a_half_open_flood_does_not_keep_others_out() {
    let mut pair = Pair::new();
    pair.net.faults[1].loss = 1.0; // the flood's senders never respond
    for port in 2000..2060 {
        pair.net.hosts[0].stack.connect(pair.net.now, client_tuple(port), 7, 1).unwrap();
        pair.run(Duration::from_micros(700));
    }
    let occupancy = pair.net.hosts[1].stack.occupancy();
    assert_eq!(occupancy.half_open, (32, 32));
    let counters = pair.net.hosts[1].stack.counters();
    assert_eq!((counters.syn_cookies_sent, counters.half_open_evicted), (28, 0));
    pair.net.faults[1].loss = 0.0;
    pair.run(Duration::from_secs(20));
    assert_eq!(pair.net.hosts[1].stack.occupancy().half_open.0, 0);
}

#[test]
fn a_delayed_acknowledgement_is_sent_after_the_quick_ones() {
    let mut pair = Pair::new();
    let (client, server) = pair.establish(1000);
    for _ in 0..20 {
        pair.write(0, client, b"x");
        pair.run(Duration::from_millis(100));
    }
    assert_eq!(pair.read(1, server, 100).len(), 20);
    pair.net.log = Some(Vec::new());
    pair.write(0, client, b"x");
    pair.run(Duration::from_millis(100));
    let log = pair.net.log.take().unwrap();
    let wait = log[1].0 - log[0].0;
    assert_eq!((log[1].1, log[1].2.flags), (1, Flags::ACK));
    assert!(wait >= Duration::from_millis(40) && wait < Duration::from_millis(43), "{wait:?}");
    assert_eq!(log.len(), 2, "and nothing was sent twice: {log:?}");
}

#[test]
fn readers_that_sleep_exhaust_memory_and_lose_nothing() {
    let mut pair = Pair::with_server(StackConfig { blocks: 160, block_len: 512, ..small_config(2) });
    let labels: Vec<_> = (0..12).map(|n| pair.establish(1000 + n)).collect();
    let data: Vec<u8> = (0..8_000u32).map(|n| (n % 251) as u8).collect();
    for (client, _) in &labels {
        assert_eq!(pair.write(0, *client, &data), data.len());
    }
    pair.run(Duration::from_secs(2_000));
    let occupancy = pair.net.hosts[1].stack.occupancy();
    assert!(occupancy.blocks.0 <= occupancy.blocks.1);
    assert!(pair.net.hosts[1].stack.counters().bytes_dropped_no_block > 0, "this test would test nothing");
    for (_, server) in &labels {
        let mut received = Vec::new();
        for _ in 0..100 {
            received.extend(pair.read(1, *server, usize::MAX));
            pair.run(Duration::from_secs(5));
        }
        assert!(received == data, "{} of {} bytes", received.len(), data.len());
    }
    for (client, server) in labels {
        pair.shutdown(0, client);
        pair.shutdown(1, server);
    }
    pair.run(Duration::from_secs(200));
    pair.assert_empty([0, 0]);
}

#[test]
fn a_writer_that_waits_for_memory_is_woken() {
    let mut pair = Pair::with_server(StackConfig { blocks: 16, block_len: 512, ..small_config(2) });
    let (_, first) = pair.establish(1000);
    let (client, second) = pair.establish(1001);
    pair.net.faults[1].loss = 1.0;
    assert_eq!(pair.write(1, first, &[1; 20_000]), 8 * 512, "half is kept for receiving");
    assert_eq!(pair.write(1, second, &[2; 100]), 0);
    pair.run(Duration::from_millis(10));
    assert_eq!(pair.events(1), []);
    pair.net.faults[1].loss = 0.0;
    pair.run(Duration::from_secs(2));
    let woken: Vec<_> = std::mem::take(&mut pair.events[1]);
    assert!(woken.contains(&(second, Event::Writable)), "{woken:?}");
    assert_eq!(pair.write(1, second, &[2; 100]), 100);
    pair.run(Duration::from_millis(10));
    assert_eq!(pair.read(0, client, 1000), [2; 100]);
}

#[test]
fn ipv6_connections_work_alike() {
    let mut pair = Pair::new();
    let tuple = FourTuple { local: address("[fd00::1]:1000"), remote: address("[fd00::2]:80") };
    let (client, server) = pair.establish_as(tuple, 6);
    assert_eq!(pair.net.hosts[0].stack.info(client).unwrap().mss, 1440 - 12);
    pair.write(0, client, &[6; 10_000]);
    pair.run(Duration::from_millis(10));
    assert_eq!(pair.read(1, server, 20_000), [6; 10_000]);
    pair.shutdown(0, client);
    pair.shutdown(1, server);
    pair.run(Duration::from_secs(70));
    pair.assert_empty([0, 0]);
}

#[test]
fn an_old_syn_does_not_disturb_time_wait() {
    let mut pair = Pair::new();
    let (client, server) = pair.establish(1000);
    pair.shutdown(1, server);
    pair.run(Duration::from_millis(5));
    pair.shutdown(0, client);
    pair.net.log = Some(Vec::new());
    pair.run(Duration::from_millis(5));
    let fin = pair.net.log.take().unwrap().into_iter().find(|(_, from, ..)| *from == 0).unwrap().2;
    let syn = |seq: u32| {
        let repr =
            Repr { source_port: 1000, destination_port: 80, seq, flags: Flags::SYN, ..Repr::default() };
        let mut bytes = vec![0; 20];
        repr.emit(&mut bytes).unwrap();
        assert_eq!(repr.options, Options::default());
        Packet { tuple: client_tuple(1000), bytes, ecn: 0 }
    };
    pair.net.hosts[1].stack.poll_event();
    pair.net.deliver(1, &syn(fin.seq.wrapping_sub(1_000)));
    let host = &mut pair.net.hosts[1];
    let answer = host.stack.poll_transmit(pair.net.now).unwrap().header.unwrap();
    assert_eq!((answer.flags, host.stack.occupancy().time_wait.0), (Flags::ACK, 1));
    let next = answer.ack.wrapping_add(1);
    pair.net.deliver(1, &syn(next));
    let host = &mut pair.net.hosts[1];
    let synack = host.stack.poll_transmit(pair.net.now).unwrap().header.unwrap();
    assert_eq!((synack.flags, synack.ack), (Flags::SYN | Flags::ACK, next.wrapping_add(1)));
    assert_eq!(host.stack.occupancy().time_wait.0, 0);
    assert!((synack.seq.wrapping_sub(answer.seq) as i32) > 0, "sequence numbers move on");
}

#[test]
fn a_peer_that_never_reads_cannot_hold_an_orphan_for_ever() {
    let mut pair = Pair::new();
    let (client, server) = pair.establish(1000);
    let window = pair.net.hosts[1].stack.config().receive_window_max as usize;
    assert_eq!(pair.write(0, client, &vec![1; window]), window);
    pair.run(Duration::from_secs(1));
    assert_eq!(pair.write(0, client, &[2; 1000]), 1000);
    pair.net.hosts[0].stack.close(pair.net.now, client);
    pair.run(Duration::from_secs(3600));
    assert_eq!(pair.events(0), [Event::Failed(FailReason::TimedOut)]);
    assert!(pair.events(1).contains(&Event::Broken(FailReason::Reset)));
    assert_eq!(pair.read(1, server, usize::MAX).len(), window);
    assert_eq!(pair.events(1), [Event::Failed(FailReason::Reset)]);
    assert_eq!(pair.state(1, server), None);
    pair.assert_empty([0, 0]);
}

#[test]
fn in_a_conversation_the_answers_carry_the_acknowledgements() {
    let mut pair = Pair::new();
    let (client, server) = pair.establish(1000);
    for round in 0..10 {
        pair.net.log = Some(Vec::new());
        pair.write(0, client, b"request");
        pair.run(Duration::from_millis(2));
        assert_eq!(pair.read(1, server, 100), b"request");
        pair.write(1, server, b"answer");
        pair.run(Duration::from_millis(2));
        assert_eq!(pair.read(0, client, 100), b"answer");
        let packets = pair.net.log.take().unwrap().len();
        assert!(round < 2 || packets == 2, "{packets} packets in round {round}");
    }
}

#[test]
fn a_smaller_path_gets_smaller_segments() {
    let mut pair = Pair::new();
    let (client, server) = pair.establish(1000);
    pair.net.log = Some(Vec::new());
    pair.write(0, client, &[1; 5_000]);
    pair.net.flush();
    pair.net.cut(); // the packets were too big
    let seq = pair.net.log.take().unwrap()[0].2.seq;
    let (stack, now) = (&mut pair.net.hosts[0].stack, pair.net.now);
    let error = PathError::PacketTooBig { mtu: 1_000 };
    assert!(!stack.on_path_error(now, &client_tuple(1000), seq.wrapping_sub(1), error), "never sent");
    assert!(!stack.on_path_error(now, &client_tuple(1001), seq, error), "not ours");
    let cwnd = stack.info(client).unwrap().cwnd;
    assert!(stack.on_path_error(now, &client_tuple(1000), seq, error));
    assert!(stack.on_path_error(now, &client_tuple(1000), seq, PathError::Unreachable));
    pair.net.log = Some(Vec::new());
    pair.run(Duration::from_millis(20));
    assert_eq!(pair.read(1, server, 10_000), [1; 5_000]);
    let log = pair.net.log.take().unwrap();
    assert!(log.iter().all(|(_, _, repr, len)| repr.header_len() + len + 20 <= 1_000));
    assert!(pair.net.hosts[0].stack.info(client).unwrap().cwnd >= cwnd, "it was no congestion");
}

#[test]
fn a_closed_window_is_no_silence() {
    let keepalive = StackConfig {
        keepalive_idle: Some(Duration::from_secs(10)),
        keepalive_interval: Duration::from_secs(1),
        keepalive_probes: 5,
        receive_window_max: 16 * 1024,
        ..small_config(2)
    };
    let mut pair = Pair::with_server(keepalive);
    let (client, server) = pair.establish(40_000);
    let written = pair.net.hosts[0].stack.write(pair.net.now, client, &[7; 100_000]);
    pair.run(Duration::from_secs(400)); // the client's probes become rarer than the server's user timeout
    let mut read = 0;
    while read < written {
        let now = pair.net.now;
        read += pair.net.hosts[1].stack.read_with(now, server, usize::MAX, |bytes| bytes.len());
        assert!(pair.net.hosts[1].stack.info(server).is_some(), "gone after {read} of {written} bytes");
        pair.run(Duration::from_secs(1));
    }
}
