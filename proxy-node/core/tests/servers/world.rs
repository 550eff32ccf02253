//! The harness: clients and plain servers, each a host with a TCP engine, around one core on virtual time.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use csp_proxy_core::{
    Blocked, ChannelId, CoreConfig, EgressRule, HairpinConfig, Lane, PoolServer, ProxyCore, ProxyOutput,
    ServerHost, ServiceSpec, ServiceTcp, Way,
};
use csp_support::packets;
use csp_tcp::{ConnectionOptions, StackConfig};
use csp_types::{Duration, FlowLabel, FourTuple, Instant};
use csp_wire::channel::MessageHeader;
use csp_wire::tcp::Segment;
use csp_wire::tunnel::{Flags, Record};

use super::host::Host;

pub const VIP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
pub const EGRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);
pub const PORT: u16 = 8_080;
/// Time of a packet from one end to the other.
const DELAY: Duration = Duration::from_millis(1);

/// Returns the address of a server.
pub fn server(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 1, number)
}

/// A segment on its way: when it arrives, its addresses as the receiver sees them, and its bytes.
type Packet = (Instant, FourTuple, Vec<u8>);

/// What the core sends: segments to hosts.
#[derive(Default)]
pub struct Out {
    packets: Vec<(FourTuple, Vec<u8>)>,
    labels: BTreeMap<u32, FourTuple>,
    /// The tunnel takes nothing.
    pub cut: bool,
    /// No network node is connected for opens.
    pub no_node: bool,
    /// Ports that lead to a worker of the network node that is far.
    pub far: core::ops::Range<u16>,
}

impl ProxyOutput for Out {
    fn tunnel_ready(&self, _: u32) -> bool {
        !self.cut
    }

    fn tunnel(&mut self, _: Instant, _: u32, record: &Record<'_>, parts: &[&[u8]]) -> Result<(), Blocked> {
        let bytes = parts.concat();
        let compacted = record.flags.contains(Flags::COMPACTED);
        let tcp = if compacted { &bytes[..] } else { bytes.get(20..).unwrap_or(&[]) };
        let Ok(segment) = Segment::parse(tcp) else { return Ok(()) };
        let known = self.labels.get(&record.label.to_wire()).copied();
        let tuple = known.filter(|_| compacted).unwrap_or_else(|| {
            let address = |at: usize| Ipv4Addr::from(<[u8; 4]>::try_from(&bytes[at..at + 4]).unwrap());
            let remote = (address(12), segment.source_port()).into();
            FourTuple { local: (address(16), segment.destination_port()).into(), remote }
        });
        if !record.label.is_none() {
            self.labels.insert(record.label.to_wire(), tuple);
        }
        self.packets.push((tuple, tcp.to_vec()));
        Ok(())
    }

    fn network_node(&self, tuple: &FourTuple) -> Option<Way> {
        let is_far = self.far.contains(&tuple.local.port());
        (!self.cut && !self.no_node).then_some(Way { via: 1, is_far })
    }

    fn channel(&mut self, _: Instant, _: Lane, _: MessageHeader, _: &[&[u8]]) -> Result<(), Blocked> {
        Ok(())
    }

    fn lane_ready(&self, _: Lane) -> bool {
        true
    }

    fn lane(&self, channel: ChannelId, _: u32) -> Option<Lane> {
        Some(Lane(channel.0))
    }
}

/// A core with clients and servers.
pub struct World {
    pub core: ProxyCore,
    pub out: Out,
    pub now: Instant,
    pub hosts: BTreeMap<Ipv4Addr, Host>,
    on_the_way: Vec<Packet>,
    /// One of so many packets is lost; 0: none.
    pub loses: u64,
    random: u64,
    next_port: u16,
}

/// A service whose pool has these servers.
pub fn web(servers: &[u8]) -> ServiceSpec {
    let plain = |number: &u8| PoolServer {
        host: ServerHost::Address(server(*number).into()),
        port: PORT,
        weight: 1,
        connections_max: u32::MAX,
        backup: false,
    };
    ServiceSpec {
        pool: servers.iter().map(plain).collect(),
        ..ServiceSpec::new("web".to_owned(), (VIP, 80).into())
    }
}

impl World {
    /// Returns a world whose service has these servers, all of which listen.
    pub fn new(servers: &[u8]) -> Self {
        World::with_room(servers, 512)
    }

    /// As [`World::new`], with room for this many connections.
    pub fn with_room(servers: &[u8], connections: usize) -> Self {
        let tcp = StackConfig {
            connections,
            blocks: 8192,
            keepalive_idle: Some(Duration::from_secs(10)),
            time_wait: Duration::from_secs(1),
            ..StackConfig::default()
        };
        let hairpin = HairpinConfig { first_label_index: 10_000, pairs: 2 };
        let config = CoreConfig { worker: 0, workers: 1, tcp, trace_events: 256, hairpin, upstreams: 4 };
        let mut hosts = BTreeMap::from([(CLIENT, Host::new(1, StackConfig::default()))]);
        for number in servers {
            let mut host = Host::new(*number + 1, StackConfig::default());
            host.tcp.listen((server(*number), PORT).into(), 0).unwrap();
            hosts.insert(server(*number), host);
        }
        let mut world = World {
            core: ProxyCore::new(config),
            out: Out::default(),
            now: Instant::from_nanos(1_000_000_000),
            hosts,
            on_the_way: Vec::new(),
            loses: 0,
            random: 1,
            next_port: 10_000,
        };
        world.policy(vec![web(servers)]);
        world
    }

