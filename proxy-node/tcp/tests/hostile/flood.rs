//! SYN floods, and SYN cookies (RFC 4987).

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use csp_tcp::{Event, StackConfig, SynCookies};
use csp_types::{FlowLabel, FourTuple, Instant};
use csp_wire::tcp::{Flags, HEADER_LEN_MAX, Options, Repr};

use crate::common::{Net, Packet, address, client_tuple, small_config};

const SPOOFED: [u8; 2] = [198, 18];

fn is_spoofed(tuple: &FourTuple) -> bool {
    matches!(tuple.remote.ip(), std::net::IpAddr::V4(ip) if ip.octets().starts_with(&SPOOFED))
}

fn spoofed(n: u32) -> SocketAddr {
    let [_, a, b, c] = n.to_be_bytes();
    SocketAddr::new(Ipv4Addr::new(SPOOFED[0], SPOOFED[1], a ^ b, c).into(), 1024 + (n >> 8) as u16)
}

pub fn packet(remote: SocketAddr, repr: Repr, payload: &[u8]) -> Packet {
    let local = address("10.0.0.2:80");
    let repr = Repr { source_port: remote.port(), destination_port: local.port(), ..repr };
    let mut bytes = vec![0; HEADER_LEN_MAX];
    let len = repr.emit(&mut bytes).unwrap();
    bytes.truncate(len);
    bytes.extend_from_slice(payload);
    Packet { tuple: FourTuple { local: remote, remote: local }, bytes, ecn: 0 }
}

fn syn(remote: SocketAddr, seq: u32) -> Packet {
    let options = Options { mss: Some(1460), sack_permitted: true, ..Options::default() };
    packet(remote, Repr { seq, flags: Flags::SYN, window: 64_240, options, ..Repr::default() }, &[])
}

pub fn server_config(syn_cookies: SynCookies) -> StackConfig {
    StackConfig { connections: 512, half_open: 64, syn_cookies, ..small_config(2) }
}

/// Events of the client's connections.
#[derive(Default)]
struct Clients {
    opened: BTreeMap<FlowLabel, Instant>,
    established_after: Vec<Duration>,
    echoed: usize,
    failed: usize,
}

impl Clients {
    fn turn(&mut self, net: &mut Net) {
        while let Some((label, event)) = net.hosts[0].stack.poll_event() {
            match event {
                Event::Established { .. } => {
                    self.established_after.push(net.now.saturating_since(self.opened[&label]));
                    net.hosts[0].stack.write(net.now, label, b"ping");
                }
                Event::Readable => {
                    self.echoed += net.hosts[0].stack.read_with(net.now, label, 99, |slice| slice.len());
                }
                Event::Failed(_) => self.failed += 1,
                _ => {}
            }
        }
    }
}

fn echo(net: &mut Net) {
    while let Some((label, event)) = net.hosts[1].stack.poll_event() {
        if event == Event::Readable {
            let mut bytes = Vec::new();
            net.hosts[1].stack.read_with(net.now, label, 1 << 20, |slice| {
                bytes.extend_from_slice(slice);
                slice.len()
            });
            net.hosts[1].stack.write(net.now, label, &bytes);
        }
    }
}

