//! Connections that wait for a process: their order, their limits, and the effect of processes that hand them
//! back.

use std::time::Duration;

use csp_proxy_node::core::{BacklogLimits, ChannelId, NO_SERVER_GRACE, OFFER_PATIENCE, ServiceSpec};
use csp_types::FlowLabel;
use csp_wire::channel::{MessageHeader, MessageKind};
use csp_wire::tcp::Flags as TcpFlags;

use super::world::{World, web};

const PORT: u16 = 8001;
/// Largest number of unanswered offers of a process (`UNANSWERED_MAX` of the pools; processes here grant as
/// much credit).
const UNANSWERED: usize = 64;

/// Returns a world with one service, one process (channel 8001), and this backlog.
fn with_backlog(connections: usize, time: Option<Duration>) -> World {
    let mut w = World::new(&[]);
    let backlog = BacklogLimits { connections, time };
    w.policy(vec![ServiceSpec { backlog, ..web(&[PORT]) }]);
    w.process(PORT);
    w
}

fn refuse(w: &mut World, channel: u32, label: u32) {
    let label = FlowLabel::from_wire(label).unwrap();
    w.send(channel, MessageHeader::of_flow(MessageKind::Refused, label, 111, 0), &[]);
}

/// The process withdraws its credit; returns how much the proxy reports as unused.
fn withdraw(w: &mut World, channel: u32) -> u32 {
    w.send(channel, MessageHeader::new(MessageKind::AcceptCredit, 7, 0, 0), &[]);
    let answer = w.out.messages.iter().rev().find(|m| m.1.kind == MessageKind::AcceptCredit).unwrap().1;
    w.out.messages.clear();
    answer.argument
}

fn grant(w: &mut World, channel: u32, count: u32) {
    w.send(channel, MessageHeader::new(MessageKind::AcceptCredit, 7, count, 0), &[]);
}

#[test]
fn what_a_process_hands_back_waits_in_the_order_of_arrival_and_is_never_reset() {
    let mut w = World::new(&[PORT]);
    w.connect_all(1000..1006);
    let offered = w.out.take(PORT.into(), MessageKind::Open);
    for round in 1..50 {
        assert_eq!(withdraw(&mut w, PORT.into()), if round == 1 { 58 } else { 0 });
        // The last two are handed back first.
        for label in offered[4..].iter().chain(&offered[..4]) {
            refuse(&mut w, PORT.into(), *label);
        }
        assert!(w.out.messages.is_empty(), "without credit nothing is offered");
        grant(&mut w, PORT.into(), 6);
        assert_eq!(w.out.take(PORT.into(), MessageKind::Open), offered, "round {round}");
    }
    assert_eq!((w.core.flow_count(), w.core.counters().drop_no_server), (6, 0));
    assert!(!w.out.flags.contains(TcpFlags::RST));
}

#[test]
fn one_that_arrives_later_waits_behind_those_that_came_back() {
    let mut w = World::new(&[PORT]);
    w.connect_all(1000..1002);
    let first = w.out.take(PORT.into(), MessageKind::Open);
    withdraw(&mut w, PORT.into());
    first.iter().for_each(|label| refuse(&mut w, PORT.into(), *label));
    w.connect_all(1002..1003);
    grant(&mut w, PORT.into(), 2);
    assert_eq!(w.out.take(PORT.into(), MessageKind::Open), first);
    grant(&mut w, PORT.into(), 1);
    assert_eq!(w.out.take(PORT.into(), MessageKind::Open).len(), 1);
}

#[test]
fn a_process_that_comes_back_to_its_listener_is_not_in_doubt() {
    let mut w = World::new(&[]);
    w.policy(vec![web(&[PORT])]);
    (1..=2).for_each(|channel| w.process_at(channel, PORT));
    w.connect(1, 1000);
    let label = w.out.take(1, MessageKind::Open)[0];
    withdraw(&mut w, 1);
    refuse(&mut w, 1, label);
    assert_eq!(w.out.take(2, MessageKind::Open), [label]);
    grant(&mut w, 1, 64);
    w.connect(1, 1001);
    assert_eq!(w.out.take(1, MessageKind::Open).len(), 1, "it has fewer connections");
}

#[test]
fn a_process_that_leaves_an_offer_unanswered_for_long_gets_no_more_until_it_accepts() {
    let mut w = World::new(&[PORT]);
    w.connect_all(1000..1003);
    assert_eq!(w.out.take(PORT.into(), MessageKind::Open).len(), 3);
    w.pass(2 * OFFER_PATIENCE);
    w.connect_all(1003..1006);
    assert!(w.out.messages.is_empty(), "they wait where any process can have them");
    // A second process accepts all that wait, including those that the first one did not answer.
    w.process_at(2, PORT);
    assert_eq!(w.out.take(2, MessageKind::Open).len(), 3);
    let taken = w.core.flows(w.now, 64).iter().filter(|f| f.state.ends_with("pending")).count();
    assert_eq!(taken, 0);
}

