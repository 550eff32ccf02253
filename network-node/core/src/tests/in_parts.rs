//! Records in parts do what whole ones do.

use csp_types::limits::SEGMENT_PARTS_MAX;
use csp_wire::tcp::Flags as Tcp;
use csp_wire::tunnel::{Flags, Record, RecordKind};

use super::fixture::*;
use crate::*;

/// Gives a record to two nodes that have seen the same, to one of them in parts; returns whether that one
/// took it so. Both must have transmitted, counted and recorded the same.
fn same(nodes: &mut [Fixture; 2], record: Record<'_>, lens: &[usize]) -> bool {
    let [whole, parted] = nodes;
    let (header, mut rest) = record.payload.split_at(record.payload.len().min(20));
    let mut parts = Vec::new();
    for len in lens {
        let (part, behind) = rest.split_at(*len);
        parts.push(part);
        rest = behind;
    }
    parts.push(rest);
    let now = parted.now;
    let without = Record { payload: &[], ..record };
    let taken = parted.core.on_record_in_parts(now, ProxyId(0), &without, (header, &parts), &mut parted.out);
    if !taken {
        parted.record(record);
    }
    whole.record(record);
    assert!(whole.out.lan == parted.out.lan, "other frames");
    assert!(whole.out.tunnel == parted.out.tunnel, "other records");
    assert_eq!(format!("{:?}", whole.core.counters()), format!("{:?}", parted.core.counters()));
    // What was sent, when, and where to: what the node knows about the peer.
    let flow = |node: &Fixture| {
        let index = node.core.labels.get(ProxyId(0), label(9))?;
        Some(format!("{:?}", node.core.flows.flow(index)?))
    };
    assert_eq!(flow(whole), flow(parted));
    assert_eq!(whole.core.trace().iter().collect::<Vec<_>>(), parted.core.trace().iter().collect::<Vec<_>>());
    taken
}

fn bound() -> [Fixture; 2] {
    let mut nodes = [Fixture::new(), Fixture::new()];
    nodes.iter_mut().for_each(|node| node.establish(label(9)));
    nodes
}

#[test]
fn segments_of_a_bound_flow_leave_from_their_parts() {
    let mut nodes = bound();
    let answer = tcp_bytes(VIP, CLIENT, Tcp::ACK, &(0..60_000).map(|n| n as u8).collect::<Vec<_>>());
    let many: Vec<usize> = (1..SEGMENT_PARTS_MAX).map(|_| 400).collect();
    for lens in [&[][..], &[1], &[0, 30_000], &many] {
        let record = Record { segment_size: 1448, ..compacted(label(9), &answer) };
        assert!(same(&mut nodes, record, lens));
    }
    let (frame, offload) = nodes[1].out.lan.last().unwrap();
    assert_eq!(check_tcp_frame(frame, *offload).2, answer[20..], "every byte in its place");
    for end in [Flags::NONE, Flags::FLOW_END] {
        let last = tcp_bytes(VIP, CLIENT, Tcp::ACK | Tcp::FIN, b"");
        let record = compacted(label(9), &last);
        assert!(same(&mut nodes, Record { flags: record.flags | end, ..record }, &[]));
    }
    assert_eq!(nodes[1].core.label_count(), 0, "the last record ended the flow");
}

#[test]
fn what_is_wrong_in_parts_is_dropped_as_it_is_when_whole() {
    let mut nodes = bound();
    let answer = |from, to, len| tcp_bytes(from, to, Tcp::ACK, &vec![7; len]);
    // Too long for the MTU, of other ports, truncated.
    assert!(same(&mut nodes, compacted(label(9), &answer(VIP, CLIENT, 3000)), &[1000]));
    assert!(same(&mut nodes, compacted(label(9), &answer("10.76.0.100:81", CLIENT, 10)), &[3]));
    assert!(same(&mut nodes, compacted(label(9), &answer(VIP, CLIENT, 0)[..12]), &[]));
    let counters = nodes[1].core.counters();
    assert_eq!((counters.drop_too_long, counters.drop_bad_record), (1, 2));
    // Without a flow, with the IP header, and without a segment: the common way takes them.
    let packet = tcp_packet(VIP, CLIENT, Tcp::ACK, b"200 OK");
    assert!(!same(&mut nodes, compacted(label(8), &answer(VIP, CLIENT, 10)), &[3]));
    assert!(!same(&mut nodes, whole(label(9), &packet), &[3]));
    assert!(!same(&mut nodes, Record { kind: RecordKind::FlowEnd, ..compacted(label(9), &[]) }, &[]));
}

/// The proxy has no segment of more parts; if it had, nothing would be cut off.
#[test]
fn a_segment_of_too_many_parts_is_dropped() {
    let [_, mut node] = bound();
    let answer = tcp_bytes(VIP, CLIENT, Tcp::ACK, &vec![7; 2 * SEGMENT_PARTS_MAX]);
    let parts: Vec<&[u8]> = answer[20..].chunks(1).collect();
    let record = Record { segment_size: 10, ..compacted(label(9), &[]) };
    assert!(node.core.on_record_in_parts(
        node.now,
        ProxyId(0),
        &record,
        (&answer[..20], &parts),
        &mut node.out
    ));
    assert_eq!((node.out.lan.len(), node.core.counters().drop_too_long), (0, 1));
}
