//! The services of the policy in this worker.
//!
//! A service that is no longer in the policy is kept while it has connections, and removed with the last of
//! them. Its number contains a generation, so that a handshake that began before the removal cannot complete
//! at another service.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use csp_tcp::{CongestionControl, ConnectionOptions, EcnMode, StackConfig};
use csp_tls::{ServerNames, ServerTls};
use csp_types::{FlowLabel, Instant, NodeId, Prefix};

use super::Dispatcher;
use super::backlog::{Backlog, BacklogLimits};
use super::pool::{Candidate, MemberId, Pools, WARM};
use crate::servers::{AllDown, Balance, ServerOptions, affinity};
use crate::service::upstream::Excluded;
use crate::service_counters::Counted;

/// A pool member as named by policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolServer {
    /// Where it is.
    pub host: ServerHost,
    /// The port it listens on.
    pub port: u16,
    /// Its share of the connections, relative to other members; 0: no new ones.
    pub weight: u16,
    /// Largest number of connections to a plain server at once; `u32::MAX`: no bound.
    pub connections_max: u32,
    /// It gets connections only while no member is up that is none.
    pub backup: bool,
}

/// Where a pool member is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ServerHost {
    /// An application node, whose processes have channels.
    Node(NodeId),
    /// A host without software of the cluster: a *plain* server, reached over TCP.
    Address(IpAddr),
}

impl PoolServer {
    /// Returns the member of an application node, with weight 1.
    pub fn of_node(node: NodeId, port: u16) -> Self {
        let host = ServerHost::Node(node);
        PoolServer { host, port, weight: 1, connections_max: u32::MAX, backup: false }
    }
}

/// A pool member as named by a service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolEntry {
    pub(crate) member: MemberId,
    weight: u16,
    connections_max: u32,
    backup: bool,
    /// Says by which clients it is preferred, on every proxy alike.
    key: u64,
    /// Grows by [`TURN`] / weight with each connection. Among members with the same load the one with the
    /// smallest value gets the next connection, so that light load is distributed by weight, too.
    turn: u64,
}

/// See [`PoolEntry::turn`].
const TURN: u64 = 1 << 16;

/// Which members get connections that get none as long as others can.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Resort {
    /// Those that are backups.
    backups: bool,
    /// Plain servers that are down.
    down: bool,
}

/// A service as named by policy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServiceSpec {
    /// Its name.
    pub name: String,
    /// VIP and port. Port 0: only local services open connections to it.
    pub address: SocketAddr,
    /// The pool of its connections.
    pub pool: Vec<PoolServer>,
    /// The number of the local service at which its connections end; `None`: they go to processes of the
    /// pool.
    pub local: Option<u32>,
    /// The number of the service between both ends that examines their bytes; `None`: they are relayed as
    /// they are.
    pub between: Option<u32>,
    /// The networks of balancers in front, whose connections begin with a header of the PROXY protocol.
    pub accept_proxy_from: Vec<Prefix>,
    /// TLS of its clients, which ends here; `None`: their bytes are passed on as they are.
    pub tls: Option<ServerTls>,
    /// How many handshakes a source may begin in a second: an IPv4 address, or an IPv6 network of 64 bits.
    /// 0: any number.
    pub handshakes_per_source: u32,
    /// The services to whose pools connections go on as they are, by the server's name that their client asks
    /// for (SNI); `None`: names are not looked at.
    pub sni: Option<Arc<ServerNames<Box<str>>>>,
    /// How the plain servers of its pool are reached.
    pub servers: ServerOptions,
    /// TCP options of its connections.
    pub tcp: ServiceTcp,
    /// Limits of its backlog.
    pub backlog: BacklogLimits,
}

impl ServiceSpec {
    /// Returns a service without a pool, and with the usual options.
    pub fn new(name: String, address: SocketAddr) -> Self {
        ServiceSpec {
            name,
            address,
            pool: Vec::new(),
            local: None,
            between: None,
            accept_proxy_from: Vec::new(),
            tls: None,
            handshakes_per_source: 0,
            sni: None,
            servers: ServerOptions::default(),
            tcp: ServiceTcp::default(),
            backlog: BacklogLimits::default(),
        }
    }
}

/// TCP options that the policy sets for the connections of a service, or for those that applications open by
/// an egress rule. Unset ones follow the engine's configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ServiceTcp {
    /// Congestion control.
    pub congestion: Option<CongestionControl>,
    /// Explicit congestion notification.
    pub ecn: Option<EcnMode>,
    /// Pacing.
    pub pacing: Option<bool>,
    /// Idle seconds before keepalive probes (RFC 9293 §3.8.4); 0 disables them.
    pub keepalive_s: Option<u32>,
    /// Seconds that sent data may stay unacknowledged (RFC 5482); 0 means as long as it is retransmitted.
    pub user_timeout_s: Option<u32>,
    /// Largest segment in bytes, in both directions; `None`: that of the engine's configuration.
    pub mss: Option<u16>,
}

