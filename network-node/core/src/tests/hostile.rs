//! Frames and records that no correct peer sends: dropped, counted by reason, and never a panic.

use csp_types::FlowLabel;
use csp_wire::Ecn;
use csp_wire::ethernet::EtherType;
use csp_wire::offload::{Checksum as FrameChecksum, Gso, GsoKind};
use csp_wire::tcp::Flags as Tcp;
use csp_wire::tunnel::{Age, Flags, Record, RecordKind};
use proptest::prelude::*;

use super::fixture::*;
use crate::*;

/// Returns every drop counter with its name.
fn drops(counters: &Counters) -> Vec<(&'static str, u64)> {
    let all = [
        ("malformed", counters.drop_malformed),
        ("bad_checksum", counters.drop_bad_checksum),
        ("fragment", counters.drop_fragment),
        ("not_ours", counters.drop_not_ours),
        ("protocol", counters.drop_protocol),
        ("no_service", counters.drop_no_service),
        ("no_proxy", counters.drop_no_proxy),
        ("tunnel_full", counters.drop_tunnel_full),
        ("bad_record", counters.drop_bad_record),
        ("unknown_label", counters.drop_unknown_label),
        ("foreign_flow", counters.drop_foreign_flow),
    ];
    all.into_iter().filter(|(_, count)| *count > 0).collect()
}

fn check_dropped(what: &str, bytes: &[u8], reason: &'static str) {
    let mut f = Fixture::new();
    f.frame(bytes);
    assert_eq!(drops(f.core.counters()), [(reason, 1)], "{what}");
    assert_eq!((f.out.tunnel.len(), f.out.lan.len(), f.core.flow_count()), (0, 0, 0), "{what}");
}

/// Returns a SYN with a changed IPv4 header whose checksum is valid again.
fn changed_header(change: impl Fn(&mut [u8])) -> Vec<u8> {
    let mut packet = tcp_packet(CLIENT, VIP, Tcp::SYN, &[]);
    change(&mut packet);
    packet[10..12].fill(0);
    let sum = csp_wire::checksum::checksum(&packet[..20]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    ip_frame(&packet)
}

#[test]
fn bad_frames_are_dropped_by_reason() {
    let good = ip_frame(&tcp_packet(CLIENT, VIP, Tcp::SYN, b"x"));
    let flip = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 0x10;
        bytes
    };
    check_dropped("no Ethernet header", &good[..13], "malformed");
    check_dropped("cut in the IP header", &good[..30], "malformed");
    check_dropped("cut in the TCP header", &good[..50], "malformed");
    check_dropped("cut in the data", &good[..54], "malformed");
    check_dropped("for another host", &flip(3), "not_ours");
    check_dropped(
        "from a group",
        &{
            let mut bytes = good.clone();
            bytes[6] |= 1;
            bytes
        },
        "malformed",
    );
    check_dropped(
        "a VLAN tag",
        &frame(CLIENT_MAC, OUR_MAC, EtherType::Ipv4, &[])[..12]
            .iter()
            .copied()
            .chain([0x81, 0, 0, 1, 8, 0])
            .collect::<Vec<_>>(),
        "protocol",
    );
    check_dropped("IP checksum", &flip(26), "bad_checksum");
    check_dropped("TCP checksum", &flip(50), "bad_checksum");
    check_dropped("TCP data", &flip(54), "bad_checksum");
    check_dropped("a fragment of 21 bytes", &changed_header(|p| p[6] = 0x20), "fragment");
    check_dropped("UDP", &changed_header(|p| p[9] = 17), "protocol");
    check_dropped("to another address", &changed_header(|p| p[19] = 7), "not_ours");
    check_dropped("from loopback", &changed_header(|p| p[12] = 127), "malformed");
    check_dropped("from broadcast", &changed_header(|p| p[12..16].fill(255)), "malformed");
    check_dropped(
        "from ourselves",
        &changed_header(|p| p[12..16].copy_from_slice(&[10, 76, 0, 100])),
        "malformed",
    );
    check_dropped("no IP version", &changed_header(|p| p[0] = 0x75), "malformed");
    check_dropped("IP header too short", &changed_header(|p| p[0] = 0x44), "malformed");
}

