//! Builds frames for the LAN: Ethernet and IP headers, and TCP segments whose checksum and segmentation are
//! left to the port.

use std::net::IpAddr;

use csp_types::limits::SEGMENT_PARTS_MAX;
use csp_types::{FourTuple, MacAddr};
use csp_wire::checksum::Checksum;
use csp_wire::ethernet::{self, EtherType};
use csp_wire::offload::{Gso, GsoKind, TxOffload};
use csp_wire::tcp::{self, Segment};
use csp_wire::{Ecn, ipv4, ipv6};

use super::api::{NetworkOutput, PortId};

/// Space for an Ethernet header and the longer IP header.
pub(super) const HEADERS_LEN_MAX: usize = ethernet::HEADER_LEN + ipv6::HEADER_LEN;
/// TTL or hop limit of every packet but neighbour discovery's, which is 255. RFC 9293 §3.1 leaves the value
/// open; 64 is the default of hosts (RFC 1700).
pub(super) const TTL: u8 = 64;

/// The LAN port, and the source and destination addresses of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    pub(super) port: PortId,
    pub(super) source_mac: MacAddr,
    pub(super) destination_mac: MacAddr,
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
}

/// The fields of the IP header other than addresses and lengths.
#[derive(Clone, Copy, Debug)]
pub(super) struct IpFields {
    pub(super) protocol: u8,
    pub(super) ttl: u8,
    pub(super) ecn: Ecn,
    /// IPv4 only.
    pub(super) identification: u16,
}

/// Ethernet and IP header, ready to be followed by the payload.
#[derive(Clone, Copy)]
pub(super) struct Headers {
    bytes: [u8; HEADERS_LEN_MAX],
    len: usize,
}

impl Headers {
    /// Returns `None` if the addresses' families differ or the payload is too long for an IP packet.
    pub(super) fn new(route: &Route, ip: IpFields, payload_len: usize) -> Option<Self> {
        let mut headers = Headers { bytes: [0; HEADERS_LEN_MAX], len: 0 };
        let (frame, packet) = headers.bytes.split_at_mut(ethernet::HEADER_LEN);
        let (ether_type, ip_len) = ip_header(packet, (route.source, route.destination), ip, payload_len)?;
        let (destination, source) = (route.destination_mac, route.source_mac);
        let frame_len = ethernet::Repr { destination, source, ether_type }.emit(frame).ok()?;
        headers.len = frame_len + ip_len;
        Some(headers)
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Writes the header of an IP packet with a payload of `payload_len` bytes. Returns the EtherType of its
/// frames and the header's length; `None` if the families of `source` and `destination` differ or the payload
/// is too long for an IP packet.
pub(super) fn ip_header(
    out: &mut [u8],
    (source, destination): (IpAddr, IpAddr),
    IpFields { protocol, ttl, ecn, identification }: IpFields,
    payload_len: usize,
) -> Option<(EtherType, usize)> {
    let (dscp, payload_len) = (0, u16::try_from(payload_len).ok()?);
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let dont_fragment = true;
            let repr = ipv4::Repr {
                source,
                destination,
                protocol,
                ttl,
                dscp,
                ecn,
                identification,
                dont_fragment,
                payload_len,
            };
            Some((EtherType::Ipv4, repr.emit(out).ok()?))
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let (hop_limit, flow_label) = (ttl, 0);
            let repr =
                ipv6::Repr { source, destination, protocol, hop_limit, dscp, ecn, flow_label, payload_len };
            Some((EtherType::Ipv6, repr.emit(out).ok()?))
        }
        _ => None,
    }
}

/// Why a segment was not passed to the port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SegmentError {
    /// Longer than the MTU, and without a segment size.
    TooLong,
}

/// A segment to be transmitted on the LAN.
pub(super) struct OutSegment<'a> {
    pub(super) segment: Segment<'a>,
    /// TCP header and data, the bytes that `segment` views.
    pub(super) bytes: &'a [u8],
    /// Data that follows them; at most [`SEGMENT_PARTS_MAX`] parts.
    pub(super) more: &'a [&'a [u8]],
    pub(super) ecn: Ecn,
    /// TCP payload per packet, in bytes; 0 if the segment is one packet.
    pub(super) segment_size: u16,
    pub(super) identification: u16,
}

