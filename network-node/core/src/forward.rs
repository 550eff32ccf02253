//! Services whose packets are forwarded to servers on the LAN, or behind routers (`via: network`): the server
//! of each flow, and the way to it. The server has the service's address on its loopback interface and
//! answers the client directly, so only what clients send passes here.
//!
//! ```text
//!  packet for a VIP ─▶ service of this kind? ─▶ server of the flow (flows) ─▶ Ethernet address ─▶ port
//!                                                  │ none, or it is down
//!                                                  └▶ Maglev table of the pool (pools)
//! ```
//! ICMP errors that quote a packet of such a flow go to the flow's server: it has to learn the path's MTU.

mod flows;
mod hops;
mod pools;
mod rewrite;
mod tunnel;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use csp_classify::{PacketKey, PoolIndex, Verdict};
use csp_types::{FourTuple, Instant, MacAddr, Transport};
use csp_wire::offload::{Checksum as FrameChecksum, Frame};
use csp_wire::tcp::{Flags, HEADER_LEN_MIN, Segment};
use csp_wire::{ipv4, ipv6};

use super::api::{NetworkOutput, PortId};
use super::flow_table::tuple_hash;
use super::node::NetworkCore;
use flows::ServerOfFlow;
use hops::Hop;
use rewrite::{Direct, Refused, Way};

pub use pools::{POOL_SERVERS_MAX, Pool, PoolServer, Pools};

/// Seconds without packets after which a flow may get another server.
const TCP_IDLE_S: u32 = 3_600;
const UDP_IDLE_S: u32 = 120;
/// Servers that are tried for a flow until one is found whose Ethernet address is known.
const TRIES_MAX: u64 = 8;
/// The key by which flows are spread, the same at all network nodes.
const SPREAD_KEY: (u64, u64) = (0x6373_7073_6572_7665, 0x6373_7070_6f6f_6c73);
/// What the hash of a flow is changed by for another choice.
const AGAIN: u64 = 0xd6e8_feb8_6659_fd93;
/// What the flows of UDP differ in from those of TCP between the same ports.
const UDP_FLOWS: u64 = 0x9e37_79b9_7f4a_7c15;
/// Types of ICMP errors that the worker of the flow receives (`network-node/lan/src/steering.rs`).
const ERRORS_V4: [u8; 2] = [3, 11];
const ERRORS_V6: core::ops::RangeInclusive<u8> = 1..=4;
const ICMP_HEADER_LEN: usize = 8;
const UDP_HEADER_LEN: usize = 8;

/// A packet for an address of the cluster, its IP header checked.
pub(super) struct Arrived<'a> {
    pub(super) now: Instant,
    pub(super) port: PortId,
    pub(super) peer_mac: MacAddr,
    pub(super) frame: &'a Frame<'a>,
    pub(super) ends: (IpAddr, IpAddr),
    /// Protocol of the payload.
    pub(super) protocol: u8,
    /// The IP packet, without padding.
    pub(super) packet: &'a [u8],
    /// Bytes of its headers in front of the payload.
    pub(super) header_len: usize,
}

/// The flow that a packet belongs to.
#[derive(Clone, Copy, Debug)]
struct Flow {
    tuple: FourTuple,
    protocol: Transport,
    /// It begins a connection.
    begins: bool,
    /// The packet is an error about the flow.
    error: bool,
}

/// What was forwarded to a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ForwardCounts {
    /// Flows that were given to it.
    pub flows: u64,
    /// Packets; one that a device put together counts once.
    pub packets: u64,
    /// Bytes of IP packets.
    pub bytes: u64,
}

/// What a worker needs to forward packets.
pub(super) struct Forwarding {
    pools: Arc<Pools>,
    flows: ServerOfFlow,
    /// By the servers' places.
    hops: Vec<Hop>,
    /// Egress addresses, in whose name the LAN may be asked.
    pub(super) askers: Vec<IpAddr>,
    /// When servers are looked for; `None`: all are found.
    look_at: Option<Instant>,
    /// The place where the next look begins.
    look_from: usize,
}

/// A server as the worker sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServerView {
    /// The server's id.
    pub id: u32,
    /// Its Ethernet address, if it is known.
    pub mac: Option<MacAddr>,
    /// It is behind a router, and gets nothing: no tunnel leads there.
    pub far: bool,
    /// What it was given.
    pub counts: ForwardCounts,
}

impl Forwarding {
    pub(super) fn new(flows_max: usize) -> Self {
        Forwarding {
            pools: Arc::default(),
            flows: ServerOfFlow::new(flows_max),
            hops: Vec::new(),
            askers: Vec::new(),
            look_at: None,
            look_from: 0,
        }
    }

    /// Notes that a neighbour has answered: packets to it need not wait until it is looked for again.
    pub(super) fn on_neighbour(&mut self, address: IpAddr) {
        if self.look_at.is_some() {
            self.hops.iter_mut().for_each(|hop| hop.on_neighbour(address));
        }
    }

    /// Returns when [`NetworkCore::look_for_servers`] is due.
    pub(super) const fn next_timeout(&self) -> Option<Instant> {
        self.look_at
    }

