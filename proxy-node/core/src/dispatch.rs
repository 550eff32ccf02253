//! Assigns established client connections to processes.
//!
//! The dispatcher owns the processes and their listeners ([`pool`]), the services with their backlogs
//! ([`services`], [`backlog`]), the outstanding offers ([`withdraw`]) and the connections between two owners
//! ([`handover`]). It moves no bytes.

pub(crate) mod admission;
pub(crate) mod backlog;
pub(crate) mod handover;
mod plain;
pub(crate) mod pool;
pub(crate) mod services;
pub(crate) mod withdraw;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::net::SocketAddr;

use csp_tcp::Stack;
use csp_types::{FlowLabel, Grant, Instant, NodeId, TraceKind};
use csp_wire::channel::{MessageHeader, MessageKind, OpenPayload};

use self::admission::Process;
use self::backlog::NO_SERVER_GRACE;
use self::handover::Left;
use self::pool::{ChannelId, Choice, Chosen, ListenError, MemberId, Pools};
use self::services::{Changes, Service, ServiceSpec, Services};
use self::withdraw::Offers;
use super::context::Context;
use super::flow::{Call, Flow, FlowTable, Stage};
use super::recorder::Recorder;
use super::service::upstream::{Excluded, OpenError};
use super::shares::User;
use super::{CHANNELS_MAX, Lane, ProxyOutput, reason};

/// The dispatcher of one worker.
#[derive(Debug)]
pub(crate) struct Dispatcher {
    pools: Pools,
    services: Services,
    processes: HashMap<ChannelId, Process>,
    offers: Offers,
    left: Left,
    /// Clients for which a plain server was chosen, and no connection to it opened yet.
    calls: VecDeque<FlowLabel>,
    /// Number of connections established so far.
    arrivals: u64,
}

/// Processes and their listeners.
impl Dispatcher {
    /// Creates a dispatcher for at most `connections` flows, without services and processes.
    pub(crate) fn new(connections: usize) -> Self {
        Dispatcher {
            pools: Pools::new(),
            services: Services::default(),
            processes: HashMap::with_capacity(CHANNELS_MAX),
            offers: Offers::new(connections),
            left: Left::default(),
            calls: VecDeque::with_capacity(64),
            arrivals: 0,
        }
    }

    /// Adds a channel to a process; `false` if [`CHANNELS_MAX`] is reached.
    pub(crate) fn channel_up(&mut self, channel: ChannelId, process: Process) -> bool {
        if self.processes.len() >= CHANNELS_MAX {
            return false;
        }
        self.processes.insert(channel, process);
        true
    }

    /// Replaces the grant of a connected process by that of its new token.
    pub(crate) fn set_grant(&mut self, channel: ChannelId, grant: Grant) {
        if let Some(process) = self.processes.get_mut(&channel) {
            process.grant = grant;
        }
    }

    /// Replaces the application nodes that get no new connections.
    pub(crate) fn set_draining(&mut self, nodes: HashSet<NodeId>) {
        self.pools.set_draining(nodes);
        self.pools.set_unreviewed();
    }

    /// Removes a channel, with its process's listeners.
    pub(crate) fn channel_down(&mut self, now: Instant, channel: ChannelId) {
        self.processes.remove(&channel);
        self.pools.remove_channel(now, channel);
        self.offers.remove_channel(channel, None);
    }

    /// Processes the loss of one lane of a channel.
    pub(crate) fn lane_down(&mut self, channel: ChannelId, lane: Lane) {
        self.offers.remove_channel(channel, Some(lane));
    }

    /// Processes LISTEN. The error is the reason code of REFUSED.
    pub(crate) fn listen(
        &mut self,
        recorder: &mut Recorder,
        channel: ChannelId,
        listener: u32,
        address: SocketAddr,
    ) -> Result<(), u32> {
        let Some(process) = self.processes.get(&channel) else { return Ok(()) };
        let claim = process
            .may_listen(address.port(), &self.pools)
            .inspect_err(|_| recorder.counters.listens_denied += 1)?;
        match self.pools.listen(process.node, address, channel, listener) {
            Ok(member) => {
                self.pools.claim(member, claim);
                Ok(())
            }
            Err(ListenError::Duplicate) => Err(reason::ADDRESS_IN_USE),
            Err(ListenError::Full) => Err(reason::NO_BUFFERS),
        }
    }

