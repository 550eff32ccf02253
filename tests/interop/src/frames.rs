//! Frames of the engine's host: the network node's work between a LAN port and the tunnel, in this process.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use csp_lan::{Checksum as FrameChecksum, Frame, Gso, GsoKind, LanTransmitter, TransmitError, TxOffload};
use csp_tcp::Transmit;
use csp_types::{FourTuple, MacAddr};
use csp_wire::checksum::Checksum;
use csp_wire::ethernet::{self, EtherType};
use csp_wire::tcp::{self, Segment};
use csp_wire::{Ecn, arp, ipv4};

const TTL: u8 = 64;
const CHECKSUM_AT: usize = 16;
const TCP_AT: usize = ethernet::HEADER_LEN + ipv4::HEADER_LEN;

/// A received frame.
#[derive(Debug)]
pub enum Received<'a> {
    /// A TCP segment.
    Segment {
        /// Its addresses; `local` is the engine's.
        tuple: FourTuple,
        /// The sender's Ethernet address.
        mac: MacAddr,
        /// The ECN field.
        ecn: Ecn,
        /// Header and payload.
        segment: Segment<'a>,
    },
    /// An ARP request for the host's address.
    ArpRequest {
        /// The sender's Ethernet address.
        mac: MacAddr,
        /// The sender's IP address.
        ip: Ipv4Addr,
    },
    /// A frame that does not concern the host.
    Other,
    /// A segment with a wrong checksum, or a frame that cannot be parsed.
    Malformed,
}

/// Parses a frame received by the host with address `own`.
pub fn read<'a>(frame: &Frame<'a>, own: Ipv4Addr) -> Received<'a> {
    let Ok(ethernet) = ethernet::Frame::parse(frame.bytes) else { return Received::Malformed };
    match ethernet.ether_type() {
        Some(EtherType::Arp) => match arp::Packet::parse(ethernet.payload()) {
            Ok(packet) if packet.operation() == arp::Operation::Request && packet.target_ip() == own => {
                Received::ArpRequest { mac: packet.sender_mac(), ip: packet.sender_ip() }
            }
            _ => Received::Other,
        },
        Some(EtherType::Ipv4) => read_ipv4(frame, &ethernet, own),
        _ => Received::Other,
    }
}

fn read_ipv4<'a>(frame: &Frame<'a>, ethernet: &ethernet::Frame<'a>, own: Ipv4Addr) -> Received<'a> {
    let Ok(packet) = ipv4::Packet::parse(ethernet.payload()) else { return Received::Malformed };
    if packet.destination() != own || packet.protocol() != ipv4::PROTOCOL_TCP || packet.is_fragment() {
        return Received::Other;
    }
    let (source, destination) = (IpAddr::V4(packet.source()), IpAddr::V4(own));
    let bytes = packet.payload();
    let Ok(segment) = Segment::parse(bytes) else { return Received::Malformed };
    if frame.checksum == FrameChecksum::Unchecked {
        let sum = Checksum::pseudo(source, destination, ipv4::PROTOCOL_TCP, bytes.len() as u32);
        let valid = sum.is_some_and(|mut sum| {
            sum.add(bytes);
            sum.is_valid()
        });
        if !valid {
            return Received::Malformed;
        }
    }
    let local = SocketAddr::new(destination, segment.destination_port());
    let remote = SocketAddr::new(source, segment.source_port());
    Received::Segment {
        tuple: FourTuple { local, remote },
        mac: ethernet.source(),
        ecn: packet.ecn(),
        segment,
    }
}

/// Answers an ARP request.
pub fn reply_arp(
    port: &mut dyn LanTransmitter,
    (own_mac, own_ip): (MacAddr, Ipv4Addr),
    (mac, ip): (MacAddr, Ipv4Addr),
) {
    let mut frame = [0; ethernet::HEADER_LEN + arp::PACKET_LEN];
    let (head, body) = frame.split_at_mut(ethernet::HEADER_LEN);
    let header = ethernet::Repr { destination: mac, source: own_mac, ether_type: EtherType::Arp };
    let reply = arp::Repr {
        operation: arp::Operation::Reply,
        sender_mac: own_mac,
        sender_ip: own_ip,
        target_mac: mac,
        target_ip: ip,
    };
    if header.emit(head).is_ok() && reply.emit(body).is_ok() {
        let _ = port.transmit(&[&frame], None);
    }
}

/// Transmits a segment of the engine. Checksum and segmentation are left to the kernel, as by the network
/// node.
pub fn transmit(
    port: &mut dyn LanTransmitter,
    (own_mac, peer_mac): (MacAddr, MacAddr),
    (identification, ecn): (u16, Ecn),
    transmit: &Transmit<'_>,
    scratch: &mut Vec<u8>,
) -> Result<(), TransmitError> {
    let Some(header) = &transmit.header else { return Ok(()) };
    let (IpAddr::V4(source), IpAddr::V4(destination)) =
        (transmit.tuple.local.ip(), transmit.tuple.remote.ip())
    else {
        return Ok(());
    };
    let tcp_len = header.header_len() + transmit.payload_len;
    let payload_len = u16::try_from(tcp_len).map_err(|_| TransmitError::TooLong)?;
    let mut head = [0; TCP_AT + tcp::HEADER_LEN_MAX];
    let ether_type = EtherType::Ipv4;
    let frame = ethernet::Repr { destination: peer_mac, source: own_mac, ether_type };
    let packet = ipv4::Repr {
        source,
        destination,
        protocol: ipv4::PROTOCOL_TCP,
        ttl: TTL,
        dscp: 0,
        ecn,
        identification,
        dont_fragment: true,
        payload_len,
    };
    frame.emit(&mut head).map_err(|_| TransmitError::TooLong)?;
    packet.emit(&mut head[ethernet::HEADER_LEN..]).map_err(|_| TransmitError::TooLong)?;
    header.emit(&mut head[TCP_AT..]).ok_or(TransmitError::TooLong)?;
    let pseudo = Checksum::pseudo(source.into(), destination.into(), ipv4::PROTOCOL_TCP, tcp_len as u32);
    let partial = pseudo.ok_or(TransmitError::TooLong)?.partial();
    head[TCP_AT + CHECKSUM_AT..][..2].copy_from_slice(&partial.to_be_bytes());

    let cut = transmit.payload_len > usize::from(transmit.segment_size);
    let cwr = header.flags.contains(tcp::Flags::CWR);
    let gso = cut.then_some(Gso { kind: GsoKind::TcpV4, segment_size: transmit.segment_size, cwr });
    let header_len = TCP_AT + header.header_len();
    let offload = TxOffload {
        checksum_start: TCP_AT as u16,
        checksum_offset: CHECKSUM_AT as u16,
        gso,
        header_len: header_len as u16,
    };
    // The port accepts a limited number of parts; more slices are copied together.
    scratch.clear();
    transmit.payload().for_each(|slice| scratch.extend_from_slice(slice));
    port.transmit(&[&head[..header_len], scratch], Some(offload))
}
