//! A proxy worker's flows and services as plain values, for the admin endpoint.

use std::net::SocketAddr;

use csp_types::{FlowLabel, FourTuple, Instant, NodeId};

use super::dispatch::pool::{PlainState, ServerChange};
use super::dispatch::services::{ServerHost, Service};
use super::events::NO_SERVICE;
use super::{ProxyCore, ServiceCounters, Stage};

/// A flow as the admin endpoint shows it.
#[derive(Clone, Debug)]
pub struct FlowSnapshot {
    /// Its label.
    pub label: FlowLabel,
    /// Its service, or "egress" for active opens.
    pub service: String,
    /// Client and service address.
    pub tuple: FourTuple,
    /// The TCP state, "Hairpin" or "Upstream", and the flow's stage towards the application. Without TCP its
    /// figures are 0.
    pub state: String,
    /// The application's node and process, once chosen.
    pub process: Option<(NodeId, String)>,
    /// The plain server that was chosen.
    pub plain: Option<SocketAddr>,
    /// Seconds in this stage.
    pub age_s: f64,
    /// Bytes from and to the client.
    pub bytes: (u64, u64),
    /// Smoothed round-trip time in microseconds.
    pub srtt_us: u64,
    /// The congestion control algorithm.
    pub congestion: csp_tcp::CongestionControl,
    /// Congestion window in bytes.
    pub cwnd: u32,
    /// Slow start threshold in bytes.
    pub ssthresh: u32,
    /// Whether both sides use ECN.
    pub ecn: bool,
    /// Pacing rate in bytes per second, if paced, and the recent delivery rate.
    pub rates: (Option<u64>, u64),
    /// Retransmissions.
    pub retransmits: u32,
    /// Bytes queued at the proxy for the application, and for the client's acknowledgement.
    pub queued: (usize, usize),
    /// Bytes that may be sent to the application, and that the application may send.
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
    /// What was counted of it; `None` of one whose connections end at the proxy, or that clients do not
    /// reach.
    pub counters: Option<ServiceCounters>,
}

/// A pool member as the admin endpoint shows it.
#[derive(Clone, Copy, Debug)]
pub struct MemberSnapshot {
    /// Where it is.
    pub host: ServerHost,
    /// The state of a plain server; `None` for members of application nodes.
    pub plain: Option<PlainState>,
    /// The port that its processes listen on.
    pub port: u16,
    /// Processes that listen.
    pub listeners: usize,
    /// Connections that are open at it or offered to it.
    pub open: u32,
    /// Connections that its processes would accept now.
    pub accept_credit: u64,
    /// Connections that its processes have accepted since this worker created the member.
    pub accepted: u64,
}

/// A flow that is active or ended recently.
#[derive(Clone, Debug)]
pub struct RecentFlow {
    /// Its label.
    pub label: FlowLabel,
    /// Client and service address.
    pub tuple: FourTuple,
    /// Its service, or "egress".
    pub service: String,
    /// When it ended; for active flows when its stage began.
    pub at: Instant,
    /// Whether it has ended.
    pub ended: bool,
}

impl<S> ProxyCore<S> {
    /// Returns the servers that came into use or went out of it since the last call.
    pub fn take_server_changes(&mut self) -> Vec<ServerChange> {
        self.dispatcher.take_server_changes()
    }

