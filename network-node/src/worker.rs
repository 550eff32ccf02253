//! One data worker: connects a core to its LAN ports and tunnels. Time is an argument; the surrounding thread
//! (`csp_daemon::DataThread`, or the simulation) waits.

mod election;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use csp_classify::RuleError;
use csp_classify::multifield::InstanceId;
use csp_lan::{LanPort, LanReceiver, LanTransmitter, ReceiveCounters, TransmitCounters};
use csp_plugins::{Answer, CallError, EnvironmentId, Settings};
use csp_transport::{Adjacency, Endpoint, LinkEvent, LinkId, MessageKind};
use csp_types::{Instant, NodeId, PlacementKey, limits};
use csp_vi::{Armed, ViError, Wake};
use csp_wire::packets::{HEADER_LEN, Head, Kind};
use csp_wire::tunnel::{Record, RecordKind, Records};

use crate::core::{CoreConfig, NetworkCore, PluginChange, Pools, PortId, ProxyId, RuleSet};
use crate::links::{
    Answered, HostInstances, HostSpec, HostTransition, LinkNotice, Links, ProxySpec, TokenSource, Transition,
    TunnelInfo,
};

use election::Election;

pub use election::{Condition, ElectionInfo, HeldGroup, OwnGroup};

/// Largest number of messages from one endpoint in one turn, so that no proxy delays the others.
const MESSAGES_PER_TURN: usize = 64;

/// Counters of all ports of a worker together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LanCounters {
    /// Received.
    pub receive: ReceiveCounters,
    /// Transmitted.
    pub transmit: TransmitCounters,
    /// Frames passed to the host's kernel.
    pub kernel: TransmitCounters,
}

/// A network node's worker.
pub struct NetworkWorker {
    core: NetworkCore,
    links: Links,
    receivers: Vec<Box<dyn LanReceiver>>,
    scratch: Box<[u8]>,
    malformed: u64,
    /// Worker 0 only.
    election: Option<Election>,
    /// CLOCK_BOOTTIME; `None`: the time of the calls.
    lan_clock: Option<fn() -> Instant>,
}

impl NetworkWorker {
    /// Creates worker number `worker` with its ports (in the order of `config.ports`) and endpoints.
    pub fn new(
        config: CoreConfig,
        worker: u8,
        ports: Vec<LanPort>,
        endpoints: Vec<Endpoint>,
        tokens: TokenSource,
    ) -> Self {
        let proxies_max = config.proxies_max;
        let (mut receivers, mut transmitters) = (Vec::new(), Vec::new());
        for port in ports {
            receivers.push(port.receiver);
            transmitters.push(port.transmitter);
        }
        NetworkWorker {
            election: (worker == 0).then(|| Election::new(tokens.node)),
            lan_clock: None,
            core: NetworkCore::new(config),
            links: Links::new(endpoints, transmitters, tokens, worker, proxies_max),
            receivers,
            scratch: vec![0; limits::TUNNEL_MESSAGE_LEN_MAX].into_boxed_slice(),
            malformed: 0,
        }
    }

    /// Passes frames that `port` receives for addresses other than the node's to the host's kernel, by
    /// writing them to `kernel`. For ports whose frames the kernel does not receive itself.
    pub fn set_reinjection(&mut self, port: PortId, kernel: Box<dyn LanTransmitter>) {
        if let Some(place) = self.links.kernels.get_mut(usize::from(port.0)) {
            *place = Some(kernel);
            self.core.set_reinjection(port);
        }
    }

    /// Sets the proxy whose workers share the threads of this node's. Records for the one of this worker's
    /// thread are left with it instead of sent, from the next tunnel to it on.
    pub fn set_adjacency(&mut self, adjacency: Arc<Adjacency>) {
        self.links.adjacency = Some(adjacency);
    }

    /// Processes what has arrived, up to a limit, and sends the results. Returns whether there was work.
    pub fn turn(&mut self, now: Instant, unix_now_s: u64) -> bool {
        let mut busy = self.links.dial(now, unix_now_s);
        self.apply(now, None);
        self.core.set_settled(self.links.settled());
        self.core.set_complete(self.links.complete());
        self.read_lan_clock(now);
        for at in 0..self.links.endpoints.len() {
            if !self.links.is_used(at) {
                continue;
            }
            busy |= self.links.endpoints[at].progress(now, unix_now_s);
            busy |= self.take_tunnel(now, at);
        }
        for (at, receiver) in self.receivers.iter_mut().enumerate() {
            let (core, links, port) = (&mut self.core, &mut self.links, PortId(at as u16));
            busy |= receiver.receive(&mut |frame| core.on_frame(now, port, &frame, links)) > 0;
        }
        if self.core.next_timeout().is_some_and(|t| t <= now) {
            self.core.on_timeout(now, &mut self.links);
            busy = true;
        }
        self.take_part(now);
        self.links.flush(now);
        busy
    }