    /// Checks CONNECT to `remote`. The error is the reason code of REFUSED.
    pub(crate) fn may_connect(
        &self,
        recorder: &mut Recorder,
        channel: ChannelId,
        remote: SocketAddr,
    ) -> Result<(), u32> {
        let Some(process) = self.processes.get(&channel) else { return Ok(()) };
        process.may_connect(remote).inspect_err(|_| recorder.counters.connects_denied += 1)
    }

    /// Returns the user whose share a process's connections count against; `None` if they are not limited.
    pub(crate) fn user_of(&self, channel: ChannelId) -> Option<User> {
        let process = self.processes.get(&channel)?;
        Some((process.node, process.uid.filter(|uid| *uid != admission::ROOT)?))
    }

    /// Processes UNLISTEN.
    pub(crate) fn unlisten(&mut self, now: Instant, channel: ChannelId, listener: u32) {
        self.pools.unlisten(now, channel, listener);
    }

    /// Processes ACCEPT_CREDIT.
    pub(crate) fn grant(&mut self, channel: ChannelId, listener: u32, more: u32) {
        self.pools.grant(channel, listener, more);
    }

    /// Processes the withdrawal of a listener's accept credit. Returns the unused part.
    pub(crate) fn withdraw_credit(&mut self, channel: ChannelId, listener: u32) -> u32 {
        self.pools.withdraw_credit(channel, listener)
    }

    /// Returns node and name of a flow's process, for display.
    pub(crate) fn process_of(&self, flow: &Flow) -> Option<(NodeId, &str)> {
        let process = self.processes.get(&flow.channel()?)?;
        Some((process.node, process.name.as_str()))
    }

    /// Returns the numbers and names of all services of the policy.
    pub(crate) fn service_names(&self) -> impl Iterator<Item = (u32, &str)> {
        self.services.numbers().filter_map(|number| {
            let service = self.services.get(number).filter(|service| service.active)?;
            Some((number, service.spec.name.as_str()))
        })
    }

    /// Returns the name of the process of a channel.
    pub(crate) fn process_name(&self, channel: ChannelId) -> &str {
        self.processes.get(&channel).map_or("", |process| process.name.as_str())
    }

    /// Returns all pool members.
    pub(crate) fn pools(&self) -> &Pools {
        &self.pools
    }

    /// Returns the servers that came into use or went out of it since the last call.
    pub(crate) fn take_server_changes(&mut self) -> Vec<pool::ServerChange> {
        let services = &self.services;
        self.pools.take_changes(|number| services.get(number).map(|service| service.spec.name.as_str()))
    }
}

/// Services and their flows.
impl Dispatcher {
    /// Replaces the services by those of a new policy generation; the engine then listens at their addresses.
    pub(crate) fn set_services<O>(&mut self, cx: &mut Context<'_, O>, services: Vec<ServiceSpec>) {
        let Changes { listen, gone, begun } = self.services.replace(cx.now, services, &mut self.pools);
        begun.into_iter().for_each(|place| cx.recorder.services.begin(place));
        for address in gone {
            cx.tcp.unlisten(address);
        }
        for (address, service) in listen {
            cx.tcp.unlisten(address);
            let tcp = self.services.get(service).map_or_else(Default::default, |s| s.spec.tcp);
            let options = tcp.options(cx.tcp.config());
            let _ = cx.tcp.listen_with(address, service, options); // policy has no port 0, and fewer services than listeners
            if let Some(service) = self.services.get_mut(service) {
                service.backlog_full = false; // the engine's listener is new
            }
            self.note_backlog(cx.tcp, service);
        }
        self.pools.set_readied(); // waiting connections may belong to another service now
        self.pools.set_unreviewed();
    }

