//! The raw-socket port on a veth pair between two network namespaces, against the kernel's own TCP.
//!
//! Needs root; the tests are skipped without.
#![allow(clippy::disallowed_types, reason = "real sockets and clocks on the other side of the wire")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use csp_lan::af_packet::{self, AfPacketConfig, Fanout, OpenError};
use csp_lan::steering::{is_shared, worker_of};
use csp_lan::{Checksum, Gso, GsoKind, LanPort, TxOffload};
use csp_types::MacAddr;

/// A veth pair: `near` is the namespace that the port is opened in, `far` that of the peer. Removed when dropped.
struct Pair {
    near: String,
    far: String,
}

fn run(command: &str) {
    let status = Command::new("sh").arg("-c").arg(command).status().unwrap();
    assert!(status.success(), "{command}");
}

impl Pair {
    fn new(test: &str) -> Option<Pair> {
        if !csp_support::is_root("the test makes network namespaces")
            || !csp_support::installed("ip", "iproute2")
        {
            return None;
        }
        let id = std::process::id();
        let pair = Pair { near: format!("csp-lan-{test}-n{id}"), far: format!("csp-lan-{test}-f{id}") };
        let (near, far) = (&pair.near, &pair.far);
        run(&format!("ip netns add {near} && ip netns add {far}"));
        run(&format!("ip link add lan0 netns {near} type veth peer name eth0 netns {far}"));
        // Without IPv6 the interfaces send no router solicitations.
        run(&format!("ip netns exec {near} sysctl -qw net.ipv6.conf.all.disable_ipv6=1"));
        run(&format!("ip netns exec {far} sysctl -qw net.ipv6.conf.all.disable_ipv6=1"));
        run(&format!("ip -n {near} link set lan0 address 02:00:00:00:00:0a up"));
        run(&format!("ip -n {far} link set eth0 address 02:00:00:00:00:0b up"));
        run(&format!("ip -n {far} addr add 10.9.9.2/24 dev eth0"));
        run(&format!("ip -n {far} neigh add 10.9.9.1 lladdr 02:00:00:00:00:0a dev eth0 nud permanent"));
        Some(pair)
    }

    /// Runs `work` on a thread in the namespace.
    fn within<T: Send + 'static>(namespace: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
        let path = format!("/run/netns/{namespace}");
        let enter_and_work = move || {
            let namespace = std::fs::File::open(path).unwrap();
            rustix::thread::move_into_link_name_space(
                std::os::fd::AsFd::as_fd(&namespace),
                Some(rustix::thread::LinkNameSpaceType::Network),
            )
            .unwrap();
            work()
        };
        thread::spawn(enter_and_work).join().unwrap()
    }

    fn open(&self) -> LanPort {
        Self::within(&self.near, || af_packet::open(&AfPacketConfig::new("lan0"))).unwrap()
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        run(&format!("ip netns del {} && ip netns del {}", self.near, self.far));
    }
}

const US: [u8; 4] = [10, 9, 9, 1];
const PEER: [u8; 4] = [10, 9, 9, 2];
const OUR_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x0a]);
const PEER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x0b]);

