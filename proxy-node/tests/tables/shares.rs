//! What one user's processes hold of a worker leaves room for those of others.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use csp_proxy_node::core::{ChannelId, EgressRule, HANDOVER_TIMEOUT, Process, ServiceTcp};
use csp_support::Random;
use csp_types::{FlowLabel, Grant};
use csp_wire::channel::{ConnectPayload, MessageHeader, MessageKind, TakeOverPayload, Ticket};

use crate::world::{NOW, VIP, World, web};

const SERVER: u32 = 8001;
/// Channels of two processes of user 65534, of one of user 1000, and of one of root.
const NOBODY: [u32; 2] = [9000, 9001];
const OTHER: u32 = 9002;
const ROOT: u32 = 9003;

fn world(connections: usize, blocks: usize) -> World {
    let mut w = World::sized(&[SERVER as u16], connections, blocks);
    let destinations = vec!["10.0.0.0/24".parse().unwrap(), "192.0.2.0/24".parse().unwrap()];
    let address = Ipv4Addr::new(10, 0, 0, 9).into();
    let rule = EgressRule { address, destinations, except: Vec::new(), tcp: ServiceTcp::default() };
    w.core.set_policy(NOW, vec![web(&[SERVER as u16])], vec![rule], &mut w.out);
    for (channel, uid) in [(NOBODY[0], 65534), (NOBODY[1], 65534), (OTHER, 1000), (ROOT, 0)] {
        let (node, name) = ("an-1".parse().unwrap(), "p".to_owned());
        let process = Process { node, name, uid: Some(uid), grant: Grant::all() };
        assert!(w.core.channel_up(ChannelId(channel), process));
    }
    w
}

/// Sends CONNECT; `false` if it is refused.
fn connect(w: &mut World, channel: u32, remote: SocketAddr) -> bool {
    let mut payload = [0; ConnectPayload::LEN_MAX];
    let len = ConnectPayload { remote, local: None }.emit(&mut payload).unwrap();
    w.out.messages.clear();
    w.send(channel, MessageHeader::new(MessageKind::Connect, 1, 1 << 16, len as u32), &payload[..len]);
    w.out.take(channel, MessageKind::Refused).is_empty()
}

fn outside(n: usize) -> SocketAddr {
    (Ipv4Addr::new(192, 0, 2, n as u8), 443).into()
}

#[test]
fn a_user_that_connects_without_end_leaves_connections_for_others() {
    for seed in 0..8 {
        let mut random = Random::new(seed);
        let mut w = world(128, 16_384);
        let tries = 200;
        let attacks =
            (0..tries).filter(|n| connect(&mut w, NOBODY[random.below(2) as usize], outside(*n))).count();
        assert_eq!(attacks, 65, "seed {seed}: one more than it leaves free, over both processes");
        assert_eq!(w.core.counters().connects_over_share, 135);
        let (other, root) = (connect(&mut w, OTHER, outside(1)), connect(&mut w, ROOT, outside(1)));
        assert!(other && root && w.core.flow_count() == 67, "seed {seed}");
        // The other user gets half of what is free; root gets the rest.
        assert_eq!((0..tries).filter(|n| connect(&mut w, OTHER, outside(*n))).count(), 31);
        assert!((0..tries).filter(|n| connect(&mut w, ROOT, outside(*n))).count() >= 28);
        // Connections that end are free again, and the share with them.
        w.core.channel_down(w.now, ChannelId(NOBODY[0]), true, &mut w.out);
        w.core.channel_down(w.now, ChannelId(NOBODY[1]), true, &mut w.out);
        assert!(connect(&mut w, OTHER, outside(1)), "seed {seed}");
    }
}

#[test]
fn a_user_that_connects_without_end_leaves_memory_for_others() {
    let mut w = world(2_048, 4_096);
    let attacks = (0..2_000).filter(|n| connect(&mut w, NOBODY[0], outside(n % 250))).count();
    assert!((10..1_000).contains(&attacks), "{attacks}: the memory sets the limit");
    assert!(w.core.counters().connects_over_share > 0);
    let reserved = w.core.budget_reserved();
    assert!((0..10).all(|n| connect(&mut w, OTHER, outside(n))), "another user's");
    w.connect(1, 1_000);
    assert_eq!(
        (w.core.counters().drop_no_budget, w.core.counters().connections_passive),
        (0, 1),
        "a client's"
    );
    assert!(w.core.budget_reserved() > reserved);
    for channel in [NOBODY[0], OTHER] {
        w.core.channel_down(w.now, ChannelId(channel), false, &mut w.out);
    }
    assert_eq!(w.core.flow_count(), 1);
}

#[test]
fn a_user_that_connects_to_services_leaves_hairpins_for_others() {
    // The world has four hairpins, of two ends each.
    let (mut w, to) = (world(128, 16_384), (VIP, 80).into());
    assert!(
        (0..6).all(|_| connect(&mut w, NOBODY[0], to)),
        "what finds no hairpin goes through a network node"
    );
    assert_eq!((w.core.hairpin_count(), w.core.flow_count()), (6, 9));
    assert!(connect(&mut w, OTHER, to) && w.core.hairpin_count() == 8, "the last one is another user's");
    w.core.channel_down(w.now, ChannelId(NOBODY[0]), false, &mut w.out);
    assert_eq!(w.core.hairpin_count(), 2);
    assert!(connect(&mut w, NOBODY[1], to) && w.core.hairpin_count() == 4, "what ended is free again");
}

#[test]
fn a_connection_that_changes_owners_has_one_entry_among_those_left() {
    for seed in 0..8 {
        let mut random = Random::new(seed);
        let mut w = world(64, 2_048);
        w.connect_all(1_000..1_004);
        let labels: Vec<_> = w.accept_all().iter().map(|t| FlowLabel::from_wire(t.1).unwrap()).collect();
        let mut owners = vec![Some(SERVER); labels.len()];
        let ticket = Ticket([7; 16]);
        for _ in 0..2_000 {
            let at = random.below(4) as usize;
            match owners[at] {
                Some(owner) => {
                    let header = MessageHeader::of_flow(MessageKind::HandOver, labels[at], 0, 16);
                    w.send(owner, header, &ticket.0);
                    owners[at] = None;
                }
                None => {
                    let owner = NOBODY[random.below(2) as usize];
                    let payload = TakeOverPayload { label: labels[at], ticket }.emit();
                    let header = MessageHeader::new(MessageKind::TakeOver, 1, 1 << 16, payload.len() as u32);
                    w.send(owner, header, &payload);
                    owners[at] = Some(owner);
                }
            }
            w.pass(Duration::from_millis(1));
            assert_eq!(w.core.left_count(), owners.iter().filter(|o| o.is_none()).count(), "seed {seed}");
        }
        assert_eq!(w.core.flow_count(), 4, "seed {seed}");
        // The client of one that was left ends it; what no process takes over ends in time.
        w.client(1, 1_000, 101, 0, csp_wire::tcp::Flags::RST, &[]);
        let owned = owners.iter().filter(|o| o.is_some()).count();
        w.pass(HANDOVER_TIMEOUT);
        assert_eq!(w.core.left_count(), 0, "seed {seed}");
        assert!((owned.saturating_sub(1)..=owned).contains(&w.core.flow_count()), "seed {seed}");
    }
}
