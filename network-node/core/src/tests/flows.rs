//! The life of a flow: handshake, label, compaction, segmentation, end, expiry.

use csp_types::{FlowLabel, MacAddr, TraceKind};
use csp_wire::Ecn;
use csp_wire::ethernet::EtherType;
use csp_wire::icmp::QuotedTcp;
use csp_wire::offload::{Checksum as FrameChecksum, Gso, GsoKind};
use csp_wire::tcp::Flags as Tcp;
use csp_wire::tunnel::{Age, Flags, Record, RecordKind};

use super::fixture::*;
use crate::*;

#[test]
fn a_first_segment_travels_whole_and_without_label() {
    let mut f = Fixture::new();
    let packet = tcp_packet(CLIENT, VIP, Tcp::SYN, &[]);
    // Ethernet pads short frames; the padding is not forwarded.
    let mut padded = ip_frame(&packet);
    padded.resize(60, 0xee);
    f.frame(&padded);
    let sent = f.sent();
    assert_eq!((sent.label, sent.flags), (FlowLabel::NONE, Flags::CHECKSUM_VERIFIED));
    assert_eq!((sent.proxy, sent.worker, sent.age, sent.coalesced), (ProxyId(0), 0, Age::ZERO, 1));
    assert_eq!(sent.payload, packet);
    assert_eq!((f.core.flow_count(), f.core.label_count()), (1, 0));
}

#[test]
fn a_bound_flow_is_compacted_both_ways() {
    let mut f = Fixture::new();
    f.client_sends(Tcp::SYN, &[]);
    f.out.tunnel.clear();
    f.proxy_binds(label(9));
    let (frame, offload) = f.transmitted();
    assert_eq!(&frame[..12], &[CLIENT_MAC.0, OUR_MAC.0].concat()[..], "to where the SYN came from");
    assert_eq!(check_tcp_frame(&frame, offload), (client_tuple(), Tcp::SYN | Tcp::ACK, vec![]));

    f.client_sends(Tcp::ACK, b"GET /");
    let sent = f.sent();
    assert_eq!((sent.label, sent.ecn), (label(9), Ecn::Ect0));
    assert_eq!(sent.flags, Flags::CHECKSUM_VERIFIED | Flags::COMPACTED);
    assert_eq!(sent.payload[20..], *b"GET /");

    let answer = tcp_bytes(VIP, CLIENT, Tcp::ACK, b"200 OK");
    f.record(Record { ecn: Ecn::Ect0, ..compacted(label(9), &answer) });
    let (frame, offload) = f.transmitted();
    assert_eq!(check_tcp_frame(&frame, offload), (client_tuple(), Tcp::ACK, b"200 OK".to_vec()));
    assert_eq!((frame[15] & 3, frame[22], frame[20] >> 6), (Ecn::Ect0.bits(), 64, 1), "ECN, TTL and DF");

    let kinds: Vec<TraceKind> = f.core.trace().iter().map(|e| e.kind).collect();
    let expected =
        [TraceKind::LanIn, TraceKind::LabelBound, TraceKind::LanOut, TraceKind::LanIn, TraceKind::LanOut];
    assert_eq!(kinds, expected);
    let auxes: Vec<u32> = f.core.trace().iter().map(|e| e.aux).collect();
    assert!(
        auxes.iter().all(|aux| *aux == auxes[0]),
        "one tuple hash joins what came before the label to it"
    );
}

#[test]
fn congestion_marks_pass_both_ways() {
    let mut f = Fixture::new();
    for (client, vip, at) in [(CLIENT, VIP, 1), (CLIENT6, VIP6, 2)] {
        f.frame(&ip_frame(&tcp_packet(client, vip, Tcp::SYN, &[])));
        f.record(Record {
            flags: Flags::FLOW_NEW,
            ..whole(label(at), &tcp_packet(vip, client, Tcp::SYN, &[]))
        });
        f.out.tunnel.clear();
        f.out.lan.clear();
        for ecn in [Ecn::NotEct, Ecn::Ect0, Ecn::Ect1, Ecn::Ce] {
            f.frame(&ip_frame(&marked(tcp_packet(client, vip, Tcp::ACK, b"GET /"), ecn)));
            assert_eq!(f.sent().ecn, ecn);
            // Segmented and in one piece; labelled and whole.
            let answer = tcp_bytes(vip, client, Tcp::ACK | Tcp::CWR, &[7; 3000]);
            f.record(Record { ecn, segment_size: 1000, ..compacted(label(at), &answer) });
            f.record(Record { ecn, ..compacted(label(at), &answer[..1000]) });
            f.record(whole(label(at), &marked(tcp_packet(vip, client, Tcp::ACK, b"200 OK"), ecn)));
            assert_eq!(f.out.lan.len(), 3);
            let cwr = check_tcp_frame(&f.out.lan[0].0, f.out.lan[0].1).1.contains(Tcp::CWR);
            assert!(cwr && f.out.lan[0].1.is_some_and(|offload| offload.gso.is_some_and(|gso| gso.cwr)));
            assert!(f.out.lan.drain(..).all(|(frame, _)| ecn_of(&frame[14..]) == ecn), "{ecn:?} over {vip}");
        }
    }
}