impl ServiceTcp {
    /// Returns the engine's options of such connections.
    pub(crate) fn options(&self, config: &StackConfig) -> ConnectionOptions {
        let options = config.connection_options();
        let seconds = |s: u32| (s > 0).then(|| Duration::from_secs(s.into()));
        ConnectionOptions {
            keepalive_idle: self.keepalive_s.map_or(options.keepalive_idle, seconds),
            user_timeout: self.user_timeout_s.map_or(options.user_timeout, seconds),
            congestion: self.congestion.unwrap_or(options.congestion),
            ecn: self.ecn.unwrap_or(options.ecn),
            pacing: self.pacing.unwrap_or(options.pacing),
            mss: self.mss,
            ..options
        }
    }
}

/// Bits of a service's number that hold its index in the table.
const PLACE_BITS: u32 = 16;
const PLACE_MASK: u32 = (1 << PLACE_BITS) - 1;
/// Mask of the generation: one bit less than available, so that no number equals
/// [`u32::MAX`](crate::events::NO_SERVICE).
const GENERATION_MASK: u32 = (1 << (31 - PLACE_BITS)) - 1;

#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) spec: ServiceSpec,
    /// Since when its plain servers are reached as they are now.
    pub(crate) reached_since: Instant,
    pub(crate) members: Vec<PoolEntry>,
    /// The turn of the member that was chosen last.
    clock: u64,
    /// Connections that wait for a process.
    pub(crate) backlog: Backlog,
    /// The engine drops SYNs to this service because the backlog is full.
    pub(crate) backlog_full: bool,
    /// Number of connections, waiting ones included.
    flows: usize,
    /// `false` once the policy no longer names it; its connections continue.
    pub(crate) active: bool,
    /// Whether connections come to it by the server's name that their client asks for.
    pub(crate) is_passed_to: bool,
}

impl Service {
    /// Returns its members.
    pub(crate) fn members(&self) -> impl Iterator<Item = MemberId> {
        self.members.iter().map(|entry| entry.member)
    }

    /// Returns its members that may get connections at all.
    pub(crate) fn weighted_members(&self) -> impl Iterator<Item = MemberId> {
        self.members.iter().filter(|entry| entry.weight > 0).map(|entry| entry.member)
    }

    /// Returns who gets connections now, since no member can that usually does. `plain`: they may go to plain
    /// servers, too.
    pub(crate) fn resort(&self, pools: &Pools, excluded: &Excluded, plain: bool) -> Resort {
        let all_down = self.spec.servers.all_down;
        if all_down == AllDown::Refuse && !self.members.iter().any(|entry| entry.backup) {
            return Resort::default();
        }
        let can = |entry: &PoolEntry| {
            entry.weight > 0 && !excluded.has(entry.member) && pools.is_usable(entry.member, plain)
        };
        let any = |backup| self.members.iter().any(|entry| entry.backup == backup && can(entry));
        let backups = !any(false);
        Resort { backups, down: backups && all_down == AllDown::Serve && !any(true) }
    }

    /// Returns whether this member could get connections now, apart from limits of their number.
    pub(crate) fn wants(&self, pools: &Pools, member: MemberId) -> bool {
        let resort = self.resort(pools, &Excluded::NONE, true);
        let even_down = resort.down && pools.is_checked(member);
        let has_turn = |entry: &PoolEntry| entry.weight > 0 && (resort.backups || !entry.backup);
        let entry = self.members.iter().find(|entry| entry.member == member);
        entry.is_some_and(has_turn) && (even_down || pools.is_usable(member, true))
    }

    /// Returns its members that are not excluded, as candidates for a connection of this client.
    pub(crate) fn members_but(
        &self,
        excluded: &Excluded,
        resort: Resort,
        client: IpAddr,
    ) -> impl Iterator<Item = Candidate> {
        let ServerOptions { balance, slow_start, .. } = self.spec.servers;
        let source = (balance == Balance::Source).then(|| affinity::of_client(client));
        let candidate = move |entry: &PoolEntry| Candidate {
            member: entry.member,
            weight: entry.weight,
            connections_max: entry.connections_max,
            turn: entry.turn,
            affinity: source.map(|source| affinity::between(source, entry.key)),
            slow_start,
            backup: entry.backup,
            even_down: resort.down,
        };
        let members = self.members.iter().filter(move |entry| resort.backups || !entry.backup);
        members.map(candidate).filter(|candidate| !excluded.has(candidate.member))
    }

