//! Peers that may not resume a link, and peers that violate the rules of resumption.

use csp_transport::{DeathCause, DownReason, LinkId, Purpose, RefusalCode};
use csp_vi::{Completion, Provider};
use csp_wire::link::{Header, Hello, HelloAck, HelloRefused, Kind, Resume};

use crate::harness::*;
use crate::hostile::{CONFIG, Raw, ack_with, hello_of, hello_with, next_event};

/// The next message that arrived: kind, sequence number and body.
fn message(raw: &mut Raw) -> Option<(Kind, u64, Vec<u8>)> {
    let Some(Completion::Received { buffer, len, .. }) = raw.provider.poll() else { return None };
    let mut bytes = vec![0; len as usize];
    raw.provider.read(raw.vi, buffer, 0, &mut bytes).unwrap();
    let (header, body) = Header::parse(&bytes).unwrap();
    Some((header.kind, header.sequence, body.to_vec()))
}

/// Opens a process's link with hand-made messages; returns its session.
fn opened(world: &mut World, proxy: &mut Side) -> (Raw, LinkId, Resume) {
    let raw = Raw::up(world, proxy);
    let resume = HelloAck::parse(&raw.ack).unwrap().sender.resume.expect("a session");
    assert_eq!((resume.received, resume.attempt), (1, 0), "HELLO itself");
    (raw, proxy.up()[0], Resume { attempt: 1, ..resume })
}

