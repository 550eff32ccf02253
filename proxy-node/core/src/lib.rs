//! The proxy's core: between the tunnels and the channels, sans-I/O (CSP §4.4, the SAN proxy).
//!
//! ```text
//!            ┌ tunnels ┐             ┌─ pump ──┐
//!  record ──▶│ inbound │─▶ csp-tcp ─▶│         │─▶ DATA …  to the application
//!  record ◀──│ outbound│◀─ Stack  ◀──│ service │◀─ DATA …  from it
//!            └─────────┘    │ events └─────────┘
//!                           ▼
//!                       dispatcher: pools, services, backlogs, offers ─▶ OPEN
//!  local: services of the proxy itself, at which streams end
//!  link: the output link, which byte streams and local services share
//!  client: how clients' ends finish, and what they report
//!  egress: sources of active opens          recorder: trace, ended flows, counters
//!  idle: clients that give way to new ones when no room is left
//!  hairpin: connections between two processes, client's ends of each other
//!  upstream: connections of local services to processes and plain servers
//!  servers: connections to plain servers, joined with those of clients
//! ```
//! Each part owns its fields; its methods take what they need of the others as arguments (`Context`).
//! [`ProxyCore`] owns the parts, one worker's flows and TCP engine, and passes each input to the parts that
//! it concerns. It has no clock, socket, thread or logger: the time is an argument, messages leave through
//! [`ProxyOutput`].
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_types)]

mod application;
mod client;
mod connect;
pub mod connection_log;
mod context;
mod counters;
mod dispatch;
mod egress;
mod events;
mod flow;
mod hairpin;
mod idle;
mod link;
mod options;
mod output;
mod preface;
mod pump;
pub mod reason;
mod recorder;
mod servers;
pub mod service;
mod service_counters;
mod shares;
mod snapshot;
mod tls;
mod tunnels;
mod turn;
mod upstream;
mod waits;

use std::collections::HashSet;

use csp_quality::OutputLink;
use csp_tcp::{Buffer, Direction, Stack, StackConfig};
use csp_types::{Grant, Instant, NodeId, TraceRing};
use csp_wire::channel::Message;
use csp_wire::tunnel::{Flags, Record};

pub use application::Verdict;
pub use connection_log::{End, EndedConnection, TlsNote};
pub use counters::Counters;
pub use csp_tls::{
    Certificate, ClientError, ClientIdentity, ClientOptions, ClientTls, ClientVerifier, FailureClass,
    ServerNames, ServerTls, TlsVersion, Trust,
};
pub use dispatch::admission::Process;
pub use dispatch::backlog::{BacklogLimits, NO_SERVER_GRACE};
pub use dispatch::handover::HANDOVER_TIMEOUT;
pub use dispatch::pool::{
    Candidate, ChannelId, Choice, Chosen, Claim, LISTENERS_PER_MEMBER_MAX, MEMBERS_MAX, MemberId, PlainState,
    Pools, ServerChange,
};
pub use dispatch::services::{PoolServer, ServerHost, ServiceSpec, ServiceTcp};
pub use dispatch::withdraw::OFFER_PATIENCE;
pub use egress::{Egress, EgressRule};
pub use flow::{Attachment, Call, Flow, FlowTable, Joint, Stage};
pub use hairpin::{HAIRPIN_WINDOW, HairpinConfig};
pub use output::{Blocked, Lane, ProxyOutput, Way};
pub use pump::budget::SendBudget;
pub use servers::{AllDown, Balance, CheckSpec, HttpCheck, ProxyHeader, Question, ServerOptions};
pub use service_counters::{CLASSES, Counted, EndClass, FIRST_BYTE_BOUNDS_NS, ServiceCounters};
pub use shares::Charge;
pub use snapshot::{FlowSnapshot, MemberSnapshot, RecentFlow, ServiceSnapshot};
pub use tls::{HANDSHAKES_AWAY_MAX, HandshakeStep};
pub use upstream::{CLOSING_MAX, EXCLUDING_MAX};

use context::{Context, Turn};
use dispatch::Dispatcher;
use hairpin::Hairpin;
use idle::IdleClients;
use preface::Prefaces;
use pump::Pump;
use recorder::Recorder;
use servers::Calls;
use service::local::{LocalServices, NoLocalServices};
use tls::Sessions;
use tunnels::{Arrived, Tunnels};
use upstream::Upstreams;

/// Number of ended flows whose addresses are kept.
pub const ENDED_MAX: usize = 4096;
/// Largest number of channels to application processes of one worker.
pub const CHANNELS_MAX: usize = 4096;