    pub fn policy(&mut self, services: Vec<ServiceSpec>) {
        let rule = EgressRule {
            address: EGRESS.into(),
            destinations: vec!["10.0.1.0/24".parse().unwrap()],
            except: Vec::new(),
            tcp: ServiceTcp::default(),
        };
        self.core.set_policy(self.now, services, vec![rule], &mut self.out);
    }

    pub fn seed(&mut self, seed: u64) {
        self.random = seed.wrapping_mul(2).wrapping_add(1);
    }

    /// Returns a number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % n
    }

    pub fn client(&mut self) -> &mut Host {
        self.hosts.get_mut(&CLIENT).unwrap()
    }

    pub fn server(&mut self, number: u8) -> &mut Host {
        self.hosts.get_mut(&server(number)).unwrap()
    }

    /// Has the client connect to the service.
    pub fn connect(&mut self) -> FlowLabel {
        let (now, client) = (self.now, self.hosts.get_mut(&CLIENT).unwrap());
        self.next_port += 1;
        let local = SocketAddr::from((CLIENT, self.next_port));
        let tuple = FourTuple { local, remote: (VIP, 80).into() };
        let options: ConnectionOptions = client.tcp.config().connection_options();
        let label = client.tcp.connect_with(now, tuple, 0, 0, options).unwrap();
        client.at_mut(label);
        label
    }

    /// Lets this much time pass.
    pub fn run(&mut self, time: Duration) {
        let until = self.now + time;
        for _ in 0..1_000_000 {
            assert!((0..10_000).any(|_| !self.turn()), "an instant does not end");
            let due = self.on_the_way.iter().map(|(at, ..)| *at).min();
            let timers = self.hosts.values().filter_map(|host| host.tcp.next_timeout());
            let next = timers.chain(due).chain(self.core.next_timeout()).min();
            let Some(next) = next.filter(|at| *at <= until) else {
                self.now = until;
                return;
            };
            self.now = self.now.max(next);
            self.timers();
        }
        panic!("nothing comes to rest");
    }

    fn timers(&mut self) {
        for host in self.hosts.values_mut() {
            if host.tcp.next_timeout().is_some_and(|at| at <= self.now) {
                host.tcp.on_timeout(self.now);
            }
        }
        if self.core.next_timeout().is_some_and(|at| at <= self.now) {
            self.core.on_timeout(self.now, &mut self.out);
        }
        let (due, later) =
            std::mem::take(&mut self.on_the_way).into_iter().partition(|p: &Packet| p.0 <= self.now);
        self.on_the_way = later;
        for packet in due {
            self.deliver(packet);
        }
    }

    fn deliver(&mut self, (_, tuple, bytes): Packet) {
        let IpAddr::V4(to) = tuple.local.ip() else { return };
        if let Some(host) = self.hosts.get_mut(&to) {
            return host.receive(self.now, tuple, &bytes);
        }
        let Ok(segment) = Segment::parse(&bytes) else { return };
        let IpAddr::V4(from) = tuple.remote.ip() else { return };
        let header = csp_wire::tcp::Repr::parse(&segment);
        let packet = packets::tcp_packet(from, to, &header, segment.payload());
        let record = packets::record(Flags::NONE, &packet);
        self.core.on_record(self.now, 1, &record, None, &mut self.out);
    }

    /// Has everybody do what can be done at this instant; returns whether there was anything.
    fn turn(&mut self) -> bool {
        self.core.drive(self.now, &mut self.out);
        let mut sent: Vec<(FourTuple, Vec<u8>)> = std::mem::take(&mut self.out.packets);
        let mut any = !sent.is_empty() || self.core.is_unfinished();
        for host in self.hosts.values_mut() {
            any |= host.run(self.now);
            while let Some(segment) = host.next_segment(self.now) {
                any = true;
                sent.push(segment);
            }
        }
        for (tuple, bytes) in sent {
            let loses = self.loses;
            if loses == 0 || self.below(loses) > 0 {
                self.on_the_way.push((self.now + DELAY, tuple, bytes));
            }
        }
        any
    }

    /// Returns the servers' open connections and whether each is down.
    pub fn members(&self) -> Vec<(u32, bool)> {
        let services = self.core.services();
        let members = services.iter().flat_map(|service| &service.members);
        let is_down = |state| matches!(state, Some(csp_proxy_core::PlainState::Down { .. }));
        members.map(|member| (member.open, is_down(member.plain))).collect()
    }

    /// Checks that nothing is left of any connection.
    pub fn assert_empty(&self, why: &str) {
        assert_eq!(self.core.flow_count(), 0, "{why}: flows");
        assert_eq!(self.core.budget_reserved(), 0, "{why}: memory for windows");
        assert!(self.members().iter().all(|(open, _)| *open == 0), "{why}: {:?}", self.members());
        let occupancy = self.core.tcp().occupancy();
        assert_eq!(occupancy.connections.0, 0, "{why}: connections of the engine");
    }
}
