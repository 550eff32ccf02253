//! Two or more endpoints on one fabric, driven step by step in virtual time.

use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU32, Ordering};

use csp_transport::token::{self, TokenClaims};
use csp_transport::{
    ClusterKey, Counters, DownReason, Endpoint, EndpointConfig, Keys, LinkEvent, LinkId, MessageKind,
    PeerIdentity, ProcessId, Purpose, Token,
};
use csp_types::{Duration, Instant, NodeId, Role};
use csp_vi::memory::{Delay, MemoryFabric};
use csp_vi::shm::ShmProvider;
use csp_vi::{Armed, Provider, ViAddress};

/// The time of day at which every test starts, in Unix seconds.
pub const UNIX_START: u64 = 1_800_000_000;

pub fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub fn key() -> ClusterKey {
    ClusterKey::from_bytes([7; 32])
}

pub fn node(name: &str) -> NodeId {
    name.parse().unwrap()
}

pub fn process(name: &str) -> ProcessId {
    ProcessId::parse(name.as_bytes()).unwrap()
}

/// The user that the tests run as, as the shm provider reports it of its peers.
pub fn own_uid() -> u32 {
    std::fs::metadata("/proc/self").unwrap().uid()
}

/// A message as the owner of an endpoint received it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    pub link: LinkId,
    pub kind: MessageKind,
    pub immediate: u32,
    pub body: Vec<u8>,
}

/// An endpoint, its events and the messages that it received.
pub struct Side {
    pub endpoint: Endpoint,
    pub events: Vec<LinkEvent>,
    pub messages: Vec<Message>,
    /// Whether the owner receives messages in its turn.
    pub receives: bool,
}

impl Side {
    pub fn turn(&mut self, now: Instant) -> bool {
        let mut busy = self.endpoint.progress(now, unix(now));
        if !busy {
            // As every worker does before it blocks: the shm provider then polls its sockets.
            let _ = self.endpoint.arm();
            busy = self.endpoint.progress(now, unix(now));
        }
        loop {
            while let Some(event) = self.endpoint.poll_event() {
                busy = true;
                self.events.push(event);
            }
            if !self.receives || !self.receive_one(now) {
                break;
            }
            busy = true;
        }
        // Arming makes the shm provider poll its sockets.
        busy || self.endpoint.provider_mut().arm() == Ok(Armed::Busy)
    }

    pub fn receive_one(&mut self, now: Instant) -> bool {
        let mut scratch = vec![0; self.endpoint.message_len()];
        let Some(received) = self.endpoint.receive(now, &mut scratch) else { return false };
        scratch.truncate(received.len);
        let (link, kind, immediate) = (received.link, received.kind, received.immediate);
        self.messages.push(Message { link, kind, immediate, body: scratch });
        true
    }

    /// The links that are up, in the order in which they came up.
    pub fn up(&self) -> Vec<LinkId> {
        let down =
            |id: &LinkId| self.events.iter().any(|e| matches!(e, LinkEvent::Down { link, .. } if link == id));
        let ups = self.events.iter().filter_map(|e| match e {
            LinkEvent::Up { link, .. } => Some(*link),
            LinkEvent::Down { .. } => None,
        });
        ups.filter(|id| !down(id)).collect()
    }

    pub fn down(&self, id: LinkId) -> Option<DownReason> {
        self.events.iter().find_map(|e| match e {
            LinkEvent::Down { link, reason } if *link == id => Some(reason.clone()),
            _ => None,
        })
    }

    pub fn peer(&self, id: LinkId) -> Option<PeerIdentity> {
        self.events.iter().find_map(|e| match e {
            LinkEvent::Up { link, peer, .. } if *link == id => Some(*peer),
            _ => None,
        })
    }

    pub fn counters(&self) -> &Counters {
        self.endpoint.counters()
    }

    pub fn send(&mut self, now: Instant, link: LinkId, body: &[u8]) -> bool {
        let purpose = self.endpoint.link(link).map_or(Purpose::Channel, |info| info.purpose);
        let kind = if purpose == Purpose::Tunnel { MessageKind::Tunnel } else { MessageKind::Channel };
        self.endpoint.send(now, link, kind, 0, &[body]).is_ok()
    }
}

pub fn unix(now: Instant) -> u64 {
    UNIX_START + now.as_nanos() / 1_000_000_000
}

/// The fabric and its time. Over shm (`crate::OVER_SHM`) the fabric is not used: there are no delays and no
/// faults, and providers poll their sockets only at times.
pub struct World {
    pub fabric: MemoryFabric,
    pub now: Instant,
    /// Distinguishes the rendezvous sockets of worlds in one process.
    number: u32,
}

impl Drop for World {
    fn drop(&mut self) {
        if let ViAddress::Path(path) = self.address() {
            let _ = std::fs::remove_file(path);
        }
    }
}

pub const PROXY: &str = "pn-1";

