//! From an established client connection to the process that will serve it.

use csp_types::{FlowLabel, Instant, TraceKind};
use csp_wire::channel::{MessageHeader, MessageKind, OpenPayload};

use super::flow::{Flow, Stage};
use super::{ChannelId, Choice, Lane, MemberId, PENDING_TIMEOUT, ProxyCore, ProxyOutput};

impl ProxyCore {
    /// Offers a flow to a process of its service, or lets it wait for one.
    pub(super) fn dispatch(&mut self, now: Instant, label: FlowLabel, out: &mut impl ProxyOutput) {
        if self.offer(now, label, out) {
            return;
        }
        let Some(flow) = self.flows.set_stage(now, label, Stage::Pending) else { return };
        let service = flow.service;
        if !self.services.push_pending(service, label) {
            self.counters.drop_pending_full += 1;
            self.abandon(now, label);
        }
    }

    /// Takes connections that are gone off the front of a service's queue.
    fn drop_stale_pending(&mut self, service: u32) {
        let waits = |label| self.flows.get(label).is_some_and(|f| f.stage == Stage::Pending);
        self.services.drop_stale(service, waits);
    }

    /// When the connection that has waited longest is to be given up.
    pub(super) fn pending_deadline(&self) -> Option<Instant> {
        let since = |label| self.flows.get(label).map(|f| f.since);
        self.services.oldest_pending(since).map(|since| since + PENDING_TIMEOUT)
    }

    /// Serves whoever waits, of every service: pools have changed.
    pub(super) fn serve_all_pending(&mut self, now: Instant, out: &mut impl ProxyOutput) {
        let waiting = self.services.waiting().to_vec();
        waiting.into_iter().for_each(|service| self.serve_service(now, service, out));
    }

    /// Sends OPEN to the chosen process; `false` where none would take a connection.
    fn offer(&mut self, now: Instant, label: FlowLabel, out: &mut impl ProxyOutput) -> bool {
        let Some(flow) = self.flows.get(label) else { return true };
        if self.tcp.info(label).is_none() {
            return true;
        }
        let number = flow.service;
        while let Some(service) = self.services.get(number)
            && let Some(choice) = self.pools.choose(now, &service.members)
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
        // Behind the RESET of an offer that was withdrawn from it, where there is one.
        let before = self.offers.lane_withdrawn_from(label, choice.channel);
        let lane = before.or_else(|| out.lane(choice.channel, label.to_wire()));
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

    /// A member can take connections again: serve those that wait for it.
    pub(super) fn serve_pending(&mut self, now: Instant, member: MemberId, out: &mut impl ProxyOutput) {
        if self.services.waiting().is_empty() {
            return;
        }
        let services = self.pools.get(member).map_or(Vec::new(), |m| m.services().to_vec());
        services.into_iter().for_each(|service| self.serve_service(now, service, out));
    }

    fn serve_service(&mut self, now: Instant, service: u32, out: &mut impl ProxyOutput) {
        while let Some(label) = self.first_pending(service) {
            if !self.offer(now, label, out) {
                return;
            }
            if self.flows.get(label).is_some_and(|f| f.stage == Stage::Pending) {
                self.abandon(now, label); // the engine knows it no longer
            }
        }
    }

    /// The connection of a service that has waited longest.
    fn first_pending(&mut self, service: u32) -> Option<FlowLabel> {
        self.drop_stale_pending(service);
        self.services.get(service)?.pending.front().copied()
    }

    /// Resets connections that waited too long.
    pub(super) fn expire_pending(&mut self, now: Instant) {
        for service in self.services.waiting().to_vec() {
            while let Some(label) = self.first_pending(service) {
                if self.flows.get(label).is_some_and(|f| f.since + PENDING_TIMEOUT > now) {
                    break;
                }
                self.counters.drop_no_server += 1;
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
        if flow.stage == Stage::Pending {
            self.drop_stale_pending(flow.service);
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
        self.pools.forget_channel(channel);
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