    /// Returns whether any packet is forwarded.
    #[inline]
    pub(super) const fn is_used(&self) -> bool {
        !self.hops.is_empty()
    }

    /// Returns the place of the server that gets the packet.
    fn server_of(&mut self, now: Instant, pool: PoolIndex, flow: &Flow, hash: u64) -> Option<usize> {
        let pool = self.pools.get(pool.0.into())?;
        let idle_s = if pool.protocol == Transport::Tcp { TCP_IDLE_S } else { UDP_IDLE_S };
        let reached = |at: &usize| self.hops.get(pool.place(*at)).is_some_and(|hop| !hop.is_lost(now));
        let known = self.flows.find(now, hash, idle_s, !flow.error).and_then(|id| pool.keeper(id));
        // A server without a share keeps its connections, but gets no new one on their ports.
        let known = known.filter(|at| !flow.begins || pool.servers()[*at].weight > 0);
        if let Some(at) = known.filter(reached) {
            return Some(pool.place(at));
        }
        let spread = spread(flow);
        let first = pool.choose(spread)?;
        let mut tries =
            (1..TRIES_MAX).filter_map(|n| pool.choose(spread.wrapping_add(n.wrapping_mul(AGAIN))));
        let at = if reached(&first) { first } else { tries.find(reached).unwrap_or(first) };
        let place = pool.place(at);
        if !flow.error {
            self.flows.insert(now, hash, pool.servers()[at].id);
            self.hops[place].counts.flows += 1;
        }
        Some(place)
    }
}

/// Returns the hash by which a new flow gets its server.
fn spread(flow: &Flow) -> u64 {
    mixed(tuple_hash(&flow.tuple, SPREAD_KEY), flow.protocol)
}

const fn mixed(hash: u64, protocol: Transport) -> u64 {
    match protocol {
        Transport::Tcp => hash,
        Transport::Udp => hash ^ UDP_FLOWS,
    }
}

/// Returns the ports at the start of a transport header.
pub(super) fn ports(bytes: &[u8]) -> Option<(u16, u16)> {
    let [a, b, c, d] = *bytes.first_chunk()?;
    Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
}

/// Returns the flow that an ICMP error quotes: a packet from the cluster's address.
fn quoted(arrived: &Arrived<'_>, message: &[u8]) -> Option<Flow> {
    let (&kind, quoted) = message.first().zip(message.get(ICMP_HEADER_LEN..))?;
    let (source, destination, protocol, bytes): (IpAddr, IpAddr, u8, &[u8]);
    if arrived.protocol == ipv4::PROTOCOL_ICMP {
        let view = ipv4::Packet::parse_quoted(quoted).ok().filter(|_| ERRORS_V4.contains(&kind))?;
        let first = view.fragment_offset() == 0;
        (source, destination) = (view.source().into(), view.destination().into());
        (protocol, bytes) = (view.protocol(), view.payload().get(..if first { 4 } else { 0 })?);
    } else {
        let view = ipv6::Packet::parse_quoted(quoted).ok().filter(|_| ERRORS_V6.contains(&kind))?;
        (source, destination) = (view.source().into(), view.destination().into());
        (protocol, bytes) = (view.protocol(), view.payload());
    }
    let (own, peer) = ports(bytes).filter(|_| source == arrived.ends.1)?;
    let tuple = FourTuple { local: SocketAddr::new(source, own), remote: SocketAddr::new(destination, peer) };
    Some(Flow { tuple, protocol: Transport::of_number(protocol)?, begins: false, error: true })
}

fn flow_of(arrived: &Arrived<'_>) -> Option<Flow> {
    let bytes = arrived.packet.get(arrived.header_len..)?;
    let protocol = match arrived.protocol {
        ipv4::PROTOCOL_ICMP | ipv6::PROTOCOL_ICMPV6 => return quoted(arrived, bytes),
        number => Transport::of_number(number)?,
    };
    let least = if protocol == Transport::Tcp { HEADER_LEN_MIN } else { UDP_HEADER_LEN };
    let (peer, own) = ports(bytes).filter(|_| bytes.len() >= least)?;
    let (source, destination) = arrived.ends;
    let tuple = FourTuple { local: SocketAddr::new(destination, own), remote: SocketAddr::new(source, peer) };
    let flags = Flags(if protocol == Transport::Tcp { bytes[13] } else { 0 });
    Some(Flow { tuple, protocol, begins: flags.syn() && !flags.ack(), error: false })
}

impl NetworkCore {
    /// Forwards a packet to its server; `false` if it belongs to no service of this kind.
    pub(super) fn forward_to_server(&mut self, arrived: &Arrived<'_>, out: &mut impl NetworkOutput) -> bool {
        let Some(flow) = flow_of(arrived) else { return false };
        let Verdict::Forward(pool) = self.classifier.classify(&PacketKey {
            source: flow.tuple.remote,
            destination: flow.tuple.local,
            protocol: flow.protocol.number(),
            lan_port: arrived.port.0,
        }) else {
            return false;
        };
        let frame = arrived.frame.bytes;
        if frame.get(..6) != Some(&self.port_mac(arrived.port).0[..]) {
            // To all: every network node would forward it.
            self.counters.drop_not_ours += 1;
            return true;
        }
        let hash = mixed(self.flows.hash(&flow.tuple), flow.protocol);
        // A connection of the time when a proxy ended the service's.
        let tcp = flow.protocol == Transport::Tcp;
        if tcp && !flow.begins && self.flows.len() > 0 && self.find_flow(hash, &flow.tuple).is_some() {
            return false;
        }
        match self.forwarding.server_of(arrived.now, pool, &flow, hash) {
            Some(place) => self.send_to_server(arrived, place, hash, out),
            None => self.without_server(arrived, &flow, out),
        }
        true
    }