impl World {
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        World { fabric: MemoryFabric::with_seed(1), now: Instant::ZERO, number }
    }

    /// A world whose VIs can break. Messages take up to 2 ms; `seed` determines all delays.
    pub fn breakable(seed: u64) -> Self {
        let mut world = World::new();
        world.fabric = MemoryFabric::with_seed(seed);
        world.fabric.let_break();
        world.fabric.set_default_delay(Delay { fixed: Duration::ZERO, jitter: ms(2) });
        world
    }

    /// A world where each message takes `fixed` and up to `jitter` more, in milliseconds.
    pub fn with_delay(fixed: u64, jitter: u64) -> Self {
        let world = World::new();
        world.fabric.set_default_delay(Delay { fixed: ms(fixed), jitter: ms(jitter) });
        world
    }

    pub fn raw(&self, name: &str) -> Box<dyn Provider> {
        if crate::OVER_SHM {
            Box::new(ShmProvider::new().unwrap())
        } else {
            Box::new(self.fabric.provider(name))
        }
    }

    /// Where the proxy listens.
    pub fn address(&self) -> ViAddress {
        if crate::OVER_SHM {
            let name = format!("csp-transport-{}-{}.sock", std::process::id(), self.number);
            ViAddress::Path(std::env::temp_dir().join(name))
        } else {
            ViAddress::Name("pn-1.w3".to_owned())
        }
    }

    pub fn side(&self, name: &str, config: EndpointConfig) -> Side {
        let endpoint = Endpoint::new(self.raw(name), config);
        Side { endpoint, events: Vec::new(), messages: Vec::new(), receives: true }
    }

    /// A listening proxy worker whose links have `depth` descriptors.
    pub fn proxy(&self, depth: u32) -> Side {
        self.proxy_of(small(
            PeerIdentity::daemon(Role::ProxyNode, node(PROXY), 41, 3),
            depth,
            Some(key().into()),
        ))
    }

    pub fn proxy_of(&self, config: EndpointConfig) -> Side {
        let mut side = self.side(PROXY, config);
        side.endpoint.listen(&self.address()).unwrap();
        side
    }

    pub fn network_node(&self, depth: u32) -> Side {
        self.side("nn-1", small(PeerIdentity::daemon(Role::NetworkNode, node("nn-1"), 11, 0), depth, None))
    }

    pub fn process(&self, name: &str, depth: u32) -> Side {
        self.side(name, small(PeerIdentity::process(node("an-1"), process(name), 21), depth, None))
    }

    /// One step: time advances, and all sides take turns until none has anything left to do.
    pub fn step(&mut self, by: Duration, sides: &mut [&mut Side]) {
        self.now += by;
        self.fabric.advance(self.now);
        for _ in 0..1000 {
            let mut busy = false;
            for side in sides.iter_mut() {
                busy |= side.turn(self.now);
            }
            if !busy {
                return;
            }
        }
        panic!("the sides never come to rest");
    }

    /// Steps of one millisecond.
    pub fn run(&mut self, time: Duration, sides: &mut [&mut Side]) {
        let end = self.now + time;
        while self.now < end {
            self.step(ms(1), sides);
        }
    }

    /// Connects a channel link of `side` and brings it up; returns its ids at `side` and at the proxy.
    pub fn channel_up(&mut self, side: &mut Side, proxy: &mut Side) -> (LinkId, LinkId) {
        let token = process_token(side.endpoint.identity().process.as_str(), 1);
        self.link_up(side, proxy, Purpose::Channel, &token)
    }

    pub fn tunnel_up(&mut self, side: &mut Side, proxy: &mut Side) -> (LinkId, LinkId) {
        self.link_up(side, proxy, Purpose::Tunnel, &node_token(1))
    }

    fn link_up(
        &mut self,
        side: &mut Side,
        proxy: &mut Side,
        purpose: Purpose,
        token: &Token,
    ) -> (LinkId, LinkId) {
        let link = connect(self, side, purpose, (0, 1), token);
        for _ in 0..1_500 {
            self.step(ms(1), &mut [side, proxy]);
            // The proxy reports the link when the confirmation has arrived.
            if let Some(at_proxy) = proxy.up().last().filter(|_| side.up().contains(&link)) {
                return (link, *at_proxy);
            }
        }
        panic!("the link does not come up: {:?}", side.events);
    }
}

/// Small messages and tables, so that limits are reached soon.
pub fn small(identity: PeerIdentity, depth: u32, verify: Option<Keys>) -> EndpointConfig {
    EndpointConfig {
        receive_depth: depth,
        send_depth: depth,
        message_len: 1024,
        links_max: 8,
        ..EndpointConfig::channel(identity, verify)
    }
}

pub fn connect(world: &World, side: &mut Side, purpose: Purpose, pool: (u8, u8), token: &Token) -> LinkId {
    side.endpoint.connect(world.now, &world.address(), purpose, 0, pool, token.as_bytes()).unwrap()
}

pub fn claims(role: Role, node_name: &str, process_id: ProcessId, nonce: u64) -> TokenClaims {
    TokenClaims {
        role,
        node: node(node_name),
        process: process_id,
        uid: None,
        grant: csp_types::Grant::all(),
        not_before: UNIX_START,
        expires: UNIX_START + 3600,
        nonce,
    }
}

pub fn process_token(name: &str, nonce: u64) -> Token {
    signed(&claims(Role::Process, "an-1", process(name), nonce))
}

pub fn node_token(nonce: u64) -> Token {
    signed(&claims(Role::NetworkNode, "nn-1", ProcessId::NONE, nonce))
}

/// A token signed with the key of its node.
pub fn signed(claims: &TokenClaims) -> Token {
    token::issue(&key().signing(claims), claims)
}
