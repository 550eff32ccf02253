//! Which network node connections use, on real endpoints over the memory fabric.

use std::sync::Arc;

use csp_election::GroupId;
use csp_transport::{
    Adjacency, AdjacentWorker, ClusterKey, EndpointConfig, LinkEvent, Purpose, TokenClaims, token,
};
use csp_types::{Duration, FourTuple, Grant, Role};
use csp_vi::ViAddress;
use csp_vi::memory::MemoryFabric;
use csp_wire::election::{self, Beat, Condition, Election, GroupBeat, Stage};

use super::*;

const UNIX_S: u64 = 1_800_000_000;

/// A proxy worker's links, and workers of some network nodes.
struct World {
    fabric: MemoryFabric,
    now: Instant,
    links: Links,
    network_nodes: Vec<Endpoint>,
}

impl World {
    /// Creates network nodes of these names, with one worker each, and connects them.
    fn new(names: &[&str]) -> World {
        World::with(&names.iter().map(|name| (*name, 0)).collect::<Vec<_>>(), Adjacent::default())
    }

    /// Creates these workers of network nodes, of a name and a number each, and connects them.
    fn with(workers: &[(&str, u8)], adjacent: Adjacent) -> World {
        let fabric = MemoryFabric::with_seed(1);
        let endpoint = |role, name: &str, at: usize| {
            let identity = PeerIdentity::daemon(role, name.parse().unwrap(), 1, 0);
            let key = (role == Role::ProxyNode).then(|| ClusterKey::from_bytes([1; 32]).into());
            let provider = Box::new(fabric.provider(&format!("{name}/{at}")));
            Endpoint::new(provider, EndpointConfig::tunnel(identity, key))
        };
        let address = ViAddress::Name("pn-1".to_owned());
        let mut proxy = endpoint(Role::ProxyNode, "pn-1", 0);
        proxy.listen(&address).unwrap();
        let now = Instant::from_nanos(1);
        let mut network_nodes = Vec::new();
        for (at, (name, worker)) in workers.iter().enumerate() {
            let mut node = endpoint(Role::NetworkNode, name, at);
            let token = token(name.parse().unwrap(), at as u64);
            node.connect(now, &address, Purpose::Tunnel, *worker, (0, 1), &token).unwrap();
            network_nodes.push(node);
        }
        let links = Links { adjacent, ..Links::new(vec![proxy], Vec::new()) };
        let mut world = World { fabric, now, links, network_nodes };
        world.run();
        assert_eq!(world.links.network_nodes().count(), workers.len());
        world
    }

    /// Advances virtual time by 10 ms.
    fn run(&mut self) {
        for _ in 0..10 {
            self.now += Duration::from_millis(1);
            self.fabric.advance(self.now);
            self.network_nodes.iter_mut().for_each(|node| _ = node.progress(self.now, UNIX_S));
            self.links.tunnel_endpoints[0].progress(self.now, UNIX_S);
            while let Some(event) = self.links.tunnel_endpoints[0].poll_event() {
                match event {
                    LinkEvent::Up { link, peer, .. } => _ = self.links.tunnel_up(0, link, &peer),
                    LinkEvent::Down { link, .. } => _ = self.links.tunnel_down(0, link),
                }
            }
        }
    }

    /// Registers what a network node owns; all other addresses stay with those that have registered nothing.
    fn owns(&mut self, entries: &[(&str, &str)]) {
        let owned = |network: &str| OwnedAddresses::new(vec![network.parse().unwrap()]);
        let entries = entries.iter().map(|(name, network)| (name.parse().unwrap(), owned(network)));
        self.links.set_owned(entries.collect());
    }

    /// Ends the tunnel of a worker of a network node.
    fn end(&mut self, at: usize) {
        let node = &mut self.network_nodes[at];
        let all: Vec<_> = node.links().map(|info| info.link).collect();
        all.into_iter().for_each(|link| node.close(self.now, link));
        self.run();
    }

    /// Returns the name of the network node for connections from `source`.
    fn chosen(&self, source: &str) -> Option<String> {
        let local = (source.parse::<IpAddr>().unwrap(), 50_000).into();
        let way = self.links.network_node(&FourTuple { local, remote: ([10, 1, 2, 3], 80).into() })?;
        self.links.network_workers.get(way.via).map(|w| w.node.to_string())
    }

    /// Returns for connections from [`PORTS`] the worker of the network node, and whether another port may
    /// lead to a better one.
    fn ways(&self) -> Vec<(u8, bool)> {
        let way = |tuple| self.links.network_node(&tuple).unwrap();
        let worker = |way: Way| (self.links.network_workers.get(way.via).unwrap().worker, way.is_far);
        tuples().map(|tuple| worker(way(tuple))).collect()
    }

