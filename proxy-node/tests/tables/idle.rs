//! Clients that open connections and say nothing: they keep out only each other.

use std::net::Ipv4Addr;
use std::time::Duration;

use csp_support::Random;
use csp_wire::channel::{MessageHeader, MessageKind};
use csp_wire::tcp::Flags as TcpFlags;

use crate::local;
use crate::world::{World, web};

const SERVER: u32 = 8001;

/// Lets 20 ms pass, in which the process accepts all that waits.
fn step(w: &mut World) {
    w.send(SERVER, MessageHeader::new(MessageKind::AcceptCredit, 7, 16, 0), &[]);
    w.accept_all();
    w.pass(Duration::from_millis(20));
    (w.out.records, w.out.messages, w.out.payloads) = Default::default();
}

/// A client connects, sends a request and waits for more; returns the sequence number that it expects next.
fn visit(w: &mut World, from: Ipv4Addr, port: u16) -> u32 {
    w.from = from;
    let ack = w.connect(1, port);
    w.client(1, port, 101, ack, TcpFlags::ACK, b"request");
    ack
}

fn client(network: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, network, 9)
}

/// Lets a network open `attacks` connections among 40 clients of other networks, and checks that these are
/// served.
fn attack(seed: u64, mut w: World, attacks: u32, speaks: bool) -> World {
    let mut random = Random::new(seed);
    let mut served = Vec::new();
    for n in 0..attacks {
        let from = Ipv4Addr::new(10, 66, 6, random.below(256) as u8);
        let port = 2_000 + n as u16;
        match speaks {
            true => drop(visit(&mut w, from, port)),
            false => {
                w.from = from;
                w.connect(1, port);
            }
        }
        if n % (attacks / 40) == 0 {
            let network = (n / (attacks / 40)) as u8;
            served.push((network, visit(&mut w, client(network), 1_000 + u16::from(network))));
        }
        step(&mut w);
    }
    // All clients are there still: each sends another request, and the process gets it.
    for (network, ack) in served {
        w.from = client(network);
        w.client(1, 1_000 + u16::from(network), 108, ack, TcpFlags::ACK, b"another");
        let data = w.out.take(SERVER, MessageKind::Data);
        assert_eq!(data.len(), 1, "seed {seed}: the client of network {network} is not served");
    }
    assert_eq!(w.core.tcp().counters().dropped_table_full, 0, "seed {seed}");
    assert_eq!(w.core.counters().drop_no_budget, 0, "seed {seed}");
    w
}

#[test]
fn a_network_whose_clients_say_nothing_fills_no_table() {
    for seed in 0..8 {
        let w = attack(seed, World::sized(&[SERVER as u16], 512, 32_768), 2_000, false);
        let given_up = w.core.counters().idle_given_up;
        assert!((1_500..1_700).contains(&given_up), "seed {seed}: {given_up} gave way");
    }
}

#[test]
fn a_network_whose_clients_fall_silent_after_a_request_fills_no_table() {
    for seed in 0..8 {
        let w = attack(seed, World::sized(&[SERVER as u16], 512, 32_768), 2_000, true);
        assert!(w.core.counters().idle_given_up >= 1_500, "seed {seed}");
    }
}

#[test]
fn a_network_whose_clients_say_nothing_does_not_take_all_memory() {
    for seed in 0..4 {
        let w = attack(seed, World::sized(&[SERVER as u16], 2_048, 4_096), 2_000, false);
        assert!(w.core.flow_count() < 1_024, "the memory sets the limit");
        assert!(w.core.counters().idle_given_up > 0, "seed {seed}");
    }
}

#[test]
fn the_process_of_a_client_that_gives_way_is_informed() {
    let mut w = World::sized(&[SERVER as u16], 64, 2_048);
    for port in 1_000..1_060 {
        w.connect(1, port);
        w.pass(Duration::from_millis(1));
    }
    let taken = w.accept_all();
    w.connect(1, 2_000);
    assert_eq!(w.out.take(SERVER, MessageKind::Reset), [taken[0].1], "the oldest");
    assert_eq!(w.core.flow_count(), 60);
}

#[test]
fn clients_that_use_their_connections_keep_them() {
    let mut w = World::sized(&[SERVER as u16], 128, 8_192);
    for network in 0..128 {
        visit(&mut w, client(network), 1_000 + u16::from(network));
        step(&mut w);
    }
    // Idle for an hour, but each of another network.
    w.pass(Duration::from_secs(3_600));
    for n in 0..10 {
        w.from = client(200 + n);
        w.client(1, 2_000, 100, 0, TcpFlags::SYN, &[]);
        w.pass(Duration::from_millis(20));
    }
    let counters = w.core.counters();
    assert_eq!((w.core.flow_count(), counters.idle_given_up), (128, 0));
    assert_eq!(w.core.tcp().counters().dropped_table_full, 10, "without room, SYNs are dropped");
}

/// A client joins the chat, and says something if it `speaks`; returns the sequence number that it expects
/// next.
fn join(w: &mut World, from: Ipv4Addr, port: u16, speaks: bool) -> u32 {
    w.from = from;
    w.connect_to(local::PORT, port);
    let ack = w.out.records.iter().rev().find(|r| r.1 == port).unwrap().2.wrapping_add(1);
    if speaks {
        w.segment(1, (port, local::PORT), (101, ack), TcpFlags::ACK, b"subscribe");
    }
    ack
}

/// What has been read by a service of the proxy itself, and by no process, counts as well.
#[test]
fn subscribers_that_have_spoken_keep_their_connections_before_those_that_have_not() {
    // Of many networks: none gives way, however long ago they spoke.
    let mut w = World::sized(&[SERVER as u16], 128, 8_192);
    w.policy(vec![web(&[SERVER as u16]), local::service()]);
    for network in 0..128 {
        join(&mut w, client(network), 1_000 + u16::from(network), true);
        w.pass(Duration::from_millis(20));
    }
    w.pass(Duration::from_secs(60));
    for n in 0..10 {
        w.from = client(200 + n);
        w.client(1, 2_000, 100, 0, TcpFlags::SYN, &[]);
        w.pass(Duration::from_millis(20));
    }
    assert_eq!((w.core.flow_count(), w.core.counters().idle_given_up), (128, 0));
    // Of one network: those that say nothing give way first, although they are younger.
    let mut w = World::sized(&[SERVER as u16], 64, 2_048);
    w.policy(vec![web(&[SERVER as u16]), local::service()]);
    for n in 0..60 {
        join(&mut w, client(1), 1_000 + n, n < 50);
        w.pass(Duration::from_millis(20));
    }
    w.pass(Duration::from_secs(2));
    for n in 0..10 {
        join(&mut w, client(100 + n as u8), 2_000 + n, true);
        w.pass(Duration::from_millis(20));
    }
    assert_eq!((w.core.counters().idle_given_up, w.core.local().len()), (10, 60));
    let live = w.core.flows(w.now, 64);
    let mut ports: Vec<u16> = live.iter().map(|flow| flow.tuple.remote.port()).collect();
    ports.sort_unstable();
    assert_eq!(ports, (1_000..1_050).chain(2_000..2_010).collect::<Vec<_>>());
}
