//! Answers a proxy's segment that exceeds the port's MTU with the ICMP error that a router in front of a
//! narrow link would send (RFC 1191 §4, RFC 8201 §4), so that the proxy handles a single kind of error; and a
//! client's packet that is too long to be forwarded, which is what a router would do.

use std::net::IpAddr;

use csp_types::{FourTuple, Instant};
use csp_wire::icmp::{v4, v6};
use csp_wire::tunnel::{Age, Flags, Record, RecordKind};
use csp_wire::{Ecn, ipv4, ipv6};

use super::api::NetworkOutput;
use super::emit::{Headers, IpFields, Route, TTL, ip_header};
use super::flow_table::{Flow, FlowIndex, FlowState};
use super::forward::Arrived;
use super::node::NetworkCore;

/// Length of the part of a TCP header that every error quotes: ports and sequence number (RFC 792).
const QUOTED_TCP_LEN: usize = 8;
/// Longest quotation of a client's packet: IP headers and the start of what they carry.
const QUOTED_LEN_MAX: usize = 122 + QUOTED_TCP_LEN;
/// Length of the longest error: IP header, ICMP header, quoted IP header and start of the segment, with IPv6.
const ERROR_LEN_MAX: usize = 2 * ipv6::HEADER_LEN + v6::HEADER_LEN + QUOTED_TCP_LEN;

impl NetworkCore {
    /// Reports to the flow's proxy that a segment, which begins with the TCP header `tcp`, was longer than
    /// `mtu`.
    pub(super) fn report_too_long(
        &mut self,
        now: Instant,
        index: Option<FlowIndex>,
        tcp: &[u8],
        mtu: u16,
        out: &mut impl NetworkOutput,
    ) {
        let flow = index.and_then(|i| self.flows.flow(i)).filter(|f| f.state == FlowState::Bound);
        let Some((flow, start)) = flow.zip(tcp.first_chunk::<QUOTED_TCP_LEN>()) else { return };
        let mut error = [0; ERROR_LEN_MAX];
        let Some(len) = too_big(&mut error, &flow.tuple, start, mtu) else { return };
        // A full tunnel needs no handling: the segment is retransmitted and exceeds the MTU again.
        if out.tunnel(now, flow.proxy, &icmp_record(flow), &[&error[..len]]).is_ok() {
            self.counters.path_errors_reported += 1;
        }
    }
}

impl NetworkCore {
    /// Reports to the sender of a packet that it is longer than the `mtu` of the way to its server.
    #[cold]
    pub(super) fn answer_too_long(&mut self, arrived: &Arrived<'_>, mtu: u16, out: &mut impl NetworkOutput) {
        if !self.answer_limit.allows(arrived.now) {
            self.counters.drop_answer_limit += 1;
            return;
        }
        let quoted = &arrived.packet[..arrived.packet.len().min(arrived.header_len + QUOTED_TCP_LEN)];
        let (source, destination) = (arrived.ends.1, arrived.ends.0);
        let mut error = [0; v6::HEADER_LEN + QUOTED_LEN_MAX];
        let written = match destination {
            IpAddr::V4(_) => v4::Message::FragmentationNeeded { next_hop_mtu: mtu, quoted }.emit(&mut error),
            IpAddr::V6(to) => {
                let IpAddr::V6(from) = source else { return };
                v6::Message::PacketTooBig { mtu: mtu.into(), quoted }.emit(from, to, &mut error)
            }
        };
        let Ok(len) = written else { return };
        let (port, source_mac) = (arrived.port, self.port_mac(arrived.port));
        let route = Route { port, source_mac, destination_mac: arrived.peer_mac, source, destination };
        let protocol = if source.is_ipv4() { ipv4::PROTOCOL_ICMP } else { ipv6::PROTOCOL_ICMPV6 };
        let identification = self.next_identification();
        let fields = IpFields { protocol, ttl: TTL, ecn: Ecn::NotEct, identification };
        if let Some(headers) = Headers::new(&route, fields, len) {
            out.lan(port, &[headers.as_slice(), &error[..len]], None);
            self.counters.path_errors_reported += 1;
        }
    }
}

/// Returns the record that carries an ICMP error about a flow to the flow's proxy, without its packet.
pub(super) fn icmp_record(flow: &Flow) -> Record<'static> {
    Record {
        kind: RecordKind::IcmpError,
        label: flow.label,
        worker: flow.worker,
        flags: Flags::CHECKSUM_VERIFIED,
        ecn: Ecn::NotEct,
        age: Age::ZERO,
        coalesced: 1,
        segment_size: 0,
        payload: &[],
    }
}

/// Writes the error about a segment of `tuple` that starts with `tcp`. Its source and destination are the
/// cluster's own address. Returns its length.
fn too_big(out: &mut [u8], tuple: &FourTuple, tcp: &[u8; QUOTED_TCP_LEN], mtu: u16) -> Option<usize> {
    let (local, remote) = (tuple.local.ip(), tuple.remote.ip());
    let fields = |protocol| IpFields { protocol, ttl: TTL, ecn: Ecn::NotEct, identification: 0 };
    let mut quoted = [0; ipv6::HEADER_LEN + QUOTED_TCP_LEN];
    let (_, at) = ip_header(&mut quoted, (local, remote), fields(ipv4::PROTOCOL_TCP), tcp.len())?;
    let quoted = quoted.get_mut(..at + QUOTED_TCP_LEN)?;
    quoted[at..].copy_from_slice(tcp);
    match local {
        IpAddr::V4(_) => {
            let message = v4::Message::FragmentationNeeded { next_hop_mtu: mtu, quoted };
            let (_, at) = ip_header(out, (local, local), fields(ipv4::PROTOCOL_ICMP), message.len())?;
            Some(at + message.emit(&mut out[at..]).ok()?)
        }
        IpAddr::V6(own) => {
            let message = v6::Message::PacketTooBig { mtu: mtu.into(), quoted };
            let (_, at) = ip_header(out, (local, local), fields(ipv6::PROTOCOL_ICMPV6), message.len())?;
            Some(at + message.emit(own, own, &mut out[at..]).ok()?)
        }
    }
}
