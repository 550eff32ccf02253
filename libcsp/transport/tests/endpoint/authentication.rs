//! Both ends prove who they are: forged, copied, reflected and downgraded handshakes, keys of others, keys
//! that are replaced, and versions.

use csp_transport::proof::Handshake;
use csp_transport::token::{self, TokenClaims};
use csp_transport::{
    ClusterKey, DeathCause, DownReason, EndpointConfig, KeySet, Keys, LinkEvent, PeerIdentity, ProcessId,
    ProtocolError, Purpose, RefusalCode, Token,
};
use csp_types::{NodeId, Role};
use csp_vi::{Event, Provider, ViId};
use csp_wire::link::{Header, HelloRefused, Kind, PROOF_LEN, Versions};

use crate::harness::*;
use crate::hostile::{CONFIG, Raw, ack_with, hello_of, hello_with, next_event};

/// Answers of a proxy to a HELLO that a raw peer posts.
fn answers(world: &mut World, proxy: &mut Side, body: &[u8]) -> (Raw, Vec<(Kind, Vec<u8>)>) {
    let mut raw = Raw::connect(world, proxy);
    raw.message(Kind::Hello, 0, body);
    world.step(ms(1), &mut [proxy]);
    let answers = raw.received();
    (raw, answers)
}

fn refusal_of(answers: &[(Kind, Vec<u8>)]) -> (RefusalCode, String) {
    let [(Kind::HelloRefused, body)] = answers else { panic!("{answers:?}") };
    let refused = HelloRefused::parse(body).unwrap();
    (refused.code, refused.text.to_owned())
}

#[test]
fn who_has_only_seen_a_token_cannot_use_it() {
    let token = process_token("raw", 1);
    let whole = token.as_bytes();
    let good = hello_with(whole, |_| {});
    let (seen, _) = token.split().unwrap();
    let unproved = hello_with(whole, |hello| hello.proof = None);
    // The hand-made HELLO above has a proof in place of its last bytes.
    let without = [&good[..good.len() - PROOF_LEN - 1], &[0]].concat();
    let guessed = hello_with(&[seen, &[7; 32]].concat(), |_| {});
    let reflected = {
        let mut ack_like = good.clone();
        let (_, secret) = token.split().unwrap();
        Handshake::check_hello(secret, &good).unwrap().sign_ack(&mut ack_like);
        ack_like
    };
    for (what, body) in
        [("cut", unproved), ("none", without), ("guessed", guessed), ("an answer's", reflected)]
    {
        let mut world = World::new();
        let mut proxy = world.proxy(8);
        let (_, answers) = answers(&mut world, &mut proxy, &body);
        assert!(matches!(answers[..], [(Kind::HelloRefused, _)]), "{what}");
        assert_eq!((proxy.events.len(), proxy.endpoint.links().count()), (0, 0), "{what}");
    }
}

/// A field that was changed on the way makes the proof wrong, also those that choose the version.
#[test]
fn a_hello_that_was_changed_on_the_way_is_refused() {
    let token = process_token("raw", 1);
    let spoken = Versions { lowest: 5, highest: 7 };
    let good = hello_with(token.as_bytes(), |hello| hello.sender.versions = spoken);
    let mut world = World::new();
    let mut proxy = world.proxy(8);
    for (at, value) in [(0, 5), (0, 6), (6, 1), (10, 9), (14, 7), (22, 0)] {
        let mut bad = good.clone();
        bad[at] = value;
        assert_ne!(bad, good);
        let (_, answers) = answers(&mut world, &mut proxy, &bad);
        assert_eq!(refusal_of(&answers).0, RefusalCode::BadToken, "byte {at}");
    }
    let (_, answers) = answers(&mut world, &mut proxy, &good);
    assert!(matches!(answers[..], [(Kind::HelloAck, _)]));
}

