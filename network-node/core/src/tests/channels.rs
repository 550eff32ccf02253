//! Connections to channels of messages go to the worker that owns the channel.

use std::net::SocketAddr;

use csp_types::{FlowLabel, Owner, PlacementKey, owner_of};
use csp_wire::tcp::Flags as Tcp;
use csp_wire::tunnel::{Flags, Record};

use super::fixture::*;
use crate::*;

const CHANNELS: [&str; 3] = ["10.76.0.100:5556", "10.76.0.100:5557", "[2001:db8::100]:5556"];
const WORKERS: [(&str, u8); 3] = [("pn-1", 2), ("pn-2", 2), ("pn-3", 1)];

fn key(address: &str) -> PlacementKey {
    PlacementKey::of_address(address.parse().unwrap())
}

/// A core with these channels beside the service, and three proxies; slots are in the order of `order`.
fn world(order: [usize; 3]) -> Fixture {
    let mut f = Fixture::without_proxy(CoreConfig::new(vec![PortConfig::new(OUR_MAC, 1500)], (1, 2)));
    let channels: Vec<(SocketAddr, PlacementKey)> =
        CHANNELS.map(|address| (address.parse().unwrap(), key(address))).to_vec();
    let services = [VIP.parse().unwrap(), VIP6.parse().unwrap()];
    f.core.set_rules(f.now, &services, &channels, &[EGRESS.parse().unwrap()], &mut f.out).unwrap();
    for (slot, at) in order.into_iter().enumerate() {
        let (name, workers) = WORKERS[at];
        f.core.proxy_up(ProxyId(slot as u16), name.parse().unwrap(), workers);
    }
    f
}

/// The worker that should own a channel if only proxies of which `open` is true count.
fn owner(address: &str, open: impl Fn(&str, u8) -> bool) -> (String, u8) {
    let all = WORKERS.iter().flat_map(|(name, count)| (0..*count).map(move |worker| (*name, worker)));
    let open = all.filter(|(name, worker)| open(name, *worker));
    let owners = open.map(|(name, worker)| Owner { proxy: name.parse().unwrap(), worker });
    let owner = owner_of(key(address), owners).unwrap();
    (owner.proxy.to_string(), owner.worker)
}

/// Sends one segment of a new client to an address; returns what the node sends on, and the worker that gets
/// it.
fn send(f: &mut Fixture, n: u16, address: &str, flags: Tcp) -> (TunnelOut, (String, u8)) {
    let client = match address.starts_with('[') {
        true => format!("[2001:db8::1]:{}", 1024 + n),
        false => format!("10.76.1.{}:{}", n % 200 + 1, 1024 + n),
    };
    f.frame(&ip_frame(&tcp_packet(&client, address, flags, &[])));
    let sent = f.sent();
    let place = place(f, &sent);
    (sent, place)
}

fn place(f: &Fixture, sent: &TunnelOut) -> (String, u8) {
    (f.core.proxies.node(sent.proxy).unwrap().to_string(), sent.worker)
}

#[test]
fn every_client_reaches_the_owner_on_every_network_node() {
    for order in [[0, 1, 2], [2, 0, 1]] {
        let mut f = world(order);
        for address in CHANNELS {
            let expected = owner(address, |_, _| true);
            for n in 0..50 {
                assert_eq!(send(&mut f, n, address, Tcp::SYN).1, expected, "{address}, slots {order:?}");
            }
        }
        let mut others: Vec<_> = (0..50).map(|n| send(&mut f, 100 + n, VIP, Tcp::SYN).1).collect();
        others.sort();
        others.dedup();
        assert_eq!(others.len(), 5, "connections of services go to all workers");
    }
}

#[test]
fn when_the_owner_is_down_or_drains_the_next_one_is_chosen() {
    let address = CHANNELS[0];
    let first = owner(address, |_, _| true);
    let slot = WORKERS.iter().position(|(name, _)| *name == first.0).unwrap() as u16;
    let mut f = world([0, 1, 2]);
    send(&mut f, 1, address, Tcp::SYN);

    f.core.worker_down(ProxyId(slot), first.1);
    let second = owner(address, |name, worker| (name, worker) != (&first.0, first.1));
    assert_eq!(send(&mut f, 2, address, Tcp::SYN).1, second);
    // A SYN that is sent again finds the flow, which the dead worker has lost.
    assert_eq!(send(&mut f, 1, address, Tcp::SYN).1, second);
    f.core.worker_up(ProxyId(slot), first.0.parse().unwrap(), first.1);
    assert_eq!(send(&mut f, 3, address, Tcp::SYN).1, first);
    assert_eq!(send(&mut f, 2, address, Tcp::SYN).1, second, "a flow stays where it is");

    f.core.set_draining(ProxyId(slot), true);
    let other = owner(address, |name, _| name != first.0);
    assert_eq!(send(&mut f, 4, address, Tcp::SYN).1, other);
    assert_eq!(send(&mut f, 3, address, Tcp::ACK).1, first, "established ones too");
    f.core.set_draining(ProxyId(slot), false);
    assert_eq!(send(&mut f, 5, address, Tcp::SYN).1, first);
}

#[test]
fn without_a_worker_that_takes_connections_they_are_dropped() {
    let mut f = world([0, 1, 2]);
    (0..3).for_each(|slot| f.core.set_draining(ProxyId(slot), true));
    f.frame(&ip_frame(&tcp_packet("10.76.1.1:1024", CHANNELS[0], Tcp::SYN, &[])));
    assert_eq!((f.out.tunnel.len(), f.core.counters().drop_no_proxy), (0, 1));
}

#[test]
fn before_all_proxies_were_tried_no_connection_of_a_channel_is_opened() {
    let mut f = world([0, 1, 2]);
    f.core.set_settled(false);
    f.frame(&ip_frame(&tcp_packet("10.76.1.1:1024", CHANNELS[0], Tcp::SYN, &[])));
    assert_eq!((f.out.tunnel.len(), f.core.counters().drop_no_proxy), (0, 1), "its owner may be unknown yet");
    f.core.set_settled(true);
    send(&mut f, 0, CHANNELS[0], Tcp::SYN);
}

#[test]
fn the_search_for_an_unknown_connection_asks_the_owner_first_and_then_all_others() {
    for address in CHANNELS {
        let mut f = world([1, 2, 0]);
        let (mut sent, first) = send(&mut f, 7, address, Tcp::ACK);
        assert_eq!(first, owner(address, |_, _| true), "{address}");
        let mut asked = vec![first.clone()];
        for _ in 1..5 {
            assert!(sent.flags.contains(Flags::RETURN_UNKNOWN));
            let segment = Record { worker: sent.worker, ..whole(FlowLabel::NONE, &sent.payload) };
            f.core.on_record(f.now, sent.proxy, &Record::unknown(&segment, sent.worker), &mut f.out);
            sent = f.sent();
            asked.push(place(&f, &sent));
        }
        asked.sort();
        asked.dedup();
        assert_eq!(asked.len(), 5, "{asked:?}");
        // A SYN ends the search: it goes to the owner.
        let (again, place) = send(&mut f, 7, address, Tcp::SYN);
        assert_eq!((place, again.flags.contains(Flags::RETURN_UNKNOWN)), (first, false));
    }
}