fn sum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0u32;
    for part in parts {
        for pair in part.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Returns the headers (54 bytes) of a TCP segment as the network node passes them to a port, with the checksum left to
/// the kernel.
fn headers(ports: (u16, u16), seq: u32, ack: u32, flags: u8, data_len: usize) -> [u8; 54] {
    let mut h = [0; 54];
    h[..6].copy_from_slice(&PEER_MAC.0);
    h[6..12].copy_from_slice(&OUR_MAC.0);
    h[12] = 8;
    h[14] = 0x45;
    h[16..18].copy_from_slice(&((40 + data_len) as u16).to_be_bytes());
    h[20] = 0x40;
    (h[22], h[23]) = (64, 6);
    h[26..30].copy_from_slice(&US);
    h[30..34].copy_from_slice(&PEER);
    let check = !sum(&[&h[14..34]]);
    h[24..26].copy_from_slice(&check.to_be_bytes());
    h[34..36].copy_from_slice(&ports.0.to_be_bytes());
    h[36..38].copy_from_slice(&ports.1.to_be_bytes());
    h[38..42].copy_from_slice(&seq.to_be_bytes());
    h[42..46].copy_from_slice(&ack.to_be_bytes());
    (h[46], h[47]) = (0x50, flags);
    h[48..50].copy_from_slice(&60_000u16.to_be_bytes());
    let len = ((20 + data_len) as u16).to_be_bytes();
    let pseudo = sum(&[&US, &PEER, &[0, 6], &len]);
    h[50..52].copy_from_slice(&pseudo.to_be_bytes());
    h
}

fn offload(segment_size: Option<u16>) -> Option<TxOffload> {
    let gso = segment_size.map(|segment_size| Gso { kind: GsoKind::TcpV4, segment_size, cwr: false });
    Some(TxOffload { checksum_start: 34, checksum_offset: 16, gso, header_len: 54 })
}

/// Fields of a received TCP segment.
#[derive(Debug)]
struct Seen {
    seq: u32,
    ack: u32,
    flags: u8,
    data: usize,
    checksum: Checksum,
    gso: Option<Gso>,
}

/// Receives until `done` returns true for a TCP segment.
fn receive_until(port: &mut LanPort, mut done: impl FnMut(&Seen) -> bool) -> Seen {
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut found = None;
    while found.is_none() {
        assert!(Instant::now() < deadline, "the segment did not arrive: {:?}", port.receiver.counters());
        port.receiver.receive(&mut |frame| {
            let b = frame.bytes;
            if b.len() < 54 || b[12..14] != [8, 0] || b[23] != 6 {
                return;
            }
            let word = |at: usize| u32::from_be_bytes(b[at..at + 4].try_into().unwrap());
            let total = usize::from(u16::from_be_bytes([b[16], b[17]]));
            let data = total - 20 - usize::from(b[46] >> 4) * 4;
            let (seq, ack, flags) = (word(38), word(42), b[47]);
            let seen = Seen { seq, ack, flags, data, checksum: frame.checksum, gso: frame.gso };
            if found.is_none() && done(&seen) {
                found = Some(seen);
            }
        });
        thread::yield_now();
    }
    found.unwrap()
}

#[test]
fn a_port_describes_its_interface_and_rejects_unsuitable_ones() {
    let Some(pair) = Pair::new("info") else { return };
    let port = pair.open();
    assert_eq!((port.info.name.as_str(), port.info.mac, port.info.mtu), ("lan0", OUR_MAC, 1500));
    let missing = Pair::within(&pair.near, || af_packet::open(&AfPacketConfig::new("lan7")).err());
    assert!(matches!(missing, Some(OpenError::NoInterface(name)) if name == "lan7"));
    let loopback = Pair::within(&pair.near, || af_packet::open(&AfPacketConfig::new("lo")).err());
    assert!(matches!(loopback, Some(OpenError::NotEthernet(name)) if name == "lo"));
}

#[test]
fn the_kernel_accepts_transmitted_frames_and_its_large_segments_are_received() {
    let Some(pair) = Pair::new("tcp") else { return };
    // When a busy machine delays the handshake, pacing lets the kernel send as few as two segments of 536 bytes at once.
    for setting in ["tcp_congestion_control=reno", "tcp_min_tso_segs=8"] {
        run(&format!("ip netns exec {} sysctl -qw net.ipv4.{setting}", pair.far));
    }
    let mut port = pair.open();
    let listener = Pair::within(&pair.far, || TcpListener::bind("10.9.9.2:7000").unwrap());
    let (send, received) = mpsc::channel();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = vec![0; 60_000];
        stream.read_exact(&mut bytes).unwrap();
        send.send(bytes).unwrap();
        // More than the window admits: the test's reset ends the write.
        let _ = stream.write_all(&[7; 200_000]);
    });

    // Handshake. The kernel completes the checksums.
    port.transmitter.transmit(&[&headers((4000, 7000), 100, 0, 0x02, 0)], offload(None)).unwrap();
    port.transmitter.flush();
    let answer = receive_until(&mut port, |s| s.flags == 0x12);
    assert_eq!(answer.ack, 101);
    assert!(answer.checksum != Checksum::Unchecked, "{answer:?}");
    let ours = answer.seq.wrapping_add(1);
    port.transmitter.transmit(&[&headers((4000, 7000), 101, ours, 0x10, 0)], offload(None)).unwrap();

    // 60,000 bytes in one frame of three parts, to be cut into segments of 1,400. A real sender would start with fewer
    // segments, but the receiver's window admits these.
    let data: Vec<u8> = (0..60_000u32).map(|i| (i % 251) as u8).collect();
    let header = headers((4000, 7000), 101, ours, 0x18, data.len());
    port.transmitter.transmit(&[&header, &data[..1000], &data[1000..]], offload(Some(1400))).unwrap();
    port.transmitter.flush();
    assert_eq!(received.recv_timeout(Duration::from_secs(10)).unwrap(), data);

    // The peer's segments arrive coalesced, larger than the MTU, with their segment size.
    let mut expected = ours;
    let large = receive_until(&mut port, |s| {
        if s.data > 0 && s.seq == expected {
            expected = expected.wrapping_add(s.data as u32);
        }
        s.data > 1500
    });
    assert!(large.gso.is_some_and(|g| g.kind == GsoKind::TcpV4 && g.segment_size < 1500), "{large:?}");
    let counters = port.transmitter.counters();
    assert_eq!((counters.frames, counters.full, counters.too_long, counters.errors), (3, 0, 0, 0));
    port.transmitter.transmit(&[&headers((4000, 7000), 60_101, ours, 0x04, 0)], offload(None)).unwrap();
    port.transmitter.flush();
    server.join().unwrap();
}

