//! Path MTU discovery by ICMP (RFC 1191, 8201, 5927), by timeouts and by probing (RFC 4821, 8899).
#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use std::time::Duration;

use common::{Net, Packet, client_tuple, small_config, stream_byte};
use csp_tcp::{Event, PathError, StackConfig, State};
use csp_types::{FlowLabel, FourTuple, Instant};
use csp_wire::tcp::{Flags, Options, Repr, SackBlock, Timestamps};

struct Upload {
    net: Net,
    client: FlowLabel,
    server: FlowLabel,
    written: u64,
    received: u64,
}

impl Upload {
    fn new(config: StackConfig) -> Self {
        Self::without(config, (false, false, false))
    }

    /// An upload whose SYNs lose the options selected by `strip` (see [`Net::strip`]).
    fn without(config: StackConfig, strip: (bool, bool, bool)) -> Self {
        let mut net = Net::new(1, config, small_config(2)).with_rtt(Duration::from_millis(20));
        net.strip = strip;
        let client = net.hosts[0].stack.connect(net.now, client_tuple(1000), 7, 1).unwrap();
        let mut upload = Upload { net, client, server: FlowLabel::NONE, written: 0, received: 0 };
        upload.run(Duration::from_millis(100), 0);
        assert_eq!(upload.net.hosts[0].stack.info(client).unwrap().state, State::Established);
        upload
    }

    /// Uploads `rate` bytes per millisecond, as far as writes are accepted, and checks every byte at the
    /// other end.
    fn run(&mut self, time: Duration, rate: usize) {
        let end = self.net.now + time;
        while self.net.now < end {
            // In writes of several segments, so that there are full-sized ones.
            let len = 20 * rate as u64;
            let bytes: Vec<u8> = (0..len).map(|n| stream_byte(1, self.written + n)).collect();
            let now = self.net.now;
            self.written += self.net.hosts[0].stack.write(now, self.client, &bytes) as u64;
            self.net.flush();
            let until = self.net.now + Duration::from_millis(20);
            while self.net.step(until) {
                while let Some((label, event)) = self.net.hosts[1].stack.poll_event() {
                    if let Event::Established { .. } = event {
                        self.server = label;
                    }
                }
                let (now, mut at) = (self.net.now, self.received);
                self.net.hosts[1].stack.read_with(now, self.server, usize::MAX, |slice| {
                    slice.iter().for_each(|byte| {
                        assert_eq!(*byte, stream_byte(1, at), "byte {at}");
                        at += 1;
                    });
                    slice.len()
                });
                self.received = at;
                self.net.flush();
            }
        }
    }

    fn mss(&self) -> u16 {
        self.net.hosts[0].stack.info(self.client).unwrap().mss + 12
    }

    fn counters(&self) -> csp_tcp::Counters {
        *self.net.hosts[0].stack.counters()
    }

    fn everything_arrives(&mut self) {
        self.run(Duration::from_secs(20), 0);
        assert_eq!(self.received, self.written);
    }
}

fn config() -> StackConfig {
    small_config(1)
}

#[test]
fn an_icmp_error_lowers_the_size_at_once_and_is_no_congestion() {
    let mut up = Upload::new(config());
    up.run(Duration::from_millis(300), 500);
    let cwnd = up.net.hosts[0].stack.info(up.client).unwrap().cwnd;
    let timeouts = up.counters().retransmission_timeouts;
    up.net.mtu = (1_280, true);
    let before = up.received;
    up.run(Duration::from_millis(100), 500);
    assert_eq!((up.mss(), up.counters().path_mtu_lowered), (1_240, 1));
    assert!(up.received > before + 20_000, "it went on within a few round trips");
    let info = up.net.hosts[0].stack.info(up.client).unwrap();
    assert!(info.cwnd >= cwnd && up.counters().retransmission_timeouts == timeouts, "{info:?}");
    up.everything_arrives();
}