/// Sends a HELLO that resumes over another VI; returns the answer.
fn resume(
    world: &mut World,
    proxy: &mut Side,
    resume: Resume,
    token: &[u8],
    change: impl FnOnce(&mut Hello<'_>),
) -> (Raw, Result<Resume, RefusalCode>) {
    let mut raw = Raw::connect(world, proxy);
    let body = hello_with(token, |hello| {
        hello.sender.resume = Some(resume);
        change(hello);
    });
    raw.message(Kind::Hello, 0, &body);
    world.step(ms(1), &mut [proxy]);
    let (kind, sequence, body) = message(&mut raw).expect("an answer");
    assert_eq!(sequence, 0, "an answer is not counted");
    let answer = match kind {
        Kind::HelloAck => Ok(HelloAck::parse(&body).unwrap().sender.resume.unwrap()),
        Kind::HelloRefused => Err(HelloRefused::parse(&body).unwrap().code),
        other => panic!("{other:?}"),
    };
    (raw, answer)
}

/// A breakable world without delay.
fn world() -> World {
    let world = World::new();
    world.fabric.let_break();
    world
}

#[test]
fn only_the_link_s_own_peer_goes_on_with_it() {
    let mut world = world();
    let mut proxy = world.proxy(8);
    let (raw, link, known) = opened(&mut world, &mut proxy);
    world.fabric.break_vi(raw.vi, (ms(0), ms(0)));
    world.step(ms(1), &mut [&mut proxy]);
    let mut refused = |session: Resume, token: &[u8], change: fn(&mut Hello<'_>)| {
        let (_, answer) = resume(&mut world, &mut proxy, session, token, change);
        answer.expect_err("not its link")
    };
    let own = process_token("raw", 1);
    let own = own.as_bytes();
    for bit in [0, 127] {
        let mut session = known.session;
        session[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(refused(Resume { session, ..known }, own, |_| {}), RefusalCode::NoSession);
    }
    // Another process that learnt the secret; another incarnation; another token; another place; the other
    // purpose.
    let other = process_token("other", 1);
    assert_eq!(refused(known, other.as_bytes(), |h| h.sender.process_id = "other"), RefusalCode::BadToken);
    assert_eq!(refused(known, other.as_bytes(), |_| {}), RefusalCode::BadToken);
    assert_eq!(refused(known, own, |h| h.sender.process_id = "other"), RefusalCode::NoSession);
    assert_eq!(refused(known, own, |h| h.sender.incarnation = 2), RefusalCode::NoSession);
    assert_eq!(refused(known, process_token("raw", 2).as_bytes(), |_| {}), RefusalCode::BadToken);
    assert_eq!(
        refused(Resume { attempt: 0, ..known }, own, |_| {}),
        RefusalCode::NoSession,
        "not a later one"
    );
    assert_eq!(
        refused(known, own, |h| (h.sender.pool_index, h.sender.pool_size) = (1, 2)),
        RefusalCode::NoSession
    );
    assert_eq!(refused(known, own, |h| h.sender.worker = 1), RefusalCode::NoSession);
    assert_eq!(refused(known, own, |h| h.sender.purpose = Purpose::Tunnel), RefusalCode::NoSession);
    assert_eq!(refused(known, own, |h| h.sender.receive_depth = 3), RefusalCode::Malformed);
    assert_eq!(refused(known, b"", |_| {}), RefusalCode::BadToken);
    assert_eq!(proxy.up(), [link], "the link still waits for its own peer");

    let (_, answer) = resume(&mut world, &mut proxy, known, own, |_| {});
    assert_eq!(answer, Ok(Resume { received: 2, ..known }));
    assert_eq!(proxy.up(), [link]);
    assert_eq!(proxy.counters().links_resumed, 1);
    // A copy of the same HELLO, and one of an earlier attempt, resume nothing.
    for attempt in [1, 0] {
        let (_, answer) = resume(&mut world, &mut proxy, Resume { attempt, ..known }, own, |_| {});
        assert_eq!(answer, Err(RefusalCode::NoSession));
    }
    assert_eq!((proxy.up(), proxy.counters().links_resumed), (vec![link], 1));
    assert_eq!(proxy.events.len(), 1, "none of it is reported to the owner");
}

#[test]
fn a_gap_ends_the_link() {
    for received in [0, 3, u64::MAX] {
        let mut world = world();
        let mut proxy = world.proxy(8);
        let (raw, link, known) = opened(&mut world, &mut proxy);
        // HELLO_ACK and one message were sent, and the sender knows that they arrived.
        assert!(proxy.send(world.now, link, b"one"));
        world.step(ms(1), &mut [&mut proxy]);
        let mut raw = raw;
        while message(&mut raw).is_none() {}
        world.fabric.break_vi(raw.vi, (ms(0), ms(0)));
        let (_, answer) = resume(
            &mut world,
            &mut proxy,
            Resume { received, ..known },
            process_token("raw", 1).as_bytes(),
            |_| {},
        );
        assert_eq!(answer, Err(RefusalCode::NoSession), "{received}");
        world.step(ms(1), &mut [&mut proxy]);
        assert_eq!(proxy.down(link), Some(DownReason::Died(DeathCause::HangUp)));
        assert_eq!(proxy.endpoint.links().count(), 0);
    }
}

#[test]
fn what_the_peer_lacks_comes_again_with_its_old_numbers() {
    let mut world = world();
    let mut proxy = world.proxy(8);
    let (raw, link, known) = opened(&mut world, &mut proxy);
    for body in [b"one", b"two"] {
        assert!(proxy.send(world.now, link, body));
    }
    world.fabric.break_vi(raw.vi, (ms(0), ms(500)));
    // The proxy has not noticed the break when the HELLO arrives.
    let token = process_token("raw", 1);
    let (mut again, answer) = resume(&mut world, &mut proxy, known, token.as_bytes(), |_| {});
    assert_eq!(answer, Ok(Resume { received: 2, ..known }));
    assert_eq!(message(&mut again), Some((Kind::Channel, 1, b"one".to_vec())));
    assert_eq!(message(&mut again), Some((Kind::Channel, 2, b"two".to_vec())));
    assert_eq!(message(&mut again), None);
    // The peer's own sequence numbers continue, too.
    again.sequence = 2;
    assert!(again.message(Kind::Channel, 3, b"three"));
    world.step(ms(1), &mut [&mut proxy]);
    assert_eq!(proxy.messages[0].body, b"three");
    assert!(again.message(Kind::Channel, 1, b"four"));
    world.step(ms(1), &mut [&mut proxy]);
    assert_eq!(proxy.down(link), Some(DownReason::Died(DeathCause::CreditViolation)));
}

#[test]
fn a_second_message_before_the_answer_breaks_only_the_new_vi() {
    let mut world = world();
    let mut proxy = world.proxy(8);
    let (_raw, link, known) = opened(&mut world, &mut proxy);
    let mut again = Raw::connect(&mut world, &mut proxy);
    let token = process_token("raw", 1);
    let body = hello_with(token.as_bytes(), |hello| hello.sender.resume = Some(known));
    again.message(Kind::Hello, 0, &body);
    again.message(Kind::Hello, 0, &body);
    world.step(ms(1), &mut [&mut proxy]);
    assert_eq!(proxy.up(), [link]);
    assert_eq!((proxy.counters().hello_failed, proxy.counters().links_interrupted), (1, 0));
}

#[test]
fn a_connector_believes_only_the_proxy_it_had() {
    let answers: [fn(&mut HelloAck<'_>); 5] = [
        |ack| ack.sender.resume = None,
        |ack| ack.sender.resume.as_mut().unwrap().session[3] ^= 1,
        |ack| ack.sender.resume.as_mut().unwrap().received = 7,
        |ack| ack.sender.incarnation += 1,
        |ack| ack.sender.node_id = "pn-2".parse().unwrap(),
    ];
    for change in answers {
        let mut world = world();
        let mut app = world.process("nginx.1", 8);
        let mut raw = world.raw(PROXY);
        raw.listen(&world.address()).unwrap();
        let link = connect(&world, &mut app, Purpose::Channel, (0, 1), &process_token("nginx.1", 1));
        let vi = answer(&mut world, raw.as_mut(), &mut app, |_| {});
        assert_eq!(app.up(), [link]);
        world.fabric.break_vi(vi, (ms(0), ms(0)));
        world.step(ms(1), &mut [&mut app]);
        answer(&mut world, raw.as_mut(), &mut app, change);
        let down = app.down(link);
        assert!(matches!(down, Some(DownReason::Died(DeathCause::Protocol(_)))), "{down:?}");
    }
}

/// Accepts a VI and answers its HELLO.
fn answer(
    world: &mut World,
    raw: &mut dyn Provider,
    app: &mut Side,
    change: fn(&mut HelloAck<'_>),
) -> csp_vi::ViId {
    let mut next = || loop {
        match next_event(world, raw, app) {
            csp_vi::Event::Disconnected { .. } => {}
            event => break event,
        }
    };
    let csp_vi::Event::Request(request) = next() else { panic!("no request") };
    let vi = raw.accept(request.id, CONFIG, &[]).unwrap();
    assert!(matches!(next_event(world, raw, app), csp_vi::Event::Established { .. }));
    world.step(ms(1), &mut [app]);
    let hello = hello_of(raw, vi);
    let body = ack_with(&process_token("nginx.1", 1), &hello, |ack| {
        ack.sender.resume = Some(Resume { session: [9; 16], received: 1, attempt: 0 });
        change(ack);
    });
    let header = Header { kind: Kind::HelloAck, credits: 1, body_len: body.len() as u32, sequence: 0 };
    raw.post_send(vi, 0, 0, &[&header.emit(), &body], false).unwrap();
    world.step(ms(1), &mut [app]);
    while raw.poll().is_some() {} // CONFIRM
    vi
}