/// Capacities of a core; all memory is allocated at start-up.
#[derive(Clone, Debug)]
pub struct CoreConfig {
    /// This worker's number.
    pub worker: u8,
    /// Workers of this proxy.
    pub workers: u8,
    /// The TCP engine's configuration; `first_label_index` and `connections` also size the flow table.
    pub tcp: StackConfig,
    /// Events that the flight recorder holds.
    pub trace_events: usize,
    /// Connections between programs of the cluster that do not use the LAN.
    pub hairpin: HairpinConfig,
    /// Largest number of connections of local services to servers. Their labels follow those of hairpins.
    pub upstreams: usize,
}

/// State of one proxy worker.
#[derive(Debug)]
pub struct ProxyCore<S = NoLocalServices> {
    tcp: Stack,
    tls: Sessions,
    flows: FlowTable,
    hairpin: Hairpin,
    upstreams: Upstreams,
    tunnels: Tunnels,
    dispatcher: Dispatcher,
    pump: Pump,
    egress: Egress,
    idle: IdleClients,
    calls: Calls,
    prefaces: Prefaces,
    recorder: Recorder,
    local: S,
    link: OutputLink,
    /// Whether a policy has been in force. From then on, segments for no service may be refused.
    has_policy: bool,
}

impl ProxyCore {
    /// Creates a core without services, channels or tunnels.
    pub fn new(config: CoreConfig) -> Self {
        Self::with_local_services(config, NoLocalServices)
    }
}

/// Inputs. Received bytes are passed on by the next [`drive`](ProxyCore::drive).
impl<S: LocalServices> ProxyCore<S> {
    /// Creates a core with these local services; the policy binds addresses to them.
    pub fn with_local_services(config: CoreConfig, local: S) -> Self {
        let CoreConfig { worker, workers, tcp, trace_events, hairpin, upstreams } = config;
        let inner = (hairpin.first_label_index, 2 * hairpin.pairs + upstreams);
        let first_upstream = hairpin.first_label_index.max(1) + 2 * hairpin.pairs as u32;
        let (first_index, connections) = (tcp.first_label_index.max(1), tcp.connections);
        // Memory for two messages that arrive while all other memory is in use.
        let landing = 2 * tcp.send_message_len.next_multiple_of(tcp.block_len);
        let send_pool = (tcp.send_blocks() * tcp.block_len).saturating_sub(landing) as u64;
        ProxyCore {
            flows: FlowTable::new([(first_index, connections), inner]),
            tunnels: Tunnels::new(worker, first_index, connections),
            hairpin: Hairpin::new(hairpin),
            upstreams: Upstreams::new(first_upstream, upstreams),
            dispatcher: Dispatcher::new(connections + inner.1),
            pump: Pump::new(connections + inner.1, SendBudget::new(send_pool, tcp.block_len)),
            egress: Egress::new(worker.into(), workers.into(), egress::first_port_seed(&tcp.isn_secret)),
            idle: IdleClients::new(connections),
            calls: Calls::new(egress::first_port_seed(&tcp.isn_secret) ^ u32::from(worker)),
            prefaces: Prefaces::default(),
            tls: Sessions::new(first_index as usize, connections, &tcp.isn_secret),
            recorder: Recorder::new(trace_events),
            tcp: Stack::new(tcp),
            local,
            link: OutputLink::default(),
            has_policy: false,
        }
    }

    fn turn<'a, O: ProxyOutput>(&'a mut self, now: Instant, out: &'a mut O) -> Turn<'a, O, S> {
        let ProxyCore {
            tcp,
            tls,
            flows,
            hairpin,
            upstreams,
            tunnels,
            dispatcher,
            pump,
            egress,
            idle,
            calls,
            prefaces,
            recorder,
            local,
            link,
            ..
        } = self;
        Turn {
            cx: Context { now, flows, tcp, tls, hairpin, upstreams, recorder, out },
            dispatcher,
            pump,
            egress,
            idle,
            calls,
            prefaces,
            tunnels,
            local,
            link,
        }
    }

    /// Processes TCP events, and moves bytes in both directions and segments, up to a limit. To be called
    /// after every batch of input, whenever credits were returned, and again if work remains
    /// ([`is_unfinished`](Self::is_unfinished)).
    pub fn drive(&mut self, now: Instant, out: &mut impl ProxyOutput) {
        self.turn(now, out).drive();
    }

    /// Returns whether the last turn has left work, so that other connections could be served in between.
    pub fn is_unfinished(&self) -> bool {
        self.pump.is_unfinished()
    }

    /// Runs timers that are due, then [`drive`](Self::drive).
    pub fn on_timeout(&mut self, now: Instant, out: &mut impl ProxyOutput) {
        self.turn(now, out).on_timeout();
    }