#[test]
fn an_error_is_accepted_only_for_data_in_flight_and_a_smaller_mtu() {
    let mut up = Upload::new(config());
    up.net.faults[0].delay = Duration::from_secs(1);
    let tuple = client_tuple(1000);
    up.net.log = Some(Vec::new());
    up.run(Duration::from_millis(20), 1_000);
    let sequence = up.net.log.take().unwrap()[0].2.seq;
    let mut check = |tuple: FourTuple, sequence: u32, mtu: u16, accepted: bool| {
        let before = up.mss();
        let now = up.net.now;
        let error = PathError::PacketTooBig { mtu };
        let taken = up.net.hosts[0].stack.on_path_error(now, &tuple, sequence, error);
        assert_eq!((taken, up.mss() < before), (accepted, accepted), "{tuple:?} {sequence} {mtu}");
    };
    check(tuple, sequence.wrapping_sub(1 << 20), 600, false);
    check(tuple, sequence.wrapping_add(1 << 20), 600, false);
    check(client_tuple(1001), sequence, 600, false);
    check(FourTuple { local: tuple.remote, remote: tuple.local }, sequence, 600, false);
    check(tuple, sequence, 1_500, false);
    check(tuple, sequence, u16::MAX, false);
    check(tuple, sequence, 1_400, true);
    check(tuple, sequence, 1_450, false);
    check(tuple, sequence, 0, true);
    assert_eq!(up.mss(), 552 - 40, "not below the minimum");
    assert_eq!((up.counters().path_mtu_lowered, up.counters().path_errors_ignored), (2, 7));
    up.net.faults[0].delay = Duration::from_millis(1);
    up.everything_arrives();
}

#[test]
fn ipv6_never_goes_below_1280() {
    let mut net = Net::new(1, config(), small_config(2));
    let tuple = FourTuple { local: common::address("[fd00::1]:9"), remote: common::address("[fd00::2]:80") };
    let label = net.hosts[0].stack.connect(net.now, tuple, 7, 1).unwrap();
    for _ in 0..20 {
        net.flush();
        net.step(net.now + Duration::from_millis(10));
    }
    net.hosts[0].stack.write(net.now, label, &[0; 5_000]);
    let sequence = net.hosts[0].stack.poll_transmit(net.now).unwrap().header.unwrap().seq;
    let error = PathError::PacketTooBig { mtu: 600 };
    assert!(net.hosts[0].stack.on_path_error(net.now, &tuple, sequence, error));
    assert_eq!(net.hosts[0].stack.info(label).unwrap().mss, 1_280 - 60 - 12);
}

#[test]
fn new_connections_start_from_what_is_known_for_ten_minutes() {
    let mut up = Upload::new(config());
    up.net.mtu = (1_280, true);
    up.run(Duration::from_millis(200), 500);
    let mss_of_new = |up: &mut Upload, port: u16| {
        let now = up.net.now;
        let label = up.net.hosts[0].stack.connect(now, client_tuple(port), 7, 1).unwrap();
        up.run(Duration::from_millis(100), 0);
        let mss = up.net.hosts[0].stack.info(label).unwrap().mss + 12;
        let now = up.net.now;
        up.net.hosts[0].stack.abort(now, label);
        mss
    };
    assert_eq!(mss_of_new(&mut up, 2_000), 1_240);
    up.run(Duration::from_secs(601), 0);
    assert_eq!(mss_of_new(&mut up, 2_001), 1_460);
}

#[test]
fn a_larger_size_is_tried_after_ten_minutes_and_costs_nothing_where_it_does_not_pass() {
    let mut up = Upload::new(config());
    up.net.mtu = (1_280, true);
    up.run(Duration::from_millis(200), 500);
    up.run(Duration::from_secs(590), 1);
    assert_eq!((up.mss(), up.counters().path_probes_sent), (1_240, 0), "not before");
    // The path MTU grows again, but not to its old size, and ICMP errors no longer report it.
    up.net.mtu = (1_400, false);
    up.run(Duration::from_secs(11), 1);
    let before = up.counters();
    up.run(Duration::from_secs(40), 300);
    let after = up.counters();
    assert!((1_340..=1_360).contains(&up.mss()), "{} after {} probes", up.mss(), after.path_probes_sent);
    assert_eq!(after.retransmission_timeouts, before.retransmission_timeouts);
    assert_eq!(after.fast_recoveries, before.fast_recoveries, "a lost probe is no loss");
    assert!(after.path_probes_sent < 30, "{}", after.path_probes_sent);
    up.everything_arrives();
}

#[test]
fn a_black_hole_is_found_by_timeouts_and_the_size_searched() {
    for (mtu, sizes) in [(1_400, 1_340..=1_360), (1_300, 1_240..=1_260), (600, 536..=560)] {
        let mut up = Upload::new(config());
        up.run(Duration::from_millis(200), 300);
        up.net.mtu = (mtu, false);
        let before = up.received;
        up.run(Duration::from_secs(8), 300);
        assert!(up.received > before + 50_000, "MTU {mtu}: {} bytes in 8 s", up.received - before);
        up.run(Duration::from_secs(40), 300);
        assert!(sizes.contains(&up.mss()), "MTU {mtu}: found {}", up.mss());
        assert!(up.counters().path_black_holes_suspected > 0);
        up.everything_arrives();
    }
}

