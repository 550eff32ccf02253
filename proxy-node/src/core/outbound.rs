//! Segments from the TCP engine into tunnel records.

use std::net::IpAddr;

use csp_types::{FourTuple, Instant, TraceEvent, TraceKind};
use csp_wire::Ecn;
use csp_wire::tcp::HEADER_LEN_MAX;
use csp_wire::tunnel::{Age, Flags, Record, RecordKind};
use csp_wire::{ipv4, ipv6};

use super::output::Blocked;
use super::{ProxyCore, ProxyOutput};

/// Hops that our packets may take (RFC 1700's recommendation, and Linux' default).
const HOP_LIMIT: u8 = 64;
const PROTOCOL_TCP: u8 = 6;
/// Most payload slices of one segment: the largest segment over the smallest block, and a partial one at either end.
const SLICES_MAX: usize = csp_types::limits::SEGMENT_LEN_MAX / 512 + 2;

impl ProxyCore {
    /// Sends what the engine has to send through tunnels that have room for a full segment; a segment handed out by the
    /// engine counts as sent. Returns whether anything was.
    pub(super) fn transmit(&mut self, now: Instant, out: &mut impl ProxyOutput) -> bool {
        let mut sent = false;
        loop {
            let ready = self.tcp.held_transmits().find(|via| out.tunnel_ready(*via));
            let Some(via) = ready else { break };
            self.tcp.resume_transmit(via);
        }
        while let Some(transmit) = self.tcp.poll_transmit_if(now, |via| out.tunnel_ready(via)) {
            sent = true;
            let flags = [
                (transmit.flow_new || transmit.label.is_none(), Flags::NONE),
                (
                    !(transmit.flow_new || transmit.label.is_none()) && transmit.header.is_some(),
                    Flags::COMPACTED,
                ),
                (transmit.flow_new, Flags::FLOW_NEW),
                (transmit.flow_end, Flags::FLOW_END),
            ];
            let flags = flags.iter().filter(|(on, _)| *on).fold(Flags::NONE, |all, (_, flag)| all | *flag);
            let kind = if transmit.header.is_some() { RecordKind::Segment } else { RecordKind::FlowEnd };
            let record = Record {
                kind,
                label: transmit.label,
                worker: self.config.worker,
                flags,
                ecn: Ecn::from_bits(transmit.ecn),
                age: Age::ZERO,
                coalesced: 0,
                segment_size: if transmit.payload_len > usize::from(transmit.segment_size) {
                    transmit.segment_size
                } else {
                    0
                },
                payload: &[],
            };
            let mut header = [0; 40 + HEADER_LEN_MAX];
            let whole = !flags.contains(Flags::COMPACTED) && kind == RecordKind::Segment;
            let header_len = headers(&mut header, &transmit, whole);
            let mut parts: [&[u8]; SLICES_MAX + 1] = [&[]; SLICES_MAX + 1];
            parts[0] = &header[..header_len];
            let mut count = 1;
            for slice in transmit.payload().take(SLICES_MAX) {
                parts[count] = slice;
                count += 1;
            }
            let tcp = transmit.header.as_ref();
            self.trace.record(TraceEvent {
                at: now,
                label: transmit.label,
                kind: TraceKind::SegmentOut,
                tcp_flags: tcp.map_or(0, |h| h.flags.0),
                len: transmit.payload_len as u32,
                seq: tcp.map_or(0, |h| h.seq),
                ack: tcp.map_or(0, |h| h.ack),
                aux: 0,
            });
            match out.tunnel(transmit.via, &record, &parts[..count]) {
                Ok(()) => {
                    self.counters.records_out += 1;
                    self.counters.client_bytes_out += transmit.payload_len as u64;
                    let (label, via) = (transmit.label, transmit.via);
                    let tells = transmit.flow_new || transmit.flow_end;
                    let before = if tells { self.announced.tell(label, via) } else { None };
                    if let Some(before) = before {
                        // Best effort: a node that keeps the flow has its own, longer limits.
                        let _ = out.tunnel(before, &Record::flow_end(label, self.config.worker), &[]);
                    }
                }
                // TCP's own retransmission recovers it, through whichever network node the client is heard next.
                Err(Blocked::Gone | Blocked::NoCredit) => self.counters.drop_no_tunnel += 1,
            }
        }
        sent
    }
}

/// Writes the TCP header, with the IP header in front where the record is `whole`; the checksum field of TCP stays 0
/// (the network node or its hardware fills it). Returns the length.
fn headers(out: &mut [u8], transmit: &csp_tcp::Transmit<'_>, whole: bool) -> usize {
    let Some(repr) = &transmit.header else { return 0 };
    let tcp_len = repr.header_len();
    let ip_len = if whole { ip_header(out, transmit, tcp_len + transmit.payload_len) } else { 0 };
    ip_len + repr.emit(&mut out[ip_len..]).unwrap_or(0)
}

fn ip_header(out: &mut [u8], transmit: &csp_tcp::Transmit<'_>, payload_len: usize) -> usize {
    let FourTuple { local, remote } = transmit.tuple;
    let ecn = Ecn::from_bits(transmit.ecn);
    let len = match (local.ip(), remote.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => ipv4::Repr {
            source,
            destination,
            protocol: PROTOCOL_TCP,
            ttl: HOP_LIMIT,
            dscp: 0,
            ecn,
            identification: 0,
            dont_fragment: true,
            payload_len: payload_len as u16,
        }
        .emit(out),
        (IpAddr::V6(source), IpAddr::V6(destination)) => ipv6::Repr {
            source,
            destination,
            protocol: PROTOCOL_TCP,
            hop_limit: HOP_LIMIT,
            dscp: 0,
            ecn,
            flow_label: 0,
            payload_len: payload_len as u16,
        }
        .emit(out),
        _ => return 0,
    };
    len.unwrap_or(0)
}
