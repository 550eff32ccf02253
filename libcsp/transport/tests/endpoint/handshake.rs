//! Which peers get a link, and which are refused.

use csp_transport::token::{self, CLOCK_SKEW_S, TokenClaims};
use csp_transport::{
    ClusterKey, DownReason, LinkEvent, PeerIdentity, ProcessId, Purpose, RefusalCode, Token,
};
use csp_types::{Instant, Role};

use crate::harness::*;

#[test]
fn both_sides_learn_the_identity_of_the_other() {
    let mut world = World::new();
    let (mut proxy, mut app) = (world.proxy(8), world.process("nginx.1", 4));
    let claims = claims(Role::Process, "an-1", process("nginx.1"), 9);
    let token = signed(&TokenClaims { uid: Some(own_uid()), ..claims });
    let link = connect(&world, &mut app, Purpose::Channel, (1, 2), &token);
    world.step(ms(1), &mut [&mut app, &mut proxy]);

    let [LinkEvent::Up { link: at_proxy, purpose: Purpose::Channel, peer }] = proxy.events[..] else {
        panic!("{:?}", proxy.events)
    };
    let expected =
        PeerIdentity { uid: Some(own_uid()), pool_index: 1, pool_size: 2, ..*app.endpoint.identity() };
    assert_eq!(peer, expected);
    let acceptor = app.peer(link).unwrap();
    assert_eq!(acceptor, PeerIdentity { pool_index: 1, pool_size: 2, ..*proxy.endpoint.identity() });
    // Two of the peer's descriptors are for control messages.
    assert_eq!(app.endpoint.credits(link), 8 - 1 - 2, "HELLO's descriptor came back with HELLO_ACK");
    assert_eq!(proxy.endpoint.credits(at_proxy), 4 - 2, "and that of HELLO_ACK with CONFIRM");
    assert_eq!((app.counters().links_up, proxy.counters().links_up), (1, 1));
}

#[test]
fn a_tunnel_link_carries_messages_both_ways() {
    let mut world = World::new();
    let (mut proxy, mut nn) = (world.proxy(8), world.network_node(8));
    let (at_nn, at_proxy) = world.tunnel_up(&mut nn, &mut proxy);
    assert!(nn.send(world.now, at_nn, b"in"));
    assert!(proxy.send(world.now, at_proxy, b"out"));
    world.step(ms(1), &mut [&mut nn, &mut proxy]);
    assert_eq!(proxy.messages[0].body, b"in");
    assert_eq!(nn.messages[0].body, b"out");
}

/// Connects as process nginx.1 of an-1 with `token`; returns the proxy's refusal.
fn refusal(token: &Token) -> (RefusalCode, String) {
    refusal_of(nginx(), Purpose::Channel, token)
}

fn nginx() -> PeerIdentity {
    PeerIdentity::process(node("an-1"), process("nginx.1"), 21)
}

fn refusal_of(identity: PeerIdentity, purpose: Purpose, token: &Token) -> (RefusalCode, String) {
    let mut world = World::new();
    let mut proxy = world.proxy(8);
    let mut side = world.side("client", small(identity, 8, None));
    let link = connect(&world, &mut side, purpose, (0, 1), token);
    world.step(ms(1), &mut [&mut side, &mut proxy]);
    assert_eq!(proxy.events, [], "a refused link is not reported to the owner");
    assert_eq!(proxy.endpoint.links().count(), 0, "a refused link keeps no slot");
    let c = proxy.counters();
    let refused = c.refused_bad_token + c.refused_expired + c.refused_identity + c.refused_parameters;
    assert_eq!((refused, c.links_up, c.hello_failed), (1, 0, 0));
    assert_eq!(side.counters().refused_by_peer, 1);
    match side.down(link) {
        Some(DownReason::Refused { code, text }) => (code, text),
        other => panic!("{other:?}"),
    }
}

#[test]
fn tokens_that_do_not_fit_are_refused() {
    let good = claims(Role::Process, "an-1", process("nginx.1"), 1);
    let with = |change: fn(&mut TokenClaims)| {
        let mut claims = good;
        change(&mut claims);
        refusal(&signed(&claims)).0
    };
    assert_eq!(with(|c| c.expires = UNIX_START - CLOCK_SKEW_S), RefusalCode::ExpiredToken);
    assert_eq!(with(|c| c.not_before = UNIX_START + CLOCK_SKEW_S + 9), RefusalCode::ExpiredToken);
    assert_eq!(with(|c| c.role = Role::AppNode), RefusalCode::BadToken);
    assert_eq!(with(|c| c.node = node("an-2")), RefusalCode::BadToken);
    assert_eq!(with(|c| c.process = process("nginx.2")), RefusalCode::BadToken);
    let other_key = ClusterKey::from_bytes([8; 32]);
    let (code, text) = refusal(&token::issue(&other_key.signing(&good), &good));
    assert_eq!(
        (code, &text[..]),
        (
            RefusalCode::BadToken,
            "the token is not signed with its node's key, or with one that is not valid here"
        )
    );
    assert_eq!(refusal(&Token::from_bytes(b"").unwrap()).0, RefusalCode::BadToken);
}