#[test]
fn an_ipv6_flow_works_alike() {
    let mut f = Fixture::new();
    f.frame(&ip_frame(&tcp_packet(CLIENT6, VIP6, Tcp::SYN, &[])));
    assert_eq!(f.sent().payload.len(), 60);
    let packet = tcp_packet(VIP6, CLIENT6, Tcp::SYN | Tcp::ACK, &[]);
    f.record(Record { flags: Flags::FLOW_NEW, ..whole(label(3), &packet) });
    let (frame, offload) = f.transmitted();
    let (tuple, flags, _) = check_tcp_frame(&frame, offload);
    assert_eq!((tuple.remote.to_string().as_str(), flags), (CLIENT6, Tcp::SYN | Tcp::ACK));
    let answer = tcp_bytes(VIP6, CLIENT6, Tcp::ACK, &[7; 3000]);
    f.record(Record { segment_size: 1000, ..compacted(label(3), &answer) });
    let (frame, offload) = f.transmitted();
    assert_eq!(check_tcp_frame(&frame, offload).2, [7; 3000]);
    assert_eq!(offload.unwrap().gso, Some(Gso { kind: GsoKind::TcpV6, segment_size: 1000, cwr: false }));
}

#[test]
fn ip_options_are_ignored() {
    // Record route, timestamp and an unknown option (RFC 9293 MUST-50).
    for option in [[7, 7, 4, 0, 0, 0, 0, 0], [68, 8, 5, 0, 0, 0, 0, 0], [0x9e, 4, 1, 2, 0, 0, 0, 0]] {
        let mut f = Fixture::new();
        f.establish(label(1));
        let plain = tcp_packet(CLIENT, VIP, Tcp::ACK, b"GET /");
        let mut packet = [&plain[..20], &option, &plain[20..]].concat();
        (packet[0], packet[3]) = (0x47, packet[3] + 8);
        packet[10..12].fill(0);
        let sum = csp_wire::checksum::checksum(&packet[..28]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        f.frame(&ip_frame(&packet));
        assert_eq!(f.sent().payload, plain[20..]);
    }
}

#[test]
fn a_coalesced_frame_carries_its_packet_count() {
    let mut f = Fixture::new();
    f.establish(label(1));
    let packet = tcp_packet(CLIENT, VIP, Tcp::ACK, &[1; 5000]);
    let gso = Some(Gso { kind: GsoKind::TcpV4, segment_size: 1448, cwr: false });
    f.offloaded(&ip_frame(&packet), FrameChecksum::Partial { start: 34, offset: 16 }, gso);
    let sent = f.sent();
    assert_eq!((sent.coalesced, sent.segment_size), (4, 1448));
    assert_eq!((f.core.counters().packets_in, f.core.counters().bytes_in), (5, 5000));
}

/// Returns a frame from this Ethernet address with the client's addresses: an empty segment with these
/// numbers.
fn segment_from(f: &mut Fixture, mac: MacAddr, (seq, ack): (u32, u32)) {
    let mut packet = tcp_packet(CLIENT, VIP, Tcp::ACK, &[]);
    packet[24..28].copy_from_slice(&seq.to_be_bytes());
    packet[28..32].copy_from_slice(&ack.to_be_bytes());
    let bytes = frame(mac, OUR_MAC, EtherType::Ipv4, &packet);
    f.offloaded(&bytes, FrameChecksum::Partial { start: 34, offset: 16 }, None);
    f.out.tunnel.clear();
}

#[test]
fn answers_follow_a_client_that_moved_and_no_stranger_with_its_addresses() {
    let (stranger, moved) = (MacAddr([2, 0, 0, 0, 0, 0x66]), MacAddr([2, 0, 0, 0, 0, 2]));
    let mut f = Fixture::new();
    f.establish(label(9));
    let answer_goes_to = |f: &mut Fixture| {
        let answer = tcp_bytes(VIP, CLIENT, Tcp::ACK, b"200 OK");
        f.record(compacted(label(9), &answer));
        MacAddr(f.transmitted().0[..6].try_into().unwrap())
    };
    // The proxy has sent 1000 (its SYN) and acknowledged up to 5000.
    for numbers in [(5000, 4_000_000_000), (3_000_000_000, 1001), (5000, 2000)] {
        segment_from(&mut f, stranger, numbers);
        assert_eq!(answer_goes_to(&mut f), CLIENT_MAC, "{numbers:?}");
    }
    let mut syn = ip_frame(&tcp_packet(CLIENT, VIP, Tcp::SYN, &[]));
    syn[6..12].copy_from_slice(&stranger.0);
    f.frame(&syn);
    f.out.tunnel.clear();
    assert_eq!(answer_goes_to(&mut f), CLIENT_MAC, "a SYN moves no connection");
    assert_eq!(f.core.counters().moves_doubted, 4);
    segment_from(&mut f, moved, (5000, 1001));
    assert_eq!(answer_goes_to(&mut f), moved);
}

#[test]
fn large_segments_are_cut_by_the_port_and_oversized_ones_dropped() {
    let mut f = Fixture::new();
    f.establish(label(1));
    let large = tcp_bytes(VIP, CLIENT, Tcp::ACK, &vec![5; 60_000]);
    f.record(Record { segment_size: 1448, ..compacted(label(1), &large) });
    let (frame, offload) = f.transmitted();
    assert_eq!(offload.unwrap().gso, Some(Gso { kind: GsoKind::TcpV4, segment_size: 1448, cwr: false }));
    assert_eq!(check_tcp_frame(&frame, offload).2.len(), 60_000);
    // Without a segment size, with one beyond the MTU, or beyond an IP packet, nothing is transmitted.
    let too_large = tcp_bytes(VIP, CLIENT, Tcp::ACK, &vec![5; 65_530]);
    for (segment_size, bytes) in [(0, &large), (1461, &large), (1448, &too_large)] {
        f.record(Record { segment_size, ..compacted(label(1), bytes) });
    }
    assert_eq!((f.out.lan.len(), f.core.counters().drop_too_long), (0, 3));
}

#[test]
fn the_proxy_learns_that_a_segment_was_longer_than_the_ports_mtu() {
    let mut f = Fixture::new();
    for (client, vip, at) in [(CLIENT, VIP, 1), (CLIENT6, VIP6, 2)] {
        f.frame(&ip_frame(&tcp_packet(client, vip, Tcp::SYN, &[])));
        let answer = tcp_packet(vip, client, Tcp::SYN | Tcp::ACK, &[]);
        f.record(Record { flags: Flags::FLOW_NEW, ..whole(label(at), &answer) });
        f.out.tunnel.clear();
        f.record(Record {
            segment_size: 1461,
            ..compacted(label(at), &tcp_bytes(vip, client, Tcp::ACK, &[5; 3000]))
        });
        let sent = f.sent();
        assert_eq!((sent.kind, sent.label), (RecordKind::IcmpError, label(at)));
        let quoted = if at == 1 {
            let packet = csp_wire::ipv4::Packet::parse(&sent.payload).unwrap();
            match csp_wire::icmp::v4::Message::parse(packet.payload()) {
                Ok(csp_wire::icmp::v4::Message::FragmentationNeeded { next_hop_mtu: 1500, quoted }) => {
                    QuotedTcp::parse_v4(quoted).unwrap()
                }
                other => panic!("{other:?}"),
            }
        } else {
            let packet = csp_wire::ipv6::Packet::parse(&sent.payload).unwrap();
            match csp_wire::icmp::v6::Message::parse(&packet) {
                Ok(csp_wire::icmp::v6::Message::PacketTooBig { mtu: 1500, quoted }) => {
                    QuotedTcp::parse_v6(quoted).unwrap()
                }
                other => panic!("{other:?}"),
            }
        };
        let (source, destination) = (vip.parse().unwrap(), client.parse().unwrap());
        assert_eq!(quoted, QuotedTcp { source, destination, sequence: 1000 });
    }
    assert_eq!(f.core.counters().path_errors_reported, 2);
}

#[test]
fn flow_end_frees_the_label_after_the_last_segment() {
    let mut f = Fixture::new();
    f.establish(label(1));
    let last = tcp_bytes(VIP, CLIENT, Tcp::FIN | Tcp::ACK, &[]);
    f.record(Record { flags: Flags::COMPACTED | Flags::FLOW_END, ..compacted(label(1), &last) });
    f.transmitted();
    assert_eq!((f.core.label_count(), f.core.lingering_count()), (0, 1));
    // The client's last ACK is sent whole to the same worker, which holds TIME-WAIT.
    f.client_sends(Tcp::ACK, &[]);
    assert_eq!(f.sent().label, FlowLabel::NONE);
    // The label is no longer bound.
    f.record(compacted(label(1), &last));
    assert_eq!(f.core.counters().drop_unknown_label, 1);
    f.timeout(seconds(15));
    assert_eq!((f.core.flow_count(), f.core.next_timeout()), (0, None));
    assert_eq!((f.core.counters().labels_bound, f.core.counters().labels_ended), (1, 1));
    assert_eq!(f.core.counters().flows_expired, 0, "an ended flow did not expire");
}

#[test]
fn flow_end_without_a_segment_ends_the_flow_too() {
    let mut f = Fixture::new();
    f.establish(label(1));
    f.record(Record::flow_end(label(1), 0));
    assert_eq!((f.core.label_count(), f.out.lan.len()), (0, 0));
    assert_eq!(f.core.trace().iter().last().unwrap().kind, TraceKind::LabelEnded);
}

#[test]
fn a_tuple_used_again_is_bound_to_its_new_label() {
    let mut f = Fixture::new();
    f.establish(label(1));
    f.record(Record::flow_end(label(1), 0));
    f.client_sends(Tcp::SYN, &[]);
    assert_eq!(f.sent().label, FlowLabel::NONE);
    f.proxy_binds(label(2));
    f.client_sends(Tcp::ACK, &[]);
    assert_eq!(f.sent().label, label(2));
    assert_eq!(f.core.flow_count(), 1);
}

#[test]
fn a_retransmitted_answer_binds_once() {
    let mut f = Fixture::new();
    f.establish(label(1));
    f.proxy_binds(label(1));
    assert_eq!((f.core.label_count(), f.core.counters().labels_bound, f.out.lan.len()), (1, 1, 1));
}

#[test]
fn a_label_of_another_generation_is_stale() {
    let mut f = Fixture::new();
    f.establish(FlowLabel::new(5, 1));
    let bytes = tcp_bytes(VIP, CLIENT, Tcp::ACK, &[]);
    f.record(compacted(FlowLabel::new(5, 2), &bytes));
    f.record(Record { worker: 1, ..compacted(FlowLabel::new(5, 1), &bytes) });
    f.record(compacted(FlowLabel::new(6, 1), &bytes));
    let counters = f.core.counters();
    assert_eq!((counters.drop_stale_label, counters.drop_unknown_label, f.out.lan.len()), (2, 1, 0));
}

#[test]
fn a_label_given_to_another_flow_leaves_the_first() {
    let mut f = Fixture::new();
    f.establish(FlowLabel::new(5, 1));
    let other = "10.76.0.2:1";
    f.frame(&ip_frame(&tcp_packet(other, VIP, Tcp::SYN, &[])));
    let packet = tcp_packet(VIP, other, Tcp::SYN | Tcp::ACK, &[]);
    f.record(Record { flags: Flags::FLOW_NEW, ..whole(FlowLabel::new(5, 2), &packet) });
    assert_eq!((f.core.label_count(), f.core.flow_count()), (1, 2));
    f.out.tunnel.clear();
    f.client_sends(Tcp::ACK, &[]);
    assert_eq!(f.sent().label, FlowLabel::NONE);
}

#[test]
fn unanswered_and_silent_flows_expire() {
    let mut f = Fixture::new();
    f.client_sends(Tcp::SYN, &[]);
    f.frame(&ip_frame(&tcp_packet("10.76.0.2:1", VIP, Tcp::SYN, &[])));
    f.proxy_binds(label(1));
    assert_eq!(f.core.next_timeout(), Some(seconds(70)));
    f.timeout(seconds(69));
    assert_eq!(f.core.flow_count(), 2);
    f.timeout(seconds(70));
    assert_eq!((f.core.flow_count(), f.core.counters().flows_expired), (1, 1));
    f.timeout(seconds(3610));
    assert_eq!((f.core.flow_count(), f.core.label_count(), f.core.counters().flows_expired), (0, 0, 2));
}

#[test]
fn a_reset_without_label_goes_back_where_the_segment_came_from() {
    let mut f = Fixture::new();
    f.client_sends(Tcp::ACK, b"stray");
    assert_eq!(f.sent().label, FlowLabel::NONE);
    let reset = tcp_packet(VIP, CLIENT, Tcp::RST, &[]);
    f.record(whole(FlowLabel::NONE, &reset));
    let (frame, offload) = f.transmitted();
    assert_eq!(frame[..6], CLIENT_MAC.0);
    assert_eq!(check_tcp_frame(&frame, offload).1, Tcp::RST);
}

#[test]
fn an_icmp_error_about_a_flow_goes_to_its_proxy() {
    let mut f = Fixture::new();
    f.establish(label(4));
    let quoted = tcp_packet(VIP, CLIENT, Tcp::ACK, &[]);
    let message =
        csp_wire::icmp::v4::Message::FragmentationNeeded { next_hop_mtu: 1400, quoted: &quoted[..28] };
    let mut bytes = vec![0; message.len()];
    message.emit(&mut bytes).unwrap();
    let router = "10.76.0.7".parse().unwrap();
    let packet = ip_packet(router, "10.76.0.100".parse().unwrap(), 1, &bytes);
    f.frame(&ip_frame(&packet));
    let sent = f.sent();
    assert_eq!((sent.kind, sent.label, sent.payload), (RecordKind::IcmpError, label(4), packet));
}

#[test]
fn a_flows_trace_has_its_segments_without_label_and_no_other_flows() {
    let mut f = Fixture::new();
    f.establish(label(1));
    let last = tcp_bytes(VIP, CLIENT, Tcp::FIN | Tcp::ACK, &[]);
    f.record(Record { flags: Flags::COMPACTED | Flags::FLOW_END, ..compacted(label(1), &last) });
    f.client_sends(Tcp::ACK, &[]);
    f.establish(label(2));
    let flags = |label| f.core.flow_trace(label).iter().map(|e| (e.kind, e.tcp_flags)).collect::<Vec<_>>();
    let (syn, bound, answer) = ((TraceKind::LanIn, 2), (TraceKind::LabelBound, 0), (TraceKind::LanOut, 0x12));
    let end = [(TraceKind::LanOut, 0x11), (TraceKind::LabelEnded, 0), (TraceKind::LanIn, 0x10)];
    assert_eq!(flags(label(1)), [&[syn, bound, answer][..], &end].concat());
    assert_eq!(flags(label(2)), [syn, bound, answer]);
    assert!(f.core.flow_trace(label(1)).iter().all(|e| e.label == label(1)));
    assert_eq!(f.core.flow_trace(label(3)), []);
}

#[test]
fn a_flood_of_syns_answered_without_labels_leaves_room_for_clients() {
    let config =
        CoreConfig { flows_max: 64, ..CoreConfig::new(vec![PortConfig::new(OUR_MAC, 1500)], (1, 2)) };
    let mut f = Fixture::with(config);
    f.establish(label(1));
    let flood = |f: &mut Fixture, from: u32| {
        for n in from..from + 1_000 {
            let [_, a, b, c] = n.to_be_bytes();
            let stranger = format!("10.{a}.{b}.{c}:7");
            f.frame(&ip_frame(&tcp_packet(&stranger, VIP, Tcp::SYN, &[])));
            let answer = tcp_packet(VIP, &stranger, Tcp::SYN | Tcp::ACK, &[]);
            f.record(whole(FlowLabel::NONE, &answer));
        }
        f.out.tunnel.clear();
        f.out.lan.clear();
    };
    flood(&mut f, 0);
    assert_eq!((f.core.flow_count(), f.core.label_count()), (33, 1), "half of the table");

    // A client during the flood: its SYN, the proxy's cookie without a label, more flood, the client's
    // acknowledgement.
    let client = "10.76.0.2:41000";
    f.frame(&ip_frame(&tcp_packet(client, VIP, Tcp::SYN, &[])));
    assert!(f.sent().label.is_none());
    f.record(whole(FlowLabel::NONE, &tcp_packet(VIP, client, Tcp::SYN | Tcp::ACK, &[])));
    let (frame, offload) = f.transmitted();
    let (tuple, flags, _) = check_tcp_frame(&frame, offload);
    assert_eq!((tuple.remote, flags), (client.parse().unwrap(), Tcp::SYN | Tcp::ACK));
    flood(&mut f, 5_000);
    f.frame(&ip_frame(&tcp_packet(client, VIP, Tcp::ACK, b"GET")));
    let sent = f.sent();
    assert!(sent.label.is_none() && !sent.flags.contains(Flags::COMPACTED), "whole, as the SYN was");
    let answer = tcp_packet(VIP, client, Tcp::ACK, &[]);
    f.record(Record { flags: Flags::FLOW_NEW, ..whole(label(2), &answer) });
    f.out.lan.clear();
    f.frame(&ip_frame(&tcp_packet(client, VIP, Tcp::ACK, b" /")));
    assert_eq!((f.sent().label, f.core.label_count()), (label(2), 2));
}
