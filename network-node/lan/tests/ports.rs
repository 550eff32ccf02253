//! The ports of Linux on a veth pair between two network namespaces, against the kernel's own TCP: raw
//! sockets and AF_XDP by the same tests.
//!
//! Needs root; the tests are skipped without.
#![allow(
    missing_docs,
    clippy::disallowed_types,
    reason = "real sockets and clocks on the other side of the wire"
)]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "ports/frames.rs"]
mod frames;
#[path = "ports/pair.rs"]
mod pair;
#[path = "ports/tap.rs"]
mod tap;

use std::io::{Read as _, Write as _};
use std::net::{Ipv6Addr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use csp_lan::af_packet::{self, AfPacketConfig, OpenError};
use csp_lan::steering::{is_shared, worker_of};
use csp_lan::{Checksum, Gso, GsoKind, LanPort, TxOffload};
use csp_types::{FourTuple, limits, steering};

use frames::{OUR_MAC, VIP, frame, frames, headers, offload, ports, v4, v6, with_checksum};
use pair::{Kind, Pair, run};

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

/// Runs a test for each kind of port.
macro_rules! of_all {
    ($($(#[doc = $doc:literal])* $name:ident)*) => {
        mod raw_sockets {
            $($(#[doc = $doc])* #[test] fn $name() { super::$name(super::Kind::Raw, concat!(stringify!($name), "-p")); })*
        }
        mod af_xdp {
            $($(#[doc = $doc])* #[test] fn $name() { super::$name(super::Kind::Xdp, concat!(stringify!($name), "-x")); })*
        }
        mod af_xdp_whose_large_frames_the_kernel_cuts {
            $($(#[doc = $doc])* #[test] fn $name() { super::$name(super::Kind::XdpKernelCuts, concat!(stringify!($name), "-k")); })*
        }
    };
}

of_all! {
    a_port_describes_its_interface_and_rejects_unsuitable_ones
    the_kernel_accepts_transmitted_frames_and_its_segments_are_received
    a_large_frame_keeps_the_mark_that_only_its_first_segment_has_cwr
    a_refused_frame_is_dropped_and_counted_and_the_others_are_sent
    frames_are_shared_out_as_the_rule_says
    every_worker_receives_what_is_shared
    frames_of_vlans_are_not_the_interface_s
}

fn a_port_describes_its_interface_and_rejects_unsuitable_ones(kind: Kind, test: &str) {
    let Some(pair) = Pair::new(test) else { return };
    let port = pair.try_open(kind, "lan0").unwrap();
    assert_eq!((port.info.name.as_str(), port.info.mac, port.info.mtu), ("lan0", OUR_MAC, 1500));
    drop(port);
    let missing = pair.try_open(kind, "lan7").err();
    assert!(matches!(missing, Some(OpenError::NoInterface(name)) if name == "lan7"));
    let loopback = pair.try_open(kind, "lo").err();
    assert!(matches!(loopback, Some(OpenError::NotEthernet(name)) if name == "lo"));
    run(&format!("ip -n {} link set lan0 mtu 3827", pair.near));
    match pair.try_open(kind, "lan0") {
        Ok(port) => assert_eq!((kind, port.info.mtu), (Kind::Raw, 3827)),
        Err(error) => assert_eq!(
            (kind != Kind::Raw, error.to_string().as_str()),
            (true, "interface \"lan0\" has the MTU 3827; at most 3826 is possible with AF_XDP")
        ),
    }
}

fn the_kernel_accepts_transmitted_frames_and_its_segments_are_received(kind: Kind, test: &str) {
    let Some(pair) = Pair::new(test) else { return };
    // When a busy machine delays the handshake, pacing lets the kernel send as few as two segments of 536
    // bytes at once.
    for setting in ["tcp_congestion_control=reno", "tcp_min_tso_segs=8"] {
        run(&format!("ip netns exec {} sysctl -qw net.ipv4.{setting}", pair.far));
    }
    let Some(mut ports) = pair.open(kind, 1) else { return };
    let port = &mut ports.workers[0];
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
    let answer = receive_until(port, |s| s.flags == 0x12);
    assert_eq!(answer.ack, 101);
    assert!(answer.checksum != Checksum::Unchecked, "{answer:?}");
    let ours = answer.seq.wrapping_add(1);
    port.transmitter.transmit(&[&headers((4000, 7000), 101, ours, 0x10, 0)], offload(None)).unwrap();

    // 60,000 bytes in one frame of three parts, to be cut into segments of 1,400. A real sender would start
    // with fewer segments, but the receiver's window admits these.
    let data: Vec<u8> = (0..60_000u32).map(|i| (i % 251) as u8).collect();
    let header = headers((4000, 7000), 101, ours, 0x18, data.len());
    port.transmitter.transmit(&[&header, &data[..1000], &data[1000..]], offload(Some(1400))).unwrap();
    port.transmitter.flush();
    assert_eq!(received.recv_timeout(Duration::from_secs(10)).unwrap(), data);

    // The peer's segments arrive: by a raw socket coalesced, larger than the MTU, with their segment size.
    let mut expected = ours;
    let last = receive_until(port, |s| {
        if s.data > 0 && s.seq == expected {
            expected = expected.wrapping_add(s.data as u32);
        }
        s.data > 1500 || (kind != Kind::Raw && expected.wrapping_sub(ours) > 5_000)
    });
    match kind {
        Kind::Raw => {
            let is_right = |gso: Gso| gso.kind == GsoKind::TcpV4 && gso.segment_size < 1500;
            assert!(last.gso.is_some_and(is_right), "{last:?}");
        }
        _ => {
            assert!(last.data <= 1460 && last.gso.is_none(), "{last:?}");
            assert!(matches!(last.checksum, Checksum::Partial { start: 34, offset: 16 }), "{last:?}");
        }
    }
    let counters = port.transmitter.counters();
    assert_eq!((counters.frames, counters.full, counters.too_long, counters.errors), (3, 0, 0, 0));
    port.transmitter.transmit(&[&headers((4000, 7000), 60_101, ours, 0x04, 0)], offload(None)).unwrap();
    port.transmitter.flush();
    server.join().unwrap();
}

/// A raw socket leaves it to the kernel, which hands the frame on whole; AF_XDP cuts it.
fn a_large_frame_keeps_the_mark_that_only_its_first_segment_has_cwr(kind: Kind, test: &str) {
    let Some(pair) = Pair::new(test) else { return };
    let Some(mut ports) = pair.open(kind, 1) else { return };
    let mut peer = pair.open_far();
    for (cwr, flags) in [(true, 0x98), (false, 0x18)] {
        let gso = Some(Gso { kind: GsoKind::TcpV4, segment_size: 1400, cwr });
        let offload = TxOffload { checksum_start: 34, checksum_offset: 16, gso, header_len: 54 };
        let header = headers((4000, 7001), 1, 1, flags, 5000);
        let transmitter = &mut ports.workers[0].transmitter;
        transmitter.transmit(&[&header, &[0; 5000]], Some(offload)).unwrap();
        transmitter.flush();
        if kind != Kind::Xdp {
            let seen = receive_until(&mut peer, |s| s.flags == flags && s.data == 5000);
            assert_eq!(seen.gso, gso);
            continue;
        }
        let mut segments = Vec::new();
        receive_until(&mut peer, |s| {
            segments.push((s.seq, s.flags, s.data));
            segments.len() == 4
        });
        // PSH is the last one's and CWR the first one's.
        let first = flags & !0x08;
        assert_eq!(segments, [(1, first, 1400), (1401, 0x10, 1400), (2801, 0x10, 1400), (4201, 0x18, 800)]);
    }
}

fn a_refused_frame_is_dropped_and_counted_and_the_others_are_sent(kind: Kind, test: &str) {
    let Some(pair) = Pair::new(test) else { return };
    let Some(mut ports) = pair.open(kind, 1) else { return };
    let (port, mut peer) = (&mut ports.workers[0], pair.open_far());
    let header = headers((4000, 7000), 1, 0, 0x02, 0);
    for len in [10, 3000, 20] {
        // 0x88b5 is reserved for experiments (IEEE 802): no stack answers it.
        let mut frame = vec![0; 14 + len];
        frame[..12].copy_from_slice(&header[..12]);
        frame[12..14].copy_from_slice(&[0x88, 0xb5]);
        let result = port.transmitter.transmit(&[&frame], None);
        assert_eq!(result.is_err(), kind != Kind::Raw && len == 3000);
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

fn frames_are_shared_out_as_the_rule_says(kind: Kind, test: &str) {
    let Some(pair) = Pair::new(test) else { return };
    let Some(mut ports) = pair.open(kind, 3) else { return };
    let mut peer = pair.open_far();
    let mut used = [0; 3];
    // What is not IP or ARP stays with the kernel at a port of AF_XDP.
    for frame in frames().iter().filter(|frame| kind == Kind::Raw || frame[12..14] != [0x88, 0xb5]) {
        peer.transmitter.transmit(&[frame], None).unwrap();
        peer.transmitter.flush();
        let deadline = Instant::now() + Duration::from_secs(10);
        let receiver = 'found: loop {
            assert!(Instant::now() < deadline, "{frame:02x?} does not arrive");
            for (at, worker) in ports.workers.iter_mut().enumerate() {
                let mut found = false;
                worker.receiver.receive(&mut |seen| found |= seen.bytes == *frame);
                if found {
                    break 'found at;
                }
            }
            thread::yield_now();
        };
        assert_eq!(receiver, worker_of(frame, 3), "{frame:02x?}");
        assert!(!is_shared(frame), "{frame:02x?}");
        used[receiver] += 1;
    }
    assert!(used.iter().all(|frames| *frames > 10), "{used:?}");
}

/// Proxies compute from the addresses which worker receives the answers to a connection that they open.
#[test]
fn the_answers_to_a_connection_of_a_proxy_reach_the_worker_that_the_addresses_say() {
    let mut used = [0; 5];
    for port in (limits::EGRESS_PORT_FIRST..=u16::MAX).step_by(97) {
        let answer = frame(0x0800, &v4(5, 6, 0, ([10, 9, 9, 2], VIP), &ports(80, port)));
        let local = (VIP, port).into();
        let expected = steering::worker_of(&FourTuple { local, remote: ([10, 9, 9, 2], 80).into() }, 5);
        assert_eq!(worker_of(&answer, 5), usize::from(expected));
        used[usize::from(expected)] += 1;
        let answer = frame(0x86dd, &v6(6, (2, 99), &ports(80, port)));
        let [local, peer] = [(99, port), (2, 80)].map(|(last, port)| (Ipv6Addr::from_bits(last), port));
        let expected = steering::worker_of(&FourTuple { local: local.into(), remote: peer.into() }, 5);
        assert_eq!(worker_of(&answer, 5), usize::from(expected));
    }
    assert!(used.iter().all(|answers| (24..=44).contains(answers)), "{used:?}");
}

/// An ICMP error quotes what the cluster sent; its flow is that of the segments in the other direction.
#[test]
fn an_error_reaches_the_worker_that_has_the_flow() {
    for (number, protocol) in (0..100).zip([6, 17].into_iter().cycle()) {
        let (peer, peer_port) = ([10, 9, 9, number], 5_000 + u16::from(number));
        let segment = frame(0x0800, &v4(5, protocol, 0, (peer, VIP), &ports(peer_port, 443)));
        let quoted = v4(5, protocol, 0, (VIP, peer), &ports(443, peer_port));
        let error = [&[3, 4, 0, 0, 0, 0, 5, 0][..], &quoted].concat();
        let error = frame(0x0800, &v4(5, 1, 0, ([10, 9, 7, 1], VIP), &error));
        assert_eq!(worker_of(&segment, 5), worker_of(&error, 5));
        let segment = frame(0x86dd, &v6(protocol, (number, 99), &ports(peer_port, 443)));
        let error =
            [&[2, 0, 0, 0, 0, 0, 5, 0][..], &v6(protocol, (99, number), &ports(443, peer_port))].concat();
        assert_eq!(worker_of(&segment, 5), worker_of(&frame(0x86dd, &v6(58, (7, 99), &error)), 5));
    }
}

/// Any worker may have asked for a neighbour, and may own the flow of a fragment: all of them receive these
/// frames, once, also while they are busy.
fn every_worker_receives_what_is_shared(kind: Kind, test: &str) {
    let Some(pair) = Pair::new(test) else { return };
    let Some(mut ports) = pair.open(kind, 3) else { return };
    let mut peer = pair.open_far();
    let arp = |operation| frame(0x0806, &[0, 1, 8, 0, 6, 4, 0, operation, 2, 2, 2, 2, 2, 2]);
    let advertisement = |kind| frame(0x86dd, &v6(58, (1, 99), &[kind, 0, 0, 0]));
    let fragment = |flags, protocol| {
        let mut packet = v4(5, protocol, flags, ([10, 9, 9, 3], VIP), &[0x13, 0x89, 0, 80]);
        packet[7] = u8::from(flags == 0) * 9;
        frame(0x0800, &packet)
    };
    let fragment_v6 = |protocol, more| {
        frame(0x86dd, &v6(44, (1, 99), &[protocol, 0, 0, more, 0, 0, 0, 1, 0x13, 0x88, 0, 80]))
    };
    let sent = [
        arp(2),
        arp(1),
        advertisement(136),
        advertisement(135),
        arp(2),
        // Of TCP, the first and a later one; of UDP; of ICMP, which the first worker receives.
        fragment(0x20, 6),
        fragment(0, 6),
        fragment(0x20, 17),
        fragment(0x20, 1),
        // The same, and a fragment header of a whole packet.
        fragment_v6(6, 1),
        fragment_v6(6, 8),
        fragment_v6(17, 1),
        fragment_v6(58, 1),
        fragment_v6(6, 0),
    ];
    const SHARED: usize = 9;
    for frame in &sent {
        peer.transmitter.transmit(&[frame], None).unwrap();
    }
    peer.transmitter.flush();
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut seen: Vec<Vec<Vec<u8>>> = vec![Vec::new(); 3];
    while seen.iter().map(Vec::len).sum::<usize>() < sent.len() + 2 * SHARED {
        assert!(Instant::now() < deadline, "{seen:02x?}");
        for (worker, seen) in ports.workers.iter_mut().zip(&mut seen) {
            let ours = |bytes: &[u8]| sent.iter().any(|frame| frame == bytes);
            worker
                .receiver
                .receive(&mut |frame| seen.extend(ours(frame.bytes).then(|| frame.bytes.to_vec())));
        }
        thread::yield_now();
    }
    let shared: Vec<_> = sent.iter().filter(|frame| is_shared(frame)).cloned().collect();
    assert_eq!(shared.len(), SHARED);
    assert_eq!(seen, [sent.to_vec(), shared.clone(), shared]);
    let fds = ports.workers.iter().map(|worker| worker.receiver.fds().map(|fd| fd.is_some()));
    let expected = match kind {
        Kind::Raw => [[true, false], [true, true], [true, true]],
        _ => [[true, true], [false, true], [false, true]],
    };
    assert_eq!(fds.collect::<Vec<_>>(), expected);
}

/// The kernel takes the tag out before raw sockets see a frame, and the program in the driver does not
/// process it.
fn frames_of_vlans_are_not_the_interface_s(kind: Kind, test: &str) {
    let Some(pair) = Pair::new(test) else { return };
    let Some(mut ports) = pair.open(kind, 1) else { return };
    let mut peer = pair.open_far();
    let frames = frames();
    let is_tcp = |frame: &&Vec<u8>| frame[12..14] == [8, 0] && frame[23] == 6 && worker_of(frame, 1) == 0;
    let plain = frames.iter().find(is_tcp).unwrap().clone();
    for tag in [[0x81, 0x00, 0, 0], [0x81, 0x00, 0, 5], [0x88, 0xa8, 0, 5]] {
        let tagged = [&plain[..12], &tag, &plain[12..]].concat();
        peer.transmitter.transmit(&[&tagged], None).unwrap();
    }
    peer.transmitter.transmit(&[&plain], None).unwrap();
    peer.transmitter.flush();
    let (mut seen, deadline) = (Vec::new(), Instant::now() + Duration::from_secs(10));
    while seen.is_empty() {
        assert!(Instant::now() < deadline, "nothing arrives");
        ports.workers[0].receiver.receive(&mut |frame| seen.push(frame.bytes.to_vec()));
        thread::yield_now();
    }
    assert_eq!(seen, [plain]);
}

#[test]
fn a_device_is_told_once_to_leave_tags_in_frames() {
    let Some(pair) = Pair::new("tags") else { return };
    let set = || Pair::within(&pair.near, || csp_lan::leave_vlan_tags("lan0").unwrap());
    assert_eq!((set(), set()), (true, false));
    let error = Pair::within(&pair.near, || csp_lan::leave_vlan_tags("none").unwrap_err());
    assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
}

#[test]
fn the_kernel_has_what_is_not_for_an_address_of_the_node() {
    let Some(pair) = Pair::new("others") else { return };
    let Some(mut open) = pair.open(Kind::Xdp, 1) else { return };
    run(&format!("ip -n {} addr add 10.9.9.7/24 dev lan0", pair.near));
    let listener = Pair::within(&pair.near, || TcpListener::bind("10.9.9.7:7000").unwrap());
    let echo = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = vec![0; 30_000];
        stream.read_exact(&mut bytes).unwrap();
        stream.write_all(&bytes).unwrap();
    });
    // The address is resolved by ARP, which the kernel answers.
    let mut stream = Pair::within(&pair.far, || TcpStream::connect("10.9.9.7:7000").unwrap());
    stream.write_all(&[9; 30_000]).unwrap();
    let mut bytes = vec![0; 30_000];
    stream.read_exact(&mut bytes).unwrap();
    echo.join().unwrap();
    let port = &mut open.workers[0];
    let mut seen = 0;
    port.receiver.receive(&mut |_| seen += 1);
    assert_eq!((seen, port.receiver.counters().frames), (0, 0));
}

/// The program's plug-in `redirect` transmits at another port. A veth takes such frames if its peer polls:
/// here because it has a program, too.
#[test]
fn level_1_redirects_frames_out_of_another_port() {
    let Some(pair) = Pair::new("redirect") else { return };
    run(&format!(
        "ip -n {0} link add out0 type veth peer name out1 && ip -n {0} link set out0 up",
        pair.near
    ));
    run(&format!("ip -n {} link set out1 up", pair.near));
    let Some(_program) = pair.redirect(["lan0", "out0"], "out1") else { return };
    let open = || af_packet::open(&AfPacketConfig::new("out1"));
    let mut target = Pair::within(&pair.near, open).unwrap();
    let mut peer = pair.open_far();
    let sent = frame(0x0800, &with_checksum(v4(5, 17, 0, ([10, 9, 9, 2], VIP), &ports(5000, 53))));
    let other = frame(0x0800, &with_checksum(v4(5, 6, 0, ([10, 9, 9, 2], VIP), &ports(5000, 53))));
    for frame in [&other, &sent] {
        peer.transmitter.transmit(&[frame], None).unwrap();
    }
    peer.transmitter.flush();
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut seen = Vec::new();
    while seen.is_empty() {
        assert!(Instant::now() < deadline, "the frame is not redirected");
        target.receiver.receive(&mut |frame| seen.push(frame.bytes.to_vec()));
        thread::yield_now();
    }
    assert_eq!(seen, [sent]);
}