    fn take_tunnel(&mut self, now: Instant, at: usize) -> bool {
        let mut any = false;
        for _ in 0..MESSAGES_PER_TURN {
            while let Some(event) = self.links.endpoints[at].poll_event() {
                any = true;
                if self.take_host_event(now, at, &event) {
                    continue;
                }
                let transition = match event {
                    LinkEvent::Up { link, peer, .. } => self.links.link_up(now, at, link, &peer),
                    LinkEvent::Down { link, reason } => self.links.link_down(now, at, link, &reason),
                };
                self.apply(now, transition);
            }
            let Some(received) = self.links.endpoints[at].receive(now, &mut self.scratch) else { break };
            any = true;
            match received.kind {
                MessageKind::Tunnel => self.take_records(now, at, received.link, received.len),
                MessageKind::Packets => self.take_packets(now, at, received.link, received.len),
                MessageKind::Channel | MessageKind::Message => {}
            }
        }
        any
    }

    fn take_records(&mut self, now: Instant, at: usize, link: LinkId, len: usize) {
        let Some((proxy, worker)) = self.links.proxy_of(at, link) else { return };
        for record in Records::new(&self.scratch[..len.min(self.scratch.len())]) {
            match record {
                Ok(record) if record.worker == worker && record.kind == RecordKind::Election => {
                    let from = self.links.node_of(proxy);
                    let election = self.election.as_mut().zip(from);
                    let time = self.core.lan_time();
                    if election
                        .is_some_and(|(election, from)| !election.on_message(time, from, record.payload))
                    {
                        self.malformed += 1;
                    }
                }
                Ok(record) if record.worker == worker => {
                    self.core.on_record(now, proxy, &record, &mut self.links);
                }
                // A malformed record, or one of another worker: the peer is faulty, and the link is failed.
                _ => {
                    self.malformed += 1;
                    self.links.endpoints[at].fail(now, link);
                    return;
                }
            }
        }
    }

    /// Returns whether the tunnel to the worker of this one's number of `proxy` is up.
    pub(crate) fn is_adjacent(&self, proxy: NodeId) -> bool {
        self.links.adjacent(proxy).is_some()
    }

    /// Takes a record of the worker of this one's number of `proxy`, which runs in the same thread, if the
    /// tunnel between the two is up. See [`csp_transport::AdjacentWorker`].
    pub(crate) fn take_adjacent(
        &mut self,
        now: Instant,
        proxy: NodeId,
        record: &Record<'_>,
        parts: &[&[u8]],
    ) -> bool {
        let Some(proxy) = self.links.adjacent(proxy) else { return false };
        let (header, payload) =
            parts.split_first().map_or((&[][..], parts), |(header, payload)| (*header, payload));
        if self.core.on_record_in_parts(now, proxy, record, (header, payload), &mut self.links) {
            return true;
        }
        let mut len = 0;
        for part in parts {
            let Some(room) = self.scratch.get_mut(len..len + part.len()) else { return false };
            room.copy_from_slice(part);
            len += part.len();
        }
        let whole = Record { payload: &self.scratch[..len], ..*record };
        self.core.on_record(now, proxy, &whole, &mut self.links);
        true
    }

    /// Sends what is queued.
    pub(crate) fn flush(&mut self, now: Instant) {
        self.links.flush(now);
    }

    /// Processes an event of a plug-in host's link. Returns false if the event is about another link.
    fn take_host_event(&mut self, now: Instant, at: usize, event: &LinkEvent) -> bool {
        let (LinkEvent::Up { link, .. } | LinkEvent::Down { link, .. }) = event;
        let Some(host) = self.links.hosts.of_link(at, *link) else { return false };
        match event {
            LinkEvent::Up { peer, .. } => {
                let Links { hosts, endpoints, .. } = &mut self.links;
                hosts.link_up(now, host, peer, endpoints);
            }
            LinkEvent::Down { reason, .. } => {
                let transition = self.links.hosts.link_down(now, host, reason);
                self.apply_host(now, transition);
            }
        }
        true
    }

