//! The relay between real endpoints: a process's over shm, a proxy's over memory (virtual time) or ucx.

use std::sync::atomic::{AtomicU32, Ordering};

use csp_transport::{
    ClusterKey, DownReason, Endpoint, EndpointConfig, LinkEvent, LinkId, MessageKind, PeerIdentity,
    ProcessId, Purpose, SendError, TokenClaims, token,
};
use csp_types::Role;
use csp_vi::memory::MemoryFabric;
use csp_vi::{ProviderKind, ViAddress};

use super::*;

mod ends;
mod resume;

const UNIX_S: u64 = 1_800_000_000;

fn key() -> ClusterKey {
    ClusterKey::from_bytes([7; 32])
}

fn node(name: &str) -> NodeId {
    name.parse().unwrap()
}

/// Our user id, which the kernel reports for every process of this test.
fn own_uid() -> u32 {
    rustix::process::getuid().as_raw()
}

fn token_of(uid: Option<u32>, nonce: u64) -> token::Token {
    let process = ProcessId::parse(b"web-1-1").unwrap();
    let (role, node) = (Role::Process, node("an-1"));
    let claims = TokenClaims {
        role,
        node,
        process,
        uid,
        grant: csp_types::Grant::all(),
        not_before: UNIX_S,
        expires: UNIX_S + 60,
        nonce,
    };
    token::issue(&key().signing(&claims), &claims)
}

/// A relay, a proxy behind it, and the providers that connect the two.
struct World {
    kind: &'static str,
    fabric: MemoryFabric,
    now: Instant,
    relay: Relay,
    proxy: Endpoint,
    target: Target,
    config: RelayConfig,
    nonce: u64,
}

fn provider(kind: &str, fabric: &MemoryFabric, name: &str) -> Box<dyn Provider> {
    match kind {
        "memory" => Box::new(fabric.provider(name)),
        _ => ProviderKind::Ucx.open().unwrap(),
    }
}

fn proxy_config() -> EndpointConfig {
    EndpointConfig::channel(PeerIdentity::daemon(Role::ProxyNode, node("pn-1"), 1, 0), Some(key().into()))
}

impl World {
    fn new(kind: &'static str) -> Self {
        Self::with(kind, |_| {})
    }

    fn with(kind: &'static str, change: impl FnOnce(&mut RelayConfig)) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("csp-relay-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let fabric = MemoryFabric::new();
        let address = match kind {
            "memory" => ViAddress::Name("proxy".to_owned()),
            _ => ViAddress::Ip(format!("127.0.0.1:{}", free_port()).parse().unwrap()),
        };
        let mut proxy = Endpoint::new(provider(kind, &fabric, "proxy"), proxy_config());
        proxy.listen(&address).unwrap();
        let from = proxy_config();
        let vi = ViConfig {
            receive_depth: from.receive_depth,
            send_depth: from.send_depth,
            message_len: from.message_len,
        };
        let mut config = RelayConfig {
            node: node("an-1"),
            incarnation: 5,
            folder,
            users: None,
            vis_max: 8,
            keys: key().into(),
            nonce: 1000,
            vi,
        };
        change(&mut config);
        let target = Target { node: node("pn-1"), worker: 0, provider: kind, address };
        let relay = relay(kind, &fabric, &config);
        let now = if kind == "memory" { Instant::ZERO + Duration::from_secs(1) } else { clock() };
        let mut world = World { kind, fabric, now, relay, proxy, target, config, nonce: 1 };
        assert_eq!(world.relay.set_targets(now, &[world.target.clone()]), [world.target.clone()]);
        world
    }

    fn path(&self) -> ViAddress {
        ViAddress::Path(path_of(&self.config.folder, self.config.node, self.target.node, 0))
    }

    /// Starts a process that connects with a token of this user; its link comes up or is refused.
    fn process(&mut self, uid: Option<u32>) -> Process {
        let identity = PeerIdentity::process(node("an-1"), ProcessId::parse(b"web-1-1").unwrap(), self.nonce);
        let mut endpoint =
            Endpoint::new(ProviderKind::Shm.open().unwrap(), EndpointConfig::channel(identity, None));
        self.nonce += 1;
        let token = token_of(uid, self.nonce);
        let link =
            endpoint.connect(self.now, &self.path(), Purpose::Channel, 0, (0, 1), token.as_bytes()).unwrap();
        Process { endpoint, link }
    }

