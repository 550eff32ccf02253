//! Packets in packets, for servers behind routers: IP in IP (RFC 2003, RFC 2473, RFC 4213 §3), or GUE, which
//! routers and network cards spread over paths and queues by its UDP port (draft-ietf-intarea-gue-09).
//!
//! ```text
//!  Ethernet │ IP: egress address ─▶ server │ (GUE: UDP, 4 bytes) │ the client's packet, TTL one less
//! ```
//! A frame that represents several segments is cut here, and checksums that were left to the port are
//! completed: devices do either for packets in tunnels only if the kernel marks them as such, which raw
//! sockets cannot. Some take the outer protocol for that of the checksum.

use csp_types::{Encapsulation, Transport};
use csp_wire::checksum::Checksum;
use csp_wire::offload::{Gso, TxOffload};
use csp_wire::segmentation::{Part, segment_headers};
use csp_wire::{Ecn, ethernet, ipv4, ipv6, tcp};

use super::super::api::{NetworkOutput, PortId};
use super::super::emit::{Headers, IpFields, Route, TTL};
use super::Arrived;
use super::hops::Outer;
use super::rewrite::{self, Frames, IP_HEADERS_LEN_MAX, Refused, Way};

/// Protocol numbers of IPv4 and IPv6 in IP, and of UDP.
const IPV4_IN_IP: u8 = 4;
const IPV6_IN_IP: u8 = 41;
const UDP: u8 = Transport::Udp.number();
/// Port of GUE (draft-ietf-intarea-gue-09 §7.1).
const GUE_PORT: u16 = 6_080;
/// Routers tell flows apart by the source port, a hash in the dynamic range (§5.6 of the draft).
const SOURCE_PORTS_FROM: u16 = 49_152;
const UDP_HEADER_LEN: usize = 8;
const GUE_HEADER_LEN: usize = 4;
const GUE_LEN: usize = UDP_HEADER_LEN + GUE_HEADER_LEN;
/// Longest start of a packet that is changed here: IP headers and the TCP header.
const HEAD_LEN_MAX: usize = IP_HEADERS_LEN_MAX + tcp::HEADER_LEN_MAX;

/// Returns by how many bytes packets grow.
pub(super) fn overhead(outer: &Outer) -> u16 {
    let ip = if outer.destination.is_ipv4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
    let gue = if outer.encapsulation == Encapsulation::Gue { GUE_LEN } else { 0 };
    (ip + gue) as u16
}

/// Packs frames into packets to a server.
struct Tunnel<'a, O> {
    /// Of the outer packets.
    route: Route,
    encapsulation: Encapsulation,
    /// Of the flow.
    hash: u16,
    out: &'a mut O,
}

/// Sends the packet, of a flow with this hash, to a server in another one. Out of line: packets that go on as
/// they are do not pay for it.
#[inline(never)]
pub(super) fn send(
    arrived: &Arrived<'_>,
    way: &Way,
    (port, outer): (PortId, Outer),
    hash: u16,
    out: &mut impl NetworkOutput,
) -> Result<(), Refused> {
    let Way { source_mac, destination_mac, .. } = *way;
    let Outer { encapsulation, source, destination } = outer;
    let route = Route { port, source_mac, destination_mac, source, destination };
    rewrite::send(arrived, way, &mut Tunnel { route, encapsulation, hash, out })
}

/// A packet that is packed.
struct Inner<'a> {
    head: &'a [u8],
    rest: &'a [u8],
}

impl Inner<'_> {
    fn len(&self) -> usize {
        self.head.len() + self.rest.len()
    }

    fn is_v4(&self) -> bool {
        self.head.first().is_some_and(|byte| byte >> 4 == 4)
    }

    /// The mark of congestion goes into the outer header (RFC 6040 §4.1), from which the other end of the
    /// tunnel takes it.
    fn ecn(&self) -> Ecn {
        match *self.head {
            [_, field, ..] if self.is_v4() => Ecn::from_bits(field),
            [_, field, ..] => Ecn::from_bits(field >> 4),
            _ => Ecn::NotEct,
        }
    }
}

impl<O: NetworkOutput> Frames for Tunnel<'_, O> {
    fn frame(&mut self, head: &[u8], rest: &[u8], offload: Option<TxOffload>) -> Result<(), Refused> {
        let head = head.get(ethernet::HEADER_LEN..).ok_or(Refused::Malformed)?;
        let Some(offload) = offload else { return self.packet(&Inner { head, rest }) };
        let start = usize::from(offload.checksum_start).checked_sub(ethernet::HEADER_LEN);
        let start = start.ok_or(Refused::Malformed)?;
        if let Some(gso) = offload.gso {
            let headers_len = usize::from(offload.header_len).saturating_sub(ethernet::HEADER_LEN);
            return self.segments((head, rest), (gso, start, headers_len));
        }
        let mut whole = [0; HEAD_LEN_MAX];
        let whole = whole.get_mut(..head.len()).ok_or(Refused::Malformed)?;
        whole.copy_from_slice(head);
        complete(whole, rest, start, offload.checksum_offset.into()).ok_or(Refused::Malformed)?;
        self.packet(&Inner { head: whole, rest })
    }
}