    /// Registers among how many workers the network node distributes answers.
    fn registers(&mut self, workers: u8) {
        self.links.set_lan_workers(HashMap::from([("nn-1".parse().unwrap(), workers)]));
    }
}

const PORTS: core::ops::Range<u16> = 50_000..50_064;

fn tuples() -> impl Iterator<Item = FourTuple> {
    let local = |port| ([10, 76, 0, 101], port).into();
    PORTS.map(move |port| FourTuple { local: local(port), remote: ([10, 1, 2, 3], 80).into() })
}

/// Returns the worker that receives the answers to each of [`tuples`], of `workers`.
fn receivers(workers: u8) -> Vec<u8> {
    tuples().map(|tuple| steering::worker_of(&tuple, workers)).collect()
}

fn token(node: NodeId, nonce: u64) -> Vec<u8> {
    let claims = TokenClaims {
        role: Role::NetworkNode,
        node,
        process: ProcessId::NONE,
        uid: None,
        grant: Grant::NONE,
        not_before: UNIX_S - 60,
        expires: UNIX_S + 60,
        nonce,
    };
    token::issue(&ClusterKey::from_bytes([1; 32]).signing(&claims), &claims).as_bytes().to_vec()
}

#[test]
fn an_active_open_uses_the_owner_of_its_source() {
    let mut world = World::new(&["nn-1", "nn-2"]);
    assert_eq!(world.chosen("10.76.0.101").as_deref(), Some("nn-1"), "any, as both own all");
    world.owns(&[("nn-1", "10.76.0.96/29"), ("nn-2", "10.76.0.104/29")]);
    assert_eq!(world.chosen("10.76.0.101").as_deref(), Some("nn-1"));
    assert_eq!(world.chosen("10.76.0.111").as_deref(), Some("nn-2"));
    assert_eq!(world.chosen("10.76.0.112"), None);
    world.end(1);
    assert_eq!(world.chosen("10.76.0.111"), None, "its owner is gone");
}

#[test]
fn connections_of_a_lost_network_node_move_only_to_one_that_owns_its_addresses() {
    let mut world = World::new(&["nn-1", "nn-2", "nn-3"]);
    world.owns(&[("nn-1", "10.76.0.96/29"), ("nn-2", "10.76.0.104/29"), ("nn-3", "10.76.0.96/28")]);
    world.end(2);
    assert_eq!(world.links.next_move(), None, "neither owns all addresses of nn-3");
    world.end(0);
    assert_eq!(world.links.next_move(), None);
    // The others have left, and the administrator gives nn-2 their addresses.
    world.owns(&[("nn-2", "10.76.0.0/24")]);
    let mut moved = Vec::new();
    while let Some((from, to)) = world.links.next_move() {
        assert_eq!(world.links.network_workers.get(to).unwrap().node.as_str(), "nn-2");
        assert!(world.links.network_workers.get(from).is_none(), "it is forgotten");
        moved.push(from);
    }
    assert_eq!(moved.len(), 2);
}

/// A beat that says that its sender holds groups.
fn holds(groups: &[(u64, u64)]) -> Vec<u8> {
    let group = |(group, epoch): &(u64, u64)| GroupBeat {
        group: *group,
        epoch: *epoch,
        stage: Stage::Holds,
        successor: None,
    };
    let mut out = vec![0; election::LEN_MAX];
    let condition = Condition { able: true, ..Condition::default() };
    let len = Beat::emit(condition, 1, groups.iter().map(group), &mut out).unwrap();
    out.truncate(len);
    out
}