    /// One turn of the relay and the proxy; time advances a little.
    fn turn(&mut self) {
        self.now = match self.kind {
            "memory" => self.now + Duration::from_micros(50),
            _ => clock(),
        };
        self.fabric.advance(self.now);
        self.relay.turn(self.now, UNIX_S);
        self.proxy.progress(self.now, UNIX_S);
    }

    /// Runs turns until `done` returns a value.
    #[track_caller]
    fn until<T>(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> Option<T>) -> T {
        let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
        loop {
            self.turn();
            if let Some(found) = done(self) {
                return found;
            }
            assert!(std::time::Instant::now() < end, "no {what}");
        }
    }

    /// Returns a process whose link is up, and the proxy's end of it.
    fn connected(&mut self) -> (Process, LinkId) {
        let mut process = self.process(Some(own_uid()));
        let mut at_proxy = None;
        let mut up = false;
        let link = self.until("link", |world| {
            up |= matches!(process.event(world.now), Some(LinkEvent::Up { .. }));
            if let Some(LinkEvent::Up { link, peer, .. }) = world.proxy.poll_event()
                && peer.process.as_str() != "agent"
            {
                at_proxy = Some(link);
            }
            at_proxy.filter(|_| up)
        });
        (process, link)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.config.folder);
    }
}

fn relay(kind: &str, fabric: &MemoryFabric, config: &RelayConfig) -> Relay {
    let (forward, watch) = (provider(kind, fabric, "forward"), provider(kind, fabric, "watch"));
    Relay::new(config.clone(), vec![SanPort { forward, watch }]).unwrap()
}

