//! What the shm provider reports of its peers: their user and their end.

use csp_transport::token::TokenClaims;
use csp_transport::{
    DeathCause, DownReason, EndpointConfig, LocalPeers, MessageKind, PeerIdentity, Purpose, RefusalCode,
    SendError, Token,
};
use csp_types::Role;

use crate::harness::*;

#[test]
fn a_token_of_another_user_is_refused() {
    let mut world = World::new();
    let mut proxy = world.proxy(8);
    let mut app = world.process("p", 8);
    let token = |uid| {
        let claims = claims(Role::Process, "an-1", process("p"), 1);
        signed(&TokenClaims { uid, ..claims })
    };
    let stolen = connect(&world, &mut app, Purpose::Channel, (0, 1), &token(Some(own_uid() + 1)));
    world.step(ms(1), &mut [&mut app, &mut proxy]);
    let expected = DownReason::Refused {
        code: RefusalCode::BadToken,
        text: "the token belongs to another user".to_owned(),
    };
    assert_eq!(app.down(stolen), Some(expected));
    for uid in [Some(own_uid()), None] {
        let link = connect(&world, &mut app, Purpose::Channel, (0, 1), &token(uid));
        world.step(ms(1), &mut [&mut app, &mut proxy]);
        assert_eq!(app.up(), [link]);
        assert_eq!(proxy.peer(proxy.up()[0]).unwrap().uid, Some(own_uid()), "known from the socket");
        app.endpoint.close(world.now, link);
        world.step(ms(1), &mut [&mut app, &mut proxy]);
    }
}

#[test]
fn a_process_that_vanishes_is_known_at_once_and_what_it_sent_arrives() {
    let mut world = World::new();
    let (mut proxy, mut app) = (world.proxy(8), world.process("p", 8));
    let (link, at_proxy) = world.channel_up(&mut app, &mut proxy);
    assert!(app.send(world.now, link, b"last words"));
    drop(app);
    world.step(ms(1), &mut [&mut proxy]);
    assert_eq!(proxy.messages[0].body, b"last words");
    assert_eq!(proxy.down(at_proxy), Some(DownReason::Died(DeathCause::HangUp)));
}

#[test]
fn a_forked_child_gives_up_its_copy_without_a_word() {
    let mut world = World::new();
    let (mut proxy, mut app) = (world.proxy(8), world.process("p", 8));
    let (_, at_proxy) = world.channel_up(&mut app, &mut proxy);
    let mut descriptors = Vec::new();
    app.endpoint.descriptors(&mut descriptors);
    assert!(descriptors.len() >= 2, "an epoll descriptor and a socket: {descriptors:?}");
    // Without a fork the sockets close with it, which the peer sees as a hang-up; CLOSE was not sent.
    app.endpoint.abandon_after_fork();
    world.step(ms(1), &mut [&mut proxy]);
    assert_eq!(proxy.down(at_proxy), Some(DownReason::Died(DeathCause::HangUp)));
}

/// Two processes: one opens message links to one that accepts the peers whom `local` admits.
fn two_processes(world: &World, local: Option<LocalPeers>) -> (Side, Side) {
    let config = |name, local| {
        let identity = PeerIdentity::process(node("an-1"), process(name), 3);
        EndpointConfig { message_len: 1024, ..EndpointConfig::message(identity, local) }
    };
    (world.side("client", config("client", None)), world.proxy_of(config("server", local)))
}