    /// Returns at most `limit` active or recently ended flows, newest first.
    pub fn recent_flows(&self, limit: usize) -> Vec<RecentFlow> {
        // Both lists are ordered: the newest of each are sufficient.
        let live = self.flows.newest().map(|f| (f.label, f.tuple, f.service, f.since, false)).take(limit);
        let ended = self.recorder.ended().map(|e| (e.label, e.tuple, e.service, e.at, true)).take(limit);
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

    /// Returns a service's name, for display.
    fn service_name(&self, number: u32) -> String {
        match self.dispatcher.service(number) {
            Some(service) => service.spec.name.clone(),
            None if number == NO_SERVICE => "egress".to_owned(),
            None => "(removed)".to_owned(),
        }
    }

    /// Returns at most `limit` flows, those that entered their stage last first.
    pub fn flows(&self, now: Instant, limit: usize) -> Vec<FlowSnapshot> {
        let describe = |flow: &super::Flow| {
            let info = self.tcp.info(flow.label);
            let kind = match self.upstreams.is_of(flow.label) {
                true => "Upstream",
                false if info.is_some() || self.hairpin.peer(flow.label).is_some() => "Hairpin",
                false => return None,
            };
            let stage = match flow.stage {
                Stage::Pending => "pending",
                Stage::Offered(_) => "offered",
                Stage::Open(_) => "open",
                Stage::Local => "local",
                Stage::Connecting { .. } => "connecting",
                Stage::Left(_) => "handed over",
                Stage::Calling(_) => "calling",
                Stage::Called(_) => "called",
                Stage::Joined(_) | Stage::Behind(_) => "joined",
                Stage::Checking(_) => "checking",
                Stage::Finishing => "finishing",
            };
            let state = info.map_or(kind.to_owned(), |i| format!("{:?}", i.state));
            let unsent = |peer| self.hairpin.waiting(peer).0;
            let inner = match self.upstreams.get(flow.label) {
                Some(end) => (0, end.held.len()),
                None => (self.hairpin.waiting(flow.label).0, self.hairpin.peer(flow.label).map_or(0, unsent)),
            };
            Some(FlowSnapshot {
                label: flow.label,
                service: self.service_name(flow.service),
                tuple: flow.tuple,
                state: format!("{state}/{stage}"),
                process: self.dispatcher.process_of(flow).map(|(node, name)| (node, name.to_owned())),
                plain: self.dispatcher.plain_of(flow),
                age_s: now.saturating_since(flow.since).as_secs_f64(),
                bytes: (flow.bytes_to_app, flow.bytes_from_app),
                srtt_us: info.map_or(0, |i| i.srtt_us),
                congestion: info.map_or(csp_tcp::CongestionControl::Cubic, |i| i.congestion),
                cwnd: info.map_or(0, |i| i.cwnd),
                ssthresh: info.map_or(0, |i| i.ssthresh),
                ecn: info.is_some_and(|i| i.ecn),
                rates: info.map_or((None, 0), |i| (i.pacing_rate, i.delivery_rate)),
                retransmits: info.map_or(0, |i| i.retransmits),
                queued: info.map_or(inner, |i| (i.receive_queue, i.send_queue)),
                credit: (flow.to_app_credit, flow.from_app_window - flow.from_app_outstanding),
            })
        };
        self.flows.newest().filter_map(describe).take(limit).collect()
    }

    /// Returns the node and the name of the process at the client's end of a flow, if that is a program of
    /// the cluster connected without TCP.
    pub fn client_process(&self, label: FlowLabel) -> Option<(NodeId, String)> {
        let flow = self.flows.get(self.hairpin.peer(label)?)?;
        self.dispatcher.process_of(flow).map(|(node, name)| (node, name.to_owned()))
    }

    /// Returns `count` places of the table of services from `from` on. Each has the number, the name and the
    /// counters of a service, if the policy names one that clients reach and whose connections do not end at
    /// the proxy. While the service stays in the policy its place and its number do.
    pub fn service_counters(
        &self,
        from: usize,
        count: usize,
    ) -> impl Iterator<Item = Option<(u32, &str, &ServiceCounters)>> {
        let places = self.dispatcher.places(from, count).enumerate();
        places.map(move |(at, place)| {
            let (number, service) = place?;
            Some((number, service.spec.name.as_str(), self.counters_at(from + at, service)?))
        })
    }

    /// Returns the counters of the service at a place, if it is counted.
    fn counters_at(&self, place: usize, service: &Service) -> Option<&ServiceCounters> {
        let is_reached = service.spec.address.port() != 0 || service.is_passed_to;
        let counted = service.spec.local.is_none() && is_reached;
        self.recorder.services.get(place).filter(|_| counted)
    }

    /// Returns all active services.
    pub fn services(&self) -> Vec<ServiceSnapshot> {
        let describe = |(place, service): (usize, &Service)| ServiceSnapshot {
            counters: self.counters_at(place, service).copied(),
            name: service.spec.name.clone(),
            address: service.spec.address,
            pending: service.backlog.len(),
            members: service
                .members()
                .filter_map(|m| self.dispatcher.pools().get(m))
                .map(|m| MemberSnapshot {
                    host: m.host,
                    plain: m.plain_state(),
                    port: m.port,
                    listeners: m.listener_count(),
                    open: m.open,
                    accept_credit: m.accept_credit(),
                    accepted: m.accepted,
                })
                .collect(),
        };
        let places = self.dispatcher.places(0, usize::MAX).enumerate();
        places.filter_map(|(place, service)| Some(describe((place, service?.1)))).collect()
    }
}
