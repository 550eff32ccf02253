//! Fragments: reassembled whatever their order, within bounds, and never from overlapping ones.

use std::net::SocketAddr;

use csp_support::Random;
use csp_types::steering;
use csp_wire::tcp::Flags as Tcp;
use csp_wire::{Ecn, ipv4, ipv6};

use super::fixture::*;
use super::plugins::Plugins;
use crate::reassembly::{DATAGRAM_LEN_MAX, DATAGRAMS_MAX, DATAGRAMS_OF_SOURCE_MAX, REASSEMBLY_TIMEOUT};
use crate::*;

/// A part of a datagram's payload.
type Part = (std::ops::Range<usize>, bool);

fn is_v4(packet: &[u8]) -> bool {
    packet[0] >> 4 == 4
}

fn header_len(packet: &[u8]) -> usize {
    if is_v4(packet) { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN }
}

/// Returns the payload's parts between `cuts`, in sequence.
fn parts(packet: &[u8], cuts: &[usize]) -> Vec<Part> {
    let len = packet.len() - header_len(packet);
    let bounds: Vec<usize> = [0].iter().chain(cuts).chain(&[len]).copied().collect();
    bounds.windows(2).map(|pair| (pair[0]..pair[1], pair[1] < len)).collect()
}

/// Returns the frame of a part, as a router (IPv4) or the sender (IPv6) makes it.
fn fragment(packet: &[u8], id: u32, (range, more): Part) -> Vec<u8> {
    let payload = &packet[header_len(packet)..][range.clone()];
    fragment_with(packet, id, (range.start, more), payload)
}

/// Returns the frames of a packet that was cut at these places.
pub(super) fn in_fragments(packet: &[u8], cuts: &[usize]) -> Vec<Vec<u8>> {
    parts(packet, cuts).into_iter().map(|part| fragment(packet, 77, part)).collect()
}

fn fragment_with(packet: &[u8], id: u32, (offset, more): (usize, bool), payload: &[u8]) -> Vec<u8> {
    let mut bytes = packet[..header_len(packet)].to_vec();
    if is_v4(packet) {
        bytes[2..4].copy_from_slice(&((20 + payload.len()) as u16).to_be_bytes());
        bytes[4..6].copy_from_slice(&(id as u16).to_be_bytes());
        bytes[6..8].copy_from_slice(&((offset / 8) as u16 | u16::from(more) << 13).to_be_bytes());
        bytes[10..12].fill(0);
        let sum = csp_wire::checksum::checksum(&bytes);
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        let next = std::mem::replace(&mut bytes[6], 44);
        bytes[4..6].copy_from_slice(&((8 + payload.len()) as u16).to_be_bytes());
        bytes.extend([next, 0]);
        bytes.extend((offset as u16 | u16::from(more)).to_be_bytes());
        bytes.extend(id.to_be_bytes());
    }
    bytes.extend_from_slice(payload);
    ip_frame(&bytes)
}