#[test]
fn a_copy_of_a_handshake_opens_no_link_and_keeps_no_place() {
    let mut world = World::new();
    let mut proxy = world.proxy(8);
    let token = process_token("raw", 1);
    let (hello, (_, secret)) = (hello_with(token.as_bytes(), |_| {}), token.split().unwrap());
    let (mut raw, answers) = answers(&mut world, &mut proxy, &hello);
    let [(Kind::HelloAck, ack)] = &answers[..] else { panic!("{answers:?}") };
    let confirm = Handshake::check_hello(secret, &hello).unwrap().check_ack(ack).unwrap();
    assert_eq!(proxy.up(), [], "a HELLO alone may be a copy");
    raw.message(Kind::Confirm, 0, &confirm);
    raw.message(Kind::Close, 0, &[]);
    world.step(ms(1), &mut [&mut proxy]);
    assert!(matches!(proxy.events[..], [LinkEvent::Up { .. }, LinkEvent::Down { .. }]), "{:?}", proxy.events);
    proxy.events.clear();

    // All that was seen, once more; the answer differs, so that the old confirmation is none.
    let (mut thief, again) = self::answers(&mut world, &mut proxy, &hello);
    assert!(matches!(&again[..], [(Kind::HelloAck, body)] if body != ack));
    let failed = proxy.counters().hello_failed;
    thief.message(Kind::Confirm, 0, &confirm);
    world.step(ms(1), &mut [&mut proxy]);
    assert_eq!((proxy.events.len(), proxy.endpoint.links().count()), (0, 0));
    assert_eq!(proxy.counters().hello_failed, failed + 1);
    // Confirmations of other lengths, and data without one.
    for (kind, body) in
        [(Kind::Confirm, &[][..]), (Kind::Confirm, &[0; 33]), (Kind::Channel, b"data"), (Kind::Hello, &hello)]
    {
        let (mut thief, _) = self::answers(&mut world, &mut proxy, &hello);
        thief.message(kind, 0, body);
        world.step(ms(1), &mut [&mut proxy]);
        assert_eq!((proxy.events.len(), proxy.endpoint.links().count()), (0, 0), "{kind:?}");
    }
    // Copies that wait for nothing keep the place of the token's holder from nobody.
    let _waiting = self::answers(&mut world, &mut proxy, &hello);
    let mut owner = Raw::connect(&mut world, &mut proxy);
    owner.open(&mut world, &mut proxy, &token);
    assert_eq!(proxy.up().len(), 1);
}

/// A hand-made acceptor answers the HELLO of a process with what `ack` makes of it; returns how the link
/// ends.
fn at_impostor(ack: impl FnMut(&[u8]) -> Vec<u8>) -> Option<DownReason> {
    at_impostor_of(&process_token("p", 1), ack)
}

/// As [`at_impostor`], with this token of the process.
fn at_impostor_of(token: &Token, mut ack: impl FnMut(&[u8]) -> Vec<u8>) -> Option<DownReason> {
    let mut world = World::new();
    let mut raw = world.raw(PROXY);
    raw.listen(&world.address()).unwrap();
    let mut app = world.process("p", 8);
    let link = connect(&world, &mut app, Purpose::Channel, (0, 1), token);
    let vi = accepted(&mut world, raw.as_mut(), &mut app);
    let body = ack(&hello_of(raw.as_mut(), vi));
    let header = Header { kind: Kind::HelloAck, credits: 1, body_len: body.len() as u32, sequence: 0 };
    raw.post_send(vi, 0, 0, &[&header.emit(), &body], false).unwrap();
    world.step(ms(1), &mut [&mut app]);
    assert_eq!(app.up().len(), usize::from(app.down(link).is_none()), "reported only when proved");
    app.down(link)
}

fn accepted(world: &mut World, raw: &mut dyn Provider, app: &mut Side) -> ViId {
    let Event::Request(request) = next_event(world, raw, app) else { panic!("no request") };
    let vi = raw.accept(request.id, CONFIG, &[]).unwrap();
    assert!(matches!(next_event(world, raw, app), Event::Established { .. }));
    world.step(ms(1), &mut [app]);
    vi
}

