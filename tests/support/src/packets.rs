//! Packets of clients, as a proxy gets them of a network node.

use std::net::Ipv4Addr;

use csp_types::FlowLabel;
use csp_wire::tcp::Repr;
use csp_wire::tunnel::{Age, Flags, Record, RecordKind};
use csp_wire::{Ecn, ipv4};

/// Returns a TCP segment in an IPv4 packet. The network node verifies checksums: that of the segment is 0.
///
/// # Panics
/// The payload does not fit a packet.
#[must_use]
pub fn tcp_packet(source: Ipv4Addr, destination: Ipv4Addr, tcp: &Repr, payload: &[u8]) -> Vec<u8> {
    let payload_len = u16::try_from(tcp.header_len() + payload.len()).expect("it fits a packet");
    let ip = ipv4::Repr {
        source,
        destination,
        protocol: ipv4::PROTOCOL_TCP,
        ttl: 64,
        dscp: 0,
        ecn: Ecn::NotEct,
        identification: 0,
        dont_fragment: true,
        payload_len,
    };
    let mut packet = vec![0; ipv4::HEADER_LEN + tcp.header_len()];
    ip.emit(&mut packet).expect("there is room for the header");
    tcp.emit(&mut packet[ipv4::HEADER_LEN..]).expect("there is room for the header");
    packet.extend_from_slice(payload);
    packet
}

/// Returns the record of the tunnel that carries a whole packet of a flow whose label the network node does
/// not know.
#[must_use]
pub fn record(flags: Flags, packet: &[u8]) -> Record<'_> {
    Record {
        kind: RecordKind::Segment,
        label: FlowLabel::NONE,
        worker: 0,
        flags,
        ecn: Ecn::NotEct,
        age: Age::ZERO,
        coalesced: 0,
        segment_size: 0,
        payload: packet,
    }
}
