//! Packets that the network node originates: replies to ARP, neighbour discovery and ICMP echo for the
//! cluster's addresses, resets for ports that no service uses, announcements of new addresses, and requests
//! for neighbours.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use csp_types::{FourTuple, Instant, MacAddr};
use csp_wire::ethernet::{self, EtherType};
use csp_wire::icmp::v6::{NEIGHBOR_HOP_LIMIT, solicited_node};
use csp_wire::icmp::{v4, v6};
use csp_wire::tcp::{self, Flags, Segment};
use csp_wire::{Ecn, arp, ipv4, ipv6};

use super::api::{NetworkOutput, PortId};
use super::emit::{self, Headers, IpFields, OutSegment, Route, TTL};
use super::neighbour::Request;
use super::node::NetworkCore;

/// Limit of echo replies and resets per second, so that no peer can use the node to reflect a flood.
pub(super) const ANSWERS_PER_SECOND_MAX: u32 = 10_000;
/// Longest ICMP message that is echoed, in bytes; it fits a frame of 9,000 bytes.
const ECHO_LEN_MAX: usize = 9_000;
/// Length of an ND message: 8 bytes, target and one link-layer address.
const NEIGHBOR_LEN_MAX: usize = 32;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Returns the Ethernet address of an IPv6 multicast group (RFC 2464 §7).
fn group_mac(group: Ipv6Addr) -> MacAddr {
    let [.., a, b, c, d] = group.octets();
    MacAddr([0x33, 0x33, a, b, c, d])
}

impl NetworkCore {
    /// Processes an ARP packet: updates the neighbour cache, and answers requests for addresses of the
    /// cluster.
    pub(super) fn on_arp(&mut self, now: Instant, port: PortId, packet: &[u8], out: &mut impl NetworkOutput) {
        let packet = match arp::Packet::parse(packet) {
            Ok(packet) => arp::Repr::parse(&packet),
            Err(error) => return self.count_wire_error(&error),
        };
        let mac = self.port_mac(port);
        if packet.sender_mac == mac {
            return;
        }
        let sender = IpAddr::V4(packet.sender_ip);
        if self.classifier.owns(sender) {
            self.on_foreign_claim(now, sender, out);
        } else if !packet.sender_ip.is_unspecified() {
            self.on_neighbour(now, port, sender, packet.sender_mac, out);
        }
        let asks = packet.operation == arp::Operation::Request && packet.sender_ip != packet.target_ip;
        if asks && self.answers_for(packet.target_ip.into()) {
            self.counters.neighbour_answers += 1;
            send_arp(port, mac, packet.sender_mac, &packet.answer(mac), out);
        }
    }

    /// Processes ICMP over IPv4: answers echo requests, passes errors to the flow's proxy. `packet` is the
    /// whole IP packet.
    pub(super) fn on_icmp_v4(
        &mut self,
        now: Instant,
        reply_route: &Route,
        packet: &[u8],
        message: &[u8],
        out: &mut impl NetworkOutput,
    ) {
        match v4::Message::parse(message) {
            Ok(v4::Message::EchoRequest { identifier, sequence, data }) => {
                let mut answer = [0; ECHO_LEN_MAX];
                let reply = v4::Message::EchoReply { identifier, sequence, data };
                let Ok(len) = reply.emit(&mut answer) else { return self.counters.drop_malformed += 1 };
                self.answer_echo(now, reply_route, ipv4::PROTOCOL_ICMP, &answer[..len], out);
            }
            Ok(
                v4::Message::DestinationUnreachable { quoted, .. }
                | v4::Message::FragmentationNeeded { quoted, .. }
                | v4::Message::TimeExceeded { quoted, .. },
            ) => self.on_icmp_error(now, packet, csp_wire::icmp::QuotedTcp::parse_v4(quoted), out),
            Ok(v4::Message::EchoReply { .. }) => self.counters.drop_protocol += 1,
            Err(error) => self.count_wire_error(&error),
        }
    }