/// A network node's token is valid for two minutes by the clock of its own host.
#[test]
fn a_clock_that_is_an_hour_off_refuses_no_link() {
    for issued in [UNIX_START - 3600, UNIX_START + 3600] {
        let mut world = World::new();
        let (mut proxy, mut nn) = (world.proxy(8), world.network_node(8));
        let claims = claims(Role::NetworkNode, "nn-1", ProcessId::NONE, 1);
        let token = signed(&TokenClaims { not_before: issued, expires: issued + 120, ..claims });
        let link = connect(&world, &mut nn, Purpose::Tunnel, (0, 1), &token);
        world.step(ms(1), &mut [&mut nn, &mut proxy]);
        assert_eq!(nn.up(), [link], "issued at {issued}");
    }
}

#[test]
fn a_role_opens_only_links_of_its_purpose() {
    let nn = PeerIdentity::daemon(Role::NetworkNode, node("nn-1"), 11, 0);
    assert_eq!(refusal_of(nn, Purpose::Channel, &node_token(1)).0, RefusalCode::WrongRole);
    // A proxy is no plug-in host.
    assert_eq!(refusal_of(nn, Purpose::Packets, &node_token(1)).0, RefusalCode::WrongRole);
    let token = process_token("nginx.1", 1);
    assert_eq!(refusal_of(nginx(), Purpose::Tunnel, &token).0, RefusalCode::WrongRole);
    // Daemons of other roles, and a process without a name, are not admitted.
    for purpose in [Purpose::Tunnel, Purpose::Channel, Purpose::Packets] {
        for role in [Role::AppNode, Role::MgmtNode, Role::ProxyNode] {
            let token = signed(&claims(role, "x", ProcessId::NONE, 1));
            let identity = PeerIdentity::daemon(role, node("x"), 1, 0);
            assert_eq!(refusal_of(identity, purpose, &token).0, RefusalCode::WrongRole, "{role} {purpose:?}");
        }
    }
    let nameless = PeerIdentity::process(node("x"), ProcessId::NONE, 1);
    let token = signed(&claims(Role::Process, "x", ProcessId::NONE, 1));
    assert_eq!(refusal_of(nameless, Purpose::Channel, &token).0, RefusalCode::WrongRole);
}

#[test]
fn a_token_serves_each_place_of_its_pool_once_and_one_incarnation() {
    let mut world = World::new();
    let mut proxy = world.proxy(8);
    let mut app = world.process("nginx.1", 8);
    let identity = PeerIdentity { incarnation: 22, ..*app.endpoint.identity() };
    let mut thief = world.side("thief", small(identity, 8, None));
    let token = process_token("nginx.1", 5);

    let first = connect(&world, &mut app, Purpose::Channel, (0, 2), &token);
    let second = connect(&world, &mut app, Purpose::Channel, (1, 2), &token);
    world.step(ms(1), &mut [&mut app, &mut proxy]);
    assert_eq!(app.up(), [first, second]);

    // Of these slots one user gets two before HELLO.
    let again = connect(&world, &mut app, Purpose::Channel, (1, 2), &token);
    let larger = connect(&world, &mut app, Purpose::Channel, (2, 3), &token);
    world.step(ms(1), &mut [&mut app, &mut proxy]);
    let other_life = connect(&world, &mut thief, Purpose::Channel, (0, 2), &token);
    world.step(ms(1), &mut [&mut app, &mut proxy, &mut thief]);
    for (side, link) in [(&app, again), (&app, larger), (&thief, other_life)] {
        let reason = side.down(link);
        assert!(
            matches!(reason, Some(DownReason::Refused { code: RefusalCode::Duplicate, .. })),
            "{reason:?}"
        );
    }
    assert_eq!(proxy.counters().refused_replay, 3);
    assert_eq!(app.up(), [first, second], "the rightful links live on");

    // A place of the pool that is free again can be taken with the same token: this is how a lost VI is
    // replaced.
    app.endpoint.close(world.now, second);
    world.step(ms(1), &mut [&mut app, &mut proxy]);
    let replaced = connect(&world, &mut app, Purpose::Channel, (1, 2), &token);
    world.step(ms(1), &mut [&mut app, &mut proxy]);
    assert_eq!(app.up(), [first, replaced]);
}