/// Returns the packet that the proxy gets: DF cleared, and the identification that the fragments had.
fn reassembled(packet: &[u8], id: u32) -> Vec<u8> {
    let mut packet = packet.to_vec();
    if is_v4(&packet) {
        packet[4..6].copy_from_slice(&(id as u16).to_be_bytes());
        packet[6..8].fill(0);
        packet[10..12].fill(0);
        let sum = csp_wire::checksum::checksum(&packet[..20]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    packet
}

fn client(number: usize, v6: bool) -> (String, &'static str) {
    match v6 {
        false => (format!("10.76.1.{}:{}", number % 200 + 1, 30_000 + number), VIP),
        true => (format!("[2001:db8:{number:x}::1]:{}", 30_000 + number), VIP6),
    }
}

fn data(len: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..len).map(|_| random.number() as u8).collect()
}

fn shuffle<T>(random: &mut Random, list: &mut [T]) {
    for at in (1..list.len()).rev() {
        list.swap(at, random.below(at as u64 + 1) as usize);
    }
}

/// Fragments of several datagrams in any order, some of them twice: each datagram arrives once, as it was.
fn datagrams_arrive_as_they_were(seed: u64) {
    let mut random = Random::new(seed);
    let mut f = Fixture::new();
    let (mut frames, mut expected) = (Vec::new(), Vec::new());
    for number in 0..random.below(12) as usize + 1 {
        let (from, to) = client(number, random.below(2) == 1);
        let longest = [9_000, 1_500, 40][random.below(3) as usize];
        let len = random.below(longest) as usize + 9;
        let packet = tcp_packet(&from, to, Tcp::SYN, &data(len, random.number()));
        let id = random.number() as u32;
        let units = (packet.len() - header_len(&packet) - 1) as u64 / 8;
        let most = if random.below(8) == 0 { 2_000 } else { 6 };
        let count = random.below(units.min(most)) + 1;
        let mut cuts: Vec<usize> = (0..count).map(|_| 8 * (random.below(units) as usize + 1)).collect();
        cuts.sort_unstable();
        cuts.dedup();
        let mut own: Vec<_> = parts(&packet, &cuts).into_iter().map(|p| fragment(&packet, id, p)).collect();
        let again: Vec<_> = own.iter().filter(|_| random.below(6) == 0).cloned().collect();
        // A repetition behind the last fragment would begin another datagram: the first one is complete by
        // then.
        let last = own.pop().unwrap();
        own.extend(again.into_iter().filter(|frame| *frame != last));
        shuffle(&mut random, &mut own);
        frames.push((own, last));
        expected.push(reassembled(&packet, id));
    }
    while !frames.is_empty() {
        let at = random.below(frames.len() as u64) as usize;
        match frames[at].0.pop() {
            Some(frame) => f.frame(&frame),
            None => f.frame(&frames.swap_remove(at).1),
        }
    }
    let mut got: Vec<_> = f.out.tunnel.iter().map(|record| record.payload.clone()).collect();
    got.sort();
    expected.sort();
    assert!(got == expected, "seed {seed}: {} of {}, {:?}", got.len(), expected.len(), f.core.counters());
    assert_eq!((f.core.datagram_count(), f.core.counters().drop_fragment_overlap), (0, 0), "seed {seed}");
}

#[test]
fn fragments_in_any_order_become_the_datagram() {
    (0..500).for_each(datagrams_arrive_as_they_were);
}

/// The two packets of the tests below, which are alike for both families.
fn syns() -> [Vec<u8>; 2] {
    [(CLIENT, VIP), (CLIENT6, VIP6)].map(|(from, to)| tcp_packet(from, to, Tcp::SYN, &data(300, 1)))
}

#[test]
fn overlapping_fragments_discard_the_datagram() {
    for packet in syns() {
        // RFC 5722: one byte unit in common, a part within another, the same range with other bytes, a second
        // end.
        let len = packet.len() - header_len(&packet);
        let cases: [(&str, Vec<Vec<u8>>); 6] = [
            ("overlap", vec![fragment(&packet, 1, (0..64, true)), fragment(&packet, 1, (56..128, true))]),
            ("within", vec![fragment(&packet, 1, (0..64, true)), fragment(&packet, 1, (8..16, true))]),
            ("around", vec![fragment(&packet, 1, (8..16, true)), fragment(&packet, 1, (0..64, true))]),
            (
                "other bytes",
                vec![fragment(&packet, 1, (8..16, true)), fragment_with(&packet, 1, (8, true), &[0; 8])],
            ),
            ("shorter", vec![fragment(&packet, 1, (8..len, false)), fragment(&packet, 1, (8..16, false))]),
            ("beyond the end", {
                let more = fragment_with(&packet, 1, (len.next_multiple_of(8), true), &[0; 8]);
                vec![fragment(&packet, 1, (8..len, false)), more]
            }),
        ];
        for (what, frames) in cases {
            let mut f = Fixture::new();
            frames.iter().for_each(|frame| f.frame(frame));
            assert_eq!(f.core.counters().drop_fragment_overlap, 2, "{what}");
            // What comes later of the datagram is discarded, too.
            parts(&packet, &[64]).into_iter().for_each(|part| f.frame(&fragment(&packet, 1, part)));
            assert_eq!(f.core.counters().drop_fragment_overlap, 4, "{what}");
            assert!(f.out.tunnel.is_empty(), "{what}");
            // After its time the identification may be used again.
            f.timeout(f.now + REASSEMBLY_TIMEOUT);
            parts(&packet, &[64]).into_iter().for_each(|part| f.frame(&fragment(&packet, 1, part)));
            assert_eq!(f.sent().payload, reassembled(&packet, 1), "{what}");
        }
    }
}

#[test]
fn a_datagram_that_stays_incomplete_expires() {
    for packet in syns() {
        let mut f = Fixture::new();
        let [first, second, third] = [0..64, 64..128, 128..packet.len() - header_len(&packet)]
            .map(|range| fragment(&packet, 7, (range.clone(), range.end < 300)));
        f.frame(&first);
        f.frame(&second);
        assert_eq!(f.core.datagram_count(), 1);
        let due = f.core.next_timeout().unwrap();
        assert_eq!(due, f.now + REASSEMBLY_TIMEOUT);
        f.timeout(due);
        assert_eq!((f.core.datagram_count(), f.core.counters().drop_fragment_timeout), (0, 2));
        // The rest alone is no datagram, also if the timer has not run.
        f.frame(&third);
        f.now += REASSEMBLY_TIMEOUT;
        f.frame(&first);
        f.frame(&second);
        assert_eq!((f.out.tunnel.len(), f.core.counters().drop_fragment_timeout), (0, 3));
        f.frame(&third);
        f.sent();
    }
}

#[test]
fn a_source_at_its_bound_loses_its_own_and_a_full_table_the_oldest() {
    for v6 in [false, true] {
        let mut f = Fixture::new();
        let begin = |from: &str, to: &str, id: usize| {
            fragment(&tcp_packet(from, to, Tcp::SYN, &data(300, 1)), id as u32, (0..64, true))
        };
        let complete = |f: &mut Fixture, from: &str, to: &str, id: usize| {
            let packet = tcp_packet(from, to, Tcp::SYN, &data(300, 1));
            let len = packet.len() - header_len(&packet);
            f.frame(&fragment(&packet, id as u32, (64..len, false)));
            f.out.tunnel.drain(..).len()
        };
        let (victim, to) = client(0, v6);
        f.frame(&begin(&victim, to, 1));
        // Addresses of one /64 are one source.
        let greedy = |number: usize| match v6 {
            false => "10.76.9.9:1000".to_owned(),
            true => format!("[2001:db8:99::{number:x}]:1000"),
        };
        for number in 0..3 * DATAGRAMS_OF_SOURCE_MAX {
            f.now += csp_types::Duration::from_millis(1);
            f.frame(&begin(&greedy(number), to, number));
        }
        assert_eq!(f.core.datagram_count(), 1 + DATAGRAMS_OF_SOURCE_MAX);
        assert_eq!(f.core.counters().drop_fragment_room, 2 * DATAGRAMS_OF_SOURCE_MAX as u64);
        assert_eq!(complete(&mut f, &victim, to, 1), 1);
        // Many sources, each with little: the oldest datagram gives way, the newest is completed.
        for number in 0..2 * DATAGRAMS_MAX {
            f.now += csp_types::Duration::from_millis(1);
            let from = if v6 {
                client(number + 1, true).0
            } else {
                format!("10.{}.{}.9:1000", 80 + number / 250, number % 250)
            };
            f.frame(&begin(&from, to, number));
            if number > 2 * DATAGRAMS_MAX - 2 {
                assert_eq!(complete(&mut f, &from, to, number), 1);
            }
        }
        assert_eq!(f.core.datagram_count(), DATAGRAMS_MAX - 1);
        f.timeout(f.now + REASSEMBLY_TIMEOUT);
        assert_eq!(f.core.datagram_count(), 0);
        // Each fragment is counted: two datagrams were complete, of two fragments each.
        let c = f.core.counters();
        assert_eq!(c.fragments_in, 4 + c.drop_fragment_room + c.drop_fragment_timeout, "{c:?}");
    }
}

#[test]
fn fragments_that_no_datagram_has_are_dropped() {
    for packet in syns() {
        let longest = DATAGRAM_LEN_MAX;
        let cases = [
            ("no payload", (8, true), vec![]),
            ("no multiple of 8", (8, true), vec![0; 12]),
            ("too far", (longest, true), vec![0; 8]),
            ("too long", (longest - 8, false), vec![0; 9]),
        ];
        for (what, place, payload) in cases {
            let mut f = Fixture::new();
            f.frame(&fragment_with(&packet, 1, place, &payload));
            assert_eq!((f.core.counters().drop_fragment, f.core.datagram_count()), (1, 0), "{what}");
        }
        let mut f = Fixture::new();
        f.frame(&fragment_with(&packet, 1, (longest - 8, false), &[0; 8]));
        assert_eq!((f.core.counters().drop_fragment, f.core.datagram_count()), (0, 1));
    }
}

#[test]
fn congestion_marks_survive_and_contradictions_are_discarded() {
    // RFC 3168 §5.3
    use Ecn::{Ce, Ect0, Ect1, NotEct};
    for packet in syns() {
        for (marks, expected) in [
            ([Ect0, Ect0], Some(Ect0)),
            ([Ect0, Ce], Some(Ce)),
            ([Ce, Ect1], Some(Ce)),
            ([Ect1, Ect0], Some(Ect1)),
            ([NotEct, NotEct], Some(NotEct)),
            ([NotEct, Ce], None),
            ([Ect0, NotEct], None),
        ] {
            let mut f = Fixture::new();
            for (part, mark) in parts(&packet, &[64]).into_iter().zip(marks) {
                f.frame(&fragment(&marked(packet.clone(), mark), 1, part));
            }
            assert_eq!(f.out.tunnel.first().map(|record| record.ecn), expected, "{marks:?}");
            assert_eq!(f.core.counters().drop_fragment, if expected.is_none() { 2 } else { 0 }, "{marks:?}");
        }
    }
}

/// Three workers of a node.
fn three_workers() -> [Fixture; 3] {
    let config = |worker| {
        let config = CoreConfig::new(vec![PortConfig::new(OUR_MAC, 1500)], (1, 2));
        CoreConfig { worker, workers: 3, ..config }
    };
    [0, 1, 2].map(|worker| Fixture::with(config(worker)))
}

/// Every worker receives the fragments; the one that has the flow processes the datagram.
#[test]
fn one_worker_processes_a_datagram() {
    let mut workers = three_workers();
    let mut used = [0; 3];
    for number in 0..60 {
        let (from, to) = client(number, number % 2 == 1);
        let packet = tcp_packet(&from, to, Tcp::SYN, &data(100, 1));
        let ends: [SocketAddr; 2] = [to.parse().unwrap(), from.parse().unwrap()];
        let owner = steering::worker_of(&csp_types::FourTuple { local: ends[0], remote: ends[1] }, 3);
        used[usize::from(owner)] += 1;
        for (f, worker) in workers.iter_mut().zip(0..) {
            parts(&packet, &[64]).into_iter().for_each(|part| f.frame(&fragment(&packet, 1, part)));
            assert_eq!(f.out.tunnel.drain(..).len(), usize::from(worker == owner), "{from}");
            // What only worker 0 receives is processed there.
            let elsewhere = f.core.counters().datagrams_elsewhere;
            assert_eq!(elsewhere, number as u64 + 1 - used[usize::from(worker)], "{from}");
        }
    }
    assert!(used.iter().all(|count| *count > 5), "{used:?}");
}

/// RFC 8200 §4.5: the next headers of an IPv6 datagram's fragments may differ, and that of the first applies.
/// Steering looks at each fragment's own: worker 0 receives all, the others those that name TCP or UDP.
#[test]
fn next_headers_that_differ_cost_no_datagram() {
    const TCP: u8 = 6;
    /// Of the fragment header.
    const NEXT_HEADER: usize = 14 + ipv6::HEADER_LEN;
    let mut owners = [0; 3];
    for number in 0..60 {
        let (from, to) = client(number, true);
        let mut packet = tcp_packet(&from, to, Tcp::SYN, &data(300, 1));
        let ends: [SocketAddr; 2] = [to.parse().unwrap(), from.parse().unwrap()];
        owners[usize::from(steering::worker_of(
            &csp_types::FourTuple { local: ends[0], remote: ends[1] },
            3,
        ))] += 1;
        // The odd one out is the first fragment, with destination options in front of TCP, or another.
        let odd = number % 3;
        if odd == 0 {
            packet.splice(40..40, [TCP, 0, 1, 4, 0, 0, 0, 0]);
            packet[6] = 60;
            let len = (packet.len() - ipv6::HEADER_LEN) as u16;
            packet[4..6].copy_from_slice(&len.to_be_bytes());
        }
        let mut frames: Vec<_> =
            parts(&packet, &[64, 128]).into_iter().map(|p| fragment(&packet, 1, p)).collect();
        for (at, frame) in frames.iter_mut().enumerate().skip(1) {
            frame[NEXT_HEADER] = if at == odd { 132 } else { TCP };
        }
        assert_eq!(frames.iter().filter(|frame| frame[NEXT_HEADER] == TCP).count(), 2);
        frames.rotate_left(number / 3 % 3);
        let mut got = Vec::new();
        for (f, worker) in three_workers().iter_mut().zip(0..) {
            frames
                .iter()
                .filter(|frame| worker == 0 || frame[NEXT_HEADER] == TCP)
                .for_each(|frame| f.frame(frame));
            got.extend(f.out.tunnel.drain(..).map(|record| (worker, record.payload)));
            assert_eq!(
                (f.core.datagram_count(), f.core.counters().datagrams_elsewhere),
                (usize::from(worker > 0), 0)
            );
        }
        assert_eq!(got, [(0, packet)], "{from}");
    }
    assert!(owners.iter().all(|count| *count > 5), "{owners:?}");
}

#[test]
fn a_fragmented_echo_request_is_answered_if_the_answer_fits() {
    for (len, answers) in [(1_400, 1), (3_000, 0)] {
        let mut f = Fixture::new();
        let mut message = [&[8, 0, 0, 0, 0, 1, 0, 1][..], &data(len, 1)].concat();
        let sum = csp_wire::checksum::checksum(&message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        let packet = ip_packet("10.76.0.1".parse().unwrap(), "10.76.0.100".parse().unwrap(), 1, &message);
        parts(&packet, &[576, 1_152]).into_iter().for_each(|part| f.frame(&fragment(&packet, 1, part)));
        assert_eq!((f.out.lan.len(), f.core.counters().drop_too_long), (answers, 1 - answers as u64));
    }
}

/// Only the first fragment has ports: rules with ports match the datagram, all of it.
#[test]
fn rules_see_the_datagram() {
    for packet in syns() {
        let mut plugins = Plugins::new(&["nothing drop"], &["web dport 80 proto tcp ingress plugin nothing"]);
        for part in parts(&packet, &[64, 128]) {
            plugins.fixture.frame(&fragment(&packet, 1, part));
        }
        let counts = plugins.counts();
        assert_eq!((counts.rules[0].1.packets, counts.graph.dropped), (1, 1));
        assert_eq!(plugins.fixture.out.tunnel.len(), 0);
        plugins.set(&["nothing drop"], &["other dport 81 proto tcp ingress plugin nothing"]);
        for part in parts(&packet, &[64, 128]).into_iter().rev() {
            plugins.fixture.frame(&fragment(&packet, 2, part));
        }
        assert_eq!(plugins.fixture.sent().payload, reassembled(&packet, 2));
    }
}

/// The program in the driver leaves fragments to the worker: that it has decided on all plain packets says
/// nothing of a datagram that was made of fragments.
#[test]
fn rules_of_the_driver_see_the_datagram_in_the_worker() {
    let packet = tcp_packet(CLIENT, VIP, Tcp::SYN, &data(300, 1));
    let mut plugins = Plugins::new(&["nothing drop"], &["web dport 80 proto tcp ingress plugin nothing"]);
    let driver = DriverRules { ports: 1, complete: true, rules: vec![1] };
    let mut change = PluginChange { driver, directions: (true, true), ..PluginChange::default() };
    plugins.fixture.core.change_plugins(&mut change);
    // A plain packet has been decided on.
    plugins.fixture.frame(&ip_frame(&packet));
    assert_eq!(plugins.fixture.sent().payload, packet);
    parts(&packet, &[64]).into_iter().for_each(|part| plugins.fixture.frame(&fragment(&packet, 1, part)));
    assert_eq!((plugins.fixture.out.tunnel.len(), plugins.counts().graph.dropped), (0, 1));
}

/// Fragments for the host itself are the kernel's to reassemble. All workers receive those of TCP and UDP,
/// worker 0 those of other protocols.
#[test]
fn fragments_for_other_addresses_go_on_once_as_they_are() {
    let udp = [&[0x9c, 0x40, 0, 53, 1, 52, 0, 0][..], &data(300, 1)].concat();
    for (from, to) in [(CLIENT, "10.76.0.2:22"), (CLIENT6, "[2001:db8::2]:22")] {
        let [source, destination] = [from, to].map(|end| end.parse::<SocketAddr>().unwrap().ip());
        let tcp = tcp_packet(from, to, Tcp::SYN, &data(300, 1));
        let other = |protocol| ip_packet(source, destination, protocol, &udp);
        for (packet, receivers) in [(tcp, 3), (other(17), 3), (other(132), 1)] {
            for rules in [&[][..], &["web dport 80 proto tcp ingress plugin nothing"][..]] {
                let mut workers = [0, 1, 2].map(|worker| {
                    let mut plugins = Plugins::new(&["nothing drop"], rules);
                    (plugins.fixture.core.worker, plugins.fixture.core.workers) = (worker, 3);
                    plugins
                });
                let frames: Vec<_> =
                    parts(&packet, &[64, 128]).into_iter().map(|p| fragment(&packet, 1, p)).collect();
                // Without a way to the kernel, which then has a copy of its own, each is counted once.
                for way in [false, true] {
                    let mut given = Vec::new();
                    for plugins in workers.iter_mut().take(receivers) {
                        if way {
                            plugins.fixture.core.set_reinjection(PORT);
                        }
                        frames.iter().for_each(|frame| plugins.fixture.frame(frame));
                        given.extend(plugins.fixture.out.kernel.drain(..).map(|(_, frame, _)| frame));
                    }
                    assert_eq!(given, if way { frames.clone() } else { Vec::new() }, "{to} {rules:?}");
                    let count = |count: fn(&Counters) -> u64| -> u64 {
                        workers.iter().map(|plugins| count(plugins.fixture.core.counters())).sum()
                    };
                    assert_eq!(
                        (count(|c| c.drop_not_ours), count(|c| c.fragments_in)),
                        (3, 0),
                        "{to} {rules:?}"
                    );
                }
            }
        }
    }
}