    /// Processes one record of the network node `via`. The record is in `buffer` of
    /// [`lend_buffer`](Self::lend_buffer) if one is given. Call [`drive`](Self::drive) after a batch of
    /// records.
    ///
    /// Before the first [policy](Self::set_policy) a core knows no service, and would reset connections that
    /// it is about to serve, since a tunnel may come up earlier. Such records are dropped, and their sender
    /// retransmits them.
    pub fn on_record(
        &mut self,
        now: Instant,
        via: u32,
        record: &Record<'_>,
        buffer: Option<&Buffer>,
        out: &mut impl ProxyOutput,
    ) {
        if !self.has_policy && !record.flags.contains(Flags::RETURN_UNKNOWN) {
            self.recorder.counters.drop_no_policy += 1;
            return;
        }
        let mut turn = self.turn(now, out);
        match turn.tunnels.on_record(&mut turn.cx, via, record, buffer) {
            // An ACK may have freed room in the send buffer.
            Arrived::Segment(label) => turn.pump.enqueue(turn.cx.flows, label),
            Arrived::TableFull => turn.keep_reserve(),
            Arrived::AddressesTaken(label) => turn.on_addresses_taken(label),
            Arrived::Done => {}
        }
    }

    /// Processes one message of a channel. The message is in `buffer` of [`lend_buffer`](Self::lend_buffer)
    /// if one is given. Call [`drive`](Self::drive) after a batch of messages.
    pub fn on_message(
        &mut self,
        now: Instant,
        from: (ChannelId, Lane),
        message: &Message<'_>,
        buffer: Option<&Buffer>,
        out: &mut impl ProxyOutput,
    ) -> Verdict {
        self.turn(now, out).on_message(from, message, buffer)
    }

    /// Processes a new tunnel to a worker of a network node. Connections through that worker that waited for
    /// a tunnel continue. All of their labels are announced again, since a client that only receives sends
    /// nothing that would trigger the announcement.
    pub fn tunnel_up(&mut self, now: Instant, via: u32, out: &mut impl ProxyOutput) {
        self.tcp.redirect(via, via);
        self.drive(now, out);
    }

    /// Moves connections to other workers of network nodes: `choose` gets a connection's own address and the
    /// worker that it uses, and returns another one, or `None` if it stays. Call [`drive`](Self::drive)
    /// afterwards.
    pub fn move_to_holders(&mut self, choose: impl Fn(std::net::IpAddr, u32) -> Option<u32>) {
        self.tcp.redirect_where(choose);
    }

    /// Processes the loss of the network node's worker `from`. Its connections move to `to`, a worker of
    /// another network node.
    pub fn network_node_lost(&mut self, now: Instant, from: u32, to: u32, out: &mut impl ProxyOutput) {
        self.tcp.redirect(from, to);
        self.drive(now, out);
    }

    /// Adds a channel to `process`; `false` if [`CHANNELS_MAX`] is reached.
    pub fn channel_up(&mut self, channel: ChannelId, process: Process) -> bool {
        self.dispatcher.channel_up(channel, process)
    }

    /// Replaces the grant of a connected process by that of its new token.
    pub fn set_grant(&mut self, channel: ChannelId, grant: Grant) {
        self.dispatcher.set_grant(channel, grant);
    }

    /// Replaces the application nodes that get no new connections. Those that they have continue.
    pub fn set_draining(&mut self, now: Instant, nodes: HashSet<NodeId>, out: &mut impl ProxyOutput) {
        self.dispatcher.set_draining(nodes);
        self.drive(now, out);
    }

    /// Removes a channel. The flows of its process are offered elsewhere, finished, or reset.
    ///
    /// `hangup`: the process has ended, so its connections end as the kernel would end them (FIN after queued
    /// bytes). Otherwise the link was lost and bytes may be missing: the connections are reset.
    pub fn channel_down(
        &mut self,
        now: Instant,
        channel: ChannelId,
        hangup: bool,
        out: &mut impl ProxyOutput,
    ) {
        self.dispatcher.channel_down(now, channel);
        let mut turn = self.turn(now, out);
        turn.end_flows(channel, None, hangup);
        turn.drive();
    }

    /// Removes one VI of a channel's pool while others are left. `hangup` as for
    /// [`channel_down`](Self::channel_down): the VIs of a process that has ended go down one after the other.
    pub fn lane_down(
        &mut self,
        now: Instant,
        channel: ChannelId,
        lane: Lane,
        hangup: bool,
        out: &mut impl ProxyOutput,
    ) {
        self.dispatcher.lane_down(channel, lane);
        let mut turn = self.turn(now, out);
        turn.end_flows(channel, Some(lane), hangup);
        turn.drive();
    }