#[test]
fn a_segment_that_is_too_long_by_its_timestamps_only_is_made_smaller() {
    // 530 bytes fit the smallest step of 536 without the 12 bytes of timestamps; the path takes 536 with
    // them.
    let mut up = Upload::new(config());
    up.net.mtu = (576, false);
    let now = up.net.now;
    let bytes: Vec<u8> = (0..530).map(|n| stream_byte(1, n)).collect();
    up.written += up.net.hosts[0].stack.write(now, up.client, &bytes) as u64;
    up.run(Duration::from_secs(20), 0);
    assert_eq!(up.received, 530);
    up.everything_arrives();
}

#[test]
fn an_outage_that_looks_like_a_black_hole_does_not_leave_small_segments_behind() {
    let mut up = Upload::new(config());
    up.run(Duration::from_millis(200), 300);
    up.net.faults[0].loss = 1.0;
    up.run(Duration::from_secs(5), 300);
    assert!(up.mss() < 1_460, "suspected");
    up.net.faults[0].loss = 0.0;
    up.run(Duration::from_secs(20), 300);
    assert_eq!(up.mss(), 1_460);
    assert_eq!(up.net.hosts[0].stack.occupancy().paths.0, 0, "nothing is cached for the destination");
    up.everything_arrives();
}

#[test]
fn a_connection_too_short_to_search_leaves_no_suspicion_behind() {
    let mut up = Upload::new(config());
    up.net.faults[0].loss = 1.0;
    let now = up.net.now;
    let bytes: Vec<u8> = (0..3_000).map(|n| stream_byte(1, n)).collect();
    up.written += up.net.hosts[0].stack.write(now, up.client, &bytes) as u64;
    up.run(Duration::from_secs(5), 0);
    up.net.faults[0].loss = 0.0;
    up.everything_arrives();
    assert!(up.mss() < 1_460, "suspected, without data to search with");
    assert_eq!(up.net.hosts[0].stack.occupancy().paths.0, 0);
}

#[test]
fn a_dead_peer_is_no_black_hole_for_small_segments() {
    let mut up = Upload::new(config());
    up.net.faults[0].loss = 1.0;
    let now = up.net.now;
    up.net.hosts[0].stack.write(now, up.client, &[1; 400]);
    up.written += 400;
    up.run(Duration::from_secs(30), 0);
    assert_eq!((up.mss(), up.counters().path_black_holes_suspected), (1_460, 0));
    assert!(up.net.now > Instant::ZERO);
}

/// A connection that has sent a probe, and not yet the bytes that the probe copies: pacing delays them.
struct AfterProbe {
    up: Upload,
    /// The header of the probe, and the sequence number after its last byte.
    probe: Repr,
    probe_end: u32,
}

impl AfterProbe {
    fn new(strip: (bool, bool, bool)) -> Self {
        let mut up = Upload::without(config(), strip);
        up.net.mtu = (1_280, true);
        up.run(Duration::from_millis(200), 500);
        up.run(Duration::from_secs(590), 1);
        up.net.mtu = (usize::MAX, false);
        up.run(Duration::from_secs(11), 1);
        up.run(Duration::from_millis(100), 0); // nothing is in flight
        assert!(up.mss() < 1_280 && up.counters().path_probes_sent == 0);
        up.net.log = Some(Vec::new());
        // The first bytes use up the sending time that pacing grants at once. Only the last ones suffice for
        // a probe.
        for len in [3_000, 3_000, 6_000] {
            let bytes: Vec<u8> = (0..len).map(|n| stream_byte(1, up.written + n)).collect();
            up.written += up.net.hosts[0].stack.write(up.net.now, up.client, &bytes) as u64;
            up.net.flush();
        }
        assert_eq!(up.counters().path_probes_sent, 1);
        let (_, _, probe, len) = *up.net.log.as_ref().unwrap().last().unwrap();
        assert!(len > 1_240, "the probe is the last segment sent");
        AfterProbe { up, probe, probe_end: probe.seq.wrapping_add(len as u32) }
    }

    /// Passes an acknowledgement of `ack` with SACK blocks to the sender; returns whether it was accepted.
    fn acknowledge(&mut self, ack: u32, sack: &[(u32, u32)]) -> bool {
        let net = &mut self.up.net;
        let tuple = client_tuple(1_000);
        let mut options = Options::default();
        if let Some(timestamps) = self.probe.options.timestamps {
            options.timestamps = Some(Timestamps { value: timestamps.echo, echo: timestamps.value });
        }
        for &(start, end) in sack {
            options.sack.push(SackBlock { start, end });
        }
        let repr = Repr {
            source_port: tuple.remote.port(),
            destination_port: tuple.local.port(),
            seq: self.probe.ack,
            ack,
            flags: Flags::ACK,
            window: u16::MAX,
            options,
        };
        let mut bytes = vec![0; repr.header_len()];
        repr.emit(&mut bytes).unwrap();
        let tuple = FourTuple { local: tuple.remote, remote: tuple.local };
        let rejected = net.hosts[0].stack.counters().dropped_bad_ack;
        net.deliver(0, &Packet { tuple, bytes, ecn: 0 });
        net.hosts[0].stack.counters().dropped_bad_ack == rejected
    }
}