#[test]
fn processes_exchange_messages_with_immediate_data() {
    let mut world = World::new();
    let (mut client, mut server) = two_processes(&world, Some(LocalPeers::User(own_uid())));
    let link = connect(&world, &mut client, Purpose::Message, (0, 1), &Token::from_bytes(b"").unwrap());
    world.step(ms(1), &mut [&mut client, &mut server]);
    let at_server = server.up()[0];
    assert_eq!(server.peer(at_server).unwrap().uid, Some(own_uid()), "as the kernel reports it");
    assert_eq!(client.peer(link).unwrap().process, process("server"));
    let now = world.now;
    client.endpoint.send(now, link, MessageKind::Message, 0xdead_beef, &[b"hel", b"lo"]).unwrap();
    server.endpoint.send(now, at_server, MessageKind::Message, 1, &[]).unwrap();
    world.step(ms(1), &mut [&mut client, &mut server]);
    assert_eq!((server.messages[0].immediate, &server.messages[0].body[..]), (0xdead_beef, &b"hello"[..]));
    assert_eq!((client.messages[0].immediate, client.messages[0].body.len()), (1, 0));
    let other_kind = client.endpoint.send(now, link, MessageKind::Channel, 0, &[b"x"]);
    assert_eq!(other_kind, Err(SendError::Down), "a link carries what it is for");
}

#[test]
fn processes_of_other_users_get_no_link_for_messages() {
    let mut world = World::new();
    for (local, up) in [(None, 0), (Some(LocalPeers::User(own_uid() + 1)), 0), (Some(LocalPeers::Anyone), 1)]
    {
        let (mut client, mut server) = two_processes(&world, local);
        connect(&world, &mut client, Purpose::Message, (0, 1), &Token::from_bytes(b"").unwrap());
        world.step(ms(1), &mut [&mut client, &mut server]);
        assert_eq!((client.up().len(), server.up().len()), (up, up), "{local:?}");
    }
    // A proxy accepts no message links, whatever the token.
    let (mut proxy, mut app) = (world.proxy(8), world.process("p", 8));
    let link = connect(&world, &mut app, Purpose::Message, (0, 1), &process_token("p", 1));
    world.step(ms(1), &mut [&mut app, &mut proxy]);
    assert!(matches!(app.down(link), Some(DownReason::Refused { code: RefusalCode::WrongRole, .. })));
}

#[test]
fn messages_are_read_where_they_lie() {
    let mut world = World::new();
    let (mut client, mut server) = two_processes(&world, Some(LocalPeers::Anyone));
    server.receives = false;
    let link = connect(&world, &mut client, Purpose::Message, (0, 1), &Token::from_bytes(b"").unwrap());
    world.step(ms(1), &mut [&mut client, &mut server]);
    let memory = server.endpoint.memory(server.up()[0]).unwrap();
    let now = world.now;
    let send = |client: &mut Side, n: u32| {
        client.endpoint.send(now, link, MessageKind::Message, n, &[&n.to_le_bytes()]).is_ok()
    };
    // No credit is returned while the owner holds the messages that it took: the peer runs out of
    // descriptors.
    let mut sent = 0;
    while send(&mut client, sent) {
        sent += 1;
    }
    world.step(ms(1), &mut [&mut client, &mut server]);
    let taken: Vec<_> = std::iter::from_fn(|| server.endpoint.take(now)).collect();
    assert_eq!(taken.len(), sent as usize);
    world.step(ms(1), &mut [&mut client, &mut server]);
    assert!(!send(&mut client, 0), "no descriptor came back");
    for (n, message) in taken.iter().enumerate() {
        let mut bytes = [0; 4];
        memory.read(message.offset, &mut bytes);
        assert_eq!((message.immediate, u32::from_le_bytes(bytes), message.len), (n as u32, n as u32, 4));
    }
    // They may be released in any order.
    taken.into_iter().rev().for_each(|message| server.endpoint.release(now, message));
    world.step(ms(1), &mut [&mut client, &mut server]);
    assert!((0..sent / 2).all(|n| send(&mut client, n)), "half are returned at once");
    world.step(ms(1), &mut [&mut client, &mut server]);
    // A held message outlives the link; releasing it then has no effect.
    let last = server.endpoint.take(now).unwrap();
    drop(client);
    world.step(ms(1), &mut [&mut server]);
    while server.endpoint.take(now).is_some() {}
    world.step(ms(1), &mut [&mut server]);
    assert_eq!(server.up(), []);
    let mut bytes = [9; 4];
    assert_eq!((memory.read(last.offset, &mut bytes), bytes), (4, [0; 4]));
    server.endpoint.release(now, last);
}
