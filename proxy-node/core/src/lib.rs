//! The proxy's core: between the tunnels and the channels, sans-I/O (CSP §4.4, the SAN proxy).
//!
//! ```text
//!            ┌ tunnels ┐             ┌─ pump ──┐
//!  record ──▶│ inbound │─▶ csp-tcp ─▶│         │─▶ DATA …  to the application
//!  record ◀──│ outbound│◀─ Stack  ◀──│ service │◀─ DATA …  from it
//!            └─────────┘    │ events └─────────┘
//!                           ▼
//!                       dispatcher: pools, services, backlogs, offers ─▶ OPEN
//!  egress: sources of active opens          recorder: trace, ended flows, counters
//!  hairpin: connections between two processes, client's ends of each other
//! ```
//! Each part owns its fields; its methods take what they need of the others by argument (`Context`).
//! [`ProxyCore`] owns the parts, one worker's flows and TCP engine, and passes each input to the parts that it concerns. It
//! has no clock, socket, thread or logger; the time is an argument, messages leave through [`ProxyOutput`].
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_types)]

mod application;
mod connect;
mod context;
mod counters;
mod dispatch;
mod egress;
mod events;
mod flow;
mod hairpin;
mod options;
mod output;
mod pump;
pub mod reason;
mod recorder;
pub mod service;
mod snapshot;
mod tunnels;
mod turn;

use csp_tcp::{Buffer, Direction, Stack, StackConfig};
use csp_types::{Grant, Instant, TraceRing};
use csp_wire::channel::Message;
use csp_wire::tunnel::Record;

pub use application::Verdict;
pub use counters::Counters;
pub use dispatch::admission::Process;
pub use dispatch::backlog::{BacklogLimits, NO_SERVER_GRACE};
pub use dispatch::handover::HANDOVER_TIMEOUT;
pub use dispatch::pool::{ChannelId, Choice, Claim, LISTENERS_PER_MEMBER_MAX, MEMBERS_MAX, MemberId, Pools};
pub use dispatch::services::{PoolServer, ServiceSpec, ServiceTcp};
pub use dispatch::withdraw::OFFER_PATIENCE;
pub use egress::{Egress, EgressRule};
pub use flow::{Attachment, Flow, FlowTable, Stage};
pub use hairpin::{HAIRPIN_WINDOW, HairpinConfig};
pub use output::{Blocked, Lane, ProxyOutput};
pub use pump::budget::SendBudget;
pub use snapshot::{FlowSnapshot, MemberSnapshot, RecentFlow, ServiceSnapshot};

use connect::NO_TUNNEL;
use context::{Context, Turn};
use dispatch::Dispatcher;
use hairpin::Hairpin;
use pump::Pump;
use recorder::Recorder;
use tunnels::{Arrived, Tunnels};

/// Flows that are over and still known by their addresses.
pub const ENDED_MAX: usize = 4096;
/// Channels to application processes that one worker serves at once.
pub const CHANNELS_MAX: usize = 4096;

/// How a core is sized; all of it is taken at start-up.
#[derive(Clone, Debug)]
pub struct CoreConfig {
    /// This worker's number.
    pub worker: u8,
    /// Workers of this proxy.
    pub workers: u8,
    /// The TCP engine's configuration; `first_label_index` and `connections` also size the flow table.
    pub tcp: StackConfig,
    /// Events that the flight recorder keeps.
    pub trace_events: usize,
    /// Connections between programs of the cluster that go through no LAN.
    pub hairpin: HairpinConfig,
}

/// Where source ports begin: another place for each start of each proxy. A one-way function, so that a port
/// discloses nothing of the secret.
fn first_port_seed(secret: &[u8; 16]) -> u32 {
    let fnv = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    (secret.iter().fold(0xcbf2_9ce4_8422_2325, fnv) >> 40) as u32
}

/// One proxy worker's state.
#[derive(Debug)]
pub struct ProxyCore {
    tcp: Stack,
    flows: FlowTable,
    hairpin: Hairpin,
    tunnels: Tunnels,
    dispatcher: Dispatcher,
    pump: Pump,
    egress: Egress,
    recorder: Recorder,
}

/// Inputs. Bytes that they bring move with the next [`drive`](ProxyCore::drive).
impl ProxyCore {
    /// A core without services, channels or tunnels.
    pub fn new(config: CoreConfig) -> Self {
        let CoreConfig { worker, workers, tcp, trace_events, hairpin } = config;
        let hairpins = (hairpin.first_label_index, 2 * hairpin.pairs);
        let (first_index, connections) = (tcp.first_label_index.max(1), tcp.connections);
        // Two messages that land while everything else is in use.
        let landing = 2 * tcp.send_message_len.next_multiple_of(tcp.block_len);
        let send_pool = (tcp.send_blocks() * tcp.block_len).saturating_sub(landing) as u64;
        ProxyCore {
            flows: FlowTable::new([(first_index, connections), hairpins]),
            tunnels: Tunnels::new(worker, first_index, connections),
            hairpin: Hairpin::new(hairpin),
            dispatcher: Dispatcher::new(connections + hairpins.1),
            pump: Pump::new(connections + hairpins.1, SendBudget::new(send_pool, tcp.block_len)),
            egress: Egress::new(worker.into(), workers.into(), first_port_seed(&tcp.isn_secret)),
            recorder: Recorder::new(trace_events),
            tcp: Stack::new(tcp),
        }
    }

