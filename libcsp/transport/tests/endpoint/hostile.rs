//! Peers that violate the protocol: their own link breaks, and no other.

use csp_transport::proof::Handshake;
use csp_transport::{DeathCause, DownReason, LinkEvent, ProtocolError, Purpose, RefusalCode, Token};
use csp_types::Role;
use csp_vi::{BufferId, Completion, Event, Provider, ViConfig, ViId};
use csp_wire::link::{Header, Hello, HelloAck, HelloRefused, Kind, PROOF_LEN, Sender, Versions};
use proptest::prelude::*;

use crate::harness::*;

pub const CONFIG: ViConfig = ViConfig { receive_depth: 8, send_depth: 8, message_len: 1024 };

/// A peer that posts arbitrary messages.
pub struct Raw {
    pub provider: Box<dyn Provider>,
    pub vi: ViId,
    pub sequence: u64,
    /// Body of the HELLO_ACK that `open` received.
    pub ack: Vec<u8>,
    held: Vec<BufferId>,
}

impl Raw {
    /// Connects to the proxy, whose VI is established on return.
    pub fn connect(world: &mut World, proxy: &mut Side) -> Raw {
        let mut provider = world.raw("raw");
        let vi = provider.connect(&world.address(), CONFIG, &[]).unwrap();
        let event = next_event(world, provider.as_mut(), proxy);
        assert!(matches!(event, Event::Established { .. }), "{event:?}");
        world.step(ms(1), &mut [proxy]);
        Raw { provider, vi, sequence: 0, ack: Vec::new(), held: Vec::new() }
    }

    /// As [`connect`](Self::connect), with a good HELLO.
    pub fn up(world: &mut World, proxy: &mut Side) -> Raw {
        let mut raw = Raw::connect(world, proxy);
        raw.open(world, proxy, &process_token("raw", 1));
        assert_eq!(proxy.up().len(), 1, "{:?}", proxy.events);
        raw
    }

    /// Sends a good HELLO, and confirms the answer.
    pub fn open(&mut self, world: &mut World, proxy: &mut Side, token: &Token) {
        let body = hello(token.as_bytes());
        self.message(Kind::Hello, 0, &body);
        world.step(ms(1), &mut [proxy]);
        self.ack = self.received().pop().filter(|(kind, _)| *kind == Kind::HelloAck).unwrap().1;
        let (_, secret) = token.split().unwrap();
        let confirm = Handshake::check_hello(secret, &body).unwrap().check_ack(&self.ack).unwrap();
        self.message(Kind::Confirm, 0, &confirm);
        world.step(ms(1), &mut [proxy]);
    }

    /// Posts bytes as they are; `false` when the provider has no room for more.
    pub fn bytes(&mut self, bytes: &[u8]) -> bool {
        self.provider.post_send(self.vi, 0, 0, &[bytes], false).is_ok()
    }

    /// Posts a well-formed message with the next sequence number.
    pub fn message(&mut self, kind: Kind, credits: u16, body: &[u8]) -> bool {
        let header = Header { kind, credits, body_len: body.len() as u32, sequence: self.sequence };
        self.sequence += 1;
        self.bytes(&[&header.emit(), body].concat())
    }

    /// Returns the kinds of the messages that arrived.
    pub fn received_kinds(&mut self) -> Vec<Kind> {
        self.received().into_iter().map(|(kind, _)| kind).collect()
    }

    /// Returns kinds and bodies of the messages that arrived, and keeps their buffers.
    pub fn received(&mut self) -> Vec<(Kind, Vec<u8>)> {
        let mut messages = Vec::new();
        while let Some(completion) = self.provider.poll() {
            let Completion::Received { buffer, len, .. } = completion else { continue };
            let mut bytes = vec![0; len as usize];
            self.provider.read(self.vi, buffer, 0, &mut bytes).unwrap();
            let (header, body) = Header::parse(&bytes).unwrap();
            messages.push((header.kind, body.to_vec()));
            self.held.push(buffer);
        }
        messages
    }
}

/// The next event of a raw provider, while `side` takes its turns.
pub fn next_event(world: &mut World, provider: &mut dyn Provider, side: &mut Side) -> Event {
    for _ in 0..100 {
        world.step(ms(0), &mut [side]);
        // Arming makes the shm provider poll its sockets.
        let _ = provider.arm();
        if let Some(event) = provider.poll_event() {
            return event;
        }
    }
    panic!("no event");
}