#[test]
fn nobody_there_and_a_side_that_never_accepts_are_unreachable() {
    let mut world = World::new();
    let mut app = world.process("nginx.1", 8);
    let token = process_token("nginx.1", 5);
    let link = connect(&world, &mut app, Purpose::Channel, (0, 1), &token);
    world.step(ms(1), &mut [&mut app]);
    assert!(matches!(app.down(link), Some(DownReason::Unreachable { .. })));

    let identity = PeerIdentity::daemon(Role::ProxyNode, node(PROXY), 1, 0);
    let mut deaf = world.proxy_of(small(identity, 8, None));
    let link = connect(&world, &mut app, Purpose::Channel, (0, 1), &token);
    world.step(ms(1), &mut [&mut app, &mut deaf]);
    assert!(matches!(app.down(link), Some(DownReason::Unreachable { .. })));
    assert_eq!(deaf.counters().requests_rejected, 1);
}

#[test]
fn a_peer_that_sends_no_hello_loses_its_slot() {
    let mut world = World::new();
    let mut proxy = world.proxy(8);
    let mut raw = world.raw("mute");
    let config = csp_vi::ViConfig { receive_depth: 8, send_depth: 8, message_len: 1024 };
    for _ in 0..8 {
        raw.connect(&world.address(), config, &[]).unwrap();
    }
    world.step(ms(1), &mut [&mut proxy]);
    // Where the provider knows users all are of one, which gets half of that.
    let most = if crate::OVER_SHM { 2 } else { 4 };
    assert_eq!(proxy.endpoint.links().count(), most, "strangers get half of the slots");
    assert_eq!(proxy.counters().strangers_evicted, 8 - most as u64, "the oldest of them give way");
    let mut early = world.process("nginx.2", 8);
    let link = connect(&world, &mut early, Purpose::Channel, (0, 1), &process_token("nginx.2", 6));
    world.step(ms(1), &mut [&mut early, &mut proxy]);
    assert!(early.up().contains(&link), "silent peers keep nobody out");
    early.endpoint.close(world.now, link);
    world.run(ms(2_010), &mut [&mut early, &mut proxy]);
    proxy.events.clear();
    // One more had given way to the peer that showed a token.
    let silent = most as u64 - 1;
    assert_eq!((proxy.endpoint.links().count(), proxy.counters().hello_failed), (0, silent));
    let mut app = world.process("nginx.1", 8);
    world.channel_up(&mut app, &mut proxy);
    assert_eq!(proxy.events.len(), 1, "unauthenticated peers are not reported to the owner");
}

#[test]
fn the_owner_sees_up_before_the_first_message_and_down_after_the_last() {
    let world = World::new();
    let (mut proxy, mut app) = (world.proxy(8), world.process("nginx.1", 8));
    let link = connect(&world, &mut app, Purpose::Channel, (0, 1), &process_token("nginx.1", 5));
    // The application sends and closes before the proxy's owner polls any event.
    let settle = |now: Instant, app: &mut Side, proxy: &mut Side| {
        for _ in 0..5 {
            app.turn(now);
            let _ = proxy.endpoint.provider_mut().arm();
            proxy.endpoint.progress(now, unix(now));
        }
    };
    settle(world.now, &mut app, &mut proxy);
    for body in [b"one", b"two"] {
        assert!(app.send(world.now, link, body));
    }
    app.endpoint.close(world.now, link);
    settle(world.now, &mut app, &mut proxy);
    assert_eq!(app.down(link), Some(DownReason::Closed), "the end is reported to the closing side too");

    let mut scratch = [0; 1024];
    assert_eq!(proxy.endpoint.receive(world.now, &mut scratch), None, "Up comes first");
    let Some(LinkEvent::Up { link: at_proxy, .. }) = proxy.endpoint.poll_event() else { panic!("no Up") };
    assert_eq!(proxy.endpoint.poll_event(), None, "Down waits for the messages");
    assert!(proxy.receive_one(world.now));
    assert_eq!(proxy.endpoint.poll_event(), None);
    assert!(proxy.receive_one(world.now));
    assert_eq!(proxy.messages.iter().map(|m| &m.body[..]).collect::<Vec<_>>(), [b"one", b"two"]);
    let down = LinkEvent::Down { link: at_proxy, reason: DownReason::Closed };
    assert_eq!(proxy.endpoint.poll_event(), Some(down));
    assert_eq!(proxy.endpoint.links().count(), 0);
}