    /// Processes ICMPv6: as ICMP, and neighbour discovery. `packet` is the whole IP packet.
    pub(super) fn on_icmp_v6(
        &mut self,
        now: Instant,
        reply_route: &Route,
        packet: &[u8],
        view: &ipv6::Packet<'_>,
        out: &mut impl NetworkOutput,
    ) {
        match v6::Message::parse(view) {
            Ok(v6::Message::EchoRequest { identifier, sequence, data }) if self.owns_target(view) => {
                let mut answer = [0; ECHO_LEN_MAX];
                let reply = v6::Message::EchoReply { identifier, sequence, data };
                let Ok(len) = reply.emit(view.destination(), view.source(), &mut answer) else {
                    return self.counters.drop_malformed += 1;
                };
                self.answer_echo(now, reply_route, ipv6::PROTOCOL_ICMPV6, &answer[..len], out);
            }
            Ok(
                v6::Message::DestinationUnreachable { quoted, .. }
                | v6::Message::PacketTooBig { quoted, .. }
                | v6::Message::TimeExceeded { quoted, .. }
                | v6::Message::ParameterProblem { quoted, .. },
            ) => self.on_icmp_error(now, packet, csp_wire::icmp::QuotedTcp::parse_v6(quoted), out),
            Ok(v6::Message::NeighborSolicitation { target, source_link }) => {
                self.on_solicitation(now, reply_route, target, source_link, out);
            }
            Ok(v6::Message::NeighborAdvertisement { target, target_link, .. }) => match target_link {
                _ if self.classifier.owns(target.into()) => self.on_foreign_claim(now, target.into(), out),
                Some(mac) => self.on_neighbour(now, reply_route.port, target.into(), mac, out),
                None => {}
            },
            Ok(_) => self.counters.drop_protocol += 1,
            Err(error) => self.count_wire_error(&error),
        }
    }

    fn owns_target(&self, packet: &ipv6::Packet<'_>) -> bool {
        self.classifier.owns(packet.destination().into())
    }

    fn on_solicitation(
        &mut self,
        now: Instant,
        reply_route: &Route,
        target: Ipv6Addr,
        source_link: Option<MacAddr>,
        out: &mut impl NetworkOutput,
    ) {
        if let (false, Some(mac)) = (reply_route.destination.is_unspecified(), source_link) {
            self.on_neighbour(now, reply_route.port, reply_route.destination, mac, out);
        }
        if !self.answers_for(target.into()) {
            return;
        }
        self.counters.neighbour_answers += 1;
        let requester = match reply_route.destination {
            IpAddr::V6(requester) if !requester.is_unspecified() => {
                Some((requester, reply_route.destination_mac))
            }
            // Duplicate address detection (RFC 4862 §5.4): all nodes are notified that the address is in use.
            _ => None,
        };
        self.advertise(reply_route.port, target, requester, out);
    }

    /// Advertises that `target` belongs to the cluster: to the requester, or to all nodes.
    fn advertise(
        &mut self,
        port: PortId,
        target: Ipv6Addr,
        requester: Option<(Ipv6Addr, MacAddr)>,
        out: &mut impl NetworkOutput,
    ) {
        let mac = self.port_mac(port);
        let message = v6::Message::NeighborAdvertisement {
            router: false,
            solicited: requester.is_some(),
            override_cache: true,
            target,
            target_link: Some(mac),
        };
        let (destination, destination_mac) = requester.unwrap_or((ALL_NODES, group_mac(ALL_NODES)));
        self.send_neighbor(port, target, (destination, destination_mac), &message, out);
    }

    fn send_neighbor(
        &mut self,
        port: PortId,
        source: Ipv6Addr,
        (destination, destination_mac): (Ipv6Addr, MacAddr),
        message: &v6::Message<'_>,
        out: &mut impl NetworkOutput,
    ) {
        let mut bytes = [0; NEIGHBOR_LEN_MAX];
        let Ok(len) = message.emit(source, destination, &mut bytes) else { return };
        let source_mac = self.port_mac(port);
        let route = Route {
            port,
            source_mac,
            destination_mac,
            source: source.into(),
            destination: destination.into(),
        };
        self.send_ip(&route, ipv6::PROTOCOL_ICMPV6, NEIGHBOR_HOP_LIMIT, &bytes[..len], out);
    }

    fn answer_echo(
        &mut self,
        now: Instant,
        route: &Route,
        protocol: u8,
        message: &[u8],
        out: &mut impl NetworkOutput,
    ) {
        if !self.answer_limit.allows(now) {
            self.counters.drop_answer_limit += 1;
            return;
        }
        let header_len = if route.source.is_ipv4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
        if header_len + message.len() > usize::from(self.port_mtu(route.port)) {
            // A reassembled request. The node does not fragment.
            self.counters.drop_too_long += 1;
            return;
        }
        self.counters.echo_answers += 1;
        let (ip, ecn) = (self.next_identification(), Ecn::NotEct);
        let ip = IpFields { protocol, ttl: TTL, ecn, identification: ip };
        if let Some(headers) = Headers::new(route, ip, message.len()) {
            self.transmit_frame(now, route.port, &[headers.as_slice(), message], out);
        }
    }

    fn send_ip(
        &mut self,
        route: &Route,
        protocol: u8,
        ttl: u8,
        payload: &[u8],
        out: &mut impl NetworkOutput,
    ) {
        let identification = self.next_identification();
        let ip = IpFields { protocol, ttl, ecn: Ecn::NotEct, identification };
        if let Some(headers) = Headers::new(route, ip, payload.len()) {
            out.lan(route.port, &[headers.as_slice(), payload], None);
        }
    }