    fn send_to_server(
        &mut self,
        arrived: &Arrived<'_>,
        place: usize,
        hash: u64,
        out: &mut impl NetworkOutput,
    ) {
        let Some((port, destination_mac)) = self.way_to_server(arrived.now, place, out) else {
            self.counters.drop_unresolved += 1;
            return;
        };
        let outer = self.forwarding.hops[place].outer();
        if outer.is_none() && destination_mac == arrived.peer_mac {
            // The server has not the service's address, and routes what it gets.
            self.counters.drop_went_round += 1;
            return;
        }
        let identification = (hash as u32).wrapping_add(self.next_identification().into());
        let source_mac = self.port_mac(port);
        let room = outer.map_or(0, |outer| tunnel::overhead(&outer));
        let mtu = self.port_mtu(port).saturating_sub(room);
        let whole = self.reassembly.is_delivering();
        let way = Way { mtu, source_mac, destination_mac, identification, whole };
        let sent = match outer {
            None => rewrite::send(arrived, &way, &mut Direct { port, out }),
            Some(outer) => tunnel::send(arrived, &way, (port, outer), hash as u16, out),
        };
        match sent {
            Ok(()) => {
                let len = arrived.packet.len() as u64;
                let counts = &mut self.forwarding.hops[place].counts;
                counts.packets += 1;
                counts.bytes += len;
                self.counters.packets_forwarded += 1;
                self.counters.bytes_forwarded += len;
            }
            Err(Refused::Expired) => self.counters.drop_expired += 1,
            Err(Refused::TooLong) => {
                self.counters.drop_too_long += 1;
                self.answer_too_long(arrived, mtu, out);
            }
            Err(Refused::Malformed) => self.counters.drop_malformed += 1,
        }
    }

    /// Answers a packet for which no server is up: a TCP segment by a reset.
    fn without_server(&mut self, arrived: &Arrived<'_>, flow: &Flow, out: &mut impl NetworkOutput) {
        self.counters.drop_no_server += 1;
        if flow.error || flow.protocol != Transport::Tcp {
            return;
        }
        let bytes = &arrived.packet[arrived.header_len..];
        let Ok(segment) = Segment::parse(bytes) else { return };
        let unchecked = arrived.frame.checksum == FrameChecksum::Unchecked;
        if unchecked && !super::inbound::is_sum_valid(arrived.ends.0, arrived.ends.1, bytes) {
            return;
        }
        let route = self.reply_route(&flow.tuple, arrived.port, arrived.peer_mac);
        self.refuse(arrived.now, &route, &segment, out);
    }

    /// Sets the states of servers, by the pools of the policy in force; those of another one are ignored. The
    /// former pools are returned in their place, for the caller to free.
    pub fn set_pools(&mut self, now: Instant, pools: &mut Arc<Pools>, out: &mut impl NetworkOutput) {
        if self.forwarding.pools.generation == pools.generation {
            self.exchange_pools(now, pools, out);
        }
    }

    /// Exchanges the pools for those of other rules. Servers that stay keep their counts. All are asked for
    /// their Ethernet addresses at once, before packets need them.
    pub(super) fn exchange_pools(
        &mut self,
        now: Instant,
        pools: &mut Arc<Pools>,
        out: &mut impl NetworkOutput,
    ) {
        std::mem::swap(&mut self.forwarding.pools, pools);
        let mut before = std::mem::take(&mut self.forwarding.hops);
        before.sort_by_key(|hop| hop.id);
        let known = |id| before.binary_search_by_key(&id, |hop| hop.id).ok().map(|at| &before[at]);
        self.forwarding.hops =
            self.forwarding.pools.servers().map(|server| Hop::of(server, known(server.id))).collect();
        for place in 0..self.forwarding.hops.len() {
            let _ = self.way_to_server(now, place, out);
        }
    }

    /// Returns the servers that packets are forwarded to.
    pub fn forward_servers(&self) -> impl Iterator<Item = ServerView> + '_ {
        self.forwarding.hops.iter().map(|hop| ServerView {
            id: hop.id,
            mac: hop.mac,
            far: hop.far,
            counts: hop.counts,
        })
    }

    /// Returns the pools in force.
    pub fn forward_pools(&self) -> &Pools {
        &self.forwarding.pools
    }

    /// Returns how many flows have a server in the table, those that are over included, and how many fit.
    pub fn forward_flows(&self) -> (usize, usize) {
        (self.forwarding.flows.len(), self.forwarding.flows.capacity())
    }
}