    fn take_packets(&mut self, now: Instant, at: usize, link: LinkId, len: usize) {
        let Some(host) = self.links.hosts.of_link(at, link) else { return };
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut rest = scratch.get_mut(..len).unwrap_or_default();
        while !rest.is_empty() {
            let parsed = Head::parse(rest).ok().filter(|(head, ..)| head.kind.is_of_host());
            let Some((head, payload_len, total)) = parsed else {
                self.malformed += 1;
                self.links.endpoints[at].fail(now, link);
                break;
            };
            let (record, after) = rest.split_at_mut(total);
            let payload = &mut record[HEADER_LEN..HEADER_LEN + payload_len];
            match head.kind {
                Kind::Configured | Kind::Answer => {
                    let transition = self.links.hosts.on_record(now, host, &head, payload);
                    self.apply_host(now, transition);
                }
                _ => self.core.on_host_record(now, host, &head, payload, &mut self.links),
            }
            rest = after;
        }
        self.scratch = scratch;
    }

    fn apply_host(&mut self, now: Instant, transition: Option<HostTransition>) {
        match transition {
            Some(HostTransition::Up(host)) => self.core.host_up(host),
            Some(HostTransition::Down(host)) => self.core.host_down(now, host, &mut self.links),
            None => {}
        }
    }

    /// Replaces the plug-in hosts, and dials those that are new.
    pub fn set_hosts(&mut self, now: Instant, hosts: &[HostSpec]) {
        for transition in self.links.set_hosts(now, hosts) {
            self.apply_host(now, Some(transition));
        }
        self.links.hosts.environments().for_each(|host| self.core.prepare_host(host));
    }

    /// Returns the plug-in hosts that do not run their instances, each with the reason.
    pub fn absent_hosts(&self) -> Vec<(EnvironmentId, String)> {
        self.links.hosts.absent().map(|(host, reason)| (host, reason.to_owned())).collect()
    }

    /// Makes a plug-in host execute an operation of an instance in its environment. `answered` receives the
    /// result.
    pub fn call_host(&mut self, host: EnvironmentId, instance: InstanceId, text: String, answered: Answered) {
        self.links.hosts.call(host, instance.0, text, answered);
    }

    fn apply(&mut self, now: Instant, transition: Option<Transition>) {
        match transition {
            Some(Transition::Up(proxy, node, worker)) => self.core.worker_up(proxy, node, worker),
            Some(Transition::Broken(proxy, worker)) => self.core.worker_unreachable(now, proxy, worker),
            Some(Transition::Down(proxy, worker)) => self.core.worker_down(proxy, worker),
            None => {}
        }
        let mut news = transition.is_some();
        while let Some(Transition::Down(proxy, worker)) = self.links.poll_given_up() {
            self.core.worker_down(proxy, worker);
            news = true;
        }
        if news {
            self.count_voters();
        }
    }

    /// Replaces the list of proxies, and dials those that are new.
    pub fn set_proxies(&mut self, now: Instant, proxies: &[ProxySpec]) {
        for transition in self.links.set_proxies(now, proxies) {
            self.apply(now, Some(transition));
        }
        for proxy in proxies {
            if let Some(id) = self.links.id_of(proxy.node) {
                self.core.set_draining(id, proxy.draining);
            }
        }
        self.count_voters();
    }

    /// Puts a policy without channels into force; see [`set_rules`](Self::set_rules).
    ///
    /// # Errors
    /// As for `set_rules`.
    pub fn set_services(
        &mut self,
        now: Instant,
        services: &[SocketAddr],
        egress: &[IpAddr],
    ) -> Result<(), RuleError> {
        self.set_rules(now, services, &[], egress)
    }

    /// Puts a policy generation into force: the addresses of services, those of message channels with the
    /// keys that determine where these live, and the egress addresses.
    ///
    /// # Errors
    /// Rules that the core refuses; the previous ones stay in force.
    pub fn set_rules(
        &mut self,
        now: Instant,
        services: &[SocketAddr],
        channels: &[(SocketAddr, PlacementKey)],
        egress: &[IpAddr],
    ) -> Result<(), RuleError> {
        let result = self.core.set_rules(now, services, channels, egress, &mut self.links);
        self.links.flush(now);
        result
    }

    /// Exchanges the rules in force for others; see [`NetworkCore::exchange_rules`].
    pub fn exchange_rules(&mut self, now: Instant, rules: &mut RuleSet) {
        self.read_lan_clock(now);
        self.core.exchange_rules(now, rules, &mut self.links);
        self.links.flush(now);
    }