    /// Returns a service by its number.
    pub(crate) fn service(&self, number: u32) -> Option<&Service> {
        self.services.get(number)
    }

    /// Returns the number and address of the service of this name.
    pub(crate) fn service_named(&self, name: &str) -> Option<(u32, SocketAddr)> {
        let number = self.services.named(name)?;
        self.services.get(number).filter(|service| service.active).map(|s| (number, s.spec.address))
    }

    /// Checks that a request of a local service can be served by this service when the `excluded` members are
    /// left out. Returns those of the excluded members that exist.
    pub(crate) fn check_members(&self, service: u32, excluded: &Excluded) -> Result<Excluded, OpenError> {
        let service = self.services.get(service).ok_or(OpenError::NoService)?;
        if service.spec.local.is_some() || service.spec.between.is_some() {
            return Err(OpenError::NoService);
        }
        if service.is_full() {
            return Err(OpenError::NoRoom);
        }
        let id = |member: MemberId| self.pools.get(member).map(|m| m.id(member));
        let excluded = excluded.only(|server| id(server.member) == Some(server));
        let members = || service.members().filter_map(|id| Some((id, self.pools.get(id)?)));
        let mut allowed = members().filter(|(id, _)| !excluded.has(*id)).peekable();
        match () {
            () if members().next().is_none() => Err(OpenError::NoMember),
            () if allowed.peek().is_none() => Err(OpenError::AllExcluded),
            () if allowed.all(|(_, member)| member.is_draining()) => Err(OpenError::Draining),
            () => Ok(excluded),
        }
    }

    /// Returns the numbers of the local services that the policy names.
    pub(crate) fn local_numbers(&self) -> BTreeSet<u32> {
        self.services
            .iter()
            .filter(|service| service.active)
            .filter_map(|service| service.spec.local)
            .collect()
    }

    /// Returns the service at an address if its backlog has room, and a connection without TCP can reach all
    /// of its members.
    pub(crate) fn service_at(&self, address: SocketAddr) -> Option<u32> {
        let number = self.services.at(address)?;
        let service = self.services.get(number).filter(|service| !service.is_full())?;
        let is_plain = |id| self.pools.get(id).is_some_and(|member| member.node().is_none());
        (!service.members().any(is_plain)).then_some(number)
    }

    /// Returns the next number in the order of arrival.
    pub(crate) fn next_arrival(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }

    /// Counts a new flow of this service.
    pub(crate) fn flow_began(&mut self, service: u32) {
        self.services.flow_began(service);
    }

    /// Releases the dispatcher's state of a flow that was removed from the table.
    pub(crate) fn flow_ended(&mut self, flows: &FlowTable, tcp: &mut Stack, flow: &Flow) {
        match (flow.stage, flow.choice()) {
            (Stage::Offered(_), Some(choice)) => self.pools.void(choice),
            (_, Some(choice)) => self.pools.release(choice),
            (_, None) => {}
        }
        if let Some(plain) = flow.plain() {
            self.release_plain(plain);
        }
        self.offers.remove(flow.label);
        self.left_ended(flow);
        if flow.waiting {
            self.left_backlog(flows, tcp, flow.service);
        }
        self.services.flow_ended(flow.service, &mut self.pools);
    }

    /// Releases the choice of a flow that its process no longer uses.
    pub(crate) fn release(&mut self, choice: Choice) {
        self.pools.release(choice);
    }

    /// Processes ACCEPTED, the answer of a process to its offer.
    pub(crate) fn accepted(&mut self, flows: &FlowTable, choice: Choice) {
        self.pools.accepted(choice);
        self.drop_answered(flows);
    }

    /// Returns the number of connections that wait for a process, over all services.
    pub(crate) fn waiting_count(&self) -> usize {
        let service = |number: &u32| self.services.get(*number).map(|service| service.backlog.len());
        self.services.waiting().iter().filter_map(service).sum()
    }
}