    fn turn<'a, O: ProxyOutput>(&'a mut self, now: Instant, out: &'a mut O) -> Turn<'a, O> {
        let ProxyCore { tcp, flows, hairpin, tunnels, dispatcher, pump, egress, recorder } = self;
        Turn { cx: Context { now, flows, tcp, hairpin, recorder, out }, dispatcher, pump, egress, tunnels }
    }

    /// Moves everything that can move now: TCP events, bytes both ways, segments out. Call it after every batch of
    /// input and whenever credits came back.
    pub fn drive(&mut self, now: Instant, out: &mut impl ProxyOutput) {
        self.turn(now, out).drive();
    }

    /// Runs timers that are due, and [drives](Self::drive).
    pub fn on_timeout(&mut self, now: Instant, out: &mut impl ProxyOutput) {
        self.turn(now, out).on_timeout();
    }

    /// Takes one record of the network node `via`, which lies in `buffer` of [`lend_buffer`](Self::lend_buffer) where
    /// there is one. Call [`drive`](Self::drive) after a batch of them.
    pub fn on_record(
        &mut self,
        now: Instant,
        via: u32,
        record: &Record<'_>,
        buffer: Option<&Buffer>,
        out: &mut impl ProxyOutput,
    ) {
        let mut turn = self.turn(now, out);
        match turn.tunnels.on_record(&mut turn.cx, via, record, buffer) {
            // An ACK may have made room in the send buffer.
            Arrived::Segment(label) => turn.pump.enqueue(turn.cx.flows, label),
            Arrived::AddressesTaken(label) => turn.on_addresses_taken(label),
            Arrived::Done => {}
        }
    }

    /// Takes one message of a channel, which lies in `buffer` of [`lend_buffer`](Self::lend_buffer) where there is one.
    /// Call [`drive`](Self::drive) after a batch of them.
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

    /// A tunnel came up. Connections that have none go through it from now on.
    pub fn tunnel_up(&mut self, now: Instant, via: u32, out: &mut impl ProxyOutput) {
        self.tcp.redirect(NO_TUNNEL, via);
        self.drive(now, out);
    }

    /// A tunnel is gone: its connections go through another network node, or wait for one. A client that only listens
    /// would never receive anything again on a connection that waits for the client's next segment.
    pub fn tunnel_down(&mut self, now: Instant, via: u32, out: &mut impl ProxyOutput) {
        self.tcp.redirect(via, out.network_node().unwrap_or(NO_TUNNEL));
        self.drive(now, out);
    }

    /// A channel to a process of `node` is up; `false` where [`CHANNELS_MAX`] is reached.
    pub fn channel_up(&mut self, channel: ChannelId, process: Process) -> bool {
        self.dispatcher.channel_up(channel, process)
    }

    /// A process that has a channel brought another token: its grant replaces the former one.
    pub fn set_grant(&mut self, channel: ChannelId, grant: Grant) {
        self.dispatcher.set_grant(channel, grant);
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
        self.dispatcher.channel_down(now, channel);
        let mut turn = self.turn(now, out);
        turn.end_flows(channel, None, hangup);
        turn.drive();
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
        self.dispatcher.lane_down(channel, lane);
        let mut turn = self.turn(now, out);
        turn.end_flows(channel, Some(lane), hangup);
        turn.drive();
    }

    /// Takes a new generation of policy. Connections of services that are no longer named live on.
    pub fn set_policy(
        &mut self,
        now: Instant,
        services: Vec<ServiceSpec>,
        egress: Vec<EgressRule>,
        out: &mut impl ProxyOutput,
    ) {
        self.egress.set_rules(egress);
        let mut turn = self.turn(now, out);
        turn.dispatcher.set_services(&mut turn.cx, services);
        turn.drive();
    }
}

/// Buffers, timers and figures.
impl ProxyCore {
    /// When [`on_timeout`](Self::on_timeout) is to be called; `None`: nothing is under way.
    pub fn next_timeout(&self) -> Option<Instant> {
        let dispatcher = &self.dispatcher;
        let pending = dispatcher.pending_deadline(&self.flows);
        let own = [pending, dispatcher.left_deadline(), dispatcher.offers_deadline()];
        own.into_iter().chain([self.tcp.next_timeout()]).flatten().min()
    }

    /// Memory for the next message: records of a network node, or messages of a process. See [`Stack::lend`].
    pub fn lend_buffer(&mut self, direction: Direction) -> Option<Buffer> {
        self.tcp.lend(direction)
    }

    /// Returns the memory once everything in the message was processed.
    pub fn return_buffer(&mut self, buffer: Buffer) {
        self.tcp.give_back(buffer);
    }

    /// What was counted.
    pub fn counters(&self) -> &Counters {
        &self.recorder.counters
    }

    /// The TCP engine, to look at.
    pub fn tcp(&self) -> &Stack {
        &self.tcp
    }

    /// Flows known now.
    pub fn flow_count(&self) -> usize {
        self.flows.len()
    }

    /// Flows of hairpins that live.
    pub fn hairpin_count(&self) -> usize {
        self.hairpin.live()
    }

    /// Flows that wait for descriptors of their process.
    pub fn parked_count(&self) -> usize {
        self.pump.parked_count()
    }

    /// Connections that wait for a process, of all services.
    pub fn waiting_count(&self) -> usize {
        self.dispatcher.waiting_count()
    }

    /// Pool members known now.
    pub fn member_count(&self) -> usize {
        self.dispatcher.pools().len()
    }

    /// Bytes of the send budget that are granted.
    pub fn budget_reserved(&self) -> u64 {
        self.pump.reserved()
    }

    /// The flight recorder.
    pub fn trace(&self) -> &TraceRing {
        self.recorder.trace()
    }
}
