//! Finds the proxy of a connection that this node has no flow for, by asking one proxy worker after the
//! other.
//!
//! ```text
//!  segment ─▶ the worker that a new connection would go to ── has the connection ─▶ answers with FLOW_NEW
//!                 │ Unknown
//!                 ▼
//!             the next worker, those that drain first ── Unknown ─▶ … ── Unknown ─▶ the first again, which answers with RST;
//!                                                                                   dropped, if a proxy could not be asked
//! ```
//! A node has no flow for a connection after its own restart, or when a router sends it segments that another
//! node received before. The proxy of the connection cannot be computed: since it was opened, proxies may
//! have joined, or begun or ceased to drain.

use std::net::{IpAddr, SocketAddr};

use csp_types::{FourTuple, Instant};
use csp_wire::tcp::Segment;
use csp_wire::tunnel::{Flags, Record, RecordKind};
use csp_wire::{WireError, ipv4, ipv6};

use super::api::{NetworkOutput, ProxyId};
use super::flow_table::FlowIndex;
use super::node::{NetworkCore, channel_at};

/// Limit of returned segments that are passed on per second. It bounds what a flood of segments without a
/// connection costs the proxies.
pub(super) const SEARCHES_PER_SECOND_MAX: u32 = 50_000;

/// How far a search is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Search {
    /// Number of proxy workers that were asked before this one.
    asked: u16,
    /// The generation of the proxies' order ([`super::proxies::Proxies::generation`]).
    of: u16,
}

impl Search {
    /// Returns a search that begins with the first worker of this order.
    pub(super) const fn begin(of: u16) -> Self {
        Search { asked: 0, of }
    }
}

/// Returns the flags of a segment. `search`: set if the proxy of the segment's flow is being searched for.
pub(super) fn flags_of(search: Option<Search>) -> Flags {
    if search.is_some() { Flags::RETURN_UNKNOWN } else { Flags::NONE }
}

impl NetworkCore {
    /// Processes a segment that a proxy worker returned: passes it on to the next worker.
    pub(super) fn on_unknown(
        &mut self,
        now: Instant,
        proxy: ProxyId,
        record: &Record<'_>,
        out: &mut impl NetworkOutput,
    ) {
        self.counters.segments_returned += 1;
        let Ok(tuple) = tuple_of(record.payload) else { return self.counters.drop_bad_record += 1 };
        let Some(index) = self.find_flow(self.flows.hash(&tuple), &tuple) else {
            return self.counters.drop_foreign_flow += 1;
        };
        if !self.search_limit.allows(now) {
            return self.counters.drop_search_limit += 1;
        }
        if !self.ask_next(index, proxy, record.worker) {
            // Whoever was not asked may have it: the client's next segment begins anew.
            self.remove_flow(index);
            return self.counters.drop_no_proxy += 1;
        }
        let Some(flow) = self.flows.flow(index) else { return };
        // By now the flow may have a label. The segment is forwarded whole: its proxy finds the connection by
        // the addresses.
        let flags = Flags::CHECKSUM_VERIFIED | flags_of(flow.search);
        let again = Record { kind: RecordKind::Segment, worker: flow.worker, flags, payload: &[], ..*record };
        if out.tunnel(now, flow.proxy, &again, &[record.payload]).is_err() {
            self.counters.drop_tunnel_full += 1;
        }
    }

    /// Continues the search with the next worker, if the answer came from the worker that was asked last.
    /// After all workers were asked, the flow's segments permanently go to the first one; `false` if there
    /// are proxies that could not be asked.
    fn ask_next(&mut self, index: FlowIndex, proxy: ProxyId, worker: u8) -> bool {
        let Some(flow) = self.flows.flow_mut(index) else { return true };
        let Some(asked) = flow.search.filter(|_| (flow.proxy, flow.worker) == (proxy, worker)) else {
            return true;
        };
        // In another order a worker that has come up may stand where one was asked: all are asked again.
        let of = self.proxies.generation();
        let next = if asked.of == of { asked.asked.saturating_add(1) } else { 0 };
        let channel = channel_at(&self.classifier, flow.tuple.local);
        let candidate = |n| self.proxies.candidate(&flow.tuple, channel, n);
        let (search, chosen) = match candidate(next) {
            Some(chosen) => (Some(Search { asked: next, of }), Some(chosen)),
            None if !self.complete => return false,
            None => (None, candidate(0)),
        };
        flow.search = search;
        (flow.proxy, flow.worker) = chosen.unwrap_or((flow.proxy, flow.worker));
        true
    }
}

/// Returns the addresses and ports of a packet from the LAN.
fn tuple_of(packet: &[u8]) -> Result<FourTuple, WireError> {
    let (source, destination, bytes): (IpAddr, IpAddr, &[u8]);
    if packet.first().is_some_and(|b| b >> 4 == 6) {
        let view = ipv6::Packet::parse(packet)?;
        (source, destination, bytes) = (view.source().into(), view.destination().into(), view.payload());
    } else {
        let view = ipv4::Packet::parse(packet)?;
        (source, destination, bytes) = (view.source().into(), view.destination().into(), view.payload());
    }
    let segment = Segment::parse(bytes)?;
    Ok(FourTuple {
        local: SocketAddr::new(destination, segment.destination_port()),
        remote: SocketAddr::new(source, segment.source_port()),
    })
}