/// Completes a checksum whose field, `offset` bytes after `start`, holds the sum of the pseudo header.
fn complete(head: &mut [u8], rest: &[u8], start: usize, offset: usize) -> Option<()> {
    let mut sum = Checksum::new();
    sum.add(head.get(start..)?);
    sum.add(rest);
    *head.get_mut(start + offset..)?.first_chunk_mut()? = not_absent(sum.finish()).to_be_bytes();
    Some(())
}

/// A receiver of UDP takes a field of 0 for no checksum (RFC 768); 0xffff stands for the same sum, in TCP,
/// too.
const fn not_absent(sum: u16) -> u16 {
    if sum == 0 { u16::MAX } else { sum }
}

impl<O: NetworkOutput> Tunnel<'_, O> {
    /// Cuts a packet that represents several segments.
    fn segments(
        &mut self,
        (head, rest): (&[u8], &[u8]),
        (gso, tcp_at, headers_len): (Gso, usize, usize),
    ) -> Result<(), Refused> {
        let mut whole = [0; HEAD_LEN_MAX];
        let whole = whole.get_mut(..headers_len).ok_or(Refused::Malformed)?;
        let (start, options) = whole.split_at_mut_checked(head.len()).ok_or(Refused::Malformed)?;
        let (more, data) = rest.split_at_checked(options.len()).ok_or(Refused::Malformed)?;
        start.copy_from_slice(head);
        options.copy_from_slice(more);
        let size = usize::from(gso.segment_size).max(1);
        let last = data.len().div_ceil(size).checked_sub(1).ok_or(Refused::Malformed)?;
        for (index, data) in data.chunks(size).enumerate() {
            let mut headers = [0; HEAD_LEN_MAX];
            let headers = &mut headers[..headers_len];
            headers.copy_from_slice(whole);
            let tcp_len = headers_len.saturating_sub(tcp_at) + data.len();
            let part = Part { index, tcp_len, last: index == last };
            segment_headers(headers, gso, tcp_at, part).ok_or(Refused::Malformed)?;
            complete(headers, data, tcp_at, tcp::CHECKSUM_AT).ok_or(Refused::Malformed)?;
            self.packet(&Inner { head: headers, rest: data })?;
        }
        Ok(())
    }

    fn packet(&mut self, inner: &Inner<'_>) -> Result<(), Refused> {
        let ip_protocol = if inner.is_v4() { IPV4_IN_IP } else { IPV6_IN_IP };
        let (protocol, gue_len) = match self.encapsulation {
            Encapsulation::IpIp => (ip_protocol, 0),
            Encapsulation::Gue => (UDP, GUE_LEN),
        };
        // Not to be cut on its way: any identification is valid (RFC 6864 §4.1).
        let fields = IpFields { protocol, ttl: TTL, ecn: inner.ecn(), identification: 0 };
        let headers = Headers::new(&self.route, fields, gue_len + inner.len()).ok_or(Refused::Malformed)?;
        let headers = headers.as_slice();
        let gue = match self.encapsulation {
            Encapsulation::IpIp => [0; GUE_LEN],
            Encapsulation::Gue => self.gue(ip_protocol, inner).ok_or(Refused::Malformed)?,
        };
        self.out.lan(self.route.port, &[headers, &gue[..gue_len], inner.head, inner.rest], None);
        Ok(())
    }

    /// Returns the headers of UDP and GUE. Over IPv4 there is no UDP checksum: the packet has its own.
    fn gue(&self, ip_protocol: u8, inner: &Inner<'_>) -> Option<[u8; GUE_LEN]> {
        let len = u16::try_from(GUE_LEN + inner.len()).ok()?;
        let mut bytes = [0; GUE_LEN];
        bytes[..2].copy_from_slice(&(SOURCE_PORTS_FROM | self.hash).to_be_bytes());
        bytes[2..4].copy_from_slice(&GUE_PORT.to_be_bytes());
        bytes[4..6].copy_from_slice(&len.to_be_bytes());
        // Version 0, no further words, an IP packet, no flags.
        bytes[UDP_HEADER_LEN + 1] = ip_protocol;
        if self.route.destination.is_ipv6() {
            let mut sum = Checksum::pseudo(self.route.source, self.route.destination, UDP, len.into())?;
            sum.add(&bytes);
            sum.add(inner.head);
            sum.add(inner.rest);
            bytes[6..8].copy_from_slice(&not_absent(sum.finish()).to_be_bytes());
        }
        Some(bytes)
    }
}