#[test]
fn source_quench_is_discarded() {
    // RFC 9293 MUST-55, RFC 6633
    let mut f = Fixture::new();
    f.establish(label(1));
    let quoted = tcp_packet(VIP, CLIENT, Tcp::ACK, &[]);
    let mut message = [&[4, 0, 0, 0, 0, 0, 0, 0], &quoted[..28]].concat();
    let sum = csp_wire::checksum::checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let (router, vip) = ("10.76.0.7".parse().unwrap(), "10.76.0.100".parse().unwrap());
    f.frame(&ip_frame(&ip_packet(router, vip, 1, &message)));
    assert_eq!(drops(f.core.counters()), [("protocol", 1)]);
    assert_eq!((f.out.tunnel.len(), f.out.lan.len()), (0, 0));
}

#[test]
fn bad_records_are_dropped_by_reason() {
    let good = tcp_packet(VIP, CLIENT, Tcp::ACK, &[]);
    let other_port = tcp_bytes("10.76.0.100:81", CLIENT, Tcp::ACK, &[]);
    let (udp, syn) =
        (ip_packet("10.76.0.100".parse().unwrap(), "10.76.0.1".parse().unwrap(), 17, &[0; 20]), &good);
    for (what, record, reason) in [
        ("a short segment", compacted(label(1), &good[20..39]), "bad_record"),
        ("a segment of another port", compacted(label(1), &other_port), "bad_record"),
        ("no TCP", whole(label(1), &udp), "bad_record"),
        ("half a packet", whole(label(1), &good[..30]), "bad_record"),
        ("an ICMP error", Record { kind: RecordKind::IcmpError, ..whole(label(1), &good) }, "bad_record"),
        ("a label without FLOW_NEW", whole(label(2), syn), "unknown_label"),
        ("the end of nothing", Record::flow_end(label(2), 0), "unknown_label"),
    ] {
        let mut f = Fixture::new();
        f.establish(label(1));
        f.record(record);
        assert_eq!(drops(f.core.counters()), [(reason, 1)], "{what}");
        assert_eq!((f.out.lan.len(), f.core.label_count()), (0, 1), "{what}");
    }
}

#[test]
fn records_of_unknown_proxies_and_ports_do_no_harm() {
    let mut f = Fixture::new();
    let packet = tcp_packet(VIP, CLIENT, Tcp::SYN, &[]);
    let record = Record { flags: Flags::FLOW_NEW, ..whole(label(1), &packet) };
    f.core.on_record(f.now, ProxyId(999), &record, &mut f.out);
    f.core.proxy_up(ProxyId(999), "pn-9".parse().unwrap(), 1);
    f.core.proxy_down(ProxyId(999));
    let bytes = ip_frame(&tcp_packet(CLIENT, VIP, Tcp::SYN, &[]));
    f.core.on_frame(f.now, PortId(9), &csp_wire::offload::Frame::plain(&bytes), &mut f.out);
    assert_eq!((f.core.flow_count(), f.out.lan.len(), f.out.tunnel.len()), (0, 0, 0));
}

/// The first 24 bytes of a segment, behind a fragment header.
fn first_fragment_v6() -> Vec<u8> {
    let mut packet = tcp_packet(CLIENT6, VIP6, Tcp::ACK, b"abcd");
    let next = std::mem::replace(&mut packet[6], 44);
    packet[5] += 8;
    packet.splice(40..40, [next, 0, 0, 1, 0, 0, 0, 9]);
    packet
}