/// Offers and backlogs.
impl Dispatcher {
    /// Offers a flow to a process of its service, or inserts it into the backlog in order of arrival.
    pub(crate) fn dispatch(&mut self, cx: &mut Context<'_, impl ProxyOutput>, label: FlowLabel) {
        let Some(flow) = cx.flows.get(label) else { return };
        let (service, arrived) = (flow.service, flow.arrived);
        let none_waits = self.services.get(service).is_some_and(|s| s.backlog.is_empty());
        if none_waits && self.offer(cx, label) {
            return;
        }
        let apart = cx.upstreams.wait(label);
        let Some(flow) = cx.flows.set_stage(cx.now, label, Stage::Pending) else { return };
        if apart {
            return;
        }
        flow.waiting = true;
        self.services.wait(service, arrived, label);
        self.note_backlog(cx.tcp, service);
        if !none_waits {
            while self.serve_first(cx, service) {}
        }
    }

    /// Returns whether processes have become ready since the backlogs were served.
    pub(crate) fn is_readied(&self) -> bool {
        self.pools.is_readied()
    }

    /// Serves the backlogs of all services after processes have become ready to accept: in order of arrival
    /// across services, because services may share processes.
    pub(crate) fn serve_backlogs(&mut self, cx: &mut Context<'_, impl ProxyOutput>) {
        if !self.pools.take_readied() {
            return;
        }
        self.serve_excluding(cx);
        if self.services.waiting().is_empty() {
            return;
        }
        let mut services = self.services.waiting().to_vec();
        let first = |dispatcher: &Self, flows: &FlowTable, service: u32| {
            Some(flows.get(dispatcher.first_pending(service)?)?.arrived)
        };
        while let Some(service) =
            services.iter().copied().min_by_key(|s| first(self, cx.flows, *s).unwrap_or(u64::MAX))
        {
            if !self.serve_first(cx, service) {
                services.retain(|other| *other != service);
            }
        }
    }

    /// Serves requests with excluded members, in order of arrival.
    fn serve_excluding(&mut self, cx: &mut Context<'_, impl ProxyOutput>) {
        for _ in 0..cx.upstreams.excluding_len() {
            let Some(label) = cx.upstreams.next_excluding() else { return };
            let waits = cx.flows.get(label).is_some_and(|flow| flow.stage == Stage::Pending);
            if waits && !self.offer(cx, label) {
                cx.upstreams.wait(label);
            }
        }
    }

    /// Returns when the next waiting connection expires.
    pub(crate) fn pending_deadline(&self, flows: &FlowTable) -> Option<Instant> {
        let deadline = |service: &u32| self.backlog_deadline(flows, *service).map(|(at, _)| at);
        self.services.waiting().iter().filter_map(deadline).min()
    }

    /// Returns a connection that has waited too long, and whether processes of its service listen.
    pub(crate) fn next_expired(&self, now: Instant, flows: &FlowTable) -> Option<(FlowLabel, bool)> {
        self.services.waiting().iter().find_map(|service| {
            let (_, served) = self.backlog_deadline(flows, *service).filter(|(at, _)| *at <= now)?;
            Some((self.first_pending(*service)?, served))
        })
    }

    /// Returns when the connection that arrived first at a service expires, and whether the service has
    /// processes.
    fn backlog_deadline(&self, flows: &FlowTable, number: u32) -> Option<(Instant, bool)> {
        let service = self.services.get(number)?;
        let first = flows.get(service.backlog.first()?)?;
        let unserved = self.pools.unserved_since(service.weighted_members());
        let unserved = unserved.filter(|_| !service.serves_anyhow(&self.pools));
        let grace = unserved.map(|since| first.began.max(since) + NO_SERVER_GRACE);
        let time = service.spec.backlog.time.map(|time| first.began + time);
        Some(([grace, time].into_iter().flatten().min()?, unserved.is_none()))
    }