#[test]
fn a_large_frame_keeps_the_mark_that_only_its_first_segment_has_cwr() {
    let Some(pair) = Pair::new("cwr") else { return };
    let (mut port, mut peer) = (pair.open(), {
        let open = || af_packet::open(&AfPacketConfig::new("eth0"));
        Pair::within(&pair.far, open).unwrap()
    });
    for (cwr, flags) in [(true, 0x98), (false, 0x18)] {
        let gso = Some(Gso { kind: GsoKind::TcpV4, segment_size: 1400, cwr });
        let offload = TxOffload { checksum_start: 34, checksum_offset: 16, gso, header_len: 54 };
        let header = headers((4000, 7001), 1, 1, flags, 5000);
        port.transmitter.transmit(&[&header, &[0; 5000]], Some(offload)).unwrap();
        port.transmitter.flush();
        let seen = receive_until(&mut peer, |s| s.flags == flags && s.data == 5000);
        assert_eq!(seen.gso, gso);
    }
}

#[test]
fn a_refused_frame_is_dropped_and_counted_and_the_others_are_sent() {
    let Some(pair) = Pair::new("drop") else { return };
    let (mut port, mut peer) = (pair.open(), {
        let open = || af_packet::open(&AfPacketConfig::new("eth0"));
        Pair::within(&pair.far, open).unwrap()
    });
    let header = headers((4000, 7000), 1, 0, 0x02, 0);
    for len in [10, 3000, 20] {
        // 0x88b5 is reserved for experiments (IEEE 802): no stack answers it.
        let mut frame = vec![0; 14 + len];
        frame[..12].copy_from_slice(&header[..12]);
        frame[12..14].copy_from_slice(&[0x88, 0xb5]);
        port.transmitter.transmit(&[&frame], None).unwrap();
    }
    port.transmitter.flush();
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut lens = Vec::new();
    while lens.len() < 2 {
        assert!(Instant::now() < deadline);
        peer.receiver.receive(&mut |f| {
            if f.bytes[12..14] == [0x88, 0xb5] {
                lens.push(f.bytes.len());
            }
        });
    }
    assert_eq!(lens, [24, 34]);
    assert_eq!((port.transmitter.counters().frames, port.transmitter.counters().too_long), (2, 1));
}