    /// Sets which servers are up; see [`NetworkCore::set_pools`].
    pub fn set_pools(&mut self, now: Instant, pools: &mut Arc<Pools>) {
        self.core.set_pools(now, pools, &mut self.links);
        self.links.flush(now);
    }

    /// Applies a change of packet plug-ins; see [`NetworkCore::change_plugins`]. `hosted` are the new
    /// instances of plug-in hosts.
    pub fn change_plugins(&mut self, change: &mut PluginChange, hosted: &[HostInstances]) {
        self.core.change_plugins(change);
        self.links.hosts.configure(hosted);
    }

    /// Executes an operation of a packet plug-in.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn call_plugin(
        &mut self,
        now: Instant,
        instance: InstanceId,
        operation: &str,
        arguments: &Settings,
    ) -> Result<Answer, CallError> {
        self.core.call_plugin(now, instance, operation, arguments)
    }

    /// Returns when to call [`turn`](Self::turn) next if nothing arrives.
    pub fn next_timeout(&self) -> Option<Instant> {
        let endpoints = self.links.used().filter_map(Endpoint::next_timeout);
        let election = self.election.as_ref().and_then(Election::next_timeout);
        endpoints.chain(self.core.next_timeout()).chain(self.links.next_dial()).chain(election).min()
    }

    /// Arms all endpoints' wake descriptors. The LAN ports' descriptors need none.
    pub fn arm(&mut self) -> Result<Armed, ViError> {
        for endpoint in self.links.used_mut() {
            if endpoint.arm()? == Armed::Busy {
                return Ok(Armed::Busy);
            }
        }
        Ok(Armed::Armed)
    }

    /// Appends the descriptors to wait on to `into`.
    pub fn wake(&self, into: &mut Vec<Wake>) {
        self.links.used().for_each(|endpoint| endpoint.wake(into));
        into.extend(self.receivers.iter().flat_map(|r| r.fds()).flatten());
    }

    /// Returns a number that changes whenever the set of [`wake`](Self::wake) changes.
    pub fn wake_generation(&self) -> u64 {
        let generations = self.links.used().map(|endpoint| endpoint.wake_generation() + 1);
        generations.fold(0, u64::wrapping_add)
    }

    /// Gives up all groups of addresses, and closes every link cleanly.
    pub fn close(&mut self, now: Instant) {
        self.leave_election(now);
        self.links.close(now);
    }

    /// Returns the core, read-only.
    pub fn core(&self) -> &NetworkCore {
        &self.core
    }

    /// Returns the endpoints, read-only.
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.links.endpoints
    }

    /// Returns the tunnels that should exist.
    pub fn tunnels(&self) -> impl Iterator<Item = TunnelInfo> + '_ {
        self.links.tunnels()
    }

    /// Returns the node of a proxy.
    pub fn node_of(&self, proxy: ProxyId) -> Option<NodeId> {
        self.links.node_of(proxy)
    }

    /// Returns the largest number of proxies.
    pub fn proxies_max(&self) -> usize {
        self.links.proxies_max()
    }

    /// Returns the number of proxies that it connects to, and the number of members beyond its limit.
    pub fn proxies(&self) -> (usize, usize) {
        self.links.proxies()
    }

    /// Returns the next event to log, if any.
    pub fn poll_notice(&mut self) -> Option<LinkNotice> {
        self.links.poll_notice()
    }

    /// Returns the number of messages that could not be parsed; their links were failed.
    pub fn malformed(&self) -> u64 {
        self.malformed
    }

    /// Returns the counters of the LAN ports.
    pub fn lan_counters(&mut self) -> LanCounters {
        let mut all = LanCounters::default();
        for receiver in &mut self.receivers {
            let one = receiver.counters();
            all.receive.frames += one.frames;
            all.receive.bytes += one.bytes;
            all.receive.truncated += one.truncated;
            all.receive.bad_offload += one.bad_offload;
            all.receive.errors += one.errors;
            all.receive.overrun += one.overrun;
        }
        for transmitter in &self.links.transmitters {
            add(&mut all.transmit, transmitter.counters());
        }
        for kernel in self.links.kernels.iter().flatten() {
            add(&mut all.kernel, kernel.counters());
        }
        all
    }
}

fn add(sum: &mut TransmitCounters, one: TransmitCounters) {
    sum.frames += one.frames;
    sum.bytes += one.bytes;
    sum.full += one.full;
    sum.too_long += one.too_long;
    sum.errors += one.errors;
}