/// What a peer of this role and name states of itself; its nonce repeats one byte.
fn sender(role: Role, name: &str, process_id: &'static str, nonce: u8) -> Sender<'static> {
    Sender {
        versions: Versions::SPOKEN,
        role,
        purpose: Purpose::Channel,
        worker: 0,
        pool_index: 0,
        pool_size: 1,
        receive_depth: 8,
        incarnation: 1,
        nonce: [nonce; 16],
        node_id: node(name),
        process_id,
        resume: None,
    }
}

fn hello(token: &[u8]) -> Vec<u8> {
    hello_with(token, |_| {})
}

/// A HELLO with a token and the proof that its secret makes, if it has one.
pub fn hello_with(token: &[u8], change: impl FnOnce(&mut Hello<'_>)) -> Vec<u8> {
    let token = Token::from_bytes(token).unwrap();
    let parts = token.split();
    let mut hello = Hello {
        sender: sender(Role::Process, "an-1", "raw", b'n'),
        token: parts.map_or(token.as_bytes(), |(token, _)| token),
        extension: &[],
        proof: parts.map(|_| [0; PROOF_LEN]),
    };
    change(&mut hello);
    let mut body = vec![0; hello.len()];
    hello.emit(&mut body).unwrap();
    parts.and_then(|(_, secret)| Handshake::sign_hello(secret, &mut body));
    body
}

/// Breaks a link that is up by what `act` posts; returns the cause.
fn cause_of(act: impl FnOnce(&mut Raw)) -> DeathCause {
    let mut world = World::new();
    let mut proxy = world.proxy(8);
    let mut raw = Raw::up(&mut world, &mut proxy);
    let link = proxy.up()[0];
    act(&mut raw);
    world.step(ms(1), &mut [&mut proxy]);
    assert_eq!(proxy.endpoint.links().count(), 0, "the VI is released");
    match proxy.down(link) {
        Some(DownReason::Died(cause)) => cause,
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_violation_breaks_the_link_and_is_named() {
    use ProtocolError::*;
    let protocol = DeathCause::Protocol;
    let header = |kind, credits, body_len, sequence| Header { kind, credits, body_len, sequence }.emit();
    assert_eq!(cause_of(|raw| assert!(raw.bytes(&[1, 9, 0]))), protocol(Length));
    assert_eq!(cause_of(|raw| assert!(raw.bytes(&[]))), protocol(Length));
    assert_eq!(cause_of(|raw| assert!(raw.bytes(&header(Kind::Channel, 0, 8, 2)))), protocol(Length));
    let mut bad = header(Kind::Ping, 0, 0, 2);
    bad[0] = 2;
    assert_eq!(cause_of(|raw| assert!(raw.bytes(&bad))), protocol(Malformed));
    bad[..2].copy_from_slice(&[1, 77]);
    assert_eq!(cause_of(|raw| assert!(raw.bytes(&bad))), protocol(Malformed));
    for sequence in [0, 1, 3, u64::MAX] {
        assert_eq!(
            cause_of(|raw| assert!(raw.bytes(&header(Kind::Ping, 0, 0, sequence)))),
            protocol(Sequence)
        );
    }
    for kind in [Kind::Hello, Kind::HelloAck, Kind::HelloRefused, Kind::Confirm, Kind::Tunnel] {
        assert_eq!(cause_of(|raw| assert!(raw.message(kind, 0, b"body"))), protocol(Unexpected), "{kind:?}");
    }
    for kind in [Kind::Ping, Kind::Pong, Kind::Close] {
        assert_eq!(cause_of(|raw| assert!(raw.message(kind, 0, b"body"))), protocol(Malformed), "{kind:?}");
    }
}

#[test]
fn credit_that_was_not_taken_cannot_be_returned() {
    // HELLO_ACK is the only message for which the peer may return credit, and CONFIRM returned none.
    assert_eq!(cause_of(|raw| assert!(raw.message(Kind::Credit, 2, &[]))), DeathCause::CreditViolation);
    assert_eq!(cause_of(|raw| assert!(raw.message(Kind::Ping, u16::MAX, &[]))), DeathCause::CreditViolation);
    let mut world = World::new();
    let mut proxy = world.proxy(8);
    let mut raw = Raw::up(&mut world, &mut proxy);
    assert!(raw.message(Kind::Credit, 1, &[]));
    world.step(ms(1), &mut [&mut proxy]);
    assert_eq!(proxy.up().len(), 1);
}

#[test]
fn a_peer_that_exceeds_its_descriptor_credit_is_cut_off() {
    // It keeps the buffers that it receives, so that the proxy soon cannot return credit to it; the provider
    // alone would let it continue.
    let mut world = World::new();
    let mut proxy = world.proxy(8);
    let mut raw = Raw::up(&mut world, &mut proxy);
    let link = proxy.up()[0];
    let mut sent = 0;
    while proxy.down(link).is_none() {
        raw.message(Kind::Pong, 0, &[]);
        world.step(ms(1), &mut [&mut proxy]);
        raw.received_kinds();
        sent += 1;
        assert!(sent < 200, "never cut off");
    }
    assert_eq!(proxy.down(link), Some(DownReason::Died(DeathCause::CreditViolation)));
}

#[test]
fn nothing_counts_before_hello() {
    for kind in [
        Kind::HelloAck,
        Kind::HelloRefused,
        Kind::Confirm,
        Kind::Ping,
        Kind::Close,
        Kind::Tunnel,
        Kind::Channel,
    ] {
        let mut world = World::new();
        let mut proxy = world.proxy(8);
        let mut raw = Raw::connect(&mut world, &mut proxy);
        assert!(raw.message(kind, 0, &[]));
        raw.message(Kind::Hello, 0, &hello(process_token("raw", 1).as_bytes()));
        world.step(ms(1), &mut [&mut proxy]);
        assert_eq!((&proxy.events[..], &proxy.messages[..]), (&[][..], &[][..]), "{kind:?}");
        assert_eq!((proxy.endpoint.links().count(), proxy.counters().hello_failed), (0, 1), "{kind:?}");
        assert_eq!(raw.received_kinds(), [], "nothing is sent to an unauthenticated peer");
    }
}

#[test]
fn hellos_with_impossible_sizes_are_refused() {
    let token = process_token("raw", 1);
    let good = hello(token.as_bytes());
    let depth = |depth| hello_with(token.as_bytes(), |hello| hello.sender.receive_depth = depth);
    let cut = good[..good.len() - 1].to_vec();
    let longer = [&good[..], &[0]].concat();
    let mut version = good.clone();
    version[0] = 4;
    for body in [depth(3), depth(4097), depth(u32::MAX), cut, longer, version, Vec::new()] {
        let mut world = World::new();
        let mut proxy = world.proxy(8);
        let mut raw = Raw::connect(&mut world, &mut proxy);
        assert!(raw.message(Kind::Hello, 0, &body));
        world.step(ms(1), &mut [&mut proxy]);
        assert_eq!(raw.received_kinds(), [Kind::HelloRefused]);
        assert_eq!((proxy.counters().refused_parameters, proxy.endpoint.links().count()), (1, 0));
    }
}

/// A hostile acceptor answers HELLO with `kind` and a body made of it; returns how the connector's link ends.
fn answer(kind: Kind, credits: u16, body: impl Fn(&[u8]) -> Vec<u8>) -> Option<DownReason> {
    let mut world = World::new();
    let mut raw = world.raw("raw");
    raw.listen(&world.address()).unwrap();
    let mut app = world.process("p", 8);
    let link = connect(&world, &mut app, Purpose::Channel, (0, 1), &process_token("p", 1));
    let Event::Request(request) = next_event(&mut world, raw.as_mut(), &mut app) else {
        panic!("no request")
    };
    let vi = raw.accept(request.id, CONFIG, &[]).unwrap();
    let event = next_event(&mut world, raw.as_mut(), &mut app);
    assert!(matches!(event, Event::Established { .. }), "{event:?}");
    world.step(ms(1), &mut [&mut app]);
    let body = body(&hello_of(raw.as_mut(), vi));
    let header = Header { kind, credits, body_len: body.len() as u32, sequence: 0 }.emit();
    raw.post_send(vi, 0, 0, &[&header, &body], false).unwrap();
    world.step(ms(1), &mut [&mut app]);
    assert_eq!(app.messages, []);
    app.down(link)
}

/// The HELLO that arrived at a hand-made acceptor.
pub fn hello_of(raw: &mut dyn Provider, vi: ViId) -> Vec<u8> {
    let Some(Completion::Received { buffer, len, .. }) = raw.poll() else { panic!("no HELLO") };
    let mut bytes = vec![0; len as usize];
    raw.read(vi, buffer, 0, &mut bytes).unwrap();
    let (header, body) = Header::parse(&bytes).unwrap();
    assert_eq!(header.kind, Kind::Hello);
    body.to_vec()
}

/// A HELLO_ACK with the proof for this HELLO.
pub fn ack_with(token: &Token, hello: &[u8], change: impl FnOnce(&mut HelloAck<'_>)) -> Vec<u8> {
    let mut ack = HelloAck {
        sender: sender(Role::ProxyNode, "pn-1", "", b'a'),
        extension: &[],
        proof: Some([0; PROOF_LEN]),
    };
    change(&mut ack);
    let mut body = vec![0; ack.len()];
    ack.emit(&mut body).unwrap();
    if ack.proof.is_some() {
        let handshake = Handshake::check_hello(token.split().unwrap().1, hello).unwrap();
        handshake.sign_ack(&mut body).unwrap();
    }
    body
}

#[test]
fn a_connector_believes_only_a_proxy_with_a_sound_answer() {
    let token = process_token("p", 1);
    let ack = |change: fn(&mut HelloAck<'_>)| move |hello: &[u8]| ack_with(&token, hello, change);
    let plain = |body: &'static [u8]| move |_: &[u8]| body.to_vec();
    let died = |error| Some(DownReason::Died(DeathCause::Protocol(error)));
    assert_eq!(answer(Kind::HelloAck, 1, ack(|_| {})), None);
    assert_eq!(
        answer(Kind::HelloAck, 1, ack(|a| a.sender.role = Role::AppNode)),
        died(ProtocolError::Identity)
    );
    assert_eq!(
        answer(Kind::HelloAck, 1, ack(|a| a.sender.purpose = Purpose::Tunnel)),
        died(ProtocolError::Identity)
    );
    assert_eq!(
        answer(Kind::HelloAck, 1, ack(|a| a.sender.receive_depth = 3)),
        died(ProtocolError::Malformed)
    );
    assert_eq!(answer(Kind::HelloAck, 1, plain(b"nonsense")), died(ProtocolError::Malformed));
    assert_eq!(answer(Kind::HelloAck, 2, ack(|_| {})), Some(DownReason::Died(DeathCause::CreditViolation)));
    assert_eq!(answer(Kind::Channel, 0, plain(b"data")), died(ProtocolError::Unexpected));
    assert_eq!(answer(Kind::HelloRefused, 0, plain(b"\x06\x00two\nlines")), died(ProtocolError::Malformed));
    let mut refused = [0; 64];
    let len = HelloRefused { code: RefusalCode::Full, text: "no room" }.emit(&mut refused).unwrap();
    let expected = DownReason::Refused { code: RefusalCode::Full, text: "no room".to_owned() };
    assert_eq!(answer(Kind::HelloRefused, 0, |_| refused[..len].to_vec()), Some(expected));
}

#[test]
fn an_owner_that_finds_a_bad_body_breaks_the_link() {
    let mut world = World::new();
    let (mut proxy, mut app) = (world.proxy(8), world.process("p", 8));
    let (at_app, at_proxy) = world.channel_up(&mut app, &mut proxy);
    proxy.endpoint.fail(world.now, at_proxy);
    world.step(ms(1), &mut [&mut app, &mut proxy]);
    assert_eq!(proxy.down(at_proxy), Some(DownReason::Died(DeathCause::Owner)));
    assert_eq!(proxy.counters().died_owner, 1);
    assert_eq!(app.down(at_app), Some(DownReason::Closed));
}

proptest! {
    #[test]
    fn random_messages_break_no_more_than_their_own_link(
        hello_first in any::<bool>(),
        messages in prop::collection::vec(
            prop_oneof![
                prop::collection::vec(any::<u8>(), 0..64),
                // A well-formed header, so that the body is parsed.
                (1..13u8, 0..4u16, 1..5u64, prop::collection::vec(any::<u8>(), 0..64)).prop_map(|(kind, credits, sequence, body)| {
                    let kind = Kind::from_u8(kind).unwrap();
                    let header = Header { kind, credits, body_len: body.len() as u32, sequence };
                    [&header.emit(), &body[..]].concat()
                }),
            ],
            1..12,
        ),
    ) {
        let mut world = World::new();
        let (mut proxy, mut good) = (world.proxy(8), world.process("good", 8));
        let (at_good, at_proxy) = world.channel_up(&mut good, &mut proxy);
        let mut raw = Raw::connect(&mut world, &mut proxy);
        if hello_first {
            raw.open(&mut world, &mut proxy, &process_token("raw", 2));
        }
        for message in messages {
            raw.bytes(&message);
            world.step(ms(1), &mut [&mut proxy, &mut good]);
        }
        prop_assert!(good.send(world.now, at_good, b"still here"));
        world.step(ms(1), &mut [&mut proxy, &mut good]);
        prop_assert_eq!(&proxy.messages.last().unwrap().body, b"still here");
        prop_assert_eq!(proxy.messages.last().unwrap().link, at_proxy);
        let events = proxy.events.iter().filter(|e| matches!(e, LinkEvent::Up { .. })).count();
        prop_assert_eq!(events, 1 + usize::from(hello_first));
    }
}