#[test]
fn an_acceptor_that_cannot_derive_the_secret_is_no_proxy() {
    let unproved = Some(DownReason::Died(DeathCause::Protocol(ProtocolError::Proof)));
    let token = process_token("p", 1);
    assert_eq!(at_impostor(|hello| ack_with(&token, hello, |_| {})), None, "a proxy");
    assert_eq!(at_impostor(|hello| ack_with(&token, hello, |ack| ack.proof = None)), unproved);
    // It has seen the token and guesses the secret.
    let guessed = |hello: &[u8]| {
        let mut body = ack_with(&token, hello, |_| {});
        body[40] ^= 1;
        body
    };
    assert_eq!(at_impostor(guessed), unproved);
    // It sends the connector's proof back.
    let reflected = |hello: &[u8]| {
        let mut body = ack_with(&token, hello, |_| {});
        let end = body.len() - PROOF_LEN;
        body[end..].copy_from_slice(&hello[hello.len() - PROOF_LEN..]);
        body
    };
    assert_eq!(at_impostor(reflected), unproved);
    // It has seen a proxy's answer to an earlier HELLO with the same token.
    let earlier =
        hello_with(token.as_bytes(), |hello| (hello.sender.process_id, hello.sender.nonce) = ("p", [1; 16]));
    assert_eq!(at_impostor(|_| ack_with(&token, &earlier, |_| {})), unproved);
}

/// A process or node that has no key to sign a token, or half of one, proves nothing and is proved nothing:
/// it has no proxy.
#[test]
fn without_a_token_no_acceptor_is_a_proxy() {
    let unproved = Some(DownReason::Died(DeathCause::Protocol(ProtocolError::Proof)));
    let whole = process_token("p", 1);
    for token in [Token::EMPTY, Token::from_bytes(&whole.as_bytes()[..8]).unwrap()] {
        assert_eq!(token.split(), None);
        for proof in [None, Some([0; PROOF_LEN])] {
            let end = at_impostor_of(&token, |hello| {
                let mut body = ack_with(&whole, hello, |ack| ack.proof = None);
                if let Some(proof) = proof {
                    *body.last_mut().unwrap() = PROOF_LEN as u8;
                    body.extend(proof);
                }
                body
            });
            assert_eq!(end, unproved, "{token:?} {}", proof.is_some());
        }
    }
}

fn id(text: &str) -> NodeId {
    text.parse().unwrap()
}

/// The keys in the file of a node.
fn node_keys(role: Role, name: &str) -> KeySet {
    KeySet::from(key()).derive(role, id(name), &[])
}

/// What a proxy says to a peer with this token.
fn at_proxy(identity: PeerIdentity, purpose: Purpose, token: &Token) -> Result<PeerIdentity, RefusalCode> {
    let mut world = World::new();
    let mut proxy = world.proxy(8);
    let mut side = world.side("client", small(identity, 8, None));
    let link = connect(&world, &mut side, purpose, (0, 1), token);
    world.step(ms(1), &mut [&mut side, &mut proxy]);
    match side.down(link) {
        None => Ok(proxy.peer(proxy.up()[0]).unwrap()),
        Some(DownReason::Refused { code, .. }) => Err(code),
        Some(other) => panic!("{other:?}"),
    }
}

