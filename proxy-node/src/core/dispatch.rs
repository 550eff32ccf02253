//! From an established client connection to the process that will serve it.

use csp_types::{FlowLabel, Instant, TraceKind};
use csp_wire::channel::{MessageHeader, MessageKind, OpenPayload};

use super::flow::Stage;
use super::services::PENDING_MAX;
use super::{ChannelId, Lane, MemberId, PENDING_TIMEOUT, ProxyCore, ProxyOutput};

impl ProxyCore {
    /// Offers a flow to a process of its service, or lets it wait for one.
    pub(super) fn dispatch(&mut self, now: Instant, label: FlowLabel, out: &mut impl ProxyOutput) {
        if self.offer(now, label, out) {
            return;
        }
        let Some(flow) = self.flows.get_mut(label) else { return };
        (flow.stage, flow.since) = (Stage::Pending, now);
        let service = flow.service;
        self.drop_stale_pending(service);
        let Some(service) = self.services.get_mut(service) else { return };
        if service.pending.len() >= PENDING_MAX {
            self.counters.drop_pending_full += 1;
            self.abandon(now, label);
            return;
        }
        service.pending.push_back(label);
    }

    /// Takes connections that are gone off the front of a service's queue.
    fn drop_stale_pending(&mut self, service: u32) {
        let Some(service) = self.services.get_mut(service) else { return };
        let waits = |label: &FlowLabel| self.flows.get(*label).is_some_and(|f| f.stage == Stage::Pending);
        while service.pending.front().is_some_and(|label| !waits(label)) {
            service.pending.pop_front();
        }
    }

    /// When the connection that has waited longest is to be given up.
    pub(super) fn pending_deadline(&self) -> Option<Instant> {
        let first = |queue: &std::collections::VecDeque<FlowLabel>| {
            let live = |label: &FlowLabel| {
                self.flows.get(*label).filter(|f| f.stage == Stage::Pending).map(|f| f.since)
            };
            queue.iter().find_map(live)
        };
        self.services.iter().filter_map(|s| first(&s.pending)).min().map(|since| since + PENDING_TIMEOUT)
    }

    /// Serves whoever waits, of every service: pools have changed.
    pub(super) fn serve_all_pending(&mut self, now: Instant, out: &mut impl ProxyOutput) {
        let members: Vec<MemberId> = self.services.iter().flat_map(|s| s.members.clone()).collect();
        members.into_iter().for_each(|member| self.serve_pending(now, member, out));
    }

    /// Sends OPEN to the chosen process; `false` where none would take a connection.
    fn offer(&mut self, now: Instant, label: FlowLabel, out: &mut impl ProxyOutput) -> bool {
        let Some(flow) = self.flows.get(label) else { return true };
        let Some(info) = self.tcp.info(label) else { return true };
        let window = flow.from_app_window;
        let Some(service) = self.services.get(flow.service) else { return false };
        while let Some(choice) = self.pools.choose(&service.members) {
            let payload = OpenPayload { local: info.tuple.local, remote: info.tuple.remote, window }.emit();
            let header =
                MessageHeader::of_flow(MessageKind::Open, label, choice.listener, payload.len() as u32);
            let lane = out.lane(choice.channel, label.to_wire());
            let Some(lane) = lane.filter(|lane| out.channel(*lane, header, &[&payload]).is_ok()) else {
                self.pools.give_up(choice); // the channel is about to be reported down
                continue;
            };
            if let Some(flow) = self.flows.get_mut(label) {
                (flow.stage, flow.since, flow.lane) = (Stage::Offered(choice), now, lane);
            }
            self.record(now, label, TraceKind::OpenSent, 0);
            return true;
        }
        false
    }

    /// A member can take connections again: serve those that wait for it.
    pub(super) fn serve_pending(&mut self, now: Instant, member: MemberId, out: &mut impl ProxyOutput) {
        for index in 0..self.services.iter().count() as u32 {
            let waits = self
                .services
                .get(index)
                .is_some_and(|s| !s.pending.is_empty() && s.members.contains(&member));
            if !waits {
                continue;
            }
            while let Some(label) = self.services.get(index).and_then(|s| s.pending.front().copied()) {
                let waiting = self.flows.get(label).is_some_and(|f| f.stage == Stage::Pending);
                if waiting && !self.offer(now, label, out) {
                    break;
                }
                if let Some(service) = self.services.get_mut(index) {
                    service.pending.pop_front();
                }
            }
        }
    }

    /// Resets connections that waited too long.
    pub(super) fn expire_pending(&mut self, now: Instant) {
        for index in 0..self.services.iter().count() as u32 {
            while let Some(label) = self.services.get(index).and_then(|s| s.pending.front().copied()) {
                let flow = self.flows.get(label).filter(|f| f.stage == Stage::Pending);
                if flow.is_some_and(|f| f.since + PENDING_TIMEOUT > now) {
                    break;
                }
                if flow.is_some() {
                    self.counters.drop_no_server += 1;
                    self.abandon(now, label);
                }
                if let Some(service) = self.services.get_mut(index) {
                    service.pending.pop_front();
                }
            }
        }
    }

    /// Resets the client's connection and forgets the flow; the application is not told.
    pub(super) fn abandon(&mut self, now: Instant, label: FlowLabel) {
        self.tcp.abort(now, label);
        self.forget(now, label);
    }

    /// Gives back what a flow holds.
    pub(super) fn forget(&mut self, now: Instant, label: FlowLabel) {
        let Some(flow) = self.flows.remove(label) else { return };
        if let Some(choice) = flow.choice() {
            self.pools.release(choice);
        }
        self.budget.release(flow.from_app_window);
        self.note_ended(now, &flow);
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
        self.end_flows(now, channel, None, hangup, out);
        self.drive(now, out);
    }

    /// One VI of a channel's pool is gone, others are left: flows that were on it have lost bytes.
    pub fn lane_down(&mut self, now: Instant, channel: ChannelId, lane: Lane, out: &mut impl ProxyOutput) {
        self.end_flows(now, channel, Some(lane), false, out);
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
        for at in 0..self.flows.capacity() {
            let Some(label) = self.flows.label_at(at) else { continue };
            let Some(flow) = self.flows.get(label).filter(|f| f.channel() == Some(channel)) else { continue };
            if lane.is_some_and(|l| l != flow.lane) {
                continue;
            }
            match flow.stage {
                Stage::Offered(choice) => {
                    self.pools.release(choice);
                    self.dispatch(now, label, out);
                }
                Stage::Open(_) if hangup => self.application_closed(now, label),
                Stage::Open(_) | Stage::Connecting { .. } | Stage::Pending | Stage::Finishing => {
                    self.abandon(now, label)
                }
            }
        }
    }
}