    /// Puts a new policy generation into force. Connections of services that it no longer names continue.
    pub fn set_policy(
        &mut self,
        now: Instant,
        services: Vec<ServiceSpec>,
        egress: Vec<EgressRule>,
        out: &mut impl ProxyOutput,
    ) {
        self.has_policy = true;
        self.egress.set_rules(egress);
        let mut turn = self.turn(now, out);
        let before = turn.dispatcher.local_numbers();
        turn.dispatcher.set_services(&mut turn.cx, services);
        turn.set_checks();
        let named = turn.dispatcher.local_numbers();
        before.difference(&named).for_each(|number| turn.local.drain(now, *number));
        turn.drive();
    }
}

/// The log of connections.
impl<S: LocalServices> ProxyCore<S> {
    /// Sets which connections are recorded when they end: `sample` is that of a service by its name
    /// ([`EndedConnection`]); `None`: none. To be called after each [`set_policy`](Self::set_policy).
    pub fn set_connection_log(&mut self, sample: Option<&dyn Fn(&str) -> u32>) {
        let log = &mut self.recorder.log;
        let Some(sample) = sample else { return log.stop() };
        let (first_index, connections) = self.flows.tcp_labels();
        log.begin(first_index, connections);
        for (number, name) in self.dispatcher.service_names() {
            log.set_service(number, name, sample(name));
        }
    }

    /// Returns whether records of connections wait.
    pub fn has_ended_connections(&self) -> bool {
        self.recorder.log.has_ended()
    }

    /// Returns the records of connections that have ended, and how many found no room since the last call;
    /// `room` takes the place of their list.
    pub fn take_ended_connections(&mut self, room: Vec<EndedConnection>) -> (Vec<EndedConnection>, u64) {
        self.recorder.log.take(room)
    }
}

/// Buffers, timers and counters.
impl<S: LocalServices> ProxyCore<S> {
    /// Returns when [`on_timeout`](Self::on_timeout) is to be called; `None` if no timer is set.
    pub fn next_timeout(&self) -> Option<Instant> {
        if self.pump.is_unfinished() {
            return Some(Instant::ZERO);
        }
        let dispatcher = &self.dispatcher;
        let pending = dispatcher.pending_deadline(&self.flows);
        let resets =
            [self.hairpin.resets_deadline(), self.pump.failures_deadline(), self.upstreams.deadline()];
        let own =
            [pending, dispatcher.left_deadline(), dispatcher.offers_deadline()].into_iter().chain(resets);
        let apart = self.upstreams.excluding_len() > 0;
        let calls = [self.calls.deadline(), dispatcher.retry_deadline(apart)];
        let begins = [self.prefaces.deadline(), self.tls.deadline()];
        own.chain(calls)
            .chain(begins)
            .chain([self.tcp.next_timeout(), self.local.next_timeout(), self.link.due()])
            .flatten()
            .min()
    }

    /// Lends memory for the next message: records of a network node, or messages of a process. See
    /// [`Stack::lend`].
    pub fn lend_buffer(&mut self, direction: Direction) -> Option<Buffer> {
        self.tcp.lend(direction)
    }

    /// Returns the memory after the message has been processed.
    pub fn return_buffer(&mut self, buffer: Buffer) {
        self.tcp.give_back(buffer);
    }

    /// Returns the local services.
    pub fn local(&self) -> &S {
        &self.local
    }

    /// Returns the local services. Changes to them take effect with the next [`drive`](Self::drive).
    pub fn local_mut(&mut self) -> &mut S {
        &mut self.local
    }

    /// Returns the counters.
    pub fn counters(&self) -> &Counters {
        &self.recorder.counters
    }

    /// Returns the TCP engine, read-only.
    pub fn tcp(&self) -> &Stack {
        &self.tcp
    }

    /// Returns the number of flows.
    pub fn flow_count(&self) -> usize {
        self.flows.len()
    }

    /// Returns the number of flows of hairpins.
    pub fn hairpin_count(&self) -> usize {
        self.hairpin.live()
    }

    /// Returns the number of upstream connections of local services, and of their unanswered requests.
    pub fn upstream_count(&self) -> usize {
        self.upstreams.live()
    }

    /// Returns the number of flows that wait for descriptors of their process.
    pub fn parked_count(&self) -> usize {
        self.pump.parked_count()
    }

    /// Returns the number of connections that wait for a process, over all services.
    pub fn waiting_count(&self) -> usize {
        self.dispatcher.waiting_count()
    }

    /// Returns the number of connections that a process left and none has taken over yet.
    pub fn left_count(&self) -> usize {
        self.dispatcher.left_count()
    }

    /// Returns the number of pool members.
    pub fn member_count(&self) -> usize {
        self.dispatcher.pools().len()
    }

    /// Returns the number of bytes of the send budget that are granted.
    pub fn budget_reserved(&self) -> u64 {
        self.pump.reserved()
    }

    /// Returns the flight recorder.
    pub fn trace(&self) -> &TraceRing {
        self.recorder.trace()
    }
}