#[test]
fn a_stolen_node_s_keys_are_good_for_its_own_processes_alone() {
    let stolen = node_keys(Role::AppNode, "an-1");
    let process_of = |node_name: &str| {
        let claims = claims(Role::Process, node_name, process("p"), 1);
        (PeerIdentity::process(id(node_name), process("p"), 1), claims)
    };
    let (own, own_claims) = process_of("an-1");
    let token = stolen.issue(&own_claims, None);
    assert_eq!(at_proxy(own, Purpose::Channel, &token).unwrap().node, id("an-1"));
    // It holds no key that signs for others: neither by itself, nor when it signs with its own key what it
    // likes.
    let own_key = key().signing(&own_claims);
    let network = PeerIdentity::daemon(Role::NetworkNode, id("nn-1"), 1, 0);
    let network_claims = claims(Role::NetworkNode, "nn-1", ProcessId::NONE, 1);
    let (other, other_claims) = process_of("an-2");
    // A node of another role with the thief's name is another node.
    let namesake = PeerIdentity::daemon(Role::NetworkNode, id("an-1"), 1, 0);
    let namesake_claims = claims(Role::NetworkNode, "an-1", ProcessId::NONE, 1);
    for (identity, claims, purpose) in [
        (other, other_claims, Purpose::Channel),
        (network, network_claims, Purpose::Tunnel),
        (namesake, namesake_claims, Purpose::Tunnel),
    ] {
        assert!(stolen.issue(&claims, None).as_bytes().is_empty());
        let forged = token::issue(&own_key, &claims);
        assert_eq!(at_proxy(identity, purpose, &forged), Err(RefusalCode::BadToken), "{identity:?}");
        // Its own token under another's name.
        assert_eq!(at_proxy(identity, purpose, &token), Err(RefusalCode::BadToken), "{identity:?}");
    }
    // Nor does it pass as a proxy: it can derive the secrets of no token but those that it signed.
    let foreign = signed(&other_claims);
    let (seen, _) = foreign.split().unwrap();
    assert!(stolen.verify(seen, UNIX_START, None).is_err());
}

#[test]
fn a_plug_in_host_and_a_network_node_know_each_other_and_nobody_else() {
    let claims = claims(Role::NetworkNode, "nn-1", ProcessId::NONE, 1);
    let host_of = |name: &str, network_nodes: &[NodeId]| {
        let keys = KeySet::from(key()).derive(Role::AppNode, id(name), network_nodes);
        let identity = PeerIdentity::daemon(Role::AppNode, id(name), 1, 0);
        (identity, Keys::new(keys))
    };
    let attempt = |host: (PeerIdentity, Keys), token: &Token| {
        let mut world = World::new();
        let mut acceptor = world.proxy_of(small(host.0, 8, Some(host.1)));
        let mut nn = world.network_node(8);
        let link = connect(&world, &mut nn, Purpose::Packets, (0, 1), token);
        world.step(ms(1), &mut [&mut nn, &mut acceptor]);
        nn.down(link).map(|_| acceptor.counters().refused_bad_token)
    };
    let nn = node_keys(Role::NetworkNode, "nn-1");
    let for_host = nn.issue(&claims, Some(id("an-1")));
    assert_eq!(attempt(host_of("an-1", &[id("nn-2"), id("nn-1")]), &for_host), None);
    assert_eq!(
        attempt(host_of("an-1", &[id("nn-2")]), &for_host),
        Some(1),
        "a network node it was not told of"
    );
    assert_eq!(attempt(host_of("an-2", &[id("nn-1")]), &for_host), Some(1), "a token for another host");
    assert_eq!(attempt(host_of("an-1", &[id("nn-1")]), &nn.issue(&claims, None)), Some(1), "one for proxies");
    // A host's keys sign nothing that a proxy takes.
    let (_, host_keys) = host_of("an-1", &[id("nn-1")]);
    assert!(host_keys.issue(&claims).as_bytes().is_empty());
    assert!(host_keys.issue_for_host(&claims, id("an-1")).as_bytes().is_empty());
}