#[test]
fn a_slow_process_that_accepts_gets_what_waits() {
    let mut w = World::new(&[PORT]);
    w.connect_all(1000..1001);
    let label = w.out.take(PORT.into(), MessageKind::Open)[0];
    w.pass(2 * OFFER_PATIENCE);
    w.connect_all(1001..1003);
    assert!(w.out.messages.is_empty());
    let label = FlowLabel::from_wire(label).unwrap();
    w.send(PORT.into(), MessageHeader::of_flow(MessageKind::Accepted, label, 1 << 16, 0), &[]);
    assert_eq!(w.out.take(PORT.into(), MessageKind::Open).len(), 2);
}

#[test]
fn a_slow_process_whose_offers_are_void_is_offered_what_waits() {
    let mut w = World::new(&[PORT]);
    let expects = w.connect(1, 1000);
    w.out.take(PORT.into(), MessageKind::Open);
    w.pass(2 * OFFER_PATIENCE);
    w.connect(1, 1001);
    assert!(w.out.take(PORT.into(), MessageKind::Open).is_empty());
    w.client(1, 1000, 101, expects, TcpFlags::RST, &[]);
    assert_eq!(w.out.take(PORT.into(), MessageKind::Open).len(), 1);
}

#[test]
fn a_full_backlog_drops_syns_and_takes_them_again_once_there_is_room() {
    let mut w = with_backlog(2, None);
    withdraw(&mut w, PORT.into());
    w.client(1, 999, 100, 0, TcpFlags::SYN, &[]); // half open when the backlog becomes full
    w.connect_all(1000..1002);
    let answered = w.out.records.len();
    w.client(1, 1002, 100, 0, TcpFlags::SYN, &[]);
    assert_eq!(w.out.records.len(), answered, "no answer: the client sends its SYN again");
    assert_eq!(w.core.tcp().counters().dropped_backlog_full, 1);
    let syn_ack = w.out.records.iter().find(|r| r.1 == 999).unwrap().2;
    w.client(1, 999, 101, syn_ack.wrapping_add(1), TcpFlags::ACK, &[]);
    assert_eq!(w.core.flow_count(), 3, "a handshake that had begun is completed");
    grant(&mut w, PORT.into(), 1);
    w.client(1, 1002, 100, 0, TcpFlags::SYN, &[]);
    assert_eq!(w.core.tcp().counters().dropped_backlog_full, 2, "two still wait");
    w.client(1, 999, 101, 0, TcpFlags::RST, &[]);
    grant(&mut w, PORT.into(), 1);
    w.connect(1, 1002);
    assert!(!w.out.flags.contains(TcpFlags::RST));
}

#[test]
fn a_policy_with_another_bound_applies_to_what_waits() {
    let mut w = with_backlog(2, None);
    withdraw(&mut w, PORT.into());
    w.connect_all(1000..1002);
    w.policy(vec![web(&[PORT])]);
    w.connect(1, 1002);
    let backlog = BacklogLimits { connections: 3, time: None };
    w.policy(vec![ServiceSpec { backlog, ..web(&[PORT]) }]);
    w.client(1, 1003, 100, 0, TcpFlags::SYN, &[]);
    assert_eq!(w.core.tcp().counters().dropped_backlog_full, 1);
}

#[test]
fn while_a_process_lives_connections_wait_for_as_long_as_the_service_specifies() {
    let second = Duration::from_secs(1);
    let mut w = with_backlog(100, Some(10 * second));
    withdraw(&mut w, PORT.into());
    w.connect_all(1000..1002);
    w.pass(9 * second);
    assert_eq!(w.core.flow_count(), 2);
    w.pass(2 * second);
    let counters = w.core.counters();
    assert_eq!((w.core.flow_count(), counters.drop_backlog_time, counters.drop_no_server), (0, 2, 0));
    let mut w = with_backlog(100, None);
    withdraw(&mut w, PORT.into());
    w.connect_all(1000..1002);
    w.pass(3_600 * second);
    assert_eq!(w.core.flow_count(), 2, "no bound but the client's own");
}

