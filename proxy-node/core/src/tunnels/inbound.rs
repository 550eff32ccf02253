//! Tunnel records from network nodes into the TCP engine.

use std::net::SocketAddr;

use csp_tcp::{Arrival, Buffer, DropReason};
use csp_types::{FourTuple, TraceEvent, TraceKind};
use csp_wire::tcp::Segment;
use csp_wire::tunnel::{Flags, Record};
use csp_wire::{ipv4, ipv6};

use super::{Arrived, Tunnels};
use crate::ProxyOutput;
use crate::context::Context;

/// Protocol number of TCP in IPv4 and IPv6 headers.
const PROTOCOL_TCP: u8 = 6;

impl Tunnels {
    /// Passes a segment to the engine.
    pub(crate) fn on_segment(
        &mut self,
        cx: &mut Context<'_, impl ProxyOutput>,
        via: u32,
        record: &Record<'_>,
        buffer: Option<&Buffer>,
    ) -> Arrived {
        let parsed = addresses(record).and_then(|(ends, bytes)| Some((ends, Segment::parse(bytes).ok()?)));
        let Some((ends, segment)) = parsed else {
            cx.recorder.counters.drop_malformed += 1;
            return Arrived::Done;
        };
        let tuple = ends.map(|(source, destination)| FourTuple {
            local: SocketAddr::new(destination, segment.destination_port()),
            remote: SocketAddr::new(source, segment.source_port()),
        });
        if record.flags.contains(Flags::RETURN_UNKNOWN)
            && tuple.is_some_and(|tuple| !cx.tcp.owns(cx.now, &tuple, &segment))
        {
            cx.recorder.counters.unknown_returned += 1;
            // If the tunnel is full the client retransmits the segment.
            let _ = cx.out.tunnel(cx.now, via, &Record::unknown(record, self.worker), &[record.payload]);
            return Arrived::Done;
        }
        let ingress = record.age.before(cx.now);
        let (ecn, segment_size) = (record.ecn.bits(), record.segment_size);
        let arrival = Arrival { label: record.label, tuple, ingress, via, ecn, segment_size };
        cx.recorder.counters.client_bytes_in += segment.payload().len() as u64;
        let taken = match buffer {
            Some(buffer) => cx.tcp.on_segment_in(cx.now, arrival, &segment, segment.payload(), buffer),
            None => cx.tcp.on_segment(cx.now, arrival, &segment, segment.payload()),
        };
        let mut table_full = false;
        if let Err(reason) = taken {
            table_full = reason == DropReason::TableFull;
            cx.recorder.counters.drop_tcp += 1;
            if reason == DropReason::StaleLabel {
                // The node ends the label; it then sends the client's next segments as whole packets, which
                // can be answered.
                let _ = cx.out.tunnel(cx.now, via, &Record::flow_end(record.label, self.worker), &[]);
            }
        }
        if cx.tcp.replies_press() {
            self.transmit(cx); // replies to a flood: half of their queue is kept free for the rest of the batch
        }
        // A segment without a label may belong to a connection: a SYN, or a segment of a connection that
        // moved here.
        let by_tuple = tuple.and_then(|tuple| cx.tcp.label_of(&tuple));
        let label = by_tuple.unwrap_or(record.label);
        cx.recorder.event(TraceEvent {
            at: ingress,
            label,
            kind: TraceKind::SegmentIn,
            tcp_flags: segment.flags().0,
            len: segment.payload().len() as u32,
            seq: segment.seq(),
            ack: segment.ack(),
            ..TraceEvent::default()
        });
        if table_full { Arrived::TableFull } else { Arrived::Segment(label) }
    }
}

type Ends = (std::net::IpAddr, std::net::IpAddr);

/// Returns source and destination if the record carries its IP header, and the TCP segment.
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
