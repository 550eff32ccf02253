//! One data worker: connects the core to its links. Time is an argument; the surrounding thread
//! (`csp_daemon::DataThread`, or the simulation) waits.

mod election;
mod makers;
mod policy;
mod recording;
mod tunnels;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use csp_gateway::Gateway;
use csp_quality::{Fired, FlowStatus, LinkStatus, SharedLinkConfig, TriggerError};
use csp_services::{
    FlowFields, HandlerJob, MessageBroker, MessagesConfig, MoveNotice, PlanJob, RequestNotice, SpecError,
    View,
};
use csp_tcp::{Buffer, Direction};
use csp_transport::{Adjacency, DeathCause, DownReason, Endpoint, LinkEvent, LinkId, MessageKind};
use csp_types::{Instant, NodeId, OwnedAddresses, Owner, Role, limits};
use csp_vi::{Armed, ViError, Wake};
use csp_wire::channel::Messages;

use crate::core::service::both::Both;
use crate::core::{CoreConfig, Process, ProxyCore, Verdict};
use crate::daemon::{ConnectionLog, HttpBoard, HttpLog, ServiceBoard, WorkerEvents};
use crate::links::Links;
use election::Election;
pub use makers::Signers;
pub use policy::WorkerPolicy;

/// Messages processed from one endpoint in one turn, so that no peer delays the others.
const MESSAGES_PER_TURN: usize = 128;

/// The local services of a worker: channels of messages, and HTTP.
pub type LocalServices = Both<MessageBroker, Gateway>;

/// What a worker needs of the registrations of other nodes.
#[derive(Clone, Debug, Default)]
pub struct Registered {
    /// What network nodes own.
    pub owned: HashMap<NodeId, OwnedAddresses>,
    /// Among how many workers they distribute the answers to connections that proxies open.
    pub lan_workers: HashMap<NodeId, u8>,
    /// Application nodes that get no new connections.
    pub draining: HashSet<NodeId>,
    /// Whether this node gets no new connections.
    pub is_draining: bool,
    /// This node, and all proxy workers that new connections may go to; `None`: not known yet.
    pub proxies: Option<(NodeId, Vec<Owner>)>,
}

/// Information flows: how they share the output link, and the readers of the message fields that their
/// predicates name.
#[derive(Clone, Debug)]
pub struct FlowsConfig {
    /// The flows, and the link that they share.
    pub link: SharedLinkConfig,
    /// Readers of the message fields that the predicates of these flows name.
    pub fields: Arc<FlowFields>,
}