/// Returns a frame to us.
fn frame(ethertype: u16, packet: &[u8]) -> Vec<u8> {
    let mut frame = [&OUR_MAC.0[..], &PEER_MAC.0, &ethertype.to_be_bytes(), packet].concat();
    frame.resize(frame.len().max(60), 0);
    frame
}

/// Returns an IPv4 packet with a header of this length in words, and 20 bytes after it that begin with `payload`.
fn v4(header_words: u8, protocol: u8, fragment: u8, ends: ([u8; 4], [u8; 4]), payload: &[u8]) -> Vec<u8> {
    let at = usize::from(header_words) * 4;
    let mut packet = vec![0; at + payload.len().max(20)];
    (packet[0], packet[6], packet[9]) = (0x40 | header_words, fragment, protocol);
    packet[12..16].copy_from_slice(&ends.0);
    packet[16..20].copy_from_slice(&ends.1);
    packet[at..at + payload.len()].copy_from_slice(payload);
    packet
}

/// Returns an IPv6 packet; the addresses differ in their last byte.
fn v6(next: u8, ends: (u8, u8), payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; 40 + payload.len().max(20)];
    (packet[0], packet[6], packet[23], packet[39]) = (0x60, next, ends.0, ends.1);
    packet[40..40 + payload.len()].copy_from_slice(payload);
    packet
}

fn ports(source: u16, destination: u16) -> [u8; 4] {
    let [a, b] = [source, destination].map(u16::to_be_bytes);
    [a[0], a[1], b[0], b[1]]
}

const VIP: [u8; 4] = [10, 9, 8, 1];

/// Frames to us of every kind that the rule distinguishes, each with a number in its source address.
fn frames() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for number in 0..8_u8 {
        let (peer, peer_port) = ([10, 9, 9, number], 5_000 + u16::from(number) * 7);
        for (port, header_words, fragment, protocol) in [
            (80, 5, 0x40, 6),
            (49_151, 6, 0, 6),
            (49_152, 5, 0, 6),
            (80, 5, 0x20, 6),
            (80, 5, 0, 17),
            (80, 15, 0, 6),
        ] {
            let packet = v4(header_words, protocol, fragment, (peer, VIP), &ports(peer_port, port));
            frames.push(frame(0x0800, &packet));
            let quoted = v4(header_words, protocol, fragment, (VIP, peer), &ports(port, peer_port));
            for (kind, header_words) in [(3, 5), (11, 6), (8, 5), (12, 5)] {
                let error = [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &quoted].concat();
                frames.push(frame(0x0800, &v4(header_words, 1, 0, ([10, 9, 7, 1], VIP), &error)));
            }
        }
        for (port, next) in [(80, 6), (60_000, 6), (80, 58)] {
            frames.push(frame(0x86dd, &v6(next, (number, 99), &ports(peer_port, port))));
            let quoted = v6(next, (99, number), &ports(port, peer_port));
            for kind in [1, 3, 128] {
                let error = [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &quoted].concat();
                frames.push(frame(0x86dd, &v6(58, (7, 99), &error)));
            }
        }
    }
    frames.push(frame(0x0806, &[1; 28]));
    frames.push(frame(0x88b5, &[1; 40]));
    frames
}

/// Opens the ports of three workers on the pair's near end.
fn workers_on(pair: &Pair) -> Vec<LanPort> {
    let open = |worker| {
        let fanout = Some(Fanout { group: 7, worker });
        let config = AfPacketConfig { fanout, ..AfPacketConfig::new("lan0") };
        Pair::within(&pair.near, move || af_packet::open(&config)).unwrap()
    };
    (0..3).map(open).collect()
}

