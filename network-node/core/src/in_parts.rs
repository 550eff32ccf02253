//! Records of a proxy's worker in the same thread: headers, and payload in parts where the proxy keeps it.

use csp_types::{FourTuple, Instant, MacAddr};
use csp_wire::tcp::Segment;
use csp_wire::tunnel::{Flags, Record, RecordKind};

use super::api::{NetworkOutput, PortId, ProxyId};
use super::emit::OutSegment;
use super::flow_table::FlowIndex;
use super::node::NetworkCore;

impl NetworkCore {
    /// As [`on_record`](Self::on_record), for a segment whose TCP header is in `header` and whose payload is
    /// in `payload`, which is transmitted from there; `record.payload` is ignored. Returns `false`, having
    /// done nothing, for a record that has to be whole: `on_record` takes it.
    pub fn on_record_in_parts(
        &mut self,
        now: Instant,
        proxy: ProxyId,
        record: &Record<'_>,
        (header, payload): (&[u8], &[&[u8]]),
        out: &mut impl NetworkOutput,
    ) -> bool {
        let compacted = record.kind == RecordKind::Segment && record.flags.contains(Flags::COMPACTED);
        if !compacted || self.plugins.egress() {
            return false;
        }
        // A segment without a flow, or whose peer's Ethernet address is not known, takes the common way.
        let Some((index, tuple, to)) = self.peer_of(proxy, record) else { return false };
        let of_flow = |segment: &Segment<'_>| {
            (segment.source_port(), segment.destination_port()) == (tuple.local.port(), tuple.remote.port())
        };
        self.counters.records_out += 1;
        let Some(segment) = Segment::parse(header).ok().filter(of_flow) else {
            self.counters.drop_bad_record += 1;
            return true;
        };
        let out_segment = OutSegment {
            segment,
            bytes: header,
            more: payload,
            ecn: record.ecn,
            segment_size: record.segment_size,
            identification: self.next_identification(),
        };
        self.send(now, Some(index), &tuple, to, record.label, &out_segment, out);
        if record.flags.contains(Flags::FLOW_END) {
            self.end_flow(now, index);
        }
        true
    }

    /// Returns the flow of a record's label, its addresses, and where its peer is, if all of that is known.
    fn peer_of(
        &self,
        proxy: ProxyId,
        record: &Record<'_>,
    ) -> Option<(FlowIndex, FourTuple, (PortId, MacAddr))> {
        let index = self.labels.get(proxy, record.label)?;
        let flow = self.flows.flow(index)?;
        let is_current = flow.label == record.label && flow.worker == record.worker;
        is_current.then_some((index, flow.tuple, (flow.port, flow.peer_mac?)))
    }
}