    /// Returns whether members that checks have put out of use get connections when all have been.
    pub(crate) fn serves_anyhow(&self, pools: &Pools) -> bool {
        let mut members = self.weighted_members();
        self.spec.servers.all_down == AllDown::Serve && members.any(|member| pools.is_checked(member))
    }

    /// Counts a connection that a member gets, which has this part of its share, of [`WARM`].
    pub(crate) fn chosen(&mut self, member: MemberId, warmth: u64) {
        if let Some(entry) = self.members.iter_mut().find(|entry| entry.member == member) {
            // One that got nothing for a time has no claim to all that others got meanwhile.
            self.clock = entry.turn.max(self.clock);
            entry.turn = self.clock + TURN * WARM / (u64::from(entry.weight.max(1)) * warmth.max(1));
        }
    }

    /// Replaces its members; returns those that it no longer names. A new one begins behind the others, so
    /// that it does not get all connections of light load at first.
    fn set_members(&mut self, named: &[(MemberId, PoolServer)]) -> Vec<MemberId> {
        let last = self.members.iter().map(|entry| entry.turn).max().unwrap_or(0);
        let turn_of = |member| self.members.iter().find(|entry| entry.member == member).map(|e| e.turn);
        let entry = |&(member, server): &(MemberId, PoolServer)| {
            let PoolServer { host, port, weight, connections_max, backup } = server;
            let (key, turn) = (affinity::of_server(host, port), turn_of(member).unwrap_or(last));
            PoolEntry { member, weight, connections_max, backup, key, turn }
        };
        let entries = named.iter().map(entry).collect();
        let former = std::mem::replace(&mut self.members, entries);
        let kept = |member: MemberId| named.iter().any(|(named, _)| *named == member);
        former.into_iter().map(|entry| entry.member).filter(|member| !kept(*member)).collect()
    }

    /// Returns whether its backlog has no room.
    pub(crate) fn is_full(&self) -> bool {
        self.backlog.len() >= self.spec.backlog.connections
    }
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    service: Option<Service>,
}

/// What a new policy generation changes.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Addresses to start listening on, with the service's number.
    pub(crate) listen: Vec<(SocketAddr, u32)>,
    /// Addresses to stop listening on.
    pub(crate) gone: Vec<SocketAddr>,
    /// Places of services that the generation before did not name.
    pub(crate) begun: Vec<usize>,
}

/// The services of the policy, and removed ones that still have connections.
#[derive(Debug, Default)]
pub(crate) struct Services {
    slots: Vec<Slot>,
    free: Vec<u32>,
    by_name: HashMap<String, u32>,
    /// Active services.
    by_address: HashMap<SocketAddr, u32>,
    /// Services with connections that wait for a process.
    waiting: Vec<u32>,
}

impl Services {
    /// Replaces the services by those of a new policy generation. Returns where to start and to stop
    /// listening.
    pub(crate) fn replace(&mut self, now: Instant, specs: Vec<ServiceSpec>, pools: &mut Pools) -> Changes {
        let before: Vec<SocketAddr> = self
            .iter()
            .filter(|s| s.active)
            .map(|s| s.spec.address)
            .filter(|address| address.port() != 0)
            .collect();
        let known: Vec<u32> = self.numbers().collect();
        let named_before: HashSet<u32> =
            known.iter().copied().filter(|number| self.get(*number).is_some_and(|s| s.active)).collect();
        for number in &known {
            if let Some(service) = self.get_mut(*number) {
                service.active = false;
            }
        }
        let (mut listen, mut begun) = (Vec::new(), Vec::new());
        let by_name: Vec<_> = specs.iter().filter_map(|spec| spec.sni.clone()).collect();
        let by_name: HashSet<&str> =
            by_name.iter().flat_map(|names| names.values()).map(|target| &**target).collect();
        for spec in specs {
            let (name, address) = (spec.name.clone(), spec.address);
            let known = self.by_name.get(&name).copied();
            let Some(number) = known.or_else(|| self.insert(name)) else { continue };
            if !named_before.contains(&number) {
                begun.push((number & PLACE_MASK) as usize);
            }
            let named = |s: &PoolServer| Some((pools.name(now, s.host, s.port, number)?, *s));
            let named: Vec<(MemberId, PoolServer)> = spec.pool.iter().filter_map(named).collect();
            let Some(service) = self.get_mut(number) else { continue };
            service.is_passed_to = by_name.contains(&*spec.name);
            service.note_reached(now, &spec.servers);
            (service.spec, service.active) = (spec, true);
            let former = service.set_members(&named);
            former.into_iter().for_each(|member| pools.unname(member, number));
            // Without a port only local services reach it.
            if address.port() != 0 {
                listen.push((address, number));
            }
        }
        self.by_address = listen.iter().copied().collect();
        known.into_iter().for_each(|number| self.remove_if_over(number, pools));
        let gone = before.into_iter().filter(|address| !self.by_address.contains_key(address)).collect();
        Changes { listen, gone, begun }
    }