#[test]
fn without_a_process_connections_wait_from_the_end_of_the_last_one_on() {
    let mut w = with_backlog(100, Some(Duration::from_secs(60)));
    withdraw(&mut w, PORT.into());
    w.connect(1, 1000);
    w.pass(Duration::from_secs(30));
    w.processes.clear();
    w.core.channel_down(w.now, ChannelId(PORT.into()), true, &mut w.out);
    w.pass(NO_SERVER_GRACE - Duration::from_millis(1));
    assert_eq!(w.core.flow_count(), 1);
    w.process_at(2, PORT);
    assert_eq!(w.out.take(2, MessageKind::Open).len(), 1, "a server that is restarted finds its clients");
    w.core.channel_down(w.now, ChannelId(2), true, &mut w.out);
    w.pass(NO_SERVER_GRACE);
    assert_eq!((w.core.flow_count(), w.core.counters().drop_no_server), (0, 1));
}

#[test]
fn a_process_holds_so_many_unanswered_offers_and_others_wait() {
    let mut w = World::new(&[PORT]);
    grant(&mut w, PORT.into(), 64);
    w.connect_all(1000..1064);
    assert_eq!(w.out.take(PORT.into(), MessageKind::Open).len(), UNANSWERED);
    assert_eq!(w.core.services()[0].pending, 0);
}

#[test]
fn services_that_share_a_process_are_served_in_order_of_arrival() {
    let mut w = World::new(&[PORT]);
    let other =
        ServiceSpec { name: "other".to_owned(), address: (super::world::VIP, 81).into(), ..web(&[PORT]) };
    w.policy(vec![web(&[PORT]), other]);
    withdraw(&mut w, PORT.into());
    w.connect_all(1000..1002);
    w.connect_to(81, 2000);
    w.connect_all(1002..1004);
    let mut waiting: Vec<_> =
        w.core.flows(w.now, 64).into_iter().map(|f| (f.label.to_wire(), f.tuple.remote.port())).collect();
    waiting.sort_unstable();
    let mut served = Vec::new();
    for _ in 0..5 {
        grant(&mut w, PORT.into(), 1);
        let label = w.out.take(PORT.into(), MessageKind::Open)[0];
        served.push(waiting.iter().find(|(other, _)| *other == label).unwrap().1);
    }
    assert_eq!(served, [1000, 1001, 2000, 1002, 1003]);
}

#[test]
fn a_pool_that_policy_replaces_has_time_to_come_up() {
    let mut w = World::new(&[PORT]);
    withdraw(&mut w, PORT.into());
    w.connect(1, 1000);
    w.pass(Duration::from_secs(20));
    w.policy(vec![web(&[PORT + 1])]);
    w.pass(NO_SERVER_GRACE - Duration::from_millis(1));
    assert_eq!(w.core.flow_count(), 1);
    w.process(PORT + 1);
    assert_eq!(w.out.take((PORT + 1).into(), MessageKind::Open).len(), 1);
}

#[test]
fn time_in_the_backlog_counts_from_the_handshake_however_often_a_connection_comes_back() {
    let mut w = with_backlog(100, Some(Duration::from_secs(10)));
    w.connect(1, 1000);
    let label = w.out.take(PORT.into(), MessageKind::Open)[0];
    for _ in 0..9 {
        w.pass(Duration::from_secs(1));
        withdraw(&mut w, PORT.into());
        refuse(&mut w, PORT.into(), label);
        grant(&mut w, PORT.into(), 1);
        assert_eq!(w.out.take(PORT.into(), MessageKind::Open), [label]);
    }
    withdraw(&mut w, PORT.into());
    refuse(&mut w, PORT.into(), label);
    w.pass(Duration::from_secs(1));
    assert_eq!((w.core.flow_count(), w.core.counters().drop_backlog_time), (0, 1));
}

#[test]
fn an_offer_does_not_stay_for_ever_with_a_busy_process_while_another_one_accepts() {
    let mut w = World::new(&[]);
    w.policy(vec![web(&[PORT])]);
    (1..=2).for_each(|channel| w.process_at(channel, PORT));
    w.connect(1, 1000);
    let label = w.out.take(1, MessageKind::Open)[0];
    // The second process is never idle: it accepts one connection after another, and always has one to
    // answer.
    let mut moved = Vec::new();
    for port in 2000..2060 {
        w.connect(1, port);
        let offered = w.out.take(2, MessageKind::Open);
        if offered.contains(&label) {
            moved.push(w.now);
        }
        w.pass(OFFER_PATIENCE - Duration::from_millis(1));
        w.connect(1, port + 1000);
        for other in offered {
            let other = FlowLabel::from_wire(other).unwrap();
            w.send(2, MessageHeader::of_flow(MessageKind::Accepted, other, 1 << 16, 0), &[]);
            w.send(2, MessageHeader::of_flow(MessageKind::Reset, other, 0, 0), &[]);
        }
        grant(&mut w, 2, 2);
    }
    assert_eq!(moved.len(), 1, "{:?}", w.core.flows(w.now, 64));
}