/// A million SYNs per second from addresses that never respond, and in parallel a new client every 2 ms at 20
/// ms round trip. Returns the clients' results.
fn flood(syn_cookies: SynCookies, clients_wanted: u16) -> (Clients, Net) {
    const SYNS_PER_MS: u32 = 1_000;
    const SYNS_BETWEEN_POLLS: u32 = 250;
    let client = StackConfig { connections: 512, ..small_config(1) };
    let mut net = Net::new(1, client, server_config(syn_cookies)).with_rtt(Duration::from_millis(20));
    net.unreachable = is_spoofed;
    let mut clients = Clients::default();
    let mut sent = 0;
    for ms in 0..u32::from(clients_wanted) * 2 + 100 {
        for _ in 0..SYNS_PER_MS / SYNS_BETWEEN_POLLS {
            for _ in 0..SYNS_BETWEEN_POLLS {
                sent += 1;
                net.deliver(1, &syn(spoofed(sent), sent.wrapping_mul(2_654_435_761)));
            }
            net.flush();
        }
        if ms % 2 == 0 && ms / 2 < u32::from(clients_wanted) && ms > 4 {
            let tuple = client_tuple(2_000 + (ms / 2) as u16);
            let label = net.hosts[0].stack.connect(net.now, tuple, 7, 1).unwrap();
            clients.opened.insert(label, net.now);
        }
        let until = net.now + Duration::from_millis(1);
        while net.step(until) {
            clients.turn(&mut net);
            echo(&mut net);
            net.flush();
        }
        let o = net.hosts[1].stack.occupancy();
        for (used, all) in [o.connections, o.half_open, o.replies, o.cookie_replies] {
            assert!(used <= all, "{o:?}");
        }
    }
    (clients, net)
}

#[test]
fn clients_connect_during_a_flood_as_if_there_were_none() {
    let (clients, net) = flood(SynCookies::Auto, 200);
    let wanted = clients.opened.len();
    assert_eq!((clients.established_after.len(), clients.echoed, clients.failed), (wanted, 4 * wanted, 0));
    let slowest = clients.established_after.iter().max().unwrap();
    assert!(*slowest < Duration::from_millis(22), "one round trip, no SYN retransmitted: {slowest:?}");
    let server = &net.hosts[1].stack;
    let counters = server.counters();
    assert_eq!(counters.syn_cookies_accepted, wanted as u64);
    assert_eq!((counters.half_open_evicted, counters.syn_cookies_suppressed), (0, 0));
    assert_eq!(server.occupancy().half_open.0, 64, "the first half-open connections wait for their timeout");
    let syns = 500 * 1000 + wanted as u64 - 64;
    assert_eq!(counters.syn_cookies_sent, syns, "a SYN/ACK for every SYN, and no more");
}

#[test]
fn without_cookies_the_same_flood_keeps_them_out() {
    // The control: without cookies the result of the test above does not hold.
    let (clients, net) = flood(SynCookies::Off, 20);
    assert_eq!((clients.echoed, net.hosts[1].stack.counters().syn_cookies_sent), (0, 0));
    assert!(net.hosts[1].stack.counters().half_open_evicted > 100_000);
}

#[test]
fn no_cookie_is_sent_while_there_is_room() {
    let mut net = Net::new(1, small_config(1), server_config(SynCookies::Auto));
    net.unreachable = is_spoofed;
    for n in 0..64 {
        net.deliver(1, &syn(spoofed(n), n));
        net.flush();
    }
    assert_eq!(net.hosts[1].stack.counters().syn_cookies_sent, 0);
    net.deliver(1, &syn(spoofed(64), 64));
    assert_eq!(net.hosts[1].stack.counters().syn_cookies_sent, 1);
    // A retransmitted SYN whose connection has a block is not answered with a cookie.
    net.deliver(1, &syn(spoofed(3), 3));
    net.flush();
    let counters = net.hosts[1].stack.counters();
    assert_eq!((counters.syn_cookies_sent, counters.syn_retransmitted), (1, 1));
}

#[test]
fn the_queue_of_cookies_is_bounded() {
    let config = StackConfig { cookie_replies: 100, ..server_config(SynCookies::Always) };
    let mut net = Net::new(1, small_config(1), config);
    for n in 0..1_000 {
        net.deliver(1, &syn(spoofed(n), n));
    }
    let stack = &mut net.hosts[1].stack;
    assert_eq!(
        (stack.occupancy().cookie_replies, stack.counters().syn_cookies_suppressed),
        ((100, 100), 900)
    );
    let mut sent = 0;
    while stack.poll_transmit(net.now).is_some() {
        sent += 1;
    }
    assert_eq!((sent, stack.occupancy().connections.0), (100, 0));
}