/// Both generations are accepted while keys are replaced; a link that is up outlives the one that it was
/// opened with.
#[test]
fn keys_are_replaced_while_links_are_up() {
    let both = {
        let mut set = KeySet::from(key());
        set.add(ClusterKey::from_bytes([9; 32])).unwrap();
        set
    };
    let new = {
        let mut set = both.clone();
        set.retire();
        set
    };
    let mut world = World::breakable(3);
    let keys = Keys::from(key());
    let identity = PeerIdentity::daemon(Role::ProxyNode, node(PROXY), 41, 3);
    let mut proxy = world.proxy_of(small(identity, 8, Some(keys.clone())));
    let node_of = |set: &KeySet| set.derive(Role::AppNode, id("an-1"), &[]);
    let signed_by =
        |set: &KeySet, name: &str| node_of(set).issue(&claims(Role::Process, "an-1", process(name), 1), None);
    let mut sides = ["a", "b", "c", "d"].map(|name| world.process(name, 8));
    let mut opens = |world: &mut World, proxy: &mut Side, at: usize, set: &KeySet| {
        let name = ["a", "b", "c", "d"][at];
        let link = connect(world, &mut sides[at], Purpose::Channel, (0, 1), &signed_by(set, name));
        world.run(ms(20), &mut [&mut sides[at], proxy]);
        sides[at].down(link).is_none()
    };
    let old = KeySet::from(key());
    assert!(opens(&mut world, &mut proxy, 0, &old));
    assert!(!opens(&mut world, &mut proxy, 1, &new), "the proxy does not have the new key yet");
    keys.replace(both.clone());
    assert!(opens(&mut world, &mut proxy, 1, &both), "signed with the newest");
    assert!(opens(&mut world, &mut proxy, 2, &old));
    keys.replace(new.clone());
    assert!(!opens(&mut world, &mut proxy, 3, &old), "the old key is no longer valid");
    assert!(opens(&mut world, &mut proxy, 3, &new));
    // A link that was opened with the old key goes on over another VI.
    let resumed = proxy.counters().links_resumed;
    let vi = sides[0].endpoint.links().next().unwrap().vi;
    world.fabric.break_vi(vi, (ms(0), ms(0)));
    world.run(ms(100), &mut [&mut sides[0], &mut proxy]);
    assert_eq!(proxy.counters().links_resumed, resumed + 1);
}

#[test]
fn the_highest_common_version_is_used_and_a_refusal_names_both_ranges() {
    let range = |lowest, highest| Versions { lowest, highest };
    let attempt = |acceptor: Versions, connector: Versions| {
        let mut world = World::new();
        let identity = PeerIdentity::daemon(Role::ProxyNode, node(PROXY), 41, 3);
        let config = EndpointConfig { versions: acceptor, ..small(identity, 8, Some(key().into())) };
        let mut proxy = world.proxy_of(config);
        let identity = PeerIdentity::process(node("an-1"), process("p"), 21);
        let config = EndpointConfig { versions: connector, ..small(identity, 8, None) };
        let mut app = world.side("p", config);
        let link = connect(&world, &mut app, Purpose::Channel, (0, 1), &process_token("p", 1));
        world.step(ms(1), &mut [&mut app, &mut proxy]);
        match app.down(link) {
            None => {
                let at_proxy = proxy.endpoint.links().next().unwrap().version;
                Ok((app.endpoint.link(link).unwrap().version, at_proxy))
            }
            Some(DownReason::Refused { code: RefusalCode::Version, text }) => Err(text),
            Some(other) => panic!("{other:?}"),
        }
    };
    assert_eq!(attempt(range(5, 5), range(5, 5)), Ok((5, 5)));
    assert_eq!(attempt(range(5, 7), range(6, 9)), Ok((7, 7)));
    assert_eq!(attempt(range(6, 9), range(5, 6)), Ok((6, 6)));
    let text = attempt(range(7, 9), range(5, 6)).unwrap_err();
    assert!(text.contains("the acceptor speaks 7 to 9, the connector 5 to 6"), "{text}");
    // A HELLO of the form before version 5 begins with its only version.
    let mut world = World::new();
    let mut proxy = world.proxy(8);
    let (_, answers) = answers(&mut world, &mut proxy, b"\x04\x00\x05\x02\x00\x00\x01\x00\x40\0\0\0");
    let (code, text) = refusal_of(&answers);
    assert_eq!(code, RefusalCode::Version);
    assert!(text.contains("the acceptor speaks 5 to 6, the connector 4"), "{text}");
}

#[test]
fn a_token_signed_for_no_one_is_refused() {
    let empty =
        KeySet::default().issue(&TokenClaims { ..claims(Role::Process, "an-1", process("p"), 1) }, None);
    assert!(empty.as_bytes().is_empty());
    let identity = PeerIdentity::process(node("an-1"), process("p"), 1);
    assert_eq!(at_proxy(identity, Purpose::Channel, &empty), Err(RefusalCode::BadToken));
}
