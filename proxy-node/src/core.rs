//! The proxy's core: between the tunnels and the channels, sans-I/O (CSP §4.4, the SAN proxy).
//!
//! ```text
//!  tunnel record ─▶ inbound ─▶ csp-tcp Stack ─▶ events ─▶ relay ─▶ DATA … to the application
//!  tunnel record ◀─ outbound ◀─ csp-tcp Stack ◀───────── application ◀─ DATA … from it
//! ```
//! Owns one worker's flows, pools and TCP stack. It has no clock, socket, thread or logger; time comes in, messages go
//! out through [`ProxyOutput`].

mod admission;
mod announced;
mod application;
mod backlog;
mod budget;
mod connect;
mod counters;
mod dispatch;
mod egress;
mod events;
mod flow;
mod handover;
mod inbound;
mod options;
mod outbound;
mod output;
mod parked;
mod path_error;
mod pool;
pub mod reason;
mod relay;
mod services;
mod snapshot;
mod stalled;
mod withdraw;

use std::collections::{HashMap, VecDeque};

use csp_tcp::{Buffer, Direction, Stack, StackConfig};
use csp_types::{FlowLabel, Instant, TraceEvent, TraceKind, TraceRing};

pub use admission::Process;
pub use application::Verdict;
pub use backlog::{BacklogLimits, NO_SERVER_GRACE};
pub use budget::SendBudget;
pub use counters::Counters;
pub use egress::{Egress, EgressRule};
pub use flow::{Attachment, Flow, FlowTable, Stage};
pub use handover::HANDOVER_TIMEOUT;
pub use output::{Blocked, Lane, ProxyOutput};
pub use pool::{ChannelId, Choice, Claim, LISTENERS_PER_MEMBER_MAX, MEMBERS_MAX, MemberId, Pools};
pub use services::{PoolServer, ServiceSpec, ServiceTcp};
pub use snapshot::{FlowSnapshot, RecentFlow, ServiceSnapshot};
pub use withdraw::OFFER_PATIENCE;

use announced::Announced;
use handover::Left;
use parked::Parked;
use services::Services;
use stalled::Stalled;
use withdraw::Offers;

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
}

/// Where source ports begin: another place for each start of each proxy. One way, so that a port tells nothing of the
/// secret.
fn first_port_seed(secret: &[u8; 16]) -> u32 {
    let fnv = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    (secret.iter().fold(0xcbf2_9ce4_8422_2325, fnv) >> 40) as u32
}

/// One proxy worker's state.
#[derive(Debug)]
pub struct ProxyCore {
    config: CoreConfig,
    tcp: Stack,
    flows: FlowTable,
    pools: Pools,
    services: Services,
    processes: HashMap<ChannelId, Process>,
    budget: SendBudget,
    stalled: Stalled,
    offers: Offers,
    left: Left,
    egress: Egress,
    announced: Announced,
    /// Flows with bytes, an end of stream or credits to pass on.
    to_pump: VecDeque<FlowLabel>,
    /// Flows of those that wait for their lane.
    parked: Parked,
    trace: TraceRing,
    ended: VecDeque<EndedFlow>,
    counters: Counters,
}

/// A flow that is over.
#[derive(Clone, Copy, Debug)]
struct EndedFlow {
    label: FlowLabel,
    tuple: csp_types::FourTuple,
    service: u32,
    at: Instant,
}