#[test]
fn the_kernel_shares_frames_out_as_the_rule_says() {
    let Some(pair) = Pair::new("steer") else { return };
    let mut workers = workers_on(&pair);
    let mut peer = Pair::within(&pair.far, || af_packet::open(&AfPacketConfig::new("eth0"))).unwrap();
    let mut used = [0; 3];
    for frame in frames() {
        peer.transmitter.transmit(&[&frame], None).unwrap();
        peer.transmitter.flush();
        let deadline = Instant::now() + Duration::from_secs(10);
        let receiver = 'found: loop {
            assert!(Instant::now() < deadline, "{frame:02x?} does not arrive");
            for (at, worker) in workers.iter_mut().enumerate() {
                let mut found = false;
                worker.receiver.receive(&mut |seen| found |= seen.bytes == frame);
                if found {
                    break 'found at;
                }
            }
            thread::yield_now();
        };
        assert_eq!(receiver, worker_of(&frame, 3), "{frame:02x?}");
        assert!(!is_shared(&frame), "{frame:02x?}");
        used[receiver] += 1;
    }
    assert!(used.iter().all(|frames| *frames > 10), "{used:?}");
}

/// An ICMP error quotes what the cluster sent; its flow is that of the segments in the other direction.
#[test]
fn an_error_reaches_the_worker_that_has_the_flow() {
    for number in 0..100 {
        let (peer, peer_port) = ([10, 9, 9, number], 5_000 + u16::from(number));
        let segment = frame(0x0800, &v4(5, 6, 0, (peer, VIP), &ports(peer_port, 443)));
        let quoted = v4(5, 6, 0, (VIP, peer), &ports(443, peer_port));
        let error = [&[3, 4, 0, 0, 0, 0, 5, 0][..], &quoted].concat();
        let error = frame(0x0800, &v4(5, 1, 0, ([10, 9, 7, 1], VIP), &error));
        assert_eq!(worker_of(&segment, 5), worker_of(&error, 5));
        let segment = frame(0x86dd, &v6(6, (number, 99), &ports(peer_port, 443)));
        let error = [&[2, 0, 0, 0, 0, 0, 5, 0][..], &v6(6, (99, number), &ports(443, peer_port))].concat();
        assert_eq!(worker_of(&segment, 5), worker_of(&frame(0x86dd, &v6(58, (7, 99), &error)), 5));
    }
}

/// Any worker may have asked for a neighbour: all of them receive the reply, once, also while they are busy.
#[test]
fn every_worker_receives_the_replies_of_neighbours() {
    let Some(pair) = Pair::new("shared") else { return };
    let mut workers = workers_on(&pair);
    let mut peer = Pair::within(&pair.far, || af_packet::open(&AfPacketConfig::new("eth0"))).unwrap();
    let arp = |operation| frame(0x0806, &[0, 1, 8, 0, 6, 4, 0, operation, 2, 2, 2, 2, 2, 2]);
    let advertisement = |kind| frame(0x86dd, &v6(58, (1, 99), &[kind, 0, 0, 0]));
    let sent = [arp(2), arp(1), advertisement(136), advertisement(135), arp(2)];
    for frame in &sent {
        peer.transmitter.transmit(&[frame], None).unwrap();
    }
    peer.transmitter.flush();
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut seen: Vec<Vec<Vec<u8>>> = vec![Vec::new(); 3];
    while seen.iter().map(Vec::len).sum::<usize>() < 5 + 3 + 3 {
        assert!(Instant::now() < deadline, "{seen:02x?}");
        for (worker, seen) in workers.iter_mut().zip(&mut seen) {
            let ours = |bytes: &[u8]| sent.iter().any(|frame| frame == bytes);
            worker
                .receiver
                .receive(&mut |frame| seen.extend(ours(frame.bytes).then(|| frame.bytes.to_vec())));
        }
        thread::yield_now();
    }
    let shared: Vec<_> = sent.iter().filter(|frame| is_shared(frame)).cloned().collect();
    assert_eq!(seen, [sent.to_vec(), shared.clone(), shared]);
    assert!(workers[0].receiver.fds()[1].is_none() && workers[1].receiver.fds()[1].is_some());
}
