//! From an established client connection to the process that will serve it.

use csp_types::{FlowLabel, Instant, TraceKind};
use csp_wire::channel::{MessageHeader, MessageKind, OpenPayload};

use super::backlog::NO_SERVER_GRACE;
use super::flow::{Flow, Stage};
use super::{ChannelId, Choice, Lane, ProxyCore, ProxyOutput};

impl ProxyCore {
    /// Offers a flow to a process of its service, or lets it wait for one behind those that arrived before it.
    pub(super) fn dispatch(&mut self, now: Instant, label: FlowLabel, out: &mut impl ProxyOutput) {
        let Some(flow) = self.flows.get(label) else { return };
        let (service, arrived) = (flow.service, flow.arrived);
        let none_waits = self.services.get(service).is_some_and(|s| s.backlog.is_empty());
        if none_waits && self.offer(now, label, out) {
            return;
        }
        let Some(flow) = self.flows.set_stage(now, label, Stage::Pending) else { return };
        flow.waiting = true;
        self.services.wait(service, arrived, label);
        self.note_backlog(service);
        if !none_waits {
            self.serve_service(now, service, out);
        }
    }

    /// A flow is in its service's backlog no longer, where it was.
    fn leave_backlog(&mut self, label: FlowLabel) {
        let Some(flow) = self.flows.get_mut(label).filter(|f| f.waiting) else { return };
        flow.waiting = false;
        let service = flow.service;
        self.left_backlog(service);
    }

    fn left_backlog(&mut self, service: u32) {
        let flows = &self.flows;
        let waits = |arrived, label| flows.get(label).is_some_and(|f| f.waiting && f.arrived == arrived);
        self.services.left_backlog(service, waits);
        self.note_backlog(service);
    }

    /// Lets the engine know whether a service's backlog is full.
    pub(super) fn note_backlog(&mut self, number: u32) {
        let Some(service) = self.services.get_mut(number) else { return };
        let full = service.backlog.len() >= service.spec.backlog.connections;
        if service.active && std::mem::replace(&mut service.backlog_full, full) != full {
            self.tcp.set_backlog_full(service.spec.address, full);
        }
    }

    /// When the connection that arrived first at a service is to be given up, and whether the service has processes.
    fn backlog_deadline(&self, number: u32) -> Option<(Instant, bool)> {
        let service = self.services.get(number)?;
        let first = self.flows.get(service.backlog.first()?)?;
        let unserved = self.pools.unserved_since(&service.members);
        let grace = unserved.map(|since| first.began.max(since) + NO_SERVER_GRACE);
        let time = service.spec.backlog.time.map(|time| first.began + time);
        Some(([grace, time].into_iter().flatten().min()?, unserved.is_none()))
    }

    /// When a connection that waits is to be given up.
    pub(super) fn pending_deadline(&self) -> Option<Instant> {
        let deadline = |service: &u32| self.backlog_deadline(*service).map(|(at, _)| at);
        self.services.waiting().iter().filter_map(deadline).min()
    }

    /// Serves the connections that wait, of every service, after processes have become ready to take some: in order of
    /// arrival, since services may share processes.
    pub(super) fn serve_backlogs(&mut self, now: Instant, out: &mut impl ProxyOutput) {
        if !self.pools.take_readied() || self.services.waiting().is_empty() {
            return;
        }
        let mut services = self.services.waiting().to_vec();
        let first = |core: &Self, service: u32| Some(core.flows.get(core.first_pending(service)?)?.arrived);
        while let Some(service) = services.iter().copied().min_by_key(|s| first(self, *s).unwrap_or(u64::MAX))
        {
            if !self.serve_first(now, service, out) {
                services.retain(|other| *other != service);
            }
        }
    }

    /// Sends OPEN to the chosen process; `false` where none would take a connection.
    fn offer(&mut self, now: Instant, label: FlowLabel, out: &mut impl ProxyOutput) -> bool {
        let Some(flow) = self.flows.get(label) else { return true };
        if self.tcp.info(label).is_none() {
            return true;
        }
        let number = flow.service;
        while let Some(service) = self.services.get(number)
            && let Some(choice) =
                self.pools.choose(now, &service.members, service.spec.address.ip(), |channel| {
                    self.offers.is_barred(label, channel)
                })
        {
            if self.send_open(now, label, choice, out) {
                return true;
            }
        }
        false
    }

    /// Sends OPEN to this process; `false` where it cannot be reached any more.
    pub(super) fn send_open(
        &mut self,
        now: Instant,
        label: FlowLabel,
        choice: Choice,
        out: &mut impl ProxyOutput,
    ) -> bool {
        let known = self.flows.get(label).zip(self.tcp.info(label));
        let open = known.map(|(flow, info)| OpenPayload {
            local: info.tuple.local,
            remote: info.tuple.remote,
            window: flow.from_app_window,
        });
        let lane = out.lane(choice.channel, label.to_wire());
        let sent = open.zip(lane).is_some_and(|(open, lane)| {
            let payload = open.emit();
            let header =
                MessageHeader::of_flow(MessageKind::Open, label, choice.listener, payload.len() as u32);
            out.channel(lane, header, &[&payload]).is_ok()
        });
        let Some(lane) = lane.filter(|_| sent) else {
            self.pools.give_up(choice); // the channel is about to be reported down
            return false;
        };
        if let Some(flow) = self.flows.set_stage(now, label, Stage::Offered(choice)) {
            flow.lane = lane;
        }
        self.watch_offer(now, label);
        self.record(now, label, TraceKind::OpenSent, 0);
        true
    }