/// What failed as seed 8384 of the whole-path simulation: the sender stalls, so that a timer fires between
/// the probe and the bytes that it copies. The first timer is that of a tail loss probe if SACK is in use.
#[test]
fn a_timeout_after_a_probe_that_arrives_costs_neither_the_connection_nor_acknowledged_bytes_sent_again() {
    for (no_sack, no_timestamps) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut after = AfterProbe::new((no_sack, no_timestamps, false));
        let up = &mut after.up;
        let case = format!("without SACK {no_sack}, without timestamps {no_timestamps}");
        let timers = |up: &Upload| up.counters().retransmission_timeouts + up.counters().tail_loss_probes;
        let before = timers(up);
        up.net.now += Duration::from_secs(1);
        up.net.step(up.net.now);
        up.run(Duration::from_secs(2), 0);
        assert!(timers(up) > before, "{case}");
        assert_eq!((up.counters().dropped_bad_ack, up.counters().challenge_acks_sent), (0, 0), "{case}");
        assert_eq!(up.received, up.written, "{case}");
        // The highest acknowledgement by the time at which it reached the sender.
        let log = up.net.log.take().unwrap();
        let acknowledged = |at: Instant| {
            let acks =
                log.iter().filter(|(sent, from, ..)| *from == 1 && *sent + up.net.faults[1].delay <= at);
            acks.map(|(_, _, header, _)| header.ack.wrapping_sub(after.probe.seq) as i32).max()
        };
        for (at, _, header, _) in log.iter().filter(|(_, from, _, len)| *from == 0 && *len > 0) {
            let start = header.seq.wrapping_sub(after.probe.seq) as i32;
            assert!(acknowledged(*at).is_none_or(|ack| start >= ack), "{case}: {start} at {at:?} again");
        }
        let longest = Duration::from_millis(1_100);
        let rtt = Duration::from_micros(up.net.hosts[0].stack.info(up.client).unwrap().srtt_us);
        assert!(rtt >= Duration::from_millis(20) && rtt < longest, "{case}: {rtt:?}");
        up.run(Duration::from_secs(4), 300);
        // Without duplicate reports the arrival of a probe shows only if it is acknowledged by itself.
        assert!(no_sack || up.mss() >= 1_460, "{case}: a later probe shows that the size passes");
        up.everything_arrives();
    }
}

#[test]
fn an_acknowledgement_beyond_the_probe_is_not_accepted() {
    let mut after = AfterProbe::new((false, false, false));
    assert!(!after.acknowledge(after.probe_end.wrapping_add(1), &[]), "never sent");
    assert!(!after.acknowledge(after.probe_end.wrapping_add(1 << 30), &[]), "never sent");
    let part = after.probe.seq.wrapping_add(700);
    assert!(after.acknowledge(part, &[]), "a part of the probe");
    assert!(after.acknowledge(after.probe_end, &[]), "the rest");
    assert!(!after.acknowledge(after.probe_end.wrapping_add(1), &[]), "still not sent");
    after.up.net.log = Some(Vec::new());
    after.up.net.flush();
    after.up.run(Duration::from_millis(5), 0);
    let log = after.up.net.log.take().unwrap();
    let first = log.iter().find(|(_, from, _, len)| *from == 0 && *len > 0).unwrap();
    assert_eq!(first.2.seq, after.probe_end, "new data follows the probe");
}

#[test]
fn a_selective_acknowledgement_up_to_the_end_of_the_probe_counts_for_the_data_in_flight() {
    let mut after = AfterProbe::new((false, false, false));
    let log = after.up.net.log.as_ref().unwrap();
    let (first, second) = (log[0].2.seq, log[1].2.seq);
    after.up.net.now += Duration::from_millis(20);
    let before = after.up.counters();
    assert!(after.acknowledge(first, &[(second, after.probe_end)]));
    after.up.net.flush();
    let counters = after.up.counters();
    assert_eq!(counters.fast_recoveries, before.fast_recoveries + 1);
    let again = counters.bytes_retransmitted - before.bytes_retransmitted;
    assert_eq!(again, u64::from(second.wrapping_sub(first)), "only what is missing");
    after.up.everything_arrives();
}
