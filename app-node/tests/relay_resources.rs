//! Resources of the relay: no allocation while messages pass, and nothing left over when processes come and
//! go. Over ucx; one test, so that no other test allocates or opens descriptors meanwhile.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "a test owns its clock and may panic")]

use std::path::{Path, PathBuf};
use std::time::Instant as Wall;

use csp_app_node::relay::{Relay, RelayConfig, SanPort, Target, path_of};
use csp_support::allocation;
use csp_transport::token::{self, TokenClaims};
use csp_transport::{
    ClusterKey, Endpoint, EndpointConfig, LinkEvent, LinkId, MessageKind, PeerIdentity, ProcessId, Purpose,
};
use csp_types::{Instant, NodeId, Role};
use csp_vi::{ProviderKind, ViAddress, ViConfig};

#[global_allocator]
static ALLOCATOR: allocation::Counting = allocation::Counting;

const UNIX_S: u64 = 1_800_000_000;

fn now() -> Instant {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Instant::from_nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

fn key() -> ClusterKey {
    ClusterKey::from_bytes([7; 32])
}

fn node(name: &str) -> NodeId {
    name.parse().unwrap()
}

struct World {
    relay: Relay,
    proxy: Endpoint,
    folder: PathBuf,
    nonce: u64,
}

impl World {
    fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("csp-relay-resources-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let ucx = || ProviderKind::Ucx.open().unwrap();
        let channel = EndpointConfig::channel(
            PeerIdentity::daemon(Role::ProxyNode, node("pn-1"), 1, 0),
            Some(key().into()),
        );
        let EndpointConfig { receive_depth, send_depth, message_len, .. } = channel;
        let mut proxy = Endpoint::new(ucx(), channel);
        let port = 10_000 + (std::process::id() * 83 % 20_000) as u16;
        let address = ViAddress::Ip(([127, 0, 0, 1], port).into());
        proxy.listen(&address).unwrap();
        let config = RelayConfig {
            node: node("an-1"),
            incarnation: 5,
            folder: folder.clone(),
            users: None,
            vis_max: 8,
            keys: key().into(),
            nonce: 1 << 32,
            vi: ViConfig { receive_depth, send_depth, message_len },
        };
        let mut relay = Relay::new(config, vec![SanPort { forward: ucx(), watch: ucx() }]).unwrap();
        relay.set_targets(now(), &[Target { node: node("pn-1"), worker: 0, provider: "ucx", address }]);
        World { relay, proxy, folder, nonce: 0 }
    }

    fn turn(&mut self) -> Instant {
        let now = now();
        self.relay.turn(now, UNIX_S);
        self.proxy.progress(now, UNIX_S);
        now
    }

    /// Returns a process, its link, and the proxy's end of it.
    fn connect(&mut self) -> (Endpoint, LinkId, LinkId) {
        self.nonce += 1;
        let process = ProcessId::parse(b"web-1-1").unwrap();
        let (role, an) = (Role::Process, node("an-1"));
        let claims = TokenClaims {
            role,
            node: an,
            process,
            uid: None,
            grant: csp_types::Grant::all(),
            not_before: UNIX_S,
            expires: UNIX_S + 60,
            nonce: self.nonce,
        };
        let identity = PeerIdentity::process(an, process, self.nonce);
        let mut app =
            Endpoint::new(ProviderKind::Shm.open().unwrap(), EndpointConfig::channel(identity, None));
        let address = ViAddress::Path(path_of(&self.folder, an, node("pn-1"), 0));
        let token = token::issue(&key().signing(&claims), &claims);
        let link = app.connect(now(), &address, Purpose::Channel, 0, (0, 1), token.as_bytes()).unwrap();
        let (mut up, mut at_proxy) = (false, None);
        let end = Wall::now() + std::time::Duration::from_secs(20);
        while !up || at_proxy.is_none() {
            assert!(Wall::now() < end, "no link");
            let now = self.turn();
            app.progress(now, UNIX_S);
            up |= matches!(app.poll_event(), Some(LinkEvent::Up { .. }));
            if let Some(LinkEvent::Up { link, peer, .. }) = self.proxy.poll_event()
                && peer.process == process
            {
                at_proxy = Some(link);
            }
        }
        (app, link, at_proxy.unwrap())
    }

    /// Returns the resources in use after UCX has closed what it closes in the background, with its threads
    /// on a busy machine: as many descriptors as `before`, or those in use after a while.
    fn settled(&mut self, before: [usize; 3]) -> [usize; 3] {
        let end = Wall::now() + std::time::Duration::from_secs(10);
        loop {
            self.turn();
            let now = resources();
            if now[0] <= before[0] || Wall::now() >= end {
                return now;
            }
        }
    }

    fn end(&mut self, app: Endpoint) {
        drop(app);
        let end = Wall::now() + std::time::Duration::from_secs(20);
        let mut ended = false;
        while !ended || self.relay.occupancy().0 > 0 {
            assert!(Wall::now() < end, "no end");
            let now = self.turn();
            while self.proxy.receive(now, &mut []).is_some() {}
            ended |= matches!(self.proxy.poll_event(), Some(LinkEvent::Down { .. }));
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Exchanges messages of all sizes in both directions until each side has received `count`.
fn exchange(world: &mut World, app: &mut Endpoint, (link, at_proxy): (LinkId, LinkId), count: u32) {
    let (mut got, mut body) = ([0, 0], [0; 16_384]);
    let payload = [5; 16_000];
    let end = Wall::now() + std::time::Duration::from_secs(60);
    let mut turns = 0;
    while got[0].min(got[1]) < count {
        assert!(Wall::now() < end, "{got:?} messages");
        let now = world.turn();
        app.progress(now, UNIX_S);
        turns += 1;
        let payload = &payload[..1 + (turns * 97) % 16_000];
        for (side, (endpoint, link)) in
            [(&mut *app, link), (&mut world.proxy, at_proxy)].into_iter().enumerate()
        {
            let _ = endpoint.send(now, link, MessageKind::Channel, 0, &[payload]);
            while endpoint.receive(now, &mut body).is_some() {
                got[side] += 1;
            }
        }
    }
}

/// Returns open descriptors, mappings, and memory in use in KiB.
fn resources() -> [usize; 3] {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let resident = resident.trim().trim_end_matches(" kB").parse().unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    [std::fs::read_dir(Path::new("/proc/self/fd")).unwrap().count(), maps, resident]
}

#[test]
fn messages_allocate_nothing_and_processes_leave_nothing_behind() {
    let mut world = World::new();
    let (mut app, link, at_proxy) = world.connect();
    exchange(&mut world, &mut app, (link, at_proxy), 3_000);
    let before = allocation::process_count();
    exchange(&mut world, &mut app, (link, at_proxy), 10_000);
    let allocated = allocation::process_count() - before;
    world.end(app);
    assert_eq!(allocated, 0, "allocations while messages pass");
    let mut round = |_: u32| {
        let (mut app, link, at_proxy) = world.connect();
        exchange(&mut world, &mut app, (link, at_proxy), 3);
        world.end(app);
    };
    (0..50).for_each(&mut round);
    let before = resources();
    (0..500).for_each(&mut round);
    let after = world.settled(before);
    let grown = [0, 1, 2].map(|at| after[at].saturating_sub(before[at]));
    assert!(grown[0] == 0 && grown[1] < 10 && grown[2] < 16 << 10, "{before:?} became {after:?}");
}