    /// Adds a service without members; `None` if all service numbers are in use.
    fn insert(&mut self, name: String) -> Option<u32> {
        let at = match self.free.pop() {
            Some(at) => at,
            None if self.slots.len() > PLACE_MASK as usize => return None,
            None => {
                self.slots.push(Slot::default());
                self.slots.len() as u32 - 1
            }
        };
        let slot = &mut self.slots[at as usize];
        let spec = ServiceSpec::new(name.clone(), ([0; 4], 0).into());
        slot.service = Some(Service {
            spec,
            reached_since: Instant::ZERO,
            members: Vec::new(),
            clock: 0,
            backlog: Backlog::default(),
            backlog_full: false,
            flows: 0,
            active: true,
            is_passed_to: false,
        });
        let number = slot.generation << PLACE_BITS | at;
        self.by_name.insert(name, number);
        Some(number)
    }

    /// Returns the active service at an address.
    pub(crate) fn at(&self, address: SocketAddr) -> Option<u32> {
        self.by_address.get(&address).copied()
    }

    /// Returns the service of a name.
    pub(crate) fn named(&self, name: &str) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    fn slot(&self, number: u32) -> Option<&Slot> {
        self.slots.get((number & PLACE_MASK) as usize).filter(|s| s.generation == number >> PLACE_BITS)
    }

    pub(crate) fn get(&self, number: u32) -> Option<&Service> {
        self.slot(number)?.service.as_ref()
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut Service> {
        self.slot(number)?;
        self.slots.get_mut((number & PLACE_MASK) as usize)?.service.as_mut()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Service> {
        self.slots.iter().filter_map(|s| s.service.as_ref())
    }

    /// Returns the numbers of all services.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> {
        let number = |(at, slot): (usize, &Slot)| slot.generation << PLACE_BITS | at as u32;
        self.slots.iter().enumerate().filter(|(_, s)| s.service.is_some()).map(number)
    }

    /// Returns the services with connections that wait for a process.
    pub(crate) fn waiting(&self) -> &[u32] {
        &self.waiting
    }

    /// Adds a connection of a service to the backlog.
    pub(crate) fn wait(&mut self, number: u32, arrived: u64, label: FlowLabel) {
        let Some(service) = self.get_mut(number) else { return };
        service.backlog.insert(arrived, label);
        if service.backlog.len() == 1 {
            self.waiting.push(number);
        }
    }

    /// Records that a connection of a service no longer waits; `waits` is true for those that still do.
    pub(crate) fn left_backlog(&mut self, number: u32, waits: impl Fn(u64, FlowLabel) -> bool) {
        let Some(service) = self.get_mut(number) else { return };
        service.backlog.left(waits);
        if service.backlog.is_empty() {
            self.waiting.retain(|n| *n != number);
        }
    }

    /// Counts a new connection of this service; `false` if the service does not exist any more.
    pub(crate) fn flow_began(&mut self, number: u32) -> bool {
        self.get_mut(number).map(|s| s.flows += 1).is_some()
    }

    /// Counts the end of a connection of this service.
    pub(crate) fn flow_ended(&mut self, number: u32, pools: &mut Pools) {
        if let Some(service) = self.get_mut(number) {
            service.flows = service.flows.saturating_sub(1);
        }
        self.remove_if_over(number, pools);
    }

    fn remove_if_over(&mut self, number: u32, pools: &mut Pools) {
        if self.get(number).is_none_or(|s| s.active || s.flows > 0) {
            return;
        }
        self.waiting.retain(|n| *n != number);
        let at = number & PLACE_MASK;
        let Some(slot) = self.slots.get_mut(at as usize) else { return };
        let Some(gone) = slot.service.take() else { return };
        slot.generation = (slot.generation + 1) & GENERATION_MASK;
        self.free.push(at);
        self.by_name.remove(&gone.spec.name);
        gone.members().for_each(|member| pools.unname(member, number));
    }
}

/// Where services are counted.
impl Dispatcher {
    /// Returns where connections of a service are counted.
    pub(crate) fn counted(&self, number: u32) -> Counted {
        self.services.get(number).map_or(Counted::NOWHERE, |_| Counted::at(number & PLACE_MASK))
    }

    /// Returns `count` places of the table of services from `from` on, each with its service's number if the
    /// policy names it.
    pub(crate) fn places(&self, from: usize, count: usize) -> impl Iterator<Item = Option<(u32, &Service)>> {
        let slots = self.services.slots.iter().enumerate().skip(from).take(count);
        slots.map(|(at, slot)| {
            let service = slot.service.as_ref().filter(|service| service.active)?;
            Some((slot.generation << PLACE_BITS | at as u32, service))
        })
    }
}

#[cfg(test)]
mod tests;