fn clock() -> Instant {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Instant::from_nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Returns a free port below those that the kernel assigns to connections.
fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = (10_000 + (std::process::id() * 89 + next) % 20_000) as u16;
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

struct Process {
    endpoint: Endpoint,
    link: LinkId,
}

impl Process {
    fn event(&mut self, now: Instant) -> Option<LinkEvent> {
        self.endpoint.progress(now, UNIX_S);
        self.endpoint.poll_event()
    }
}

fn pattern(n: u32) -> Vec<u8> {
    let len = [0, 1, 100, 4096, 16_000][n as usize % 5];
    (0..len).map(|i| (i * 13 + i / 256 + n as usize) as u8).collect()
}

/// Sends message `n` if there is credit.
fn send(endpoint: &mut Endpoint, now: Instant, link: LinkId, n: &mut u32) {
    match endpoint.send(now, link, MessageKind::Channel, *n, &[&pattern(*n)]) {
        Ok(()) => *n += 1,
        Err(error) => assert_eq!(error, SendError::NoCredit),
    }
}

/// Receives messages, whose numbers must continue `n`.
fn receive(endpoint: &mut Endpoint, now: Instant, n: &mut u32) {
    let mut body = vec![0; endpoint.message_len()];
    while let Some(message) = endpoint.receive(now, &mut body) {
        assert_eq!(message.immediate, *n);
        assert!(body[..message.len] == pattern(*n), "message {n} differs");
        *n += 1;
    }
}

fn check_both_ways(kind: &'static str, messages: u32) {
    let mut world = World::new(kind);
    let (mut process, at_proxy) = world.connected();
    let (mut up, mut down, mut got_up, mut got_down) = (0, 0, 0, 0);
    world.until("messages both ways", |world| {
        let now = world.now;
        for _ in 0..8 {
            if up < messages {
                send(&mut process.endpoint, now, process.link, &mut up);
            }
            if down < messages {
                send(&mut world.proxy, now, at_proxy, &mut down);
            }
        }
        assert_eq!(process.event(now), None);
        receive(&mut process.endpoint, now, &mut got_down);
        receive(&mut world.proxy, now, &mut got_up);
        (got_up == messages && got_down == messages).then_some(())
    });
    let counters = *world.relay.counters();
    assert!(counters.out_messages > u64::from(messages) && counters.in_messages > u64::from(messages));
    assert_eq!(counters.refused, Refused::default());
    assert_eq!((world.relay.occupancy(), counters.opened), ((1, 8), 1));
}

#[test]
fn messages_pass_both_ways_whole_and_in_order() {
    check_both_ways("memory", 3000);
}

#[test]
fn messages_pass_both_ways_over_ucx() {
    check_both_ways("ucx", 3000);
}

/// `end` removes the process after it has sent `messages`; the proxy must receive all of them and then the
/// end.
fn check_process_end(kind: &'static str, end: impl FnOnce(Process, Instant)) -> DownReason {
    let mut world = World::new(kind);
    let (mut process, at_proxy) = world.connected();
    let (mut sent, mut got) = (0, 0);
    for _ in 0..40 {
        send(&mut process.endpoint, world.now, process.link, &mut sent);
    }
    end(process, world.now);
    let reason = world.until("end", |world| {
        receive(&mut world.proxy, world.now, &mut got);
        match world.proxy.poll_event() {
            Some(LinkEvent::Down { link, reason }) if link == at_proxy => Some(reason),
            _ => None,
        }
    });
    assert_eq!(got, 40, "{kind} {reason:?} {:?} {:?}", world.relay.counters(), world.proxy.counters());
    world.until("the relay's end", |world| (world.relay.occupancy().0 == 0).then_some(()));
    reason
}

#[test]
fn what_a_process_sent_before_its_end_arrives_first() {
    for kind in ["memory", "ucx"] {
        let closed = check_process_end(kind, |mut process, now| process.endpoint.close(now, process.link));
        assert_eq!(closed, DownReason::Closed);
        let killed = check_process_end(kind, |process, _| drop(process));
        assert_eq!(killed, DownReason::Closed, "the proxy cannot know of a kill but by its agent's word");
    }
}

#[test]
fn what_a_proxy_sent_before_its_end_arrives_first() {
    for kind in ["memory", "ucx"] {
        let mut world = World::new(kind);
        let (mut process, at_proxy) = world.connected();
        let (mut sent, mut got) = (0, 0);
        for _ in 0..40 {
            send(&mut world.proxy, world.now, at_proxy, &mut sent);
        }
        world.proxy.close(world.now, at_proxy);
        world.until("end", |world| {
            let event = process.event(world.now);
            receive(&mut process.endpoint, world.now, &mut got);
            event.filter(|event| matches!(event, LinkEvent::Down { .. }))
        });
        assert_eq!((got, world.relay.occupancy().0), (40, 0));
    }
}

/// No provider reports a host that vanished; the agent detects it within a second although no process sends
/// anything.
#[test]
fn a_proxy_that_falls_silent_ends_the_processes_vis_within_a_second() {
    let mut world = World::new("memory");
    let _process = world.connected();
    world.until("the agent's own link", |world| world.relay.routes().any(|(_, up)| up).then_some(()));
    world.fabric.pause_node("proxy", true);
    let since = world.now;
    while world.relay.occupancy().0 > 0 {
        world.now += Duration::from_millis(10);
        world.fabric.advance(world.now);
        world.relay.turn(world.now, UNIX_S);
        assert!(world.now - since <= Duration::from_secs(1), "the proxy's death is not noticed");
    }
    assert_eq!(world.relay.counters().proxies_silent, 1);
}

#[test]
fn a_process_that_reads_nothing_holds_up_only_itself() {
    let mut world = World::new("memory");
    let (stopped, to_stopped) = world.connected();
    let (mut process, at_proxy) = world.connected();
    let (mut wasted, mut down, mut got) = (0, 0, 0);
    world.until("messages of the other", |world| {
        send(&mut world.proxy, world.now, to_stopped, &mut wasted);
        send(&mut world.proxy, world.now, at_proxy, &mut down);
        assert_eq!(process.event(world.now), None);
        receive(&mut process.endpoint, world.now, &mut got);
        (got >= 1000).then_some(())
    });
    assert!(wasted <= 64, "{wasted} messages for a process that reads none");
    drop(stopped);
}

/// Messages that the SAN does not accept wait in the process's own ring, in order, and are forwarded even
/// after the process is gone.
#[test]
fn what_the_san_does_not_take_waits_in_the_ring() {
    let mut world = World::new("memory");
    let (mut process, at_proxy) = world.connected();
    let vi = process.endpoint.link(process.link).unwrap().vi;
    world.fabric.pause_node("proxy", true);
    // More than the proxy has room for, as no correct process sends: its link breaks when the proxy receives
    // it.
    let provider = process.endpoint.provider_mut();
    let posted = (0..200).take_while(|_| provider.post_send(vi, 0, 0, &[b"beyond"], false).is_ok()).count();
    assert!((64..=96).contains(&posted), "{posted} messages fit the ring");
    for _ in 0..100 {
        world.turn();
    }
    let forwarded = world.relay.counters().out_messages;
    // HELLO and CONFIRM went before them.
    assert_eq!(
        (world.relay.counters().waited + forwarded, world.relay.occupancy().0),
        (posted as u64 + 2, 1)
    );
    drop(process);
    world.fabric.pause_node("proxy", false);
    world.until("end", |world| {
        world.proxy.poll_event().filter(|e| matches!(e, LinkEvent::Down { link, .. } if *link == at_proxy))
    });
    world.until("the relay's end", |world| (world.relay.occupancy().0 == 0).then_some(()));
    assert!(world.relay.counters().out_messages >= forwarded);
}

/// Expects that the process's link goes down without having been up.
#[track_caller]
fn check_refused(mut world: World, uid: Option<u32>) -> Refused {
    let mut process = world.process(uid);
    world.until("refusal", |world| match process.event(world.now) {
        Some(LinkEvent::Down { .. }) => Some(()),
        Some(other) => panic!("{other:?}"),
        None => None,
    });
    world.relay.counters().refused
}

#[test]
fn a_user_without_permission_is_refused_and_counted() {
    let other = own_uid() + 1;
    let user = Refused { user: 1, ..Refused::default() };
    assert_eq!(check_refused(World::new("memory"), Some(other)), user, "a token of another user");
    let listed = World::with("memory", |config| config.users = Some(vec![other]));
    assert_eq!(check_refused(listed, Some(own_uid())), user, "not in the list of users");
    let full = World::with("memory", |config| config.vis_max = 0);
    assert_eq!(check_refused(full, Some(own_uid())), Refused { full: 1, ..Refused::default() });
    let world = World::new("memory");
    world.fabric.kill_node("proxy", csp_vi::memory::InFlight::Lost);
    assert_eq!(check_refused(world, Some(own_uid())), Refused { san: 1, ..Refused::default() });
}

/// Whatever a process does with its ring, only its own VI ends.
#[test]
fn a_process_without_hello_is_dropped() {
    let mut world = World::new("memory");
    let mut stranger = ProviderKind::Shm.open().unwrap();
    let vi = stranger.connect(&world.path(), world.config.vi, b"").unwrap();
    let mut ended = false;
    world.until("end", |_| {
        match stranger.poll_event() {
            Some(Event::Established { .. }) => stranger.post_send(vi, 0, 0, &[b"no HELLO"], false).unwrap(),
            Some(Event::Disconnected { .. }) => ended = true,
            _ => {}
        }
        ended.then_some(())
    });
    assert_eq!(world.relay.counters().refused, Refused { protocol: 1, ..Refused::default() });
    let other = ViConfig { message_len: 4096, ..world.config.vi };
    let vi = stranger.connect(&world.path(), other, b"").unwrap();
    world.until("refusal", |_| match stranger.poll_event() {
        Some(Event::Refused { vi: of, .. }) if of == vi => Some(()),
        _ => None,
    });
    assert_eq!((world.relay.counters().refused.protocol, world.relay.occupancy().0), (2, 0));
}

#[test]
fn a_restarted_agent_serves_its_processes_again() {
    let mut world = World::new("memory");
    let (mut process, _) = world.connected();
    world.relay = relay("memory", &MemoryFabric::new(), &world.config);
    world.relay = relay("memory", &world.fabric, &world.config);
    world.until("end", |world| process.event(world.now).filter(|e| matches!(e, LinkEvent::Down { .. })));
    let targets = [world.target.clone()];
    world.relay.set_targets(world.now, &targets);
    world.connected();
    // A target that is no longer listed gets no new VIs, and keeps existing ones.
    assert!(world.relay.set_targets(world.now, &[]).is_empty());
    let mut late = world.process(Some(own_uid()));
    world.until("refusal", |world| late.event(world.now));
    assert_eq!(world.relay.occupancy().0, 1);
    world.relay.close(world.now);
    assert_eq!(world.relay.occupancy().0, 0);
}
