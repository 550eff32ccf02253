//! What a proxy is told of a segment that is longer than the port's MTU: the ICMP error that a router in front of a
//! narrow link would have sent (RFC 1191 §4, RFC 8201 §4), so that the proxy knows one kind of news only.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use csp_types::{FourTuple, Instant};
use csp_wire::icmp::{v4, v6};
use csp_wire::tunnel::{Flags, Record, RecordKind};
use csp_wire::{Ecn, WireError, ipv4, ipv6};

use super::api::NetworkOutput;
use super::flow_table::{FlowIndex, FlowState};
use super::node::NetworkCore;

/// The start of a TCP header that errors quote at least: ports and sequence number (RFC 792).
const QUOTED_TCP_LEN: usize = 8;
/// Header, ICMP header, quoted header and start of the segment, of the longer family.
const ERROR_LEN_MAX: usize = 2 * ipv6::HEADER_LEN + v6::HEADER_LEN + QUOTED_TCP_LEN;
const TTL: u8 = 64;

impl NetworkCore {
    /// A segment of the flow, which begins with the TCP header `tcp`, did not fit `mtu`.
    pub(super) fn tell_too_long(
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
        let Ok(len) = too_big(&mut error, &flow.tuple, start, mtu) else { return };
        let record = Record {
            kind: RecordKind::IcmpError,
            label: flow.label,
            worker: flow.worker,
            flags: Flags::CHECKSUM_VERIFIED,
            ecn: Ecn::NotEct,
            ingress: now,
            coalesced: 1,
            segment_size: 0,
            payload: &[],
        };
        // A full tunnel: the segment is sent again, and too long again.
        if out.tunnel(flow.proxy, &record, &[&error[..len]]).is_ok() {
            self.counters.path_errors_told += 1;
        }
    }
}

/// Writes the error about a segment of `tuple` that starts with `tcp`, from our own end to it; returns its length.
fn too_big(
    out: &mut [u8],
    tuple: &FourTuple,
    tcp: &[u8; QUOTED_TCP_LEN],
    mtu: u16,
) -> Result<usize, WireError> {
    match (tuple.local.ip(), tuple.remote.ip()) {
        (IpAddr::V4(local), IpAddr::V4(remote)) => {
            let mut quoted = [0; ipv4::HEADER_LEN + QUOTED_TCP_LEN];
            header_v4(local, remote, ipv4::PROTOCOL_TCP, tcp.len()).emit(&mut quoted)?;
            quoted[ipv4::HEADER_LEN..].copy_from_slice(tcp);
            let message = v4::Message::FragmentationNeeded { next_hop_mtu: mtu, quoted: &quoted };
            let at = header_v4(local, local, ipv4::PROTOCOL_ICMP, message.len()).emit(out)?;
            Ok(at + message.emit(&mut out[at..])?)
        }
        (IpAddr::V6(local), IpAddr::V6(remote)) => {
            let mut quoted = [0; ipv6::HEADER_LEN + QUOTED_TCP_LEN];
            header_v6(local, remote, ipv6::PROTOCOL_TCP, tcp.len()).emit(&mut quoted)?;
            quoted[ipv6::HEADER_LEN..].copy_from_slice(tcp);
            let message = v6::Message::PacketTooBig { mtu: mtu.into(), quoted: &quoted };
            let at = header_v6(local, local, ipv6::PROTOCOL_ICMPV6, message.len()).emit(out)?;
            Ok(at + message.emit(local, local, &mut out[at..])?)
        }
        // A flow has one family.
        _ => Err(WireError::Unsupported { what: "two address families", offset: 0 }),
    }
}

fn header_v4(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, len: usize) -> ipv4::Repr {
    let (payload_len, ecn) = (len as u16, Ecn::NotEct);
    let (ttl, dscp, identification, dont_fragment) = (TTL, 0, 0, true);
    ipv4::Repr { source, destination, protocol, ttl, dscp, ecn, identification, dont_fragment, payload_len }
}

fn header_v6(source: Ipv6Addr, destination: Ipv6Addr, protocol: u8, len: usize) -> ipv6::Repr {
    let (payload_len, ecn) = (len as u16, Ecn::NotEct);
    let (hop_limit, dscp, flow_label) = (TTL, 0, 0);
    ipv6::Repr { source, destination, protocol, hop_limit, dscp, ecn, flow_label, payload_len }
}