    /// Answers a segment to a port that no service uses, as a closed port does (RFC 9293 §3.10.7.1).
    pub(super) fn refuse(
        &mut self,
        now: Instant,
        route: &Route,
        segment: &Segment<'_>,
        out: &mut impl NetworkOutput,
    ) {
        if segment.flags().rst() {
            self.counters.drop_no_service += 1;
            return;
        }
        if !self.answer_limit.allows(now) {
            self.counters.drop_answer_limit += 1;
            return;
        }
        let (seq, ack, flags) = if segment.flags().ack() {
            (segment.ack(), 0, Flags::RST)
        } else {
            let flags = segment.flags();
            let len = segment.payload().len() as u32 + u32::from(flags.syn()) + u32::from(flags.fin());
            (0, segment.seq().wrapping_add(len), Flags::RST | Flags::ACK)
        };
        let (source_port, destination_port) = (segment.destination_port(), segment.source_port());
        let repr = tcp::Repr { source_port, destination_port, seq, ack, flags, ..tcp::Repr::default() };
        let mut bytes = [0; tcp::HEADER_LEN_MIN];
        if repr.emit(&mut bytes).is_none() {
            return;
        }
        let Ok(reset) = Segment::parse(&bytes) else { return };
        let identification = self.next_identification();
        let ecn = Ecn::NotEct;
        let reset =
            OutSegment { segment: reset, bytes: &bytes, more: &[], ecn, segment_size: 0, identification };
        if self.emit_segment(now, route, &reset, out).is_ok() {
            self.counters.resets_sent += 1;
        }
    }

    /// Processes a neighbour's reply: transmits the segments that wait for it.
    fn on_neighbour(
        &mut self,
        now: Instant,
        port: PortId,
        address: IpAddr,
        mac: MacAddr,
        out: &mut impl NetworkOutput,
    ) {
        if mac.is_multicast() || !self.neighbours.learn(now, port, address, mac) {
            return;
        }
        self.forwarding.on_neighbour(address);
        while let Some(waiting) = self.neighbours.take_waiting(port, address) {
            self.send_waiting(now, &waiting, mac, out);
        }
    }

    /// Sends a request for a neighbour.
    pub(super) fn ask(&mut self, request: &Request, out: &mut impl NetworkOutput) {
        let mac = self.port_mac(request.port);
        // In the name of an address that another node answers for, only a probe: a request would lead the
        // neighbour's answers here (RFC 5227 §2.1.1). Neighbour discovery has none that is answered alone.
        let speaks = self.answers_for(request.requester);
        let requester = match request.requester {
            IpAddr::V4(_) if !speaks => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) if !speaks => return,
            requester => requester,
        };
        self.counters.neighbour_requests += 1;
        match (request.address, requester) {
            (IpAddr::V4(target), IpAddr::V4(requester)) => {
                let question = arp::Repr::request(mac, requester, target);
                send_arp(request.port, mac, MacAddr::BROADCAST, &question, out);
            }
            (IpAddr::V6(target), IpAddr::V6(requester)) => {
                let message = v6::Message::NeighborSolicitation { target, source_link: Some(mac) };
                let group = solicited_node(target);
                self.send_neighbor(request.port, requester, (group, group_mac(group)), &message, out);
            }
            // The next hop was chosen from the flow's own family.
            _ => {}
        }
    }

    /// Announces on the LAN that the cluster owns an address (RFC 5227 §3, RFC 4861 §7.2.6).
    pub(super) fn announce(&mut self, port: PortId, address: IpAddr, out: &mut impl NetworkOutput) {
        match address {
            IpAddr::V4(v4) => self.announce_v4(port, v4, out),
            IpAddr::V6(v6) => self.advertise(port, v6, None, out),
        }
    }

    fn announce_v4(&mut self, port: PortId, address: Ipv4Addr, out: &mut impl NetworkOutput) {
        let mac = self.port_mac(port);
        send_arp(port, mac, MacAddr::BROADCAST, &arp::Repr::announcement(mac, address), out);
    }

    /// Returns the route to the sender of a segment of this flow.
    pub(super) fn reply_route(&self, tuple: &FourTuple, port: PortId, peer_mac: MacAddr) -> Route {
        emit::route(tuple, port, self.port_mac(port), peer_mac)
    }
}

fn send_arp(
    port: PortId,
    source: MacAddr,
    destination: MacAddr,
    packet: &arp::Repr,
    out: &mut impl NetworkOutput,
) {
    let mut frame = [0; ethernet::HEADER_LEN + arp::PACKET_LEN];
    let (header, body) = frame.split_at_mut(ethernet::HEADER_LEN);
    let ethernet = ethernet::Repr { destination, source, ether_type: EtherType::Arp };
    if ethernet.emit(header).is_ok() && packet.emit(body).is_ok() {
        out.lan(port, &[&frame], None);
    }
}