impl ProxyCore {
    /// A core without services, channels or tunnels.
    pub fn new(config: CoreConfig) -> Self {
        let connections = config.tcp.connections;
        // Two messages that land while everything else is in use.
        let landing = 2 * config.tcp.send_message_len.next_multiple_of(config.tcp.block_len);
        let send_pool = (config.tcp.send_blocks() * config.tcp.block_len).saturating_sub(landing) as u64;
        ProxyCore {
            flows: FlowTable::new(config.tcp.first_label_index.max(1), connections),
            announced: Announced::new(config.tcp.first_label_index.max(1), connections),
            tcp: Stack::new(config.tcp.clone()),
            pools: Pools::new(),
            services: Services::default(),
            processes: HashMap::with_capacity(CHANNELS_MAX),
            budget: SendBudget::new(send_pool, config.tcp.block_len),
            stalled: Stalled::default(),
            offers: Offers::new(connections),
            left: Left::default(),
            egress: Egress::new(
                config.worker.into(),
                config.workers.into(),
                first_port_seed(&config.tcp.isn_secret),
            ),
            to_pump: VecDeque::with_capacity(connections),
            parked: Parked::default(),
            trace: TraceRing::new(config.trace_events),
            ended: VecDeque::with_capacity(ENDED_MAX),
            counters: Counters::default(),
            config,
        }
    }

    /// Moves everything that can move now: TCP events, bytes both ways, segments out. Call it after every batch of
    /// input and whenever credits came back.
    pub fn drive(&mut self, now: Instant, out: &mut impl ProxyOutput) {
        loop {
            self.serve_backlogs(now, out); // those that wait come before new ones
            self.take_tcp_events(now, out);
            self.serve_backlogs(now, out);
            let relayed = self.pump(now, out);
            let sent = self.transmit(now, out);
            if !relayed && !sent && !self.pools.is_readied() {
                return;
            }
        }
    }

    /// Runs timers that are due.
    pub fn on_timeout(&mut self, now: Instant, out: &mut impl ProxyOutput) {
        self.tcp.on_timeout(now);
        self.expire_pending(now);
        self.expire_left(now);
        self.check_offers(now, out);
        self.drive(now, out);
    }

    /// When [`on_timeout`](Self::on_timeout) wants to be called; `None`: nothing is under way.
    pub fn next_timeout(&self) -> Option<Instant> {
        let own = [self.pending_deadline(), self.left_deadline(), self.offers_deadline()];
        own.into_iter().chain([self.tcp.next_timeout()]).flatten().min()
    }

    /// Memory for the next message: records of a network node, or messages of a process. See [`Stack::lend`].
    pub fn lend_buffer(&mut self, direction: Direction) -> Option<Buffer> {
        self.tcp.lend(direction)
    }

    /// Takes the memory back once everything in the message was taken.
    pub fn return_buffer(&mut self, buffer: Buffer) {
        self.tcp.give_back(buffer);
    }

    /// What was counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The TCP engine, to look at.
    pub fn tcp(&self) -> &Stack {
        &self.tcp
    }

    /// Flows known now.
    pub fn flow_count(&self) -> usize {
        self.flows.len()
    }

    /// Flows that wait for descriptors of their process.
    pub fn parked_count(&self) -> usize {
        self.parked.len()
    }

    /// Connections that wait for a process, of all services.
    pub fn waiting_count(&self) -> usize {
        let service = |number: &u32| self.services.get(*number).map(|service| service.backlog.len());
        self.services.waiting().iter().filter_map(service).sum()
    }

    /// Pool members known now.
    pub fn member_count(&self) -> usize {
        self.pools.len()
    }

    /// Bytes of the send budget that are granted.
    pub fn budget_reserved(&self) -> u64 {
        self.budget.reserved()
    }

    /// The flight recorder.
    pub fn trace(&self) -> &TraceRing {
        &self.trace
    }

    /// Notes the end of a flow, for the flight recorder and for those who look for it by its addresses.
    fn note_ended(&mut self, at: Instant, flow: &Flow) {
        self.record(at, flow.label, TraceKind::Ended, 0);
        if self.ended.len() >= ENDED_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back(EndedFlow { label: flow.label, tuple: flow.tuple, service: flow.service, at });
    }

    fn record(&mut self, at: Instant, label: FlowLabel, kind: TraceKind, len: u32) {
        self.trace.record(TraceEvent { at, label, kind, len, ..TraceEvent::default() });
    }
}
