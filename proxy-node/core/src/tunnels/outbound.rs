//! Segments from the TCP engine into tunnel records.

use std::net::IpAddr;

use csp_types::limits::SEGMENT_PARTS_MAX;
use csp_types::{FourTuple, Instant, TraceEvent, TraceKind};
use csp_wire::Ecn;
use csp_wire::tcp::HEADER_LEN_MAX;
use csp_wire::tunnel::{Age, Flags, Record, RecordKind};
use csp_wire::{ipv4, ipv6};

use super::Tunnels;
use crate::context::Context;
use crate::{Blocked, ProxyOutput};

/// Hop limit of transmitted packets (RFC 1700's recommendation, and Linux's default).
const HOP_LIMIT: u8 = 64;
const PROTOCOL_TCP: u8 = 6;

impl Tunnels {
    /// Sends the engine's segments through tunnels that have room for a full segment. A segment taken from
    /// the engine counts as sent. Returns whether any was sent.
    pub(crate) fn transmit(&mut self, cx: &mut Context<'_, impl ProxyOutput>) -> bool {
        let (now, mut sent) = (cx.now, false);
        loop {
            let ready = cx.tcp.held_transmits().find(|via| cx.out.tunnel_ready(*via));
            let Some(via) = ready else { break };
            cx.tcp.resume_transmit(via);
        }
        while let Some(transmit) = cx.tcp.poll_transmit_if(now, |via| cx.out.tunnel_ready(via)) {
            sent = true;
            let record = record_of(&transmit, self.worker);
            let mut header = [0; 40 + HEADER_LEN_MAX];
            let whole = !record.flags.contains(Flags::COMPACTED) && record.kind == RecordKind::Segment;
            let header_len = headers(&mut header, &transmit, whole);
            let mut parts: [&[u8]; SEGMENT_PARTS_MAX + 1] = [&[]; SEGMENT_PARTS_MAX + 1];
            parts[0] = &header[..header_len];
            let mut count = 1;
            for slice in transmit.payload().take(SEGMENT_PARTS_MAX) {
                parts[count] = slice;
                count += 1;
            }
            cx.recorder.event(sent_event(now, &transmit));
            match cx.out.tunnel(now, transmit.via, &record, &parts[..count]) {
                Ok(()) => {
                    cx.recorder.counters.records_out += 1;
                    cx.recorder.counters.client_bytes_out += transmit.payload_len as u64;
                    let (label, via) = (transmit.label, transmit.via);
                    let announces = transmit.flow_new || transmit.flow_end;
                    let before = if announces { self.announced.record(label, via) } else { None };
                    if let Some(before) = before {
                        // Best effort: a node that keeps the flow removes it after its own, longer timeouts.
                        let _ = cx.out.tunnel(now, before, &Record::flow_end(label, self.worker), &[]);
                    }
                }
                // TCP's retransmission recovers it, through the network node that the client uses next.
                Err(Blocked::Gone | Blocked::NoCredit) => cx.recorder.counters.drop_no_tunnel += 1,
            }
        }
        sent
    }
}

/// Returns the record for a segment of the engine, without its payload.
fn record_of(transmit: &csp_tcp::Transmit<'_>, worker: u8) -> Record<'static> {
    let whole = transmit.flow_new || transmit.label.is_none();
    let flags = [
        (whole, Flags::NONE),
        (!whole && transmit.header.is_some(), Flags::COMPACTED),
        (transmit.flow_new, Flags::FLOW_NEW),
        (transmit.flow_end, Flags::FLOW_END),
    ];
    let flags = flags.iter().filter(|(on, _)| *on).fold(Flags::NONE, |all, (_, flag)| all | *flag);
    let coalesced = transmit.payload_len > usize::from(transmit.segment_size);
    Record {
        kind: if transmit.header.is_some() { RecordKind::Segment } else { RecordKind::FlowEnd },
        label: transmit.label,
        worker,
        flags,
        ecn: Ecn::from_bits(transmit.ecn),
        age: Age::ZERO,
        coalesced: 0,
        segment_size: if coalesced { transmit.segment_size } else { 0 },
        payload: &[],
    }
}

fn sent_event(at: Instant, transmit: &csp_tcp::Transmit<'_>) -> TraceEvent {
    let tcp = transmit.header.as_ref();
    TraceEvent {
        at,
        label: transmit.label,
        kind: TraceKind::SegmentOut,
        tcp_flags: tcp.map_or(0, |h| h.flags.0),
        len: transmit.payload_len as u32,
        seq: tcp.map_or(0, |h| h.seq),
        ack: tcp.map_or(0, |h| h.ack),
        ..TraceEvent::default()
    }
}

/// Writes the TCP header, preceded by the IP header if the record is `whole`. The TCP checksum field stays 0;
/// the network node or its hardware fills it. Returns the length.
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