/// Why a part of a policy is not in force.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PolicyError {
    /// A channel of messages.
    #[error(transparent)]
    Channels(#[from] SpecError),
    /// A trigger of information flows.
    #[error("flows: {0}")]
    Flows(#[from] TriggerError),
}

/// A proxy worker.
pub struct ProxyWorker {
    number: u8,
    core: ProxyCore<LocalServices>,
    links: Links,
    scratch: Box<[u8]>,
    /// Number of malformed messages; their links were failed.
    malformed: u64,
    /// What makes handlers that clients bring, if there is something.
    makers: Option<Sender<(u8, HandlerJob)>>,
    /// What plans queries and formats that clients ask for; `None`: the worker.
    planner: Option<Sender<(u8, PlanJob)>>,
    /// What makes the steps of handshakes that take long; `None`: the worker.
    signers: Option<Signers>,
    /// Where connections are recorded; `None`: nowhere.
    log: Option<ConnectionLog>,
    /// Where HTTP requests are recorded; `None`: nowhere.
    http_log: Option<HttpLog>,
    /// How much of clients' addresses records of HTTP requests have.
    http_addresses: csp_policy::LogAddresses,
    /// Where what is counted of HTTP is published; `None`: nowhere.
    http: Option<HttpBoard>,
    /// Where what is counted by service is published; `None`: nowhere.
    services: Option<ServiceBoard>,
    /// Where events are reported; `None`: nowhere.
    events: Option<WorkerEvents>,
    election: Election,
    /// Whether the node gets no new connections.
    is_draining: bool,
}

impl ProxyWorker {
    /// Creates a worker with endpoints that already listen.
    pub fn new(
        config: CoreConfig,
        messages: MessagesConfig,
        tunnel_endpoints: Vec<Endpoint>,
        channel_endpoints: Vec<Endpoint>,
    ) -> Self {
        let scratch =
            vec![0; limits::TUNNEL_MESSAGE_LEN_MAX.max(limits::CHANNEL_MESSAGE_LEN_MAX)].into_boxed_slice();
        let links = Links::new(tunnel_endpoints, channel_endpoints);
        let number = config.worker;
        let local = Both::new(MessageBroker::new(messages), Gateway::new(number.into()));
        let core = ProxyCore::with_local_services(config, local);
        let election = Election::new();
        ProxyWorker {
            number,
            core,
            links,
            scratch,
            malformed: 0,
            makers: None,
            planner: None,
            signers: None,
            events: None,
            log: None,
            http_log: None,
            http_addresses: csp_policy::LogAddresses::default(),
            http: None,
            services: None,
            election,
            is_draining: false,
        }
    }

    /// Gives the local services random bytes of a cryptographic generator: for the handshakes of channels
    /// with keys, and for ids of requests.
    pub fn seed(&mut self, seed: [u8; 32]) {
        self.broker_mut().seed(seed);
        let [a, b, c, d, e, f, g, h, ..] = seed;
        self.gateway_mut().seed(u64::from_le_bytes([a, b, c, d, e, f, g, h]));
    }

    /// Returns the worker's number.
    pub(crate) fn number(&self) -> u8 {
        self.number
    }

    /// Sets the network node whose workers share the threads of this node's. Records for the one of this
    /// worker's thread go to it without a message.
    pub fn set_adjacency(&mut self, adjacency: Arc<Adjacency>) {
        self.links.adjacent.set(adjacency, self.number);
    }

    /// Returns the number of records that went to the network node without a message.
    pub fn records_handed_over(&self) -> u64 {
        self.links.adjacent.taken()
    }

    /// Returns the number of buffers in which the network node has left records without a message.
    pub fn buffers_left(&self) -> u64 {
        self.links.adjacent.left()
    }

    /// Returns the TCP engine's memory, in bytes, that is lent to the network node between two turns.
    pub fn bytes_lent(&self) -> usize {
        self.links.adjacent.lent()
    }

    /// Processes what has arrived (bounded) and sends what results. Returns whether there was anything to do.
    pub fn turn(&mut self, now: Instant, unix_now_s: u64) -> bool {
        let mut busy = self.links.adjacent.begin_turn();
        busy |= self.take_left(now);
        self.links.adjacent.open();
        for at in 0..self.links.tunnel_endpoints.len() {
            busy |= self.links.tunnel_endpoints[at].progress(now, unix_now_s);
            busy |= self.take_tunnel(now, at);
        }
        for at in 0..self.links.channel_endpoints.len() {
            busy |= self.links.channel_endpoints[at].progress(now, unix_now_s);
            busy |= self.take_channel(now, at);
        }
        if self.core.next_timeout().is_some_and(|t| t <= now) {
            self.core.on_timeout(now, &mut self.links);
            busy = true;
        }
        self.take_part(now);
        self.core.drive(now, &mut self.links);
        self.ask_others(now);
        self.links.flush(now);
        self.lend_inbox();
        busy || self.core.is_unfinished()
    }

    fn take_channel(&mut self, now: Instant, at: usize) -> bool {
        let mut any = false;
        for _ in 0..MESSAGES_PER_TURN {
            while let Some(event) = self.links.channel_endpoints[at].poll_event() {
                any = true;
                self.channel_event(now, at, event);
            }
            if !self.take_channel_message(now, at) {
                break;
            }
            any = true;
        }
        any
    }

    fn channel_event(&mut self, now: Instant, at: usize, event: LinkEvent) {
        match event {
            LinkEvent::Up { link, peer, .. } => match self.links.channel_link_up(at, link, &peer) {
                Some((id, true)) => {
                    let grant = self.links.channel_endpoints[at].grant(link);
                    let (name, node) = (peer.process.as_str().to_owned(), peer.node);
                    let process = Process { node, name, uid: peer.uid, grant };
                    if peer.role != Role::Process || !self.core.channel_up(id, process) {
                        self.links.channel_endpoints[at].close(now, link);
                    }
                }
                Some((id, false)) => self.core.set_grant(id, self.links.channel_endpoints[at].grant(link)),
                None => self.links.channel_endpoints[at].close(now, link),
            },
            LinkEvent::Down { link, reason } => {
                // Where a VI ends only with one of its ends, a hang-up always comes from the process itself.
                // Over the SAN the process's agent signals it by CLOSE; without that the link is lost, and
                // bytes may be missing.
                let can_break = self.links.channel_endpoints[at].can_break();
                let hangup = match reason {
                    DownReason::Closed => true,
                    DownReason::Died(DeathCause::HangUp) => !can_break,
                    _ => false,
                };
                match self.links.channel_link_down(at, link) {
                    Some((id, _, true)) => self.core.channel_down(now, id, hangup, &mut self.links),
                    Some((id, lane, false)) => self.core.lane_down(now, id, lane, hangup, &mut self.links),
                    None => {}
                }
            }
        }
    }

    /// As [`take_tunnel_message`](Self::take_tunnel_message), for a message of a process.
    fn take_channel_message(&mut self, now: Instant, at: usize) -> bool {
        let mut buffer = self.core.lend_buffer(Direction::Send);
        let into = buffer.as_mut().map_or(&mut self.scratch[..], Buffer::bytes_mut);
        let received = self.links.channel_endpoints[at].receive(now, into);
        if let Some(received) = received.filter(|received| received.kind == MessageKind::Channel) {
            self.take_messages(now, at, received.link, received.len, buffer.as_ref());
        }
        buffer.into_iter().for_each(|buffer| self.core.return_buffer(buffer));
        received.is_some()
    }

    fn take_messages(&mut self, now: Instant, at: usize, link: LinkId, len: usize, buffer: Option<&Buffer>) {
        let Some((channel, lane)) = self.links.channel_of(at, link) else { return };
        let bytes = buffer.map_or(&self.scratch[..], Buffer::bytes);
        for message in Messages::new(&bytes[..len.min(bytes.len())]) {
            let verdict = match message {
                Ok(message) => self.core.on_message(now, (channel, lane), &message, buffer, &mut self.links),
                Err(_) => {
                    self.malformed += 1;
                    Verdict::Violation
                }
            };
            if verdict == Verdict::Violation {
                self.links.channel_endpoints[at].fail(now, link);
                return;
            }
        }
    }

    /// Sets the clock by which the calls of handlers are measured.
    pub fn set_clock(&mut self, clock: fn() -> Instant) {
        self.core.set_link_clock(clock);
        self.broker_mut().set_clock(clock);
    }

    /// Puts a new policy generation into force.
    ///
    /// # Errors
    /// A channel of messages that cannot be served, or a trigger of flows that is not valid; everything else
    /// is in force.
    pub fn set_policy(&mut self, now: Instant, policy: WorkerPolicy) -> Result<(), PolicyError> {
        self.take_left(now);
        let served = self.broker_mut().apply(now, &policy.messages).map_err(PolicyError::from);
        self.gateway_mut().set_challenges(policy.challenges);
        let WorkerPolicy { services, egress, http, flows, vip_groups, log, http_addresses, .. } = policy;
        self.http_log.iter_mut().for_each(|writer| writer.set_addresses(http_addresses));
        self.http_addresses = http_addresses;
        self.gateway_mut().set_services(now, http);
        self.links.holders.set_groups(vip_groups);
        let served = served.and(self.set_flows(now, flows).map_err(PolicyError::from));
        self.core.set_policy(now, services, egress, &mut self.links);
        match &log {
            Some(log) => {
                self.core.set_connection_log(Some(&|service| log.sample(service)));
                self.log.iter_mut().for_each(|writer| writer.set_addresses(log.addresses));
            }
            None => self.core.set_connection_log(None),
        }
        self.follow_holders();
        self.links.flush(now);
        served
    }

    fn set_flows(&mut self, now: Instant, flows: Option<FlowsConfig>) -> Result<(), TriggerError> {
        let number = self.number.into();
        let in_force = self.core.link().shared().map(|link| link.table().generation());
        let link = flows.map(|FlowsConfig { link, fields }| {
            self.broker_mut().set_flow_fields(in_force, link.plan.table().generation(), fields);
            SharedLinkConfig { board: (link.board.0, number), ..link }
        });
        self.core.set_link(now, link)
    }

    /// Applies what nodes have registered. Connections of a lost network node that wait for it move to one
    /// that owns their addresses now.
    pub fn set_registered(&mut self, now: Instant, registered: Registered) {
        self.take_left(now);
        let Registered { owned, lan_workers, draining, is_draining, proxies } = registered;
        self.is_draining = is_draining;
        if let Some((proxy, workers)) = proxies {
            let here = Owner { proxy, worker: self.number };
            self.broker_mut().set_view(now, View { here, workers });
        }
        self.links.set_lan_workers(lan_workers);
        self.links.set_owned(owned);
        self.move_connections(now);
        self.core.set_draining(now, draining, &mut self.links);
        self.links.flush(now);
    }

    /// Returns the next event of the message broker to log, if any.
    pub fn poll_notice(&mut self) -> Option<MoveNotice> {
        self.broker_mut().poll_notice()
    }

    /// Returns the next event of queries on request to log, if any.
    pub fn poll_request_notice(&mut self) -> Option<RequestNotice> {
        self.broker_mut().poll_request_notice()
    }

    /// Returns the state of the output link and of its information flows; `None` if there are none.
    pub fn link_status(&mut self, now: Instant) -> Option<(LinkStatus, Vec<FlowStatus>)> {
        self.core.link_status(now)
    }

    /// Returns the next change of a flows' trigger to log, if any.
    pub fn poll_fired(&mut self) -> Option<(String, Fired)> {
        self.core.next_fired()
    }

    fn move_connections(&mut self, now: Instant) {
        while let Some((from, to)) = self.links.next_move() {
            self.core.network_node_lost(now, from, to, &mut self.links);
        }
    }

    /// Returns when to call [`turn`](Self::turn) next if nothing arrives.
    pub fn next_timeout(&self) -> Option<Instant> {
        let endpoints = self.endpoints().filter_map(Endpoint::next_timeout);
        endpoints.chain(self.core.next_timeout()).chain(self.election.next_timeout()).min()
    }

    /// Arms all endpoints' wake descriptors.
    pub fn arm(&mut self) -> Result<Armed, ViError> {
        if self.links.adjacent.is_left() {
            return Ok(Armed::Busy);
        }
        self.shrink_inbox();
        for endpoint in self.links.tunnel_endpoints.iter_mut().chain(&mut self.links.channel_endpoints) {
            if endpoint.arm()? == Armed::Busy {
                return Ok(Armed::Busy);
            }
        }
        Ok(Armed::Armed)
    }

    /// Appends the descriptors to wait on to `into`.
    pub fn wake(&self, into: &mut Vec<Wake>) {
        self.endpoints().for_each(|endpoint| endpoint.wake(into));
    }

    /// Returns a number that changes whenever the set of [`wake`](Self::wake) changes.
    pub fn wake_generation(&self) -> u64 {
        self.endpoints().map(Endpoint::wake_generation).fold(0, u64::wrapping_add)
    }

    /// Closes every link cleanly.
    pub fn close(&mut self, now: Instant) {
        self.take_left(now);
        self.links.adjacent.close();
        for endpoint in self.links.tunnel_endpoints.iter_mut().chain(&mut self.links.channel_endpoints) {
            let links: Vec<LinkId> = endpoint.links().map(|info| info.link).collect();
            links.into_iter().for_each(|link| endpoint.close(now, link));
        }
    }

    /// Returns the message broker.
    pub fn broker_mut(&mut self) -> &mut MessageBroker {
        self.core.local_mut().first_mut()
    }

    /// Returns the message broker, read-only.
    pub fn broker(&self) -> &MessageBroker {
        self.core.local().first()
    }

    /// Has clients of HTTP go elsewhere while the node drains. Called now and then, since connections come
    /// until network nodes know.
    pub(crate) fn drain_clients(&mut self, now: Instant) {
        if self.is_draining {
            self.gateway_mut().drain_all(now);
        }
    }

    /// Returns the HTTP gateway.
    pub fn gateway_mut(&mut self) -> &mut Gateway {
        self.core.local_mut().second_mut()
    }

    /// Returns the HTTP gateway, read-only.
    pub fn gateway(&self) -> &Gateway {
        self.core.local().second()
    }

    /// Returns the core, read-only.
    pub fn core(&self) -> &ProxyCore<LocalServices> {
        &self.core
    }

    /// Returns the endpoints, tunnels' first, read-only.
    pub fn endpoints(&self) -> impl Iterator<Item = &Endpoint> {
        self.links.tunnel_endpoints.iter().chain(&self.links.channel_endpoints)
    }

    /// Returns the connected network nodes.
    pub fn network_nodes(&self) -> Vec<NodeId> {
        self.links.network_nodes().collect()
    }

    /// Returns the number of malformed messages.
    pub fn malformed(&self) -> u64 {
        self.malformed
    }
}
