//! What people ask a proxy worker: its flows and services, as plain values.

use std::net::SocketAddr;

use csp_types::{FlowLabel, FourTuple, Instant, NodeId};

use super::events::NO_SERVICE;
use super::{ProxyCore, Stage};

/// A flow as the admin endpoint shows it.
#[derive(Clone, Debug)]
pub struct FlowSnapshot {
    /// Its label.
    pub label: FlowLabel,
    /// Its service, or "egress" for active opens.
    pub service: String,
    /// Client and service address.
    pub tuple: FourTuple,
    /// The TCP state, and where the flow stands towards the application.
    pub state: String,
    /// The application's node and process, once chosen.
    pub process: Option<(NodeId, String)>,
    /// Seconds in this stage.
    pub age_s: f64,
    /// Bytes from and to the client.
    pub bytes: (u64, u64),
    /// Smoothed round-trip time in microseconds.
    pub srtt_us: u64,
    /// What controls congestion.
    pub congestion: csp_tcp::CongestionControl,
    /// Congestion window in bytes.
    pub cwnd: u32,
    /// Slow start threshold in bytes.
    pub ssthresh: u32,
    /// Whether both sides use ECN.
    pub ecn: bool,
    /// Bytes per second that may leave, where paced, and that were delivered lately.
    pub rates: (Option<u64>, u64),
    /// Retransmissions.
    pub retransmits: u32,
    /// Bytes that wait at the proxy for the application, and for the client's acknowledgement.
    pub queued: (usize, usize),
    /// Bytes that the application lets come, and that it may still send.
    pub credit: (u32, u32),
}

/// A service as the admin endpoint shows it.
#[derive(Clone, Debug)]
pub struct ServiceSnapshot {
    /// Its name.
    pub name: String,
    /// VIP and port.
    pub address: SocketAddr,
    /// Connections that wait for a process.
    pub pending: usize,
    /// Its pool.
    pub members: Vec<MemberSnapshot>,
}

/// A pool member as the admin endpoint shows it.
#[derive(Clone, Copy, Debug)]
pub struct MemberSnapshot {
    /// The application node.
    pub node: NodeId,
    /// The port its processes listen on.
    pub port: u16,
    /// Processes that listen.
    pub listeners: usize,
    /// Connections that are open at it or offered to it.
    pub open: u32,
    /// Connections that its processes have room for.
    pub accept_credit: u64,
    /// Connections that its processes accepted since this worker knows it.
    pub accepted: u64,
}

/// A flow that lives or ended lately.
#[derive(Clone, Debug)]
pub struct RecentFlow {
    /// Its label.
    pub label: FlowLabel,
    /// Client and service address.
    pub tuple: FourTuple,
    /// Its service, or "egress".
    pub service: String,
    /// When it ended; for live flows when its stage began.
    pub at: Instant,
    /// Whether it is over.
    pub ended: bool,
}

impl ProxyCore {
    /// At most `limit` flows that live or ended lately, newest first.
    pub fn recent_flows(&self, limit: usize) -> Vec<RecentFlow> {
        // Both lists are in order: the newest of either are enough.
        let live = self.flows.newest().map(|f| (f.label, f.tuple, f.service, f.since, false)).take(limit);
        let ended = self.ended.iter().rev().map(|e| (e.label, e.tuple, e.service, e.at, true)).take(limit);
        let mut all: Vec<_> = live.chain(ended).collect();
        all.sort_by_key(|(_, _, _, at, _)| std::cmp::Reverse(*at));
        all.truncate(limit);
        let describe = |(label, tuple, index, at, ended)| RecentFlow {
            label,
            tuple,
            service: self.service_name(index),
            at,
            ended,
        };
        all.into_iter().map(describe).collect()
    }

    /// A service's name, for people.
    fn service_name(&self, number: u32) -> String {
        match self.services.get(number) {
            Some(service) => service.spec.name.clone(),
            None if number == NO_SERVICE => "egress".to_owned(),
            None => "(removed)".to_owned(),
        }
    }

    /// At most `limit` flows, those that entered their stage last first.
    pub fn flows(&self, now: Instant, limit: usize) -> Vec<FlowSnapshot> {
        let describe = |flow: &super::Flow| {
            let info = self.tcp.info(flow.label)?;
            let stage = match flow.stage {
                Stage::Pending => "pending",
                Stage::Offered(_) => "offered",
                Stage::Open(_) => "open",
                Stage::Connecting { .. } => "connecting",
                Stage::Left(_) => "handed over",
                Stage::Finishing => "finishing",
            };
            Some(FlowSnapshot {
                label: flow.label,
                service: self.service_name(flow.service),
                tuple: info.tuple,
                state: format!("{:?}/{stage}", info.state),
                process: self.process_of(flow).map(|(node, name)| (node, name.to_owned())),
                age_s: now.saturating_since(flow.since).as_secs_f64(),
                bytes: (flow.bytes_to_app, flow.bytes_from_app),
                srtt_us: info.srtt_us,
                congestion: info.congestion,
                cwnd: info.cwnd,
                ssthresh: info.ssthresh,
                ecn: info.ecn,
                rates: (info.pacing_rate, info.delivery_rate),
                retransmits: info.retransmits,
                queued: (info.receive_queue, info.send_queue),
                credit: (flow.to_app_credit, flow.from_app_window - flow.from_app_outstanding),
            })
        };
        self.flows.newest().filter_map(describe).take(limit).collect()
    }

    /// All active services.
    pub fn services(&self) -> Vec<ServiceSnapshot> {
        let describe = |service: &super::services::Service| ServiceSnapshot {
            name: service.spec.name.clone(),
            address: service.spec.address,
            pending: service.backlog.len(),
            members: service
                .members
                .iter()
                .filter_map(|m| self.pools.get(*m))
                .map(|m| MemberSnapshot {
                    node: m.node,
                    port: m.port,
                    listeners: m.listener_count(),
                    open: m.open,
                    accept_credit: m.accept_credit(),
                    accepted: m.accepted,
                })
                .collect(),
        };
        self.services.iter().filter(|s| s.active).map(describe).collect()
    }
}