/// Generates frames that are almost valid: a valid one, with some bytes changed, then truncated.
fn near_good() -> impl Strategy<Value = Vec<u8>> {
    let good = prop_oneof![
        Just(ip_frame(&tcp_packet(CLIENT, VIP, Tcp::SYN, b"abc"))),
        Just(ip_frame(&tcp_packet(CLIENT6, VIP6, Tcp::ACK, b"abc"))),
        Just(ip_frame(&ip_packet("10.76.0.1".parse().unwrap(), "10.76.0.100".parse().unwrap(), 1, &[8; 40]))),
        Just(ip_frame(&first_fragment_v6())),
        Just(changed_header(|p| p[6] = 0x20)),
        Just(changed_header(|p| p[7] = 3)),
        Just(frame(CLIENT_MAC, OUR_MAC, EtherType::Arp, &[0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1])),
    ];
    (
        good,
        prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        any::<prop::sample::Index>(),
    )
        .prop_map(|(mut bytes, changes, cut)| {
            for (at, value) in changes {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            let len = bytes.len() - cut.index(bytes.len()) / 4;
            bytes.truncate(len);
            bytes
        })
}

fn any_offload() -> impl Strategy<Value = (FrameChecksum, Option<Gso>)> {
    let checksum = prop_oneof![
        Just(FrameChecksum::Unchecked),
        Just(FrameChecksum::Verified),
        any::<(u16, u16)>().prop_map(|(start, offset)| FrameChecksum::Partial { start, offset }),
    ];
    let gso = |segment_size| Gso { kind: GsoKind::TcpV4, segment_size, cwr: false };
    (checksum, prop::option::of((0u16..4).prop_map(gso)))
}

fn any_record() -> impl Strategy<Value = (Vec<u8>, u32, u8, u8, u16)> {
    let payload = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..80),
        Just(tcp_packet(VIP, CLIENT, Tcp::SYN | Tcp::ACK, b"data")),
        Just(tcp_packet(CLIENT, VIP, Tcp::ACK, b"data")),
        Just(tcp_bytes(VIP, CLIENT, Tcp::ACK, &[9; 3000])),
    ];
    (payload, 0u32..4, 0u8..16, 0u8..4, prop_oneof![Just(0u16), 1u16..3000])
}

proptest! {
    #[test]
    fn whatever_comes_nothing_panics_and_every_frame_is_accounted_for(
        frames in prop::collection::vec((near_good(), any_offload()), 1..20),
        records in prop::collection::vec(any_record(), 0..20),
    ) {
        let mut f = Fixture::new();
        f.establish(label(1));
        for (bytes, (checksum, gso)) in &frames {
            f.offloaded(bytes, *checksum, *gso);
        }
        for (payload, index, flags, kind, segment_size) in &records {
            let all = [Flags::CHECKSUM_VERIFIED, Flags::COMPACTED, Flags::FLOW_NEW, Flags::FLOW_END];
            let set = |bits: u8| (0..4).filter(|b| bits >> b & 1 == 1).fold(Flags::NONE, |s, b| s | all[b]);
            let record = Record {
                kind: [RecordKind::Segment, RecordKind::Segment, RecordKind::FlowEnd, RecordKind::Unknown]
                    [usize::from(*kind)],
                label: if *index == 0 { FlowLabel::NONE } else { label(*index) },
                worker: 0,
                flags: set(*flags),
                ecn: Ecn::NotEct,
                age: Age::ZERO,
                coalesced: 0,
                segment_size: *segment_size,
                payload,
            };
            f.record(record);
        }
        f.timeout(seconds(100_000));
        f.timeout(seconds(200_000));
        prop_assert_eq!((f.core.flow_count(), f.core.label_count()), (0, 0));
        prop_assert_eq!(f.core.next_timeout(), None);
    }

    #[test]
    fn random_bytes_are_harmless(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut f = Fixture::new();
        f.frame(&bytes);
        let mut addressed = [&OUR_MAC.0[..], &CLIENT_MAC.0, &[8, 0]].concat();
        addressed.extend_from_slice(&bytes);
        f.frame(&addressed);
        prop_assert_eq!(f.core.counters().frames_in, 2);
    }
}
