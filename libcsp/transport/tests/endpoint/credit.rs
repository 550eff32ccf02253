//! Descriptor credit: never exceeded, always returned, never a deadlock.

use csp_transport::{LinkId, SendError};
use csp_transport::{MessageKind, Purpose};
use proptest::prelude::*;

use crate::harness::*;

/// Sends numbered messages until there is no credit; returns how many were sent.
fn fill(world: &World, side: &mut Side, link: LinkId) -> u32 {
    let mut sent = 0u32;
    while side.send(world.now, link, &sent.to_le_bytes()) {
        sent += 1;
    }
    sent
}

#[test]
fn a_sender_stops_when_the_receiver_does_and_goes_on_when_it_does() {
    let mut world = World::new();
    let (mut proxy, mut app) = (world.proxy(16), world.process("p", 8));
    let (link, _) = world.channel_up(&mut app, &mut proxy);
    proxy.receives = false;
    assert_eq!(fill(&world, &mut app, link), 16 - 1 - 2, "CONFIRM holds one until the proxy sends");
    world.run(ms(50), &mut [&mut app, &mut proxy]);
    assert_eq!(app.endpoint.credits(link), 0, "what was not received returns no credit");
    let refused = app.endpoint.send(world.now, link, MessageKind::Channel, 0, &[b"x"]);
    assert_eq!(refused, Err(SendError::NoCredit));

    proxy.receives = true;
    world.run(ms(50), &mut [&mut app, &mut proxy]);
    let numbers: Vec<_> =
        proxy.messages.iter().map(|m| u32::from_le_bytes(m.body[..].try_into().unwrap())).collect();
    assert_eq!(numbers, (0..13).collect::<Vec<_>>());
    assert!(app.endpoint.credits(link) >= 16 / 2);
}

#[test]
fn credit_comes_back_while_the_owner_receives_without_a_turn_between() {
    let mut world = World::new();
    let (mut proxy, mut app) = (world.proxy(8), world.process("p", 8));
    let (link, _) = world.channel_up(&mut app, &mut proxy);
    proxy.receives = false;
    fill(&world, &mut app, link);
    world.step(ms(1), &mut [&mut app, &mut proxy]);
    for _ in 0..4 {
        assert!(proxy.receive_one(world.now));
    }
    world.step(ms(0), &mut [&mut app]);
    assert_eq!(app.endpoint.credits(link), 4);
}

#[test]
fn two_exhausted_sides_come_to_life_again_and_stay_alive_meanwhile() {
    let cases = [(4, 4, 0), (4, 4, 30), (8, 8, 250), (4, 64, 5), (5, 7, 30), (64, 64, 0)];
    for (depth_nn, depth_proxy, delay) in cases {
        let mut world = World::with_delay(delay, delay.min(20));
        let (mut proxy, mut nn) = (world.proxy(depth_proxy), world.network_node(depth_nn));
        let (at_nn, at_proxy) = world.tunnel_up(&mut nn, &mut proxy);
        for round in 0..5 {
            // Heartbeats in transit may occupy the descriptors that a small depth leaves for data.
            for _ in 0..2_000 {
                if nn.endpoint.credits(at_nn) > 0 && proxy.endpoint.credits(at_proxy) > 0 {
                    break;
                }
                world.step(ms(1), &mut [&mut nn, &mut proxy]);
            }
            (nn.receives, proxy.receives) = (false, false);
            let (to_proxy, to_nn) = (fill(&world, &mut nn, at_nn), fill(&world, &mut proxy, at_proxy));
            assert!(to_proxy > 0 && to_nn > 0, "round {round} of {depth_nn}/{depth_proxy}");
            // Both are daemons and leave all messages unread: heartbeats must still arrive.
            world.run(ms(3_000), &mut [&mut nn, &mut proxy]);
            assert_eq!(
                (nn.up().len(), proxy.up().len()),
                (1, 1),
                "round {round} of {depth_nn}/{depth_proxy}"
            );
            let before = (proxy.messages.len(), nn.messages.len());
            (nn.receives, proxy.receives) = (true, true);
            world.run(ms(500 + 4 * delay), &mut [&mut nn, &mut proxy]);
            let got = (proxy.messages.len() - before.0, nn.messages.len() - before.1);
            assert_eq!(got, (to_proxy as usize, to_nn as usize));
        }
    }
}

#[test]
fn an_idle_link_sends_only_its_heartbeat() {
    for depth in [4, 5, 8, 64] {
        let mut world = World::new();
        let (mut proxy, mut nn) = (world.proxy(depth), world.network_node(depth));
        world.tunnel_up(&mut nn, &mut proxy);
        world.run(ms(1_000), &mut [&mut nn, &mut proxy]);
        let before = nn.counters().messages_sent + proxy.counters().messages_sent;
        world.run(ms(10_000), &mut [&mut nn, &mut proxy]);
        let sent = nn.counters().messages_sent + proxy.counters().messages_sent - before;
        // Every 200 ms a PING and its answer, at times from both sides at once.
        assert!((90..=220).contains(&sent), "{sent} messages in 10 s at depth {depth}");
    }
}

