//! Tunnel records from network nodes into the TCP engine.

use std::net::SocketAddr;

use csp_tcp::{Arrival, Buffer, DropReason};
use csp_types::{FlowLabel, FourTuple, Instant, TraceEvent, TraceKind};
use csp_wire::tcp::Segment;
use csp_wire::tunnel::{Flags, Record, RecordKind};
use csp_wire::{ipv4, ipv6};

use super::{ProxyCore, ProxyOutput};

/// Protocol number of TCP in IPv4 and IPv6 headers.
const PROTOCOL_TCP: u8 = 6;

impl ProxyCore {
    /// Takes one record of the network node `via`. Call [`drive`](Self::drive) after a batch of them.
    pub fn on_record(&mut self, now: Instant, via: u32, record: &Record<'_>, out: &mut impl ProxyOutput) {
        self.on_record_in(now, via, record, None, out);
    }

    /// As [`on_record`](Self::on_record) for a record that lies in a buffer of [`lend_buffer`](Self::lend_buffer).
    pub fn on_record_in(
        &mut self,
        now: Instant,
        via: u32,
        record: &Record<'_>,
        buffer: Option<&Buffer>,
        out: &mut impl ProxyOutput,
    ) {
        self.counters.records_in += 1;
        match record.kind {
            RecordKind::Segment if record.worker == self.config.worker => {
                self.on_segment(now, via, record, buffer, out)
            }
            RecordKind::IcmpError if record.worker == self.config.worker => {
                self.on_icmp_error(now, record.payload)
            }
            RecordKind::FlowEnd => self.on_addresses_taken(now, record.label, out),
            RecordKind::Segment | RecordKind::IcmpError => self.counters.drop_misdirected += 1,
        }
    }

    fn on_segment(
        &mut self,
        now: Instant,
        via: u32,
        record: &Record<'_>,
        buffer: Option<&Buffer>,
        out: &mut impl ProxyOutput,
    ) {
        let Some((tuple, bytes)) = addresses(record) else {
            self.counters.drop_malformed += 1;
            return;
        };
        let Ok(segment) = Segment::parse(bytes) else {
            self.counters.drop_malformed += 1;
            return;
        };
        let tuple = tuple.map(|(source, destination)| FourTuple {
            local: SocketAddr::new(destination, segment.destination_port()),
            remote: SocketAddr::new(source, segment.source_port()),
        });
        let ingress = record.age.before(now);
        let (ecn, segment_size) = (record.ecn.bits(), record.segment_size);
        let arrival = Arrival { label: record.label, tuple, ingress, via, ecn, segment_size };
        self.counters.client_bytes_in += segment.payload().len() as u64;
        let taken = match buffer {
            Some(buffer) => self.tcp.on_segment_in(now, arrival, &segment, segment.payload(), buffer),
            None => self.tcp.on_segment(now, arrival, &segment, segment.payload()),
        };
        if let Err(reason) = taken {
            self.counters.drop_tcp += 1;
            if reason == DropReason::StaleLabel {
                // The node forgets the label; what the client sends next comes whole and can be answered.
                let _ = out.tunnel(via, &Record::flow_end(record.label, self.config.worker), &[]);
            }
        }
        if self.tcp.replies_press() {
            self.transmit(now, out); // a flood's answers: half of their queue is left for what is still to come
        }
        // A segment without label may belong to a connection all the same: the SYN's own, or one that moved here.
        let by_tuple = tuple.and_then(|tuple| self.tcp.label_of(&tuple));
        let label = by_tuple.unwrap_or(record.label);
        self.trace_segment(ingress, label, TraceKind::SegmentIn, &segment);
        self.enqueue(label); // an ACK may have made room in the send buffer
    }

    fn trace_segment(&mut self, at: Instant, label: FlowLabel, kind: TraceKind, segment: &Segment<'_>) {
        self.trace.record(TraceEvent {
            at,
            label,
            kind,
            tcp_flags: segment.flags().0,
            len: segment.payload().len() as u32,
            seq: segment.seq(),
            ack: segment.ack(),
            aux: 0,
        });
    }
}

type Ends = (std::net::IpAddr, std::net::IpAddr);

/// Source and destination where the record carries its IP header, and the TCP segment.
fn addresses<'a>(record: &Record<'a>) -> Option<(Option<Ends>, &'a [u8])> {
    if record.flags.contains(Flags::COMPACTED) {
        return Some((None, record.payload));
    }
    match record.payload.first()? >> 4 {
        4 => {
            let packet = ipv4::Packet::parse(record.payload).ok()?;
            let is_tcp = packet.protocol() == PROTOCOL_TCP && !packet.is_fragment();
            is_tcp.then(|| (Some((packet.source().into(), packet.destination().into())), packet.payload()))
        }
        6 => {
            let packet = ipv6::Packet::parse(record.payload).ok()?;
            let is_tcp = packet.protocol() == PROTOCOL_TCP;
            is_tcp.then(|| (Some((packet.source().into(), packet.destination().into())), packet.payload()))
        }
        _ => None,
    }
}