impl OutSegment<'_> {
    /// Bytes of TCP payload.
    pub(super) fn payload_len(&self) -> usize {
        self.segment.payload().len() + self.more.iter().map(|part| part.len()).sum::<usize>()
    }
}

/// Returns whether the MTU has room for the IP header and `tcp_len` bytes of TCP header and payload.
fn fits(mtu: u16, ip_len: usize, tcp_len: usize) -> bool {
    ip_len + tcp_len <= usize::from(mtu)
}

/// Passes a segment to the port, which completes its checksum and segments it.
pub(super) fn segment(
    route: &Route,
    mtu: u16,
    out_segment: &OutSegment<'_>,
    out: &mut impl NetworkOutput,
) -> Result<(), SegmentError> {
    let OutSegment { segment, bytes, more, ecn, segment_size, identification } = out_segment;
    let header_len = segment.header_len();
    let (data, data_len) = (segment.payload(), out_segment.payload_len());
    let ip_len = if route.source.is_ipv4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
    let cut = *segment_size != 0 && data_len > usize::from(*segment_size);
    let piece_len = if cut { usize::from(*segment_size) } else { data_len };
    if !fits(mtu, ip_len, header_len + piece_len) {
        return Err(SegmentError::TooLong);
    }
    let ip = IpFields { protocol: ipv4::PROTOCOL_TCP, ttl: TTL, ecn: *ecn, identification: *identification };
    let headers = Headers::new(route, ip, header_len + data_len).ok_or(SegmentError::TooLong)?;

    let mut tcp_header = [0; tcp::HEADER_LEN_MAX];
    let tcp_header = &mut tcp_header[..header_len];
    tcp_header.copy_from_slice(&bytes[..header_len]);
    let pseudo =
        Checksum::pseudo(route.source, route.destination, ipv4::PROTOCOL_TCP, (header_len + data_len) as u32);
    let partial = pseudo.ok_or(SegmentError::TooLong)?.partial();
    tcp_header[tcp::CHECKSUM_AT..tcp::CHECKSUM_AT + 2].copy_from_slice(&partial.to_be_bytes());

    let kind = if route.source.is_ipv4() { GsoKind::TcpV4 } else { GsoKind::TcpV6 };
    let cwr = segment.flags().contains(tcp::Flags::CWR);
    let tcp_at = headers.as_slice().len();
    let offload = TxOffload {
        checksum_start: tcp_at as u16,
        checksum_offset: tcp::CHECKSUM_AT as u16,
        gso: cut.then_some(Gso { kind, segment_size: *segment_size, cwr }),
        header_len: (tcp_at + header_len) as u16,
    };
    let start = [headers.as_slice(), tcp_header, data];
    if more.is_empty() {
        out.lan(route.port, &start, Some(offload));
    } else {
        gathered(route.port, start, more, offload, out)?;
    }
    Ok(())
}

/// Passes a frame of many parts to the port.
#[inline(never)]
fn gathered(
    port: PortId,
    start: [&[u8]; 3],
    more: &[&[u8]],
    offload: TxOffload,
    out: &mut impl NetworkOutput,
) -> Result<(), SegmentError> {
    let mut parts: [&[u8]; 3 + SEGMENT_PARTS_MAX] = [&[]; 3 + SEGMENT_PARTS_MAX];
    let count = start.len() + more.len();
    let frame = parts.get_mut(..count).ok_or(SegmentError::TooLong)?;
    frame.iter_mut().zip(start.iter().chain(more)).for_each(|(place, part)| *place = part);
    out.lan(port, frame, Some(offload));
    Ok(())
}

/// Returns the route from the cluster's end of a flow to its peer.
pub(super) fn route(tuple: &FourTuple, port: PortId, source_mac: MacAddr, destination_mac: MacAddr) -> Route {
    Route { port, source_mac, destination_mac, source: tuple.local.ip(), destination: tuple.remote.ip() }
}