/// One step: an action of a side, or time that passes.
#[derive(Clone, Copy, Debug)]
enum Act {
    Send(bool),
    Burst(bool),
    Receive(bool),
    Turn(bool),
    Wait(u64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => any::<bool>().prop_map(Act::Send),
        1 => any::<bool>().prop_map(Act::Burst),
        5 => any::<bool>().prop_map(Act::Receive),
        4 => any::<bool>().prop_map(Act::Turn),
        1 => (0..150u64).prop_map(Act::Wait),
    ]
}

/// Numbers its messages, so that order and completeness can be checked.
struct Sender {
    link: LinkId,
    sent: u32,
}

impl Sender {
    fn send(&mut self, world: &World, side: &mut Side) -> bool {
        let credit = side.endpoint.credits(self.link) > 0;
        let sent = side.send(world.now, self.link, &self.sent.to_le_bytes());
        // The provider refuses a message for which the peer has no descriptor: credit must prevent this.
        assert_eq!(sent, credit, "credit is exactly what can be sent");
        self.sent += u32::from(sent);
        sent
    }
}

proptest! {
    #[test]
    fn random_traffic_never_exceeds_credit_and_all_arrives_in_order(
        depths in (4..12u32, 4..12u32),
        tunnel in any::<bool>(),
        delay in 0..20u64,
        acts in prop::collection::vec(act(), 1..400),
    ) {
        let mut world = World::with_delay(delay / 2, delay);
        let mut proxy = world.proxy(depths.0);
        let (mut client, (at_client, at_proxy));
        if tunnel {
            client = world.network_node(depths.1);
            (at_client, at_proxy) = world.tunnel_up(&mut client, &mut proxy);
        } else {
            client = world.process("p", depths.1);
            (at_client, at_proxy) = world.channel_up(&mut client, &mut proxy);
        }
        (client.receives, proxy.receives) = (false, false);
        let mut senders = [Sender { link: at_client, sent: 0 }, Sender { link: at_proxy, sent: 0 }];
        for act in acts {
            let sides = [&mut client, &mut proxy];
            match act {
                Act::Send(which) => {
                    senders[usize::from(which)].send(&world, sides[usize::from(which)]);
                }
                Act::Burst(which) => while senders[usize::from(which)].send(&world, sides[usize::from(which)]) {},
                Act::Receive(which) => {
                    sides[usize::from(which)].receive_one(world.now);
                }
                Act::Turn(which) => {
                    sides[usize::from(which)].turn(world.now);
                }
                Act::Wait(time) => world.step(ms(time), &mut [&mut client, &mut proxy]),
            }
        }
        (client.receives, proxy.receives) = (true, true);
        world.run(ms(300), &mut [&mut client, &mut proxy]);
        prop_assert_eq!((client.up().len(), proxy.up().len()), (1, 1), "{:?} {:?}", client.events, proxy.events);
        for (sender, receiver) in [(&senders[0], &proxy), (&senders[1], &client)] {
            let got: Vec<_> =
                receiver.messages.iter().map(|m| u32::from_le_bytes(m.body[..].try_into().unwrap())).collect();
            prop_assert_eq!(got, (0..sender.sent).collect::<Vec<_>>());
        }
        // At rest both can send again once no heartbeat is in transit: no credit was lost.
        for (to, depth) in [(true, depths.0), (false, depths.1)] {
            let credits = |client: &Side, proxy: &Side| match to {
                true => client.endpoint.credits(at_client),
                false => proxy.endpoint.credits(at_proxy),
            };
            let expected = depth - (depth / 2 - 1).max(1) - 2;
            let mut waited = 0;
            while credits(&client, &proxy) < expected {
                world.step(ms(1), &mut [&mut client, &mut proxy]);
                waited += 1;
                prop_assert!(waited < 200, "{} of {}", credits(&client, &proxy), expected);
            }
        }
    }
}

#[test]
fn a_message_longer_than_the_link_takes_is_refused_locally() {
    let mut world = World::new();
    let (mut proxy, mut app) = (world.proxy(8), world.process("p", 8));
    let (link, _) = world.channel_up(&mut app, &mut proxy);
    let longest = vec![1; app.endpoint.message_len()];
    let send = |app: &mut Side, kind, gather: &[&[u8]]| app.endpoint.send(world.now, link, kind, 9, gather);
    assert_eq!(send(&mut app, MessageKind::Channel, &[&longest, b"x"]), Err(SendError::TooLong));
    assert_eq!(send(&mut app, MessageKind::Channel, &[b"".as_slice(); 16]), Err(SendError::TooLong));
    assert_eq!(
        send(&mut app, MessageKind::Tunnel, &[b"x"]),
        Err(SendError::Down),
        "not what the link is for"
    );
    assert_eq!(send(&mut app, MessageKind::Channel, &[&longest]), Ok(()));
    world.step(ms(1), &mut [&mut app, &mut proxy]);
    assert_eq!((proxy.messages[0].immediate, &proxy.messages[0].body), (9, &longest));
    assert_eq!(proxy.endpoint.link(proxy.up()[0]).unwrap().purpose, Purpose::Channel);
}