#[test]
fn connections_use_the_holder_of_their_address() {
    let mut world = World::new(&["nn-1", "nn-2"]);
    let groups = [("10.76.0.101", 1), ("10.76.0.104", 2), ("10.76.0.105", 2)];
    let groups = groups.map(|(address, id)| (address.parse().unwrap(), GroupId(id)));
    world.links.holders.set_groups(HashMap::from(groups));
    let via = |world: &World, name: &str| {
        world.links.network_workers.iter().find(|w| w.node.as_str() == name).unwrap().via
    };
    let local = |text: &str| text.parse::<IpAddr>().unwrap();
    let [first, second] = ["nn-1", "nn-2"].map(|name| via(&world, name));
    assert_eq!(world.links.holders_worker(local("10.76.0.104"), first), None, "nobody holds it yet");
    let hear = |world: &mut World, name: &str, groups: &[(u64, u64)]| {
        let bytes = holds(groups);
        let Ok(Election::Beat(beat)) = Election::parse(&bytes) else { panic!("a beat") };
        world.links.holders.on_beat(world.now, name.parse().unwrap(), &beat)
    };
    assert!(hear(&mut world, "nn-1", &[(1, 1)]) && hear(&mut world, "nn-2", &[(2, 1)]));
    assert!(
        !hear(&mut world, "nn-2", &[(2, 1), (3, 9)]),
        "nothing new, and a group that is not the policy's"
    );
    assert_eq!(world.chosen("10.76.0.101").as_deref(), Some("nn-1"));
    assert_eq!(world.chosen("10.76.0.105").as_deref(), Some("nn-2"));
    assert_eq!(world.links.holders_worker(local("10.76.0.104"), first), Some(second));
    assert_eq!(world.links.holders_worker(local("10.76.0.104"), second), None, "it is there");
    assert_eq!(world.links.holders_worker(local("10.76.0.112"), first), None, "in no group");
    // The first takes over; a late beat of the second changes nothing.
    assert!(hear(&mut world, "nn-1", &[(1, 1), (2, 2)]));
    assert!(!hear(&mut world, "nn-2", &[(2, 1)]));
    assert_eq!(world.chosen("10.76.0.105").as_deref(), Some("nn-1"));
    // It is lost: the other one's word counts, whatever the epoch.
    world.end(0);
    world.links.holders.lost("nn-1".parse().unwrap());
    assert!(hear(&mut world, "nn-2", &[(2, 1)]));
    assert_eq!(world.chosen("10.76.0.105").as_deref(), Some("nn-2"));
}

#[test]
fn a_connection_is_opened_through_the_worker_that_receives_the_answers() {
    let mut world = World::with(&[("nn-1", 0), ("nn-1", 1)], Adjacent::default());
    let expected: Vec<_> = receivers(2).into_iter().map(|worker| (worker, false)).collect();
    assert!(expected.contains(&(0, false)) && expected.contains(&(1, false)));
    assert_eq!(world.ways(), expected, "the node has not registered yet");
    world.registers(2);
    assert_eq!(world.ways(), expected);
    // Without the second worker's tunnel the first one sends; ports that lead to it are better.
    world.end(1);
    let first: Vec<_> = receivers(2).into_iter().map(|worker| (0, worker == 1)).collect();
    assert_eq!(world.ways(), first);
    world.registers(1);
    assert!(world.ways().iter().all(|way| *way == (0, false)), "it was started again with one worker");
}

#[test]
fn a_network_node_of_an_earlier_build_receives_all_answers_at_its_first_worker() {
    let mut world = World::with(&[("nn-1", 0), ("nn-1", 1)], Adjacent::default());
    let is_first = |world: &World| world.ways().iter().all(|way| *way == (0, false));
    assert!(!is_first(&world));
    world.registers(1);
    assert!(is_first(&world));
    world.links.set_lan_workers(HashMap::new());
    assert!(is_first(&world), "its registration has lapsed");
    world.end(0);
    assert!(world.ways().iter().all(|way| *way == (1, true)), "the only one that is left");
}

/// A network node's worker that takes nothing.
#[derive(Debug)]
struct Idle;

impl AdjacentWorker for Idle {
    fn is_up(&self) -> bool {
        false
    }

    fn take(&self, _: Instant, _: &Record<'_>, _: &[&[u8]]) -> bool {
        false
    }

    fn flush(&self, _: Instant) {}
}

#[test]
fn in_an_edge_ports_whose_answers_arrive_in_another_thread_are_far() {
    let nodes = Adjacency::new("nn-1".parse().unwrap(), "pn-1".parse().unwrap(), 2);
    nodes.set(1, Arc::new(Idle));
    let mut adjacent = Adjacent::default();
    adjacent.set(Arc::new(nodes), 1);
    let mut world = World::with(&[("nn-1", 0), ("nn-1", 1), ("nn-2", 0)], adjacent);
    world.registers(2);
    let expected: Vec<_> = receivers(2).into_iter().map(|worker| (worker, worker == 0)).collect();
    assert_eq!(world.ways(), expected);
    // Another network node has no worker in this thread.
    world.owns(&[("nn-1", "10.76.0.96/30"), ("nn-2", "10.76.0.100/30")]);
    assert_eq!(world.chosen("10.76.0.101").as_deref(), Some("nn-2"));
    assert!(world.ways().iter().all(|way| *way == (0, false)));
    // The tunnel to the worker of this thread is down: no port leads there.
    world.owns(&[("nn-1", "10.76.0.100/30"), ("nn-2", "10.76.0.96/30")]);
    world.end(1);
    let expected: Vec<_> = receivers(2).into_iter().map(|worker| (0, worker == 1)).collect();
    assert_eq!(world.ways(), expected);
}