    /// Sends OPEN to a process, or calls a plain server; `false` if none would accept a connection.
    fn offer(&mut self, cx: &mut Context<'_, impl ProxyOutput>, label: FlowLabel) -> bool {
        let known = cx.flows.get(label).map(|flow| (flow.service, flow.tuple));
        let Some((number, tuple)) = known else { return true };
        let excluded = *cx.upstreams.excluded(label);
        while let Some(service) = self.services.get_mut(number) {
            let may_call = cx.may_call(label);
            let resort = service.resort(&self.pools, &excluded, may_call);
            let candidates = service.members_but(&excluded, resort, tuple.remote.ip());
            let local = tuple.local.ip();
            let barred = |channel| self.offers.is_barred(label, channel);
            let chosen = match may_call {
                true => self.pools.choose_any(cx.now, candidates, local, barred),
                false => self.pools.choose(cx.now, candidates, local, barred).map(Chosen::Process),
            };
            let member = match chosen {
                None => return false,
                Some(Chosen::Process(choice)) => choice.member,
                Some(Chosen::Plain(member)) => member,
            };
            let warmth = self.pools.warmth(cx.now, member, service.spec.servers.slow_start);
            service.chosen(member, warmth);
            match chosen {
                Some(Chosen::Process(choice)) if !self.send_open(cx, label, choice) => {}
                Some(Chosen::Plain(_)) => {
                    let call = Call { member, server: FlowLabel::NONE };
                    cx.flows.set_stage(cx.now, label, Stage::Calling(call));
                    self.calls.push_back(label);
                    return true;
                }
                _ => return true,
            }
        }
        false
    }

    /// Sends OPEN to this process; `false` if its lane is down.
    fn send_open(
        &mut self,
        cx: &mut Context<'_, impl ProxyOutput>,
        label: FlowLabel,
        choice: Choice,
    ) -> bool {
        let open = cx.flows.get(label).map(|flow| OpenPayload {
            local: flow.tuple.local,
            remote: flow.tuple.remote,
            window: flow.from_app_window,
        });
        let lane = cx.out.lane(choice.channel, label.to_wire());
        let sent = open.zip(lane).is_some_and(|(open, lane)| {
            let payload = open.emit();
            let header =
                MessageHeader::of_flow(MessageKind::Open, label, choice.listener, payload.len() as u32);
            cx.send(lane, header, &payload)
        });
        let Some(lane) = lane.filter(|_| sent) else {
            self.pools.give_up(choice); // the loss of the channel is about to be reported
            return false;
        };
        if let Some(flow) = cx.flows.set_stage(cx.now, label, Stage::Offered(choice)) {
            flow.lane = lane;
        }
        self.watch_offer(cx.now, cx.flows, label);
        cx.record(label, TraceKind::OpenSent, 0);
        true
    }

    /// Offers the connection that arrived first at a service; `false` if none waits or no process can be
    /// offered it.
    fn serve_first(&mut self, cx: &mut Context<'_, impl ProxyOutput>, service: u32) -> bool {
        let Some(label) = self.first_pending(service) else { return false };
        if !self.offer(cx, label) {
            return false;
        }
        if let Some(flow) = cx.flows.get_mut(label).filter(|f| f.waiting) {
            flow.waiting = false;
            self.left_backlog(cx.flows, cx.tcp, service);
        }
        true
    }

    /// Returns the waiting connection that arrived first at a service.
    fn first_pending(&self, service: u32) -> Option<FlowLabel> {
        self.services.get(service)?.backlog.first()
    }

    fn left_backlog(&mut self, flows: &FlowTable, tcp: &mut Stack, service: u32) {
        let waits = |arrived, label| flows.get(label).is_some_and(|f| f.waiting && f.arrived == arrived);
        self.services.left_backlog(service, waits);
        self.note_backlog(tcp, service);
    }

    /// Sets in the engine whether a service's backlog is full.
    fn note_backlog(&mut self, tcp: &mut Stack, number: u32) {
        let Some(service) = self.services.get_mut(number) else { return };
        let full = service.is_full();
        if service.active && std::mem::replace(&mut service.backlog_full, full) != full {
            tcp.set_backlog_full(service.spec.address, full);
        }
    }
}