    fn serve_service(&mut self, now: Instant, service: u32, out: &mut impl ProxyOutput) {
        while self.serve_first(now, service, out) {}
    }

    /// Offers the connection of a service that arrived first; `false` where none waits or no process takes it.
    fn serve_first(&mut self, now: Instant, service: u32, out: &mut impl ProxyOutput) -> bool {
        let Some(label) = self.first_pending(service) else { return false };
        if !self.offer(now, label, out) {
            return false;
        }
        self.leave_backlog(label);
        if self.flows.get(label).is_some_and(|f| f.stage == Stage::Pending) {
            self.abandon(now, label); // the engine knows it no longer
        }
        true
    }

    /// The connection of a service that arrived first of those that wait.
    fn first_pending(&self, service: u32) -> Option<FlowLabel> {
        self.services.get(service)?.backlog.first()
    }

    /// Resets connections that waited too long.
    pub(super) fn expire_pending(&mut self, now: Instant) {
        for service in self.services.waiting().to_vec() {
            while let Some((deadline, served)) = self.backlog_deadline(service)
                && deadline <= now
                && let Some(label) = self.first_pending(service)
            {
                let counter = match served {
                    true => &mut self.counters.drop_backlog_time,
                    false => &mut self.counters.drop_no_server,
                };
                *counter += 1;
                self.abandon(now, label);
            }
        }
    }

    /// Resets the client's connection and forgets the flow; the application is not told.
    pub(super) fn abandon(&mut self, now: Instant, label: FlowLabel) {
        self.tcp.abort(now, label);
        self.forget(now, label);
    }

    /// Takes a flow out of the tables.
    pub(super) fn forget(&mut self, now: Instant, label: FlowLabel) {
        if let Some(flow) = self.flows.remove(label) {
            self.give_back(now, &flow);
        }
    }

    /// Gives back what a flow held that is in the table no longer.
    pub(super) fn give_back(&mut self, now: Instant, flow: &Flow) {
        match (flow.stage, flow.choice()) {
            (Stage::Offered(_), Some(choice)) => self.pools.void(choice),
            (_, Some(choice)) => self.pools.release(choice),
            (_, None) => {}
        }
        self.offers.forget(flow.label);
        self.budget.release(flow.from_app_window);
        self.note_ended(now, flow);
        if flow.waiting {
            self.left_backlog(flow.service);
        }
        self.services.flow_ended(flow.service, &mut self.pools);
    }

    /// A channel is gone: what its process had is served elsewhere, finished, or reset.
    ///
    /// `hangup`: the process ended, so its connections end as the kernel would end them (FIN after what it wrote);
    /// otherwise the way to it broke, and bytes may be missing: they are reset.
    pub fn channel_down(
        &mut self,
        now: Instant,
        channel: ChannelId,
        hangup: bool,
        out: &mut impl ProxyOutput,
    ) {
        self.processes.remove(&channel);
        self.pools.forget_channel(now, channel);
        self.offers.forget_channel(channel, None);
        self.end_flows(now, channel, None, hangup, out);
        self.drive(now, out);
    }

    /// One VI of a channel's pool is gone, others are left. `hangup` as for [`channel_down`](Self::channel_down): of a
    /// process that ended, one VI goes after the other.
    pub fn lane_down(
        &mut self,
        now: Instant,
        channel: ChannelId,
        lane: Lane,
        hangup: bool,
        out: &mut impl ProxyOutput,
    ) {
        self.offers.forget_channel(channel, Some(lane));
        self.end_flows(now, channel, Some(lane), hangup, out);
        self.drive(now, out);
    }

    fn end_flows(
        &mut self,
        now: Instant,
        channel: ChannelId,
        lane: Option<Lane>,
        hangup: bool,
        out: &mut impl ProxyOutput,
    ) {
        let lost = |flow: &&Flow| lane.is_none_or(|lane| lane == flow.lane);
        let labels: Vec<FlowLabel> = self.flows.of_channel(channel).filter(lost).map(|f| f.label).collect();
        for label in labels {
            let Some(flow) = self.flows.get(label) else { continue };
            match flow.stage {
                Stage::Offered(choice) => {
                    self.take_back(now, label, choice);
                    self.dispatch(now, label, out);
                }
                Stage::Open(_) if hangup => self.application_closed(now, label),
                Stage::Open(_)
                | Stage::Connecting { .. }
                | Stage::Pending
                | Stage::Left(_)
                | Stage::Finishing => self.abandon(now, label),
            }
        }
        self.parked.forget_stale(|label| self.flows.get(label).is_some_and(|f| f.channel().is_some()));
    }
}
